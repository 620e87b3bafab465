"""Files of relation extraction: TACRED's JSON (Zhang et al., 2017) and the text of SemEval-2010 task 8 (Hendrickx et al., 2010).

A list of objects in a .json file, or one a line in a .jsonl file, has `id`, `relation`, `token`, `subj_start`, `subj_end`,
`obj_start`, `obj_end` (ends are the last word), `subj_type`, `obj_type`. SemEval's text is `8001<TAB>"The <e1>child</e1> in the
<e2>cradle</e2>."`, the relation in the next line, a comment in the one after that. Files may be compressed.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spanjax.data.sources.columns import Columns, Role
from spanjax.data.sources.tables import JSON_KINDS, is_whole, kind_of, list_in_text, number_in_text, quoted, read_lines
from spanjax.scoring.relation import SEMEVAL_LABELS
from spanjax.tasks.base import Examples

_BRACKETS = {
    f"-{letters}-": bracket
    for lower, bracket in zip(("lrb", "rrb", "lsb", "rsb", "lcb", "rcb"), "()[]{}", strict=True)
    for letters in (lower, lower.upper())
}
_NUMBERED = re.compile(r"(\d+)\t(.*)")
_TAG = re.compile(r"(</?e[12]>)")
_TAGS = ("<e1>", "</e1>", "<e2>", "</e2>")


class Mentions(NamedTuple):
    """One example."""

    name: str
    """Its id in the file, or its number in the file from 0."""
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], tuple[int, int]]
    """First word and word after the last, of subject and object; they may overlap."""
    kinds: tuple[str, str]
    """Types of subject and object; empty in a file without types."""
    label: str | None
    """The relation; None in a file without relations."""


_ENDS = ("subj_start", "subj_end", "obj_start", "obj_end")
COLUMNS = Columns(
    roles=(
        Role("text", ("text",)),
        Role("relation", ("relation", "label"), "label"),
        Role("token", ("token", "tokens", "words"), "list"),
        *(Role(name, (name,), "number") for name in _ENDS),
        *(Role(name, (name,), "id") for name in ("subj_type", "obj_type", "id")),
    ),
    needed=(("text",), ("token", *_ENDS)),
    expected="`text` with <e1> and <e2>, or TACRED's `token`, `subj_start`, `subj_end`, `obj_start`, `obj_end`; and `relation`",
)


def read_tacred(
    path: pathlib.Path, labels: Sequence[str] = (), typed: bool = True, table: Columns = COLUMNS
) -> Examples:
    """Reads the examples of a table. `labels` are the allowed ones; empty allows any. Types of entities may be absent where
    not `typed`. Words are used verbatim, except for the brackets of the Penn Treebank: -LRB- is a parenthesis.

    In CSV and tab-separated files the words are a JSON list or stand between blanks. ValueError for a table without the columns.
    """
    examples = Examples()
    for number, (place, record, problem) in enumerate(table.records(path)):
        example = None
        if record is not None:
            record = usual_names(record, cells=kind_of(path) not in JSON_KINDS)
            example, problem = read_mentions(record, number, labels, typed)
            if example is not None and "text" in record:
                example, problem = _with_relation(example, record, labels)
            if "relation" not in record and not examples.hints:
                examples.hints.append(f"{path}: {table.label_hint(record)}")
        examples.take(place, example, problem)
    return examples


def usual_names(record: Mapping[str, Any], cells: bool = True) -> dict[str, Any]:
    """The record under TACRED's names; with `cells` those of a table: text may hold a list or a number, and be empty."""
    named = {role.key: next(record[name] for name in role.columns if name in record) for role in COLUMNS.roles
             if not record.keys().isdisjoint(role.columns)}  # fmt: skip
    if not cells:
        return named
    if "token" in named:
        named["token"] = list_in_text(named["token"])
    found = {name: number_in_text(value) if name in _ENDS else value for name, value in named.items()}
    # an empty cell is a relation that is not known
    return {name: value for name, value in found.items() if name != "relation" or value not in ("", None)}


def _with_relation(
    example: Mentions, record: Mapping[str, Any], labels: Sequence[str]
) -> tuple[Mentions, str] | tuple[None, str]:
    problem = _label_problem(record, labels)
    return (None, problem) if problem else (example._replace(label=record.get("relation")), "")


def _label_problem(record: Mapping[str, Any], labels: Sequence[str]) -> str:
    if "relation" not in record:
        return ""
    label = record["relation"]
    if not isinstance(label, str) or not label or "\n" in label:
        return f"`relation` is {_excerpt(record, 'relation')}: expected a name"
    return f"`relation` is {label!r}: expected one of {', '.join(labels)}" if labels and label not in labels else ""


