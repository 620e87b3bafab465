"""Rows of sentences with spans: shapes, specials, what is left out, and pooling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.span_layout import Sentence, SpanLayout, gather_spans
from spanjax.data.vocab import Specials

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)


def sentence(*sizes: int, first: int = 10) -> Sentence:
    """A sentence of spans with so many pieces; ids first, first + 1, ..."""
    span_T = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Sentence(np.arange(first, first + len(span_T), dtype=np.int32), span_T)


def spans(row: Sentence) -> list[int]:
    """Pieces of every span."""
    return np.bincount(row.span_T).tolist() if len(row.span_T) else []


def test_a_pair_in_full() -> None:
    rows = SpanLayout(length=12, spans=8, pieces=2)([[sentence(1, 3), sentence(2, first=20)], [sentence(1)]], SPECIALS)
    assert rows.tokens_BL.tolist() == [[2, 10, 11, 12, 13, 3, 20, 21, 3, 0, 0, 0], [2, 10, 3] + [0] * 9]
    assert rows.types_BL.tolist() == [[0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0], [0] * 12]
    assert rows.span_BL.tolist() == [[1, 2, 3, 3, 3, 4, 5, 5, 6, 0, 0, 0], [1, 2, 3] + [0] * 9]
    assert rows.piece_BSP[0].tolist() == [[0, 0], [1, 0], [2, 3], [5, 0], [6, 7], [8, 0], [0, 0], [0, 0]]
    assert rows.piece_weight_BSP[0].tolist() == [[1, 0], [1, 0], [1, 1], [1, 0], [1, 1], [1, 0], [0, 0], [0, 0]]
    assert rows.piece_weight_BSP[1].sum() == 3
    assert [each.dtype for each in rows] == [np.int32] * 4 + [np.float32]


def test_specials_need_not_be_spans() -> None:
    rows = SpanLayout(length=9, spans=5, pieces=2, special_spans=False)([[sentence(1, 2), sentence(1)]], SPECIALS)
    assert rows.span_BL.tolist() == [[0, 1, 2, 2, 0, 3, 0, 0, 0]]


@pytest.mark.parametrize(
    ("row", "layout", "expected"),
    [
        ([sentence(2, 2, 2)], SpanLayout(length=8), [[2, 2, 2]]),
        ([sentence(2, 2, 3)], SpanLayout(length=8), [[2, 2]]),  # spans are whole
        ([sentence(9, 2)], SpanLayout(length=8), [[6]]),  # the first is cut
        ([sentence(1, 1, 1, 1)], SpanLayout(spans=5), [[1, 1, 1]]),
        ([sentence(1, 1, 1, 1)], SpanLayout(spans=5, special_spans=False), [[1, 1, 1, 1]]),
        ([sentence(2, 2, 2), sentence(1)], SpanLayout(length=9), [[2, 2], [1]]),  # the longer one gives
        ([sentence(2, 2), sentence(2, 2)], SpanLayout(length=9), [[2, 2], [2]]),  # of equals the second
        ([sentence(9), sentence(1, 1)], SpanLayout(length=9), [[4], [1, 1]]),
        ([sentence(4), sentence(1, 1, 1)], SpanLayout(spans=6), [[4], [1, 1]]),
        ([sentence(2, 2, 2), sentence(1)], SpanLayout(length=9, halves=True), [[2], [1]]),
        ([sentence(1, 1, 1, 1), sentence(1)], SpanLayout(spans=9, halves=True), [[1, 1, 1], [1]]),
        ([sentence(), sentence(9)], SpanLayout(length=8), [[], [5]]),
    ],
)
def test_what_is_left_out(row: list[Sentence], layout: SpanLayout, expected: list[list[int]]) -> None:
    assert [spans(one) for one in layout.fitted(row)] == expected


SIZES = st.lists(st.integers(1, 9), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(SIZES, min_size=1, max_size=2), max_size=4),
    st.builds(
        SpanLayout, length=st.integers(5, 40), spans=st.integers(5, 12), pieces=st.integers(1, 5),
        special_spans=st.booleans(), halves=st.booleans(),
    ),
)  # fmt: skip
def test_every_piece_of_a_row_is_in_one_span(sizes: list[list[list[int]]], layout: SpanLayout) -> None:
    batch = [[sentence(*one) for one in row] for row in sizes]
    rows = layout(batch, SPECIALS)
    assert rows.piece_BSP.shape == rows.piece_weight_BSP.shape == (len(batch), layout.spans, layout.pieces)
    for b, row in enumerate(batch):
        fitted = layout.fitted(row)
        text_L = (rows.tokens_BL[b] != SPECIALS.pad) & (rows.tokens_BL[b] >= 10)
        ids = [number for one in fitted for number in one.ids_T.tolist()]
        assert rows.tokens_BL[b][text_L].tolist() == ids
        for one, whole in zip(fitted, row, strict=True):
            np.testing.assert_array_equal(one.ids_T, whole.ids_T[: len(one.ids_T)])
            assert spans(one)[:-1] == spans(whole)[: max(0, len(spans(one)) - 1)]
            assert spans(one)[1:] == spans(whole)[1 : len(spans(one))]  # only the first may be cut
            assert bool(spans(one)) == bool(spans(whole))
        assert (rows.span_BL[b][text_L] > 0).all() and rows.span_BL[b].max() <= layout.spans
        for span in range(layout.spans):
            places = np.flatnonzero(rows.span_BL[b] == span + 1)[: layout.pieces]
            used = rows.piece_weight_BSP[b, span] > 0
            assert rows.piece_BSP[b, span][used].tolist() == places.tolist()
            assert not rows.piece_BSP[b, span][~used].any() and used.sum() == len(places)


def test_pooling_over_the_arrays_is_the_mean_of_each_span() -> None:
    rows = SpanLayout(length=10, spans=6, pieces=3)([[sentence(1, 3, 2)]], SPECIALS)
    hidden_BLD = np.random.default_rng(0).normal(size=(1, 10, 4))
    gathered_BSPD = hidden_BLD[np.arange(1)[:, None, None], rows.piece_BSP] * rows.piece_weight_BSP[..., None]
    mean_BSD = gathered_BSPD.sum(2) / np.maximum(rows.piece_weight_BSP.sum(2, keepdims=True), 1)
    for span, places in enumerate(([0], [1], [2, 3, 4], [5, 6], [7])):
        np.testing.assert_allclose(mean_BSD[0, span], hidden_BLD[0, places].mean(0))
    assert not mean_BSD[0, 5].any()


def test_numbers_above_the_most_are_left_out() -> None:
    piece_BSP, weight_BSP = gather_spans(np.array([[1, 3, 1, 2]]), spans=2, pieces=2)
    assert piece_BSP.tolist() == [[[0, 2], [3, 0]]] and weight_BSP.tolist() == [[[1, 1], [1, 0]]]


def test_wrong_shapes_and_rows_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"length 4: expected 5 or more\nspans 2: .*\npieces 0: "):
        SpanLayout(length=4, spans=2, pieces=0)
    with pytest.raises(ValueError, match=r"row 0 has 3 sentences, expected 1 or 2\nrow 2 has 0"):
        SpanLayout()([[sentence(1)] * 3, [sentence(1)], []], SPECIALS)
