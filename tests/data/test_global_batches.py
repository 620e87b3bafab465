"""The whole of 200 global batches, every array, as one hash: the same for any number of hosts, in both feeds, and through resumes.

For one folder and for a mixture, for single blocks and for pairs.
"""

import hashlib
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spanjax.data.batch import Batch, FeedSpec
from spanjax.data.feed import Kind, open_feed
from spanjax.data.masking import GeometricSpans, Ngrams, SpanPolicy, TaggedSpans
from spanjax.data.mixture import MixedRows
from spanjax.data.pairing import FullSentences, NextSentence, Pairing, Single
from spanjax.data.replacement import Boundaries
from spanjax.data.share import AnyRows
from tests.data.numbered_rows import random_rows

STEPS, BATCH, FEW = 200, 8, 20
SCHEDULED = Ngrams(schedule=((10, 0.1), (150, 0.3)))
SETTINGS: dict[str, tuple[str, SpanPolicy, Pairing, Any]] = {
    "folder_single": ("folder", GeometricSpans(), Single(), "uniform"),
    "folder_by_length": ("folder", TaggedSpans(), FullSentences(), "by_length"),
    "folder_next_sentence": ("folder", GeometricSpans.as_released(), NextSentence(short=0.1), "uniform"),
    "mixture_single": ("mixture", SCHEDULED, Single(), "uniform"),
    "mixture_next_sentence": ("mixture", GeometricSpans(), NextSentence(), "uniform"),
}
EVERY = pytest.mark.parametrize("name", SETTINGS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AnyRows]:
    """A folder of 45 rows of 32 positions, and a mixture of it with two others, one of which is small."""
    folder = tmp_path_factory.mktemp("rows")
    parts = [random_rows(folder / str(count), count, count, 32, 9) for count in (45, 30, 3)]
    return {"folder": parts[0], "mixture": MixedRows(parts, (2, 1, 0.5))}


def spec_of(name: str) -> FeedSpec:
    _, policy, pairing, order = SETTINGS[name]
    return FeedSpec(77, BATCH, policy, Boundaries(specials=False), order, pairing)


def global_batches(
    kind: Kind, rows: AnyRows, spec: FeedSpec, hosts: int, start: int, stop: int
) -> Iterator[dict[str, np.ndarray]]:
    """Batches start ... stop - 1, put together from what `hosts` feeds yield side by side."""
    feeds = [open_feed(kind, rows, spec, start, host, hosts) for host in range(hosts)]
    for parts in itertools.islice(zip(*feeds, strict=True), stop - start):
        yield {name: np.concatenate([part[name] for part in parts]) for name in Batch.__annotations__}
    for feed in feeds:
        feed.close()


def digest(batches: Iterator[dict[str, np.ndarray]]) -> str:
    """SHA-256 of names, types, shapes and bytes of every array, in order."""
    hashed = hashlib.sha256()
    for batch in batches:
        for name, array in batch.items():
            hashed.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()


@EVERY
def test_any_number_of_hosts_and_any_resumes_make_the_same_200_batches(name: str, folders: dict[str, AnyRows]) -> None:
    """2, 4 and 8 hosts; and a run that was stopped at five random steps and went on with another number of hosts."""
    rows, spec = folders[SETTINGS[name][0]], spec_of(name)
    whole = digest(global_batches("numpy", rows, spec, 1, 0, STEPS))
    for hosts in (2, 4, 8):
        assert digest(global_batches("numpy", rows, spec, hosts, 0, STEPS)) == whole, f"{hosts} hosts"
    draw = np.random.default_rng(len(name))
    stops = [0, *sorted(draw.choice(np.arange(1, STEPS), 5, replace=False).tolist()), STEPS]
    runs = (
        global_batches("numpy", rows, spec, int(draw.choice([1, 2, 4])), start, stop)
        for start, stop in itertools.pairwise(stops)
    )
    assert digest(itertools.chain.from_iterable(runs)) == whole, f"stopped at {stops[1:-1]}"


@EVERY
def test_the_tensorflow_feed_makes_the_same_batches(name: str, folders: dict[str, AnyRows]) -> None:
    """20 batches from step 90 on; stopped in between it goes on as two hosts, and ends as the feed without TensorFlow."""
    rows, spec, first = folders[SETTINGS[name][0]], spec_of(name), 90
    whole = digest(global_batches("numpy", rows, spec, 1, first, first + FEW))
    assert digest(global_batches("tf", rows, spec, 1, first, first + FEW)) == whole
    middle, end = (
        first + int(step) for step in np.sort(np.random.default_rng(len(name)).choice(FEW, 2, replace=False))
    )
    runs = (
        global_batches("numpy", rows, spec, 4, first, middle),
        global_batches("tf", rows, spec, 2, middle, end),
        global_batches("numpy", rows, spec, 8, end, first + FEW),
    )
    assert digest(itertools.chain.from_iterable(runs)) == whole, f"stopped at {middle} and {end}"


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [2, 4, 8])
@EVERY
def test_any_number_of_tensorflow_hosts(name: str, hosts: int, folders: dict[str, AnyRows]) -> None:
    rows, spec = folders[SETTINGS[name][0]], spec_of(name)
    expected = digest(global_batches("numpy", rows, spec, 1, 0, FEW))
    assert digest(global_batches("tf", rows, spec, hosts, 0, FEW)) == expected


def test_everything_that_decides_batches_is_in_the_hash(folders: dict[str, AnyRows], tmp_path: pathlib.Path) -> None:
    """Other seeds, rates, pairs, weights, orders of folders and rows make other batches: what is equal above could differ."""
    mixture: Any = folders["mixture"]
    single, pairs = spec_of("mixture_single"), spec_of("mixture_next_sentence")
    other = random_rows(tmp_path, 46, 45, 32, 9)
    found = [
        digest(global_batches("numpy", rows, spec, 1, 0, 10))
        for rows, spec in [
            (folders["folder"], spec_of("folder_single")),
            (other, spec_of("folder_single")),
            (mixture, single),
            (mixture, pairs),
            (mixture, FeedSpec(78, BATCH, single.masking, single.boundaries)),
            (mixture, FeedSpec(77, BATCH, Ngrams(), single.boundaries)),
            (mixture, FeedSpec(77, BATCH, single.masking, Boundaries())),
            (mixture, FeedSpec(77, BATCH, pairs.masking, pairs.boundaries, pairing=NextSentence(random=0.4))),
            (MixedRows(mixture.parts, (2, 1, 0.6)), single),
            (MixedRows(mixture.parts[::-1], (0.5, 1, 2)), single),
        ]
    ]
    assert len({*found}) == len(found)
