"""Portions: every document in one, in order, cut by what was read so far; and what a portion becomes."""

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.feed.rows import Rows, open_rows
from spanjax.data.shards.packing import SENTENCE_START, layer_tags
from spanjax.data.shards.portions import Folders, Occurred, Portion, PortionRows, RowSettings, cut, portion_characters
from spanjax.data.shards.shards import finish_rows
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.documents import Document
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary

LETTERS = "abcdefgh"
VOCABULARY = WordPieceVocabulary([*SPECIAL_PIECES, *LETTERS, *("##" + letter for letter in LETTERS), "."])
CLS, SEP = VOCABULARY.specials.cls, VOCABULARY.specials.sep


def document(text: str, **layers: tuple[tuple[int, int], ...]) -> Document:
    return Document(text, "", layers)


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 40))
def test_cutting_keeps_order_and_sizes(sizes: list[int], size: int) -> None:
    documents = [document("x" * n) for n in sizes]
    found = list(cut(iter(documents), size))
    assert [each for some in found for each in some] == documents and all(found)
    characters = [sum(len(each.text) for each in some) for some in found]
    assert all(n >= size for n in characters[:-1]) and all(n < 1.5 * size + 30 for n in characters)
    assert not characters[1:] or characters[-1] >= size // 2


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 40), st.data())
def test_what_comes_later_does_not_move_earlier_cuts(sizes: list[int], size: int, data: st.DataObject) -> None:
    documents = [document("x" * n) for n in sizes]
    whole = list(cut(documents, size))
    part = list(cut(documents[: data.draw(st.integers(0, len(sizes)))], size))
    assert part[:-1] == whole[: len(part) - 1] if part else True  # a reader that fails has given these


def test_the_size_of_portions_follows_from_the_size_of_the_input() -> None:
    sizes = [portion_characters([5, total - 5]) for total in (5, 3 * 10**6, 6 * 10**6, 10**9, 16 * 2**30, 10**12)]
    assert sizes == [1_000_000, 1_000_000, 2_000_000, 4_000_000, 2**25, 64_000_000]
    assert portion_characters([5, None]) == 4_000_000


def test_the_first_of_equal_documents_stays() -> None:
    occurred = Occurred()
    assert occurred.repeated([document("a"), document("b"), document("a")]) == {2}
    assert occurred.repeated([document("c"), document("b")]) == {1}


def made(
    folder: pathlib.Path, settings: RowSettings, *documents: Document, repeated: tuple[int, ...] = ()
) -> dict[str, Rows]:
    """The rows of one portion, by split; a split without text is left out."""
    places = Folders(folder / "rows", folder / "figures")
    for split in settings.splits:
        (places.rows / split).mkdir(parents=True)
        (places.figures / split).mkdir(parents=True)
    portion = Portion(0, 0, list(documents), frozenset(repeated))
    assert not places.has(settings.splits, portion.name)
    told = PortionRows(settings, VOCABULARY, places).write(portion)
    assert places.has(settings.splits, portion.name)
    found = {}
    for split in settings.splits:
        rows, figures = places.rows / split, places.figures / split
        finish_rows(rows, figures, VOCABULARY, settings.length, max_blocks=9, source="", tags=settings.tags)
        found[split] = open_rows(rows)
    assert told.documents == sum(rows.manifest.documents for rows in found.values())
    assert told.tokens == sum(rows.manifest.text_tokens for rows in found.values())
    return found


def blocks(rows: Rows) -> list[tuple[str, list[int]]]:
    """Text and sentence starts of every block, sorted."""
    batch = rows.fetch(np.arange(len(rows)))
    found = []
    for tokens, segments, flags in zip(batch.tokens_BL, batch.segments_BL, batch.flags_BL, strict=True):
        for number in range(1, segments.max() + 1):
            inside = (segments == number) & (tokens != CLS) & (tokens != SEP)
            pieces = "".join(VOCABULARY.pieces[token].replace("##", "") for token in tokens[inside])
            found.append((pieces, np.flatnonzero(flags[inside] & SENTENCE_START).tolist()))
    return sorted(found)


def test_sentences_begin_where_the_flag_says(tmp_path: pathlib.Path) -> None:
    settings = RowSettings(10, 4, Cleaning(), ("train",))
    long = "a " * 18
    (rows,) = made(
        tmp_path,
        settings,
        document("a b.\n\ufffd\nc d.\ne f.\n\ufffd"),
        document("\n \n"),
        document(f"b.\n{long}\ng\nh."),
    ).values()
    assert blocks(rows) == [
        ("a" * 8, [0]),
        ("a" * 8, [0]),
        ("aagh.", [0, 2, 3]),  # what is left of the cut sentence begins a block
        ("ab.cd.", [0, 3]),
        ("b.", [0]),
        ("ef.", [0]),
    ]  # fmt: skip
    assert rows.manifest.sentences == 7 and rows.manifest.documents == 3


