"""`words` and `sampling` in a TensorFlow graph, equal to the NumPy ones bit for bit. Imported only by `masking_tf`.

Function by function the same names and the same arithmetic; the docstrings are there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from spanjax.data.words import SpecialIds, TextRows

Tensor = Any


class Text(NamedTuple):
    """`words.Text` as tensors."""

    first_W: Tensor
    pieces_W: Tensor
    first_M: Tensor
    tokens_M: Tensor
    first_word_M: Tensor
    words_M: Tensor
    row_M: Tensor
    number_M: Tensor


class Tagged(NamedTuple):
    """`words.Tagged` as tensors."""

    first_word_T: Tensor
    words_T: Tensor
    first_tag_M: Tensor
    tags_M: Tensor


Propose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def true_places(flags: Tensor) -> Tensor:
    """`np.flatnonzero`."""
    return tf.cast(tf.where(tf.reshape(flags, [-1]))[:, 0], tf.int32)


def placed(values_X: Tensor, place_X: Tensor, size: Tensor) -> Tensor:
    """Zeros [size] with values at places that differ; several times faster on CPU than `tf.scatter_nd`."""
    return tf.math.unsorted_segment_sum(values_X, place_X, size)


def item_of_each(count: Tensor) -> Tensor:
    """`np.repeat(np.arange(len(count)), count)`: where items begin, summed up. `tf.repeat` masks a whole matrix."""
    total = tf.reduce_sum(count)
    first = tf.cumsum(count, exclusive=True)  # of an item of count 0: where the next one begins
    return tf.cumsum(placed(tf.ones_like(first), first, total + 1)[:-1]) - 1


def differences(first: Tensor, end: Tensor) -> Tensor:
    """`np.diff(first, append=end)`."""
    return tf.concat([first[1:], tf.reshape(end, [1])], axis=0) - first


def find_words(rows: TextRows, specials: SpecialIds, every_token: bool = False) -> Text:
    """`words.find_words`."""
    segments_BL = rows.segments_BL
    text_BL = (segments_BL > 0) & (rows.tokens_BL != specials.cls) & (rows.tokens_BL != specials.sep)
    joined_BL = text_BL[:, 1:] & text_BL[:, :-1] & (segments_BL[:, 1:] == segments_BL[:, :-1])
    apart_BL, any_B1 = tf.logical_not(joined_BL), tf.ones_like(text_BL[:, :1])
    begins_BL = text_BL & tf.concat([any_B1, apart_BL], axis=1)
    first_W = true_places(text_BL if every_token else begins_BL | (text_BL & rows.word_starts_BL))
    first_M, end_M = true_places(begins_BL), true_places(text_BL & tf.concat([apart_BL, any_B1], axis=1)) + 1
    first_word_M = tf.searchsorted(first_W, first_M)
    words_M = differences(first_word_M, tf.size(first_W))
    last_word_M = first_word_M + words_M - 1
    pieces_W = tf.tensor_scatter_nd_update(
        differences(first_W, tf.constant(0)), last_word_M[:, None], end_M - tf.gather(first_W, last_word_M)
    )
    row_M = first_M // tf.shape(segments_BL)[1]
    number_M = tf.range(tf.size(row_M)) - tf.searchsorted(row_M, row_M)
    return Text(first_W, pieces_W, first_M, end_M - first_M, first_word_M, words_M, row_M, number_M)


def find_tagged(tags_BL: Tensor, text: Text) -> Tagged:
    """`words.find_tagged`."""
    tags = tf.reshape(tags_BL, [-1])
    begin_T = true_places(tags == 1)
    outside = tf.concat([true_places(tags != 2), tf.size(tags)[None]], axis=0)
    end_T = tf.gather(outside, tf.searchsorted(outside, begin_T, side="right"))
    first_word_T = tf.searchsorted(text.first_W, begin_T, side="right") - 1
    words_T = tf.searchsorted(text.first_W, end_T) - first_word_T
    first_tag_M = tf.searchsorted(first_word_T, text.first_word_M)
    tags_M = tf.searchsorted(first_word_T, text.first_word_M + text.words_M) - first_tag_M
    return Tagged(first_word_T, words_T, first_tag_M, tags_M)


def draw_spans(
    text: Text, budget_M: Tensor, propose: Propose, *, mean_words: float, most_words: int, whole_words: bool
) -> Tensor:
    """`sampling.draw_spans`."""
    limit_M = 16 + 4 * budget_M
    rounds_M = tf.cast(tf.cast(budget_M, tf.float64) * (1.15 / mean_words), tf.int32) + 4
    rounds_M = tf.minimum(limit_M, rounds_M) * tf.cast(budget_M > 0, tf.int32)
    free_W, left_M, rounds_M = _many_rounds(text, budget_M, rounds_M, propose, whole_words)
    free_W = tf.concat([free_W, tf.zeros([most_words], tf.int32)], axis=0)
    block_A = true_places((left_M > 0) & (rounds_M < limit_M))

    def one_round(block_A: Tensor, left_A: Tensor, round_A: Tensor, free_W: Tensor) -> tuple[Tensor, ...]:
        first_A, words_A = propose(block_A, round_A)
        whole_A = tf.gather(text.pieces_W, first_A)
        left_A, free_W = _one_round(free_W, whole_A, words_A, first_A, left_A, most_words, whole_words)
        round_A += 1
        going_A = true_places((left_A > 0) & (round_A < tf.gather(limit_M, block_A)))
        return (*(tf.gather(array_A, going_A) for array_A in (block_A, left_A, round_A)), free_W)

    start = (block_A, tf.gather(left_M, block_A), tf.gather(rounds_M, block_A), free_W)
    end = tf.while_loop(lambda block_A, *_: tf.size(block_A) > 0, one_round, start)
    return text.pieces_W - end[3][:-most_words]


def _many_rounds(
    text: Text, budget_M: Tensor, rounds_M: Tensor, propose: Propose, whole_words: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`sampling._many_rounds`; returns the rounds that are done as well."""
    block_P = item_of_each(rounds_M)
    after_M = tf.cumsum(rounds_M)
    place_P = tf.range(tf.size(block_P))
    first_P, words_P = propose(block_P, place_P - tf.gather(after_M - rounds_M, block_P))
    after_P = tf.cumsum(words_P)
    proposal_E = item_of_each(words_P)
    word_E = tf.range(tf.size(proposal_E)) + tf.gather(first_P - after_P + words_P, proposal_E)
    decider_W = _deciders(tf.size(text.pieces_W), proposal_E, word_E, first_P)
    decides_E = tf.cast(tf.gather(decider_W, word_E) == proposal_E, tf.int32)
    cost_E = tf.gather(text.pieces_W, word_E) * decides_E
    spent_E = tf.concat([[0], tf.cumsum(cost_E)], axis=0)
    words = tf.concat([[0], after_P], axis=0)
    begin_M, end_M = tf.gather(words, after_M - rounds_M), tf.gather(words, after_M)
    limit_M = tf.gather(spent_E, begin_M) + budget_M
    over_E = spent_E[1:] - tf.gather(tf.gather(limit_M, block_P), proposal_E)
    fits_E = tf.cast(over_E <= 0, tf.int32)
    taken_E = cost_E * fits_E if whole_words else tf.maximum(tf.minimum(cost_E - over_E, cost_E), 0)
    taken, fitting = (tf.concat([[0], tf.cumsum(array_E)], axis=0) for array_E in (taken_E, fits_E))
    crossing_M = begin_M + tf.gather(fitting, end_M) - tf.gather(fitting, begin_M)
    at_crossing_M = tf.gather(tf.concat([proposal_E, [0]], axis=0), crossing_M)
    rounds_M += tf.cast(crossing_M < end_M, tf.int32) * (1 + at_crossing_M - after_M)
    free_W = text.pieces_W - placed(taken_E, word_E, tf.size(text.pieces_W))
    return free_W, budget_M - (tf.gather(taken, end_M) - tf.gather(taken, begin_M)), rounds_M


