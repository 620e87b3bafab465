"""WordPiece as in BERT (Devlin et al., 2018): one piece a line, "##" before pieces that continue a word."""

import collections
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np
import tokenizers

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import SETTINGS_FILE, SPECIAL_PIECES, Specials, Vocabulary, begins_unspaced

if TYPE_CHECKING:
    from spanjax.data.vocab.known_words import KnownWords

WORDPIECE_FILE = "vocab.txt"
MAX_WORD_CHARACTERS = 100  # a longer word is unknown, as in BERT
_MANY = 100_000
"""Characters from which on the compiled loops are worth their start, about half a second."""


@final
class WordPieceVocabulary(Vocabulary):
    """BERT's vocab.txt: one piece a line, "##" before pieces that continue a word."""

    kind = "wordpiece"

    def __init__(self, pieces: Sequence[str], lower_case: bool | None = None, name: str = WORDPIECE_FILE):
        """`lower_case` None guesses it: lower-casing if it would change no piece but those in brackets."""
        self.pieces = tuple(pieces)
        _check(self.pieces, name)
        ids = {piece: number for number, piece in enumerate(self.pieces)}
        self.specials = Specials(*(ids[piece] for piece in SPECIAL_PIECES))
        self.lower_case = not cased_pieces(self.pieces) if lower_case is None else lower_case
        self.casing = "lower" if self.lower_case else "cased"
        model = tokenizers.models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS)
        self._known: KnownWords | None = None
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=self.lower_case)  # pyright: ignore
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore

    def _begins_word(self, piece: str) -> bool:
        return not piece.startswith("##") or begins_unspaced(piece[2:])

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implements `Vocabulary.encode`. Compiled loops encode many texts if numba is installed; the ids are the same."""
        if self._known is None and sum(map(len, texts)) >= _MANY:
            self._known = self._known_words()
        if self._known is not None:
            return self._known(texts)
        return [np.array(ids, np.int32) for ids in self._encode_each(texts)]

    def _known_words(self) -> "KnownWords | None":
        try:
            from spanjax.data.vocab.known_words import KnownWords
        except ModuleNotFoundError:  # numba, which an installation of the core alone lacks
            return None
        ids = {piece: number for number, piece in enumerate(self.pieces)}
        return KnownWords(ids, self.specials.unk, MAX_WORD_CHARACTERS, self.lower_case, self._encode_each)

    def _encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Implements `Vocabulary.encode_with_starts`; an unknown word is one piece, which begins where the word does."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            (np.array(each.ids, np.int32), np.array([start for start, _ in each.offsets], np.int32)) for each in found
        ]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Implements `Vocabulary.decode`."""
        words: list[str] = []
        for number in np.asarray(ids).tolist():
            piece = self.pieces[number]
            if piece.startswith("##") and words:
                words[-1] += piece[2:]
            else:
                words.append(piece)
        return " ".join(words)

    def files(self) -> dict[str, bytes]:
        """Implements `Vocabulary.files`."""
        settings = {"kind": self.kind, "lower_case": self.lower_case}
        return {SETTINGS_FILE: json.dumps(settings).encode(), WORDPIECE_FILE: ("\n".join(self.pieces) + "\n").encode()}


def cased_pieces(pieces: Sequence[str]) -> list[str]:
    """The pieces that lower-casing changes, so that lower-cased text never reaches them; not those in brackets.

    Letters such as the double-struck R of BERT's uncased vocabulary are uppercase without a lower case: they do not count.
    """
    text = (piece for piece in pieces if not (piece.startswith("[") and piece.endswith("]")))
    return [piece for piece in text if piece.lower() != piece]


def _check(pieces: Sequence[str], name: str) -> None:
    problems = []
    if not pieces:
        raise ValueError(f"{name}: the vocabulary is empty; expected one piece a line, as in BERT's vocab.txt")
    if missing := [piece for piece in SPECIAL_PIECES if piece not in pieces]:
        problems.append(f"no line for {', '.join(missing)}; append the missing pieces at the end of the file")
    if repeated := [piece for piece, count in collections.Counter(pieces).items() if count > 1]:
        listed = ", ".join(map(repr, repeated[:5])) + (", ..." if len(repeated) > 5 else "")
        problems.append(f"{len(repeated)} piece(s) on more than one line ({listed}); every piece must have one id")
    raise_problems(problems, f"{name}: not a usable WordPiece vocabulary:")


def wordpiece_lines(content: bytes, name: str) -> list[str]:
    """The pieces of a vocab.txt; ValueError names the line that is not UTF-8."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{name}:{line}: not UTF-8 ({error.reason}); expected a vocab.txt with one piece a line"
        ) from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
