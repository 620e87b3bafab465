"""Grouping by seed, names, figures over seeds."""

import json
import math
import pathlib

import pytest

from spanjax.report.runs import grouped, pretrained_names, read_run, tails
from spanjax.run import Run
from spanjax.run_format import describe, differences
from spanjax.scoring.spread import Spread
from spanjax.tasks.coref import Coref
from spanjax.tasks.glue import Glue
from spanjax.tasks.squad import Questions
from spanjax.training.optimizers import Lamb, Muon
from tests.report.made_runs import cola, made_run


def test_runs_that_differ_in_seed_alone_are_one_group(tmp_path: pathlib.Path) -> None:
    first = cola(tmp_path, "lr1", [1.0, 2.0, 6.0])
    other = cola(tmp_path, "lr2", [4.0], batch_size=999)
    bookkeeping = read_run(made_run(tmp_path / "lr1_9", [{"mean": 3.0}], seed=9, cadence={"log_every": 7}))
    groups = grouped([*reversed(first), *other, bookkeeping])
    assert [(group.name, [run.seed for run in group.runs]) for group in groups] == [
        ("lr1", [0, 1, 2, 9]),
        ("lr2_0", [0]),
    ]
    spread = groups[0].spread("score/mean")
    assert spread is not None and spread.mean == 3.0
    assert spread.deviation == pytest.approx(math.sqrt(14 / 3))
    assert spread.words(lambda value: f"{value:.1f}") == "3.0 ± 2.2 (4)"


def test_a_setting_that_an_older_run_does_not_know_has_its_default(tmp_path: pathlib.Path) -> None:
    """What `spanjax.train` asks before it continues a run as well."""
    older, newer = made_run(tmp_path / "a"), made_run(tmp_path / "b", seed=1)
    found = json.loads((older / "run.json").read_text())
    now = json.loads(json.dumps(found))
    del found["encoder"]["relative_attention"], found["optimizer"]["bias_correction"]
    (older / "run.json").write_text(json.dumps(found))
    assert len(grouped([read_run(older), read_run(newer)])) == 1
    assert differences(found, now) == []
    now["encoder"]["relative_attention"] = True
    assert differences(found, now) == ["  encoder.relative_attention: False -> True"]
    for optimizer in (Lamb(), Muon()):
        now["optimizer"] = describe(optimizer)
        found["optimizer"] = {name: value for name, value in now["optimizer"].items() if name != "bias_correction"}
        assert differences(found, now) == ["  encoder.relative_attention: False -> True"]
    coref = describe(Coref())
    found["objective"], now["objective"] = coref, json.loads(json.dumps(coref))
    found["objective"]["model"] = {n: v for n, v in coref["model"].items() if n != "dropout_per_refinement"}
    assert differences(found, now) == ["  encoder.relative_attention: False -> True"]
    del found["optimizer"]["class"]
    assert "  optimizer.bias_correction: (absent) -> True" in differences(found, now)


def test_a_task_that_an_older_run_stored_is_completed_too(tmp_path: pathlib.Path) -> None:
    for task in (Glue(train=("a",), sentences=2), Questions(train=("a",)), Coref(train=("a",))):
        now = json.loads(json.dumps(describe(Run(objective=task))))
        found = json.loads(json.dumps(now))
        for name in ("sentences", "answers"):
            found["objective"].pop(name, None)
        assert differences(found, now) == []
        now["objective"]["length"] = 64
        assert [each.split(":")[0].strip() for each in differences(found, now)] == ["objective.length"]
        found["objective"]["later"] = 1
        assert "  objective.later: 1 -> (absent)" in differences(found, now)


def test_other_settings_other_groups(tmp_path: pathlib.Path) -> None:
    one = read_run(made_run(tmp_path / "a"))
    rows = read_run(made_run(tmp_path / "b", rows_fingerprint="other"))
    labels = read_run(made_run(tmp_path / "c", objective={"task": "RTE"}))
    assert len(grouped([one, rows, labels])) == 3


def test_a_single_value_has_no_deviation_and_nan_is_no_value() -> None:
    one = Spread.of([2.0, math.nan])
    assert one is not None and one.values == (2.0,) and math.isnan(one.deviation)
    assert one.words(str) == "2.0 (1)"
    assert Spread.of([math.nan, math.inf]) is None


def test_tails_tell_paths_apart() -> None:
    paths = [pathlib.Path(path) for path in ("/r/a/run", "/r/b/run", "/r/c")]
    assert tails(paths) == ["a/run", "b/run", "c"]
    assert tails([pathlib.Path("/r/x"), pathlib.Path("/r/x")]) == ["x", "x"]


def test_models_of_one_name_are_told_apart(tmp_path: pathlib.Path) -> None:
    origins = ("m/base/run", "m/large/run", "m/large/run/checkpoints/1200", "", "m/other")
    runs = [read_run(made_run(tmp_path / str(n), init_from=path)) for n, path in enumerate(origins)]
    assert list(pretrained_names(runs).values()) == [
        "base/run",
        "large/run",
        "large/run, step 1,200",
        "fresh weights",
        "other",
    ]
