"""A SentencePiece model (Kudo and Richardson, 2018) as a `tokenizers.Tokenizer` with the same ids.

The usual conversion differs from SentencePiece on real text; this one makes these cases equal:

- `Precompiled` looks only at the beginning of a group of letter and marks and drops the rest: half-width katakana and
  decomposed Vietnamese come out wrong. So NFKC composes the text first. Where SentencePiece does not compose or reorder, a
  private-use character, which clean text never has, separates the marks and is removed afterwards. Characters that the
  model leaves alone but NFKC changes (the full-width tilde) are hidden in the same way.
- A text that begins with the word mark itself gets a second one, as the dummy prefix is independent of the text. Only the
  beginning of a text gets it: text that follows a [MASK] inside a word continues the word.
- Pieces that no text is encoded to (controls, bytes, unknown) are cut in two where a text spells them.
- Sentences are encoded whole, so that pieces may hold blanks; a user-defined piece has the score that SentencePiece gives it.

What stays: SentencePiece adds the scores of unigram pieces as float32 and `tokenizers` as float64, so that of two cuts which are
equally good either may be taken (15 of 40,000 sentences of English Wikipedia with 8,000 pieces; none with BPE).
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, normalizers, pre_tokenizers

from spanjax.data.sources.cleaning import code_ranges
from spanjax.data.vocab.loading import SentencePieceVocabulary
from spanjax.data.vocab.sentencepiece import WORD_MARK

_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_APART, _BEGIN, _HIDDEN, _PROTECTED = "\ue000", "\ue001", "\ue002", 0xE010  # private use: clean text has none of them
_MOST_PROTECTED = 256
_CODES = [*range(0x80, 0xD800), *range(0xE000, 0x30000)]  # all that Unicode normalisation changes


def read_model(vocabulary: SentencePieceVocabulary) -> Any:
    """The parsed .model file (a `ModelProto`), its pieces by the ids of the vocabulary's layout."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.model)  # pyright: ignore[reportAttributeAccessIssue]
    if vocabulary.layout:
        own = dict(zip(vocabulary.own_ids.tolist(), [*proto.pieces], strict=True))
        del proto.pieces[:]
        for number, piece in enumerate(vocabulary.pieces[: max(own) + 1]):
            # ids of the layout alone are no text, like controls
            proto.pieces.append(own.get(number) or proto.SentencePiece(piece=piece, type=_CONTROL))
    return proto


def unrepresentable(vocabulary: SentencePieceVocabulary) -> str | None:
    """Returns the reason why no tokenizer.json gives the ids of this model, else None."""
    proto = read_model(vocabulary)
    kind = _MODELS.get(proto.trainer_spec.model_type, "unknown")
    if kind not in ("unigram", "bpe", "char"):
        return f"it is a {kind} model"
    if proto.trainer_spec.treat_whitespace_as_suffix:
        return "its blanks stand after words (treat_whitespace_as_suffix)"
    if not proto.normalizer_spec.escape_whitespaces:
        return "its pieces hold unescaped blanks (escape_whitespaces is off)"
    if kind == "bpe" and any(piece.type == _UNUSED for piece in proto.pieces):
        return "it is a BPE model with unused pieces"
    return None


