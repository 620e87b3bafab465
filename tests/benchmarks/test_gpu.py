"""The benchmark for one accelerator, small and on the CPU: every section runs, refuses what differs, keeps to its budget."""

import json
import pathlib
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import gpu, gpu_peers, gpu_sections, timing
from benchmarks.gpu_parts import (
    MEAN_OF_MLPERF,
    MEAN_OF_PAPER,
    SECTIONS,
    TINY,
    Budget,
    Holder,
    Ours,
    Report,
    block_lengths,
)
from benchmarks.gpu_sections import Bench, step_figures, traced
from benchmarks.peer_process import Peer
from benchmarks.torch_peer import LossesDiffer, same_losses
from spanjax.hardware import CHIPS
from tests.running import environment

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
HANGS = """
import sys, time
from benchmarks import gpu, gpu_sections

def ceilings(bench):
    bench.report.row("ceilings", "first", {"gb_per_s": 1.0})
    time.sleep(100)

gpu_sections.ceilings = ceilings
sys.exit(gpu.main(sys.argv[1:]))
"""


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


def figures_of(tmp_path_factory: pytest.TempPathFactory, *more: str) -> dict[str, Any]:
    """Figures of a small run; the folder of its trace is `trace`."""
    pytest.importorskip("torch", reason=REASON)
    pytest.importorskip("transformers", reason=REASON)
    folder = tmp_path_factory.mktemp("gpu")
    kept = ["--json", str(folder / "gpu.json"), "--profile", str(folder / "trace")]
    assert gpu.main(["--tiny", "--repeats", "5", "--budget-s", "3000", "--limit-s", "6000", *kept, *more]) == 0
    return {**read(folder / "gpu.json"), "trace": folder / "trace"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The sections up to base."""
    return figures_of(tmp_path_factory, "--sections", "preflight", "ceilings", "base")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All sections."""
    return figures_of(tmp_path_factory)


def test_headline_comes_first(tiny: dict[str, Any]) -> None:
    assert list(tiny["status"]) == list(SECTIONS)
    wanted = dict.fromkeys(SECTIONS, "not asked for") | dict.fromkeys(("preflight", "ceilings", "base"), "measured")
    assert tiny["status"] == wanted
    names = list(tiny["rows"]["base"])
    assert names[0] == "base, attention auto, unroll 2"  # before anything else of base
    assert (
        names[1].startswith("base, losses of 4 rows")
        and "packed, both of ours" in tiny["rows"]["base"][names[1]]["note"]
    )
    order = ("PyTorch as shipped", "ten dearest kernels", "attention dropout 0.1")
    places = [next(place for place, name in enumerate(names) if part in name) for part in order]
    assert places == sorted(places)


def test_ratios_are_those_of_the_rows(tiny: dict[str, Any]) -> None:
    values, rows = tiny["values"], tiny["rows"]["base"]
    here, there = (
        next(row for name, row in rows.items() if name.startswith(f"base, {side}"))
        for side in ("spanjax", "PyTorch as shipped")
    )
    assert values["over PyTorch base"] == pytest.approx(there["step_ms"] / here["step_ms"])
    without, dropping = (rows[f"base, attention dropout {rate}"]["step_ms"] for rate in ("0", "0.1"))
    assert values["attention dropout base"] == pytest.approx(without / dropping)
    assert not any(name.startswith("mfu") for name in values)  # of a device that is not known
    assert all(row["mfu"] == "unknown device" for row in rows.values() if "mfu" in row)
    assert tiny["figures"]["not_measured"] == ["utilisation, base (G1)"]
    assert tiny["machine"]["device"] == "cpu" and tiny["machine"]["versions"]["torch"]


def test_trace_tells_kernels_apart(tiny: dict[str, Any]) -> None:
    """On a CPU as on a GPU, instructions of the program have their seconds."""
    seconds = traced(tiny["trace"])
    assert any("dot" in name or "fusion" in name for name in seconds) and min(seconds.values()) >= 0
    row = tiny["rows"]["base"]["base, trace of 3 steps: others"]  # no cost model of a CPU
    assert row["measured_ms"] == pytest.approx(1000 * sum(seconds.values()) / 3)
    with pytest.raises(ValueError, match="no instruction"):
        traced(tiny["trace"] / "nothing")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_section_runs(whole: dict[str, Any]) -> None:
    assert whole["status"] == dict.fromkeys(SECTIONS, "measured") | {"sweep": "measured in part"}
    for section, rows in whole["rows"].items():
        for row in rows.values():
            figures = {name: value for name, value in row.items() if name.endswith(("_per_s", "_ms", "_faster"))}
            assert figures or not row["measured"] or section == "preflight" or "equal" in row or "kernels" in row, row
            for name, value in figures.items():
                assert (value["lowest"] if isinstance(value, dict) else value) > 0 or name == "modelled_ms"
    values = whole["values"]
    for size in ("base", "large"):
        assert {f"over padded PyTorch {size}", f"over bucketed PyTorch {size}", f"attention dropout {size}"} <= {
            *values
        }
    forms = {f"over PyTorch, {name}, base" for name in ("masked-only head", "max-autotune", "bf16 weights")}
    assert {"rows from disk", "of MLPerf", *forms} <= {*values}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sweep_names_what_is_refused(whole: dict[str, Any]) -> None:
    rows = whole["rows"]["sweep"]
    assert all(rows[f"base, attention {name}"]["measured"] for name in ("xla", "xla_chunked"))
    for name in ("cudnn", "pallas_triton", "splash"):
        assert not rows[f"base, attention {name}"]["measured"]
        assert rows[f"base, attention {name}"]["note"].startswith("refused: ")
    assert all(
        rows[f"base, {name}"]["measured"]
        for name in ("2 rows", "layers in a scan", "dropout, sum and LayerNorm by xla", "remat elementwise")
    )


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
    assert found["status"]["base"] == "not asked for"
    assert found["values"]["rows from disk"] > 0 and found["values"]["matmul_tflops"] > 0


@pytest.mark.slow
def test_disturbed_peer_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer with one weight matrix changed by a tenth computes something else: it is not timed."""
    pytest.importorskip("torch", reason=REASON)
    pytest.importorskip("transformers", reason=REASON)

    class Disturbed(Peer):
        def begin(self, name: str, *arguments: Any) -> None:
            if name == "weights":
                arguments = (jax.tree_util.tree_map_with_path(disturbed, arguments[0]),)
            super().begin(name, *arguments)

    def disturbed(path: Any, leaf: Any) -> Any:
        if not jax.tree_util.keystr(path).endswith("['feed_out']['kernel']"):
            return leaf
        changed = np.array(leaf)
        changed[0] *= 1.1  # of the first layer
        return changed

    monkeypatch.setattr(gpu_peers, "Peer", Disturbed)
    arguments = ["--tiny", "--repeats", "5", "--sections", "base", "--budget-s", "3000", "--limit-s", "6000"]
    assert gpu.main([*arguments, "--json", str(tmp_path / "gpu.json")]) == 1
    found = read(tmp_path / "gpu.json")
    assert found["rows"]["base"]["base, losses of both sides"]["note"].startswith(
        "refused: losses without dropout differ"
    )
    assert "over PyTorch base" not in found["values"] and "attention dropout base" in found["values"]
    assert "losses of the two sides differ" in capsys.readouterr().err


def test_over_budget(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without time nothing is measured, every row has the reason, and the exit code is 1."""
    sections = ["--sections", *(name for name in SECTIONS if name != "preflight")]
    arguments = ["--tiny", "--budget-s", "0", *sections, "--json", str(tmp_path / "gpu.json")]
    assert gpu.main([*arguments, "--check"]) == 1
    found = read(tmp_path / "gpu.json")
    assert found["status"] == dict.fromkeys(SECTIONS, "not measured") | {"preflight": "not asked for"}
    for rows in (found["rows"][name] for name in SECTIONS[1:]):
        assert rows and all("over budget" in row["note"] for row in rows.values())
    assert found["figures"]["not_measured"] == [aim.what for aim in gpu.AIMS]
    error = capsys.readouterr().err
    assert f"NOT MEASURED  {gpu.AIMS[0].what}" in error and "sections without a figure: ceilings, base" in error
    assert gpu.main(arguments) == 1


def test_missing_module_ends_it_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_sections, "NEEDED", ("numpy", "no_such_module"))
    assert gpu.main(["--tiny", "--json", str(tmp_path / "gpu.json")]) == 1
    found = read(tmp_path / "gpu.json")
    note = "failed: ModuleNotFoundError: No module named 'no_such_module'"
    assert found["rows"]["preflight"]["import no_such_module"]["note"] == note
    assert found["status"] == dict.fromkeys(SECTIONS, "not measured")
    assert "sections without a figure: preflight" in capsys.readouterr().err


