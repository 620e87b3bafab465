"""Planning a run: refusals, and the whole command on CPU devices in place of a pod."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import pytest

from spanjax import plan
from spanjax.hardware import CHIPS
from spanjax.plan import topology
from spanjax.plan.hlo import Program
from spanjax.run import load
from tests.pods import BASE, SMALL, VOCABULARY
from tests.running import ROOT

ROWS = 4


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The four CPU devices are what the topology h200:4 describes."""
    monkeypatch.setattr(topology, "devices", lambda _: jax.devices()[:4])
    monkeypatch.setattr(topology, "flags_for", lambda *_: {})


def told(arguments: list[str], capsys: pytest.CaptureFixture, code: int = 0) -> str:
    assert plan.main(arguments) == code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--topology=v9:2x2", "--slices=0"], ["no accelerator 'v9'", "--slices is 0"]),
        (["--topology=h200:8", "--batch-size=12"], ["batch_size 12 does not divide over 8"]),
        (["--topology=v5e:4x4", "--slices=2", "--mesh.replica=3"], ["mesh.replica 3 does not divide over 2 slices"]),
        (["--topology=h200:8", "--length=65"], ["--length 65 needs encoder.positions of at least that, got 64"]),
        (["--topology=h200:8", "--memory-fraction=2", "--steps=0"], ["--memory-fraction is 2", "steps is 0"]),
        (["--topology=h200:8", "--blocks=30"], ["--length 64 has no room for --blocks 30"]),
        (["--topology=h200:8", "--vocab-size=-5"], ["vocab"]),
        (["--topology=h200:8", "--config=nowhere.py"], ["nowhere.py: no such file"]),
    ],
)
def test_wrong_input(more: list[str], words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert plan.main([*SMALL, *more]) == 2
    message = capsys.readouterr().err
    assert message.startswith("spanjax.plan: ") and all(word in message for word in words), message


def test_missing_compiler(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(topology.PLUGINS, "tpu", ("no_such_compiler",))
    assert plan.main([*SMALL, "--topology=v5e:2x4"]) == 2
    assert "pip install 'spanjax[plan-tpu]'" in capsys.readouterr().err


def test_settings_that_need_less_memory() -> None:
    run = dataclasses.replace(load(BASE), batch_size=32)
    words = [words for words, _ in plan.alternatives(run, 4, "cudnn")]
    assert [words for words, _ in plan.alternatives(run, 4, "xla")] == ["encoder.attention=xla_chunked", *words]
    remat = [f"encoder.remat={level}" for level in ("elementwise", "dots", "full")]
    split = [f"microbatches={count}" for count in (2, 4, 8)]
    assert words == [*remat, *split, "encoder.remat=full, microbatches=8", "batch_size=4"]
    for _, other in plan.alternatives(run, 4, "xla"):
        assert other != run and other.batch_size % (4 * other.microbatches) == 0
    warm = dataclasses.replace(run, batch_warmup=("0:16", "2:32"))
    split = [f"microbatches={count}" for count in (2, 4)]
    last = ["encoder.remat=full, microbatches=4", "batch_size=4, no batch_warmup"]
    found = list(plan.alternatives(warm, 4, "cudnn"))
    assert [words for words, _ in found] == [*remat, *split, *last] and found[-1][1].problems() == []


def test_slots_follow_the_masking_rate() -> None:
    arguments = [f"--config={BASE}", "--topology=h200:8"]
    command = plan.parse(arguments)
    assert plan.slots_of(command, command.run) == 80  # ceil(0.15 * 510) = 77
    assert plan.slots_of(plan.parse([*arguments, "--objective.masking.rate=0.3"]), load(BASE)) == 80
    command = plan.parse([*arguments, "--objective.masking.rate=0.3", "--blocks=4"])
    assert plan.slots_of(command, command.run) == 160


def test_over_slices_every_slice_holds_a_copy() -> None:
    command = plan.parse([*SMALL, "--topology=v5e:4x4", "--slices=2"])
    run = plan.prepared(command, topology.parse(command.topology, command.slices))
    assert (run.mesh.replica, run.encoder.vocab_size) == (2, VOCABULARY)


@pytest.mark.usefixtures("on_cpu")
def test_the_whole_command(capsys: pytest.CaptureFixture, tmp_path: pathlib.Path) -> None:
    """Real step, compiled for CPU: it reduces in float32 there."""
    arguments = [*SMALL, "--topology=h200:4", f"--batch-size={4 * ROWS}", f"--hlo={tmp_path / 'step.txt'}", "--json"]
    found = json.loads(told([*arguments, "--batch-warmup", "0:8", "100:16"], capsys))
    assert found["fits"] and found["devices"] == 4 and found["tried"] == []
    assert found["donated_arrays"] == found["state_arrays"]
    assert found["gradient_bytes"] == pytest.approx(4 * found["parameters"], rel=0.01)
    # 100 steps of half a batch count as 50
    assert found["hours"] == pytest.approx(found["step_seconds"] * 2_399_950 / 3600)
    assert Program((tmp_path / "step.txt").read_text()).collectives
    assert sum(row["seconds"] for row in found["kinds"]) == pytest.approx(found["compute_seconds"])
    assert sum(row["kernels"] for row in found["kinds"]) == found["kernels"] and len(found["dearest"]) == 10
    assert found["mfu"] == pytest.approx(found["flops"] / 4 / 989e12 / found["step_seconds"])
    assert found["step_seconds"] >= found["compute_seconds"] > 0
    said = "\n".join(plan.lines(found))
    for word in (
        "fits        yes",
        "x parameters",
        "efficiency",
        "device-hours",
        "products",
        "dearest",
        "hidden size bytes",
        "datasheet",
        "2,400,000 steps = 2,399,950.0 whole batches",
        "overwritten in place",
    ):
        assert word in said, word


def test_what_does_not_fit_is_searched(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first setting that fits is told; nothing is compiled here."""
    figures = dataclasses.asdict(CHIPS["h200"]) | {"link": 1.0}

    def report(command: Any, run: Any, where: topology.Topology, _: Any) -> dict[str, Any]:
        peak = 2**30 * 8 // run.microbatches
        return {
            **{"topology": str(where), "devices": where.size, "settings": {"microbatches": run.microbatches}},
            **{
                "mesh": {},
                "attention": "xla",
                "local_backend": "auto",
                "layers": "in a scan",
                "figures": figures,
                "memory": {"peak": peak},
                "limit": 2**31,
                "fits": peak <= 2**31,
            },
        }

    monkeypatch.setattr(topology, "devices", lambda _: [])
    monkeypatch.setattr(plan, "report", report)
    arguments = [*SMALL, "--topology=h200:8"]
    found = json.loads(told([*arguments, "--json"], capsys, code=1))
    assert not found["fits"] and found["tried"][-1] == {"setting": "microbatches=4", "fits": True, "peak": 2**31}
    said = told(arguments, capsys, code=1)
    assert "fits        NO: peak 8.00 GiB, a device has 2.00 GiB" in said
    assert "tried       microbatches=2: peak 4.00 GiB, does not fit" in said
    assert said.count("microbatches 4") == 1 and "fits        yes: peak 2.00 GiB" in said
    assert "tried" not in told([*arguments, "--no-search"], capsys, code=1)
