"""Entities as classified spans: loss and vectors against plain loops, nested and equal spans learnt, files, overlaps."""

import itertools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax import evaluate, train
from spanjax.nn.span_network import SpanNetwork, SpanNetworkConfig
from spanjax.predict import main as predict
from spanjax.tasks.base import LOSS
from spanjax.tasks.ner import Ner
from spanjax.tasks.ner.files import Tagged
from spanjax.tasks.ner.span_files import Spanned, spanned
from spanjax.tasks.ner.spans import BITS, PRIOR, ScoredEntity, SpanNer, kept
from spanjax.tasks.rows import TaskRows
from tests.made import tiny_encoder
from tests.running import ROOT
from tests.tasks.small_vocabulary import WORDS, fit_arguments, small_wordpiece

NO_PIECES = "\u200b"
VOCABULARY = small_wordpiece()
ENCODER = tiny_encoder(vocab_size=VOCABULARY.size, layers=1, intermediate_size=16, positions=32, dropout=0.0)
TASK = SpanNer(labels=("LOC", "ORG", "PER"), max_width=4, length=24)
NESTED = Spanned(
    ("abc", "Anna", "ab-c", "a", "b"),
    (("ORG", 0, 3), ("LOC", 1, 2), ("PER", 1, 2), ("PER", 2, 5)),
)


def batch_of(task: SpanNer, examples: list[Spanned], length: int = 24) -> Any:
    packed = TaskRows(task.rows(examples, VOCABULARY), 0, task.lengths)
    count = len(packed)
    return jax.tree.map(jnp.asarray, packed.batch(np.arange(count), np.arange(count), length))


@pytest.mark.parametrize("level", ["cnn", "attention"])
def test_vectors_of_every_span_are_those_of_that_span_alone(level: Any) -> None:
    config = SpanNetworkConfig(token_level=level, span_level="max")
    network = SpanNetwork(tiny_encoder(hidden_size=8, initializer_std=0.5), config, nnx.Rngs(1), 1, 6)
    vector_BND = jax.random.normal(jax.random.key(0), (2, 7, 8))
    found_BNSD = network.of_every_span(vector_BND, 6)
    assert found_BNSD.shape == (2, 7, 6, 8)
    for first, width in itertools.product(range(7), range(1, 7)):
        if first + width <= 7:
            span_BL = jnp.zeros((2, 7), jnp.int32).at[:, first : first + width].set(1)
            alone_BSD, _ = network.of_spans(vector_BND, span_BL, 1)
            np.testing.assert_allclose(found_BNSD[:, first, width - 1], alone_BSD[:, 0], atol=1e-6)


def test_the_loss_is_a_loop_over_spans_and_types() -> None:
    module: Any = TASK.build(ENCODER, nnx.Rngs(0))
    unknown = Spanned(("a", "b"), None)
    batch = batch_of(TASK, [NESTED, unknown])
    logits = np.asarray(TASK.outputs(module, batch)["logits_BLSC"], np.float64)
    assert abs(1 / (1 + np.exp(-logits)) - PRIOR).max() < 0.02
    total = 0.0
    for first, last, kind in itertools.product(range(5), range(1, 6), range(3)):
        if 0 < last - first <= TASK.max_width:
            probability = 1 / (1 + np.exp(-logits[0, first, last - first - 1, kind]))
            gold = (TASK.labels[kind], first, last) in (NESTED.entities or ())
            total -= np.log(probability if gold else 1 - probability)
    found = TASK.measure(module, batch, None)[LOSS]
    assert float(found.total) == pytest.approx(total, rel=1e-5)
    assert float(found.count) == float(TASK.counts(batch)[LOSS]) == 5


