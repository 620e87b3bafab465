"""JSON lines of the released coreference code (Joshi et al., 2019; SpanBERT), whose documents are segments of word pieces.

A segment is `[CLS]` pieces `[SEP]`. Clusters count all pieces of all segments, those two included; `subtoken_map` has the
word and `sentence_map` the sentence of every one. Words are put together from their pieces, so they are those of the
vocabulary: lower-cased where it is, `[UNK]` where it lacked them.

Shapes: F pieces of all segments, specials included.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from spanjax.tasks.coref.documents import Clusters, Document, sorted_clusters
from spanjax.tasks.coref.json_lines import Content, checked_clusters, checked_speakers, document_with
from spanjax.tasks.tables import is_whole, shown

SEGMENT_MAPS = ("subtoken_map", "sentence_map")
_ENDS = ("[CLS]", "[SEP]")
_CONTINUED = "##"
_MOST = 2**31 - 1


def read_segments(record: Mapping[str, Any], number: int) -> tuple[Document | None, str]:
    """(the document, or None; the problem of the record, or "")."""
    segments = record.get("sentences")
    if problem := _problem(record, segments):
        return None, problem
    if not segments:
        return None, "a document without words: expected one at least"
    flat = [piece for segment in segments for piece in segment]
    lengths = np.array([len(segment) for segment in segments])
    special_F = np.zeros(len(flat), bool)
    special_F[np.cumsum(lengths) - 1] = special_F[np.cumsum(lengths) - lengths] = True
    numbers_F, sentence_F = (np.array(record[name], np.int64) for name in SEGMENT_MAPS)
    kept = np.flatnonzero(~special_F)
    if not len(kept):
        return None, "a document without words: expected one at least"
    if (np.diff(numbers_F[kept]) < 0).any() or (np.diff(sentence_F[kept]) < 0).any():
        return None, "`subtoken_map` or `sentence_map` goes back: expected words and sentences in order"
    begins = np.append(True, np.diff(numbers_F[kept]) > 0)
    # specials keep -1, so that `_of_words` refuses mentions at them; gaps in the numbers of `subtoken_map` close
    word_F = np.full(len(flat), -1)
    word_F[kept] = np.cumsum(begins) - 1
    sentences = _sentences([flat[place] for place in kept], begins, sentence_F[kept])
    speakers, problems = checked_speakers(record.get("speakers"), lengths.tolist())
    clusters, wrong = checked_clusters(record.get("clusters"), len(flat) - 1)
    if clusters is not None:
        clusters, more = _of_words(clusters, word_F)
        wrong += more
    first_pieces = kept[begins]
    own = tuple(speakers[place] for place in first_pieces)
    return document_with(record, number, Content(sentences), (own, clusters), [*problems, *wrong])


def _problem(record: Mapping[str, Any], segments: Any) -> str:
    if not isinstance(segments, list) or not all(isinstance(each, list) for each in segments):
        return f"`sentences` is {shown(segments)}: expected a list of segments, each a list of pieces"
    if not all(isinstance(piece, str) for each in segments for piece in each):
        return "`sentences` has what is no piece: expected lists of texts"
    if bad := [each for each in segments if len(each) < 2 or (each[0], each[-1]) != _ENDS]:
        return f"the segment {shown(bad[0])}: expected [CLS] pieces [SEP]"
    pieces = sum(map(len, segments))
    for name in SEGMENT_MAPS:
        given = record.get(name)
        if not isinstance(given, list) or not all(map(is_whole, given)):
            return f"`{name}` is {shown(given)}: expected a whole number for each piece"
        if large := [number for number in given if abs(number) > _MOST]:
            return f"`{name}` has {shown(large[0])}: expected numbers of words and sentences, at most {_MOST}"
        if len(given) != pieces:
            return f"`{name}` has {len(given)} numbers: expected {pieces}, one for each piece, [CLS] and [SEP] included"
    return ""


def _sentences(pieces: list[str], begins: np.ndarray, sentence: np.ndarray) -> tuple[tuple[str, ...], ...]:
    found: list[list[str]] = []
    last = None
    for piece, first, number in zip(pieces, begins.tolist(), sentence.tolist(), strict=True):
        if first and number != last:
            found.append([])
            last = number
        if first:
            found[-1].append(piece)
        else:
            found[-1][-1] += piece.removeprefix(_CONTINUED)
    return tuple(map(tuple, found))


def _of_words(clusters: Clusters, word_F: np.ndarray) -> tuple[Clusters, list[str]]:
    """Clusters of words of clusters of pieces."""
    kept = np.flatnonzero(word_F >= 0)
    firsts = kept[np.append(True, np.diff(word_F[kept]) > 0)]
    lasts = kept[np.append(np.diff(word_F[kept]) > 0, True)]
    found, problems = [], []
    for cluster in clusters:
        mentions = []
        for first, last in cluster:
            words = int(word_F[first]), int(word_F[last])
            if min(words) < 0 or firsts[words[0]] != first or lasts[words[1]] != last:
                problems.append(
                    f"the mention {[first, last]} is not of whole words: expected the first and last of their pieces"
                )
            else:
                mentions.append(words)
        found.append(mentions)
    return sorted_clusters(found), problems
