"""Span fine-tuning (Bao et al., 2021) as a setting of a task: texts cut into spans, rows with spans, the network over them.

A row has one more field, `span_BL`: 1, 2, ... the span of every position, 0 outside of spans. `data.ngrams.span_layout` cuts
tokens and spans to the length of a row together. With segmentation "none" rows are those of the task without spans.

Shapes: B rows, L positions, D hidden size, T pieces, W words, S spans.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.data.ngrams import segmentation
from spanjax.data.ngrams.dictionary import NgramDictionary, NgramSettings, Words, find_words, read_ngrams
from spanjax.data.ngrams.segmentation import Tail, from_spans
from spanjax.data.ngrams.span_layout import LaidRow, Sentence, SpanLayout
from spanjax.data.sources.annotate import DEFAULT_MODEL, NOUN_PHRASES, SPACY, annotator_problems, open_annotator
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.documents import checked_spans
from spanjax.data.sources.tables import read_records
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.nn.dropout import SITES, DropoutKey
from spanjax.nn.span_network import KERNEL, SpanNetwork, SpanNetworkConfig
from spanjax.objectives.base import Batch

SPAN_SITE = SITES["spans"].start
FIELD = "span_BL"
GIVEN = "given:"  # before the name of a file with spans, as a chunker
SHOWN = 5  # problems in a message
CharacterSpans = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class SpanTuning:
    """Settings of span fine-tuning: segmentation of texts, spans of a row, and the network over them."""

    ngrams: str = ""
    """The dictionary, a file of `python -m spanjax.prepare ngrams`; for the segmentations dictionary and random."""
    most: int = 0
    """Number of n-grams to take from the dictionary, the most frequent first; 0 takes all."""
    segmentation: Literal["dictionary", "random", "chunker", "words", "none"] = "dictionary"
    """dictionary: longest n-grams first; random: the same spans' lengths in a random order; chunker: noun phrases; words: each
    word a span; none: two convolutions over all pieces, the CNN of Table 6."""
    tail: Tail = "whole"
    """whole: an n-gram at the end of a sentence is found; as-released: it is missed as in the released code."""
    chunker: str = SPACY + DEFAULT_MODEL
    """spacy:MODEL for its noun chunks, or given:FILE with lines {"text": ..., "spans": [[start, end], ...]} in characters. The
    paper's is that of NLTK."""
    spans: int = 64
    """Most spans of a row; further ones are dropped from it. The paper's r is 16, the released commands have 64 to 128 (D23)."""
    pieces: int = 16
    """Pieces of a span that count; further ones stay in the row. The paper's l is 64 or 128, the commands have 16 (D23)."""
    special_spans: bool = True
    """[CLS] and each [SEP] are spans of one piece, as in the released code."""
    halves: bool = False
    """Limit each sentence of a pair to half of the available length, as in the released code."""
    network: SpanNetworkConfig = SpanNetworkConfig()
    """The two levels."""
    concatenated: bool = True
    """The classifier reads [CLS] and the spans' vector (the paper), else that vector alone (section 5.3; D24)."""
    token: Literal["span", "piece"] = "span"
    """For tasks of tokens: each piece gets the vector of its span, or that of the window around it, not pooled (D26)."""
    seed: int = 0
    """Seed of the random segmentation."""
    fingerprint: str = ""
    """SHA-256 of the dictionary's content; training fills it in, and refuses another dictionary from then on."""

    @property
    def has_spans(self) -> bool:
        """True if rows have spans."""
        return self.segmentation != "none"

    @property
    def has_dictionary(self) -> bool:
        """True if the segmentation reads the dictionary."""
        return self.segmentation in ("dictionary", "random")

    def problems(self, length: int) -> list[str]:
        """Returns a message for each problem of these settings with rows of this length."""
        found = []
        if self.has_dictionary and not self.ngrams:
            found.append("ngrams is not set: give the file that `python -m spanjax.prepare ngrams` writes")
        if self.most < 0:
            found.append(f"most is {self.most}: expected 1 or more, or 0 for all n-grams")
        try:
            self._layout(max(length, 5))
        except ValueError as error:
            found += str(error).splitlines()
        if self.segmentation == "chunker":
            found += chunker_problems(self.chunker)
        if self.network.padding == "as-released":
            levels = (self.network.token_level, self.network.span_level)
            if levels != ("cnn", "cnn") or not self.has_spans:
                found.append(
                    "network.padding is as-released: expected spans and cnn at both levels, got segmentation"
                    f" {self.segmentation}, {levels[0]} and {levels[1]}"
                )
            if min(self.spans, self.pieces) < KERNEL:
                found.append(f"network.padding is as-released: expected spans and pieces of at least {KERNEL}")
        if not self.has_spans and "attention" in (self.network.token_level, self.network.span_level):
            found.append("segmentation is none: expected convolutions at both levels of network, or max at span_level")
        return [f"objective.spans.{problem}" for problem in found]

    def token_problems(self) -> list[str]:
        """Returns the further problems in a task of tokens."""
        found = []
        if self.network.padding == "as-released":
            found.append("objective.spans.network.padding is as-released: expected masked in a task of tokens")
        if self.token == "piece" and self.network.token_level != "cnn":
            found.append("objective.spans.token is piece: expected network.token_level cnn, which has windows")
        if self.token == "span" and not self.has_spans:
            found.append("objective.spans.segmentation is none: expected token piece, or another segmentation")
        return found

    def with_fingerprint(self) -> Self:
        """Returns the settings with the dictionary's fingerprint. ValueError if it cannot be read or has changed."""
        return dataclasses.replace(self, fingerprint=self._dictionary()[1]) if self.has_dictionary else self

    # -- texts -> spans -> rows

    def lay(self, vocabulary: Vocabulary, length: int, texts: Sequence[Sequence[str]], first: int) -> list[LaidRow]:
        """Rows of one or two clean texts each, at most `length` long; `first` is the number of the first of them.

        ValueError where the dictionary, the chunker or its file cannot be used.
        """
        flat = [text for row in texts for text in row]
        numbers = [2 * number + place for number, row in enumerate(texts, start=first) for place in range(len(row))]
        sentences, layout = iter(self.sentences(vocabulary, flat, numbers)), self._layout(length, vocabulary.separators)
        return [layout.laid([next(sentences) for _ in row], vocabulary.specials) for row in texts]

    def sentences(self, vocabulary: Vocabulary, texts: Sequence[str], numbers: Sequence[int]) -> list[Sentence]:
        """The pieces of clean texts with their spans; `numbers`, one a text, seed the random segmentations."""
        cut = zip(self._cut(texts, numbers), vocabulary.encode_with_starts(texts), strict=True)
        return [
            Sentence(ids_T, segmentation.spans_of_pieces(first_S, words.start_W, start_T))
            for (words, first_S), (ids_T, start_T) in cut
        ]

    def framed(self, span_T: np.ndarray) -> np.ndarray:
        """int32[T + 2]: the spans of a row's pieces (1, 2, ...) with those of [CLS] and [SEP] around them. Spans beyond
        `spans` become 0."""
        one = int(self.special_spans)
        last = int(span_T.max(initial=0)) + one
        found = np.concatenate([[one], np.where(span_T > 0, span_T + one, 0), [one * (last + 1)]])
        return np.where(found > self.spans, 0, found).astype(np.int32)

    def spans_of_words(self, words: Sequence[str], word_T: np.ndarray, number: int) -> np.ndarray:
        """int32[T]: 1, 2, ... the span of every piece of a row, whose word is word_T (-1 for specials, which have span 0).

        For tasks whose input is words: sentence `number` of the file. A row may hold only some of its words, in order.
        """
        if not self.has_spans:
            return (word_T >= 0).astype(np.int32)
        start_W = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).astype(np.int32)
        (_, first_S), *_ = self._cut([" ".join(words)], [2 * number], [Words(list(words), start_W)])
        return numbered(np.where(word_T >= 0, np.searchsorted(first_S, word_T, side="right"), 0))

    def _layout(self, length: int, separators: int = 1) -> SpanLayout:
        return SpanLayout(length, self.spans, self.pieces, self.special_spans, self.halves, separators)

    def _cut(
        self, texts: Sequence[str], numbers: Sequence[int], given: Sequence[Words] | None = None
    ) -> list[tuple[Words, np.ndarray]]:
        """The words of each text, and those at which its spans begin, int32[S]."""
        dictionary = self._dictionary()[0] if self.has_dictionary else None
        settings = dictionary.settings if dictionary else NgramSettings()
        found = given or [find_words(text, settings) for text in texts]
        if self.segmentation == "chunker":
            spans = chunks(self.chunker, texts)
            return [(words, first_words(words.start_W, each)) for words, each in zip(found, spans, strict=True)]
        made = []
        for words, number in zip(found, numbers, strict=True):
            count = len(words.words)
            if dictionary is None:
                first_S = segmentation.single_words(count)
            else:
                first_S = segmentation.by_dictionary(words.words, dictionary, self.tail)
            if self.segmentation == "random":
                first_S = segmentation.shuffled(first_S, count, self.seed, 0, number)
            made.append((words, first_S))
        return made

    def _dictionary(self) -> tuple[NgramDictionary, str]:
        """The dictionary and its fingerprint."""
        dictionary, fingerprint = _read_dictionary(self.ngrams, self.most, changed(pathlib.Path(self.ngrams)))
        if self.fingerprint and fingerprint != self.fingerprint:
            raise ValueError(
                f"objective.spans.ngrams {self.ngrams} is another dictionary ({fingerprint[:12]}) than that of the training"
                f" ({self.fingerprint[:12]}): give the file that was trained with"
            )
        return dictionary, fingerprint

    # -- rows -> vectors

    def add_network(self, module: Any, encoder: EncoderConfig, rngs: nnx.Rngs, of_tokens: bool = False) -> None:
        """Sets `module.span_network`; for a task of tokens without the level of spans."""
        network = dataclasses.replace(self.network, span_level="max") if of_tokens else self.network
        module.span_network = SpanNetwork(encoder, network, rngs, self.spans, self.pieces)

    def vector_size(self, encoder: EncoderConfig) -> int:
        """Width of `vector` and `token_vectors`."""
        return encoder.hidden_size * (2 if self.concatenated else 1)

    def vector(
        self, module: Any, hidden_BLD: jax.Array, first_BD: jax.Array | None, batch: Batch, key: DropoutKey | None
    ) -> jax.Array:
        """[first ; s] of every row, [B, 2 D], where `first_BD` is the vector of [CLS]; s alone, [B, D], without it."""
        network = module.span_network
        if self.has_spans:
            spans_BD = network(hidden_BLD, batch[FIELD], key, SPAN_SITE)
        else:
            spans_BD = network.without_spans(hidden_BLD, batch["segments_BL"] > 0, key, SPAN_SITE)
        return spans_BD if first_BD is None else jnp.concatenate([first_BD, spans_BD], axis=-1)

    def token_vectors(
        self, module: Any, hidden_BLD: jax.Array, own_BLD: jax.Array | None, batch: Batch, key: DropoutKey | None
    ) -> jax.Array:
        """[own ; that of its span or window] of every position, [B, L, 2 D], where `own_BLD` are the vectors of the positions
        themselves; the second alone, [B, L, D], without them."""
        spans_BLD = module.span_network.of_pieces(hidden_BLD, batch[FIELD], self.token == "span", key, SPAN_SITE)
        return spans_BLD if own_BLD is None else jnp.concatenate([own_BLD, spans_BLD], axis=-1)


@functools.lru_cache(2)
def _read_dictionary(path: str, most: int, at: tuple[int, int]) -> tuple[NgramDictionary, str]:
    """A dictionary and its fingerprint; `at` only keys the cache, so that a changed file is read again."""
    del at
    dictionary = read_ngrams(path, most)
    with open(path, "rb") as file:
        return dictionary, hashlib.file_digest(file, "sha256").hexdigest()


def numbered(span_T: np.ndarray) -> np.ndarray:
    """int32[T]: rising numbers of spans renumbered as 1, 2, ... without gaps; 0 stays 0."""
    _, number_T = np.unique(np.append(span_T, 0), return_inverse=True)
    return number_T[:-1].astype(np.int32)


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
    known = _read_spans(path, changed(path))
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
def _read_spans(path: pathlib.Path, at: tuple[int, int]) -> dict[str, CharacterSpans]:
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
