"""Tables of tagged sentences, one a record: `tokens` and `ner_tags`, as in the data sets of Hugging Face.

Tags are names or numbers. In CSV and tab-separated files the words, and the tags, are a JSON list or stand between blanks.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from spanjax.data.ngrams.dictionary import NgramSettings, find_words
from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.columns import Columns, Role
from spanjax.data.sources.tables import TABLES, is_whole, kind_of, list_in_text, named_classes, quoted, read_lines
from spanjax.tasks.base import Examples
from spanjax.tasks.ner.files import Scheme, Tagged, retagged, tag_problem

WORDS = Role("tokens", ("words", "tokens"), "list")
TAGS = Role("ner_tags", ("ner_tags", "tags"), "label")
COLUMNS = Columns(
    roles=(WORDS, TAGS, Role("text", ("text",))),
    needed=(("tokens",), ("text",)),
    expected="`tokens` (or `words`) and `ner_tags` (or `tags`)",
)


def has_records(path: pathlib.Path, table: Columns) -> bool:
    """True for a file with a sentence a record. A tab-separated file is one if its first line has the names of both columns."""
    kind = kind_of(path)
    if kind != ".tsv":
        return kind in TABLES
    line = next((line for _, line in read_lines(path)), "")
    header = table.renamed(dict.fromkeys(line.split("\t")))
    return all(not header.keys().isdisjoint(role.columns) for role in (WORDS, TAGS))


def read_tagged_records(
    path: pathlib.Path, table: Columns, scheme: Scheme, names: Sequence[str] = (), before: str = ""
) -> Examples:
    """Reads the sentences of a table, one a record; `names` are those of tags that are numbers, and the prefix `before` is
    removed from words. Records without tags are examples without labels.

    ValueError for a table without words, and for tags that are numbers without names.
    """
    examples = Examples()
    for place, record, problem in table.records(path):
        example = None
        if record is not None:
            example, problem = _tagged(record, scheme, names, before)
            if problem is NUMBERS:
                raise ValueError(f"{place}: {NUMBERS}")
            if record.keys().isdisjoint(TAGS.columns) and not examples.hints:
                examples.hints.append(f"{path}: {table.label_hint(record)}")
        examples.take(place, example, problem)
    return examples


NUMBERS = "the tags are numbers: give their names in the order of the numbers, --objective.tag-names O B-PER I-PER ..."


def _tagged(record: Mapping[str, Any], scheme: Scheme, names: Sequence[str], before: str) -> tuple[Tagged | None, str]:
    """(the sentence of a record, or None; its problem, or "")."""
    word_column, tag_column = (next((name for name in role.columns if name in record), "") for role in (WORDS, TAGS))
    if not word_column:
        return None, COLUMNS.problem(record)
    words, problem = words_of(word_column, list_in_text(record[word_column]))
    tags = list_in_text(record.get(tag_column))
    if problem or tags is None:
        return (None, problem) if problem else (Tagged(_without(words, before), None), "")
    if not isinstance(tags, list) or len(tags) != len(words):
        count = f"{len(tags)} tags" if isinstance(tags, list) else quoted(tags)
        return None, f"`{tag_column}` is {count}: expected a tag for each of the {len(words)} words"
    if any(map(is_whole, tags)) and not names:
        return None, NUMBERS
    try:
        tags = named_classes(tags, names)
    except ValueError as error:
        return None, f"`{tag_column}` {error}"
    if problems := [problem for tag in tags if (problem := tag_problem(tag))]:
        return None, problems[0]
    return Tagged(_without(words, before), retagged(tags, scheme)), ""


def record_words(record: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...] | None, str]:
    """(the words of a user's record; the first character of each in its `text`, None for a list of words; the problem or "").

    Texts are split at blanks, with punctuation at the ends of words apart.
    """
    name = next((each for each in WORDS.columns if each in record), "")
    words, text = record.get(name), record.get("text")
    if isinstance(words, list) and words:
        found, problem = words_of(name, words)
        return found, None, problem
    if words is None and isinstance(text, str) and clean(text).strip():
        found = find_words(text, NgramSettings(lower_case=False))
        return tuple(found.words), tuple(found.start_W.tolist()), ""
    name = next((each for each in ("words", "text") if record.get(each) is not None), "")
    given = f"`{name}` is {repr(record[name])[:60]}" if name else f"fields {', '.join(record) or '(none)'}"
    return (), None, f"{given}: expected `words`, a list of words, or `text`, a sentence"


def _without(words: Sequence[str], before: str) -> tuple[str, ...]:
    return tuple(word.removeprefix(before) or word for word in words)


def words_of(column: str, words: Any) -> tuple[tuple[str, ...], str]:
    """(the words of a record, ""), or ((), its problem)."""
    if not isinstance(words, list) or not words:
        return (), f"`{column}` is {quoted(words)}: expected a list of words"
    # a word that is all zero-width characters has no pieces, and is O: what counts is that it is a text and not blank
    wrong = [place for place, word in enumerate(words) if not isinstance(word, str) or not word.strip()]
    if wrong:
        return (), f"`{column}` has {words[wrong[0]]!r} at {wrong[0]}: expected words, none of them empty"
    return tuple(words), ""
