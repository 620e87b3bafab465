"""Settings to JSON and back, by the class that a file names; no file makes spanjax import what is not its own."""

import dataclasses
import json
import pathlib
import sys
import tarfile
from typing import Any

import pytest

from spanjax.bounds import AtLeast0
from spanjax.data.feed.masking import MaskingPolicy
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.base import Objective
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Data, Run, load
from spanjax.run_format import (
    RENAMED,
    class_of,
    completed,
    describe,
    described_task,
    differences,
    differences_in_paths,
    kind_of,
    load_code,
    located,
    restored,
    stored_task,
    with_paths,
)
from spanjax.tasks.base import Task
from spanjax.tasks.glue import Glue
from spanjax.tasks.span_tuning import SpanTuning
from spanjax.training.trackers import Tracking
from spanjax.training.trackers.mlflow import MLflow

pytestmark = pytest.mark.unit
ROOT = pathlib.Path(__file__).parents[1]
CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.py") if "RUN" in path.read_text())

OWN_OBJECTIVE, OWN_TASK = {"class": "Own", "terms": []}, {"class": "Own", "train": ["a"], "dev": []}


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"kind": "pretraining", "run": {"objective": OWN_OBJECTIVE}}, None),
        ({"kind": "task", "run": {"objective": OWN_TASK}}, OWN_TASK),
        # checkpoints of 0.1 say no kind
        ({"rows": {}, "run": {"objective": OWN_OBJECTIVE}}, None),
        ({"examples": {}, "run": {"objective": OWN_TASK}}, OWN_TASK),
        ({"run": {"objective": {"class": "Glue"}}}, {"class": "Glue"}),
        ({"run": {"objective": {"class": "MaskedPrediction", "masking": {}}}}, None),
        # weights alone
        ({"model": {"task": {"class": "Glue"}}, "rows": {}}, {"class": "Glue"}),
        ({"model": {"task": None}}, None),
        ({}, None),
    ],
)
def test_an_objective_without_masking_is_no_task(meta: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert described_task(meta, "runs/a") == expected


def test_what_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="runs/a: its meta does not say whether Own is a task or pretrains"):
        described_task({"run": {"objective": OWN_OBJECTIVE}}, "runs/a")


def as_read(run: Any) -> Any:
    """Settings as a reader of run.json gets them."""
    return json.loads(json.dumps(describe(run)))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_comes_back_as_it_was(path: pathlib.Path) -> None:
    run = load(str(path))
    assert restored(as_read(run), Run) == run
    assert kind_of(as_read(run)) == ("task" if isinstance(run.objective, Task) else "pretraining")


def without_modules(described: Any) -> Any:
    """The same as version 0.1 wrote it."""
    if isinstance(described, list):
        return [without_modules(each) for each in described]
    if not isinstance(described, dict):
        return described
    return {name: without_modules(value) for name, value in described.items() if name != "module"}


OF_0_1 = [path for path in CONFIGS if not path.stem.startswith("causal_small")]
"""Configs without classes that came later, which every run.json names by their module."""


@pytest.mark.parametrize("path", OF_0_1, ids=lambda path: path.stem)
def test_classes_of_0_1_are_found_by_their_names_alone(path: pathlib.Path) -> None:
    run = load(str(path))
    assert restored(without_modules(as_read(run)), Run) == run
    assert differences(without_modules(as_read(run)), as_read(run)) == []


@pytest.mark.parametrize("archive", sorted((ROOT / "tests/fixtures/v0_1").glob("*.tar.xz")), ids=lambda path: path.name)
def test_runs_that_0_1_wrote_come_back(archive: pathlib.Path) -> None:
    with tarfile.open(archive) as members:
        file = members.extractfile("run/run.json")
        assert file is not None
        stored = json.load(file)
    names = {"class", *(field.name for field in dataclasses.fields(Run))}
    settings = {name: stored[name] for name in stored.keys() & names}
    run = restored(settings, Run)
    assert differences(settings, as_read(run)) == []
    assert run.objective.problems(run.encoder) == [] and kind_of(stored) == kind_of(as_read(run))


def test_every_renamed_class_exists() -> None:
    for name, path in RENAMED.items():
        found = class_of({"class": name}, object)
        assert f"{found.__module__}.{found.__qualname__}" == path


