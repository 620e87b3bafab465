"""Documents for coreference as JSON records: a user's own words, sentences or text, the lines of e2e-coref (Lee et al., 2017)
with clusters of words, and those of the released code (Joshi et al., 2019; SpanBERT), whose documents are segments of pieces.

A segment is `[CLS]` pieces `[SEP]`. Clusters count all pieces of all segments, those two included; `subtoken_map` has the
word and `sentence_map` the sentence of every one. Words are put together from their pieces, so they are those of the
vocabulary: lower-cased where it is, `[UNK]` where it lacked them.

Shapes: F pieces of all segments, specials included.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.data.sources.tables import is_whole, quoted
from spanjax.tasks.coref.conll import NONE, genre_of
from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention, sorted_clusters
from spanjax.tasks.coref.text import Offsets, Sentences, sentences_of, split_text

CONTENT = ("text", "words", "tokens", "sentences")
_NAME_AND_PART = re.compile(r"(.*)_(0|[1-9]\d*)", re.DOTALL)
_SHOWN = 5
SEGMENT_MAPS = ("subtoken_map", "sentence_map")
_ENDS = ("[CLS]", "[SEP]")
_CONTINUED = "##"
_MOST = 2**31 - 1


class Content(NamedTuple):
    """The words of a record."""

    sentences: Sentences
    text: str = ""
    offsets: Offsets = ()


def joined(problems: Sequence[str]) -> str:
    """The first problems in one line, and how many more there are."""
    more = len(problems) - _SHOWN
    return "; ".join([*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def read_record(record: Mapping[str, Any], number: int, language: str = "en") -> tuple[CorefDocument | None, str]:
    """(the document, or None; the problem of the record, or ""), for `files.document_of`.

    Mentions are [first word, last word], the last included; with `text` [first character, the one behind the last].
    A mention in two clusters is a problem, but not in a record with `doc_key`: those are converted from CoNLL columns.
    """
    content, problem = _content(record, language)
    if content is None:
        return None, problem
    words = [word for sentence in content.sentences for word in sentence]
    if not words:
        return None, "a document without words: expected one at least"
    clusters, problems = checked_clusters(record.get("clusters"), len(content.text) if content.text else len(words) - 1)
    if clusters is not None and content.text:
        clusters, problems = _from_characters(clusters, content, problems)
    if clusters is not None and "doc_key" not in record:
        problems += _in_two(clusters)
    sizes = [len(sentence) for sentence in record.get("sentences") or [words]]
    speakers, wrong = checked_speakers(record.get("speakers"), sizes, bool(content.text))
    mentions, more = _given_mentions(record.get("mentions"), content, len(words) - 1)
    document, problem = document_with(record, number, content, (speakers, clusters), [*problems, *wrong, *more])
    return document and dataclasses.replace(document, mentions=mentions), problem


def _given_mentions(given: Any, content: Content, last: int) -> tuple[tuple[Mention, ...] | None, list[str]]:
    """The mentions that a record brings, None for none, and their problems; written as those of a cluster."""
    if given is None:
        return None, []
    if not isinstance(given, list):
        return None, [f"`mentions` is {quoted(given)}: expected a list of [first, last]"]
    clusters, problems = checked_clusters([given], len(content.text) if content.text else last)
    if content.text and clusters is not None:
        clusters, problems = _from_characters(clusters, content, problems)
    named = [problem.replace("cluster 0 has", "`mentions` has") for problem in problems]
    return tuple(mention for cluster in clusters or () for mention in cluster), named


def document_with(
    record: Mapping[str, Any],
    number: int,
    content: Content,
    found: tuple[tuple[str, ...], Clusters | None],
    problems: Sequence[str],
) -> tuple[CorefDocument | None, str]:
    """Builds the document with its name and genre, `found` being its speakers and clusters; or returns all problems."""
    name, part, wrong = _name(record, number)
    genre = record.get("genre")
    if not isinstance(genre, str | None):
        wrong = [*wrong, f"`genre` is {quoted(genre)}: expected a name"]
    if problems := [*problems, *wrong]:
        return None, joined(problems)
    genre = genre_of(name) if genre is None else genre
    speakers, clusters = found
    return CorefDocument(name, part, content.sentences, speakers, clusters, genre, content.text, content.offsets), ""


def _name(record: Mapping[str, Any], number: int) -> tuple[str, int, list[str]]:
    """Name, part, and their problems. The `doc_key` NAME_PART has both."""
    field = next((field for field in ("doc_key", "id") if record.get(field) is not None), "")
    if not field:
        return str(number), 0, []
    value = record[field]
    if not isinstance(value, str) and not is_whole(value):
        return "", 0, [f"`{field}` is {quoted(value)}: expected a name or a number"]
    if field == "doc_key" and (parted := _NAME_AND_PART.fullmatch(str(value))):
        return parted[1], int(parted[2]), []
    return str(value), 0, []


def _content(record: Mapping[str, Any], language: str) -> tuple[Content | None, str]:
    fields = [field for field in CONTENT if record.get(field) is not None]
    if len(fields) != 1:
        has = " and ".join(f"`{field}`" for field in fields) or f"no words (fields: {quoted(list(record))})"
        return None, f"{has}: expected one of {', '.join(f'`{field}`' for field in CONTENT)}"
    (field,) = fields
    value = record[field]
    if field == "text":
        if not isinstance(value, str):
            return None, f"`text` is {quoted(value)}: expected a text"
        sentences, offsets = split_text(value, language)
        return Content(sentences, value, offsets), ""
    groups = value if field == "sentences" else [value]
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        return None, f"`{field}` is {quoted(value)}: expected a list of {'lists of ' * (field == 'sentences')}words"
    if wrong := [word for group in groups for word in group if not isinstance(word, str) or not word.strip()]:
        return None, f"`{field}` has {quoted(wrong[0])}: expected words, none of them empty"
    if field == "sentences":
        return Content(tuple(tuple(group) for group in groups if group)), ""
    return Content(sentences_of(value)), ""


def checked_clusters(given: Any, end: int) -> tuple[Clusters | None, list[str]]:
    """Clusters of [first, last] with 0 <= first <= last <= end, None where none are given; and their problems. A
    mention that is twice in a cluster stays twice, see `conll.read_conll`."""
    if given is None:
        return None, []
    if not isinstance(given, list) or not all(isinstance(cluster, list) for cluster in given):
        return None, [f"`clusters` is {quoted(given)}: expected a list of lists of [first, last]"]
    problems, found = [], []
    for number, cluster in enumerate(given):
        mentions = []
        for mention in cluster:
            if not isinstance(mention, list) or len(mention) != 2 or not all(map(is_whole, mention)):
                problems.append(f"cluster {number} has {quoted(mention)}: expected [first, last], two whole numbers")
            elif not 0 <= mention[0] <= mention[1] <= end:
                problems.append(f"cluster {number} has {mention}: expected first <= last, both from 0 to {end}")
            else:
                mentions.append((mention[0], mention[1]))
        found.append(mentions)
    return sorted_clusters(found), problems


def _in_two(clusters: Clusters) -> list[str]:
    seen: dict[tuple[int, int], int] = {}
    problems = []
    for number, cluster in enumerate(clusters):
        for mention in cluster:
            if seen.get(mention, number) != number:
                problems.append(f"the words {list(mention)} are a mention in two clusters: expected one cluster")
            seen[mention] = number
    return problems


def _from_characters(clusters: Clusters, content: Content, problems: list[str]) -> tuple[Clusters, list[str]]:
    """Clusters of words of clusters of characters."""
    first_at = {start: place for place, (start, _) in enumerate(content.offsets)}
    last_at = {end: place for place, (_, end) in enumerate(content.offsets)}
    found, problems = [], list(problems)
    for cluster in clusters:
        mentions = []
        for start, end in cluster:
            if start in first_at and end in last_at and start < end:
                mentions.append((first_at[start], last_at[end]))
            else:
                near = _around(content, start, end)
                problems.append(
                    f"characters {[start, end]}, {quoted(content.text[start:end])}, are no whole words: expected {near}"
                )
        found.append(mentions)
    return sorted_clusters(found), problems


def _around(content: Content, start: int, end: int) -> str:
    inside = [each for each in content.offsets if each[1] > start and each[0] < max(end, start + 1)]
    if not inside:
        return "the first character of a word and the one behind the last of a word"
    first, last = inside[0][0], inside[-1][1]
    return f"{[first, last]}, {quoted(content.text[first:last])}"


def checked_speakers(given: Any, sizes: Sequence[int], text: bool = False) -> tuple[tuple[str, ...], list[str]]:
    """The speaker of every word, "" for an unknown one, from a list for each sentence of `sizes` words, or one list."""
    unknown = ("",) * sum(sizes)
    if given is None:
        return unknown, []
    if text:
        return unknown, ["`speakers` beside `text`: expected them beside `words` or `sentences`"]
    groups = given if isinstance(given, list) and given and all(isinstance(each, list) for each in given) else [given]
    if not isinstance(given, list) or not all(isinstance(name, str | None) for group in groups for name in group):
        return unknown, [f"`speakers` is {quoted(given)}: expected a name for each word"]
    found = [len(group) for group in groups]
    if groups is given and found != list(sizes):
        return unknown, [f"`speakers` are of {quoted(found)} words: expected {quoted(list(sizes))}, as the sentences"]
    if sum(found) != sum(sizes):
        return unknown, [f"`speakers` are {sum(found)}: expected {sum(sizes)}, one for each word"]
    return tuple("" if name is None or name in NONE else name for group in groups for name in group), []


def read_segments(record: Mapping[str, Any], number: int) -> tuple[CorefDocument | None, str]:
    """(the document, or None; the problem of the record, or "")."""
    segments = record.get("sentences")
    if problem := _segment_problem(record, segments):
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
    # specials keep -1, so that `_from_pieces` refuses mentions at them; gaps in the numbers of `subtoken_map` close
    word_F = np.full(len(flat), -1)
    word_F[kept] = np.cumsum(begins) - 1
    sentences = _joined_pieces([flat[place] for place in kept], begins, sentence_F[kept])
    speakers, problems = checked_speakers(record.get("speakers"), lengths.tolist())
    clusters, wrong = checked_clusters(record.get("clusters"), len(flat) - 1)
    if clusters is not None:
        clusters, more = _from_pieces(clusters, word_F)
        wrong += more
    first_pieces = kept[begins]
    own = tuple(speakers[place] for place in first_pieces)
    return document_with(record, number, Content(sentences), (own, clusters), [*problems, *wrong])


def _segment_problem(record: Mapping[str, Any], segments: Any) -> str:
    if not isinstance(segments, list) or not all(isinstance(each, list) for each in segments):
        return f"`sentences` is {quoted(segments)}: expected a list of segments, each a list of pieces"
    if not all(isinstance(piece, str) for each in segments for piece in each):
        return "`sentences` has what is no piece: expected lists of texts"
    if bad := [each for each in segments if len(each) < 2 or (each[0], each[-1]) != _ENDS]:
        return f"the segment {quoted(bad[0])}: expected [CLS] pieces [SEP]"
    pieces = sum(map(len, segments))
    for name in SEGMENT_MAPS:
        given = record.get(name)
        if not isinstance(given, list) or not all(map(is_whole, given)):
            return f"`{name}` is {quoted(given)}: expected a whole number for each piece"
        if large := [number for number in given if abs(number) > _MOST]:
            return f"`{name}` has {quoted(large[0])}: expected numbers of words and sentences, at most {_MOST}"
        if len(given) != pieces:
            return f"`{name}` has {len(given)} numbers: expected {pieces}, one for each piece, [CLS] and [SEP] included"
    return ""


def _joined_pieces(pieces: list[str], begins: np.ndarray, sentence: np.ndarray) -> tuple[tuple[str, ...], ...]:
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


def _from_pieces(clusters: Clusters, word_F: np.ndarray) -> tuple[Clusters, list[str]]:
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
