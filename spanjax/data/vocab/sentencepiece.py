"""SentencePiece models (Kudo and Richardson, 2018), unigram or BPE, read from their .model files."""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple, final

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
    unused_pieces,
)

SENTENCEPIECE_FILE = "sentencepiece.model"
XLNET_NAMES = {"[PAD]": "<pad>", "[CLS]": "<cls>", "[SEP]": "<sep>", "[MASK]": "<mask>"}
WORD_MARK = "\u2581"  # how SentencePiece writes the space before a word


def begins_word(piece: str) -> bool:
    """True if a piece of SentencePiece begins a word: by its mark, or by a script without blanks."""
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):  # a byte of a character that has no piece
        return bytes_begin_unspaced(bytes([int(piece[3:5], 16)]))
    return piece.startswith(WORD_MARK) or begins_unspaced(piece)


class Layout(NamedTuple):
    """Order of ids that differs from a model file's own: `first`, the file's pieces from `skipped` on, then <mask>."""

    first: tuple[str, ...]
    skipped: int


LAYOUTS = {
    "xlm-roberta": Layout(("<s>", "<pad>", "</s>", "<unk>"), 3),
    "camembert": Layout(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), 1),
}
"""Model type in transformers -> the ids of its weights; those of DeBERTa-v2 and v3, ALBERT and XLNet are the file's own."""
_FAIRSEQ_NAMES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_FAIRSEQ_FILE = ("<unk>", "<s>", "</s>")


@final
class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model. Specials that it lacks, under the names of BERT and of XLNet, get the ids after its own, so that the
    model file stays unchanged. `layout` names one of LAYOUTS, whose ids are then used; unused ids follow up to `size`."""

    kind = "sentencepiece"
    casing = "model"  # the model's own normalisation decides

    def __init__(self, model: bytes, name: str = SENTENCEPIECE_FILE, layout: str = "", size: int = 0):
        self.model, self.layout = model, layout
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(
                f"{name}: not a SentencePiece model ({error}); give the .model file that spm_train wrote"
            ) from None
        if not (own := self.processor.get_piece_size()):
            raise ValueError(f"{name}: a SentencePiece model without pieces; give the .model file that spm_train wrote")
        pieces = [self.processor.id_to_piece(number) for number in range(own)]
        self.model_size = own
        self.own_ids: np.ndarray = np.arange(own, dtype=np.int32)
        """int32 [model_size]: the id of each piece of the model file."""
        if layout:
            self._lay_out(LAYOUTS[layout], pieces, name)
        else:
            self._append_specials(pieces)
        unused = unused_pieces(len(self.pieces), size)
        self.pieces, self.unused = (*self.pieces, *unused), len(unused)

    def _append_specials(self, pieces: list[str]) -> None:
        """Sets pieces and ids by the file's own order."""
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
        self.specials = Specials(*(found[piece] for piece in SPECIAL_PIECES))

    def _lay_out(self, layout: Layout, pieces: list[str], name: str) -> None:
        """Sets pieces and ids by a layout. ValueError for a model whose first pieces are not those that fairseq expects."""
        if (found := (*pieces[:3],)) != _FAIRSEQ_FILE:
            raise ValueError(
                f"{name}: its first pieces are {', '.join(found)}: expected {', '.join(_FAIRSEQ_FILE)}, as in the"
                f" sentencepiece.bpe.model of {self.layout}; give that file, or take the model's name out of the files beside it"
            )
        self.pieces = (*layout.first, *pieces[layout.skipped :], "<mask>")
        self.own_ids += len(layout.first) - layout.skipped
        self.own_ids[: layout.skipped] = [layout.first.index(piece) for piece in pieces[: layout.skipped]]
        self.specials = Specials(*map(self.pieces.index, _FAIRSEQ_NAMES))

    @property
    def separators(self) -> int:
        """Implements `Vocabulary.separators`: 2 in the layouts (<s> A </s></s> B </s>)."""
        return 2 if self.layout else 1

    def _begins_word(self, piece: str) -> bool:
        return begins_word(piece)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implements `Vocabulary.encode`."""
        found = self.processor.encode(list(texts), num_threads=1)
        return [self.own_ids[np.array(ids, dtype=np.int32)] for ids in found]

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
        return self.own_ids[np.array([piece.id for piece in found], np.int32)], np.array(starts, np.int32)

    def _text(self, ids: list[int]) -> str:
        # ids that no text has, such as <s>NOTUSED, are unknown to the model
        own = {number: place for place, number in enumerate(self.own_ids.tolist())} if self.layout else {}
        return self.processor.decode([own.get(number, 0) for number in ids] if own else ids)

    def files(self) -> dict[str, bytes]:
        """Implements `Vocabulary.files`."""
        settings = {"kind": self.kind, **({"layout": self.layout} if self.layout else {})}
        settings |= {"size": self.size} if self.unused else {}
        return {SETTINGS_FILE: json.dumps(settings).encode(), SENTENCEPIECE_FILE: self.model}