def test_missing_settings_get_their_defaults_and_unknown_ones_are_refused() -> None:
    old = as_read(Run(objective=Glue(train=("a",))))
    del old["objective"]["sentences"], old["optimizer"]["epsilon_hat"]
    assert restored(old, Run) == Run(objective=Glue(train=("a",)))
    assert completed(old)["optimizer"]["epsilon_hat"] is False and completed(old)["kind"] == "task"
    with pytest.raises(ValueError, match="Glue has no setting newer, other here: take the version of spanjax"):
        stored_task(old["objective"] | {"other": 1, "newer": 2})
    with pytest.raises(ValueError, match=r"a model of Glue has no setting threshold \(0.5\): leave it out"):
        stored_task(old["objective"], threshold=0.5)


def test_a_run_comes_back_without_trackers_that_are_not_known() -> None:
    run = Run(tracking=Tracking(to=("wandb", MLflow(project="a"))), seed=3)
    described = as_read(run)
    assert restored(described, Run) == run
    described["tracking"]["to"].append({"class": "Csv", "module": "tracker.py", "digits": 3})
    assert restored(described, Run) == dataclasses.replace(run, tracking=Tracking())
    assert differences(described, as_read(run)) == []


HOSTILE = [
    {"class": "Popen", "module": "subprocess"},
    {"class": "Popen", "module": "spanjax.tasks.subprocess"},
    {"class": "os.system", "module": "spanjax.storage.local"},
    {"class": "pathlib", "module": "spanjax.run"},
    {"class": "main", "module": "spanjax.prepare.__main__"},
    {"class": "anything", "module": "antigravity"},
    {"class": "Path", "module": "spanjax.run"},
    {"class": ["Glue"], "module": {"a": 1}},
    {},
]


@pytest.mark.parametrize("described", HOSTILE, ids=str)
@pytest.mark.parametrize("expected", [object, Task])
def test_no_file_makes_spanjax_import_what_is_not_a_settings_class(described: Any, expected: type) -> None:
    before = set(sys.modules)
    with pytest.raises(ValueError, match="no class of spanjax|that is known here"):
        class_of(described, expected)
    assert not {name for name in set(sys.modules) - before if not name.startswith("spanjax.tasks")}


def test_a_class_must_derive_from_what_its_place_expects() -> None:
    described = as_read(Run())
    described["objective"] = described["optimizer"]
    with pytest.raises(ValueError, match="AdamW is no Objective that is known here"):
        restored(described, Run)
    with pytest.raises(ValueError, match="GeometricSpans is no Term"):
        policy = as_read(Run())["objective"]["masking"]
        restored(as_read(Run())["objective"] | {"terms": [policy]}, Objective)


OWN_CODE = """
import dataclasses
from spanjax.data.feed.masking import GeometricSpans

@dataclasses.dataclass(frozen=True)
class OftenShort(GeometricSpans):
    extra: int = 3
"""


def test_own_classes_come_back_from_the_code_that_the_command_line_names(tmp_path: pathlib.Path) -> None:
    described = as_read(MaskedPrediction())
    described["masking"] |= {"class": "OftenShort", "module": "shortly.py", "extra": 5}
    with pytest.raises(ValueError, match=r"OftenShort of shortly.py is no class of spanjax: .* --code shortly.py"):
        restored(described, Objective)
    (tmp_path / "shortly.py").write_text(OWN_CODE)
    load_code([str(tmp_path / "shortly.py")])
    back: Any = restored(described, Objective)
    assert back.masking.extra == 5 and isinstance(back.masking, MaskingPolicy)
    assert as_read(back) == described
    with pytest.raises(ValueError, match="--code no_such_module does not load"):
        load_code(["no_such_module"])


def test_another_value_is_a_difference_and_another_module_is_none() -> None:
    @dataclasses.dataclass(frozen=True)
    class Longer(Run):
        more: AtLeast0 = 0

    one = as_read(Run())
    assert differences(one, as_read(Run(seed=1))) == ["  seed: 0 -> 1"]
    moved = one | {"objective": one["objective"] | {"module": "spanjax.objectives.elsewhere"}}
    assert differences(one, moved) == []
    assert differences(one, as_read(Longer(more=1))) == [
        "  class: Run -> test_another_value_is_a_difference_and_another_module_is_none.<locals>.Longer",
        "  more: (absent) -> 1",
    ]


