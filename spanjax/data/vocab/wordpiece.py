"""WordPiece as in BERT (Devlin et al., 2018): one piece a line, "##" before pieces that continue a word."""

import collections
import itertools
import json
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import tokenizers

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import SETTINGS_FILE, SPECIAL_PIECES, Specials, Vocabulary, begins_unspaced

WORDPIECE_FILE = "vocab.txt"
MAX_WORD_CHARACTERS = 100  # a longer word is unknown, as in BERT
_KNOWN_PARTS = 1_000_000  # remembered encodings


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
        self._known = _Known()
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=self.lower_case)  # pyright: ignore
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore

    def _begins_word(self, piece: str) -> bool:
        return not piece.startswith("##") or begins_unspaced(piece[2:])

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implements `Vocabulary.encode`. Parts between blanks are encoded on their own: each distinct one only once."""
        if not texts:
            return []
        if self._known.count > _KNOWN_PARTS:
            self._known = _Known()
        try:
            ids_T, ends_P = self._known.joined(" ".join(texts).split(" "), self._encode_parts)
        except BaseException:
            self._known = _Known()  # some parts have numbers and no ids
            raise
        last = np.cumsum([text.count(" ") + 1 for text in texts]) - 1  # part of each text
        return [ids_T[start:end] for start, end in itertools.pairwise([0, *ends_P[last].tolist()])]

    def _encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
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


class _Known:
    """Encodings of parts of text, in one array, so that those of many parts are joined without a loop over tokens.

    Shapes: K known parts, P parts to join, N new ones among them, T their tokens.
    """

    def __init__(self) -> None:
        # a part that is requested the first time gets the next number
        self._numbers = collections.defaultdict[str, int](itertools.count().__next__)
        self._starts_K = self._sizes_K = np.zeros(0, np.int64)
        self._ids = np.zeros(0, np.int32)

    @property
    def count(self) -> int:
        """Number of known parts."""
        return len(self._sizes_K)

    def joined(
        self, parts: Sequence[str], encode: Callable[[Sequence[str]], Sequence[Sequence[int]]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """int32 ids of all these parts, one after the other [T], and where those of each end [P]; `encode` gives new ones'."""
        known = self.count
        number_P = np.fromiter(map(self._numbers.__getitem__, parts), np.int64, len(parts))
        new_N = np.flatnonzero(number_P >= known)
        if len(new_N):
            _, place_N = np.unique(number_P[new_N], return_index=True)
            first: list[int] = new_N[place_N].tolist()
            self._add(encode([parts[place] for place in first]))
        sizes_P = self._sizes_K[number_P]
        ends_P = np.cumsum(sizes_P)
        shift_P = self._starts_K[number_P] - ends_P + sizes_P
        return self._ids[np.repeat(shift_P, sizes_P) + np.arange(ends_P[-1] if len(parts) else 0)], ends_P

    def _add(self, ids: Sequence[Sequence[int]]) -> None:
        sizes = np.fromiter(map(len, ids), np.int64, len(ids))
        self._starts_K = np.concatenate([self._starts_K, len(self._ids) + np.cumsum(sizes) - sizes])
        self._sizes_K = np.concatenate([self._sizes_K, sizes])
        new = np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(sizes.sum()))
        self._ids = np.concatenate([self._ids, new])


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
