"""Compares our ids of raw text with those of the plain libraries and finds the causes: cleaning, literal specials, casing.

The reference is built from the same file in the way of its library, without our cleaning and caching: `tokenizers` for
WordPiece (`BertWordPieceTokenizer`, or tokenizer.json unchanged) and byte-level BPE (tokenizer.json unchanged, a blank before
the text as documented in `byte_bpe`), `sentencepiece` for its models. The unit is a sentence of raw text.
"""

import collections
import dataclasses
import functools
import itertools
import json
import pathlib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
import tokenizers
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.sentences import sentences
from spanjax.data.vocab.loading import (
    ByteBpeVocabulary,
    MetaspaceVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    WordPieceVocabulary,
)
from spanjax.data.vocab.tokenizer_json import TOKENIZER_FILE, JsonVocabulary
from spanjax.json_files import parse_json

OTHER = "other"
LITERAL, CASING, NORMALIZATION = "literal special", "lower-casing", "Unicode normalisation"
_TOGETHER = 512  # sentences compared at a time
_AROUND = 4  # pieces shown on either side of the first difference


class Difference(NamedTuple):
    """A sentence whose ids differ: the causes, the sentence, and both lists of pieces around the first difference."""

    kinds: tuple[str, ...]
    text: str
    ours: str
    theirs: str


@dataclasses.dataclass(frozen=True)
class Reference:
    """The plain library's encoding, with or without some of its habits replaced by ours."""

    vocabulary: Vocabulary
    tokenizer_json: str = ""
    """For WordPiece and byte-level BPE: the serialized tokenizer."""

    @functools.cached_property
    def literals(self) -> tuple[str, ...]:
        """Strings in the text that the library encodes as specials."""
        return tuple(token["content"] for token in self._settings.get("added_tokens") or [])

    @functools.cached_property
    def other_casing(self) -> bool:
        """True if the file's lower-casing is not ours."""
        ours = isinstance(self.vocabulary, WordPieceVocabulary) and self.vocabulary.lower_case
        theirs = (self._settings.get("normalizer") or {}).get("lowercase", False)
        return isinstance(self.vocabulary, WordPieceVocabulary) and ours != theirs

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        return parse_json(self.tokenizer_json) if self.tokenizer_json else {}

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        assert isinstance(self.vocabulary, SentencePieceVocabulary)
        return sentencepiece.SentencePieceProcessor(model_proto=self.vocabulary.model)

    @functools.cache  # noqa: B019 as many as there are habits, for as long as the reference
    def _tokenizer(self, habits: frozenset[str]) -> tokenizers.Tokenizer:
        settings = self._settings | {"truncation": None, "padding": None, "post_processor": None}
        if LITERAL not in habits:
            settings["added_tokens"] = []
        if CASING not in habits and isinstance(self.vocabulary, WordPieceVocabulary):
            settings |= {"normalizer": {**(settings["normalizer"] or {}), "lowercase": self.vocabulary.lower_case}}
        return tokenizers.Tokenizer.from_str(json.dumps(settings))

    def encode(self, texts: Sequence[str], habits: Iterable[str] = (LITERAL, CASING)) -> list[list[int]]:
        """Ids of texts, with the library's habits named in `habits` and ours for the rest."""
        if isinstance(self.vocabulary, SentencePieceVocabulary):
            found = self._processor.encode(list(texts), num_threads=1)
            return [self.vocabulary.own_ids[ids].tolist() if ids else [] for ids in found]
        if isinstance(self.vocabulary, ByteBpeVocabulary):
            texts = [text if not text or text[0].isspace() else " " + text for text in texts]
        if isinstance(self.vocabulary, MetaspaceVocabulary):
            texts = self.vocabulary.prefixed(texts)
        tokenizer = self._tokenizer(frozenset(habits))
        return [found.ids for found in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def reference(vocabulary: Vocabulary, path: str | pathlib.Path) -> Reference:
    """The plain encoding of the vocabulary that was loaded from `path`; a tokenizer.json there is used unchanged."""
    path = pathlib.Path(path)
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if isinstance(vocabulary, SentencePieceVocabulary):
        return Reference(vocabulary)
    if isinstance(vocabulary, JsonVocabulary):
        return Reference(vocabulary, vocabulary.tokenizer_json.decode())
    assert isinstance(vocabulary, WordPieceVocabulary)
    if file.suffix == ".json" and file.is_file() and "model" in parse_json(file.read_bytes(), dict):
        return Reference(vocabulary, file.read_text("utf-8"))
    ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
    return Reference(vocabulary, BertWordPieceTokenizer(ids, lowercase=vocabulary.lower_case).to_str())


def compare(reference: Reference, documents: Iterable[str], cleaning: Cleaning) -> Iterator[Difference | None]:
    """For every sentence of raw documents its difference, None where the ids are the same."""
    raw = itertools.chain.from_iterable(map(sentences, documents))
    while texts := list(itertools.islice(raw, _TOGETHER)):
        ours = _ours(reference.vocabulary, texts, cleaning)
        theirs = reference.encode([_without_surrogates(text) for text in texts])
        for text, own, plain in zip(texts, ours, theirs, strict=True):
            if own != plain or _without_surrogates(text) != text:
                kinds = _Causes(reference, text, own, cleaning).kinds()
                excerpts = _excerpts(reference.vocabulary, own, plain)
                yield Difference(kinds, text, *excerpts)
            else:
                yield None


def _ours(vocabulary: Vocabulary, texts: Sequence[str], cleaning: Cleaning) -> list[list[int]]:
    parts = [sentences(cleaning(text)) for text in texts]  # more than one where cleaning ends a line
    encoded = iter(vocabulary.encode(list(itertools.chain.from_iterable(parts))))
    return [list(itertools.chain.from_iterable(next(encoded).tolist() for _ in each)) for each in parts]


def _without_surrogates(text: str) -> str:
    return text if text.isascii() else "".join(each for each in text if not "\ud800" <= each <= "\udfff")


def _excerpts(vocabulary: Vocabulary, ours: Sequence[int], theirs: Sequence[int]) -> tuple[str, str]:
    pairs = itertools.zip_longest(ours, theirs, fillvalue=-1)
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), 0)
    cut = slice(max(0, first - _AROUND), first + _AROUND)
    return " ".join(vocabulary.pieces[i] for i in ours[cut]), " ".join(vocabulary.pieces[i] for i in theirs[cut])


