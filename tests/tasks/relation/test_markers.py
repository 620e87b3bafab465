"""Markers: where they stand, which ids they take, what is cut around them."""

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary, load_vocabulary
from spanjax.tasks.relation.markers import (
    Marking,
    ids_of_text,
    marker_ids,
    marker_name,
    marker_names,
    parts,
    placed,
)
from tests.tasks.small_vocabulary import small_wordpiece

MARKINGS: tuple[Marking, ...] = ("types", "markers", "typed_markers", "none")
KINDS = ("PER", "LOC")
Spans = tuple[tuple[int, int], tuple[int, int]]


@st.composite
def sentences(draw: st.DrawFn, most: int = 12) -> tuple[list[str], Spans]:
    """Different words, and two entities that may overlap or be the same."""
    count = draw(st.integers(1, most))
    words = [f"w{n}" for n in range(count)]
    first, second = (sorted(draw(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)))) for _ in range(2))
    return words, ((first[0], first[1] + 1), (second[0], second[1] + 1))


def written(words: list[str], spans: Spans, marking: Marking) -> list[str]:
    """Words and markers in a row."""
    found = parts(words, spans, KINDS, marking)
    return [word for part in found for word in ([part.marker] if part.marker else part.text.split())]


@given(sentences(), st.sampled_from(["markers", "typed_markers"]))
def test_markers_stand_around_the_words_of_the_entities(given_one: tuple[list[str], Spans], marking: Marking) -> None:
    words, spans = given_one
    found = written(words, spans, marking)
    assert [word for word in found if word[0] != "["] == words
    assert len(found) == len(words) + 4
    stretches = []
    for role, kind, (first, last) in zip(("SUBJ", "OBJ"), KINDS, spans, strict=True):
        kind = kind if marking == "typed_markers" else ""
        start, end = (found.index(marker_name(role, kind, closing)) for closing in (False, True))
        assert [word for word in found[start:end] if word[0] != "["] == words[first:last]
        stretches.append((start, end))
    # the markers of two entities are nested or side by side as the entities are
    assert crossing(*stretches) == crossing(*spans)


