"""The benchmark for one accelerator, small and on the CPU: every section runs, refuses what differs, keeps to its budget."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu, gpu_peers, timing
from benchmarks.gpu_parts import MEAN_OF_MLPERF, MEAN_OF_PAPER, SECTIONS, TINY, Budget, block_lengths
from benchmarks.torch_peer import LossesDiffer, Theirs, same_losses

ROOT = pathlib.Path(__file__).resolve().parents[2]
REASON = "compares with torch and transformers: pip install torch transformers (the extra `verify`)"
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text", "seqio", "tensorflow_datasets"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import benchmarks.gpu, benchmarks.gpu_peers, benchmarks.gpu_sections
sys.exit(benchmarks.gpu.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: with models this small more only wait for each other."""
    torch = pytest.importorskip("torch", reason=REASON)
    pytest.importorskip("transformers", reason=REASON)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def read(file: pathlib.Path) -> dict[str, Any]:
    """The figures of a run, its sections by name, rows by name."""
    content = json.loads(file.read_text())
    sections = content["figures"]["sections"]
    return {
        **content,
        "status": {name: section["status"] for name, section in sections.items()},
        "rows": {name: {row["name"]: row for row in section["rows"]} for name, section in sections.items()},
        "values": content["figures"]["values"],
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Any]:
    """All sections once; a trace is in `trace`."""
    folder = tmp_path_factory.mktemp("gpu")
    more = ["--json", str(folder / "gpu.json"), "--profile", str(folder / "trace")]
    assert gpu.main(["--tiny", "--repeats", "5", "--budget-s", "3000", *more]) == 0
    return {**read(folder / "gpu.json"), "trace": folder / "trace"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_section_runs(tiny: dict[str, Any]) -> None:
    assert list(tiny["status"]) == list(SECTIONS)
    wanted = dict.fromkeys(SECTIONS, "measured") | {"sweep": "measured in part"}
    assert tiny["status"] == wanted
    assert list(tiny["trace"].rglob("*.xplane.pb"))
    for section, rows in tiny["rows"].items():
        for row in rows.values():
            figures = {name: value for name, value in row.items() if name.endswith(("_per_s", "_ms", "_faster"))}
            assert figures or not row["measured"] or section in ("peer", "profile"), row
            for value in figures.values():
                assert (value["lowest"] if isinstance(value, dict) else value) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sweep_names_what_is_refused(tiny: dict[str, Any]) -> None:
    rows = tiny["rows"]["sweep"]
    assert all(rows[f"base, attention {name}"]["measured"] for name in ("xla", "xla_chunked"))
    for name in ("cudnn", "pallas_triton", "splash"):
        assert not rows[f"base, attention {name}"]["measured"]
        assert rows[f"base, attention {name}"]["note"].startswith("refused: ")
    names = ("unroll 2", "attention dropout 0.1, xla", "hidden dropout 0", "remat dots", "remat full")
    assert all(rows[f"base, {name}"]["measured"] for name in names)
    assert tiny["figures"]["settings"]["best"]["attention"] in ("xla", "xla_chunked")
    assert all(row["mfu"] == "unknown device" for row in rows.values() if row["measured"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ratios_are_those_of_the_rows(tiny: dict[str, Any]) -> None:
    values, rows = tiny["values"], tiny["rows"]
    for size in ("base", "large"):
        here, there = (
            next(row for name, row in rows["peer"].items() if name.startswith(f"{size}, {side}"))
            for side in ("spanjax", "PyTorch as shipped")
        )
        assert values[f"over PyTorch {size}"] == pytest.approx(there["step_ms"] / here["step_ms"])
        assert {f"over padded PyTorch {size}", f"over bucketed PyTorch {size}", f"attention dropout {size}"} <= {
            *values
        }
    assert {"rows from disk", "of MLPerf", "over PyTorch, masked-only head, base"} <= {*values}
    assert not any(name.startswith("mfu") for name in values)
    assert tiny["figures"]["not_measured"] == ["utilisation, base (G1)", "utilisation, large (G2)"]
    assert tiny["machine"]["device"] == "cpu" and tiny["machine"]["versions"]["torch"]


@pytest.mark.slow
def test_without_tensorflow(tmp_path: pathlib.Path) -> None:
    """A machine without TensorFlow and seqio: the ceilings and rows from disk are measured."""
    command = ["--tiny", "--sections", "ceilings", "feed", "--sizes", "base", "--json", str(tmp_path / "gpu.json")]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *command, "--repeats", "5", "--best", "unroll=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "gpu.json")
    assert found["status"]["ceilings"] == found["status"]["feed"] == "measured"
    assert found["status"]["peer"] == "not asked for"
    assert found["values"]["rows from disk"] > 0 and found["values"]["matmul_tflops"] > 0


@pytest.mark.slow
def test_disturbed_peer_is_refused(
    tmp_path: pathlib.Path, one_thread: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer with one weight matrix changed by a tenth computes something else: nothing is timed."""

    class Disturbed(Theirs):
        def __init__(self, *arguments: Any, **named: Any):
            super().__init__(*arguments, **named)
            self.model.bert.encoder.layer[0].output.dense.weight.data *= 1.1

        def steps(self, batch: Any, count: int) -> None:
            raise AssertionError("timed")

    monkeypatch.setattr(gpu_peers, "Theirs", Disturbed)
    arguments = ["--tiny", "--repeats", "5", "--sections", "peer", "--sizes", "base", "--best", "unroll=1"]
    assert gpu.main([*arguments, "--json", str(tmp_path / "gpu.json")]) == 1
    found = read(tmp_path / "gpu.json")
    (row,) = found["rows"]["peer"].values()
    assert row["note"].startswith("refused: losses without dropout differ") and not row["measured"]
    assert found["status"]["peer"] == "not measured" and not found["values"]
    assert "losses of the two sides differ" in capsys.readouterr().err


@pytest.mark.slow
def test_over_budget(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without time nothing is measured, everything says so, and --check names it."""
    arguments = ["--tiny", "--budget-s", "0", "--json", str(tmp_path / "gpu.json")]
    assert gpu.main(arguments) == 0
    assert gpu.main([*arguments, "--check"]) == 1
    found = read(tmp_path / "gpu.json")
    assert found["status"] == dict.fromkeys(SECTIONS, "not measured") | {"profile": "not asked for"}
    for rows in (found["rows"][name] for name in SECTIONS[:-1]):
        assert rows and all("over budget" in row["note"] or "refused" in row["note"] for row in rows.values())
    missing = [aim.what for aim in gpu.AIMS]
    assert found["figures"]["not_measured"] == missing
    assert all(f"NOT MEASURED  {name}" in capsys.readouterr().err for name in missing[:1])


def test_check_names_what_is_missed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    values = {aim.value: aim.least if aim.least > 0 else aim.most for aim in gpu.AIMS}

    def measured(found: Any, report: Any, folder: pathlib.Path) -> bool:
        report.values |= values
        return True

    monkeypatch.setattr(gpu, "measure", measured)
    assert gpu.main(["--check"]) == 0
    values["mfu large"] = 0.5
    assert gpu.main(["--check"]) == 1
    assert "missed: utilisation, large (G2) (floor 0.46)" in capsys.readouterr().err
    assert gpu.main([]) == 0
    assert gpu.main(["--check", "--sizes", "base"]) == 0
    known, missing = gpu.targets({}, gpu.options(["--sizes", "base"]))
    assert not known and not any("large" in name for name in missing) and len(missing) == 5


def test_failures_become_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A variant without memory and one that fails are rows; the next is measured all the same."""
    from benchmarks import gpu_sections

    errors = iter([RuntimeError("RESOURCE_EXHAUSTED: no 80 GiB left\nat here"), TypeError("no such kernel")])

    def failing(bench: gpu_sections.Bench) -> None:
        def work() -> None:
            error = next(errors, None)
            if error:
                raise error
            bench.report.row("ceilings", "third", {"tflop_per_s": 1.0})

        for name in ("first", "second", "third"):
            bench.attempt("ceilings", name, 1.0, work)

    monkeypatch.setattr(gpu_sections, "ceilings", failing)
    assert gpu.main(["--tiny", "--sections", "ceilings", "--json", str(tmp_path / "gpu.json")]) == 0
    found = read(tmp_path / "gpu.json")
    rows = found["rows"]["ceilings"]
    assert rows["first"]["note"] == "out of memory: RuntimeError: RESOURCE_EXHAUSTED: no 80 GiB left at here"
    assert rows["second"]["note"] == "failed: TypeError: no such kernel"
    assert rows["third"]["measured"] and found["status"]["ceilings"] == "measured in part"


def test_utilisation_is_of_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Rows/s, model FLOP/s by the objective's formula and, on a device that is known, their part of its peak."""
    from benchmarks.gpu_parts import Holder, Ours, Report
    from benchmarks.gpu_sections import Bench, step_figures

    bench = Bench(TINY, TINY.sizes, tmp_path, Report(None, {}), Budget(100.0, 1.0), 5, False)
    ours = Ours(TINY.sizes[0].encoder(), bench.folder_of("full"), TINY.rows, Holder())
    monkeypatch.setattr("spanjax.hardware.peak_flops", lambda kind: 1e12)
    found = step_figures(bench, ours, [0.4, 0.5, 0.6], bench.local_batch("full"))
    assert found["step_ms"] == 500.0
    assert found["rows_per_s"] == {"median": TINY.rows / 0.5, "lowest": TINY.rows / 0.6, "highest": TINY.rows / 0.4}
    run, slots = ours.session.run, round(0.15 * (TINY.length - 2))
    flops = run.objective.flops_per_row(run.encoder, TINY.length, slots) * TINY.rows
    assert found["mfu"] == pytest.approx(flops / 0.5 / 1e12, rel=0.01)
    assert found["model_tflops"] == pytest.approx(found["mfu"])


def test_losses_are_compared() -> None:
    ours = {"mlm": 10.0, "sbo": 10.0}
    assert "equal to 0.0001" in same_losses(ours, {"mlm": 10.0005, "sbo": 9.9995}, 1e-4)
    for theirs in ({"mlm": 10.0, "sbo": 10.002}, {"mlm": float("nan"), "sbo": 10.0}):
        with pytest.raises(LossesDiffer, match="sbo 10.000000 here"):
            same_losses(ours, theirs, 1e-4)


@pytest.mark.parametrize("mean", [MEAN_OF_PAPER, MEAN_OF_MLPERF])
def test_blocks_have_the_mean(mean: float) -> None:
    sizes_M = block_lengths(20_000, mean, 512)
    assert sizes_M.mean() + 2 == pytest.approx(mean, rel=0.02)
    assert sizes_M.min() >= 2 and sizes_M.max() == 510
    squares = float(np.mean((sizes_M + 2.0) ** 2) / np.mean(sizes_M + 2.0) ** 2)
    assert 1.2 < squares < 1.6  # MLPerf's text has 1.5


def test_guesses_learn() -> None:
    budget = Budget(100.0, 1.0)
    assert budget.needs("jax", 30.0) == 30.0
    budget.learn("jax", 30.0, 60.0)
    assert budget.needs("jax", 30.0) == 60.0 and budget.needs("torch", 30.0) == 30.0
    assert 99.0 < budget.left() <= 100.0
    budget.share("model", ("model", "peer"))
    assert 49.0 < budget.left() <= 50.0
    budget.share("peer", ("model", "peer"))
    assert 99.0 < budget.left() <= 100.0


def test_versions_of_what_is_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "VERSIONS", ("numpy", "no-such-distribution"))
    assert timing.machine()["versions"] == {"numpy": np.__version__}


def test_tiny_has_the_sizes_of_the_targets() -> None:
    assert [size.name for size in TINY.sizes] == [size.name for size in gpu.FULL.sizes] == ["base", "large"]
