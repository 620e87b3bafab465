"""Several folders of rows as one: mixed by weight, in an order that is still a function of the step.

As in a seqio mixture every folder has a rate; but where seqio samples a stream, here place p of the endless sequence of
training rows belongs to a folder by arithmetic, so that a batch can be named by its step, at once, on any host. Places come in
cycles of 65,536; a cycle holds each folder's share of them, in an order sampled for the cycle.

The weights may change at given steps, each of which begins a stage. Places and cycles of a stage count from its first step; a
folder's rows continue behind those that the stages before read, so that none is read twice before all have been read.

Shapes: B places, F folders, N rows of a folder, V ids, M blocks.
"""

import bisect
import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.feed.hashing import Purpose, fold
from spanjax.data.feed.order import Integers, global_rows, permuted
from spanjax.data.feed.rows import RowBatch, Rows, checked_index
from spanjax.data.shards.shards import Manifest, entropy

CYCLE = 2**16


def shares(weights: Sequence[float]) -> Integers:
    """Number of places of a cycle for every folder [F]: in proportion to the weights, 65,536 in all.

    A folder has at least one, but for those of weight 0, which have none.
    """
    exact_F = np.asarray(weights, np.float64) / np.sum(weights) * CYCLE
    share_F = np.maximum(exact_F > 0, np.floor(exact_F)).astype(np.int64)
    while (missing := CYCLE - int(share_F.sum())) != 0:
        over_F = np.where(exact_F > 0, share_F - exact_F, np.inf)
        if missing > 0:
            share_F[np.argmin(over_F)] += 1
        else:
            share_F[np.argmax(np.where(share_F > 1, over_F, -np.inf))] -= 1
    return share_F


@functools.lru_cache(maxsize=4)
def _dealt(seed: int, cycle: int, share: tuple[int, ...]) -> tuple[Integers, Integers]:
    """For every place of a cycle its folder, and how many places of the cycle the folder had before it."""
    key = fold(fold(fold(seed, int(Purpose.MIXTURE)), 0), np.full(CYCLE, cycle))
    drawn = permuted(np.arange(CYCLE, dtype=np.int64), CYCLE, key)
    folder = np.searchsorted(np.cumsum(share), drawn, side="right")
    turn = np.empty(CYCLE, np.int64)
    turn[np.argsort(folder, kind="stable")] = np.concatenate([np.arange(count) for count in share])
    return folder, turn


class MixtureStage(NamedTuple):
    """A stage of a mixture: its first step and the weights from there on."""

    begin: int
    weights: tuple[float, ...]


def stage_of(text: str) -> MixtureStage:
    """Parses STEP:WEIGHT,WEIGHT,...; ValueError for another form."""
    begin, _, weights = text.partition(":")
    try:
        return MixtureStage(int(begin), tuple(float(each) for each in weights.split(",")))
    except ValueError:
        raise ValueError(
            f"data.stages {text!r}: expected STEP:WEIGHT,WEIGHT,... with a weight for each folder"
        ) from None


def _dealing_seed(seed: int, begin: int) -> int:
    """Seed of the cycles of the stage that begins at a step: stages of equal weights would else repeat an order."""
    return int(fold(seed, begin)) if begin else seed


@functools.lru_cache(maxsize=64)
def _rows_before(
    seed: int, batch_size: int, begins: tuple[int, ...], share: tuple[tuple[int, ...], ...], alone: bool
) -> Integers:
    """Rows of every folder [F] that are read before the last of these steps, at each of which a stage with these shares begins.

    Every batch of a stage needs it, so it is counted once.
    """
    if len(begins) == 1:
        return np.zeros(len(share[0]), np.int64)
    before_F = _rows_before(seed, batch_size, begins[:-1], share[:-1], alone)
    begin, end, share_F = begins[-2], begins[-1], np.asarray(share[-2])
    places = (end - begin) * batch_size
    if alone and not begin:
        return before_F + places * (share_F > 0)
    cycles, rest = divmod(places, CYCLE)
    folder, _ = _dealt(_dealing_seed(seed, begin), cycles, share[-2])
    return before_F + cycles * share_F + np.bincount(folder[:rest], minlength=len(share_F))


