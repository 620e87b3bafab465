"""Cuts a sentence into spans of words, for span fine-tuning (Bao et al., 2021): by a dictionary, at random, by a chunker.

A segmentation is first_S: the number of the word at which each span begins, rising from 0. So every word is in one span. A
sentence without words has none.

Shapes: W words of a sentence, S spans of it, T pieces, N most words of an n-gram.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.feed.hashing import Purpose, fold, row_keys
from spanjax.data.ngrams.dictionary import NgramDictionary

Tail = Literal["whole", "as-released"]


def by_dictionary(words: Sequence[str], dictionary: NgramDictionary, tail: Tail = "whole") -> np.ndarray:
    """int32 first_S: from the head of the sentence on, the longest n-gram of the dictionary, else a single word.

    `tail` "as-released" is the released code at the end of a sentence: once fewer words are left than the longest n-gram has,
    the longest is one word shorter than what is left, and does not grow again. So "new york" at the end is two spans.
    """
    matched = dictionary.matches(words).tolist()
    most = dictionary.settings.most_words
    found, place = [], 0
    while place < len(words):
        left = len(words) - place
        if left < most:
            most = left - 1 if tail == "as-released" else left
        size = next((n for n in range(most, 1, -1) if matched[place][n - 1]), 1)
        found.append(place)
        place += size
    return np.array(found, np.int32)


def shuffled(first_S: np.ndarray, words: int, seed: int, epoch: int, index: int) -> np.ndarray:
    """int32 first_S of the same spans' lengths in a random order: the random segmentation of the paper's ablation.

    The paper does not give the lengths of its random spans. Here every sentence keeps the number and the lengths of its
    spans, so that only their places are random. A function of the seed, the epoch and the sentence's number alone.
    """
    size_S = span_sizes(first_S, words)
    draw_S = fold(row_keys(seed, Purpose.SEGMENT, epoch, index), np.arange(len(size_S)))
    size_S = size_S[np.argsort(draw_S, kind="stable")]
    return (np.cumsum(size_S) - size_S).astype(np.int32)


def from_spans(spans: Sequence[tuple[int, int]], words: int) -> np.ndarray:
    """int32 first_S of given spans [start, end) of words, a chunker's say; every other word is a span of its own.

    ValueError names all spans that are empty, outside of the sentence or overlap.
    """
    problems = [
        f"span [{start}, {end}): expected 0 <= start < end <= {words}, the words of the sentence"
        for start, end in spans
        if not 0 <= start < end <= words
    ]
    ordered = sorted(spans)
    problems += [
        f"spans [{a}, {b}) and [{c}, {d}) overlap; give each word to one span"
        for (a, b), (c, d) in zip(ordered, ordered[1:], strict=False)
        if c < b
    ]
    raise_problems(problems)
    begins_W = np.ones(words, bool)
    for start, end in spans:
        begins_W[start + 1 : end] = False
    return np.flatnonzero(begins_W).astype(np.int32)


def single_words(words: int) -> np.ndarray:
    """int32 first_S of spans of one word each: no dictionary at all."""
    return np.arange(words, dtype=np.int32)


def span_sizes(first_S: np.ndarray, words: int) -> np.ndarray:
    """int64[S]: number of words of each span."""
    return np.diff(first_S.astype(np.int64), append=words)


def spans_of_pieces(first_S: np.ndarray, word_start_W: np.ndarray, piece_start_T: np.ndarray) -> np.ndarray:
    """int32[T]: the span of every piece, 0, 1, ..., each with a piece at least.

    `word_start_W` and `piece_start_T` are characters of the same text (`ngrams.find_words`,
    `Vocabulary.encode_with_starts`). A piece belongs to the word in which it begins, what comes before the first word to
    that. A span in which no piece begins has no number.
    """
    if not len(piece_start_T):
        return np.empty(0, np.int32)
    if not len(word_start_W):
        return np.zeros(len(piece_start_T), np.int32)
    word_T = np.maximum(np.searchsorted(word_start_W, piece_start_T, side="right") - 1, 0)
    span_T = np.searchsorted(first_S, word_T, side="right") - 1
    return np.cumsum(np.diff(span_T, prepend=span_T[0]) != 0).astype(np.int32)