@dataclasses.dataclass
class _Causes:
    """Finds the causes of a sentence's different ids among everything that cleaning and we do differently."""

    reference: Reference
    text: str
    ours: list[int]
    cleaning: Cleaning

    def kinds(self) -> tuple[str, ...]:
        """The causes; `OTHER` alone where all of them together do not explain the difference."""
        causes = self._present()
        if self._with(causes, ()) != self.ours:
            return (OTHER,)
        # A cause is one that makes a difference when it alone is left as the library has it.
        needed = [cause for cause in causes if self._with(causes, (cause,)) != self.ours]
        return tuple(needed or causes or [OTHER])

    def _present(self) -> list[str]:
        before, after = collections.Counter(self.text), collections.Counter(Cleaning()(self.text))
        special = [each for each in before if _replacement(each) is not None and after[each] < before[each]]
        causes = list(dict.fromkeys(character_kind(each) for each in special))
        causes += [LITERAL] if any(literal in self.text for literal in self.reference.literals) else []
        causes += [CASING] if self.reference.other_casing else []
        return causes + ([NORMALIZATION] if self.cleaning(self.text) != Cleaning()(self.text) else [])

    def _with(self, causes: Sequence[str], left: Sequence[str]) -> list[int]:
        """The library's ids after all causes but those in `left` are removed."""
        cleaning = Cleaning() if NORMALIZATION in left else self.cleaning
        if any(character_kind(each) in left for each in set(self.text)):
            removed = {
                each: _replacement(each) for each in set(self.text) if character_kind(each) in {*causes} - {*left}
            }
            text = "".join(removed.get(each) or "" if each in removed else each for each in self.text)
        else:
            text = cleaning(self.text)
        found = self.reference.encode(sentences(_without_surrogates(text)), left)
        return list(itertools.chain.from_iterable(found))


def _replacement(character: str) -> str | None:
    """Text that cleaning puts in place of a character, None where it keeps it; joiners count as removed."""
    category = unicodedata.category(character)
    if character in "\n\t " or category not in ("Zl", "Zp", "Zs", "Cc", "Cf", "Cs", "Co"):
        return None
    return "\n" if category in ("Zl", "Zp") else " " if category in ("Zs", "Cc") else ""


def character_kind(character: str) -> str:
    """Name of a character that cleaning changes, for reports."""
    category, code = unicodedata.category(character), f"U+{ord(character):04X}"
    if category in ("Cs", "Co"):
        return "lone surrogate removed" if category == "Cs" else "private-use character removed"
    if category == "Cc":
        return f"control character {code}"
    name = unicodedata.name(character, "no name").lower()
    return f"{code} {name}" + (" removed" if category == "Cf" else "")


def graph_difference(vocabulary: Vocabulary, text: str, ours: np.ndarray, graph: np.ndarray) -> Difference:
    """A clean sentence whose ids in the TensorFlow graph are not ours."""
    return Difference((OTHER,), text, *_excerpts(vocabulary, ours.tolist(), graph.tolist()))