def test_limit_ends_the_process_with_its_figures(tmp_path: pathlib.Path) -> None:
    """Work that cannot be stopped otherwise: what was measured before is in the file."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS, "--tiny", "--sections", "ceilings", "--limit-s", "1", "--json", "gpu.json"],
        cwd=tmp_path,
        env=environment(1),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    found = read(tmp_path / "gpu.json")
    assert found["rows"]["ceilings"]["first"]["measured"] and found["status"]["ceilings"] == "measured in part"
    assert found["rows"]["ceilings"]["the rest"]["note"] == "stopped after 1 s (--limit-s)"


def test_check_names_what_is_missed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    values = {aim.value: aim.least if aim.least > 0 else aim.most for aim in gpu.AIMS}

    def measured(found: Any, report: Any, folder: pathlib.Path) -> bool:
        report.values |= values
        for section in report.sections.values():
            section["status"] = "measured"
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


def made_bench(folder: pathlib.Path) -> Bench:
    """Everything small, nothing measured."""
    return Bench(TINY, TINY.sizes, folder, Report(None, {}), Budget(100.0, 1.0), 5, False, "")


def test_utilisation_is_of_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Rows/s, model FLOP/s by the objective's formula and, on a device that is known, their part of its peak."""
    bench, size = made_bench(tmp_path), TINY.sizes[0]
    ours = Ours(size.encoder(), bench.folder_of("full"), size.rows, Holder())
    monkeypatch.setattr("spanjax.hardware.peak_flops", lambda kind: 1e12)
    found = step_figures(bench, ours, [0.4, 0.5, 0.6], bench.local_batch("full", size.rows))
    assert found["step_ms"] == 500.0
    assert found["rows_per_s"] == {"median": size.rows / 0.5, "lowest": size.rows / 0.6, "highest": size.rows / 0.4}
    run, slots = ours.session.run, round(0.15 * (TINY.length - 2))
    flops = run.objective.flops_per_row(run.encoder, TINY.length, slots) * size.rows
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