def test_padding_changes_nothing() -> None:
    module: Any = TASK.build(ENCODER, nnx.Rngs(0))
    short, long = (batch_of(TASK, [NESTED], length) for length in (16, 24))
    one, other = (np.asarray(TASK.outputs(module, each)["logits_BLSC"]) for each in (short, long))
    for first, width in itertools.product(range(5), range(4)):
        if first + width < 5:
            np.testing.assert_allclose(one[0, first, width], other[0, first, width], atol=1e-5)
    losses = [float(TASK.measure(module, each, None)[LOSS].total) for each in (short, long)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_nested_overlapping_and_equal_spans_are_learnt() -> None:
    """A span in another, two that cross, and one with two types: all come out of one sentence."""
    graph, state = nnx.split(TASK.build(ENCODER, nnx.Rngs(0)))
    examples = [NESTED, Spanned(("Anna", "a", "b"), (("PER", 0, 1),)), Spanned(("b", "ab-c"), ())]
    rows = list(TASK.rows(examples, VOCABULARY))
    batch, optimizer = batch_of(TASK, examples), optax.adam(3e-3)
    kept_state = optimizer.init(state)

    @jax.jit
    def step(state: Any, kept_state: Any) -> Any:
        def loss(state: Any) -> jax.Array:
            mean = TASK.measure(nnx.merge(graph, state), batch, None)[LOSS]
            return mean.total / mean.count

        updates, kept_state = optimizer.update(jax.grad(loss)(state), kept_state)
        return optax.apply_updates(state, updates), kept_state

    for _ in range(150):
        state, kept_state = step(state, kept_state)
    logits = np.asarray(TASK.outputs(nnx.merge(graph, state), batch)["logits_BLSC"])
    found = TASK.predictions(examples, rows, [{"logits_BLSC": logits[place]} for place in range(3)])
    assert [{one.entity for one in each} for each in found] == [{*(each.entities or ())} for each in examples]
    assert TASK.scores(examples, found)["f1"] == 100
    assert all(one["confidence"] > 0.5 for one in TASK.prediction_json(NESTED, found[0], ())["prediction"])


SENTENCE = st.lists(st.sampled_from([*WORDS, NO_PIECES, "abcde", "ab-c"]), min_size=1, max_size=12)


@settings(deadline=None)
@given(SENTENCE, st.integers(8, 24), st.data())
def test_entities_come_back_from_the_bits_of_rows(words: list[str], length: int, data: st.DataObject) -> None:
    """Log-odds made of the rows' bits give the entities that lie in a window, are short enough and end in words with pieces."""
    labels = tuple(f"T{number:02}" for number in range(BITS + 3))  # more than an int32 has bits
    task = SpanNer(labels=labels, max_width=4, length=length)
    places = st.integers(0, len(words) - 1)
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(labels), places, st.integers(1, 5)), max_size=6))
    entities = tuple({(kind, first, min(first + size, len(words))) for kind, first, size in drawn})
    rows = list(task.rows([Spanned(tuple(words), entities)], VOCABULARY))
    outputs = []
    for row in rows:
        bits = row.fields["kinds_BLSG"]
        gold = np.stack([(bits[..., at // BITS] >> at % BITS) & 1 for at in range(len(labels))], axis=-1)
        outputs.append({"logits_BLSC": np.where(gold, 9.0, -9.0)})
    (found,) = task.predictions([Spanned(tuple(words), None)], rows, outputs)
    expected = set()
    for kind, first, last in entities:
        inside = [word for word in range(first, last) if words[word] != NO_PIECES]
        ends = words[first] != NO_PIECES and words[last - 1] != NO_PIECES
        together = any({word + 1 for word in inside} <= {*row.fields["word_BL"].tolist()} for row in rows)
        if ends and together and len(inside) <= task.max_width:
            expected.add((kind, first, last))
    assert {one.entity for one in found} == expected


def test_overlaps() -> None:
    found = [
        ScoredEntity("A", 0, 4, 3.0),
        ScoredEntity("B", 0, 4, 2.0),
        ScoredEntity("A", 1, 2, 1.0),
        ScoredEntity("A", 3, 6, 0.9),
        ScoredEntity("A", 6, 7, 0.1),
    ]
    assert kept(found, "any") == found
    assert kept(found[::-1], "nested") == [*found[:3], found[4]]
    assert kept(found, "none") == [found[0], found[4]]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"tokens": ["a"], "entities": [[0, 2, "X"]]}, "has words outside of 0 to 1, or none"),
        ({"tokens": ["a"], "entities": [[0, 0, "X"]]}, "has words outside of 0 to 1, or none"),
        ({"tokens": ["a"], "entities": [[0, 1]]}, "expected [start, end, type]"),
        ({"tokens": ["a"], "entities": "0 1"}, "an entity is"),
        ({"text": "Anna sat.", "entities": [[0, 3, "X"]]}, "does not begin and end with words"),
        ({"text": "", "entities": []}, "expected `words`"),
    ],
)
def test_bad_records(record: dict[str, Any], said: str) -> None:
    example, problem = spanned(record)
    assert example is None and said in problem


