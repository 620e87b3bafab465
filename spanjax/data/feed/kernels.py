"""The loops that make batches, compiled by numba: one row, one block, one round after another, as in docs/design.md.

A row costs a few microseconds and the interpreter is free meanwhile, so a feed's thread runs alongside the training loop.
numba keeps the machine code on disk. All compiled functions are in this one file: numba notices a change of a function's own
file alone. Callers use `masking`, `slots` and `order`: `text` is a `masking.SamplerRows`,
`sampler` a `masking.SpanSampler`, `layout` a `slots.Layout`.

Shapes: B rows, L positions, K slots a row, V vocabulary; M blocks and X masked tokens of the whole batch, R rounds of a
block, S lengths of spans; W words and T tagged spans of one block.
"""

from typing import NamedTuple

import numpy as np

from spanjax.data.compiled import compiled
from spanjax.data.feed import hashing

_ONE, _GAMMA, _FIRST, _SECOND, _UNIT = (
    np.uint64(1),
    np.uint64(hashing.GAMMA),
    np.uint64(hashing.FIRST),
    np.uint64(hashing.SECOND),
    hashing.UNIT,
)


class Slots(NamedTuple):
    """The `slot_` fields of the batch contract."""

    position_BK: np.ndarray
    target_BK: np.ndarray
    weight_BK: np.ndarray
    left_BK: np.ndarray
    right_BK: np.ndarray
    offset_BK: np.ndarray
    boundary_weight_BK: np.ndarray


class Scratch(NamedTuple):
    """Scratch arrays for one block, reused for the next."""

    first_W: np.ndarray  # position of a word's first piece, and the block's end
    word_L: np.ndarray  # the word of every position
    masked_W: np.ndarray  # leading pieces that are masked
    first_T: np.ndarray  # first word of a tagged span
    words_T: np.ndarray


@compiled
def fold(key, value):  # noqa: ANN001, ANN201
    """`hashing.fold` of two numbers; `value` is at least 0."""
    z = key + (np.uint64(value) + _ONE) * _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@compiled
def uniform(bits):  # noqa: ANN001, ANN201
    """`hashing.uniform` of one number."""
    return np.float64(bits >> np.uint64(11)) * _UNIT


@compiled
def _scratch(length):  # noqa: ANN001, ANN202
    return Scratch(
        np.empty(length + 1, np.int64),
        np.empty(length, np.int64),
        np.empty(length, np.int64),
        np.empty(length, np.int64),
        np.empty(length, np.int64),
    )


@compiled
def _next_block(text, row, begin):  # noqa: ANN001, ANN202
    """First position and end of the first block from `begin` on: both L where there is none."""
    tokens, segments, cls, sep = text.tokens_BL[row], text.segments_BL[row], text.cls, text.sep
    length = len(tokens)
    while begin < length and (segments[begin] == 0 or tokens[begin] == cls or tokens[begin] == sep):
        begin += 1
    end = begin
    while end < length and segments[end] == segments[begin] and tokens[end] != cls and tokens[end] != sep:
        end += 1
    return begin, end


@compiled
def _find_words(text, sampler, row, begin, end, scratch):  # noqa: ANN001, ANN202
    """Writes words and tagged spans of a block into `scratch`; returns their numbers."""
    starts, words, tags = text.word_starts_BL[row], 0, 0
    for place in range(begin, end):
        if place == begin or sampler.every_token or starts[place]:
            scratch.first_W[words] = place
            words += 1
        scratch.word_L[place] = words - 1
    scratch.first_W[words] = end
    if len(text.tags_BL):
        row_tags = text.tags_BL[row]
        for place in range(begin, end):
            if row_tags[place] == 1:
                last = place
                while last + 1 < end and row_tags[last + 1] == 2:
                    last += 1
                scratch.first_T[tags] = scratch.word_L[place]  # a tag that begins inside a word is the word's
                scratch.words_T[tags] = 1 + scratch.word_L[last] - scratch.word_L[place]
                tags += 1
    return words, tags


@compiled
def _propose(key, sampler, scratch, begin, end, words, tags):  # noqa: ANN001, ANN202
    """First word and number of words, cut at the block's end, of the round with this key."""
    if tags > 0 and sampler.share > 0 and uniform(fold(key, 2)) < sampler.share:
        tag = int(uniform(fold(key, 3)) * tags)
        return scratch.first_T[tag], min(scratch.words_T[tag], sampler.longest)
    drawn = uniform(fold(key, 1))
    first = scratch.word_L[begin + int(drawn * (end - begin))] if sampler.by_piece else int(drawn * words)
    count = 1
    if len(sampler.steps_S) > 1:
        drawn = uniform(fold(key, 0))
        while drawn >= sampler.steps_S[count - 1]:
            count += 1
    return first, min(count, words - first)


@compiled
def _draw(key, sampler, scratch, begin, end, words, tags, budget):  # noqa: ANN001, ANN202
    """Masks words of a block, in `scratch.masked_W`, until the budget is spent or the rounds are."""
    first_W, masked_W = scratch.first_W, scratch.masked_W
    masked_W[:words] = 0
    left = budget
    for number in range(16 + 4 * budget):
        if left == 0:
            return
        first, count = _propose(fold(key, number), sampler, scratch, begin, end, words, tags)
        if masked_W[first]:
            continue
        for word in range(first, first + count):
            if masked_W[word]:
                continue
            size = first_W[word + 1] - first_W[word]
            if size > left:
                if sampler.exact:
                    masked_W[word], left = left, 0
                break
            masked_W[word] = size
            left -= size


@compiled
def budget_of(rate, tokens):  # noqa: ANN001, ANN201
    """Tokens to mask in a block of `tokens` text tokens."""
    return int(np.ceil(rate * tokens))