def read_mentions(
    record: Mapping[str, Any], number: int, labels: Sequence[str] = (), typed: bool = True
) -> tuple[Mentions, str] | tuple[None, str]:
    """(the example of one record in TACRED's form, or with `text` that has SemEval's tags, or None; its problems)."""
    if isinstance(record.get("text"), str):
        return _sentence(str(record.get("id", number)), record["text"])
    if problems := _record_problems(record, labels, typed):
        return None, "; ".join(problems)
    subject, other = ((record[f"{role}_start"], record[f"{role}_end"] + 1) for role in ("subj", "obj"))
    words = tuple(str(_BRACKETS.get(word, word)) for word in record["token"])
    kinds = (record.get("subj_type") or "", record.get("obj_type") or "")
    return Mentions(str(record.get("id", number)), words, (subject, other), kinds, record.get("relation")), ""


def _record_problems(record: Mapping[str, Any], labels: Sequence[str], typed: bool) -> list[str]:
    """Returns all problems of a record of TACRED's form, by field."""
    words = record.get("token")
    found = []
    # every fault is collected, so that one run names all that a user must correct in the record
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        found.append(f"`token` is {_excerpt(record, 'token')}: expected a list of words")
        words = []
    for role in ("subj", "obj"):
        first, last = (record.get(f"{role}_{end}") for end in ("start", "end"))
        for end in ("start", "end"):
            place = record.get(f"{role}_{end}")
            if not is_whole(place) or (words and not 0 <= place < len(words)):
                what = f"0 to {len(words) - 1}" if words else "the number of a word from 0"
                found.append(f"`{role}_{end}` is {_excerpt(record, f'{role}_{end}')}: expected {what}")
        if is_whole(first) and is_whole(last) and last < first:
            found.append(f"`{role}_end` {last} is before `{role}_start` {first}: expected the last word of the entity")
        kind = record.get(f"{role}_type")
        if (typed or kind) and (not isinstance(kind, str) or not kind):
            found.append(f"`{role}_type` is {_excerpt(record, f'{role}_type')}: expected a name")
    if problem := _label_problem(record, labels):
        found.append(problem)
    if not isinstance(record.get("id", 0), int | str):
        found.append(f"`id` is {_excerpt(record, 'id')}: expected a name or a number")
    return found


def _excerpt(record: Mapping[str, Any], name: str) -> str:
    return quoted(record[name]) if name in record else "absent"


def read_semeval(path: pathlib.Path) -> Examples:
    """The examples of a text file of SemEval-2010 task 8; e1 is the subject, e2 the object, and they have no types.

    Words end at blanks and at the tags, so that a full stop after an entity is a word of its own. A test file without
    relations has the sentences alone.
    """
    examples = Examples()
    begun: list[Any] = []  # place, example and problem of the last sentence read

    def finish() -> None:
        if begun:
            examples.take(*begun)
        begun.clear()

    for number, line in read_lines(path):
        place = f"{path}:{number}"
        if found := _NUMBERED.fullmatch(line):
            finish()
            example, problem = _sentence(found[1], found[2])
            begun[:] = [place, example, problem]
        elif not line.strip() or line.startswith("Comment"):
            continue
        elif not begun or (begun[1] is not None and begun[1].label is not None):
            examples.problems.append(f"{place}: {line[:60]!r}: expected a number, a tab and a sentence, or a comment")
        elif line.strip() not in SEMEVAL_LABELS:
            begun[2] = begun[2] or f"relation {line.strip()[:60]!r}: expected one of {', '.join(SEMEVAL_LABELS)}"
        elif begun[1] is not None:
            begun[1] = begun[1]._replace(label=line.strip())
    finish()
    return examples


def _sentence(name: str, text: str) -> tuple[Mentions, str] | tuple[None, str]:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    places: dict[str, int] = {}
    words: list[str] = []
    tags: list[str] = []
    for piece in _TAG.split(text):
        if piece in _TAGS:
            tags.append(piece)
            places[piece] = len(words)
        else:
            words += piece.split()
    if sorted(tags) != sorted(_TAGS):
        return None, f"tags {' '.join(tags) or 'absent'}: expected each of {' '.join(_TAGS)} once"
    subject, other = ((places[f"<e{n}>"], places[f"</e{n}>"]) for n in (1, 2))
    empty = [f"<e{n}>" for n, (first, last) in enumerate((subject, other), start=1) if last <= first]
    if empty:
        return None, f"no words from {' and '.join(empty)} to its end: expected the words of an entity between the tags"
    return Mentions(name, tuple(words), (subject, other), ("", ""), None), ""
