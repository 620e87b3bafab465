"""Byte-level BPE as in GPT-2 and RoBERTa (Radford et al., 2019; Liu et al., 2019), read from Hugging Face's tokenizer.json.

The vocabulary puts a blank before every text that does not begin with one, so that the first word of a sentence is written
like any other: a sentence gets the ids that `tokenizers` gives for " " + sentence (for the sentence itself where the file
sets `add_prefix_space`).
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, final

import tokenizers

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import (
    SETTINGS_FILE,
    SPECIAL_PIECES,
    Specials,
    bytes_begin_unspaced,
)
from spanjax.data.vocab.tokenizer_json import TOKENIZER_FILE, JsonVocabulary, pieces_by_id, read_tokenizer_json
from spanjax.json_files import parse_json

_BLANKS = " \t\n\v\f\r"
# Names of the specials by role, in the order of `Specials`; the first that a file has is taken.
_NAMES = (("<pad>", "[PAD]"), ("<unk>", "[UNK]"), ("<s>", "[CLS]"), ("</s>", "[SEP]"), ("<mask>", "[MASK]"))


@functools.cache
def _bytes_of() -> dict[str, int]:
    """The byte that each letter of a piece stands for: visible Latin-1 for itself, the others from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(others)}


@final
class ByteBpeVocabulary(JsonVocabulary):
    """A byte-level BPE. Specials that it lacks get the ids after its own, so the file stays unchanged.

    RoBERTa's names (<s> <pad> </s> <unk> <mask>) and BERT's ([CLS] ...) are known. No text is ever encoded to a special or
    to another added token but runs of blanks (`blank_tokens`). A piece begins a word when its first byte is a blank, a tab
    or a line break: punctuation belongs to the word it follows, as in SentencePiece, and text without blanks is one word.
    """

    kind = "byte-bpe"
    casing = "model"  # the file's own normalisation decides

    def __init__(self, tokenizer_json: bytes, name: str = TOKENIZER_FILE):
        """ValueError lists everything in the file that keeps it from being a byte-level BPE with fixed ids."""
        self.tokenizer_json = tokenizer_json
        settings = read_tokenizer_json(tokenizer_json, name)
        _check(settings, name)
        model, added = settings["model"], settings.get("added_tokens") or []
        merged = {"".join(pair) if isinstance(pair, list) else pair.replace(" ", "") for pair in model["merges"]}
        pieces = pieces_by_id(model["vocab"] | {token["content"]: token["id"] for token in added}, name)
        named = {token["content"] for token in added}
        found = []
        for own_name, names in zip(SPECIAL_PIECES, _NAMES, strict=True):
            # A piece that literal text can produce is no special: the special gets an id.
            known = [each for each in names if each in pieces and (each in named or each not in merged)]
            found.append(pieces.index(known[0]) if known else len(pieces))
            if not known:
                pieces.append(own_name if own_name not in pieces else f"{own_name}#")
        self.pieces = tuple(pieces)
        self.specials = Specials(*found)
        self._tokenizer = _text_tokenizer(settings, self.pieces[self.specials.unk], self.specials.unk)
        self._never_text(name)

    def _never_text(self, name: str) -> None:
        ids = self._tokenizer.encode("".join(self.pieces[i] for i in self.specials), add_special_tokens=False).ids
        begins = self._tokenizer.encode(" a", add_special_tokens=False).tokens[:1]
        problems = []
        if reached := [self.pieces[i] for i in sorted({*self.specials} & {*ids} - {self.specials.unk})]:
            problems.append(
                f"its merges make the special pieces {', '.join(reached)} from text; train it without them in the text"
            )
        if not begins or not begins[0].startswith("Ġ"):
            problems.append(
                f"a word after a blank begins with the piece {begins}, expected Ġ: its normalizer removes blanks"
            )
        raise_problems(problems, f"{name}: not usable:")

    def _begins_word(self, piece: str) -> bool:
        if not piece.strip():  # a run of blanks, which is not spelt in the letters of bytes
            return True
        content = bytes(_bytes_of().get(letter, ord("x")) for letter in piece)
        return content[:1].decode("latin-1") in tuple(_BLANKS) or bytes_begin_unspaced(content)

    def prefixed(self, texts: Sequence[str]) -> list[str]:
        """Implements `JsonVocabulary.prefixed`: a blank in front."""
        return [text if text[:1] in _BLANKS else " " + text for text in texts]  # "" is in _BLANKS

    def _text(self, ids: list[int]) -> str:
        known = _bytes_of()
        letters = (letter for number in ids for letter in self.pieces[number])
        content = b"".join(bytes([known[letter]]) if letter in known else letter.encode() for letter in letters)
        return content.decode(errors="replace").removeprefix(" ")

    def files(self) -> dict[str, bytes]:
        """Implements `Vocabulary.files`."""
        return {SETTINGS_FILE: json.dumps({"kind": self.kind}).encode(), TOKENIZER_FILE: self.tokenizer_json}


