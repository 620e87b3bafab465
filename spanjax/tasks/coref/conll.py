"""Coreference in the columns of CoNLL-2012 (Pradhan et al., 2012), as OntoNotes and LitBank have them, and of OntoGUM.

A word a line, a blank line after a sentence, `#begin document (NAME); part 000` and `#end document` around a part. Columns
are cut at tabs where a line has one, else at blanks: name, part, number, word, ..., coreference last; the tenth is the
speaker where there are twelve or more. Or they are three: number, word, coreference, as OntoGUM is released.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from spanjax.data.sources.tables import kind_of, read_lines
from spanjax.tasks.base import Examples
from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention, sorted_clusters
from spanjax.tasks.coref.text import bare_name, sentences_of

NONE = ("", "-", "_")
"""Values of an empty column; the empty string is LitBank's."""
WORD, SPEAKER, SPEAKER_COLUMNS, FEWEST_COLUMNS = 3, 9, 12, 5
SHORT_WORD, SHORT_COLUMNS = 1, 3
_LAYOUTS = "name, part, number, word, ..., coreference, as in CoNLL-2012, or number, word, coreference"
_BEGIN = re.compile(r"#\s*begin document\b\s*(.*)")
_NAME = re.compile(r"\((.*)\)\s*;?\s*(?:part\s+(\d+))?\s*")
_END = re.compile(r"#\s*end document")
_BRACKET = re.compile(r"\([^()|\s]+\)?|[^()|\s]+\)")
_ENDS = {"/.": ".", "/?": "?"}


class _Part(NamedTuple):
    line: int
    """Line of `#begin document`."""
    name: str
    part: int
    lines: list[tuple[int, str]]


def genre_of(name: str) -> str:
    """The part of a document's name before the first slash: `nw` of `nw/wsj/24/wsj_2400`; "" without a slash."""
    return name.partition("/")[0] if "/" in name else ""


def read_conll(path: pathlib.Path) -> Examples:
    """Reads the parts of a file as Documents; skips one with a bad line as a whole. The words `/.` and `/?` become `.` and `?`.

    A bracket closes the mention of its cluster that was begun last. A mention that is annotated in two clusters stays in
    both (OntoGUM has five), one that is twice in a cluster stays twice, as the official scorer counts it. A part without a name
    has that of the file. A part of three columns without blank lines is split into sentences, see `sentences_of`. ValueError
    where the file cannot be read.
    """
    examples = Examples()
    for part in _parts(path, examples.problems):
        document, problems = _document(part)
        examples.problems += [f"{path}:{line}: {problem}" for line, problem in problems]
        if not problems:
            examples.append(document)
    return examples


def read_clusters(path: pathlib.Path) -> Examples:
    """Reads the clusters of a key or a response of the official scorer, whose lines have any columns, coreference last.

    Words are empty; name, part and clusters are those of the file. Clusters and mentions keep the order in which the scorer
    meets them, which decides the repeated mentions that it drops. Problems are as in `read_conll`.
    """
    examples = Examples()
    for part in _parts(path, examples.problems):
        brackets, problems, words, width = _Brackets(), list[tuple[int, str]](), 0, 0
        for number, line in part.lines:
            if not line.strip():
                width = 0
                continue
            columns = _columns(line, width)
            width = width or len(columns)
            if problem := brackets.read(columns[-1], words, number, as_scorer=True):
                problems.append((number, problem))
            words += 1
        problems += brackets.unclosed()
        examples.problems += [f"{path}:{line}: {problem}" for line, problem in problems]
        if not problems:
            document = CorefDocument(part.name, part.part, (("",) * words,) * bool(words), ("",) * words)
            examples.append(dataclasses.replace(document, clusters=brackets.met()))
    return examples


def _parts(path: pathlib.Path, problems: list[str]) -> Iterator[_Part]:
    begun: _Part | None = None
    outside = False
    for number, line in read_lines(path):
        if found := _BEGIN.match(line):
            problems += _endless(path, begun)
            named = _NAME.fullmatch(found[1])
            name = named[1] if named else found[1].strip() or bare_name(path, kind_of(path))
            begun = _Part(number, name, int((named and named[2]) or 0), [])
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


