"""Tagged spans of documents: found by spaCy or given with the input, and mapped onto the tokens of whole words.

SpanBERT, section 6.1, masks named entities ("non-numerical": D17) and noun phrases instead of random spans. A span that the
end of a sentence or of a block cuts is dropped: half an entity is none. Spans of one layer do not overlap: the longest of
overlapping ones stays, the left one of equals. Both layers of wiki text take spaCy's en_core_web_sm 48 CPU seconds a
million characters.

Legend: T tokens of a document, W words.
"""

import collections
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.shards.packing import tag_flags

ENTITIES, NOUN_PHRASES, GIVEN = "entities", "noun_phrases", "given"
SPACY, DEFAULT_MODEL = "spacy:", "en_core_web_sm"
NUMERICAL = frozenset(["DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"])
_NEEDED = {ENTITIES: "ner", NOUN_PHRASES: "parser"}
_PIPES = {ENTITIES: {"ner"}, NOUN_PHRASES: {"tagger", "morphologizer", "attribute_ruler", "parser"}}
_ALWAYS = {"tok2vec", "transformer"}
_PIECE = 50_000  # characters that spaCy reads at a time, so that its memory stays small

Spans = Sequence[tuple[int, int]]
Layers = Mapping[str, Spans]


class Annotator(Protocol):
    """Finds the spans of documents."""

    def __call__(self, texts: Sequence[str], sentences: Sequence[Spans], given: Sequence[Layers]) -> list[Layers]:
        """Character spans by layer of cleaned texts, given their sentences and the spans of the input."""
        ...


def given_spans(texts: Sequence[str], sentences: Sequence[Spans], given: Sequence[Layers]) -> list[Layers]:
    """The annotator `given`: the spans that came with the input."""
    del texts, sentences
    return list(given)


def annotator_problems(annotator: str, tags: Sequence[str]) -> list[str]:
    """Problems with the name of an annotator, or with layers that it does not know."""
    if annotator == GIVEN:
        return []
    if not annotator.startswith(SPACY):
        return [f"annotator {annotator!r}: expected {GIVEN} or {SPACY}MODEL (say {SPACY}{DEFAULT_MODEL})"]
    known = " and ".join(_NEEDED)
    return [f"tag {tag!r}: spaCy finds {known}; other layers come with the input" for tag in tags if tag not in _NEEDED]


def open_annotator(annotator: str, tags: Sequence[str]) -> Annotator:
    """`given`, or `spacy:MODEL`, which is loaded now; ValueError with what to install where it cannot be."""
    raise_problems(annotator_problems(annotator, tags))
    return given_spans if annotator == GIVEN else SpacyAnnotator(annotator.removeprefix(SPACY), tags)


def import_spacy() -> Any:
    """The spaCy package; ValueError with what to install where it is absent."""
    try:
        return importlib.import_module("spacy")
    except ModuleNotFoundError:
        raise ValueError("spaCy is not installed: pip install 'spanjax[spacy]'") from None


class SpacyAnnotator:
    """Named entities that are no numbers, and noun chunks, by a spaCy model; components that are not needed are off."""

    def __init__(self, model: str, tags: Sequence[str]):
        """`model` is an installed package or a folder."""
        spacy = import_spacy()
        try:
            self._model = spacy.load(model)
        except OSError:
            raise ValueError(
                f"spaCy has no model {model!r} here: install one (python -m spacy download {DEFAULT_MODEL}) and name it"
                f" with --annotator {SPACY}NAME"
            ) from None
        lacking = [tag for tag in tags if _NEEDED[tag] not in self._model.pipe_names]
        if lacking:
            needed = ", ".join(f"{_NEEDED[tag]} for {tag}" for tag in lacking)
            raise ValueError(f"the spaCy model {model} has no {needed}; take another, such as {DEFAULT_MODEL}")
        wanted = _ALWAYS.union(*(_PIPES[tag] for tag in tags))
        self._model.select_pipes(enable=[name for name in self._model.pipe_names if name in wanted])
        self._tags = tuple(tags)

    def __call__(self, texts: Sequence[str], sentences: Sequence[Spans], given: Sequence[Layers]) -> list[Layers]:
        """Implements `Annotator`; `given` is not used. Long texts are read in parts of whole sentences."""
        del given
        found: list[dict[str, list[tuple[int, int]]]] = [{tag: [] for tag in self._tags} for _ in texts]
        pieces = (
            (text[start:end], (place, start))
            for place, (text, spans) in enumerate(zip(texts, sentences, strict=True))
            for start, end in _pieces(spans)
        )
        for document, (place, start) in self._model.pipe(pieces, as_tuples=True, batch_size=16):
            for tag in self._tags:
                for span in document.noun_chunks if tag == NOUN_PHRASES else document.ents:
                    if tag == NOUN_PHRASES or span.label_ not in NUMERICAL:
                        found[place][tag].append((start + span.start_char, start + span.end_char))
        return list(found)


def _pieces(sentences: Spans) -> Iterator[tuple[int, int]]:
    """Joins consecutive sentences to parts of at most `_PIECE` characters; a longer sentence is cut."""
    first = end = -1
    for start, stop in sentences:
        if first >= 0 and stop - first > _PIECE:
            yield first, end
            first = -1
        first = start if first < 0 else first
        while stop - first > _PIECE:
            yield first, first + _PIECE
            first += _PIECE
        end = stop
    if first >= 0:
        yield first, end


def span_flags(
    layers: Layers,
    tags: Sequence[str],
    text: str,
    word_characters_W: np.ndarray,
    word_tokens_W: np.ndarray,
    part_T: np.ndarray,
    counts: collections.Counter[str],
) -> np.ndarray:
    """Flags [T] with the tags of all layers: a span tags all tokens of the words that it overlaps.

    Word w begins at character `word_characters_W[w]` and token `word_tokens_W[w]`; `part_T` numbers the sentences and
    blocks: a span lies inside one of them. `counts` gets the tagged spans by layer, and what was dropped by reason.
    """
    flags_T = np.zeros(len(part_T), np.uint8)
    token_ends_W = np.append(word_tokens_W[1:], len(part_T))
    for layer, name in enumerate(tags):
        tags_T = np.zeros(len(part_T), np.uint8)
        # the first of overlapping spans stays, so the longest come first, the left one of equals
        for start, end in sorted(layers.get(name, ()), key=lambda span: (span[0] - span[1], span[0])):
            inside = text[start:end]
            start += len(inside) - len(inside.lstrip())
            end = start + len(inside.strip())
            first, last = np.searchsorted(word_characters_W, (start, end - 1), side="right") - 1
            if end <= start or last < 0:
                counts["spans without tokens"] += 1
                continue
            begin, stop = int(word_tokens_W[max(0, first)]), int(token_ends_W[last])
            if part_T[begin] != part_T[stop - 1]:
                counts["spans cut by a sentence or block"] += 1
            elif tags_T[begin:stop].any():
                counts["overlapping spans"] += 1
            else:
                tags_T[begin], tags_T[begin + 1 : stop] = 1, 2
                counts[name] += 1
        flags_T |= tag_flags(tags_T, layer)
    return flags_T