def test_rows_do_not_depend_on_how_many_documents_are_tokenized_at_a_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    many = [document(" ".join(draw.choice(list(LETTERS), n)) + ".") for n in draw.integers(1, 60, 40)]
    settings = RowSettings(24, 4, Cleaning(), ("train", "validation"), holdout=0.3)
    one = made(tmp_path / "1", settings, *many)
    monkeypatch.setattr("spanjax.data.shards.portions._CHUNK_CHARACTERS", 7)
    two = made(tmp_path / "2", settings, *many)
    for split, rows in one.items():
        assert rows.manifest.fingerprint == two[split].manifest.fingerprint
        np.testing.assert_array_equal(rows.lengths_N, two[split].lengths_N)
    assert 0 < one["validation"].manifest.documents < one["train"].manifest.documents


def test_repeated_documents_are_left_out_and_counted(tmp_path: pathlib.Path) -> None:
    settings = RowSettings(16, 4, Cleaning(), ("train",))
    (rows,) = made(tmp_path, settings, document("a b."), document("a b."), document("c."), repeated=(1,)).values()
    assert rows.manifest.skipped == {"duplicate documents": 1} and rows.manifest.documents == 2
    assert blocks(rows) == [("ab.", [0]), ("c.", [0])]


def test_documents_of_blocks_are_numbered_in_their_split(tmp_path: pathlib.Path) -> None:
    settings = RowSettings(8, 1, Cleaning(), ("train",))
    (rows,) = made(tmp_path, settings, document("a.\n" * 6), document(""), document("b.")).values()
    ones = np.ones(len(rows), np.int64)
    assert rows.block_documents(np.arange(len(rows)), ones).tolist() == [0, 0, 2]


def test_tags_lie_on_whole_words(tmp_path: pathlib.Path) -> None:
    settings = RowSettings(16, 4, Cleaning(), ("train",), tags=("people", "places"), annotator="given")
    text = "abc de  fg a. b\nc d"
    spans = {"places": ((1, 2), (4, 9)), "people": ((7, 11), (4, 6), (13, 17)), "others": ((0, 5),)}
    (rows,) = made(tmp_path, settings, document(text, **spans)).values()
    batch = rows.fetch(np.array([0]))
    pieces = [VOCABULARY.pieces[token] for token in batch.tokens_BL[0, 1:13]]
    assert pieces == ["a", "##b", "##c", "d", "##e", "f", "##g", "a", ".", "b", "c", "d"]
    assert layer_tags(batch.flags_BL, 0)[0, 1:13].tolist() == [0, 0, 0, 1, 2, 1, 2, 0, 0, 0, 0, 0]
    assert layer_tags(batch.flags_BL, 1)[0, 1:13].tolist() == [1, 2, 2, 1, 2, 2, 2, 0, 0, 0, 0, 0]
    assert rows.manifest.tags == ("people", "places")
    assert rows.manifest.settings["tagged_spans"] == {"people": 2, "places": 2}
    assert rows.manifest.skipped == {"spans cut by a sentence or block": 1}


def test_a_sentence_begins_a_word_whatever_the_vocabulary_says(tmp_path: pathlib.Path) -> None:
    unmarked = WordPieceVocabulary(VOCABULARY.pieces)
    starts_V = unmarked.word_starts.copy()
    starts_V[unmarked.pieces.index("b")] = False  # as with a SentencePiece model that puts no blank before a text
    vars(unmarked)["word_starts"] = starts_V
    settings = RowSettings(16, 4, Cleaning(), ("train",), tags=("people",), annotator="given")
    places = Folders(tmp_path / "rows", tmp_path / "figures")
    for folder in places:
        (folder / "train").mkdir(parents=True)
    PortionRows(settings, unmarked, places).write(Portion(0, 0, [document("a b.\nb c", people=((5, 6),))]))
    finish_rows(
        places.rows / "train", places.figures / "train", unmarked, 16, max_blocks=4, source="", tags=("people",)
    )
    batch = open_rows(places.rows / "train").fetch(np.array([0]))
    assert layer_tags(batch.flags_BL, 0)[0, 1:6].tolist() == [0, 0, 0, 1, 0]
    assert batch.word_starts_BL[0, 1:6].tolist() == [True, False, True, True, True]