def _document(part: _Part) -> tuple[CorefDocument, list[tuple[int, str]]]:
    """The document, and the problems of its lines by number."""
    sentences: list[list[str]] = [[]]
    speakers: list[str] = []
    brackets = _Brackets()
    problems: list[tuple[int, str]] = []
    wordless, width, short = 0, 0, None
    for number, line in part.lines:
        if not line.strip():
            sentences.append([])
            width = 0
            continue
        if line.startswith("# "):
            continue
        columns = _columns(line, width)
        width = width or len(columns)
        short = len(columns) == SHORT_COLUMNS if short is None else short
        if problem := _wordless(columns, short):
            wordless += 1
            if wordless == 1:  # of a file in another layout every line is wrong
                problems.append((number, problem))
            continue
        if problem := brackets.read(columns[-1], len(speakers), number):
            problems.append((number, problem))
        speaker = columns[SPEAKER] if len(columns) >= SPEAKER_COLUMNS else ""
        speakers.append("" if speaker in NONE else speaker)
        word = columns[SHORT_WORD if short else WORD]
        sentences[-1].append(_ENDS.get(word, word))
    if wordless > 1:
        problems.append((part.line, f"document {part.name!r} has {wordless} such lines: expected none"))
    problems += brackets.unclosed()
    if not speakers and not problems:
        problems.append((part.line, f"document {part.name!r} has no words: expected a line for each"))
    words = tuple(tuple(sentence) for sentence in sentences if sentence)
    if short and len(words) == 1:
        words = sentences_of(words[0])
    return CorefDocument(part.name, part.part, words, tuple(speakers), brackets.found(), genre_of(part.name)), problems


def _wordless(columns: list[str], short: bool) -> str:
    """Reason why the columns have no word, in a part of three columns or one of more; "" where they have one."""
    if len(columns) != SHORT_COLUMNS if short else len(columns) < FEWEST_COLUMNS:
        return f"{len(columns)} columns: expected {_LAYOUTS}"
    return "" if columns[SHORT_WORD if short else WORD] else f"no word: expected {_LAYOUTS}"


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
        self._clusters: dict[str, list[Mention]] = {}
        self._begun: dict[str, list[tuple[int, int]]] = {}  # word and line at which mentions of a cluster were begun

    def read(self, column: str, word: int, line: int, as_scorer: bool = False) -> str:
        """Takes the coreference column of a word; returns its problem, or "".

        `as_scorer` takes mentions of one word first, then all that begin, then all that end, each from the left.
        """
        if column in NONE:
            return ""
        parts = [(part, _BRACKET.findall(part)) for part in column.split("|")]
        if any(not part or "".join(brackets) != part for part, brackets in parts):
            return f"coreference {column!r}: expected brackets such as (3, 3) or (3), joined with | or nothing, or -"
        found = [bracket for _, brackets in parts for bracket in brackets]
        if as_scorer:
            found.sort(key=lambda bracket: (not bracket.startswith("("), not bracket.endswith(")")))
        for bracket in found:
            self._clusters.setdefault(bracket.strip("()"), [])
        for bracket in found:
            cluster = bracket.strip("()")
            begun = self._begun.setdefault(cluster, [])
            if bracket.startswith("("):
                begun.append((word, line))
            if bracket.endswith(")"):
                if not begun:
                    return f"{bracket} closes a mention that was not begun: expected ({cluster} at this word or before"
                self._clusters.setdefault(cluster, []).append((begun.pop()[0], word))
        return ""

    def unclosed(self) -> list[tuple[int, str]]:
        """Lines at which mentions begin that do not end."""
        left = sorted((line, cluster) for cluster, begun in self._begun.items() for _, line in begun)
        return [
            (line, f"({cluster} does not close: expected {cluster}) before #end document") for line, cluster in left
        ]

    def met(self) -> Clusters:
        """All clusters in the order of their first brackets, mentions in that of their ends."""
        return tuple(map(tuple, self._clusters.values()))

    def found(self) -> Clusters:
        """All clusters, sorted."""
        return sorted_clusters(self._clusters.values())
