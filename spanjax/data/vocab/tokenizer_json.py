"""Hugging Face's tokenizer.json: parsing, the WordPiece vocabulary in one, and the base of vocabularies that keep the file."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import Vocabulary, after_blanks
from spanjax.data.vocab.wordpiece import MAX_WORD_CHARACTERS, WordPieceVocabulary
from spanjax.json_files import parse_json

TOKENIZER_FILE = "tokenizer.json"
_ROBERTA = ("<s>", "</s>")


class JsonVocabulary(Vocabulary):
    """A vocabulary whose text `tokenizers` encodes by a tokenizer.json."""

    tokenizer_json: bytes
    _tokenizer: tokenizers.Tokenizer

    @property
    def separators(self) -> int:
        """Implements `Vocabulary.separators`: 2 with <s> and </s> (<s> A </s></s> B </s>)."""
        return 2 if (self.pieces[self.specials.cls], self.pieces[self.specials.sep]) == _ROBERTA else 1

    @abc.abstractmethod
    def prefixed(self, texts: Sequence[str]) -> list[str]:
        """The texts as `tokenizers` reads them, some with a blank in front."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implements `Vocabulary.encode`."""
        found = self._tokenizer.encode_batch_fast(self.prefixed(texts), add_special_tokens=False)
        return [np.array(each.ids, np.int32) for each in found]

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Implements `Vocabulary.encode_with_starts`."""
        prefixed = self.prefixed(texts)
        results = []
        for text, longer, found in zip(texts, prefixed, self._tokenizer.encode_batch(prefixed), strict=True):
            shift = len(longer) - len(text)
            starts = [after_blanks(text, max(0, start - shift)) for start, _ in found.offsets]
            results.append((np.array(found.ids, np.int32), np.array(starts, np.int32)))
        return results


def read_tokenizer_json(content: bytes, name: str) -> dict[str, Any]:
    """The parsed file; ValueError where it is no tokenizer.json."""
    try:
        settings = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{name}: not JSON ({error}); expected a tokenizer.json of Hugging Face tokenizers") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise ValueError(f'{name}: no "model" in it; expected a tokenizer.json of Hugging Face tokenizers')
    return settings


def pieces_by_id(ids: Mapping[str, int], name: str) -> list[str]:
    """The pieces in the order of their ids; ValueError where ids are missing or given twice."""
    pieces: dict[int, str] = {}
    problems = []
    for piece, number in ids.items():
        if number in pieces:
            problems.append(f"id {number} is both {pieces[number]!r} and {piece!r}")
        pieces[number] = piece
    if missing := sorted(set(range(max(pieces, default=-1) + 1)) - set(pieces)):
        listed = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        problems.append(
            f"{len(missing)} id(s) have no piece ({listed}): add a piece for each, [unused{missing[0]}] say"
        )
    if not pieces:
        problems.append("the vocabulary is empty")
    raise_problems(problems[:10], f"{name}: every id from 0 on needs one piece:")
    return [pieces[number] for number in range(len(pieces))]


def wordpiece_from_json(settings: Mapping[str, Any], lower_case: bool | None, name: str) -> WordPieceVocabulary:
    """The WordPiece vocabulary of a tokenizer.json; `lower_case` None takes its normalizer's.

    ValueError lists the settings that are not BERT's and would change the ids.
    """
    model, normalizer = settings["model"], settings.get("normalizer") or {}
    lower = bool(normalizer.get("lowercase"))
    # strip_accents null follows the lower-casing, as in our own BertNormalizer; anything else gives other ids
    strips = normalizer.get("strip_accents")
    needed = {
        "normalizer.type": (normalizer.get("type"), "BertNormalizer"),
        "normalizer.strip_accents": (lower if strips is None else strips, lower),
        "normalizer.handle_chinese_chars": (normalizer.get("handle_chinese_chars", True), True),
        "pre_tokenizer.type": ((settings.get("pre_tokenizer") or {}).get("type"), "BertPreTokenizer"),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix", "##"), "##"),
        "model.max_input_chars_per_word": (
            model.get("max_input_chars_per_word", MAX_WORD_CHARACTERS),
            MAX_WORD_CHARACTERS,
        ),
        "model.unk_token": (model.get("unk_token", "[UNK]"), "[UNK]"),
    }
    problems = [
        f"{field} is {found!r}: expected {right!r}" for field, (found, right) in needed.items() if found != right
    ]
    if not isinstance(model.get("vocab"), dict):
        problems.append("model.vocab is no mapping of pieces to ids")
    if problems:
        problems.append("  give a vocab.txt with --lower-case True or False to read its pieces in BERT's way")
    raise_problems(problems, f"{name}: not BERT's WordPiece, so its ids cannot be kept:")
    added = {token["content"]: token["id"] for token in settings.get("added_tokens") or []}
    return WordPieceVocabulary(
        pieces_by_id(model["vocab"] | added, name), lower if lower_case is None else lower_case, name
    )
