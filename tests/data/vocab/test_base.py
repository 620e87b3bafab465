"""Words of scripts without blanks: every piece begins one, in every kind of vocabulary."""

import pytest

from spanjax.data.vocab.base import SPECIAL_PIECES, begins_unspaced, bytes_begin_unspaced
from spanjax.data.vocab.loading import ByteBpeVocabulary, SentencePieceVocabulary, WordPieceVocabulary
from spanjax.data.vocab.training import train_byte_bpe, train_sentencepiece

pytestmark = pytest.mark.unit

CHINESE = [
    "老船长在港口修理旧钟。",
    "年轻的画家在桥边画了一条船。",
    "安静的图书管理员记得三本厚书。",
    "邻居在市场上卖热面包。",
]
ENGLISH = ["the sailor mends the old clocks", "an old painter painted the boat", "three boats carry heavy books"]


@pytest.mark.parametrize("letter", ["中", "あ", "ア", "ก", "ກ", "ម", "က", "。", "Ａ", "𠀀"])
def test_scripts_without_blanks(letter: str) -> None:
    assert begins_unspaced(letter + "x") and bytes_begin_unspaced(letter.encode())


@pytest.mark.parametrize("letter", ["a", "é", "Ж", "ع", "א", "ह", "한", ".", "1", "่", ""])
def test_scripts_with_blanks_and_combining_marks(letter: str) -> None:
    assert not begins_unspaced(letter) and not bytes_begin_unspaced(letter.encode())


def test_part_of_a_character() -> None:
    assert bytes_begin_unspaced("中".encode()[:1]) and not bytes_begin_unspaced("中".encode()[1:])
    assert not bytes_begin_unspaced("한".encode()[:1])


def test_every_kind_of_vocabulary() -> None:
    models = {
        "sentencepiece": SentencePieceVocabulary(train_sentencepiece(CHINESE + ENGLISH, 74, character_coverage=1.0)),
        "byte-bpe": ByteBpeVocabulary(train_byte_bpe(CHINESE + ENGLISH, 295)),
        "wordpiece": WordPieceVocabulary([*SPECIAL_PIECES, "ก", "##ก", "an", "##other", "中"]),
    }
    for kind in ("sentencepiece", "byte-bpe"):
        vocabulary = models[kind]
        for ids in vocabulary.encode(["图书管理员在港口"]):
            starts = vocabulary.word_starts[ids]
            assert starts.mean() > 0.3, kind  # of byte pieces the second and third of a character begin nothing
        (ids,) = vocabulary.encode(["the old"])
        assert vocabulary.word_starts[ids].sum() == 2 or kind == "byte-bpe"
    assert models["wordpiece"].word_starts.tolist() == [True] * 5 + [True, True, True, False, True]
    (ids,) = models["sentencepiece"].encode(["图书管理员在港口"])
    assert models["sentencepiece"].word_starts[ids].all()
