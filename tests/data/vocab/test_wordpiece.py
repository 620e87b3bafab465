"""WordPiece ids: parts of text are encoded once and joined, as if each text were encoded on its own."""

from typing import Any

import numpy as np
import pytest
import tokenizers

from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary

pytestmark = pytest.mark.unit


def test_ids_are_those_of_whole_texts() -> None:
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abc.,É-"), draw.integers(1, 6))) for _ in range(80)]
    pieces = [*SPECIAL_PIECES, *"abc.,-", "##a", "##b", "##c", "ab", "##ca", "É"]
    vocabulary, ids = WordPieceVocabulary(pieces), {piece: number for number, piece in enumerate(pieces)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=ids, unk_token="[UNK]"))
    plain.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)  # pyright: ignore
    plain.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore
    for _ in range(6):  # the later calls have known parts and new ones
        texts = [" ".join(draw.choice(words, draw.integers(0, 9))) for _ in range(30)]
        found = vocabulary.encode(texts)
        assert [each.tolist() for each in found] == [plain.encode(text).ids for text in texts]
        assert all(each.dtype == np.int32 for each in found)


def test_an_interrupted_call_leaves_no_part_without_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordPieceVocabulary([*SPECIAL_PIECES, "a", "b", "##b"])
    expected = [each.tolist() for each in WordPieceVocabulary(words.pieces).encode(["a ab", "b"])]

    def stop(_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(words, "_encode_parts", stop)
        words.encode(["a ab"])
    assert [each.tolist() for each in words.encode(["a ab", "b"])] == expected
    assert words.encode([]) == [] and [len(each) for each in words.encode(["", "b  b"])] == [0, 2]
