"""Coreference in the columns of CoNLL-2012 (Pradhan et al., 2012), as OntoNotes, LitBank and OntoGUM have them, and back.

A word a line, a blank line after a sentence, `#begin document (NAME); part 000` and `#end document` around a part. Columns
are cut at tabs where a line has one, else at blanks: name, part, number, word, ..., coreference last; the tenth is the
speaker where there are twelve or more.
"""

import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spanjax.tasks.base import Examples
from spanjax.tasks.coref_documents import Clusters, Document, Mention, sorted_clusters
from spanjax.tasks.tables import read_lines

GivenClusters = Iterable[Iterable[Mention]]
NONE = ("", "-", "_")
"""What stands in a column that says nothing; the empty one is LitBank's."""
SPEAKER, SPEAKER_COLUMNS, FEWEST_COLUMNS = 9, 12, 5
_BEGIN = re.compile(r"#\s*begin document\s+(.*)")
_NAME = re.compile(r"\((.*)\)\s*;?\s*(?:part\s+(\d+))?\s*")
_END = re.compile(r"#\s*end document")
_BRACKET = re.compile(r"(\(?)([^()|\s]+)(\)?)")
_ENDS = {"/.": ".", "/?": "?"}
_BLANKS = re.compile(r"\s", re.ASCII)


class _Part(NamedTuple):
    line: int
    """Of `#begin document`."""
    name: str
    part: int
    lines: list[tuple[int, str]]


def genre_of(name: str) -> str:
    """What stands before the first slash of a document's name: `nw` of `nw/wsj/24/wsj_2400`; "" where there is none."""
    return name.partition("/")[0] if "/" in name else ""


def read_conll(path: pathlib.Path) -> Examples:
    """The parts of a file as Documents; one with a bad line is left out as a whole. The words `/.` and `/?` become `.` and `?`.

    A bracket closes the mention of its cluster that was begun last. A mention that is annotated in two clusters stays in
    both (OntoGUM has five), one that is twice in a cluster stays once. ValueError where the file cannot be read.
    """
    examples = Examples()
    for part in _parts(path, examples.problems):
        document, problems = _document(part)
        examples.problems += [f"{path}:{line}: {problem}" for line, problem in problems]
        if not problems:
            examples.append(document)
    return examples


def _parts(path: pathlib.Path, problems: list[str]) -> Iterator[_Part]:
    begun: _Part | None = None
    outside = False
    for number, line in read_lines(path):
        if found := _BEGIN.match(line):
            problems += _endless(path, begun)
            named = _NAME.fullmatch(found[1])
            begun = _Part(number, named[1] if named else found[1].strip(), int((named and named[2]) or 0), [])
        elif _END.match(line):
            if begun is None:
                problems.append(f"{path}:{number}: ends a document that was not begun: expected #begin document (NAME)")
            else:
                yield begun
            begun, outside = None, False
        elif begun is not None:
            begun.lines.append((number, line))
        elif line.strip() and not line.startswith("#") and not outside:
            problems.append(
                f"{path}:{number}: words outside of a document: expected #begin document (NAME) before them"
            )
            outside = True
    problems += _endless(path, begun)


def _endless(path: pathlib.Path, begun: _Part | None) -> list[str]:
    if begun is None:
        return []
    return [f"{path}:{begun.line}: document {begun.name!r} does not end: expected #end document after its words"]


def _document(part: _Part) -> tuple[Document, list[tuple[int, str]]]:
    """The document, and what is wrong with which lines."""
    sentences: list[list[str]] = [[]]
    speakers: list[str] = []
    brackets = _Brackets()
    problems: list[tuple[int, str]] = []
    wordless, width = 0, 0
    for number, line in part.lines:
        if not line.strip():
            sentences.append([])
            width = 0
            continue
        if line.startswith("# "):
            continue
        columns = _columns(line, width)
        width = width or len(columns)
        if len(columns) < FEWEST_COLUMNS or not columns[3]:
            wordless += 1
            if wordless == 1:  # of a file in another layout every line is wrong
                what = f"{len(columns)} columns" if len(columns) < FEWEST_COLUMNS else "no word"
                problems.append(
                    (number, f"{what}: expected name, part, number, word, ..., coreference, as in CoNLL-2012")
                )
            continue
        if problem := brackets.read(columns[-1], len(speakers), number):
            problems.append((number, problem))
        speaker = columns[SPEAKER] if len(columns) >= SPEAKER_COLUMNS else ""
        speakers.append("" if speaker in NONE else speaker)
        sentences[-1].append(_ENDS.get(columns[3], columns[3]))
    if wordless > 1:
        problems.append((part.line, f"document {part.name!r} has {wordless} such lines: expected none"))
    problems += brackets.unclosed()
    if not speakers and not problems:
        problems.append((part.line, f"document {part.name!r} has no words: expected a line for each"))
    words = tuple(tuple(sentence) for sentence in sentences if sentence)
    return Document(part.name, part.part, words, tuple(speakers), brackets.found(), genre_of(part.name)), problems


def _columns(line: str, width: int) -> list[str]:
    """Columns of a line; empty ones behind the `width` of the sentence's first line are ends of the line, no columns."""
    if "\t" not in line:
        return line.split()
    columns = [each.strip(" ") for each in line.split("\t")]
    while 0 < width < len(columns) and not columns[-1]:
        columns.pop()
    return columns


