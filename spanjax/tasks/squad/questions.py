"""Questions on a passage whose answers are spans of it: files of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), of MRQA
2019 (Fisch et al., 2019), and a user's own.

.json is SQuAD's form, or a list of records. A record (a line of .jsonl, a row of a table) is a context of MRQA with its `qas` (a
line with a `header` is skipped), or one question: `id`, `question`, `context`, and `answers` as [{"text", "start"}] or {"text":
[...], "answer_start": [...]}, in CSV as JSON, or one `answer` with `answer_start`. An empty list or answer means that the passage
has no answer; without `answers` they are unknown.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spanjax.data.sources.cleaning import clean
from spanjax.data.sources.columns import Columns, Role
from spanjax.data.sources.tables import TABLES, TableRecord, kind_of, number_in_text, quoted, read_json
from spanjax.json_files import parse_json
from spanjax.scoring.squad import normalize_answer
from spanjax.tasks.base import Examples

COLUMNS = Columns(
    roles=(
        Role("question", ("question",)),
        Role("context", ("context", "passage")),
        Role("contexts", ("contexts", "passages"), "list"),
        Role("answers", ("answers",), "list"),
        Role("answer", ("answer",)),
        Role("answer_start", ("answer_start",), "number"),
        Role("id", ("id",), "id"),
        Role("qas", ("qas",), "list"),
        Role("header", ("header",), "id"),
    ),
    needed=(("question", "context"), ("question", "contexts"), ("qas", "context"), ("header",)),
    expected="`question` and `context`; with labels also `answers`, or `answer` and `answer_start`",
)
SHOWN_NAMES = 3  # ids in a note
Span = tuple[int, int]


class Question(NamedTuple):
    """One example."""

    name: str
    """The file's id."""
    question: str
    context: str
    answers: tuple[str, ...] | None
    """The texts that count as right; none of them: the passage has no answer; None: not known."""
    spans: tuple[Span, ...]
    """Positions of answers in the context, [start, end) in characters, in the file's order, without blanks at the ends; none
    with several passages."""
    more: tuple[str, ...] = ()
    """Further passages, ranked together with the context: for predictions and scores, not for training."""

    @property
    def contexts(self) -> tuple[str, ...]:
        """All passages."""
        return (self.context, *self.more)


class _WrongError(Exception):
    """Problem of one question, with the expected form."""


Found = Iterator[tuple[str, Question | str]]  # (place, the question or its problem)


def read_questions(path: pathlib.Path, unanswerable: bool, table: Columns = COLUMNS) -> Examples:
    """Reads the questions of a file of SQuAD's form or of a table; the problems name the line, in SQuAD's form the question.

    Every answer must be at its offset (blanks aside), and every id must come once. `unanswerable` allows questions without
    an answer. ValueError for a file that cannot be read or of no form known here.
    """
    kind = kind_of(path)
    if kind not in TABLES:
        raise ValueError(
            f"{path}: a file of questions is SQuAD's .json, .jsonl as MRQA's, or a table with a question a row"
            f" ({', '.join(TABLES)}); name it so"
        )
    examples, places = Examples(), {}
    for place, found in _squad(path, table) if kind == ".json" else _records(table.records(path)):
        problem = ""
        if isinstance(found, str):
            problem = found
        # predictions.json maps ids to answers: a repeated id would lose one
        elif found.name in places:
            problem = f"the id {found.name!r} again, first at {places[found.name]}; expected it once"
        elif found.answers == () and not unanswerable:
            problem = "no answer; expected at least one, or --objective.version 2.0 for questions without"
        else:
            places[found.name] = place
        examples.take(place, found, problem)
    return examples


def read_question(record: Mapping[str, Any], number: int) -> Question | str:
    """A user's question, which needs no answers, or its problem; `number` names it where it has no id."""
    record = own_fields({"id": str(number), **record})
    return _read_own(record)


