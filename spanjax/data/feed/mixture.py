"""Several folders of rows as one: mixed by weight, in an order that is still a function of the step.

As in a seqio mixture every folder has a rate; but where seqio samples a stream, here place p of the endless sequence of
training rows belongs to a folder by arithmetic, so that a batch can be named by its step, at once, on any host. Places come in
cycles of 65,536; a cycle holds each folder's share of them, in an order sampled for the cycle.

Shapes: B places, F folders, N rows of a folder, V ids, M blocks.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.feed.hashing import Purpose, fold
from spanjax.data.feed.order import Integers, permuted
from spanjax.data.feed.rows import RowBatch, Rows, checked_index
from spanjax.data.shards.shards import Manifest, entropy

CYCLE = 2**16


def shares(weights: Sequence[float]) -> Integers:
    """Number of places of a cycle for every folder [F]: in proportion to the weights, at least one each, 65,536 in all."""
    exact_F = np.asarray(weights, np.float64) / np.sum(weights) * CYCLE
    share_F = np.maximum(1, np.floor(exact_F)).astype(np.int64)
    while (missing := CYCLE - int(share_F.sum())) != 0:
        over_F = share_F - exact_F
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


def mixed_rows(
    seed: int, step: int, batch_size: int, sizes: Sequence[int], share_F: Integers
) -> tuple[Integers, Integers]:
    """Row indices, counted through all folders, and epochs of their folders, of global batch `step`: ([B], [B])."""
    place_B = np.int64(step) * batch_size + np.arange(batch_size, dtype=np.int64)
    cycle_B = place_B // CYCLE
    folder_B, turn_B = np.empty_like(place_B), np.empty_like(place_B)
    for cycle in np.unique(cycle_B).tolist():
        here = cycle_B == cycle
        folder, turn = _dealt(seed, cycle, tuple(share_F.tolist()))
        folder_B[here], turn_B[here] = folder[place_B[here] % CYCLE], turn[place_B[here] % CYCLE]
    turn_B += cycle_B * share_F[folder_B]
    first_F = np.cumsum([0, *sizes])
    index_B, epoch_B = np.empty_like(place_B), np.empty_like(place_B)
    for folder, size in enumerate(sizes):
        here = np.flatnonzero(folder_B == folder)
        epoch_B[here] = turn_B[here] // size
        own = fold(fold(fold(seed, int(Purpose.ORDER)), folder), epoch_B[here])
        index_B[here] = first_F[folder] + permuted(turn_B[here] % size, size, own)
    return index_B, epoch_B


class MixedRows:
    """Folders of rows of one vocabulary and length behind the interface of `Rows`; indices go through all of them."""

    def __init__(self, parts: Sequence[Rows], weights: Sequence[float] = ()):
        """Without `weights` a folder's weight is its number of rows. ValueError lists everything that does not fit."""
        self.parts = tuple(parts)
        sizes = tuple(len(part) for part in parts)
        self.weights = tuple(weights) or tuple(float(size) for size in sizes)
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
        if not all(0 < weight < float("inf") for weight in self.weights):
            problems.append(f"weights are {self.weights}: expected numbers above 0")
        problems += [f"{part.folder} holds no rows: leave it out" for part in parts if not len(part)]
        raise_problems(problems)
        self.share_F, self.sizes = shares(self.weights), sizes
        self._first = np.cumsum([0, *sizes])
        self.length, self.vocabulary = parts[0].length, parts[0].vocabulary
        self.manifest = self._manifest(first)
        self.checks = tuple(check for part in self.parts for check in part.checks)

    def _manifest(self, first: Manifest) -> Manifest:
        every = [part.manifest for part in self.parts]
        identity = json.dumps([[one.fingerprint for one in every], self.share_F.tolist()])
        most = max(len(one.text_tokens_by_blocks) for one in every)
        padded = [(*one.text_tokens_by_blocks, *[0] * (most - len(one.text_tokens_by_blocks))) for one in every]
        sums = ("rows", "documents", "sentences", "text_tokens", "words", "unknown_tokens", "blocks")
        return dataclasses.replace(
            first,
            fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
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