class _Brackets:
    """The mentions of a part while its lines are read."""

    def __init__(self) -> None:
        self._clusters: dict[str, set[Mention]] = {}
        self._begun: dict[str, list[tuple[int, int]]] = {}  # word and line at which mentions of a cluster were begun

    def read(self, column: str, word: int, line: int) -> str:
        """Takes the coreference column of a word; what is wrong with it, or ""."""
        if column in NONE:
            return ""
        for bracket in column.split("|"):
            found = _BRACKET.fullmatch(bracket)
            if not found or not (found[1] or found[3]):
                return f"coreference {column!r}: expected brackets such as (3, 3) or (3), joined with |, or -"
            begins, cluster, ends = found.groups()
            begun = self._begun.setdefault(cluster, [])
            if begins:
                begun.append((word, line))
            if ends and not begun:
                return f"{bracket} closes a mention that was not begun: expected ({cluster} at this word or before"
            if ends:
                self._clusters.setdefault(cluster, set()).add((begun.pop()[0], word))
        return ""

    def unclosed(self) -> list[tuple[int, str]]:
        """Lines at which mentions begin that do not end."""
        left = sorted((line, cluster) for cluster, begun in self._begun.items() for _, line in begun)
        return [
            (line, f"({cluster} does not close: expected {cluster}) before #end document") for line, cluster in left
        ]

    def found(self) -> Clusters:
        """All clusters."""
        return sorted_clusters(self._clusters.values())


def write_conll(
    path: pathlib.Path, documents: Sequence[Document], clusters_of_each: Sequence[GivenClusters | None]
) -> None:
    """Writes twelve columns as the official scorer (v8.01) reads them, with these clusters instead of the documents' own.

    Blanks in words, names and speakers become `_`. A mention that is twice in a cluster is written once. ValueError, before
    anything is written, where a mention lies outside of its document, or where two mentions of a cluster cross or share
    only their end and beginning: brackets cannot say which is which.
    """
    both = list(zip(documents, clusters_of_each, strict=True))
    problems = [
        f"document {document.name!r}, part {document.part}: {problem}"
        for document, clusters in both
        for problem in _unwritable(sorted_clusters(clusters or ()), len(document.speakers))
    ]
    if problems:
        raise ValueError(f"{path}: not written:\n" + "\n".join(f"  - {each}" for each in problems))
    with open(path, "w", encoding="utf-8", errors="replace", newline="\n") as file:
        for document, clusters in both:
            file.writelines(f"{line}\n" for line in _lines(document, sorted_clusters(clusters or ())))


def writable(clusters: Clusters) -> Clusters:
    """The clusters without mentions that brackets cannot tell from others of their cluster: of two that cross, or where one
    begins with the last word of the other, the later one is left out."""
    return sorted_clusters(_nested(cluster)[0] for cluster in clusters)


def _nested(cluster: Iterable[Mention]) -> tuple[list[Mention], list[tuple[Mention, Mention]]]:
    """(mentions that brackets can hold together, each other one behind the mention that it crosses)."""
    kept: list[Mention] = []
    crossing: list[tuple[Mention, Mention]] = []
    open_: list[Mention] = []  # mentions around the next one, the outer ones first
    for first, last in sorted({*cluster}, key=lambda each: (each[0], -each[1])):
        while open_ and open_[-1][1] < first:
            open_.pop()
        if open_ and open_[-1][0] < first and open_[-1][1] < last:
            crossing.append((open_[-1], (first, last)))
            continue
        open_.append((first, last))
        kept.append((first, last))
    return kept, crossing


def _unwritable(clusters: Clusters, words: int) -> Iterator[str]:
    for cluster in clusters:
        outside = {mention for mention in cluster if not 0 <= mention[0] <= mention[1] < words}
        for mention in sorted(outside):
            yield f"mention {mention}: expected words from 0 to {words - 1}"
        for around, mention in _nested({*cluster} - outside)[1]:
            yield (
                f"mentions {around} and {mention} of a cluster cross: expected one inside of the other or"
                " apart; write JSON lines, which can hold them"
            )


def _lines(document: Document, clusters: Clusters) -> Iterator[str]:
    name = _BLANKS.sub("_", document.name)
    yield f"#begin document ({name}); part {document.part:03d}"
    coreference = _coreference(clusters, len(document.speakers))
    place = 0
    for sentence in document.sentences:
        for number, word in enumerate(sentence):
            speaker = _BLANKS.sub("_", document.speakers[place]) or "-"
            written = _BLANKS.sub("_", word) or "_"
            columns = [name or "-", str(document.part), str(number), written, *("-", "*", "-", "-", "-"), speaker, "*"]
            yield "\t".join([*columns, coreference[place]])
            place += 1
        yield ""
    yield "#end document"


def _coreference(clusters: Clusters, words: int) -> list[str]:
    """The last column of every word: ends, then mentions of one word, then beginnings; inner ones end first, begin last."""
    begins: list[list[tuple[int, str]]] = [[] for _ in range(words)]
    single: list[list[str]] = [[] for _ in range(words)]
    ends: list[list[tuple[int, str]]] = [[] for _ in range(words)]
    for number, cluster in enumerate(clusters):
        for first, last in {*cluster}:
            if first == last:
                single[first].append(f"({number})")
            else:
                begins[first].append((-last, f"({number}"))
                ends[last].append((-first, f"{number})"))
    both = zip(ends, single, begins, strict=True)
    return [
        "|".join([*(text for _, text in sorted(end)), *sorted(one), *(text for _, text in sorted(begin))]) or "-"
        for end, one, begin in both
    ]
