"""Mask filling: predictions for every [MASK] of a text, by the masked token head, the span boundary head, and both.

    from spanjax.inference.fill_mask import Filler
    from spanjax.pretrained.load import load_model

    filler = Filler(load_model("runs/mine"))
    filler.fill_mask("The [MASK] [MASK] sat")[0].candidates      # [(piece, probability), ...] of the first mask
    filler.spans("The [MASK] [MASK] sat")[0].fills["sbo"]        # the span from its two neighbours alone
    filler.fill_mask(["A [MASK] sat", "It [MASK]"])[1]           # a list of texts gives a list: one program for a batch

Shapes: B texts, L positions, K masks, T heads, V vocabulary.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.bounds import raise_problems
from spanjax.cli import visible_name
from spanjax.data.sources.cleaning import clean
from spanjax.objectives.base import Pretraining
from spanjax.pretrained.electra import filling
from spanjax.pretrained.model import Model, module_params, vocabulary_of
from spanjax.training.state import abstract_module

MASK = "[MASK]"
LENGTH_STEP, MASKS_STEP = 64, 8  # sizes are rounded up to these, so that few programs are compiled
ROWS, SLOTS = 32, 512  # most texts of a batch, and most slots: each has a probability of every token by every head
SHORT_STEP, MANY_ROWS = 16, 128  # of scores of many short texts
PROBLEMS = 8  # texts that a message lists

Candidates = list[tuple[str, float]]
"""Tokens with their probabilities, the most probable first."""
Hidden = str | tuple[int, int]
"""A phrase of a text, at its first occurrence, or characters [start, end) of it."""


class Masked(NamedTuple):
    """One [MASK] of a text."""

    position: int
    """Its index among the tokens of the text; [CLS] is 0."""
    candidates: Candidates


class Fill(NamedTuple):
    """Prediction of one head, or of both, for a span."""

    text: str
    """The most probable token at every position, as text."""
    log_probability: float
    """Sum of its natural logarithms over the positions, each position on its own."""
    candidates: list[Candidates]
    """Candidates of every position."""
    truth: list[float] | None
    """Probability of the original token at every position, if known."""


class Span(NamedTuple):
    """A run of [MASK]."""

    position: int
    pieces: int
    truth: str | None
    """The original text, if known."""
    fills: Mapping[str, Fill]
    """By every head, "mlm" and "sbo" (the two neighbours of the span and the offset inside it alone) say, and by "both" (the
    product of the two; "all" of more)."""


class MaskedText(NamedTuple):
    """Tokens of a text with specials around them, some of them masked."""

    ids: list[int]
    masks: list[int]
    """Positions of the masks, ascending."""
    truth: dict[int, int]
    """Position -> original id, where it is known."""


class TruthScores(NamedTuple):
    """Scores of the original tokens of one text: by every head, then by all of them where there are several."""

    log_TK: np.ndarray
    """float32, log-probability; -inf where the head makes no prediction."""
    right_TK: np.ndarray
    """bool, True where the token is the most probable one."""


def noted(model: Model) -> Model:
    """Prints the notes of reading the model on stderr (another step than the newest, unused heads), and returns the model."""
    for line in model.notes:
        print(visible_name(f"note: {line}"), file=sys.stderr)
    return model


def compiled(model: Model, compute: Callable[[Pretraining, Any, Mapping[str, jax.Array]], Any]) -> Callable[[Any], Any]:
    """Returns `compute(objective, module, batch)` as a compiled function of batches, with the weights of a model."""
    objective = model.objective()
    structure, abstract = abstract_module(objective, model.encoder)
    params = jax.tree.map(jnp.asarray, module_params(model, abstract))
    # weights are an argument: as constants they would be compiled into the program
    run = jax.jit(lambda params, batch: compute(objective, nnx.merge(structure, params), batch))
    return functools.partial(run, params)


class Filler:
    """Fills masks with a model, or with its generator. ValueError if it has no vocabulary or no head for it."""

    def __init__(self, model: Model):
        model = filling(model)
        self.model, self.vocabulary, self.heads = model, vocabulary_of(model), model.objective().fill_heads
        if not self.heads:
            raise ValueError(
                f"{model.source} has an encoder and no head that predicts tokens (as the released SpanBERT base has): "
                "train one with `python -m spanjax.train --init-from ...`"
            )

        self._compute = compiled(model, self._log_softmax)

    def _log_softmax(self, objective: Pretraining, module: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        logits_BTKV = objective.logits(module, objective.hidden(module, batch, None), batch)
        return jax.nn.log_softmax(logits_BTKV[..., : self.model.encoder.vocab_size], axis=-1)

    def _log_truth(self, objective: Pretraining, module: Any, batch: Mapping[str, jax.Array]) -> Any:
        log_BTKV = self._log_softmax(objective, module, batch)
        if len(self.heads) > 1:
            product_BKV = jax.nn.log_softmax(log_BTKV.sum(axis=1), axis=-1)
            log_BTKV = jnp.concatenate([log_BTKV, product_BKV[:, None]], axis=1)
        target_BTK = jnp.broadcast_to(batch["slot_target_BK"][:, None], log_BTKV.shape[:3])
        truth_BTK = jnp.take_along_axis(log_BTKV, target_BTK[..., None], axis=-1)[..., 0]
        return truth_BTK, log_BTKV.argmax(axis=-1) == target_BTK

    @functools.cached_property
    def _compute_truth(self) -> Callable[[Any], Any]:
        return compiled(self.model, self._log_truth)

    @overload
    def fill_mask(self, text: str, top: int = 5) -> list[Masked]: ...

    @overload
    def fill_mask(self, text: Sequence[str], top: int = 5) -> list[list[Masked]]: ...

    def fill_mask(self, text: str | Sequence[str], top: int = 5) -> list[Masked] | list[list[Masked]]:
        """Returns the `top` most probable tokens at every [MASK] by the token head; of a list of texts, a list for each.

        ValueError lists texts without a mask and those that are too long; also for a model without such a head.
        """
        head = next((number for number, head in enumerate(self.heads) if not head.neighbours), None)
        if head is None:
            names = ", ".join(head.name for head in self.heads)
            raise ValueError(
                f"{self.model.source} has no head that reads the masked token itself: its heads are {names}"
            )
        self._check(top)
        read = self._read_all([text] if isinstance(text, str) else text, None)
        found = [
            [Masked(*each) for each in zip(one.masks, self._best(log_TKV[head], top), strict=True)]
            for one, log_TKV in zip(read, self._log_probabilities(read), strict=True)
        ]
        return found[0] if isinstance(text, str) else found

    @overload
    def spans(self, text: str, top: int = 5, hide: Sequence[Hidden] = ()) -> list[Span]: ...

    @overload
    def spans(self, text: Sequence[str], top: int = 5, hide: Sequence[Sequence[Hidden]] = ()) -> list[list[Span]]: ...

    def spans(
        self, text: str | Sequence[str], top: int = 5, hide: Sequence[Hidden] | Sequence[Sequence[Hidden]] = ()
    ) -> list[Span] | list[list[Span]]:
        """Fills every run of [MASK], by each head and by both; of a list of texts, a list for each.

        `hide` are phrases of the text to mask first, token by token, or (start, end) in its characters; with a list of texts,
        those of each. ValueError lists texts without a mask, those that are too long, and phrases that are not in the text.
        """
        self._check(top)
        texts: Sequence[str] = [text] if isinstance(text, str) else text
        phrases: Any = [hide] if isinstance(text, str) else hide or [()] * len(texts)
        if len(phrases) != len(texts):
            raise ValueError(f"hide has {len(phrases)} items for {len(texts)} texts: give a list of phrases for each")
        read = self._read_all(texts, phrases)
        found = [self._filled(*each, top) for each in zip(read, self._log_probabilities(read), strict=True)]
        return found[0] if isinstance(text, str) else found

    @property
    def score_names(self) -> list[str]:
        """Names of the T scores of `truth_scores`."""
        names = [head.name for head in self.heads]
        return [*names, *([] if len(names) == 1 else ["both" if len(names) == 2 else "all"])]

    def truth_scores(self, texts: Sequence[MaskedText]) -> list[TruthScores]:
        """Scores the original tokens at all masks of texts, which fit into the model's positions."""
        found: list[Any] = [None] * len(texts)
        for numbers, results in self._batches(texts, self._compute_truth, SHORT_STEP, MANY_ROWS):
            log_BTK, right_BTK = results
            for row, number in enumerate(numbers):
                text = texts[number]
                log_TK = log_BTK[row][:, : len(text.masks)].copy()
                log_TK = self._within_reach(text, log_TK, len(self.heads))
                # a head that makes no prediction has no part in the product of all
                log_TK[-1, ~np.isfinite(log_TK).all(axis=0)] = -np.inf
                found[number] = TruthScores(log_TK, right_BTK[row][:, : len(text.masks)])
        return found

    def _filled(self, read: MaskedText, log_TKV: np.ndarray, top: int) -> list[Span]:
        scores = {head.name: log_KV for head, log_KV in zip(self.heads, log_TKV, strict=True)}
        if len(scores) > 1:
            sum_KV = log_TKV.sum(axis=0)
            with np.errstate(invalid="ignore"):  # -inf where a head makes no prediction
                product_KV = sum_KV - np.logaddexp.reduce(sum_KV, axis=1, keepdims=True)
            scores["both" if len(scores) == 2 else "all"] = product_KV
        found, place = [], 0
        for first, pieces in runs(read.masks):
            slots = slice(place, place + pieces)
            truth = [read.truth.get(first + each) for each in range(pieces)]
            known = [each for each in truth if each is not None]
            fills = {
                name: self._fill(log_KV[slots], top, known if len(known) == pieces else None)
                for name, log_KV in scores.items()
                if np.isfinite(log_KV[slots]).all()
            }
            found.append(Span(first, pieces, self.vocabulary.decode(known) if len(known) == pieces else None, fills))
            place += pieces
        return found

    def _check(self, top: int) -> None:
        if not 1 <= top <= self.vocabulary.size:
            raise ValueError(
                f"top {top}: expected at least 1 and at most {self.vocabulary.size:,}, the pieces there are"
            )

    def _read_all(self, texts: Sequence[str], hide: Sequence[Sequence[Hidden]] | None) -> list[MaskedText]:
        """Encodes texts; one ValueError lists those that cannot be used."""
        found, problems = list[MaskedText](), list[str]()
        for text, phrases in zip(texts, hide or [None] * len(texts), strict=True):
            try:
                found.append(self._read(text, phrases))
            except ValueError as error:
                problems.append(str(error))
        more = [f"and {len(problems) - PROBLEMS:,} more texts"] if len(problems) > PROBLEMS else []
        raise_problems([*problems[:PROBLEMS], *more])
        return found

    def _read(self, text: str, hide: Sequence[Hidden] | None) -> MaskedText:
        """Encodes a text with specials around it; the vocabulary's own name of the mask works too."""
        specials = self.vocabulary.specials
        own_name = self.vocabulary.pieces[specials.mask]
        ids, masks, truth = [specials.cls], [], {}
        for number, visible_or_hidden in enumerate(parted(text, hide or ())):
            for place, part in enumerate(visible_or_hidden.replace(own_name, MASK).split(MASK)):
                if place:
                    masks.append(len(ids))
                    ids.append(specials.mask)
                pieces = self.vocabulary.encode([clean(part)])[0].tolist() if part.strip() else []
                if number % 2:  # hidden
                    masks += range(len(ids), len(ids) + len(pieces))
                    truth |= dict(enumerate(pieces, start=len(ids)))
                    pieces = [specials.mask] * len(pieces)
                ids += pieces
        ids.append(specials.sep)
        if not masks:
            raise ValueError(f"the text {text!r} has no {MASK}: write {MASK} once for every piece to be filled in")
        if len(ids) > self.model.encoder.positions:
            raise ValueError(
                f"the text has {len(ids):,} tokens, the model reads at most {self.model.encoder.positions:,}: shorten it"
            )
        return MaskedText(ids, masks, truth)

    def _log_probabilities(self, texts: Sequence[MaskedText]) -> list[np.ndarray]:
        """Log-probability of every token at every mask by every head [T, K, V]; -inf where the head makes no prediction."""
        found: list[Any] = [None] * len(texts)
        for numbers, log_BTKV in self._batches(texts, self._compute, LENGTH_STEP, ROWS):
            for log_TKV, number in zip(np.array(log_BTKV), numbers, strict=False):  # rows that only pad come last
                found[number] = self._within_reach(texts[number], log_TKV[:, : len(texts[number].masks)])
        return found

    def _batches(
        self, texts: Sequence[MaskedText], compute: Callable[[Any], Any], step: int, rows: int
    ) -> Iterator[tuple[list[int], Any]]:
        """Yields indices of texts, the longest first, and what `compute` returns for them, as NumPy arrays."""
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number].ids))
        while order:
            slots = _rounded(max(len(texts[number].masks) for number in order[:rows]), MASKS_STEP)
            numbers = order[: max(1, min(rows, SLOTS // slots))]
            order = order[len(numbers) :]
            batch = self._batch([texts[number] for number in numbers], step)
            yield numbers, jax.tree.map(np.asarray, compute(batch))

    def _within_reach(self, text: MaskedText, log_TKV: np.ndarray, heads: int | None = None) -> np.ndarray:
        offsets = [offset for _, pieces in runs(text.masks) for offset in range(pieces)]
        for head, log_KV in zip(self.heads, log_TKV[:heads], strict=True):
            if head.reach is not None:
                log_KV[[offset >= head.reach for offset in offsets]] = -np.inf
        return log_TKV

    def _batch(self, texts: Sequence[MaskedText], step: int) -> dict[str, np.ndarray]:
        """Builds a batch of the shape that fits all of these texts, with a power of two rows."""
        rows = 1 << (len(texts) - 1).bit_length()
        length = min(_rounded(max(len(text.ids) for text in texts), step), self.model.encoder.positions)
        slots = _rounded(max(len(text.masks) for text in texts), MASKS_STEP)
        ids_BL = np.full((rows, length), self.vocabulary.specials.pad, np.int32)
        used_BL = np.zeros((rows, length), np.int32)
        weight_BK = np.zeros((rows, slots), np.float32)
        arrays = {name: np.zeros((rows, slots), np.int32) for name in ("position", "left", "right", "offset")}
        target_BK = np.zeros((rows, slots), np.int32)
        reach = max((head.reach or slots for head in self.heads if head.neighbours), default=1)
        for row, text in enumerate(texts):
            ids_BL[row, : len(text.ids)], used_BL[row, : len(text.ids)] = text.ids, 1
            weight_BK[row, : len(text.masks)] = 1
            target_BK[row, : len(text.masks)] = [text.truth.get(position, 0) for position in text.masks]
            places = [(first, pieces, offset) for first, pieces in runs(text.masks) for offset in range(pieces)]
            for place, (first, pieces, offset) in enumerate(places):
                # an offset beyond the tables of all heads gets the last row as a valid index, and -inf in _within_reach
                values = (first + offset, first - 1, first + pieces, min(offset, reach - 1))
                for array, value in zip(arrays.values(), values, strict=True):
                    array[row, place] = value
        return {
            "tokens_BL": ids_BL,
            "segments_BL": used_BL,
            "positions_BL": np.arange(length, dtype=np.int32)[None] * used_BL,
            "types_BL": np.zeros_like(ids_BL),
            "slot_weight_BK": weight_BK,
            "slot_target_BK": target_BK,
            **{f"slot_{name}_BK": array for name, array in arrays.items()},
        }

    def _best(self, log_KV: np.ndarray, top: int) -> list[Candidates]:
        best_KT = np.argsort(-log_KV, axis=1, kind="stable")[:, :top]
        return [
            [(self.vocabulary.pieces[number], float(np.exp(log_V[number]))) for number in best_T.tolist()]
            for log_V, best_T in zip(log_KV, best_KT, strict=True)
        ]

    def _fill(self, log_KV: np.ndarray, top: int, truth: list[int] | None) -> Fill:
        best_K = log_KV.argmax(axis=1)
        return Fill(
            text=self.vocabulary.decode(best_K),
            log_probability=float(log_KV.max(axis=1).sum()),
            candidates=self._best(log_KV, top),
            truth=None if truth is None else np.exp(log_KV[np.arange(len(truth)), truth]).astype(float).tolist(),
        )


def _rounded(number: int, step: int) -> int:
    return math.ceil(number / step) * step


def parted(text: str, hide: Sequence[Hidden]) -> list[str]:
    """Returns visible and hidden parts of a text in turn, the first one visible. ValueError for phrases that are not in it."""
    found: list[tuple[int, int]] = []
    for each in hide:
        if isinstance(each, str):
            if each not in text or not each.strip():
                raise ValueError(f"{each!r} is not in the text {text!r}: give words of it, unchanged")
            each = (text.index(each), text.index(each) + len(each))
        if not 0 <= each[0] < each[1] <= len(text) or not text[slice(*each)].strip():
            raise ValueError(f"hide has {each}: expected characters [start, end) of words of a text of {len(text):,}")
        found.append(each)
    cuts = [0, *(cut for each in sorted(found) for cut in each), len(text)]
    if cuts != sorted(cuts):
        raise ValueError(f"hide has {list(hide)}: two of them overlap; give every word once")
    return [text[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]


def span_json(span: Span) -> dict[str, Any]:
    """Converts a span to plain values for JSON."""
    return {**span._asdict(), "fills": {name: fill._asdict() for name, fill in span.fills.items()}}


def runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Returns first position and length of every run of consecutive positions: 2 3 5 are (2, 2) and (5, 1)."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and sum(found[-1]) == position:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((position, 1))
    return found
