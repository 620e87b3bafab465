"""Training vocabularies: the same for the same text in every process, complete alphabets, honest errors."""

import hashlib
import random
import subprocess
import sys

import pytest

from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import ByteBpeVocabulary, SentencePieceVocabulary, WordPieceVocabulary
from spanjax.data.vocab.training import (
    sample_sentences,
    train_byte_bpe,
    train_sentencepiece,
    train_wordpiece,
    unrepeated_parts,
)
from tests.made import made_sentences

TEXTS = [*made_sentences(400), *["Ünïted Σίσυφος 東京 ,,, x-y [MASK] <mask>"] * 3]
DIGEST = """
import hashlib
import random
from spanjax.data.vocab.training import train_byte_bpe, train_wordpiece
from tests.data.vocab.test_training import TEXTS
pieces = "\\n".join(train_wordpiece(TEXTS, 300) + train_wordpiece(TEXTS, 300, lower_case=True))
print(hashlib.sha256(pieces.encode() + train_byte_bpe(TEXTS, 500)).hexdigest())
"""


def test_other_processes_train_the_same() -> None:
    pieces = "\n".join(train_wordpiece(TEXTS, 300) + train_wordpiece(TEXTS, 300, lower_case=True))
    expected = hashlib.sha256(pieces.encode() + train_byte_bpe(TEXTS, 500)).hexdigest()
    for _ in range(2):  # the library's hashing is seeded anew in every process
        found = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True).stdout
        assert found.strip() == expected


@pytest.mark.parametrize("lower_case", [False, True])
def test_wordpiece_knows_every_letter_anywhere(lower_case: bool) -> None:
    pieces = train_wordpiece(TEXTS, 300, lower_case=lower_case)
    assert len(pieces) == 300 and pieces[:5] == list(SPECIAL_PIECES)
    vocabulary = WordPieceVocabulary(pieces, lower_case)
    assert not any(vocabulary.specials.unk in ids for ids in vocabulary.encode([*TEXTS, "Dσx tΣ東t京"]))
    assert ("Ü" in pieces) is not lower_case and ("##東" in pieces, "##," in pieces, "##x" in pieces) == (
        False,
        False,
        True,
    )
    assert any(len(piece.removeprefix("##")) > 4 for piece in pieces)


def test_coverage_leaves_rare_letters_out() -> None:
    pieces = train_wordpiece(TEXTS, 250, character_coverage=0.995)
    assert "東" not in pieces and "e" in pieces
    full = SentencePieceVocabulary(train_sentencepiece(TEXTS, 200, character_coverage=1.0))
    rare = SentencePieceVocabulary(train_sentencepiece(TEXTS, 170, character_coverage=0.98))
    assert full.specials.unk not in full.encode(["東京"])[0] and rare.specials.unk in rare.encode(["東京"])[0]
    fallback = SentencePieceVocabulary(train_sentencepiece(TEXTS, 400, character_coverage=0.98, byte_fallback=True))
    assert fallback.specials.unk not in fallback.encode(["東京"])[0]
    [(_, starts)] = fallback.encode_with_starts(["東京"])
    assert starts.tolist() == [0] * 4 + [1] * 3  # the blank and three bytes, three bytes


def test_default_settings_do_not_change_a_sentencepiece_model() -> None:
    plain = train_sentencepiece(TEXTS, 150)
    assert plain == train_sentencepiece(TEXTS, 150, character_coverage=0.9995, byte_fallback=False)
    assert plain != train_sentencepiece(TEXTS, 150, split_by_whitespace=False)


def test_byte_bpe_knows_everything() -> None:
    vocabulary = ByteBpeVocabulary(train_byte_bpe(TEXTS, 500))
    assert vocabulary.size == 500 and vocabulary.pieces[:5] == ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    every = ["".join(chr(code) for code in range(first, first + 64)) for first in range(0x20, 0x3000, 64)]
    assert {*vocabulary.specials}.isdisjoint(number for ids in vocabulary.encode(every) for number in ids.tolist())


def test_errors_say_what_size_is_possible() -> None:
    with pytest.raises(ValueError, match=r"of 20 pieces from 403 sentences: \d+ characters .* need \d+; ask for more"):
        train_wordpiece(TEXTS, 20)
    with pytest.raises(ValueError, match=r"of 50000 pieces .*: the text yields only \d+; ask for"):
        train_wordpiece(TEXTS, 50_000)
    with pytest.raises(ValueError, match=r"yields only \d+"):
        train_byte_bpe(TEXTS, 50_000)
    with pytest.raises(ValueError, match="260 pieces.*need 261"):
        train_byte_bpe(TEXTS, 260)
    for train in (train_wordpiece, train_byte_bpe, train_sentencepiece):
        with pytest.raises(ValueError, match="no text"):
            train([], 300)


def test_sample_is_uniform_and_repeatable() -> None:
    numbers = [str(number) for number in range(1000)]
    assert sample_sentences(numbers, 0, 1000) == numbers
    sample = sample_sentences(numbers, 3, 100)
    assert sample == sample_sentences(iter(numbers), 3, 100) != sample_sentences(numbers, 4, 100)
    assert len({*sample}) == 100 and 350 < sum(map(int, sample)) / 100 < 650


def test_a_page_that_occurs_twice_does_not_keep_sentencepiece_busy() -> None:
    """sentencepiece 0.2.2 did not finish in 40 s on whole repeated pages; cut, thinned and shuffled they take a second."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(800)]
    pages = [" ".join(draw.choices(words, k=1500)) for _ in range(3)]
    sentences = [" ".join(draw.choices(words, k=9)) for _ in range(300)]
    parts = unrepeated_parts([*sentences, *pages * 3], 0)
    assert max(map(len, parts)) <= 1000 and sorted("".join(parts)) == sorted("".join([*sentences, *pages]))
    assert parts == unrepeated_parts([*sentences, *pages * 3], 0) != sorted(parts)
    assert unrepeated_parts(["a"] * 3, 0) == ["a"] * 3, "short repeats count"
    assert len(SentencePieceVocabulary(train_sentencepiece([*sentences, *pages * 3], 300)).pieces) == 300