def sentencepiece_tokenizer(vocabulary: SentencePieceVocabulary) -> tokenizers.Tokenizer:
    """The tokenizer without special tokens; ids are those of the model file. The model must not be `unrepresentable`."""
    proto = read_model(vocabulary)
    taken = {vocabulary.pieces[number]: number for number in vocabulary.specials}
    names = []
    for number, piece in enumerate(proto.pieces):
        hidden = piece.type == _UNUSED or taken.get(piece.piece, number) != number
        names.append(piece.piece + _HIDDEN * hidden)
    unigram = _MODELS[proto.trainer_spec.model_type] == "unigram"
    tokenizer = tokenizers.Tokenizer(_unigram(proto, names) if unigram else _bpe(proto, names))
    normalizer, before = _normalizer(vocabulary, proto), _pre_tokenizer(proto, unigram)
    tokenizer.normalizer = normalizers.Sequence(normalizer)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before)  # pyright: ignore[reportAttributeAccessIssue]
    decoders = tokenizers.decoders
    steps = [decoders.Replace(WORD_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if proto.normalizer_spec.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def _unigram(proto: Any, names: Sequence[str]) -> Any:
    scores = [piece.score for piece in proto.pieces if piece.type == _NORMAL]
    least = min(scores, default=0.0)
    scored = []
    for name, piece in zip(names, proto.pieces, strict=True):
        score = piece.score if piece.type == _NORMAL else least  # the least one sets the score of unknown characters
        if piece.type == _USER_DEFINED:
            score = 0.1 * (len(piece.piece.encode()) - 1)  # as sentencepiece 0.2.2 counts them, whatever the file says
        scored.append((name, score))
    unknown = next(number for number, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN)
    return tokenizers.models.Unigram(scored, unk_id=unknown, byte_fallback=proto.trainer_spec.byte_fallback)


def _bpe(proto: Any, names: Sequence[str]) -> Any:
    """SentencePiece joins the two neighbours whose sum has the best score: every split of a piece is a merge."""
    texts = {piece.piece: piece.score for piece in proto.pieces if piece.type in (_NORMAL, _USER_DEFINED)}
    merges = []
    if _MODELS[proto.trainer_spec.model_type] == "bpe":
        normal = [piece.piece for piece in proto.pieces if piece.type == _NORMAL]
        for piece in sorted(normal, key=lambda each: -texts[each]):
            splits = ((piece[:cut], piece[cut:]) for cut in range(len(piece) - 1, 0, -1))
            merges += [pair for pair in splits if pair[0] in texts and pair[1] in texts]
    return tokenizers.models.BPE(
        vocab={name: number for number, name in enumerate(names)},
        merges=merges,
        unk_token=next(name for name, piece in zip(names, proto.pieces, strict=True) if piece.type == _UNKNOWN),
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
        ignore_merges=any(piece.type == _USER_DEFINED for piece in proto.pieces),  # these stand on their own
    )


def _pre_tokenizer(proto: Any, unigram: bool) -> list[Any]:
    spec = proto.normalizer_spec
    if spec.add_dummy_prefix:  # a blank at the beginning of the text, where there is none yet
        steps = [pre_tokenizers.Metaspace(" ", "first", split=False), _word_marks()]
    elif spec.remove_extra_whitespaces:  # no blank at the beginning of the text
        begin = pre_tokenizers.Metaspace(_BEGIN, "first", split=False)
        steps = [begin, pre_tokenizers.Split(Regex(f"{_BEGIN}{WORD_MARK}?"), "removed")]
    else:
        steps = [_word_marks()]
    users = [piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED]
    spelled = _spelled(proto)
    if users and not unigram:  # these stand alone, and what stands alone is looked up as a whole, controls as well
        longest_first = sorted(users, key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated"))
        spelled = [rf"\A{left}(?={right}\z)" for left, right in spelled]
    else:
        spelled = [f"{left}(?={right})" for left, right in spelled]
    if spelled and (unigram or users):
        steps.append(pre_tokenizers.Split(Regex("|".join(spelled)), "merged_with_previous"))
    return steps


def _word_marks() -> Any:
    return pre_tokenizers.Metaspace(WORD_MARK, "never", split=False)


def _spelled(proto: Any) -> list[tuple[str, str]]:
    """Patterns of text that spells a non-text piece, in two parts, cut where no text piece crosses."""
    texts = {piece.piece for piece in proto.pieces if piece.type in (_NORMAL, _USER_DEFINED)}
    pairs = {text[n : n + 2] for text in texts for n in range(len(text) - 1)}

    def parts(piece: str) -> tuple[str, str]:
        def spoiled(cut: int) -> tuple[bool, bool]:  # a piece goes across, or two unknown characters become two pieces
            return piece[cut - 1 : cut + 1] in pairs, texts.isdisjoint(piece[cut - 1 : cut + 1])

        cut = min(range(1, len(piece)), key=spoiled)
        return piece[:cut], piece[cut:]

    never = [piece.piece for piece in proto.pieces if piece.type in (_UNKNOWN, _CONTROL) and len(piece.piece) > 1]
    patterns = [(re.escape(left), re.escape(right)) for left, right in map(parts, never)]
    if any(piece.type == _BYTE for piece in proto.pieces):
        left, right = parts("<0x")
        patterns.append((left, f"{right}[0-9A-F]{{2}}>"))
    return patterns


def _normalizer(vocabulary: SentencePieceVocabulary, proto: Any) -> list[Any]:
    spec = proto.normalizer_spec
    steps = _unicode_steps(vocabulary, proto) if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(pattern), "") for pattern in ("(?<= ) +", rf"[ {WORD_MARK}]+\z")]
    if not (spec.remove_extra_whitespaces and spec.add_dummy_prefix):
        steps.append(normalizers.Replace(" ", WORD_MARK))
    return steps


def _unicode_steps(vocabulary: SentencePieceVocabulary, proto: Any) -> list[Any]:
    table = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)

    def kept(steps: Sequence[Any], texts: Iterable[str]) -> list[str]:
        """The texts that the steps normalise differently from the model."""
        ours = normalizers.Sequence([*steps])
        theirs = vocabulary.processor.normalize
        pairs = ((text, f"0{text}0") for text in texts)
        return [text for text, inside in pairs if _words(ours.normalize_str(inside)) != _words(theirs(inside))]

    lower = [normalizers.Lowercase()] if "a" in vocabulary.processor.normalize("A") else []
    exceptions = kept([normalizers.NFKC(), *lower, table], _changed(bool(lower)))
    if len(exceptions) > _MOST_PROTECTED:  # a normalisation of the model's own
        steps = [table]
    else:
        steps = [normalizers.Replace(Regex(_apart()), _APART), *_protected(exceptions, [normalizers.NFKC()], 0)]
        steps += [*(_protected(exceptions, lower, 0) if lower else []), table, normalizers.Replace(_APART, "")]
    users = kept(steps, (piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED))
    return _protected(users, steps, len(exceptions))


