"""Encodings of words that occurred before, in a bounded table, so that most text is encoded by one compiled loop.

Importing this module needs numba. Shapes as in `wordpiece_kernels`.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from spanjax.data.vocab import wordpiece_kernels as kernels
from spanjax.data.vocab.wordpiece_kernels import Encoded, Pieces, Table

TEXT = 1 << 18
"""Characters that are encoded at a time."""
_WORDS = 1 << 19  # of a table, which is emptied when it is full: about 40 MB
_MARKS = [chr(code) for code in range(128)]

EncodeWords = Callable[[Sequence[str]], Sequence[Sequence[int]]]


def new_table(words: int, characters: int) -> Table:
    """An empty table with room for so many words of so many characters in all."""
    slots = 1 << (2 * words - 1).bit_length()
    return Table(
        np.full(slots, -1, np.int32),
        np.empty(words, np.uint64),
        np.zeros(words + 1, np.int64),
        np.empty(characters, np.uint32),
        np.zeros(1, np.int64),
    )


def codes_of(text: str) -> np.ndarray:
    """uint32 [C]: the characters of a text; a lone surrogate is one, which `tokenizers` refuses."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _filled(words: Sequence[str]) -> Table:
    """A table of these words, numbered in their order."""
    table = new_table(max(1, len(words)), max(1, sum(map(len, words))))
    kernels.add_all(table, codes_of("".join(words)), np.cumsum([len(word) for word in words], dtype=np.int64))
    return table


def _pieces(ids: Mapping[str, int], unknown: int, most: int, lower: bool) -> Pieces:
    plain = {piece: number for piece, number in ids.items() if piece.isascii() and piece.isalnum()}
    behind = {piece[2:]: number for piece, number in ids.items() if piece.startswith("##")}
    behind = {piece: number for piece, number in behind.items() if piece.isascii() and piece.isalnum()}
    return Pieces(
        _filled([*plain]),
        np.array([*plain.values()], np.int32),
        _filled([*behind]),
        np.array([*behind.values()], np.int32),
        np.array([ids.get(mark, unknown) for mark in _MARKS], np.int32),
        max(map(len, (*plain, *behind)), default=0),
        unknown,
        most,
        lower,
    )


class KnownWords:
    """Encodes texts of BERT's WordPiece: `ids` are those of the pieces, a word of more than `most` characters is unknown.

    `encode` encodes words that are not of ASCII letters and digits, each on its own.
    """

    def __init__(self, ids: Mapping[str, int], unknown: int, most: int, lower: bool, encode: EncodeWords):
        self._pieces, self._encode = _pieces(ids, unknown, most, lower), encode
        self._lock = threading.Lock()  # the table is one for all threads
        self._empty(_WORDS, 8 * _WORDS)

    def _empty(self, words: int, characters: int) -> None:
        self._table = new_table(words, characters)
        self._encoded = Encoded(
            np.empty(words, np.int64), np.empty(words, np.int32), np.empty(characters, np.int32), np.zeros(1, np.int64)
        )

    @property
    def known(self) -> int:
        """Number of words in the table."""
        return int(self._table.used[0])

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of every text."""
        if max(map(len, texts), default=0) <= TEXT:
            return self._parts(texts)
        # words end at blanks, so that a long text may be cut there: its words fit into the table
        cut = [_cut(text) for text in texts]
        found = iter(self._parts([*itertools.chain.from_iterable(cut)]))
        return [np.concatenate([*itertools.islice(found, len(parts))]) for parts in cut]

    def _parts(self, texts: Sequence[str]) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        size_N = np.fromiter(map(len, texts), np.int64, len(texts))
        with self._lock:
            for first, end in _groups(size_N):
                ids_T, tokens_N = self._some(texts[first:end], size_N[first:end])
                found += [ids_T[start:stop] for start, stop in itertools.pairwise([0, *tokens_N.tolist()])]
        return found

    def _some(self, texts: Sequence[str], size_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        text = " ".join(texts)
        self._make_room(len(text))
        try:
            end_N = np.cumsum(size_N + 1) - 1
            words = kernels.find_words(codes_of(text), end_N, self._table, self._encoded, self._pieces)
            word_P, words_N, waiting_X = words
            if len(waiting_X):
                self._add([text[start:end] for start, end in waiting_X.tolist()])
        except BaseException:
            self._empty(_WORDS, 8 * _WORDS)  # some words have numbers and no ids
            raise
        return kernels.join_ids(word_P, words_N, self._encoded)

    def _make_room(self, characters: int) -> None:
        """Empties the table unless it has room for a text, whose words are new at worst.

        Only a text without blanks enlarges the table, until the next call.
        """
        number = self._table.used[0]
        words, room = number + characters // 2 + 1, max(self._table.end_K[number], self._encoded.used[0]) + characters
        enlarged = len(self._table.hash_K) > _WORDS
        if enlarged or words > len(self._table.hash_K) or room > len(self._table.chars):
            self._empty(max(_WORDS, characters // 2 + 1), max(8 * _WORDS, characters))

    def _add(self, words: Sequence[str]) -> None:
        """Stores the ids of the words without ids, in the order of their numbers."""
        ids = self._encode(words)
        number_X = np.flatnonzero(self._encoded.size_K[: self._table.used[0]] < 0)
        size_X = np.fromiter(map(len, ids), np.int32, len(ids))
        first, total = int(self._encoded.used[0]), int(size_X.sum())
        if first + total > len(self._encoded.ids):  # a character may become several tokens
            room = np.empty(first + total + TEXT, np.int32)
            room[:first] = self._encoded.ids[:first]
            self._encoded = self._encoded._replace(ids=room)
        self._encoded.ids[first : first + total] = np.fromiter(itertools.chain.from_iterable(ids), np.int32, total)
        self._encoded.start_K[number_X] = first + np.cumsum(size_X) - size_X
        self._encoded.size_K[number_X] = size_X
        self._encoded.used[0] = first + total


def _groups(size_N: np.ndarray) -> Iterator[tuple[int, int]]:
    """Parts of texts of these sizes in their order, of about `TEXT` characters: numbers of the first and behind the last."""
    end_N = np.cumsum(size_N + 1)
    first = 0
    while first < len(size_N):
        before = end_N[first - 1] if first else 0
        end = min(len(size_N), int(np.searchsorted(end_N, before + TEXT)) + 1)
        yield first, end
        first = end


def _cut(text: str) -> list[str]:
    """A text in parts of at most `TEXT` characters, if it has blanks."""
    parts, start = [], 0
    while len(text) - start > TEXT:
        end = text.rfind(" ", start + 1, start + TEXT)
        end = end if end > 0 else text.find(" ", start + TEXT)
        if end < 0:
            break
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]
