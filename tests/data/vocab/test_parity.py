"""Differences to the plain libraries are found and explained, and a vocabulary's fit is counted right."""

import pathlib
from typing import Any

import numpy as np
import pytest
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.vocab import parity
from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.fertility import measure
from spanjax.data.vocab.loading import ByteBpeVocabulary, SentencePieceVocabulary, Vocabulary, WordPieceVocabulary
from spanjax.data.vocab.parity import OTHER, character_kind, compare, reference
from spanjax.data.vocab.training import train_byte_bpe, train_sentencepiece
from tests.made import made_sentences

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDPIECE = WordPieceVocabulary([*SPECIAL_PIECES, *LETTERS, *("##" + each for each in LETTERS), "[", "]", "Ü", "fi"])
SENTENCES = made_sentences(300)


def kinds(
    vocabulary: Vocabulary, text: str, normalization: Any = "none", path: str = "x"
) -> list[tuple[str, ...] | None]:
    found = compare(reference(vocabulary, path), [text], Cleaning(normalization))
    return [each and each.kinds for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a plain line", None),
        ("a [MASK] b", ("literal special",)),
        ("nul\x00only [SEP]", ("control character U+0000", "literal special")),
        (
            "nul\x00only zero\u200bwidth no\u00a0break",
            ("control character U+0000",),
        ),  # BERT's way with the others is ours
        ("lone \ud800 one", ("lone surrogate removed",)),
    ],
)
def test_kinds_for_wordpiece(text: str, expected: tuple[str, ...] | None) -> None:
    assert kinds(WORDPIECE, text) == [expected]


@pytest.mark.parametrize("kind", ["sentencepiece", "byte-bpe"])
def test_kinds_of_removed_and_replaced_characters(kind: str) -> None:
    vocabulary: Vocabulary = SentencePieceVocabulary(train_sentencepiece(SENTENCES, 120))
    if kind == "byte-bpe":
        vocabulary = ByteBpeVocabulary(train_byte_bpe(SENTENCES, 400))
    removed = "U+200B zero width space removed"
    assert kinds(vocabulary, "the har\u200bbour [MASK]. The tower") == [(removed,), None]
    assert kinds(vocabulary, "the\u2028harbour <b>") == [
        None if kind == "sentencepiece" else ("U+2028 line separator",)
    ]
    assert kinds(vocabulary, "the e\u0301", "nfc") == [None if kind == "sentencepiece" else ("Unicode normalisation",)]
    if kind == "byte-bpe":
        both = kinds(vocabulary, "the har\u200bbour\u00a0<mask> \ue000", "none")
        assert both == [(removed, "U+00A0 no-break space", "private-use character removed", "literal special")]
        assert kinds(vocabulary, "e\u0301 <s>", "nfc") == [("literal special", "Unicode normalisation")]


def test_normalisation_and_casing_of_another_tokenizer_json(tmp_path: pathlib.Path) -> None:
    assert kinds(WORDPIECE, "\ufb01 a", "nfkc") == [("Unicode normalisation",)]
    ids = {piece: number for number, piece in enumerate(WORDPIECE.pieces)}
    (tmp_path / "tokenizer.json").write_text(BertWordPieceTokenizer(ids, lowercase=True).to_str())
    assert kinds(WORDPIECE, "\u00dc a", path=str(tmp_path)) == [("lower-casing",)]
    assert kinds(WORDPIECE, "u a", path=str(tmp_path)) == [None]


def test_what_nothing_explains_is_told_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = WordPieceVocabulary.encode
    monkeypatch.setattr(WordPieceVocabulary, "encode", lambda self, texts: [ids[:-1] for ids in encode(self, texts)])
    [found] = compare(reference(WORDPIECE, "x"), ["ab [MASK]"], Cleaning())
    assert found is not None and found.kinds == (OTHER,)
    assert (found.ours, found.theirs) == ("a ##b [ [UNK]", "a ##b [MASK]") and found.text == "ab [MASK]"


def test_every_sentence_is_compared_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "_TOGETHER", 3)
    found = list(compare(reference(WORDPIECE, "x"), ["a\nb [SEP]\nc\nd\ne", "f [PAD]", ""], Cleaning()))
    assert [each is None for each in found] == [True, False, True, True, True, False]


def test_names_of_characters() -> None:
    assert character_kind("\u00a0") == "U+00A0 no-break space" and character_kind("\x07") == "control character U+0007"
    assert character_kind("\u00ad") == "U+00AD soft hyphen removed"


def test_fit_is_counted() -> None:
    vocabulary = WordPieceVocabulary([*SPECIAL_PIECES, "the", "har", "##bour", ",", "é"])
    figures = measure(vocabulary, ["the harbour, the tower", "zé the zé"])
    assert (figures.sentences, figures.words, figures.pieces, figures.characters) == (2, 7, 9, 26)
    assert (figures.whole_words, figures.unknown_words, figures.unknown_pieces) == (3, 3, 3)
    assert figures.unknown == {"zé": 2, "tower": 1}
    assert figures.pieces_per_word == pytest.approx(9 / 7) and figures.unknown_rate == pytest.approx(3 / 9)
    assert figures.unknown_lines(1) == ["       2  zé"] and "42.9 %" in "\n".join(figures.lines())


def test_unknown_characters_of_sentencepiece_are_named() -> None:
    vocabulary = SentencePieceVocabulary(train_sentencepiece(SENTENCES, 120))
    figures = measure(vocabulary, ["the 東京 harbour", "東 boat"])
    assert figures.unknown == {"東京": 1, "東": 1} and "東  U+6771" in "\n".join(figures.unknown_lines())
    digits = SentencePieceVocabulary(train_sentencepiece([*SENTENCES, *["1 2 12 21 1 2"] * 30], 120))
    assert measure(digits, ["1 \u00bd 2"]).unknown == {"\u00bd": 1}  # which is read as 1, an unknown slash and 2
    assert figures.unknown_words == 2 and not np.any(vocabulary.encode(["the harbour"])[0] == vocabulary.specials.unk)
