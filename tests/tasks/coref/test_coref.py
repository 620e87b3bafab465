"""Documents as rows, what training takes of them, and clusters as answers."""

import dataclasses
import itertools
import json
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax.nn.coreference_parts import CoreferenceConfig
from spanjax.nn.dropout import DropoutKey
from spanjax.run_format import describe, stored_task
from spanjax.tasks.base import LOSS
from spanjax.tasks.coref import Coref
from spanjax.tasks.coref.answers import CorefPrediction, answer_of, gold_clusters, prediction_json
from spanjax.tasks.coref.documents import CorefDocument
from spanjax.tasks.coref.excerpts import FLAT, cut
from spanjax.tasks.coref.files import read_documents
from spanjax.tasks.coref.segments import DocumentTokens, mention_pieces, pieces_of
from spanjax.tasks.rows import Row, TaskRows
from tests.made import tiny_encoder
from tests.tasks.coref_made import made_document
from tests.tasks.small_vocabulary import WORDS, small_wordpiece

COLUMNS = ("predictions.conll", "key.conll")
VOCABULARY = small_wordpiece()
SEGMENT = 12
ENCODER = tiny_encoder(vocab_size=VOCABULARY.size, layers=1, intermediate_size=16, positions=32, initializer_std=0.3)
MODEL = CoreferenceConfig(max_width=6, hidden_size=8, feature_size=4, dropout=0.2, antecedents=10)
TASK = Coref(length=SEGMENT, max_segments=3, model=MODEL, genres=("nw",))


WITH_SINGLETONS = dataclasses.replace(TASK, singletons="keep", mention_loss=1.0)


def documents(count: int = 6) -> list[CorefDocument]:
    """Made documents of words that the vocabulary has."""
    return [made_document(seed, vocabulary=WORDS) for seed in range(count)]


def module(task: Coref = TASK) -> Any:
    """The task's module with weights large enough to tell everything apart."""
    structure, state = nnx.split(task.build(ENCODER, nnx.Rngs(0)))
    scaled = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * (20 if "coreference" in jax.tree_util.keystr(path) else 1), state
    )
    return nnx.merge(structure, scaled)


def packed(examples: list[CorefDocument], task: Coref = TASK) -> tuple[list[Row], TaskRows]:
    """Rows, and these together."""
    rows = list(task.rows(examples, VOCABULARY))
    return rows, TaskRows(rows, VOCABULARY.specials.pad, task.lengths)


def batch_of(rows: TaskRows, index: list[int], length: int) -> dict[str, jax.Array]:
    """The rows of these numbers, padded."""
    found = rows.batch(np.array(index), np.array(index), length)
    return {name: jnp.asarray(value) for name, value in found.items()}


def longest(task: Coref = TASK) -> list[CorefDocument]:
    """Two documents of more segments than training takes, and a short one."""
    rng = random.Random(0)
    made = [made_document(seed, longest=12, vocabulary=WORDS) for seed in range(40)]
    long = sorted(made, key=lambda each: -len(each.words))[:2]
    assert all(len(pieces_of(each, VOCABULARY).ids_N) > 4 * SEGMENT for each in long)
    return [*long, rng.choice([each for each in made if len(each.words) < 8])]


def test_rows_know_pieces_and_gold_clusters():
    for document in documents(20):
        (row,), _ = packed([document])
        pieces = pieces_of(document, VOCABULARY)
        count = len(pieces.ids_N)
        place_N = row.fields["place_BL"][:count]
        np.testing.assert_array_equal(row.tokens_T[place_N], pieces.ids_N)
        assert len(row.tokens_T) % SEGMENT == 0 and (row.fields["sentence_BL"][:count] > 0).all()
        assert not row.fields["sentence_BL"][count:].any()
        expected = {
            (*mention_pieces(pieces, mention), number)
            for number, cluster in enumerate(document.clusters or (), start=1)
            for mention in cluster
        }
        first, width = np.nonzero(row.fields["cluster_BLW"])
        found = {(int(a), int(a + w), int(row.fields["cluster_BLW"][a, w])) for a, w in zip(first, width, strict=True)}
        assert found == {each for each in expected if each[1] - each[0] < MODEL.max_width}
        assert row.fields["genre_B"] == (1 if document.genre == "nw" else 0)
        speakers = row.fields["speaker_BL"][:count]
        assert ((speakers == 0) == [document.speakers[word] == "" for word in pieces.word_N]).all()