def _deciders(words: Tensor, proposal_E: Tensor, word_E: Tensor, first_P: Tensor) -> Tensor:
    """`sampling._deciders`."""
    none = tf.size(first_P)
    place_P = tf.range(none)

    def decide(counts_P: Tensor) -> tuple[Tensor, Tensor]:
        counted_E = tf.where(tf.gather(counts_P, proposal_E), proposal_E, none)
        decider_W = tf.minimum(tf.math.unsorted_segment_min(counted_E, word_E, words), none)
        return decider_W, tf.gather(decider_W, first_P) >= place_P

    def again(_: Tensor, before_P: Tensor, counts_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decider_W, now_P = decide(counts_P)
        return decider_W, counts_P, now_P

    every_P = tf.ones_like(first_P, tf.bool)
    return tf.while_loop(
        lambda _, before_P, now_P: tf.reduce_any(before_P != now_P), again, (*again(word_E, every_P, every_P),)
    )[0]


def _one_round(
    free_W: Tensor,
    whole_A: Tensor,
    words_A: Tensor,
    first_A: Tensor,
    left_A: Tensor,
    most_words: int,
    whole_words: bool,
) -> tuple[Tensor, Tensor]:
    """`sampling._one_round`; returns `free_W` as well."""
    more_S = tf.range(most_words)
    word_AS = first_A[:, None] + more_S
    free_AS = tf.gather(free_W, word_AS)
    tried_AS = (more_S < words_A[:, None]) & (free_AS[:, :1] == whole_A[:, None])
    cost_AS = free_AS * tf.cast(tried_AS, tf.int32)
    over_AS = tf.cumsum(cost_AS, axis=1) - left_A[:, None]
    taken_AS = cost_AS * tf.cast(over_AS <= 0, tf.int32)
    if not whole_words:
        taken_AS = tf.maximum(tf.minimum(cost_AS - over_AS, cost_AS), 0)
    free_W = tf.tensor_scatter_nd_sub(free_W, word_AS[..., None], taken_AS)
    return left_A - tf.reduce_sum(taken_AS, axis=1), free_W


def leading_places(first_W: Tensor, masked_W: Tensor) -> Tensor:
    """`words.leading_places`."""
    word = true_places(masked_W > 0)
    count = tf.gather(masked_W, word)
    shift = tf.gather(first_W, word) - tf.cumsum(count, exclusive=True)
    item = item_of_each(count)
    return tf.range(tf.size(item)) + tf.gather(shift, item)


def searched(steps: Tensor, values: Tensor) -> Tensor:
    """`np.searchsorted(steps, values, side="right")` for values of any rank."""
    return tf.reshape(tf.searchsorted(steps, tf.reshape(values, [-1]), side="right"), tf.shape(values))


def floored(values: Tensor) -> Tensor:
    """`np.floor(values).astype(int)` for values from 0 on."""
    return tf.cast(tf.floor(values), tf.int32)