def crossing(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether each of two stretches has a part that the other has not, and a part that it has."""
    (a, b), (c, d) = sorted([one, other])
    return a < c < b < d


@given(sentences())
def test_types_take_the_place_of_the_entities(given_one: tuple[list[str], Spans]) -> None:
    words, spans = given_one
    found = written(words, spans, "types")
    outside = [word for place, word in enumerate(words) if not any(a <= place < b for a, b in spans)]
    assert [word for word in found if word[0] != "["] == outside
    for name, (first, _) in zip(("[SUBJ-PER]", "[OBJ-LOC]"), spans, strict=True):
        before = found[: found.index(name)]
        assert [word for word in before if word[0] != "["] == [word for word in outside if word in words[:first]]
    assert len(found) == len(outside) + 2


@given(sentences())
def test_without_marking_words_stay_as_they_are(given_one: tuple[list[str], Spans]) -> None:
    words, spans = given_one
    found = parts(words, spans, KINDS, "none")
    assert [word for part in found for word in part.text.split()] == words
    entity = [word for part in found if part.entity for word in part.text.split()]
    assert entity == [word for place, word in enumerate(words) if any(a <= place < b for a, b in spans)]


def test_example_of_nested_entities() -> None:
    found = written(["the", "red", "cat", "sat"], ((0, 3), (1, 2)), "markers")
    assert found == ["[SUBJ]", "the", "[OBJ]", "red", "[/OBJ]", "cat", "[/SUBJ]", "sat"]


@given(sentences(40), st.sampled_from(MARKINGS), st.integers(6, 30), st.data())
def test_what_is_cut(given_one: tuple[list[str], Spans], marking: Marking, room: int, data: st.DataObject) -> None:
    """Against a brute-force reading of the rule, on words of one to three pieces with ids of their own."""
    words, spans = given_one
    names = marker_names(marking, [KINDS])
    ids = {name: number for number, name in enumerate(names)}
    sizes = {word: data.draw(st.integers(1, 3), label=word) for word in words}
    starts = np.cumsum([100, *sizes.values()])
    own = {word: np.arange(start, start + sizes[word]) for word, start in zip(words, starts, strict=False)}
    found = parts(words, spans, KINDS, marking)
    encoded = [
        np.concatenate([np.zeros(0, np.int32), *(own[word] for word in part.text.split())]).astype(np.int32)
        for part in found
        if not part.marker
    ]
    text_V = np.arange(400, dtype=np.int32)
    whole = placed(found, encoded, ids, text_V, 10_000).tolist()
    kept = placed(found, encoded, ids, text_V, room).tolist()
    assert len(kept) == min(room, len(whole))
    assert kept == [token for token in whole if token in set(kept)]  # all ids differ: a part of it, in order
    markers = [token for token in whole if token < 100]
    assert [token for token in kept if token < 100] == markers
    assert len(markers) == {"types": 2, "none": 0}.get(marking, 4)
    inside = {int(t) for place, word in enumerate(words) if any(a <= place < b for a, b in spans) for t in own[word]}
    if marking == "types":
        inside = set()
    if len(markers) + len(inside) <= room:
        assert inside <= set(kept)
        anchors = [place for place, token in enumerate(whole) if token < 100 or token in inside]
        near = {token: min(abs(place - a) for a in anchors) for place, token in enumerate(whole)}
        dropped = [near[token] for token in whole if token not in set(kept)]
        assert max((near[token] for token in kept), default=0) <= min(dropped, default=10_000)
    else:
        assert set(kept) <= inside | set(markers)
        for first, last in spans:
            assert {int(token) for word in words[first:last] for token in own[word]} & set(kept)


def test_unused_pieces_come_first() -> None:
    vocabulary = small_wordpiece(unused=3)
    unused = [vocabulary.pieces.index(f"[unused{n}]") for n in (1, 2, 3)]
    assert marker_ids(vocabulary, 2) == unused[:2]
    assert marker_ids(vocabulary, 5) == [*unused, vocabulary.size - 1, vocabulary.size - 2]


def test_the_last_ids_that_are_no_specials() -> None:
    vocabulary = WordPieceVocabulary(["a", "b", *SPECIAL_PIECES[:4], "c", "[MASK]"], lower_case=False)
    assert marker_ids(vocabulary, 3) == [6, 1, 0]
    with pytest.raises(ValueError, match="8 pieces, 3 of them for markers: expected at least 4"):
        marker_ids(vocabulary, 4)


def test_text_never_has_the_id_of_a_marker() -> None:
    vocabulary = small_wordpiece(unused=0)
    ids = marker_ids(vocabulary, 4)
    text_V = ids_of_text(vocabulary, ids)
    taken = [vocabulary.pieces[number].removeprefix("##") for number in ids]
    assert taken == ["9", "8", "7", "6"]
    encoded = vocabulary.encode(["a9876a", "red cat"])
    assert {*ids} & {*encoded[0].tolist()} and not {*ids} & {*text_V[encoded[0]].tolist()}
    assert text_V[encoded[1]].tolist() == encoded[1].tolist()
    names = marker_names("markers", [])
    found = parts(["a9876a", "red", "cat"], ((1, 2), (2, 3)), KINDS, "markers")
    own = vocabulary.encode([part.text for part in found if not part.marker])
    row = placed(found, own, dict(zip(names, ids, strict=True)), text_V, 100).tolist()
    assert all(row.count(number) == 1 for number in ids) and vocabulary.specials.unk in row


def test_names_do_not_depend_on_order_and_hold_the_untyped_ones() -> None:
    kinds = [("PER", "LOC"), ("ORG", "LOC"), ("PER", "PER")]
    for marking in MARKINGS:
        assert (
            marker_names(marking, kinds) == marker_names(marking, kinds[::-1]) == sorted(marker_names(marking, kinds))
        )
    assert marker_names("types", kinds) == [
        *("[OBJ-LOC]", "[OBJ-PER]", "[OBJ]", "[SUBJ-ORG]", "[SUBJ-PER]", "[SUBJ]"),
    ]
    assert marker_names("markers", kinds) == ["[/OBJ]", "[/SUBJ]", "[OBJ]", "[SUBJ]"]
    assert len(marker_names("typed_markers", kinds)) == 12 and marker_names("none", kinds) == []


def test_real_vocabularies(shared_data: pathlib.Path) -> None:
    cased = load_vocabulary(shared_data / "vocab" / "bert-base-cased-vocab.txt")
    names = [cased.pieces[number] for number in marker_ids(cased, 99)]
    assert names == [f"[unused{n}]" for n in range(1, 100)]
    pieces = load_vocabulary(shared_data / "vocab" / "sentencepiece-test.model")
    found = marker_ids(pieces, 40)
    assert not {*found} & {*pieces.specials} and len({*found}) == 40
    assert min(found) > pieces.size - 40 - 6
