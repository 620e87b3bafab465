"""Counts the n-grams of a corpus that is larger than memory, as the dictionary of span fine-tuning (Bao et al., 2021).

1. Portions of documents are cleaned and split into sentences and words, in any number of processes. Each leaves a list of
   its words with their counts, in order, and the words of its text as numbers in that list.
2. The lists are merged. Words that occur often enough get numbers; the others can be in no n-gram that does.
3. For n = 2, 3, ...: n words can occur often only where their first n - 1 and their last n - 1 do. Such candidates have a key
   (number of the first n - 1 words, number of the last word); keys are counted in sorted runs on disk.

An n-gram lies inside a sentence. The most frequent come first; among equals the order is that of their words.

Shapes: T words of a portion's text with a -1 after every sentence, K n-grams that are kept.
"""

import dataclasses
import logging
import pathlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spanjax.data.ngrams.dictionary import Ngram, NgramSettings, find_keys, is_punctuation, ngram_keys, split_words
from spanjax.data.ngrams.sorted_runs import RECORD, SortedRuns, merge_words, read_words, write_words
from spanjax.data.shards.local_runner import in_processes
from spanjax.data.shards.portions import cut
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.documents import Document
from spanjax.data.sources.sentences import sentences

_PORTION = (20_000, 4_000_000)  # characters: fewest, most
_CHARACTER_BYTES = 60  # of memory that a character of a portion takes while it is worked on
_RECORD_BYTES = 64
log = logging.getLogger("spanjax.prepare")


