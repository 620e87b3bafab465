"""SentencePiece models of Hugging Face's tokenizer.json: Unigram (XLM-R, CamemBERT, DeBERTa-v2) and BPE (mmBERT, Gemma).

`tokenizers` encodes by the file's own normalizer, pre-tokenizer and model, so ids are those of the library. Two things differ:
text that spells a special token stays text, and a file that puts no word mark before the first word gets a blank there, so that
this word has the ids that it has inside of a text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, final

import tokenizers

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import (
    SETTINGS_FILE,
    SPECIAL_PIECES,
    Specials,
    unused_pieces,
)
from spanjax.data.vocab.sentencepiece import WORD_MARK, begins_word
from spanjax.data.vocab.tokenizer_json import TOKENIZER_FILE, JsonVocabulary, pieces_by_id, read_tokenizer_json

# Names of the specials by role, in the order of `Specials`; the first that a file has is taken.
_NAMES = (
    ("<pad>", "[PAD]"),
    ("<unk>", "[UNK]"),
    ("[CLS]", "<s>", "<cls>", "<bos>"),
    ("[SEP]", "</s>", "<sep>", "<eos>"),
    ("<mask>", "[MASK]"),
)
_HIDDEN = "\ue002"  # private use, which clean text has not: no text spells a name with it


def is_sentencepiece(settings: Mapping[str, Any]) -> bool:
    """True if a tokenizer.json holds a Unigram, or a BPE whose pieces have SentencePiece's word mark."""
    model = settings["model"]
    if model.get("type") == "Unigram":
        return True
    vocab = model.get("vocab")
    return model.get("type", "BPE") == "BPE" and isinstance(vocab, dict) and any(WORD_MARK in piece for piece in vocab)


@final
class MetaspaceVocabulary(JsonVocabulary):
    """A SentencePiece model of a tokenizer.json. Specials that it lacks get the ids after its own, so the file stays unchanged;
    unused ids follow up to `size`.

    Added tokens of the file that are not special are text, as in `tokenizers`; no text is ever encoded to the special ones.
    """

    kind = "metaspace"
    casing = "model"  # the file's own normalisation decides

    def __init__(self, tokenizer_json: bytes, name: str = TOKENIZER_FILE, size: int = 0):
        """ValueError lists everything in the file that keeps its ids from being used."""
        self.tokenizer_json = tokenizer_json
        settings = read_tokenizer_json(tokenizer_json, name)
        raise_problems(_problems(settings["model"]), f"{name}: not a usable SentencePiece model:")
        vocab, added = settings["model"]["vocab"], settings.get("added_tokens") or []
        ids = vocab if isinstance(vocab, dict) else {piece: number for number, (piece, _) in enumerate(vocab)}
        pieces = pieces_by_id(ids | {token["content"]: token["id"] for token in added}, name)
        found = []
        for own_name, names in zip(SPECIAL_PIECES, _NAMES, strict=True):
            known = next((each for each in names if each in pieces), "")
            found.append(pieces.index(known) if known else len(pieces))
            if not known:
                pieces.append(own_name)
        unused = unused_pieces(len(pieces), size)
        self.pieces, self.unused = (*pieces, *unused), len(unused)
        self.specials = Specials(*found)
        # other special tokens (<s>NOTUSED, say) have no role here, and are no text either
        hidden = {self.pieces[number] for number in found}
        hidden |= {token["content"] for token in added if token.get("special")}
        self._tokenizer = _text_tokenizer(settings, hidden, name)
        first, second = (_pre_tokenized(self._tokenizer, text) for text in ("a", "a b"))
        if not second.endswith(f"{WORD_MARK}b"):
            raise ValueError(
                f"{name}: a word after a blank becomes {second!r}, expected {WORD_MARK}b at its end: where words begin cannot be"
                " told; give a tokenizer.json whose normalizer keeps blanks"
            )
        self.prefix = "" if first.startswith(WORD_MARK) else " "
        """Blank that is put before a text that does not begin with one; "" where the file puts a word mark there itself."""

    def prefixed(self, texts: Sequence[str]) -> list[str]:
        """Implements `JsonVocabulary.prefixed`."""
        return [text if text[:1] in ("", " ") else self.prefix + text for text in texts]

    def _begins_word(self, piece: str) -> bool:
        return not piece.strip() or begins_word(piece)

    def _text(self, ids: list[int]) -> str:
        found = self._tokenizer.decode(ids, skip_special_tokens=False).replace(_HIDDEN, "")
        return found.removeprefix(" ") if self.prefix else found

    def files(self) -> dict[str, bytes]:
        """Implements `Vocabulary.files`."""
        settings = {"kind": self.kind, **({"size": self.size} if self.unused else {})}
        return {SETTINGS_FILE: json.dumps(settings).encode(), TOKENIZER_FILE: self.tokenizer_json}


def _problems(model: Mapping[str, Any]) -> list[str]:
    vocab, unigram = model.get("vocab"), model.get("type") == "Unigram"
    if not isinstance(vocab, list if unigram else dict):
        return ["its model has no vocab: expected pieces with scores (Unigram) or with ids (BPE)"]
    rules = {
        "model.unk_id is null: unknown text would have no id; set it to the id of <unk>": unigram
        and model.get("unk_id") is None,
        "model.merges is no list: expected pairs of pieces": not unigram and not isinstance(model.get("merges"), list),
        f"model.dropout is {model.get('dropout')}: the ids would be random; set it to null": bool(model.get("dropout")),
        "its pieces carry a prefix or suffix of words: expected the word mark alone": bool(
            model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
        ),
    }
    return [message for message, broken in rules.items() if broken]


def _text_tokenizer(settings: Mapping[str, Any], hidden: set[str], name: str) -> tokenizers.Tokenizer:
    """The tokenizer whose special tokens have names that no text spells; it neither adds them nor cuts or pads texts.

    A Unigram would otherwise take such a piece for text that spells it, as its score is 0, the best of all.
    """

    def renamed(piece: str) -> str:
        return piece + _HIDDEN if piece in hidden else piece

    model = settings["model"]
    if isinstance(model["vocab"], dict):
        merged = {"".join(pair) if isinstance(pair, list) else pair.replace(" ", "") for pair in model["merges"]}
        if reached := sorted(merged & hidden):
            raise ValueError(
                f"{name}: not usable: its merges make the special pieces {', '.join(reached)} from text; train it without them"
                " in the text"
            )
        changed = {"vocab": {renamed(piece): number for piece, number in model["vocab"].items()}}
        changed |= {"unk_token": renamed(model["unk_token"])} if model.get("unk_token") else {}
    else:
        changed = {"vocab": [[renamed(piece), score] for piece, score in model["vocab"]]}
    # a renamed token is not normalised: that could take the mark off its name
    added = [
        token | ({"content": renamed(token["content"]), "normalized": False} if token["content"] in hidden else {})
        for token in settings.get("added_tokens") or []
    ]
    text_only = {"added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    content = {"version": "1.0"} | dict(settings) | text_only | {"model": model | changed}
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(f"{name}: tokenizers cannot read it ({error}); download it again") from None
    moved = [token for token in added if tokenizer.token_to_id(token["content"]) != token["id"]]
    raise_problems(
        [
            f"added token {token['content'].removesuffix(_HIDDEN)!r} has the id {token['id']}, expected the next free one"
            for token in moved[:5]
        ],
        f"{name}: not usable:",
    )
    return tokenizer


def _pre_tokenized(tokenizer: tokenizers.Tokenizer, text: str) -> str:
    """The text as the model gets it, its parts joined."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is None:
        return text
    return "".join(part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
