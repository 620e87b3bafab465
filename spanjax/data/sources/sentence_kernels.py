"""The rules of `sentences.sentence_spans` as one compiled loop over the characters of a text; a test compares the two.

Importing this module needs numba. Shapes: C characters of a text, A abbreviations, S sentences.
"""

from typing import NamedTuple

import numpy as np

from spanjax.data.compiled import compiled

SPACE, WORD, OPENS, INITIAL, BEFORE_BLANK, ANYWHERE, CLOSING = (np.uint8(1 << bit) for bit in range(7))
"""Bits of a character: see `Rules.kind`."""
KINDS = 0x10000
"""Characters from this one on have no kind: a text with one is for the plain loop."""
MOST_LETTERS = 8
"""Letters of an abbreviation, which is one number of 64 bits."""
_NEWLINE, _STOP, _UPPER_A, _UPPER_Z, _CASE = np.uint32(10), np.uint32(46), np.uint32(65), np.uint32(90), np.uint32(32)
_KELVIN, _K = np.uint32(0x212A), np.uint64(107)  # the only letter that is not ASCII and whose lower case is
_LETTER = np.uint64(8)
_REACH = 20  # characters before a full stop that are looked at


class Rules(NamedTuple):
    """Characters and words that the loop knows."""

    kind: np.ndarray
    """uint8 [KINDS]: is a space; part of a word; begins a sentence; an initial; the marks; closing quotes."""
    abbreviation_A: np.ndarray
    """uint64, the letters in lower case, the first in the highest byte that is used."""


@compiled
def _ends(chars_C, mark, blank_end, behind, rules):  # noqa: ANN001, ANN202
    """True if marks end a sentence: those from `mark` on, up to `behind` with quotes, and up to `blank_end` with blanks."""
    if not rules.kind[chars_C[blank_end]] & OPENS:
        return False
    if chars_C[behind - 1] != _STOP or (chars_C[mark] == _STOP and chars_C[mark + 1] == _STOP):
        return True
    start = mark
    while start > 0 and start > mark - _REACH:
        char = chars_C[start - 1]
        if char != _STOP and not rules.kind[char] & WORD:
            break
        start -= 1
    size = mark - start
    if size == 0:
        return True
    if size == 1 and rules.kind[chars_C[start]] & INITIAL:
        return False
    if size > MOST_LETTERS:
        return True
    packed = np.uint64(0)
    for place in range(start, mark):
        char = chars_C[place]
        if char == _KELVIN:
            packed = (packed << _LETTER) | _K
        elif char >= np.uint32(128):
            return True
        else:
            char = char | _CASE if char >= _UPPER_A and char <= _UPPER_Z else char
            packed = (packed << _LETTER) | np.uint64(char)
    for known in rules.abbreviation_A:  # noqa: SIM110, which numba cannot compile
        if packed == known:
            return False
    return True


@compiled
def _stripped(chars_C, start, end, rules):  # noqa: ANN001, ANN202
    while start < end and rules.kind[chars_C[start]] & SPACE:
        start += 1
    while start < end and rules.kind[chars_C[end - 1]] & SPACE:
        end -= 1
    return start, end


@compiled
def spans(chars_C, rules):  # noqa: ANN001, ANN201
    """Start and end of every sentence: int64 [S, 2]. All characters are below `KINDS`."""
    # a sentence has a character, and a mark or a newline behind it
    found = np.empty((chars_C.size // 2 + 1, 2), np.int64)
    count = line = 0
    while line <= chars_C.size:
        line_end = line
        while line_end < chars_C.size and chars_C[line_end] != _NEWLINE:
            line_end += 1
        start = place = line
        while place < line_end:
            kind = rules.kind[chars_C[place]] & (BEFORE_BLANK | ANYWHERE)
            if not kind:
                place += 1
                continue
            mark = place
            while place < line_end and rules.kind[chars_C[place]] & kind:
                place += 1
            behind = place
            while behind < line_end and rules.kind[chars_C[behind]] & CLOSING:
                behind += 1
            blank_end = behind
            while blank_end < line_end and rules.kind[chars_C[blank_end]] & SPACE:
                blank_end += 1
            if kind == BEFORE_BLANK and blank_end == behind:
                continue  # no blank behind the marks: the sentence continues
            place = blank_end
            if blank_end == line_end or kind == ANYWHERE or _ends(chars_C, mark, blank_end, behind, rules):
                first, end = _stripped(chars_C, start, blank_end, rules)
                if first < end:
                    found[count, 0], found[count, 1] = first, end
                    count += 1
                start = blank_end
        first, end = _stripped(chars_C, start, line_end, rules)
        if first < end:
            found[count, 0], found[count, 1] = first, end
            count += 1
        line = line_end + 1
    return found[:count]