@dataclasses.dataclass(frozen=True)
class CountingLimits:
    """Resource limits of the counting; none of them changes the result."""

    memory: int
    """Bytes of working memory, about, besides the words and n-grams that are kept."""
    workers: int = 1
    """Processes."""

    @property
    def portion(self) -> int:
        """Characters of a portion: with each process one is worked on, one waits, and one is being read."""
        return min(max(self.memory // (_CHARACTER_BYTES * (self.workers + 1)), _PORTION[0]), _PORTION[1])

    @property
    def records(self) -> int:
        """Records of a sorted run."""
        return max(self.memory // _RECORD_BYTES, 64)


class Counted(NamedTuple):
    """The n-grams of a corpus that occur often enough, the most frequent first."""

    words: list[str]
    words_KN: np.ndarray  # int32: numbers of words, -1 after the last
    count_K: np.ndarray  # int64
    corpus_words: int  # without punctuation, unless it is counted
    runs: int  # sorted runs that were written

    def ngrams(self) -> Iterator[Ngram]:
        """Every n-gram with its count, in order."""
        for numbers, count in zip(self.words_KN, self.count_K, strict=True):
            yield Ngram(tuple(self.words[number] for number in numbers.tolist() if number >= 0), int(count))


class _Numbers(dict[str, int]):
    """A number for every word, in the order in which they come."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class _Portion(NamedTuple):
    """The files of a portion."""

    words: pathlib.Path  # its words and counts, in order
    text: pathlib.Path  # int32[T]: numbers of words
    prefix: pathlib.Path  # int32[T]: number of the n-gram that begins at each word, -1 where it is not kept


def _portion(folder: pathlib.Path, number: int) -> _Portion:
    return _Portion(*(folder / kind / f"{number:06d}" for kind in _Portion._fields))


def read_portion(texts: Sequence[str], settings: NgramSettings, files: _Portion) -> int:
    """Writes a portion's list of words and its text in numbers of that list (-1: no word); returns its number of words."""
    numbers, cleaning = _Numbers(), Cleaning(settings.normalization)
    found = array("i")
    for text in texts:
        for sentence in sentences(cleaning(text)):
            found.extend(map(numbers.__getitem__, split_words(sentence, settings)))
            found.append(-1)
    text_T = np.frombuffer(found, np.int32) if found else np.empty(0, np.int32)
    kept = sorted(word for word in numbers if settings.with_punctuation or not is_punctuation(word))
    place = np.full(len(numbers) + 1, -1, np.int32)  # the last is that of -1
    place[[numbers[word] for word in kept]] = np.arange(len(kept), dtype=np.int32)
    text_T = place[text_T]
    counts = np.bincount(text_T[text_T >= 0], minlength=len(kept))
    text_T.tofile(files.text)
    write_words(files.words, zip(kept, counts.tolist(), strict=True))
    return int(counts.sum())


def _read_portions(
    portions: Iterable[list[Document]], settings: NgramSettings, room: CountingLimits, work: pathlib.Path
) -> list[int]:
    """`read_portion` of every portion, in this process or in several; at most one portion a process waits."""
    tasks = (([document.text for document in one], settings, _portion(work, n)) for n, one in enumerate(portions))
    if room.workers == 1:
        return [read_portion(*task) for task in tasks]
    return [*in_processes(read_portion, tasks, room.workers, room.workers, "--workers or less --memory-mb")]


def _number_words(portions: Sequence[_Portion], more_than: int, folder: pathlib.Path) -> list[str]:
    """The words of the corpus that occur often enough, in order; the text of every portion is written in their numbers."""
    words = [word for word, count in merge_words([one.words for one in portions], folder) if count > more_than]
    numbers = {word: number for number, word in enumerate(words)}
    for one in portions:
        place = np.fromiter((numbers.get(word, -1) for word, _ in read_words(one.words)), np.int32)
        text_T = np.append(place, np.int32(-1))[np.fromfile(one.text, np.int32)]
        text_T.tofile(one.text)
        text_T.tofile(one.prefix)
    return words


def _keys(one: _Portion, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The places in a portion's text where n words may begin that occur often, their keys, and the prefixes that were read."""
    text_T, prefix_T = np.fromfile(one.text, np.int32), np.fromfile(one.prefix, np.int32)
    begins = np.flatnonzero((prefix_T[:-1] >= 0) & (prefix_T[1:] >= 0))
    return begins, ngram_keys(prefix_T[begins], text_T[begins + n - 1]), prefix_T


class _Grams(NamedTuple):
    """The kept n-grams of one n, by rising key."""

    keys: np.ndarray  # uint64
    counts: np.ndarray  # int64


def _count_level(portions: Sequence[_Portion], n: int, more_than: int, runs: SortedRuns) -> _Grams:
    """Counts n-grams of n words, and writes for every portion which of the kept ones begins at each word."""
    for one in portions:
        runs.add(_keys(one, n)[1])
    kept = [block[block["count"] > more_than] for block in runs.merged()]
    records = np.concatenate(kept) if kept else np.empty(0, RECORD)
    found = _Grams(records["key"].copy(), records["count"].copy())
    for one in portions:
        begins, keys, prefix_T = _keys(one, n)
        prefix_T[:] = -1
        prefix_T[begins] = find_keys(found.keys, keys)
        prefix_T.tofile(one.prefix)
    return found


def _ordered(words: int, levels: Sequence[_Grams], settings: NgramSettings) -> tuple[np.ndarray, np.ndarray]:
    """The n-grams of all levels as words_KN and count_K, the most frequent first, then by their words."""
    above = np.arange(words, dtype=np.int32)[:, None]
    parts = []
    for grams in levels:
        prefix, last = (grams.keys >> np.uint64(32)).astype(np.int64), grams.keys.astype(np.uint32).astype(np.int32)
        above = np.concatenate([above[prefix], last[:, None]], axis=1)
        parts.append(np.pad(above, ((0, 0), (0, settings.most_words - above.shape[1])), constant_values=-1))
    words_KN, count_K = np.concatenate(parts), np.concatenate([grams.counts for grams in levels])
    order = np.lexsort((*words_KN.T[::-1], -count_K))[: settings.most_ngrams or None]
    return words_KN[order], count_K[order]


def count_ngrams(
    documents: Iterable[Document], settings: NgramSettings, room: CountingLimits, work: pathlib.Path
) -> Counted:
    """The n-grams of these documents; equal for every `room`. ValueError where no document has a word.

    `work` is an empty folder for files of 8 bytes a word of the text, its lists of words and, at one time, the runs of one n:
    16 bytes for every distinct n-gram of a run.
    """
    for name in (*_Portion._fields, "runs", "merged"):
        (work / name).mkdir()
    counts = _read_portions(cut(documents, room.portion), settings, room, work)
    if not sum(counts):
        raise ValueError("the input has no words; expected text with words between blanks")
    portions = [_portion(work, number) for number in range(len(counts))]
    words = _number_words(portions, settings.more_than, work / "merged")
    log.info(
        "%s words in %d portions, %s of them distinct and frequent", f"{sum(counts):,}", len(counts), f"{len(words):,}"
    )
    levels, written = [], 0
    for n in range(2, settings.most_words + 1):
        runs = SortedRuns(work / "runs", room.records)
        levels.append(_count_level(portions, n, settings.more_than, runs))
        written += runs.written
        log.info("%d words: %s n-grams, from %d sorted runs", n, f"{len(levels[-1].keys):,}", runs.written)
    return Counted(words, *_ordered(len(words), levels, settings), sum(counts), written)
