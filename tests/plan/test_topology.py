"""Names of topologies, bandwidths, flag files; devices of pods where their compiler is installed."""

import pathlib

import pytest

from spanjax.hardware import CHIPS
from spanjax.plan import topology
from spanjax.plan.cost import Transfer
from spanjax.plan.hlo import Collective

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "slices", "size", "domain", "text"),
    [
        ("v5e:16x16", 1, 256, 256, "v5e:16x16"),
        ("v5e:4x4", 2, 32, 16, "v5e:4x4 x 2"),
        ("v5p:2x2x2", 1, 8, 8, "v5p:2x2x2"),
        ("h200:4", 1, 4, 4, "h200:4"),
        ("h200:64", 1, 64, 8, "h200:64"),
    ],
)
def test_names(name: str, slices: int, size: int, domain: int, text: str) -> None:
    found = topology.parse(name, slices)
    assert (found.size, found.domain, str(found)) == (size, domain, text)


@pytest.mark.parametrize(
    ("name", "slices", "words"),
    [
        ("", 1, ["no accelerator ''", "v5e:4x4"]),
        ("v7x:2x2", 0, ["no accelerator 'v7x'", "expected one of v4", "--slices is 0"]),
        ("v5e:8", 1, ["'8' is no size", "v5e:4x4"]),
        ("v5e:", 1, ["'' is no size"]),
        ("v5e:2x2x2x2", 1, ["is no size"]),
        ("h200:2x4", 1, ["'2x4' is no size", "h200:8"]),
        ("h200:12", 1, ["12 GPUs do not fill nodes of 8"]),
        ("h200:8", 2, ["only TPUs have slices", "h200:16"]),
    ],
)
def test_what_is_no_topology(name: str, slices: int, words: list[str]) -> None:
    with pytest.raises(ValueError) as refusal:
        topology.parse(name, slices)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_bandwidth_of_the_torus() -> None:
    """Axes add up; one that does not close to a ring has half of its bandwidth, one of a single chip none."""
    links = {name: topology.parse(name).link for name in ("v5e:16x16", "v5e:4x4", "v5e:16x1", "v5p:4x4x4", "h200:64")}
    assert links == {"v5e:16x16": 1.8e11, "v5e:4x4": 9e10, "v5e:16x1": 9e10, "v5p:4x4x4": 5.4e11, "h200:64": 4.5e11}


def test_seconds_of_a_transfer() -> None:
    pod, nodes, slices = topology.parse("v5e:16x16"), topology.parse("h200:64"), topology.parse("v5e:4x4", 2)
    assert pod.seconds("all-gather", 1.8e11, ()) == pytest.approx(255 / 256)
    assert pod.seconds("all-reduce", 1.8e11, range(256)) == pytest.approx(2 * 255 / 256)
    inside = nodes.seconds("reduce-scatter", 4.5e11, range(8))
    assert inside == pytest.approx(7 / 8)
    across = nodes.seconds("reduce-scatter", 4.5e11, range(64)) - inside
    assert across == pytest.approx(4.5e11 / 8 * 7 / 8 / 5e10)
    assert nodes.seconds("all-reduce", 5e10, range(0, 64, 8)) == pytest.approx(2 * 7 / 8)
    assert slices.seconds("all-reduce", 3.125e9, (), slices=2) == pytest.approx(1.0)


def test_collectives_are_summed_by_kind_and_reach() -> None:
    nodes = topology.parse("h200:16")
    one = Collective("all-gather", "bf16", 1000, 12, tuple(range(8)), True)
    wide = Collective("all-gather", "bf16", 1000, 1, (), True)
    late = Collective("all-reduce", "f32", 4, 1, (), False)
    alone = Collective("all-reduce", "f32", 4000, 1, (3,), False)
    rows = topology.moved([Transfer(each, 0.25, 0.125) for each in (one, one, wide, late, alone)], nodes)
    assert [(row["kind"], row["across"], row["count"], row["bytes"]) for row in rows] == [
        ("all-gather", False, 24, 24_000),
        ("all-gather", True, 1, 1000),
        ("all-reduce", True, 1, 4),
    ]
    assert (rows[0]["seconds"], rows[0]["hidden"]) == (0.5, 0.25)
    told = topology.table(rows)
    assert "24 x" in told[0] and told[0].endswith("ms, asynchronous, 250.000 ms hidden")
    assert told[2].endswith("ms, synchronous, 125.000 ms hidden between nodes")


def test_step_time_of_rows() -> None:
    """Half a second of kernels, 0.5 of transfers of which they hide 0.4: 0.6 a step."""
    pod = topology.parse("v5e:2x2")
    rows = [{"hidden": 0.4, "seconds": 0.4}, {"hidden": 0.0, "seconds": 0.1}]
    found = topology.modelled(pod, rows, 0.5, 4 * 197e12 * 0.3, 3600)
    assert found["compute_seconds"] == pytest.approx(0.5) and found["step_seconds"] == pytest.approx(0.6)
    assert found["mfu"] == pytest.approx(0.5)
    assert found["efficiency"] == pytest.approx(5 / 6) and found["efficiency_all_hidden"] == pytest.approx(1.0)
    assert found["efficiency_none_hidden"] == pytest.approx(0.5)
    assert found["hours"] == pytest.approx(0.6) and found["device_hours"] == pytest.approx(2.4)


def test_flag_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "flags.txt"
    path.write_text("# why\n\n--xla_a=true   # because\n--xla_b_c=12\n")
    assert topology.read_flags(path) == {"xla_a": "true", "xla_b_c": "12"}
    assert topology.flags_for(CHIPS["v4"], str(path)) == {"xla_a": "true", "xla_b_c": "12"}
    path.write_text("--xla_a=true\nxla_b=1\n--other=1\n--xla_a=false\n")
    with pytest.raises(ValueError) as refusal:
        topology.read_flags(path)
    assert all(word in str(refusal.value) for word in (":2: 'xla_b=1' is no flag", ":3:", ":4: xla_a is set a second"))
    with pytest.raises(ValueError, match="No such file.*expected a file of XLA flags"):
        topology.read_flags(tmp_path / "absent")


def test_every_chip_has_its_flags() -> None:
    for chip in CHIPS.values():
        flags = topology.flags_for(chip)
        assert flags and all(name.startswith("xla_") for name in flags)
        assert (flags.get("xla_gpu_autotune_level") == "0") == (chip.platform == "cuda")
        assert ("true" in flags.values()) == (chip.platform == "tpu")
        assert ("xla_gpu_autotune_level" in topology.flags_for(chip, "none")) == (chip.platform == "cuda")


def test_missing_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(topology.PLUGINS, "tpu", ("no_such_compiler",))
    monkeypatch.setitem(topology.PLUGINS, "cuda", ("no_such_package.plugin",))
    with pytest.raises(ValueError, match=r"pip install 'spanjax\[plan-tpu\]'"):
        topology.devices(topology.parse("v5e:4x4"))
    with pytest.raises(ValueError, match=r"pip install 'spanjax\[plan-gpu\]'"):
        topology.devices(topology.parse("h200:8"))
