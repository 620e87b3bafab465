"""At which character of the text each piece begins, checked against what the pieces themselves say."""

import functools
import unicodedata

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.loading import ByteBpeVocabulary, SentencePieceVocabulary, Vocabulary, WordPieceVocabulary
from spanjax.data.vocab.training import train_byte_bpe, train_sentencepiece, train_wordpiece
from tests.made import made_sentences

KINDS = ["cased", "uncased", "sentencepiece", "byte-bpe"]
# Latin with and without accents, combining marks, Greek, Cyrillic, Chinese, Hangul, Arabic, Devanagari, Thai, letters that
# normalisation takes apart, emoji, punctuation, and blanks.
LETTERS = "abetzABETZéïñÅÉßİıﬁ½…㍿\u0301\u0327\u0308ΣσςάЖйЙ東京𠀀한국어سلअनमस्तेไทยก็😀👩🇫,.!-'\"()[]<>~$   "
UNSEEN = "QXqx7ØЂ漢🜁"  # unknown to the vocabularies made here
TEXTS = strategies.text(strategies.sampled_from(LETTERS + UNSEEN), max_size=60).map(clean)


@functools.cache
def vocabulary(kind: str) -> Vocabulary:
    """Small ones that know the letters but not the unseen ones."""
    seen = LETTERS.replace(" ", "")
    texts = [*made_sentences(300), *[" ".join(seen[n:] + seen[:n]) for n in range(3)], *[seen] * 2, "naïve Ångström"]
    texts = ["".join(letter for letter in text if letter not in UNSEEN) for text in texts]
    if kind == "sentencepiece":
        return SentencePieceVocabulary(train_sentencepiece(texts, 200, character_coverage=1.0))
    if kind == "byte-bpe":
        return ByteBpeVocabulary(train_byte_bpe(texts, 400))
    return WordPieceVocabulary(train_wordpiece(texts, 400, lower_case=kind == "uncased"), kind == "uncased")


def encoded(kind: str, text: str) -> tuple[list[str], list[int]]:
    """Pieces and starts, after what has to hold for every kind."""
    tokens = vocabulary(kind)
    [(ids, starts)], [expected] = tokens.encode_with_starts([text]), tokens.encode([text])
    assert ids.dtype == starts.dtype == np.int32 and len(ids) == len(starts)
    np.testing.assert_array_equal(ids, expected)
    assert (np.diff(starts) >= 0).all() and ((starts >= 0) & (starts < len(text))).all()
    if text.strip():
        assert text.endswith(" ") or not any(text[start].isspace() for start in starts.tolist())
    return [tokens.pieces[i] for i in ids.tolist()], starts.tolist()


@pytest.mark.parametrize("kind", ["cased", "uncased"])
@hypothesis.given(TEXTS)
@hypothesis.settings(deadline=None, max_examples=200)
def test_wordpiece_begins_with_the_letter_at_its_start(kind: str, text: str) -> None:
    pieces, starts = encoded(kind, text)
    for piece, start in zip(pieces, starts, strict=True):
        letter = text[start]
        plain = unicodedata.normalize("NFD", letter.lower()) if kind == "uncased" else letter
        if piece != "[UNK]":
            assert piece.removeprefix("##")[0] in plain, (piece, text[start:])
        elif start:
            assert not (text[start - 1].isalnum() and letter.isascii() and text[start - 1].isascii())
    assert len(set(starts)) == len(starts) or kind == "uncased"


@hypothesis.given(TEXTS)
@hypothesis.settings(deadline=None, max_examples=200)
def test_sentencepiece_begins_with_the_letter_at_its_start(text: str) -> None:
    _, starts = encoded("sentencepiece", text)
    tokens = vocabulary("sentencepiece")
    assert isinstance(tokens, SentencePieceVocabulary)
    written = tokens.processor.encode(text, out_type=str)
    for piece, start in zip(written, starts, strict=True):
        letter = unicodedata.normalize("NFKD", piece.removeprefix("\u2581"))[:1]
        assert letter in unicodedata.normalize("NFKD", text[start : start + 4]), (piece, text[start:])
    assert not text.strip() or starts[0] == len(text) - len(text.lstrip())


@hypothesis.given(TEXTS)
@hypothesis.settings(deadline=None, max_examples=200)
def test_byte_pieces_begin_in_the_character_of_their_first_byte(text: str) -> None:
    pieces, starts = encoded("byte-bpe", text)
    tokens = vocabulary("byte-bpe")
    blank = len(text) > 0 and text[0] != " "
    characters = [place for place, letter in enumerate(text) for _ in letter.encode()]
    end = -1 if blank else 0  # in bytes of the text
    for piece, start in zip(pieces, starts, strict=True):
        first = max(end, 0)
        end += len(piece)  # a byte is a letter of the piece
        expected = characters[first]
        while text[expected] == " " and expected < len(text) - 1:
            expected += 1
        assert start == expected, (piece, text)
    assert end == (len(characters) if text else 0) and tokens.decode(tokens.encode([text])[0]).strip() == text.strip()


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("uncased", "na\u00efve NAI\u0308VE", [0, 6]),  # accents that are one character and two
        ("uncased", "\u0301abe a", None),  # a mark without a letter is removed
        ("cased", "東京a", [0, 1, 2]),
        ("cased", "Q7Xa a", [0, 5]),  # an unknown word is one piece
        ("byte-bpe", "😀a", [0, 0, 0, 0, 0, 1]),  # the blank before it, and four bytes
    ],
)
def test_starts_of_hard_words(kind: str, text: str, expected: list[int] | None) -> None:
    pieces, starts = encoded(kind, text)
    if kind == "uncased" and expected:  # of the pieces that begin words
        starts = [start for piece, start in zip(pieces, starts, strict=True) if not piece.startswith("##")]
    assert (starts[0] == 1) if expected is None else starts == expected, (pieces, starts)
