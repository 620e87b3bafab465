"""Rows of sentences with spans: shapes, specials, and what is left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanjax.data.ngrams.span_layout import Sentence, SpanLayout
from spanjax.data.vocab.base import Specials

pytestmark = pytest.mark.unit

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)


def sentence(*sizes: int, first: int = 10) -> Sentence:
    """A sentence of spans with so many pieces; ids first, first + 1, ..."""
    span_T = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Sentence(np.arange(first, first + len(span_T), dtype=np.int32), span_T)


def spans(row: Sentence) -> list[int]:
    """Pieces of every span."""
    return np.bincount(row.span_T).tolist() if len(row.span_T) else []


def test_a_pair_in_full() -> None:
    pair = SpanLayout(length=12, spans=8).laid([sentence(1, 3), sentence(2, first=20)], SPECIALS)
    assert pair.tokens_T.tolist() == [2, 10, 11, 12, 13, 3, 20, 21, 3]
    assert pair.types_T.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert pair.span_T.tolist() == [1, 2, 3, 3, 3, 4, 5, 5, 6]
    assert [each.dtype for each in pair] == [np.int32] * 3
    single = SpanLayout(length=12, spans=8).laid([sentence(1)], SPECIALS)
    assert [each.tolist() for each in single] == [[2, 10, 3], [0, 0, 0], [1, 2, 3]]


def test_specials_need_not_be_spans() -> None:
    row = SpanLayout(length=9, spans=5, special_spans=False).laid([sentence(1, 2), sentence(1)], SPECIALS)
    assert row.span_T.tolist() == [0, 1, 2, 2, 0, 3, 0]


def test_two_separators() -> None:
    pair = [sentence(1, 2), sentence(1, first=20)]
    row = SpanLayout(separators=2).laid(pair, SPECIALS)
    assert row.tokens_T.tolist() == [2, 10, 11, 12, 3, 3, 20, 3] and row.types_T.tolist() == [0] * 6 + [1, 1]
    assert row.span_T.tolist() == [1, 2, 3, 3, 4, 5, 6, 7]
    bare = SpanLayout(separators=2, special_spans=False).laid(pair, SPECIALS)
    assert bare.span_T.tolist() == [0, 1, 2, 2, 0, 0, 3, 0]


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
    assert [spans(one) for one in layout.fit_to_length(row)] == expected


SIZES = st.lists(st.integers(1, 9), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(SIZES, min_size=1, max_size=2),
    st.builds(
        SpanLayout, length=st.integers(6, 40), spans=st.integers(6, 12), pieces=st.integers(1, 5),
        special_spans=st.booleans(), halves=st.booleans(), separators=st.integers(1, 2),
    ),
)  # fmt: skip
def test_every_piece_of_a_row_is_in_one_span(sizes: list[list[int]], layout: SpanLayout) -> None:
    row = [sentence(*one) for one in sizes]
    laid, fitted = layout.laid(row, SPECIALS), layout.fit_to_length(row)
    text_T = laid.tokens_T >= 10
    assert len(laid.tokens_T) == len(laid.types_T) == len(laid.span_T) <= layout.length
    assert laid.tokens_T[text_T].tolist() == [number for one in fitted for number in one.ids_T.tolist()]
    for one, whole in zip(fitted, row, strict=True):
        np.testing.assert_array_equal(one.ids_T, whole.ids_T[: len(one.ids_T)])
        assert spans(one)[:-1] == spans(whole)[: max(0, len(spans(one)) - 1)]
        assert spans(one)[1:] == spans(whole)[1 : len(spans(one))]  # only the first may be cut
        assert bool(spans(one)) == bool(spans(whole))
    assert (laid.span_T[text_T] > 0).all() and laid.span_T.max() <= layout.spans
    used = [span for span in laid.span_T.tolist() if span]
    assert used == sorted(used) and {*used} == {*range(1, max(used, default=0) + 1)}
    sizes_of_text = np.bincount(laid.span_T[text_T])[1:]
    assert sizes_of_text[sizes_of_text > 0].tolist() == [size for one in fitted for size in spans(one)]
    specials = 2 + layout.separators * (len(row) - 1)
    assert (~text_T).sum() == specials and (laid.span_T[~text_T] > 0).sum() == specials * layout.special_spans


def test_wrong_shapes_and_rows_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"length 4: expected 5 or more\nspans 2: .*\npieces 0: "):
        SpanLayout(length=4, spans=2, pieces=0)
    with pytest.raises(ValueError, match=r"length 5: expected 6 or more\nspans 5: expected 6 or more"):
        SpanLayout(length=5, spans=5, separators=2)
    for row in ([], [sentence(1)] * 3):
        with pytest.raises(ValueError, match=f"a row of {len(row)} sentences: expected 1 or 2"):
            SpanLayout().laid(row, SPECIALS)