@functools.cache
def _changed(lower: bool) -> list[str]:
    """The characters that NFKC (and lower-casing) changes."""
    changes = normalizers.Sequence([normalizers.NFKC(), *[normalizers.Lowercase()] * lower])
    return [chr(code) for code in _CODES if changes.normalize_str(chr(code)) != chr(code)]


def _words(text: str) -> list[str]:
    return text.replace(WORD_MARK, " ").split()


def _protected(texts: Sequence[str], steps: Sequence[Any], first: int) -> list[Any]:
    """Wraps the steps so that they leave the texts unchanged."""
    marks = [(text, chr(_PROTECTED + first + number)) for number, text in enumerate(texts)]
    before = [normalizers.Replace(text, mark) for text, mark in marks]
    return [*before, *steps, *(normalizers.Replace(mark, text) for text, mark in marks)]


@functools.cache
def _apart() -> str:
    """Matches between two characters that NFKC would join or reorder and a model's table of normalisations does not.

    Such a table holds the decompositions of single characters and applies the longest that it finds: a letter and its
    marks are joined in the order of the full decomposition, and nothing else is.
    """
    first, second = set(), set()
    in_order: dict[str, set[int]] = {}  # what two marks of a decomposition follow
    for code in _CODES:
        parts = unicodedata.normalize("NFKD", chr(code))
        if unicodedata.combining(parts[0]):
            first.add(code)
            second.add(code)
        if len(parts) > 1 or code == 0xFFFD:  # U+FFFD becomes a blank
            first.add(code)
        exact = unicodedata.normalize("NFD", chr(code))
        second.update(map(ord, exact[1:]))
        if unicodedata.normalize("NFC", exact) == chr(code):
            for place in range(2, len(exact)):
                in_order.setdefault(exact[place - 1 : place + 1], set()).add(ord(exact[place - 2]))
    allowed = "|".join(f"(?<=[{_ranges(before)}]{left}){right}" for (left, right), before in sorted(in_order.items()))
    return f"(?<=[{_ranges(first)}])(?=[{_ranges(second)}])(?!{allowed})"


def _ranges(codes: Iterable[int]) -> str:
    """The inside of a character class."""
    ranges = code_ranges(sorted(codes))
    return "".join(f"\\x{{{first:X}}}" + f"-\\x{{{last:X}}}" * (first < last) for first, last in ranges)
