"""Span fine-tuning in relation extraction and named entities: spans go with their pieces, and the networks take them."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from spanjax.data.ngrams.dictionary import Ngram, NgramSettings, write_ngrams
from spanjax.tasks.base import LOSS, Task
from spanjax.tasks.ner import Ner
from spanjax.tasks.ner.files import Tagged
from spanjax.tasks.relation import Relation
from spanjax.tasks.relation.files import Mentions
from spanjax.tasks.relation.markers import Marking
from spanjax.tasks.rows import Row, TaskRows
from spanjax.tasks.span_tuning import FIELD, SpanTuning
from tests.made import tiny_encoder
from tests.tasks.small_vocabulary import small_wordpiece

ENCODER = tiny_encoder(vocab_size=300, layers=1)
WORDS = ("Anna", "works", "for", "the", "red", "cat", "in", "Bonn", ".")
EXAMPLE = Mentions("0", WORDS, ((0, 1), (7, 8)), ("PERSON", "CITY"), "yes")
SENTENCE = Tagged(WORDS, ("B-PER", "O", "O", "O", "O", "O", "O", "B-LOC", "O"))


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> SpanTuning:
    path = tmp_path_factory.mktemp("ngrams") / "ngrams.txt"
    with open(path, "wb") as file:
        write_ngrams(file, NgramSettings(), [Ngram(("the", "red", "cat"), 9), Ngram(("works", "for"), 9)])
    return SpanTuning(ngrams=str(path))


def texts(row: Row) -> list[str]:
    """What each span of a row says."""
    vocabulary, span_T = small_wordpiece(), row.fields[FIELD]
    return [vocabulary.decode(row.tokens_T[span_T == span]) for span in range(1, span_T.max() + 1)]


def value_and_gradient(task: Task, rows: list[Row]) -> tuple[float, dict[str, Any]]:
    packed = TaskRows(rows, 0, task.lengths)
    batch = {
        name: jax.numpy.asarray(v) for name, v in packed.batch(np.arange(len(rows)), np.arange(len(rows)), 32).items()
    }
    module = task.build(dataclasses.replace(ENCODER, vocab_size=small_wordpiece().size), nnx.Rngs(0))
    structure, state = nnx.split(module)
    loss = lambda params: task.measure(nnx.merge(structure, params), batch, None)[LOSS].total  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(nnx.to_pure_dict(state))
    return float(value), gradient


@pytest.mark.parametrize(
    "marking", [pytest.param("types", marks=pytest.mark.slow), "markers", pytest.param("none", marks=pytest.mark.slow)]
)
def test_spans_of_a_relation(spans: SpanTuning, marking: Marking) -> None:
    plain = Relation(marking=marking, length=32).with_training_labels(
        [EXAMPLE, EXAMPLE._replace(label="no_relation")], small_wordpiece()
    )
    task = dataclasses.replace(plain, spans=spans.with_fingerprint())
    (row,), (without,) = (list(each.rows([EXAMPLE], small_wordpiece())) for each in (task, plain))
    assert row.tokens_T.tolist() == without.tokens_T.tolist()
    inner = {
        "types": ["[unused?]", "works for", "the red cat", "in", "[unused?]", "."],
        "markers": [
            "[unused?]",
            "Anna",
            "[unused?]",
            "works for",
            "the red cat",
            "in",
            "[unused?]",
            "Bonn",
            "[unused?]",
            ".",
        ],
        "none": ["Anna", "works for", "the red cat", "in", "Bonn", "."],
    }[marking]
    said = ["[unused?]" if "unused" in text else text for text in texts(row)]
    assert said == ["[CLS]", *inner, "[SEP]"]
    value, gradient = value_and_gradient(task, [row])
    assert value > 0 and max(float(abs(leaf).max()) for leaf in jax.tree.leaves(gradient["span_network"])) > 0


def test_spans_of_a_cut_relation(spans: SpanTuning) -> None:
    long = EXAMPLE._replace(words=(*WORDS, *("the", "red", "cat") * 20))
    task = Relation(length=20, spans=dataclasses.replace(spans, spans=8)).with_training_labels(
        [long], small_wordpiece()
    )
    (row,) = task.rows([long], small_wordpiece())
    assert len(row.tokens_T) == len(row.fields[FIELD]) == 20 and row.fields[FIELD].max() <= 8


@pytest.mark.parametrize("token", ["span", "piece"])
def test_spans_of_tagged_words(spans: SpanTuning, token: Any) -> None:
    plain = Ner(length=32).with_training_labels([SENTENCE], small_wordpiece())
    task = Ner(length=32, spans=dataclasses.replace(spans, token=token)).with_training_labels(
        [SENTENCE], small_wordpiece()
    )
    assert task.problems(ENCODER) == [] and task.spans and task.spans.fingerprint
    (row,), (without,) = (list(each.rows([SENTENCE], small_wordpiece())) for each in (task, plain))
    assert row.tokens_T.tolist() == without.tokens_T.tolist()
    assert texts(row) == ["Anna", "works for", "the red cat", "in", "Bonn", "."]
    value, gradient = value_and_gradient(task, [row])
    assert value > 0 and max(float(abs(leaf).max()) for leaf in jax.tree.leaves(gradient["span_network"])) > 0