@compiled
def masked_tokens(text, sampler, key_B, rate_B):  # noqa: ANN001, ANN201
    """Mask of the tokens to predict: bool [B, L]."""
    rows, length = text.tokens_BL.shape
    mask_BL, scratch = np.zeros((rows, length), np.bool_), _scratch(length)
    for row in range(rows):
        number, (begin, end) = 0, _next_block(text, row, 0)
        while begin < end:
            words, tags = _find_words(text, sampler, row, begin, end, scratch)
            key = fold(key_B[row], number)
            _draw(key, sampler, scratch, begin, end, words, tags, budget_of(rate_B[row], end - begin))
            for word in range(words):
                for place in range(scratch.first_W[word], scratch.first_W[word] + scratch.masked_W[word]):
                    mask_BL[row, place] = True
            number, (begin, end) = number + 1, _next_block(text, row, end)
    return mask_BL


@compiled
def proposals(text, sampler, key_B, rounds):  # noqa: ANN001, ANN201
    """First words and numbers of words of rounds 0 ... rounds-1 of every block, whatever is masked: int64 [M, R] each."""
    rows, length = text.tokens_BL.shape
    blocks, scratch = 0, _scratch(length)
    for row in range(rows):
        begin, end = _next_block(text, row, 0)
        while begin < end:
            blocks, (begin, end) = blocks + 1, _next_block(text, row, end)
    first_MR, words_MR = np.empty((blocks, rounds), np.int64), np.empty((blocks, rounds), np.int64)
    block = 0
    for row in range(rows):
        number, (begin, end) = 0, _next_block(text, row, 0)
        while begin < end:
            words, tags = _find_words(text, sampler, row, begin, end, scratch)
            key = fold(key_B[row], number)
            for each in range(rounds):
                drawn = _propose(fold(key, each), sampler, scratch, begin, end, words, tags)
                first_MR[block, each], words_MR[block, each] = drawn
            number, block, (begin, end) = number + 1, block + 1, _next_block(text, row, end)
    return first_MR, words_MR


@compiled
def lay_out(tokens_BL, segments_BL, place_X, layout, cumulative_V, kind_B, random_B, slots):  # noqa: ANN001, ANN201
    """The ids that the model sees [B, L], the slots, and the most masked tokens of a row, which may be over `slots`.

    `place_X` are row * L + position, rising. Where a row has too many, the rest of it is skipped.
    """
    rows, length = tokens_BL.shape
    seen_BL = tokens_BL.copy()
    zeros = np.zeros((5, rows, slots), np.int32)
    weights = np.zeros((2, rows, slots), np.float32)
    made = Slots(zeros[0], zeros[1], weights[0], zeros[2], zeros[3], zeros[4], weights[1])
    most, used, row, here = 0, 0, 0, 0
    while here < len(place_X):
        if place_X[here] // length != row:
            row, used = place_X[here] // length, 0
        first = place_X[here] - row * length
        segment, last, end = segments_BL[row, first], first, here + 1
        while (
            end < len(place_X)
            and place_X[end] == row * length + last + 1
            and last + 1 < length
            and segments_BL[row, last + 1] == segment
        ):
            last, end = last + 1, end + 1
        # compiled code checks no bounds: both are inside the row, as specials surround every block and are never masked
        left, right = first - 1, last + 1
        bounded = layout.edges or (
            tokens_BL[row, left] != layout.cls
            and tokens_BL[row, left] != layout.sep
            and tokens_BL[row, right] != layout.cls
            and tokens_BL[row, right] != layout.sep
        )
        for place in range(first, min(right, first + slots - used)):
            slot, offset = used + place - first, place - first
            made.position_BK[row, slot], made.target_BK[row, slot] = place, tokens_BL[row, place]
            made.weight_BK[row, slot] = 1.0
            if bounded and offset < layout.max_offset:
                made.left_BK[row, slot], made.right_BK[row, slot] = left, right
                made.offset_BK[row, slot], made.boundary_weight_BK[row, slot] = offset, 1.0
            kind = uniform(fold(kind_B[row], first if layout.by_span else place))
            if kind < layout.mask:
                seen_BL[row, place] = layout.mask_id
            elif kind < layout.mask + layout.random:
                point = int(uniform(fold(random_B[row], place)) * np.float64(cumulative_V[-1]))
                seen_BL[row, place] = np.searchsorted(cumulative_V, point, side="right")
        used, here = used + right - first, end
        most = max(most, used)
    return seen_BL, made, most


@compiled
def restarted_positions(segments_BL):  # noqa: ANN001, ANN201
    """Implements `slots.restarted_positions`."""
    positions_BL = np.zeros(segments_BL.shape, np.int32)
    for row in range(len(segments_BL)):
        for place in range(1, segments_BL.shape[1]):
            if segments_BL[row, place] == segments_BL[row, place - 1] and segments_BL[row, place] > 0:
                positions_BL[row, place] = positions_BL[row, place - 1] + 1
    return positions_BL


@compiled
def permuted(index_B, size, key_B, half_bits, rounds):  # noqa: ANN001, ANN201
    """Implements `order.permuted`; the network works on numbers of 2 * `half_bits` bits."""
    shift, low = np.uint64(half_bits), (_ONE << np.uint64(half_bits)) - _ONE
    result_B = np.empty(len(index_B), np.int64)
    for place in range(len(index_B)):
        number = np.uint64(index_B[place])
        while True:
            left, right = number >> shift, number & low
            for each in range(rounds):
                left, right = right, left ^ (fold(fold(key_B[place], each), right) & low)
            number = (left << shift) | right
            if number < np.uint64(size):
                break
        result_B[place] = number
    return result_B