def byte_bpe_json(vocab: bytes, merges: bytes, name: str) -> bytes:
    """The tokenizer.json of GPT-2's and RoBERTa's vocab.json and merges.txt; the caller puts the blank before the text."""
    try:
        ids = parse_json(vocab)
        lines = merges.decode("utf-8").splitlines()
    except ValueError as error:
        raise ValueError(f"{name}: not the vocab.json and merges.txt of a byte-level BPE ({error})") from None
    if not isinstance(ids, dict) or not all(isinstance(number, int) for number in ids.values()):
        raise ValueError(f"{name}: vocab.json is no mapping of pieces to ids; expected that of GPT-2 or RoBERTa")
    pairs = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
    problems = [f"merges.txt: {' '.join(pair)!r}: expected two pieces" for pair in pairs if len(pair) != 2]
    absent = [pair for pair in pairs if len(pair) == 2 and not {*pair, "".join(pair)} <= ids.keys()]
    problems += [f"merges.txt: {' '.join(pair)!r}: its pieces or their sum are not in vocab.json" for pair in absent]
    raise_problems(problems[:5], f"{name}: the two files do not fit:")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=pairs))  # pyright: ignore[reportArgumentType]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = tokenizers.decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    joined = {"".join(pair) for pair in pairs}
    specials = [each for names in _NAMES for each in names if each in ids and each not in joined]
    tokenizer.add_special_tokens(sorted(specials, key=ids.__getitem__))
    return tokenizer.to_str().encode()


def _check(settings: Mapping[str, Any], name: str) -> None:
    model, before = settings["model"], settings.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", []) if before.get("type") == "Sequence" else [before]
    rules = {
        f"its model is {model.get('type')}: expected BPE": model.get("type", "BPE") != "BPE",
        "it has no vocab and merges": not isinstance(model.get("vocab"), dict)
        or not isinstance(model.get("merges"), list),
        "its pre-tokenizer is not ByteLevel (a SentencePiece model, perhaps: give its .model file)": not any(
            step.get("type") == "ByteLevel" for step in steps
        ),
        f"dropout is {model.get('dropout')}: the ids would be random; set it to null": bool(model.get("dropout")),
        "pieces carry a word prefix or suffix: where words begin cannot be told": bool(
            model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        ),
    }
    raise_problems((message for message, broken in rules.items() if broken), f"{name}: not a usable byte-level BPE:")


def blank_tokens(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Added tokens of a tokenizer.json that are runs of blanks, and so text (GPT-NeoX, ModernBERT)."""
    added = settings.get("added_tokens") or []
    return [token for token in added if not token.get("special") and not token["content"].strip()]


def _text_tokenizer(settings: Mapping[str, Any], unk: str, unk_id: int) -> tokenizers.Tokenizer:
    """The tokenizer without matching of specials in text, without adding them, truncation and padding."""
    blanks = blank_tokens(settings)
    # the library numbers added tokens anew, unless the model has them
    ids = settings["model"]["vocab"] | {token["content"]: token["id"] for token in blanks} | {unk: unk_id}
    model = settings["model"] | {"unk_token": unk, "vocab": ids}
    text_only = {"added_tokens": blanks, "post_processor": None, "truncation": None, "padding": None, "model": model}
    return tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0"} | dict(settings) | text_only))
