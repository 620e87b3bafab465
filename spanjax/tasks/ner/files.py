"""Files of tagged words in columns, as CoNLL-2003 (Tjong Kim Sang and De Meulder, 2003): a word a line, a blank line after a
sentence; and tags of entities in the schemes that are learnt.

Columns are cut at tabs where a line has one, else at blanks. Lines of `-DOCSTART-` end a sentence and are no words.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.tables import quoted, read_lines
from spanjax.scoring.entities import Entity, spans
from spanjax.tasks.base import Examples

Scheme = Literal["iob2", "bioes"]
PREFIXES: dict[Scheme, str] = {"iob2": "BI", "bioes": "BIES"}
DOCUMENT = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLU]-.+")
_BILOU = {"L": "E", "U": "S"}


class Tagged(NamedTuple):
    """One sentence."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    """A tag a word, in the requested scheme; None in a file without tags."""
    starts: tuple[int, ...] | None = None
    """First character of each word in the text; None where the input is a list of words."""


def read_tagged(path: pathlib.Path, scheme: Scheme, word: int = 0, tag: int = -1, before: str = "") -> Examples:
    """Reads the sentences of a file. `word` and `tag` are columns from 0, or from the end as -1; the prefix `before` is
    removed from words. A file whose first line has one column has no tags.

    Tags may be IOB1, IOB2, IOE, BIOES or BILOU: `scoring.entities` defines where their entities begin and end.
    """
    examples = Examples()
    words: list[str] = []
    tags: list[str] = []
    tagged: bool | None = None
    bad = False

    def finish() -> None:
        if words and not bad:
            examples.append(Tagged(tuple(words), retagged(tags, scheme) if tagged else None))
        words.clear()
        tags.clear()

    for number, line in read_lines(path):
        columns = [each.strip(" ") for each in line.split("\t")] if "\t" in line else line.split(" ")
        columns = columns if "\t" in line else [each for each in columns if each]
        if not clean(line).strip() or columns[0].startswith(DOCUMENT):
            finish()
            bad = False
            continue
        tagged = len(columns) > 1 if tagged is None else tagged
        problem = _problem(columns, word, tag if tagged else word)
        if not problem and not tagged and len(columns) > 1:
            problem = f"{len(columns)} columns: expected one, as in the first line, which has no tag"
        if not problem and tagged:
            problem = tag_problem(columns[tag])
        if problem:
            examples.problems.append(f"{path}:{number}: {problem}")
            # the whole sentence is skipped: without this word its entities could join or change
            bad = True
            continue
        words.append(columns[word].removeprefix(before) or columns[word])
        tags.append(columns[tag] if tagged else "O")
    finish()
    return examples


def _problem(columns: Sequence[str], word: int, tag: int) -> str:
    needed = max(place + 1 if place >= 0 else -place for place in (word, tag))
    if len(columns) < needed or (word != tag and word % len(columns) == tag % len(columns)):
        what = f"word in column {word} and tag in column {tag}" if word != tag else f"word in column {word}"
        return f"{len(columns)} column{'s' * (len(columns) > 1)}: expected {what}"
    return "" if columns[word] else "no word: expected one before the first tab"


def tag_problem(tag: object) -> str:
    """Reason why a value is no tag of a known scheme; "" where it is one."""
    good = isinstance(tag, str) and _TAG.fullmatch(tag)
    return "" if good else f"tag {quoted(tag)}: expected O, or B-, I-, E- or S- and a type"


def retagged(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The same entities in another scheme."""
    known = [_BILOU.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return tags_of(spans(known), len(tags), scheme)


def tags_of(entities: Sequence[Entity], words: int, scheme: Scheme) -> tuple[str, ...]:
    """A tag for each of `words` words, from entities (type, first word, word after the last) that do not overlap."""
    tags = ["O"] * words
    for kind, first, last in entities:
        letters = ["B", *"I" * (last - first - 1)]
        if scheme == "bioes":
            letters[-1] = "E" if last - first > 1 else "S"
        tags[first:last] = [f"{letter}-{kind}" for letter in letters]
    return tuple(tags)