def test_lengths_are_whole_segments():
    assert TASK.lengths(SEGMENT * 9) == tuple(SEGMENT * count for count in (1, 2, 3, 4, 6, 8, 9))
    assert TASK.lengths(1) == (SEGMENT,)


@pytest.mark.parametrize("overlap", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_neither_padding_nor_the_batch_changes_a_document(overlap):
    task = dataclasses.replace(TASK, overlap=overlap)
    model, examples = module(task), longest()
    rows, together = packed(examples, task)
    whole = together.length_of(np.array([0, 1, 2]))
    judged = jax.jit(task.measure_with_outputs)
    _, outputs = judged(model, batch_of(together, [0, 1, 2], whole))
    for number in range(3):
        size = len(rows[number].tokens_T)
        means, alone = judged(model, batch_of(together, [number], size))
        real = np.asarray(alone["real_BM"][0])
        count = int(real.sum())
        assert int(outputs["real_BM"][number].sum()) == count > 0
        for name, value in alone.items():
            np.testing.assert_allclose(outputs[name][number][:count], value[0][:count], rtol=1e-5, atol=1e-5)
        padded, _ = judged(model, batch_of(together, [number, -1], whole + 2 * SEGMENT))
        assert float(padded[LOSS].total) == pytest.approx(float(means[LOSS].total), rel=1e-5)
        assert float(padded[LOSS].count) == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_training_takes_consecutive_segments(overlap):
    """The pieces that are taken are a run of the document's, with the hidden states that they have in the whole of it."""
    task = dataclasses.replace(TASK, overlap=overlap)
    model, examples = module(task), longest()
    _, together = packed(examples, task)
    batch = batch_of(together, [0, 1, 2], together.length_of(np.array([0, 1, 2])))
    states = jax.jit(lambda model, batch: task._states(model, batch, None))
    whole_BND = np.asarray(states(model, batch))
    taken, begins = jax.jit(lambda batch, key: cut(batch, SEGMENT, 3, key)), set()
    for step in range(20):
        part = jax.tree.map(np.asarray, taken(batch, DropoutKey(jnp.uint32(977 * step), batch["row_B"])))
        assert part["tokens_BL"].shape[1] == 3 * SEGMENT
        part_BND = np.asarray(states(model, part))
        for row in range(3):
            real = np.asarray(part["sentence_BL"][row]) > 0
            count = int(real.sum())
            assert real[:count].all() and count > 0
            matches = [
                start
                for start in range(whole_BND.shape[1] - count + 1)
                if np.array_equal(batch["word_BL"][row, start : start + count], part["word_BL"][row, :count])
                and (np.asarray(batch["sentence_BL"][row, start : start + count]) > 0).all()
                and np.allclose(whole_BND[row, start : start + count], part_BND[row, :count], atol=1e-5)
            ]
            assert len(matches) == 1
            start = matches[0]
            begins.add((row, start))
            for name in set(FLAT) - {"place_BL"}:
                np.testing.assert_array_equal(batch[name][row, start : start + count], part[name][row, :count])
            assert int(batch["place_BL"][row, start]) % SEGMENT == 1, "behind a [CLS]"
            stop = int(batch["place_BL"][row, start + count - 1])
            after = batch["sentence_BL"][row, start + count : start + count + 1]
            assert not after.any() or int(batch["place_BL"][row, start + count]) // SEGMENT > stop // SEGMENT
    assert len({start for row, start in begins if row == 0}) > 2 and len({s for row, s in begins if row == 2}) == 1


def test_a_shifted_layout_fits_what_training_takes_of_it():
    """Any three segments are covered by at most five of the second pass."""
    for seed in range(200):
        (row,), _ = packed([made_document(seed, vocabulary=WORDS)], dataclasses.replace(TASK, overlap=True))
        real = row.fields["sentence_BL"] > 0
        first_N = row.fields["place_BL"][real] // SEGMENT
        second_N = row.fields["shifted_place_BL"][real] // SEGMENT
        for begin in range(first_N[-1] + 1):
            covered = second_N[(first_N >= begin) & (first_N < begin + 3)]
            assert covered[-1] - covered[0] < 5


def test_gradients_are_finite_and_reach_the_encoder():
    examples = longest()
    _, together = packed(examples)
    batch = batch_of(together, [0, 2], together.length_of(np.array([0, 2])))
    structure, state = nnx.split(module(WITH_SINGLETONS))

    def loss(state: Any) -> jax.Array:
        key = DropoutKey(jnp.uint32(3), batch["row_B"])
        return WITH_SINGLETONS.measure(nnx.merge(structure, state), batch, key)[LOSS].total

    for path, leaf in jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(jax.jit(jax.grad(loss))(state)))[0]:
        assert bool(jnp.isfinite(leaf).all()), path
        if jax.tree_util.keystr(path).endswith("['kernel']"):
            assert float(jnp.abs(leaf).sum()) > 0, path