CONLLU = """# global.Entity = eid-etype-head-other
# sent_id = 1
1-2\tAnna's\t_\t_\t_\t_\t_\t_\t_\tEntity=(e9-place-1)
1\tAnna\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No|Entity=(e1-person-1(e2-place-1)
2\t's\t_\t_\t_\t_\t_\t_\t_\tEntity=e1)(e3[1/2]-person-1)
2.1\tnothing\t_\t_\t_\t_\t_\t_\t_\tEntity=(e8-place-1)
3\tdog\t_\t_\t_\t_\t_\t_\t_\tEntity=(e4-animal-1

1\tNo\t_\t_\t_\t_\t_\t_\t_\t_
"""


def test_files(tmp_path: pathlib.Path) -> None:
    nested = tmp_path / "nested.conllu"
    nested.write_text(CONLLU)
    found = SpanNer().read(nested)
    assert found == [Spanned(("Anna", "'s", "dog"), (("person", 0, 2), ("place", 0, 1))), Spanned(("No",), ())]
    assert found.problems == [] and found.notes == [f"{nested}: 2 entities of several parts or sentences are skipped"]

    tags = "1\tAnna\t_\t_\t_\t_\t_\t_\t_\tNER=B-PER\n2\tLee\t_\t_\t_\t_\t_\t_\t_\tNER=I-PER\n"
    flat = tmp_path / "flat.conllu"
    flat.write_text(f"{tags}\n1\ta\n")
    found = SpanNer().read(flat)
    assert found == [Spanned(("Anna", "Lee"), (("PER", 0, 2),))]
    assert len(found.problems) == 1 and "flat.conllu:4: 2 columns: expected the 10 of CoNLL-U" in found.problems[0]

    records = tmp_path / "own.jsonl"
    lines = [
        {"text": "Old Anna, Bonn", "entities": [[0, 8, "PER"], {"start": 4, "end": 8, "label": "PER"}]},
        {"tokens": ["a", "b"], "entities": [[0, 2, "X"], [0, 2, "X"], [0, 2, "Y"]]},
        {"tokens": ["a"], "entities": []},
        {"tokens": ["a"]},
    ]
    records.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = SpanNer().read(records)
    assert found.problems == []
    assert found[0] == Spanned(("Old", "Anna", ",", "Bonn"), (("PER", 0, 2), ("PER", 1, 2)), (0, 4, 8, 10))
    assert [each.entities for each in found[1:]] == [(("X", 0, 2), ("Y", 0, 2)), (), None]

    columns = tmp_path / "words.conll"
    columns.write_text("Anna B-PER\nLee I-PER\n\n. O\n")
    assert SpanNer().read(columns) == [Spanned(("Anna", "Lee"), (("PER", 0, 2),)), Spanned((".",), ())]
    old = tmp_path / "old.jsonl"
    old.write_text(json.dumps({"tokens": ["Anna", "."], "ner_tags": ["B-PER", "O"]}) + "\n")
    assert SpanNer().read(old) == [Spanned(("Anna", "."), (("PER", 0, 1),))]

    (written,) = SpanNer().write(tmp_path, [NESTED], [[ScoredEntity(*each, 1.0) for each in NESTED.entities or ()]])
    assert {*(SpanNer().read(written)[0].entities or ())} == {*(NESTED.entities or ())}


