"""Spans of texts that are no n-grams: noun chunks of spaCy, or spans given in a file; mapped onto words.

Shapes: W words of a text, S spans of it.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from spanjax.data.ngrams.segmentation import from_spans
from spanjax.data.sources.annotate import NOUN_PHRASES, annotator_problems, open_annotator
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.documents import checked_spans
from spanjax.tasks.tables import read_records

GIVEN = "given:"
SHOWN = 5
CharacterSpans = Sequence[tuple[int, int]]


def chunker_problems(chunker: str) -> list[str]:
    """Returns the problems of a chunker's name, spacy:MODEL or given:FILE."""
    if chunker.startswith(GIVEN):
        return []
    return [f"chunker: {problem}, or {GIVEN}FILE" for problem in annotator_problems(chunker, [NOUN_PHRASES])]


def chunks(chunker: str, texts: Sequence[str]) -> list[CharacterSpans]:
    """The character spans [start, end) of clean texts. ValueError where the model or the file cannot be used, or the file
    lacks a text."""
    if not chunker.startswith(GIVEN):
        layers = _open(chunker)(texts, [[(0, len(text))] for text in texts], [{}] * len(texts))
        return [layer[NOUN_PHRASES] for layer in layers]
    path = pathlib.Path(chunker.removeprefix(GIVEN))
    known = _read(path, changed(path))
    if lacking := [text for text in texts if text not in known]:
        some = "; ".join(repr(text[:60]) for text in lacking[:SHOWN])
        raise ValueError(f"{path}: no spans for {len(lacking)} sentences ({some}): expected a line for every sentence")
    return [known[text] for text in texts]


def changed(path: pathlib.Path) -> tuple[int, int]:
    """Modification time and size of a file, to notice a change; zeros for a missing file."""
    found = path.stat() if path.is_file() else None
    return (found.st_mtime_ns, found.st_size) if found else (0, 0)


def first_words(start_W: np.ndarray, spans: CharacterSpans) -> np.ndarray:
    """int32 first_S of character spans (`data.ngrams.segmentation`): each has the words that it touches, except those of an
    earlier span."""
    taken, words = 0, []
    for start, end in sorted(spans):
        first, last = (max(0, int(np.searchsorted(start_W, at, side="right")) - 1) for at in (start, end - 1))
        if max(first, taken) <= last:
            words.append((max(first, taken), last + 1))
            taken = last + 1
    return from_spans(words, len(start_W))


@functools.lru_cache(1)
def _open(name: str) -> Any:
    return open_annotator(name, [NOUN_PHRASES])


@functools.lru_cache(2)
def _read(path: pathlib.Path, at: tuple[int, int]) -> dict[str, CharacterSpans]:
    """The spans of every text of a file, by the clean text; `at` only keys the cache, so that a changed file is read again."""
    del at
    found: dict[str, CharacterSpans] = {}
    problems, cleaning = [], Cleaning()
    for place, record, problem in read_records(path):
        try:
            if record is None or not isinstance(record.get("text"), str) or "spans" not in record:
                raise ValueError(problem or 'expected {"text": ..., "spans": [[start, end], ...]}')
            spans = checked_spans({NOUN_PHRASES: record["spans"]}, len(record["text"]))
            text, moved = cleaning.with_spans(record["text"], spans)
            found[text] = moved.get(NOUN_PHRASES, ())
        except ValueError as error:
            problems.append(f"{place}: {error}")
    if problems:
        more = [f"and {len(problems) - SHOWN:,} lines more"] if len(problems) > SHOWN else []
        raise ValueError("\n".join([*problems[:SHOWN], *more]))
    return found