def mixed_rows(
    seed: int,
    step: int,
    batch_size: int,
    sizes: Sequence[int],
    share_F: Integers,
    begin: int = 0,
    before_F: Integers | None = None,
    alone: bool = False,
) -> tuple[Integers, Integers]:
    """Row indices, counted through all folders, and epochs of their folders, of global batch `step`: ([B], [B]).

    `begin` is the first step of its stage, and `before_F` are the rows that were read of each folder before that. Where the
    first folder was read `alone` in the first stage, its epochs are those of a run without a mixture.
    """
    place_B = np.int64(step - begin) * batch_size + np.arange(batch_size, dtype=np.int64)
    cycle_B = place_B // CYCLE
    folder_B, turn_B = np.empty_like(place_B), np.empty_like(place_B)
    for cycle in np.unique(cycle_B).tolist():
        here = cycle_B == cycle
        folder, turn = _dealt(_dealing_seed(seed, begin), cycle, tuple(share_F.tolist()))
        folder_B[here], turn_B[here] = folder[place_B[here] % CYCLE], turn[place_B[here] % CYCLE]
    turn_B += cycle_B * share_F[folder_B]
    if before_F is not None:
        turn_B += before_F[folder_B]
    first_F = np.cumsum([0, *sizes])
    index_B, epoch_B = np.empty_like(place_B), np.empty_like(place_B)
    for folder, size in enumerate(sizes):
        here = np.flatnonzero(folder_B == folder)
        epoch_B[here] = turn_B[here] // size
        order = fold(seed, int(Purpose.ORDER))
        # a folder keeps the order that it had without the others, or its epochs would repeat rows
        own = fold(order if alone and not folder else fold(order, folder), epoch_B[here])
        index_B[here] = first_F[folder] + permuted(turn_B[here] % size, size, own)
    return index_B, epoch_B


def _fingerprint(parts: Sequence[str], share_F: Integers) -> str:
    """Fingerprint of folders, given theirs, in these shares; folders that are not read do not count."""
    read = np.flatnonzero(share_F)
    return hashlib.sha256(
        json.dumps([[parts[place] for place in read.tolist()], share_F[read].tolist()]).encode()
    ).hexdigest()