def test_gold_mentions_are_kept_in_training_where_that_is_asked_for():
    """Before all others, with few spans a piece; never where a document is judged."""
    examples, few = documents(), dataclasses.replace(MODEL, spans_per_piece=0.3)
    kept: dict[tuple[bool, bool], float] = {}
    for keep_gold in (False, True):
        task = dataclasses.replace(TASK, keep_gold=keep_gold, model=few, max_segments=30)
        _, together = packed(examples, task)
        batch = batch_of(together, [*range(6)], together.length_of(np.arange(6)))
        gold = sum(len(cluster) for each in examples for cluster in each.clusters or () if len(cluster) > 0)
        for training in (False, True):
            key = DropoutKey(jnp.uint32(3), batch["row_B"]) if training else None
            _, cluster_BM = task._resolved(module(task), batch, key)
            kept[keep_gold, training] = float(jnp.sum(cluster_BM > 0)) / gold
    assert kept[True, True] > 1.5 * max(kept[False, True], kept[False, False])
    assert kept[True, False] == kept[False, False]


@pytest.mark.parametrize("head", ["coarse_to_fine", "start_end"])
def test_given_mentions_are_the_spans_of_their_document(head):
    """Crossing ones too, and ones across a sentence end; the other documents of the batch are as without."""
    task = dataclasses.replace(TASK, model=dataclasses.replace(MODEL, head=head))
    plain = longest()
    given = ((0, 1), (1, 2), (4, 4), (3, 5))
    one = dataclasses.replace(plain[0], mentions=given, clusters=(((0, 1), (4, 4)), ((7, 7), (9, 9))))
    rows, together = packed([one, *plain[1:]], task)
    length = together.length_of(np.array([0, 1, 2]))
    outputs = jax.jit(task.outputs)(module(task), batch_of(together, [0, 1, 2], length))
    expected = jax.jit(task.outputs)(module(task), batch_of(packed(plain, task)[1], [0, 1, 2], length))
    pieces = rows[0].notes
    spans = [mention_pieces(pieces, mention) for mention in sorted(given)]
    short = [(a, b) for a, b in spans if b - a < MODEL.max_width]
    real = np.asarray(outputs["real_BM"][0])
    assert len(short) > 2
    found = zip(outputs["first_BM"][0][real], outputs["last_BM"][0][real], strict=True)
    assert [(int(a), int(b)) for a, b in found] == short
    for name, value in outputs.items():
        np.testing.assert_array_equal(value[1:], expected[name][1:])
    answer = answer_of(pieces, {name: np.asarray(value[0]) for name, value in outputs.items()}, True, given=True)
    assert sum(map(len, answer.clusters)) == len(short)
    ignored = dataclasses.replace(task, mentions="found")
    assert not any("given_B" in row.fields for row in ignored.rows([one], VOCABULARY))


