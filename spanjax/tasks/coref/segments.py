"""Documents as segments of pieces, each of which the encoder reads on its own (Joshi et al., 2019, section 3).

Segments are [CLS] pieces [SEP]; specials are no part of the document, so no span crosses from one segment's [SEP] to the
next one's [CLS].

Shapes: N pieces of a document, S segments of G positions, T = S * G.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.vocab.base import Specials, Vocabulary
from spanjax.tasks.coref.documents import CorefDocument, Mention
from spanjax.tasks.ner import word_pieces


class DocumentTokens(NamedTuple):
    """Pieces of a document in order, without specials; every word has one at least."""

    ids_N: np.ndarray
    """int32."""
    word_N: np.ndarray
    """int32, the number of the word that each piece is of."""
    sentence_N: np.ndarray
    """int32, the number of its sentence."""


class SegmentedDocument(NamedTuple):
    """Segments one after the other."""

    tokens_T: np.ndarray
    """int32: [CLS] pieces [SEP] padding, for each segment."""
    place_N: np.ndarray
    """int32: index of each piece of the document in tokens_T."""


def pieces_of(document: CorefDocument, vocabulary: Vocabulary) -> DocumentTokens:
    """Pieces of the words, each distinct one encoded once and on its own; [UNK] for a word that has none."""
    words = document.words
    unknown = np.array([vocabulary.specials.unk], np.int32)
    known = {word: ids if len(ids) else unknown for word, ids in word_pieces(words, vocabulary).items()}
    found = [known[word] for word in words]
    word_N = np.repeat(np.arange(len(words), dtype=np.int32), [len(ids) for ids in found])
    sizes = [len(sentence) for sentence in document.sentences]
    sentence = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return DocumentTokens(np.concatenate([np.zeros(0, np.int32), *found]), word_N, sentence[word_N])


def mention_pieces(pieces: DocumentTokens, mention: Mention) -> tuple[int, int]:
    """First and last piece of a mention, the last included."""
    first = np.searchsorted(pieces.word_N, mention[0], side="left")
    last = np.searchsorted(pieces.word_N, mention[1], side="right") - 1
    return int(first), int(last)


def word_span(pieces: DocumentTokens, first: int, last: int) -> Mention:
    """The words that the pieces `first` to `last`, the last included, are of."""
    return int(pieces.word_N[first]), int(pieces.word_N[last])


def independent(pieces: DocumentTokens, segment: int, specials: Specials) -> SegmentedDocument:
    """Segments that do not overlap, each as long as fits into `segment` positions.

    A segment ends at the last sentence end that fits, else at the last word end, else (a word longer than a segment)
    anywhere. ValueError for fewer than 3 positions.
    """
    room = _room(segment)
    sentence_ends, word_ends = _ends(pieces.sentence_N), _ends(pieces.word_N)
    cuts = [0]
    while cuts[-1] < len(pieces.ids_N):
        start = cuts[-1]
        end = _last(sentence_ends, start, start + room) or _last(word_ends, start, start + room)
        cuts.append(end or start + room)
    return _laid_out(pieces, cuts, segment, specials)


def overlapping(
    pieces: DocumentTokens, segment: int, specials: Specials, first: SegmentedDocument
) -> SegmentedDocument:
    """The second pass of the overlap variant (Joshi et al., 2019, section 3): segments that begin and end in the middle half
    of those of `first`, the result of `independent` for the same pieces and `segment`.

    Cuts are at word ends, as near to the middle of a segment of `first` as fits; a document that fits into one segment is one.
    So in one of the two passes every piece is about a quarter of a segment's length away from the ends of its segment, except
    at the ends of the document.
    """
    room = _room(segment)
    word_ends, size = _ends(pieces.word_N), len(pieces.ids_N)
    middles = _middles(first.place_N // segment, word_ends)
    cuts = [0]
    while cuts[-1] < size:
        start = cuts[-1]
        # A cut in the middle half of a segment counts as a cut at its middle.
        reached = [middle for quarter, middle in middles if quarter > start and start < middle <= start + room]
        if size - start <= room:
            cuts.append(size)
        elif reached:
            cuts.append(reached[-1])
        else:
            cuts.append(_last(word_ends, start, start + room) or start + room)
    return _laid_out(pieces, cuts, segment, specials)


def _room(segment: int) -> int:
    if segment < 3:
        raise ValueError(f"a segment of {segment} positions: expected at least 3, [CLS], a piece and [SEP]")
    return segment - 2


def _middles(segment_N: np.ndarray, word_ends: np.ndarray) -> list[tuple[int, int]]:
    """For every segment with more than one word, the start of its second quarter, and the word end nearest to its middle."""
    bounds = [0, *_ends(segment_N).tolist()]
    found = []
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        middle = (start + end) // 2
        inside = word_ends[np.searchsorted(word_ends, start, "right") : np.searchsorted(word_ends, end, "left")]
        if len(inside):
            found.append((start + (end - start) // 4, int(inside[np.argmin(np.abs(inside - middle))])))
    return found


def _ends(number_N: np.ndarray) -> np.ndarray:
    """Behind the last piece of every run of equal numbers."""
    changes = np.flatnonzero(np.diff(number_N)) + 1
    return np.append(changes, len(number_N)) if len(number_N) else changes


def _last(ends: np.ndarray, start: int, limit: int) -> int:
    """The last end after `start` up to `limit`, 0 where there is none."""
    place = int(np.searchsorted(ends, limit, side="right")) - 1
    return int(ends[place]) if place >= 0 and ends[place] > start else 0


def _laid_out(pieces: DocumentTokens, cuts: Sequence[int], segment: int, specials: Specials) -> SegmentedDocument:
    lengths = np.diff(cuts)
    tokens_SG = np.full((len(lengths), segment), specials.pad, np.int32)
    number_N = np.repeat(np.arange(len(lengths)), lengths)
    place_N = number_N * segment + 1 + np.arange(len(pieces.ids_N)) - np.repeat(cuts[:-1], lengths)
    tokens_SG[:, 0] = specials.cls
    tokens_SG[np.arange(len(lengths)), lengths + 1] = specials.sep
    tokens_T = tokens_SG.reshape(-1)
    tokens_T[place_N] = pieces.ids_N
    return SegmentedDocument(tokens_T, place_N.astype(np.int32))
