"""Components of spaCy: annotations where the model's answers are, batches equal to single calls, round trips through a folder."""

import dataclasses
import importlib
import pathlib
import pickle
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

spacy = pytest.importorskip("spacy", reason="spaCy is not installed (spanjax[spacy])")

from spanjax.inference import spacy_components  # noqa: E402
from spanjax.pretrained.model import model_meta  # noqa: E402
from spanjax.tasks.base import Task  # noqa: E402
from spanjax.tasks.coref import Coref  # noqa: E402
from spanjax.tasks.ner import Ner  # noqa: E402
from spanjax.tasks.ner.spans import SpanNer  # noqa: E402
from spanjax.training.checkpoint import write_weights  # noqa: E402
from tests.running import ROOT  # noqa: E402
from tests.serve.playgrounds import made_model  # noqa: E402

TASKS: dict[str, Task] = {
    "spanjax_ner": Ner(length=32, labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC")),
    "spanjax_spans": SpanNer(length=32, labels=("LOC", "PER"), max_width=3),
    "spanjax_coref": Coref(length=32, singletons="keep"),
}
TEXTS = ["Anna saw the old clock. She mended  it in Bonn!", "   ", "", "The sailor slept. He dreamt of the clock."]


@pytest.fixture(scope="module", params=TASKS)
def named_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The name of a component, and a model for it with random weights."""
    folder, model = tmp_path_factory.mktemp("run"), made_model(TASKS[request.param])
    write_weights(folder, model.params, model_meta(model))
    return request.param, str(folder)


def pipeline(name: str, model: str, **config: Any) -> Any:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe(name, config={"model": model, **config})
    return nlp


def annotations(doc: Any) -> Any:
    """Whatever a component can have written."""
    groups = {
        key: ([(span.start, span.end, span.label_) for span in group], group.attrs) for key, group in doc.spans.items()
    }
    return [(ent.start, ent.end, ent.label_, ent._.spanjax_confidence) for ent in doc.ents], groups


def close(one: Any, other: Any) -> bool:
    """Equal but for the rounding of confidences: a batch is padded otherwise than a single text."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1e-4
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


def test_batches_folders_and_copies_give_the_same(named_run: tuple[str, str], tmp_path: pathlib.Path) -> None:
    nlp = pipeline(*named_run)
    single = [annotations(nlp(text)) for text in TEXTS]
    assert any(ents or groups for ents, groups in single), "random weights find something"
    assert close(single, [annotations(doc) for doc in nlp.pipe(TEXTS, batch_size=3)])

    nlp.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    component = again.get_pipe(named_run[0])
    assert pathlib.Path(component.model).is_relative_to(tmp_path), "no other folder is needed"
    assert single == [annotations(again(text)) for text in TEXTS]
    copied = pickle.loads(pickle.dumps(component))
    doc = again.make_doc(TEXTS[0])
    again.get_pipe("sentencizer")(doc)
    assert annotations(copied(doc)) == single[0]


@dataclasses.dataclass
class Answering:
    """A model with given answers, which keeps the records that it was given."""

    given: list[dict[str, Any]]
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def answers(self, records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        self.records += records
        yield from self.given[: len(records)]


def with_answers(name: str, *given: Any, **config: Any) -> tuple[Any, Answering]:
    nlp = pipeline(name, "none", **config)
    nlp.get_pipe(name).task_model = Answering([{"prediction": each} for each in given])
    return nlp, nlp.get_pipe(name).task_model


def entity(kind: str, first: int, count: int, confidence: float = 0.9) -> dict[str, Any]:
    return {"type": kind, "first": first, "words": ["w"] * count, "confidence": confidence}


TEXT = "Old  Anna sat. In New\nYork."  # tokens: Old " " Anna sat . In New \n York .


def test_entities_are_at_their_tokens() -> None:
    """Tokens of blanks are no words for the model, and inside of its entities."""
    nlp, model = with_answers("spanjax_ner", [entity("PER", 0, 2)], [entity("LOC", 1, 2), entity("CITY", 2, 1, 0.95)])
    doc = nlp(TEXT)
    assert model.records == [{"words": ["Old", "Anna", "sat", "."]}, {"words": ["In", "New", "York", "."]}]
    found = [(ent.text, ent.label_, ent._.spanjax_confidence) for ent in doc.ents]
    assert found == [("Old  Anna", "PER", 0.9), ("York", "CITY", 0.95)]
    nlp, _ = with_answers("spanjax_spans", [], [entity("LOC", 1, 2), entity("CITY", 2, 1, 0.95)], key="mine")
    doc = nlp(TEXT)
    assert [(span.text, span.label_) for span in doc.spans["mine"]] == [("New\nYork", "LOC"), ("York", "CITY")]
    assert doc.spans["mine"].attrs["scores"] == [0.9, 0.95] and doc.ents == ()


@pytest.mark.parametrize(
    ("alignment", "texts", "misaligned"),
    [("strict", ["Anna"], 1), ("expand", ["Anna", "sat"], 1), ("contract", ["Anna"], 1)],
)
def test_misaligned_characters_are_counted(alignment: str, texts: list[str], misaligned: int) -> None:
    whole = {"type": "PER", "start": 5, "end": 9, "confidence": 0.9}
    inside = {"type": "VERB", "start": 11, "end": 13, "confidence": 0.8}
    nlp, model = with_answers("spanjax_ner", [whole, inside], [], words="own", alignment=alignment)
    doc = nlp(TEXT)
    assert model.records[0] == {"text": "Old  Anna sat."}
    assert [ent.text for ent in doc.ents] == texts and doc._.spanjax_misaligned == misaligned


def test_clusters_are_groups() -> None:
    clusters = [[{"first": 0, "last": 1}, {"first": 5, "last": 6}], [{"first": 2, "last": 2}]]
    nlp, model = with_answers("spanjax_coref", clusters)
    doc = nlp(TEXT)
    assert model.records == [{"sentences": [["Old", "Anna", "sat", "."], ["In", "New", "York", "."]]}]
    assert {key: [span.text for span in group] for key, group in doc.spans.items()} == {
        "coref_clusters_1": ["Old  Anna", "New\nYork"],
        "coref_clusters_2": ["sat"],
    }
    model.given = [{"prediction": [[{"first": 3, "last": 3}]]}]
    assert [*nlp.get_pipe("spanjax_coref")(doc).spans] == ["coref_clusters_1"], "old groups are removed"
    place = {"start": 5, "end": 9}
    nlp, model = with_answers("spanjax_coref", [[place, {"start": 6, "end": 9}]], words="own")
    doc = nlp(TEXT)
    assert model.records == [{"text": TEXT}] and doc._.spanjax_misaligned == 1
    assert [span.text for span in doc.spans["coref_clusters_1"]] == ["Anna"]


def test_messages(named_run: tuple[str, str]) -> None:
    name, run = named_run
    with pytest.raises(ValueError, match=f"{name} has no model: add it with config="):
        pipeline(name, "")("Anna sat.")
    other = "spanjax_ner" if name == "spanjax_coref" else "spanjax_coref"
    with pytest.raises(ValueError, match="was trained for .*: expected a model of"):
        pipeline(other, run)("Anna sat.")
    nlp, model = with_answers(name, [])
    model.given = [{"error": "no words"}]
    with pytest.raises(ValueError, match=f"{name}: no words"):
        nlp("Anna sat.")


def test_entry_points_name_the_factories() -> None:
    """spaCy finds a component of an installed package by its name alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["spacy_factories"]
    assert {*points} == {*TASKS}
    for name, target in points.items():
        module, _, function = target.partition(":")
        assert getattr(importlib.import_module(module), function) is getattr(spacy_components, name)
        assert spacy.Language.has_factory(name)