def test_gold_mentions_as_spans():
    task = dataclasses.replace(TASK, mentions="gold", singletons="keep", mention_loss=1.0)
    examples = [each for each in documents(12) if each.clusters]
    rows, together = packed(examples, task)
    index = list(range(len(examples)))
    means, outputs = jax.jit(task.measure_with_outputs)(
        module(task), batch_of(together, index, together.length_of(np.array(index)))
    )
    assert float(means["task/gold_spans"].value()) == pytest.approx(1)
    gold = sum(1 for row in rows for _ in np.argwhere(row.fields["cluster_BLW"] > 0))
    assert int(outputs["real_BM"].sum()) == gold > 20


PIECES = DocumentTokens(np.arange(8), np.array([0, 1, 1, 2, 3, 4, 5, 6]), np.zeros(8, np.int32))


def output(spans: list[tuple[int, int]], antecedents: list[int], mention: float = -1.0) -> dict[str, np.ndarray]:
    """What the model would give for these spans, with two empty places behind."""
    count = len(spans)
    first, last = zip(*spans, (0, 0), (0, 0), strict=True)
    return {
        "first_BM": np.array(first),
        "last_BM": np.array(last),
        "real_BM": np.arange(count + 2) < count,
        "antecedent_BM": np.array([*antecedents, -1, -1]),
        "mention_BM": np.full(count + 2, mention),
        "linked_BM": np.linspace(0, 1, count + 2),
    }


def test_spans_join_their_antecedents():
    spans = [(0, 0), (1, 2), (3, 3), (4, 5), (6, 6)]
    answer = answer_of(PIECES, output(spans, [-1, -1, 0, 2, 1]), keep_singletons=False)
    assert answer.clusters == (((0, 0), (2, 2), (3, 4)), ((1, 1), (5, 5)))
    assert answer.linked[(5, 5)] == pytest.approx(4 / 6)
    assert answer_of(PIECES, output(spans, [-1] * 5), keep_singletons=False).clusters == ()


def test_singletons_are_told_where_they_are_kept():
    spans = [(0, 0), (3, 3), (6, 6)]
    kept = answer_of(PIECES, output(spans, [-1, 0, -1], mention=0.5), keep_singletons=True)
    assert kept.clusters == (((0, 0), (2, 2)), ((5, 5),))
    assert answer_of(PIECES, output(spans, [-1, 0, -1], mention=-0.5), keep_singletons=True).clusters == (
        ((0, 0), (2, 2)),
    )


def test_spans_of_the_same_words_are_one_mention():
    spans = [(0, 0), (1, 1), (1, 2), (2, 2)]
    answer = answer_of(PIECES, output(spans, [-1, 0, 0, 1]), keep_singletons=False)
    assert answer.clusters == (((0, 0), (1, 1)),)


def test_singletons_are_dropped_when_read(tmp_path):
    lines = ["#begin document (d); part 000"]
    lines += [f"d\t0\t{n}\t{word}\t(" + mark for n, (word, mark) in enumerate([("a", "0)"), ("b", "1)"), ("c", "0)")])]
    (tmp_path / "d.conll").write_text("\n".join([*lines, "", "#end document", ""]))
    (document,) = TASK.read(tmp_path / "d.conll")
    assert document.clusters == (((0, 0), (2, 2)),)
    (document,) = WITH_SINGLETONS.read(tmp_path / "d.conll")
    assert document.clusters == (((0, 0), (2, 2)), ((1, 1),))


def test_scores_and_what_is_shown():
    document, problem = TASK.example({"text": "Anna works in Bonn. Anna lives in Bonn."}, 1)
    assert document is not None and not problem
    known = dataclasses.replace(document, clusters=(((0, 0), (5, 5)), ((3, 3), (8, 8))))
    pieces = pieces_of(known, VOCABULARY)
    spans = [mention_pieces(pieces, mention) for mention in [(0, 0), (3, 3), (5, 5), (8, 8)]]
    answer = answer_of(pieces, output(spans, [-1, -1, 0, 1]), keep_singletons=False)
    scores = TASK.scores([known], [answer])
    assert scores["f1"] == pytest.approx(100) and scores["mention_recall"] == pytest.approx(100)
    told = prediction_json(document, answer)
    assert [[mention["text"] for mention in cluster] for cluster in told["prediction"]] == [["Anna"] * 2, ["Bonn"] * 2]
    assert told["prediction"][0][1]["start"] == 20
    with pytest.raises(ValueError, match="1 documents have no clusters"):
        gold_clusters([document])


