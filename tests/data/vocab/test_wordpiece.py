"""WordPiece ids: those of `tokenizers` for whole texts, whether compiled loops find them or not."""

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.vocab import known_words, wordpiece
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.known_words import KnownWords
from spanjax.data.vocab.loading import WordPieceVocabulary

pytestmark = pytest.mark.unit

PIECES = [
    *SPECIAL_PIECES, *"abc.,-1#", "##a", "##b", "##c", "ab", "abc", "##ca", "##cab", "É", "é", "##é", "##1", "x" * 9, "##x", "x",
    "σ", "##σ", "ς", "##ς", "日", "##", "'", "##'",
]  # fmt: skip
LETTERS = "abcABC.,-1#xÉé日σςΣİ\t\x00\u0301\u200d\ufffd[]'\x7f"


def plain(lower_case: bool) -> tokenizers.Tokenizer:
    """BERT's tokenizer as the library has it."""
    ids = {piece: number for number, piece in enumerate(PIECES)}
    found = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=ids, unk_token="[UNK]"))
    found.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower_case)  # pyright: ignore
    found.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore
    return found


@pytest.fixture(params=[False, True], ids=["cased", "lower"], scope="module")
def both(request: pytest.FixtureRequest) -> Iterator[tuple[WordPieceVocabulary, tokenizers.Tokenizer]]:
    """A vocabulary whose compiled loops run for every text, and the library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wordpiece, "_MANY", 0)
        vocabulary = WordPieceVocabulary(PIECES, request.param)
        vocabulary.encode(["ab é"])  # the loops are compiled here: the seconds of a unit test are those of the test
        yield vocabulary, plain(request.param)


@given(
    texts=st.lists(st.text(st.sampled_from(LETTERS + "    ") | st.characters(exclude_categories=["Cs"])), max_size=5)
)
def test_ids_are_those_of_whole_texts(
    both: tuple[WordPieceVocabulary, tokenizers.Tokenizer], texts: Sequence[str]
) -> None:
    """Later examples have known words and new ones."""
    vocabulary, library = both
    found = vocabulary.encode(texts)
    assert [each.tolist() for each in found] == [library.encode(text).ids for text in texts]
    assert all(each.dtype == np.int32 for each in found)


@pytest.mark.parametrize(
    "word", ["ab" * 49 + "xx", "ab" * 50 + "x", "X" * 27, "x" * 101, "é" * 100, "é" * 101, "aé" * 50]
)
def test_long_words(both: tuple[WordPieceVocabulary, tokenizers.Tokenizer], word: str) -> None:
    """A word of more than 100 characters is unknown."""
    vocabulary, library = both
    assert vocabulary.encode([f"{word}, {word}"])[0].tolist() == library.encode(f"{word}, {word}").ids


def test_a_full_table_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are encoded some at a time, long ones are cut at blanks, and only one without blanks enlarges the table."""
    monkeypatch.setattr(known_words, "_WORDS", 64)
    monkeypatch.setattr(known_words, "TEXT", 50)
    library, ids = plain(lower_case=False), {piece: number for number, piece in enumerate(PIECES)}

    def encode(words: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in library.encode_batch(list(words))]

    words, draw = KnownWords(ids, PIECES.index("[UNK]"), 100, False, encode), np.random.default_rng(0)
    sizes = []
    for number in range(40):
        texts = [" ".join("".join(draw.choice([*LETTERS], 5)) for _ in range(draw.integers(0, 30))) for _ in range(5)]
        texts[4:] = [",".join(f"é{each}" for each in range(500))] if number == 20 else texts[4:]
        assert [each.tolist() for each in words(texts)] == [library.encode(text).ids for text in texts]
        sizes.append(words.known)
    assert max(sizes[:20] + sizes[21:]) <= 64 and min(np.diff(sizes[:20])) < 0 and sizes[20] >= 500


def test_words_of_one_hash_are_told_apart() -> None:
    """With a hash that is 0 for every word, each look-up compares characters."""
    from spanjax.data.vocab import wordpiece_kernels as kernels

    table = known_words.new_table(8, 64)
    chars = known_words.codes_of("abcabd")
    zero = np.uint64(0)
    for start in (0, 3):
        kernels.add(table, kernels.find(table, chars, start, start + 3, zero), chars, start, start + 3, zero)
    found = [int(table.slot_S[kernels.find(table, chars, start, end, zero)]) for start, end in ((0, 3), (3, 6), (0, 2))]
    assert found == [0, 1, -1]


def test_an_interrupted_call_leaves_no_word_without_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    library, stops = plain(lower_case=False), [True]

    def encode(words: Sequence[str]) -> list[list[int]]:
        if stops:
            raise KeyboardInterrupt
        return [each.ids for each in library.encode_batch(list(words))]

    ids = {piece: number for number, piece in enumerate(PIECES)}
    words = KnownWords(ids, PIECES.index("[UNK]"), 100, False, encode)
    with pytest.raises(KeyboardInterrupt):
        words(["é ab", "a"])
    stops.clear()
    assert [each.tolist() for each in words(["é ab", "a"])] == [library.encode(text).ids for text in ("é ab", "a")]
    assert words([]) == [] and [len(each) for each in words(["", "b  b"])] == [0, 2]


def test_without_numba_the_library_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spanjax.data.vocab.known_words", None)
    text = "ab É日, " * 20_000
    assert WordPieceVocabulary(PIECES).encode([text])[0].tolist() == plain(lower_case=False).encode(text).ids
