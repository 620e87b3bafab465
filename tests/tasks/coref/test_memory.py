"""Documents read in windows with a memory of the newest spans: the whole document's result where the memory holds all."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from spanjax.tasks.base import LOSS
from spanjax.tasks.coref import Coref
from spanjax.tasks.coref.answers import answer_of
from spanjax.tasks.coref.documents import CorefDocument, sorted_clusters
from spanjax.tasks.coref.segments import mention_pieces
from tests.tasks.coref.test_coref import MODEL, SEGMENT, TASK, batch_of, longest, module, packed

WINDOW = 2


def inside() -> list[CorefDocument]:
    """The documents with the mentions that do not cross from one window to the next."""
    found = []
    for document in longest():
        (row,) = packed([document])[0]
        window_N = row.fields["place_BL"] // (WINDOW * SEGMENT)
        clusters = [
            [each for each in cluster if len({int(window_N[p]) for p in mention_pieces(row.notes, each)}) == 1]
            for cluster in document.clusters or ()
        ]
        found.append(dataclasses.replace(document, clusters=sorted_clusters(clusters)))
    return found


def read(task: Coref, index: tuple[int, ...] = (0, 1, 2)) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(means, outputs) of these of two long documents and a short one."""
    _, together = packed(inside(), task)
    batch = batch_of(together, list(index), together.length_of(np.array([0, 1, 2])))
    means, outputs = jax.jit(task.measure_with_outputs)(module(task), batch)
    return means, {name: np.asarray(value) for name, value in outputs.items()}


def in_windows(task: Coref, memory: int) -> Coref:
    """The task with windows."""
    return dataclasses.replace(task, memory=memory, window=WINDOW)


@pytest.mark.parametrize("head", ["coarse_to_fine", "start_end"])
@pytest.mark.parametrize("mentions", ["gold", "found"])
def test_a_memory_of_all_spans_changes_nothing(head, mentions):
    """Gold mentions are kept whatever the windows; so are all words as spans."""
    widths = 1 if mentions == "found" else MODEL.max_width
    model = dataclasses.replace(MODEL, max_width=widths, spans_per_piece=1.0, head=head)
    task = dataclasses.replace(TASK, model=model, mentions=mentions, singletons="keep", mention_loss=0.5)
    whole, expected = read(task)
    means, outputs = read(in_windows(task, 500))
    assert float(whole[LOSS].total) > 10
    for name, mean in whole.items():
        assert float(means[name].total) == pytest.approx(float(mean.total), rel=1e-5)
        assert float(means[name].count) == float(mean.count)
    for row in range(3):
        count = int(expected["real_BM"][row].sum())
        assert int(outputs["real_BM"][row].sum()) == count > 0 and outputs["real_BM"][row][:count].all()
        for name, value in expected.items():
            # scores are sums of parts of several hundred, so a small one has the rounding of a large one
            atol = max(1e-5, 1e-6 * float(np.abs(value[row][:count].astype(np.float32)).max()))
            np.testing.assert_allclose(outputs[name][row][:count], value[row][:count], rtol=1e-4, atol=atol)


def test_a_small_memory_holds_the_newest_spans():
    """Scores of all pairs of the whole document, of which each span sees those of its window and some before it."""
    model = dataclasses.replace(MODEL, head="start_end", spans_per_piece=1.0)
    task = dataclasses.replace(TASK, model=model, mentions="gold")
    kept, examples = 5, inside()
    rows, together = packed(examples, task)
    batch = batch_of(together, [0], len(rows[0].tokens_T))
    weights = module(task)
    found, _ = jax.jit(lambda batch: task._resolved(weights, batch, None))(batch)
    first_M, score_MM = np.asarray(found.first_M[0]), np.asarray(found.score_MA[0])
    count = int(found.real_M[0].sum())
    window_M = rows[0].fields["place_BL"][first_M[:count]] // (WINDOW * SEGMENT)
    outputs = {n: np.asarray(v[0]) for n, v in jax.jit(in_windows(task, kept).outputs)(weights, batch).items()}
    assert window_M[-1] > 1 and len(examples) == 3
    forgotten = 0
    for span in range(count):
        start = int(np.searchsorted(window_M, window_M[span]))
        seen_M = score_MM[span, max(0, start - kept) : span]
        forgotten += max(0, start - kept)
        best = seen_M.argmax() + max(0, start - kept) if len(seen_M) and seen_M.max() > 0 else -1
        assert outputs["antecedent_BM"][span] == best
        assert outputs["linked_BM"][span] == pytest.approx(1 - np.exp(-np.logaddexp.reduce([0.0, *seen_M])), abs=1e-4)
    assert forgotten > 5


def test_empty_rows_and_documents_next_to_it_change_nothing():
    task = in_windows(TASK, 7)
    means, outputs = read(task)
    parts = [read(task, (number, -1)) for number in range(3)]
    assert float(means[LOSS].total) == pytest.approx(sum(float(part[LOSS].total) for part, _ in parts), rel=1e-5)
    for number, (part, alone) in enumerate(parts):
        assert float(part[LOSS].count) == 1
        count = int(alone["real_BM"][0].sum())
        for name, value in alone.items():
            np.testing.assert_allclose(outputs[name][number][:count], value[0][:count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("overlap", [False, True])
def test_clusters_of_windows_are_apart(overlap):
    task = dataclasses.replace(in_windows(TASK, 9), overlap=overlap)
    rows, _ = packed(longest(), task)
    _, outputs = read(task)
    for number, row in enumerate(rows):
        output = {name: value[number] for name, value in outputs.items()}
        spans = np.stack([output["first_BM"], output["last_BM"]], 1)[output["real_BM"]]
        assert (np.diff(spans[:, 0]) >= 0).all() and (spans[:, 1] - spans[:, 0] < MODEL.max_width).all()
        assert (output["antecedent_BM"] < np.arange(len(output["antecedent_BM"]))).all()
        clusters = answer_of(row.notes, output, keep_singletons=False).clusters
        mentions = [mention for cluster in clusters for mention in cluster]
        assert len(mentions) == len({*mentions})
        assert all(0 <= first <= last < len(longest()[number].words) for first, last in mentions)
