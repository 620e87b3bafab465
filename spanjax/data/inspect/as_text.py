"""Masked rows as text: the original, the model input, the boundaries and offsets of spans, tags.

    |an| «american football → [MASK]₀ [MASK]₁ [MASK]₂» |game| was played at ⟨Levi 's Stadium⟩

A span stands between « and », the original words before the arrow and what the model sees of every token after it; its
boundary tokens are between bars, a small number is the offset of a token from the left boundary, where the token has boundaries.

Shapes: B rows, L positions, K slots a row.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from spanjax.data.feed.batch import Batch
from spanjax.data.shards.packing import layer_tags
from spanjax.data.vocab.loading import Vocabulary

Role = Literal["text", "special", "mask", "random", "kept", "left", "right", "both", "offset", "mark"]
TAG_MARKS = ("⟨⟩", "⟦⟧", "⦅⦆")  # of the layers of tags that are shown, in their order
_UNFINISHED = "\ufffd"  # what bytes that are no whole character decode to
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_LEFT_TO_RIGHT, _BY_FIRST_LETTER, _END = "\u2066", "\u2068", "\u2069"  # Unicode isolates


class Token(NamedTuple):
    """One position of a block."""

    place: int  # position in the row
    text: str  # of the original token, with the blank before it; see `spelled` for a part of a character
    piece: str  # the piece the model sees, for reading
    kind: Role  # text or special, or mask, random or kept where it is masked
    offset: int | None  # from the left boundary of its span, where it has boundaries
    side: Role | None  # left, right or both where it is a boundary
    second: bool  # of the second segment of a pair
    tags: tuple[int, ...]  # of every layer that is shown: 0 outside, 1 where a tagged span begins, 2 where it continues


class Fragment(NamedTuple):
    """A stretch of text that is shown in one way; the fragments of a block joined are the block as text."""

    text: str
    role: Role
    tagged: int = 0  # a bit for each layer of tags (of those shown) that it is inside


def original_tokens(batch: Batch, row: int) -> np.ndarray:
    """The row before masking: every used slot put back."""
    tokens_L = np.array(batch["tokens_BL"][row])
    used_K = batch["slot_weight_BK"][row] > 0
    tokens_L[batch["slot_position_BK"][row][used_K]] = batch["slot_target_BK"][row][used_K]
    return tokens_L


def first_block_length(batch: Batch, row: int) -> int:
    """Number of positions of the first block of a row: 0 in the empty rows that fill up a batch."""
    return int(np.sum(np.asarray(batch["segments_BL"][row]) == 1))


def first_block_spans(batch: Batch, row: int) -> list[tuple[int, int]]:
    """Maximal runs of masked positions in the first block of a row, as (first slot, number of slots); none in an empty row."""
    last = first_block_length(batch, row) - 1  # a row begins with its first block
    used = int(np.sum(batch["slot_weight_BK"][row] > 0))
    positions = batch["slot_position_BK"][row][:used]
    starts = [k for k in range(used) if positions[k] <= last and (k == 0 or positions[k] != positions[k - 1] + 1)]
    ends = [*starts[1:], int(np.sum(positions <= last))][: len(starts)]
    return [(start, end - start) for start, end in zip(starts, ends, strict=True)]


def spelled(ids: Sequence[int], vocabulary: Vocabulary) -> list[str]:
    """The text of every token with the blank before it; joined they are `decode(ids)`.

    A token that ends inside a character has the text before it, and the character comes with the token that completes it.
    """
    texts: list[str] = []
    anchor, displayed = 0, ""  # the text of ids[anchor:] so far
    for place in range(len(ids)):
        whole = vocabulary.decode(ids[anchor : place + 1])
        finished = whole if place + 1 == len(ids) else whole.rstrip(_UNFINISHED)
        texts.append(finished[len(displayed) :])
        displayed = max(displayed, finished, key=len)
        if texts[-1].strip() and finished == whole:
            anchor, displayed = place, vocabulary.decode(ids[place : place + 1])
    return texts


def piece_name(number: int, vocabulary: Vocabulary) -> str:
    """A piece for reading: as the vocabulary writes it, but text where letters stand for bytes ("Ġé", not "ĠÃ©").

    Bytes that are no whole character are U+FFFD there; in SentencePiece they have names ("<0xE5>").
    """
    piece, text = vocabulary.pieces[number], vocabulary.decode([number])
    if number in vocabulary.specials or not text.strip() or text in piece or piece.isascii():
        return piece
    return ("Ġ" if vocabulary.word_starts[number] else "") + text.strip()


def block_tokens(
    batch: Batch,
    row: int,
    segment: int,
    vocabulary: Vocabulary,
    flags_L: np.ndarray | None = None,
    layers: Sequence[int] = (),
) -> list[Token]:
    """The positions of block `segment` (1, 2, ...) of a row, its special tokens among them; tags are those of `flags_L`."""
    places = np.flatnonzero(np.asarray(batch["segments_BL"][row]) == segment).tolist()
    original, seen = original_tokens(batch, row).tolist(), np.asarray(batch["tokens_BL"][row]).tolist()
    slots = {int(batch["slot_position_BK"][row][k]): k for k in np.flatnonzero(batch["slot_weight_BK"][row] > 0)}
    bounded_K = batch["slot_boundary_weight_BK"][row] > 0
    left, right = ({*batch[name][row][bounded_K].tolist()} for name in ("slot_left_BK", "slot_right_BK"))
    second_L = np.asarray(batch["types_BL"][row]) > 0 if "types_BL" in batch else np.zeros(len(seen), bool)
    tags_TL = [layer_tags(flags_L, layer) for layer in layers] if flags_L is not None else []
    texts = _texts(original, places, vocabulary)
    tokens = []
    for place in places:
        # specials[2:] are [CLS], [SEP] and [MASK]: an unknown token stands for text
        kind: Role = "special" if original[place] in vocabulary.specials[2:] else "text"
        if place in slots:
            same: Role = "kept" if seen[place] == original[place] else "random"
            kind = "mask" if seen[place] == vocabulary.specials.mask else same
        slot = slots.get(place)
        sides = (place in left, place in right)
        tokens.append(
            Token(
                place=place,
                text=texts[place] or _part(original[place], (place in slots) != (place + 1 in slots), vocabulary),
                piece=piece_name(seen[place], vocabulary),
                kind=kind,
                offset=None if slot is None or not bounded_K[slot] else int(batch["slot_offset_BK"][row][slot]),
                side={(True, False): "left", (False, True): "right", (True, True): "both"}.get(sides),  # pyright: ignore
                second=bool(second_L[place]),
                tags=tuple(int(tags_L[place]) for tags_L in tags_TL),
            )
        )
    return tokens


def _part(number: int, last: bool, vocabulary: Vocabulary) -> str:
    """The sign of a piece that ends inside a character, where the rest of the character stands outside its span, or inside."""
    return _UNFINISHED if last and _UNFINISHED in vocabulary.decode([number]) else ""


def _texts(original: list[int], places: list[int], vocabulary: Vocabulary) -> dict[int, str]:
    """The text of every place; what follows a special token begins anew, after a blank."""
    found, run = {}, []
    for place in [*places, None]:
        if place is not None and original[place] not in vocabulary.specials[2:]:
            run.append(place)
            continue
        for number, (each, text) in enumerate(zip(run, spelled([original[at] for at in run], vocabulary), strict=True)):
            found[each] = text if number or text.startswith(" ") else " " + text
        run = []
        if place is not None:
            found[place] = " " + vocabulary.pieces[original[place]]
    return found


def fragments(tokens: Sequence[Token], offsets: bool = True, isolates: bool = False) -> Iterator[Fragment]:
    """A block, or a segment of one, as text. Special tokens at its ends appear only as boundaries.

    `isolates` keeps every span of right-to-left text together, from the original to what the model sees, on terminals that
    order scripts: the span is put into a left-to-right isolate and its words into isolates of their own.
    """
    tokens = [
        token
        for number, token in enumerate(tokens)
        if token.kind != "special" or token.side or 0 < number < len(tokens) - 1
    ]
    place = 0
    while place < len(tokens):
        count = 1
        text = tokens[place].text
        if place and text.startswith(" "):
            yield Fragment(" ", "text", tagged=_inside(tokens[place], begins=False))
        if not masked(tokens[place]):
            yield from _plain(tokens, place)
        else:
            while place + count < len(tokens) and masked(tokens[place + count]):
                count += 1
            yield from _span(tokens, place, count, offsets, isolates)
        place += count


def masked(token: Token) -> bool:
    """True if the model predicts the token."""
    return token.kind in ("mask", "random", "kept")


def _inside(token: Token, begins: bool = True) -> int:
    return sum(1 << layer for layer, tag in enumerate(token.tags) if tag == 2 or (begins and tag))


def _tag_marks(tokens: Sequence[Token], place: int) -> tuple[str, str]:
    """The brackets of tagged spans that begin before the token and end after it."""
    before = tokens[place - 1].tags if place else ()
    after = tokens[place + 1].tags if place + 1 < len(tokens) else ()
    opening, closing = "", ""
    for layer, tag in enumerate(tokens[place].tags):
        opening += TAG_MARKS[layer][0] * (tag == 1 or (tag == 2 and not (before and before[layer])))
        closing = TAG_MARKS[layer][1] * (tag > 0 and not (after and after[layer] == 2)) + closing
    return opening, closing


def _plain(tokens: Sequence[Token], place: int) -> Iterator[Fragment]:
    token, tagged = tokens[place], _inside(tokens[place])
    opening, closing = _tag_marks(tokens, place)
    body = token.text.removeprefix(" ")
    if opening:
        yield Fragment(opening, "mark")
    if token.side:
        yield Fragment("|", "mark", tagged)
        yield Fragment(body or token.piece, token.side, tagged)
        yield Fragment("|", "mark", tagged)
    elif body:
        yield Fragment(body, token.kind, tagged)
    if closing:
        yield Fragment(closing, "mark")


def _span(tokens: Sequence[Token], place: int, count: int, offsets: bool, isolates: bool) -> Iterator[Fragment]:
    begin, words, end = (_LEFT_TO_RIGHT, _BY_FIRST_LETTER, _END) if isolates else ("", "", "")
    yield Fragment(f"{begin}«{words}", "mark")
    for number in range(count):
        token = tokens[place + number]
        opening, closing = _tag_marks(tokens, place + number)
        text = token.text
        if text.startswith(" "):
            if number:
                yield Fragment(" ", "text", _inside(token, begins=False))
            text = text[1:]
        if opening:
            yield Fragment(opening, "mark")
        if text:
            yield Fragment(text, token.kind, _inside(token))
        if closing:
            yield Fragment(closing, "mark")
    yield Fragment(f"{end} →", "mark")
    for token in tokens[place : place + count]:
        yield Fragment(f" {words}{token.piece}{end}", token.kind)
        if offsets and token.offset is not None:
            yield Fragment(str(token.offset).translate(_SUBSCRIPTS), "offset")
    yield Fragment(f"»{end}", "mark")


def right_to_left(text: str) -> bool:
    """True if the text has letters of a right-to-left script."""
    return any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text)


def masked_text(batch: Batch, row: int, vocabulary: Vocabulary) -> str:
    """The first block of a row: «masked span → what the model sees», |boundary tokens| between bars."""
    return "".join(part.text for part in fragments(block_tokens(batch, row, 1, vocabulary), offsets=False))