def test_flags_that_the_compiler_refuses_are_named() -> None:
    assert "xla_no_such_flag" in gpu_sections.flag_error("xla_no_such_flag", True)
    assert gpu_sections.flag_error("xla_embed_ir_in_executable", True) == ""


def test_modelled_time_is_beside_the_measured_one(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """On a device whose figures are known; here those of an H200 for a CPU's program, which shows that the model runs."""
    monkeypatch.setattr("benchmarks.gpu_parts.chip_of", lambda kind: CHIPS["h200"])
    bench = made_bench(tmp_path)
    size = TINY.sizes[0]
    ours = bench.ours(size, **bench.settings(size))
    assert ours.model and ours.about["modelled_ms"] == pytest.approx(1e3 * sum(k.total for k in ours.model.kernels))
    figures = step_figures(bench, ours, [0.5], bench.local_batch("full", size.rows))
    gpu_sections.note_utilisation(bench, size, figures)
    assert bench.report.values["measured over modelled base"] == pytest.approx(500 / ours.about["modelled_ms"])


def test_versions_of_what_is_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "VERSIONS", ("numpy", "no-such-distribution"))
    assert timing.machine()["versions"] == {"numpy": np.__version__}


def test_tiny_has_the_sizes_of_the_targets() -> None:
    assert [size.name for size in TINY.sizes] == [size.name for size in gpu.FULL.sizes] == ["base", "large"]