def own_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with `context` and `answers` as in a question of JSON, from the cells that tables of text have for them.

    One `answer` without `answer_start` is at its only place in the context; one with several places is refused.
    """
    fields = dict(record)
    context = fields.setdefault("context", fields.get("passage"))
    answers, answer = fields.get("answers"), fields.get("answer")
    if isinstance(answers, str):
        try:
            fields["answers"] = parse_json(answers) if answers.strip() else None
        except ValueError:
            return fields  # refused as no list
    elif answers is None and isinstance(answer, str):
        start = number_in_text(fields.get("answer_start"))
        if start in (None, "") and isinstance(context, str) and answer and context.count(answer) == 1:
            start = context.index(answer)
        fields["answers"] = [{"text": answer, "start": start}] if answer else []
    return fields


def notes_on_answers(questions: Sequence[Question], as_sets: bool) -> Iterator[str]:
    """Notes on questions with several answers that are read as sets (`as_sets`) or as alternatives.

    Files do not mark the difference. Alternatives of annotators mostly repeat or overlap each other (those of 92 % of the
    questions that have several in SQuAD's dev sets), parts of one answer do not (those of 28 of 29 in a part of Quoref).
    """
    several = [each for each in questions if len(each.spans) > 1]
    apart = [each for each in several if _apart(each)]
    if as_sets and several:
        yield (
            f"{len(several):,} of {len(questions):,} questions have several answers, scored as a set: the first is learnt, and a"
            " prediction is one span"
        )
    # the majority decides: either kind of file also has questions that look like the other kind
    if as_sets == (2 * len(apart) > len(several)) or not several:
        return
    names = ", ".join(each.name for each in (several if as_sets else apart)[:SHOWN_NAMES])
    if as_sets:
        yield (
            f"the answers of {len(several) - len(apart):,} of them overlap or repeat: they look like alternatives, as in SQuAD"
            f" ({names}, ...); --objective.answers alternatives reads them so (evaluate: --task squad1)"
        )
    else:
        yield (
            f"{len(apart):,} of {len(several):,} questions with several answers have them at places of their own"
            f" ({names}, ...): they look like parts of one answer, as in Quoref, and are read as alternatives;"
            " --objective.answers set scores them as a set (evaluate: --task quoref)"
        )


def _apart(question: Question) -> bool:
    """True if no two answers share a place or, once normalised, a text."""
    spans, texts = sorted(question.spans), [normalize_answer(text) for text in question.answers or ()]
    separate = all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))
    return separate and len({*texts}) == len(texts)


def _squad(path: pathlib.Path, table: Columns) -> Found:
    content = read_json(path)
    if isinstance(content, list) and content:
        del content  # a list of records is read as that of any task
        yield from _records(table.records(path))
        return
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise ValueError(f'{path}: not in SQuAD\'s form; expected an object with a list "data"')
    for number, article in enumerate(articles, start=1):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            yield f"{path}:article {number}", 'no list "paragraphs"; expected an object with one'
            continue
        for part, paragraph in enumerate(paragraphs, start=1):
            where = f"{path}:article {number}, paragraph {part}"
            questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
            if not isinstance(questions, list):
                yield where, 'no list "qas"; expected an object with one and a "context"'
                continue
            for place, one in enumerate(questions, start=1):
                known = isinstance(one, dict) and isinstance(one.get("id"), str | int)
                name = f"{path}:question {one['id']}" if known else f"{where}, question {place}"
                yield name, _caught(_of_squad, one, paragraph.get("context"))


def _records(records: Iterator[TableRecord]) -> Found:
    for number, (place, record, problem) in enumerate(records):
        if record is None:
            yield place, problem
        elif "qas" in record:
            if not isinstance(record["qas"], list):
                yield place, '"qas" is no list; expected the questions of the context'
                continue
            for count, one in enumerate(record["qas"], start=1):
                found = _caught(_of_mrqa, one, record.get("context"))
                known = one.get("qid", one.get("id", count)) if isinstance(one, dict) else count
                yield place, f"question {known}: {found}" if isinstance(found, str) else found
        elif "header" not in record:
            yield place, _read_own(own_fields({"id": str(number), **record}))


def _read_own(fields: dict[str, Any]) -> Question | str:
    contexts = fields.get("contexts", fields.get("passages"))
    if contexts is None:
        return _caught(_of_own, fields, fields.get("context"))
    try:
        return _of_several(fields, contexts)
    except _WrongError as wrong:
        return str(wrong)


def _caught(read: Any, raw: Any, context: Any) -> Question | str:
    try:
        if not isinstance(raw, dict):
            raise _WrongError(f"a JSON {type(raw).__name__}; expected an object")
        return read(raw, _text(context, "context"))
    except _WrongError as wrong:
        return str(wrong)


def _of_squad(raw: dict[str, Any], context: str) -> Question:
    impossible = raw.get("is_impossible")
    if not isinstance(impossible, bool | None):
        raise _WrongError(f"is_impossible is {impossible!r}; expected true or false")
    answers = _answers(raw.get("answers"))
    if impossible and answers:
        raise _WrongError("is_impossible is true and there are answers; expected one of the two")
    if impossible is False and answers == []:
        raise _WrongError("is_impossible is false and there is no answer; expected one of the two")
    return _made(raw, context, [] if impossible else answers)


def _of_own(raw: dict[str, Any], context: str) -> Question:
    answers = raw.get("answers")
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise _WrongError(
                'answers are an object; expected two lists of one length in it, "text" and "answer_start"'
            )
        answers = [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
    return _made(raw, context, _answers(answers))


def _of_several(raw: dict[str, Any], contexts: Any) -> Question:
    """A question on several passages, whose answers are texts without places."""
    if isinstance(contexts, str):  # a cell of a table
        try:
            contexts = parse_json(contexts)
        except ValueError:
            raise _WrongError(f"contexts are {_short(contexts)}; expected a list of texts, in a cell as JSON") from None
    if not isinstance(contexts, list) or not contexts:
        raise _WrongError(f"contexts are {_short(contexts)}; expected a list of texts")
    if raw.get("context") is not None:
        raise _WrongError("`context` and `contexts`; expected one of the two")
    first, *more = (_text(context, "context") for context in contexts)
    answers = raw.get("answers")
    if isinstance(answers, dict):
        answers = answers.get("text")
    if answers is not None:
        texts = [each.get("text") if isinstance(each, dict) else each for each in answers or ()]
        found = tuple(text for text in texts if isinstance(text, str) and text.strip())
        if not isinstance(answers, list) or len(found) < len(texts):
            raise _WrongError(f"answers are {_short(answers)}; expected a list of texts")
        answers = found
    return Question(_name(raw.get("id")), _text(raw.get("question"), "question"), first, answers, (), tuple(more))


def _of_mrqa(raw: dict[str, Any], context: str) -> Question:
    name, question = _name(raw.get("qid", raw.get("id"))), _text(raw.get("question"), "question")
    texts, detected = raw.get("answers"), raw.get("detected_answers")
    if texts is None and detected is None:
        return Question(name, question, context, None, ())
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _WrongError(f"answers are {_short(texts)}; expected a list of texts")
    if not isinstance(detected, list) or (texts and not detected):
        raise _WrongError(f"detected_answers are {_short(detected)}; expected a list with an answer of the context")
    return Question(name, question, context, tuple(texts), tuple(_detected(detected, context)))


def _detected(detected: Sequence[Any], context: str) -> Iterator[Span]:
    for one in detected:
        text, spans = (one.get("text"), one.get("char_spans")) if isinstance(one, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(spans, list) or not spans:
            raise _WrongError(f'a detected answer is {_short(one)}; expected "text" and a list "char_spans"')
        for span in spans:
            if not (isinstance(span, list) and len(span) == 2 and all(type(place) is int for place in span)):
                raise _WrongError(f"a char_span is {_short(span)}; expected [first character, last character]")
            start, end = span[0], span[1] + 1
            there = context[start:end] if 0 <= start < end <= len(context) else ""
            if not there.strip() or (
                there.split() != text.split() and normalize_answer(there) != normalize_answer(text)
            ):
                raise _WrongError(f"the characters {span} are {_short(there)}; expected the answer {_short(text)}")
            yield _bare(there, start)


def _made(raw: dict[str, Any], context: str, answers: list[tuple[str, int]] | None) -> Question:
    name, question = _name(raw.get("id")), _text(raw.get("question"), "question")
    spans = tuple(_located(context, text, start) for text, start in answers or ())
    return Question(name, question, context, None if answers is None else tuple(text for text, _ in answers), spans)


def _answers(answers: Any) -> list[tuple[str, int]] | None:
    """(text, offset) of every answer; None where the file has no answers field."""
    if answers is None:
        return None
    if not isinstance(answers, list):
        raise _WrongError(f"answers are {_short(answers)}; expected a list")
    found = []
    for one in answers:
        text, start = None, None
        if isinstance(one, dict):
            text, start = one.get("text"), one.get("answer_start", one.get("start"))
        if not isinstance(text, str) or type(start) is not int:
            raise _WrongError(f"an answer is {_short(one)}; expected its text and, a whole number, where it starts")
        found.append((text, start))
    return found


def _located(context: str, text: str, start: int) -> Span:
    """The span of an answer that begins at `start`; one blank between its words is as good as another, or several."""
    words = r"\s+".join(map(re.escape, text.split()))
    if not words:
        raise _WrongError("an empty answer; expected a text of the context")
    if start >= 0 and context.startswith(text, start):
        return _bare(text, start)
    before = r"\s*" if text[0].isspace() else ""
    if found := re.compile(f"{before}({words})").match(context, start) if 0 <= start < len(context) else None:
        return found.span(1)
    places = [match.start() for match in re.finditer(words, context)]
    if not places:
        raise _WrongError(f"the answer {_short(text)} is not in the context; expected its very words")
    nearest = min(places, key=lambda place: abs(place - start))
    there = context[start : start + len(text)] if start >= 0 else ""
    raise _WrongError(f"at {start} is {_short(there)}; expected the answer {_short(text)}, which is at {nearest}")


def _bare(text: str, start: int) -> Span:
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def _name(name: Any) -> str:
    if type(name) not in (str, int) or name == "":
        raise _WrongError(f"the id is {_short(name)}; expected a text")
    return str(name)


def _text(text: Any, what: str) -> str:
    if not isinstance(text, str):
        raise _WrongError(f"the {what} is {_short(text)}; expected a text")
    if not clean(text).strip():
        raise _WrongError(f"the {what} is empty; expected a text")
    return text


def _short(value: Any) -> str:
    return "missing" if value is None else quoted(value)
