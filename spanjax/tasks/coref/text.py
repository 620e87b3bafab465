"""Plain text as sentences of words, by spaCy's rules for a language; no model is needed. Files of text, and their names."""

import functools
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from spanjax.data.sources.annotate import import_spacy
from spanjax.data.sources.documents import MAX_DOCUMENT
from spanjax.data.sources.sentences import sentence_spans
from spanjax.data.sources.tables import SUFFIXES, opened

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
_SURROGATES = re.compile("[\ud800-\udfff]")
_CODE = re.compile("[a-z]{2,3}")

Sentences = tuple[tuple[str, ...], ...]
Offsets = tuple[tuple[int, int], ...]


@functools.cache
def _rules(language: str) -> Any:
    spacy = import_spacy()
    expected = "expected a code that spaCy has rules for, such as en, de or zh; xx are rules for any"
    if not _CODE.fullmatch(language):
        raise ValueError(f"the language of text is {language!r}: {expected}")
    try:
        model = spacy.blank(language)
    except ImportError as error:  # the rules, or the package that cuts words in that language
        raise ValueError(f"the language of text is {language!r} ({error}): {expected}") from None
    model.add_pipe("sentencizer")
    model.max_length = sys.maxsize  # the limit is for parsers: rules need little memory
    return model


def split_text(text: str, language: str = "en") -> tuple[Sentences, Offsets]:
    """Words of each sentence, none empty, and of each word its first character and the one behind its last.

    `text[start:end]` is the word. Blanks are no words, a blank line ends a sentence. `language` is a code that spaCy has
    rules for. ValueError where it has none, with what to install where spaCy is absent or cuts words by another package.
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


def sentences_of(words: Sequence[str]) -> Sentences:
    """Sentences of words, none empty, by the rules of `data.sources.sentences` on the words with blanks between them."""
    starts, place = [], 0
    for word in words:
        starts.append(place)
        place += len(word) + 1
    begins = {start for start, _ in sentence_spans(" ".join(words))}
    found: list[list[str]] = []
    for word, start in zip(words, starts, strict=True):
        if start in begins or not found:
            found.append([])
        found[-1].append(word)
    return tuple(map(tuple, found))


def read_text(path: pathlib.Path) -> str:
    """All characters of a text file, plain or compressed, with its line ends unchanged and without a byte order mark.

    ValueError where the file is missing, not readable or not UTF-8.
    """
    with opened(path) as content:
        found = content.read(1 + (MAX_DOCUMENT << 20))
        if len(found) > MAX_DOCUMENT << 20:
            raise ValueError(f"{path} has more than {MAX_DOCUMENT} MiB of text; split it")
        return found.decode("utf-8").removeprefix("\ufeff")


def bare_name(path: pathlib.Path, ending: str) -> str:
    """The name of a file without the ending of a compression and then without `ending`, as `tables.kind_of` returns it."""
    name = path.stem if path.suffix in SUFFIXES else path.name
    return name[: len(name) - len(ending)] if name.lower().endswith(ending) else name