def test_renamed_settings_of_0_1_are_read() -> None:
    now = EncoderConfig(num_layer_groups=1, rope_theta=100.0, gated_mlp=True, relative_attention=True)
    described = describe(now)
    old = {"groups": 1, "rotary": 100.0, "gated": True, "relative": True}
    of_0_1 = {name: value for name, value in described.items() if name not in EncoderConfig.RENAMED.values()} | old
    assert restored(of_0_1, EncoderConfig) == now
    assert differences({"encoder": of_0_1}, {"encoder": described}) == []
    assert differences({"encoder": of_0_1 | {"groups": 2}}, {"encoder": described}) == [
        "  encoder.num_layer_groups: 2 -> 1"
    ]


PATHS_TASK = Glue(
    train=("a.tsv", "b.tsv"), dev=("c.tsv",), labels=("a.tsv",), vocabulary="v", spans=SpanTuning(ngrams="n.txt")
)
PATHS_RUN = Run(
    objective=PATHS_TASK,
    data=Data(rows=("rows",)),
    init_from="weights",
)


@pytest.mark.parametrize("described", [False, True])
def test_paths_and_nothing_else_change(described: bool) -> None:
    run = describe(PATHS_RUN) if described else PATHS_RUN
    changed: Any = with_paths(run, lambda path: f"/x/{path}")
    assert changed == (describe(moved(PATHS_RUN)) if described else moved(PATHS_RUN))
    assert with_paths(Run(), lambda path: f"/x/{path}") == Run()


def moved(run: Run) -> Run:
    """PATHS_RUN with each path below /x, written out."""
    task = dataclasses.replace(
        PATHS_TASK,
        train=("/x/a.tsv", "/x/b.tsv"),
        dev=("/x/c.tsv",),
        vocabulary="/x/v",
        spans=SpanTuning(ngrams="/x/n.txt"),
    )
    return dataclasses.replace(run, objective=task, data=Data(rows=("/x/rows",)), init_from="/x/weights")


def test_a_stored_path_is_found_from_elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, away = tmp_path / "started", tmp_path / "away"
    for folder in (started / "rows", away, tmp_path / "moved" / "runs" / "a", tmp_path / "moved" / "rows"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(away)
    run = Run(data=Data(rows=("rows",)), init_from="weights")

    def rows(start: str, folder: pathlib.Path) -> str:
        found = located(run, start, folder)
        assert found.init_from == "weights"  # nowhere: the message has the name that the user gave
        return found.data.rows[0]

    assert rows(str(started), away / "runs" / "a") == str(started / "rows")
    assert rows(str(tmp_path / "gone"), tmp_path / "moved" / "runs" / "a") == str(tmp_path / "moved" / "rows")
    assert rows("", away / "runs" / "a") == "rows"
    monkeypatch.chdir(started)
    assert rows(str(tmp_path / "moved"), started) == "rows"


def test_a_dictionary_of_spans_is_found_from_elsewhere(tmp_path: pathlib.Path) -> None:
    (tmp_path / "started").mkdir()
    (tmp_path / "started" / "n.txt").write_text("")
    objective = {"class": "Glue", "train": ["n.txt"], "spans": {"ngrams": "n.txt"}}
    meta = {"kind": "task", "run": {"objective": objective}, "started_in": str(tmp_path / "started")}
    expected = {**objective, "spans": {"ngrams": str(tmp_path / "started" / "n.txt")}}
    assert described_task(meta, tmp_path / "run" / "checkpoints" / "1") == expected
    del meta["started_in"]  # a checkpoint of 0.1
    assert described_task(meta, tmp_path / "run" / "checkpoints" / "1") == objective


def test_the_same_file_by_another_path_is_no_difference(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "started").mkdir()
    (tmp_path / "away").mkdir()
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / "started" / name).write_text("")
    monkeypatch.chdir(tmp_path / "away")

    def described(*train: str, **more: Any) -> dict[str, Any]:
        return describe(Run(objective=Glue(train=train), **more))

    before = {**described("a.tsv"), "started_in": str(tmp_path / "started")}

    def found(now: dict[str, Any]) -> list[str]:
        return differences_in_paths(before, now, tmp_path / "runs" / "a")

    assert found(described("a.tsv")) == found(described("../started/a.tsv")) == []
    assert found(described(str(tmp_path / "started" / "a.tsv"))) == []
    assert found(described("../started/b.tsv", seed=1)) == [
        "  objective.train.0: a.tsv -> ../started/b.tsv",
        "  seed: 0 -> 1",
    ]