class MixedRows:
    """Folders of rows of one vocabulary and length behind the interface of `Rows`; indices go through all of them."""

    def __init__(
        self,
        parts: Sequence[Rows],
        weights: Sequence[float] = (),
        stages: Sequence[MixtureStage] = (),
        temperature: float = 1,
    ):
        """Without `weights` a folder's weight is its number of rows, to the power of 1 / `temperature`.

        With `stages` the weights are those up to the first of them; missing ones are 0. ValueError lists everything that does not
        fit.
        """
        missing = (0.0,) * len(parts)
        self.parts = tuple(parts)
        self.stages = tuple(each._replace(weights=(*each.weights, *missing[len(each.weights) :])) for each in stages)
        sizes = tuple(len(part) for part in parts)
        self.weights = tuple(weights) or tuple(float(size) ** (1 / temperature) for size in sizes)
        if stages:
            self.weights += missing[len(self.weights) :]
        # a batch mixes rows of all folders: shapes, ids and tag layers must mean the same in each
        first = parts[0].manifest
        problems = [
            f"{part.folder} has {what} {theirs}, {parts[0].folder} has {ours}: prepare them alike"
            for part in parts[1:]
            for what, theirs, ours in (
                ("rows of length", part.manifest.length, first.length),
                ("the vocabulary", part.manifest.vocabulary_fingerprint[:16], first.vocabulary_fingerprint[:16]),
                ("the tags", list(part.manifest.tags), list(first.tags)),
            )
            if theirs != ours
        ]
        if len(self.weights) != len(parts):
            problems.append(f"{len(self.weights)} weights for {len(parts)} folders: give one each")
        if not all(0 < weight < float("inf") for weight in self.weights) and not stages:
            problems.append(f"weights are {self.weights}: expected numbers above 0")
        problems += self._stage_problems()
        problems += [f"{part.folder} holds no rows: leave it out" for part in parts if not len(part)]
        raise_problems(problems)
        self.share_F, self.sizes = shares(self.weights), sizes
        self._first = np.cumsum([0, *sizes])
        self.length, self.vocabulary = parts[0].length, parts[0].vocabulary
        self._begins = (0, *(stage.begin for stage in self.stages))
        self._shares = (self.share_F, *(shares(stage.weights) for stage in self.stages))
        self.manifest = self._manifest(first)
        self.checks = tuple(check for part in self.parts for check in part.checks)

    @property
    def _alone(self) -> bool:
        """True if the first folder is the only one before the first stage: a run that began without a mixture."""
        return bool(self.stages) and np.flatnonzero(self.share_F).tolist() == [0]

    def _stage_problems(self) -> list[str]:
        """Problems of stages and of weights where there are some, which may be 0."""
        if not self.stages:
            return []
        count, begins = len(self.parts), [0, *(stage.begin for stage in self.stages)]
        found = [
            f"stage {stage.begin:,} has {len(stage.weights)} weights for {count} folders: give one each at most"
            for stage in self.stages
            if len(stage.weights) > count
        ]
        if begins != sorted(set(begins)):
            found.append(f"stages begin at {', '.join(map(str, begins[1:]))}: expected rising steps above 0")
        for weights in (self.weights, *(stage.weights for stage in self.stages)):
            if not all(0 <= weight < float("inf") for weight in weights) or not sum(weights) > 0:
                found.append(f"weights are {weights}: expected numbers of 0 and more, one of them above 0")
        return found

    def fingerprints(self) -> list[list[Any]]:
        """First step and fingerprint of the mixture of every later stage."""
        every = [part.manifest.fingerprint for part in self.parts]
        return [
            [stage.begin, _fingerprint(every, share_F)]
            for stage, share_F in zip(self.stages, self._shares[1:], strict=True)
        ]

    def global_rows(self, seed: int, step: int, batch_size: int) -> tuple[Integers, Integers]:
        """Row indices, counted through all folders, and epochs, of global batch `step`: ([B], [B])."""
        number = bisect.bisect_right(self._begins, step) - 1
        if number == 0 and self._alone:
            return global_rows(seed, step, batch_size, self.sizes[0])
        begins, share = self._begins[: number + 1], self._shares[: number + 1]
        before_F = _rows_before(seed, batch_size, begins, tuple(tuple(each.tolist()) for each in share), self._alone)
        return mixed_rows(seed, step, batch_size, self.sizes, share[-1], begins[-1], before_F, self._alone)

    def _manifest(self, first: Manifest) -> Manifest:
        """The manifest of all folders; its fingerprint is that of the mixture before the first stage, as a run began."""
        every = [part.manifest for part in self.parts]
        found = [one.fingerprint for one in every]
        fingerprint = found[0] if self._alone else _fingerprint(found, self.share_F)
        most = max(len(one.text_tokens_by_blocks) for one in every)
        padded = [(*one.text_tokens_by_blocks, *[0] * (most - len(one.text_tokens_by_blocks))) for one in every]
        sums = ("rows", "documents", "sentences", "text_tokens", "words", "unknown_tokens", "blocks")
        return dataclasses.replace(
            first,
            fingerprint=fingerprint,
            shards=(),
            max_blocks=max(one.max_blocks for one in every),
            source=" + ".join(one.source for one in every),
            fill=sum(one.fill * one.rows for one in every) / sum(one.rows for one in every),
            skipped={},
            unigram_entropy=entropy(self.unigram_V),
            text_tokens_by_blocks=tuple(max(column) for column in zip(*padded, strict=True)),
            **{name: sum(getattr(one, name) for one in every) for name in sums},
        )

    @property
    def unigram_V(self) -> np.ndarray:
        """Counts in the proportions of the mixture: a folder's are scaled so that they add up to its share of 2^40."""
        scaled_FV = [np.round(part.unigram_V * scale) for part, scale in zip(self.parts, self._scales, strict=True)]
        return np.sum(scaled_FV, axis=0).astype(np.int64)

    @property
    def unknown_count(self) -> int:
        """The count of [UNK] in the same proportions."""
        return int(sum(round(part.unknown_count * scale) for part, scale in zip(self.parts, self._scales, strict=True)))

    @property
    def _scales(self) -> list[float]:
        return [
            2.0**40 * share / CYCLE / max(1, int(part.unigram_V.sum()))
            for part, share in zip(self.parts, self.share_F, strict=True)
        ]

    @property
    def lengths_N(self) -> np.ndarray:
        """Used positions of every row, through all folders."""
        return np.concatenate([part.lengths_N for part in self.parts])

    def __len__(self) -> int:
        return sum(self.sizes)

    def fetch(self, index_B: np.ndarray) -> RowBatch:
        """Implements `Rows.fetch`."""
        index_B = checked_index(index_B, len(self))
        part_B = np.searchsorted(self._first, index_B, side="right") - 1
        places = [np.flatnonzero(part_B == number) for number in range(len(self.parts))]
        fetched = [
            part.fetch(index_B[here] - first)
            for part, here, first in zip(self.parts, places, self._first, strict=False)
        ]
        back = np.argsort(np.concatenate(places), kind="stable")
        return RowBatch(*(np.concatenate(arrays)[back] for arrays in zip(*fetched, strict=True)))

    def block_documents(self, row_M: np.ndarray, block_M: np.ndarray) -> np.ndarray:
        """Implements `Rows.block_documents`; documents of different folders have different numbers."""
        part_M = np.searchsorted(self._first, row_M, side="right") - 1
        number_M = np.zeros(len(row_M), np.int64)
        before = 0
        for number, part in enumerate(self.parts):
            here = np.flatnonzero(part_M == number)
            number_M[here] = before + part.block_documents(row_M[here] - self._first[number], block_M[here])
            before += part.manifest.documents
        return number_M
