"""Plain text as sentences of words, by spaCy's rules for a language; no model is needed."""

import functools
import re
import sys
from collections.abc import Iterator
from typing import Any

from spanjax.data.annotate import import_spacy

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
_SURROGATES = re.compile("[\ud800-\udfff]")

Offsets = tuple[tuple[int, int], ...]


@functools.cache
def _rules(language: str) -> Any:
    model = import_spacy().blank(language)
    model.add_pipe("sentencizer")
    model.max_length = sys.maxsize  # the limit is for parsers: rules need little memory
    return model


def split_text(text: str, language: str = "en") -> tuple[tuple[tuple[str, ...], ...], Offsets]:
    """Words of each sentence, none empty, and of each word its first character and the one behind its last.

    `text[start:end]` is the word. Blanks are no words, a blank line ends a sentence. `language` is a code that spaCy has
    rules for. ValueError with what to install where spaCy is absent.
    """
    sentences, offsets = [], []
    for first, last in _paragraphs(text):
        for sentence in _rules(language)(_SURROGATES.sub("\ufffd", text[first:last])).sents:
            places = [(first + word.idx, first + word.idx + len(word)) for word in sentence if not word.text.isspace()]
            if places:
                sentences.append(tuple(text[start:end] for start, end in places))
                offsets += places
    return tuple(sentences), tuple(offsets)


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for end in _PARAGRAPH_END.finditer(text):
        yield start, end.start()
        start = end.end()
    yield start, len(text)