def test_settings() -> None:
    task = SpanNer().with_training_labels([NESTED, Spanned(("a",), None)], VOCABULARY)
    assert task.labels == TASK.labels and task.problems(ENCODER) == []
    assert SpanNer(max_width=2).notes([NESTED]) == [
        "2 of 4 entities have more words than objective.max_width 2: they count as missed"
    ]
    for bad, said in (
        (SpanNer(labels=("A", "A")), "expected each type once"),
        (SpanNer(network=SpanNetworkConfig()), "expected max and masked"),
        (SpanNer(word_column=-1), "expected two columns"),
    ):
        assert said in "; ".join(bad.problems(ENCODER))
    with pytest.raises(ValueError, match="no training example has entities"):
        SpanNer().with_training_labels([Spanned(("a",), None)], VOCABULARY)
    with pytest.raises(ValueError, match="have no entity"):
        SpanNer().with_training_labels([Spanned(("a",), ())], VOCABULARY)
    with pytest.raises(ValueError, match="1 sentences have no entities"):
        TASK.scores([Spanned(("a",), None)], [()])


def test_conllu_for_tags(tmp_path: pathlib.Path) -> None:
    """The tagger reads what does not overlap, and names a sentence with nested entities."""
    path = tmp_path / "words.conllu"
    rows = [
        ("Anna", "(e1-person-1"),
        ("Lee", "e1)"),
        ("sat", ""),
        ("", ""),
        ("Bonn", "(e2-place-1(e3-place-1)"),
        ("x", "e2)"),
    ]
    lines = [f"1\t{word}" + "\t_" * 7 + f"\t{f'Entity={mark}' if mark else '_'}" if word else "" for word, mark in rows]
    path.write_text("\n".join([*lines[:3], "", *lines[4:], ""]))
    found = Ner().read(path)
    assert found == [Tagged(("Anna", "Lee", "sat"), ("B-person", "I-person", "O"))]
    assert found.problems == [f"{path}:sentence 2: entities overlap: expected none that do, or a model of SpanNer"]


@pytest.mark.slow
def test_commands_learn_score_and_predict(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    """Nested entities by heart: training stores the labels, `evaluate` the scores, `predict ner` prints characters."""
    path = tmp_path / "train.jsonl"
    sentences = [
        {"text": "Anna a Bonn b", "entities": [[0, 4, "PER"], [0, 11, "ORG"], [7, 11, "LOC"]]},
        {"text": "the Bonn Anna", "entities": [[4, 13, "ORG"], [4, 8, "LOC"], [9, 13, "PER"]]},
        {"text": "a the b", "entities": []},
    ]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in sentences))
    arguments = fit_arguments(str(ROOT / "configs/finetune/span_ner.py"), path, tmp_path)
    assert train.main([*arguments, "--objective.max-width=4", "--objective.epochs=8"]) == 0
    run = str(tmp_path / "run")
    capsys.readouterr()
    assert evaluate.main([run, "--data", str(path), "--output", str(tmp_path / "answers"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["f1"] == scores["f1_ORG"] == 100 and "calibration_error" in scores
    lines = (tmp_path / "answers" / "predictions.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["entities"] == [[0, 3, "ORG"], [0, 1, "PER"], [2, 3, "LOC"]]
    assert predict(["ner", run, "--text", str(sentences[0]["text"])]) == 0
    found = json.loads(capsys.readouterr().out)["prediction"]
    assert sorted([each["start"], each["end"], each["type"]] for each in found) == sorted(sentences[0]["entities"])
    assert all(0.5 < each["confidence"] <= 1 for each in found)