def test_gold_mentions_that_cross_are_written_where_they_can_be(tmp_path):
    crossing = (((0, 2), (1, 3), (5, 5)), ((4, 4), (6, 6)))
    document = CorefDocument("nw/a", 0, (tuple("abcdefg"),), ("",) * 7, crossing)
    files = TASK.write(
        tmp_path, [document], [CorefPrediction(crossing, dict.fromkeys(itertools.chain(*crossing), 1.0))]
    )
    assert {each.name for each in files} == {*COLUMNS, "predictions.jsonl", "recall.json", "left_out.json"}
    assert read_documents(tmp_path / "predictions.jsonl")[0].clusters == crossing
    for columns in COLUMNS:
        assert read_documents(tmp_path / columns)[0].clusters == (((0, 2), (5, 5)), ((4, 4), (6, 6)))
    assert json.loads((tmp_path / "left_out.json").read_text()) == dict.fromkeys(COLUMNS, 1)


@pytest.mark.parametrize(("task", "kept", "lost"), [(TASK, (), 2), (WITH_SINGLETONS, (((0, 2),),), 1)])
def test_a_cluster_of_which_one_mention_is_left(task, kept, lost, tmp_path):
    crossing = (((0, 2), (1, 3)),)
    document = CorefDocument("nw/a", 0, (tuple("abcdefg"),), ("",) * 7, crossing)
    task.write(tmp_path, [document], [CorefPrediction((), {})])
    assert read_documents(tmp_path / "key.conll")[0].clusters == kept
    assert json.loads((tmp_path / "left_out.json").read_text()) == {"predictions.conll": 0, "key.conll": lost}


def test_the_language_of_text():
    task = dataclasses.replace(TASK, language="zh")
    document, problem = task.example({"text": "我爱北京"}, 1)
    assert document is not None and not problem and document.words == ["我", "爱", "北", "京"]


def test_wrong_settings_are_all_told():
    wrong = dataclasses.replace(
        TASK, max_segments=0, mention_loss=0.0, singletons="keep", model=dataclasses.replace(MODEL, max_width=0)
    )
    assert len(wrong.problems(ENCODER)) == 3
    with pytest.raises(ValueError, match="no training document has clusters"):
        TASK.with_training_labels([dataclasses.replace(documents(1)[0], clusters=())], VOCABULARY)


def test_the_task_is_stored_with_everything():
    task = TASK.with_training_labels(documents(), VOCABULARY)
    assert stored_task(describe(task)) == task and task.genres == ("nw",)


def test_whatever_the_weights_spans_do_not_cross_antecedents_precede_and_clusters_are_apart():
    examples = [made_document(seed, vocabulary=WORDS) for seed in range(30)]
    rows, together = packed(examples)
    length = together.length_of(np.arange(30))
    judged = jax.jit(lambda model, batch: TASK.measure_with_outputs(model, batch)[1])
    outputs = judged(module(), batch_of(together, list(range(30)), length))
    linked = 0
    for number, row in enumerate(rows):
        output = {name: np.asarray(value[number]) for name, value in outputs.items()}
        spans = list(zip(output["first_BM"][output["real_BM"]], output["last_BM"][output["real_BM"]], strict=True))
        assert spans == sorted(set(spans))
        assert not any(a < b <= c < d for (a, c), (b, d) in itertools.combinations(spans, 2))
        own = np.arange(len(output["antecedent_BM"]))
        assert (output["antecedent_BM"] < own).all()
        clusters = answer_of(row.notes, output, keep_singletons=False).clusters
        mentions = [mention for cluster in clusters for mention in cluster]
        assert len(mentions) == len(set(mentions)) and all(len(cluster) > 1 for cluster in clusters)
        linked += len(mentions)
    assert linked > 50
