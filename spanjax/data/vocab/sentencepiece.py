"""SentencePiece models (Kudo and Richardson, 2018), unigram or BPE, read from their .model files."""

import json
import re
from collections.abc import Sequence
from typing import final

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_pb2

from spanjax.data.vocab.base import (
    SETTINGS_FILE,
    SPECIAL_PIECES,
    Specials,
    Vocabulary,
    after_blanks,
    begins_unspaced,
    bytes_begin_unspaced,
)

SENTENCEPIECE_FILE = "sentencepiece.model"
XLNET_NAMES = {"[PAD]": "<pad>", "[CLS]": "<cls>", "[SEP]": "<sep>", "[MASK]": "<mask>"}
WORD_MARK = "\u2581"  # how SentencePiece writes the space before a word


@final
class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model. Specials that it lacks, under the names of BERT and of XLNet, get the ids after its own, so that the
    model file stays unchanged."""

    kind = "sentencepiece"
    casing = "model"  # the model's own normalisation decides

    def __init__(self, model: bytes, name: str = SENTENCEPIECE_FILE):
        self.model = model
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(
                f"{name}: not a SentencePiece model ({error}); give the .model file that spm_train wrote"
            ) from None
        if not (own := self.processor.get_piece_size()):
            raise ValueError(f"{name}: a SentencePiece model without pieces; give the .model file that spm_train wrote")
        pieces = [self.processor.id_to_piece(number) for number in range(own)]
        found = {"[UNK]": self.processor.unk_id(), "[PAD]": self.processor.pad_id()}
        for piece in SPECIAL_PIECES:
            for name in (piece, XLNET_NAMES.get(piece, piece)):
                number = self.processor.piece_to_id(name)
                # A piece that literal text can produce (user-defined, say) is no special: the special gets an id.
                if found.get(piece, -1) < 0 and pieces[number] == name and self.processor.is_control(number):
                    found[piece] = number
            if found.get(piece, -1) < 0:
                found[piece] = len(pieces)
                pieces.append(piece)
        self.pieces = tuple(pieces)
        self.model_size = own
        self.specials = Specials(*(found[piece] for piece in SPECIAL_PIECES))

    def _begins_word(self, piece: str) -> bool:
        if re.fullmatch("<0x[0-9A-F]{2}>", piece):  # a byte of a character that has no piece
            return bytes_begin_unspaced(bytes([int(piece[3:5], 16)]))
        return piece.startswith(WORD_MARK) or begins_unspaced(piece)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implements `Vocabulary.encode`."""
        return [np.array(ids, dtype=np.int32) for ids in self.processor.encode(list(texts), num_threads=1)]

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Implements `Vocabulary.encode_with_starts`."""
        return [self._with_starts(text) for text in texts]

    def _with_starts(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        found = sentencepiece_pb2.SentencePieceText.FromString(  # pyright: ignore[reportAttributeAccessIssue]
            self.processor.encode(text, out_type="serialized_proto")
        ).pieces
        place = {0: 0}  # index of a character by that of its first byte
        end = 0
        for number, character in enumerate(text, start=1):
            end += len(character.encode())
            place[end] = number
        starts = [after_blanks(text, place[piece.begin]) for piece in found]
        return np.array([piece.id for piece in found], np.int32), np.array(starts, np.int32)

    def _text(self, ids: list[int]) -> str:
        return self.processor.decode(ids)

    def files(self) -> dict[str, bytes]:
        """Implements `Vocabulary.files`."""
        return {SETTINGS_FILE: json.dumps({"kind": self.kind}).encode(), SENTENCEPIECE_FILE: self.model}
