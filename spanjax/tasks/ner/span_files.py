"""Sentences with entities that may be nested or overlap: records of words or text with `entities`, and CoNLL-U.

A record has `tokens` and entities [first word, word after the last, type], or `text` and entities [start, end, type] in
characters, the end excluded; or objects with these names. CoNLL-U has them in its last column: `NER=B-PER`, or the brackets of
CorefUD, `Entity=(e1-person-1`, closed by `e1)`.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spanjax.data.sources.columns import Columns, Role
from spanjax.data.sources.tables import is_whole, list_in_text, quoted, read_lines
from spanjax.scoring.entities import Entity, spans
from spanjax.tasks.base import Examples
from spanjax.tasks.ner.files import Scheme, Tagged, retagged, tag_problem
from spanjax.tasks.ner.records import TAGS, WORDS, record_words

ENTITIES = Role("entities", ("entities", "spans"), "list")
COLUMNS = Columns(
    roles=(WORDS, ENTITIES, TAGS, Role("text", ("text",))),
    needed=(("tokens",), ("text",)),
    expected="`tokens` (or `words`) or `text`, and `entities`",
)
CONLLU = re.compile(r"\.conllu(\.gz|\.xz|\.bz2|\.zst)?$")
FORM, MISC, WIDTH = 1, 9, 10  # columns of CoNLL-U
_ORDER = "# global.Entity = "  # names the fields of a bracket: eid-etype-head-other
_BRACKET = re.compile(r"\(([^()]+)|([^()]+)\)|\)")


class Spanned(NamedTuple):
    """One sentence."""

    words: tuple[str, ...]
    entities: tuple[Entity, ...] | None
    """(type, first word, word after the last), each once and sorted; None where they are unknown."""
    starts: tuple[int, ...] | None = None
    """First character of each word in the text; None where the input is a list of words."""


def from_tags(found: Examples) -> Examples:
    """The sentences of tagged files as `Spanned`."""
    known = [Spanned(each.words, None if each.tags is None else tuple(spans(each.tags))) for each in found]
    examples = Examples(known, found.problems, found.notes)
    examples.hints = found.hints
    return examples


def read_spanned_records(path: pathlib.Path, table: Columns) -> Examples:
    """Reads the sentences of a table, one a record."""
    examples = Examples()
    for place, record, problem in table.records(path):
        example = None
        if record is not None:
            words = {name: list_in_text(record[name]) for name in WORDS.columns if name in record}  # cells of a table
            example, problem = spanned(record | words)
        examples.take(place, example, problem)
    return examples


def spanned(record: Mapping[str, Any]) -> tuple[Spanned | None, str]:
    """(the sentence of a record, or None; its problem, or "")."""
    words, starts, problem = record_words(record)
    if problem:
        return None, problem
    given = list_in_text(next((record[name] for name in ENTITIES.columns if name in record), None))
    if given is None:
        return Spanned(words, None, starts), ""
    if not isinstance(given, list):
        return None, f"`entities` is {quoted(given)}: expected a list of [start, end, type]"
    found = set()
    for each in given:
        entity, problem = _entity(each, words, starts)
        if problem:
            return None, problem
        found.add(entity)
    return Spanned(words, tuple(sorted(found, key=_order)), starts), ""


def _order(entity: Entity) -> tuple[int, int, str]:
    return entity[1], -entity[2], entity[0]


def _entity(given: Any, words: Sequence[str], starts: Sequence[int] | None) -> tuple[Entity, str]:
    """(an entity that counts words, its problem or "")."""
    nothing: Entity = ("", 0, 0)
    if isinstance(given, Mapping):
        given = [given.get("start"), given.get("end"), given.get("type", given.get("label"))]
    good = isinstance(given, list) and len(given) == 3 and all(map(is_whole, given[:2])) and isinstance(given[2], str)
    if not good or not given[2].strip():
        return nothing, f"an entity is {quoted(given)}: expected [start, end, type]"
    start, end, kind = given
    if starts is None:
        if 0 <= start < end <= len(words):
            return (kind, start, end), ""
        return nothing, f"the entity {quoted(given)} has words outside of 0 to {len(words)}, or none"
    firsts = {place: number for number, place in enumerate(starts)}
    ends = {place + len(word): number for number, (place, word) in enumerate(zip(starts, words, strict=True), start=1)}
    if start in firsts and end in ends and firsts[start] < ends[end]:
        return (kind, firsts[start], ends[end]), ""
    return nothing, f"the entity {quoted(given)} does not begin and end with words: expected characters [start, end)"


def is_conllu(path: pathlib.Path) -> bool:
    """True for a file that is named as CoNLL-U."""
    return bool(CONLLU.search(path.name))


def read_conllu(path: pathlib.Path) -> Examples:
    """Reads the sentences of CoNLL-U; without any NER= or Entity= in the file their entities are unknown.

    Lines of multiword tokens (1-2) and empty nodes (1.1) are no words. A sentence with a bad line is skipped as a whole; an
    entity of several parts or sentences is skipped and counted in a note.
    """
    examples, left = Examples(), 0
    # the last sentence tells whether the file has entities at all: examples are made behind it
    sentences: list[tuple[list[str], list[Entity]]] = []
    annotated, kind_at = False, 1
    for place, lines in _blocks(path):
        words, marks, problem = [], [], ""
        for number, line in lines:
            if line.startswith(_ORDER):
                names = line.removeprefix(_ORDER).strip().split("-")
                kind_at = names.index("etype") if "etype" in names else kind_at
            if line.startswith("#"):
                continue
            columns = line.split("\t")
            if len(columns) != WIDTH:
                problem, place = f"{len(columns)} columns: expected the {WIDTH} of CoNLL-U, cut at tabs", number
                break
            if columns[0].isdecimal():
                words.append(columns[FORM])
                marks.append(
                    {name: value for name, _, value in (each.partition("=") for each in columns[MISC].split("|"))}
                )
        if not problem and words:
            annotated = annotated or any("NER" in each or "Entity" in each for each in marks)
            found, lost, problem = _marked(marks, kind_at)
            left += lost
            sentences += [] if problem else [(words, found)]
        if problem:
            examples.problems.append(f"{path}:{place}: {problem}")
    for words, found in sentences:
        examples.append(Spanned(tuple(words), tuple(sorted({*found}, key=_order)) if annotated else None))
    if left:
        examples.notes.append(f"{path}: {left:,} entities of several parts or sentences are skipped")
    return examples


def tagged_conllu(path: pathlib.Path, scheme: Scheme) -> Examples:
    """The sentences of `read_conllu` for tags; a sentence whose entities overlap is a problem."""
    found = read_conllu(path)
    examples = Examples((), found.problems, found.notes)
    for number, each in enumerate(found, start=1):
        problem, last, tags = "", 0, ["O"] * len(each.words)
        for kind, first, end in each.entities or ():
            if first < last:
                problem = "entities overlap: expected none that do, or a model of SpanNer"
            tags[first:end], last = [f"B-{kind}", *[f"I-{kind}"] * (end - first - 1)], max(last, end)
        known = None if each.entities is None else retagged(tags, scheme)
        examples.take(f"{path}:sentence {number}", Tagged(each.words, known), problem)
    return examples


def _blocks(path: pathlib.Path) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """The lines of every sentence with their numbers, and the number of the first."""
    lines: list[tuple[int, str]] = []
    for number, line in read_lines(path):
        if line.strip():
            lines.append((number, line))
        elif lines:
            yield lines[0][0], lines
            lines = []
    if lines:
        yield lines[0][0], lines


def _marked(marks: Sequence[Mapping[str, str]], kind_at: int) -> tuple[list[Entity], int, str]:
    """(entities, those that were skipped, a problem or "") of the last columns of a sentence's words."""
    tags = [each.get("NER", "O") for each in marks]
    if problem := next((problem for tag in tags if (problem := tag_problem(tag))), ""):
        return [], 0, problem
    found, lost = list(spans(retagged(tags, "iob2"))), 0
    opened: list[tuple[str, str, int]] = []  # name, type, first word
    for word, each in enumerate(marks):
        for match in _BRACKET.finditer(each.get("Entity", "")):
            if match[1]:
                fields = match[1].split("-")
                # a part of an entity with gaps, e1[1/2], gets no type
                known = kind_at < len(fields) and "[" not in fields[0]
                opened.append((fields[0], fields[kind_at] if known else "", word))
                continue
            # a bare bracket closes what this word opened last
            places = [at for at, (name, *_) in enumerate(opened) if match[2] in (None, name)]
            _, kind, first = opened.pop(places[-1]) if places else ("", "", 0)
            if kind:
                found.append((kind, first, word + 1))
            lost += not kind
    return found, lost + len(opened), ""
