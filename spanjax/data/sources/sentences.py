"""Sentence splitting by rules; nothing here is learnt or depends on a language's word spaces."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from spanjax.data.sources.sentence_kernels import Rules

_ABBREVIATION_WORDS = """
mr mrs ms dr prof sr jr st rev gen col lt capt sgt gov sen rep hon pres no nos vol vols fig figs eq eqs sec ch pp ed eds
vs cf al ca approx inc ltd co corp dept univ jan feb mar apr jun jul aug sep sept oct nov dec e.g i.e eg ie u.s u.k a.m
p.m viz resp
"""
ABBREVIATIONS = frozenset(_ABBREVIATION_WORDS.split())
_CLOSING = "\"'”’»)\\]」』】）"
_OPENING = "\"'“‘«([¿¡「『【（"
_ANYWHERE = "。！？｡।॥።፧။។៕"  # Chinese and Japanese; the dandas of Hindi; Ethiopic, Burmese, Khmer
_BEFORE_BLANKS = ".!?…؟۔։"  # the last three: Arabic, Urdu, Armenian
_END = re.compile(  # begins with all marks, so that it is searched fast
    rf"[{_BEFORE_BLANKS}{_ANYWHERE}]"
    rf"(?:(?<=[{_BEFORE_BLANKS}])[{_BEFORE_BLANKS}]*[{_CLOSING}]*\s+|(?<=[{_ANYWHERE}])[{_ANYWHERE}]*[{_CLOSING}]*\s*)"
)
_LAST_WORD = re.compile(r"[\w.]+\Z")


_MANY = 100_000
"""Characters from which on the compiled loop is worth its start, about half a second."""


def _splits(text: str, end: re.Match[str], line_end: int) -> bool:
    """True if the sentence marks `end`, inside a line, end a sentence."""
    following = text[end.end()] if end.end() < line_end else ""
    if not following or text[end.start()] in _ANYWHERE:
        return True
    if not (
        following.isupper()
        or following.isdigit()
        or following in _OPENING
        or following.isalpha()
        and not following.islower()
    ):
        return False
    if not end.group().rstrip().endswith(".") or end.group().startswith(".."):
        return True
    word = _LAST_WORD.search(text, max(0, end.start() - 20), end.start())
    if word is None:
        return True
    last = word.group().lower()
    return last not in ABBREVIATIONS and not (len(last) == 1 and word.group().isupper())


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of the sentences of cleaned text, without surrounding blanks, none empty.

    A newline always ends one. Inside a line one ends after . ! ? … ؟ ۔ or ։ (and closing quotes or brackets) before a blank
    and an uppercase letter, a letter without case, a digit or an opening quote, unless an abbreviation or an initial
    stands before the full stop; and after 。！？, a danda and the full stops of Ethiopic, Burmese and Khmer anywhere. Text
    without sentence marks (Thai) is a sentence a line; packing cuts what is longer than a row.
    """
    found = []
    line = 0
    while line <= len(text):
        line_end = text.find("\n", line)
        line_end = len(text) if line_end < 0 else line_end
        start = line
        for end in _END.finditer(text, line, line_end):
            if _splits(text, end, line_end):
                found.append((start, end.end()))
                start = end.end()
        found.append((start, line_end))
        line = line_end + 1
    return [(start, end) for start, end in (_stripped(text, *span) for span in found) if start < end]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def sentences(text: str) -> list[str]:
    """The sentences that `sentence_spans` finds."""
    return [text[start:end] for start, end in sentence_spans(text)]


def spans_of_texts(texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """`sentence_spans` of every text: by a compiled loop if there are many characters and numba is installed."""
    if sum(map(len, texts)) < _MANY:
        return [sentence_spans(text) for text in texts]
    try:
        from spanjax.data.sources import sentence_kernels
    except ModuleNotFoundError:  # numba, which an installation of the core alone lacks
        return [sentence_spans(text) for text in texts]
    found, rules = [], _rules()
    for text in texts:
        chars_C = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        if text and chars_C.max() >= sentence_kernels.KINDS:
            found.append(sentence_spans(text))
        else:
            spans_S = sentence_kernels.spans(chars_C, rules)
            found.append(list(zip(spans_S[:, 0].tolist(), spans_S[:, 1].tolist(), strict=True)))
    return found


@functools.cache
def _rules() -> "Rules":
    """The rules of this module as arrays."""
    from spanjax.data.sources import sentence_kernels as kernels

    # whole columns at a time: a call of Python for each of 65,536 characters and each property takes a fifth of a second
    chars = [*map(chr, range(kernels.KINDS))]

    def each(test: Callable[[str], bool]) -> np.ndarray:
        return np.fromiter(map(test, chars), bool, len(chars))

    upper, alphabetic = each(str.isupper), each(str.isalpha)
    cased = upper | (alphabetic & ~each(str.islower))
    kind = np.where(each(str.isspace), kernels.SPACE, np.uint8(0))
    kind[each(str.isalnum)] |= kernels.WORD
    kind[ord("_")] |= kernels.WORD
    kind[cased | each(str.isdigit)] |= kernels.OPENS
    kind[[code for code in np.flatnonzero(upper).tolist() if len(chars[code].lower()) == 1]] |= kernels.INITIAL
    marks = {
        kernels.OPENS: _OPENING,
        kernels.BEFORE_BLANK: _BEFORE_BLANKS,
        kernels.ANYWHERE: _ANYWHERE,
        kernels.CLOSING: _CLOSING.replace("\\", ""),
    }
    for bit, letters in marks.items():
        kind[[*map(ord, letters)]] |= bit
    words = [int.from_bytes(word.encode(), "big") for word in sorted(ABBREVIATIONS)]
    return kernels.Rules(kind, np.array(words, np.uint64))
