"""200 global batches, every array, as one hash: the same for any number of hosts, in both feeds, and through resumes.

For one folder and for a mixture, for single blocks and for pairs.
"""

import functools
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.batch import Batch, FeedSpec
from spanjax.data.feed.feeds import Kind, open_feed
from spanjax.data.feed.host_slice import AnyRows
from spanjax.data.feed.masking import Boundaries, GeometricSpans, Ngrams, SpanPolicy, TaggedSpans
from spanjax.data.feed.mixture import MixedRows
from spanjax.data.feed.pairing import FullSentences, NextSentence, Pairing, Single
from spanjax.data.feed.rows import Rows
from spanjax.data.shards.packing import tag_flags
from tests.data.numbered_rows import FIRST_ID, VOCABULARY, block, made_rows

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


def written_rows(folder: pathlib.Path, count: int, seed: int = 0) -> Rows:
    """Rows of 32 positions with one to four blocks of a few sentences; words have up to three pieces, tags are of whole words."""
    draw, rows = np.random.default_rng([seed, count]), []
    for _ in range(count):
        sizes = draw.integers(1, 7, draw.integers(1, 5))
        row = []
        for sentences in (draw.integers(1, 4, size).tolist() for size in sizes.clip(max=(32 // len(sizes) - 2) // 3)):
            made = block(sentences, int(draw.integers(9)), FIRST_ID + int(draw.integers(5_000)))
            begins = VOCABULARY.word_starts[made.ids] | (made.flags > 0)
            tags_W = draw.integers(0, 3, begins.sum())[np.cumsum(begins) - 1]
            made.flags[:] |= tag_flags(np.where(begins, tags_W, np.minimum(2, 2 * tags_W)), 0)
            row.append(made)
        rows.append(row)
    return made_rows(folder, rows, 32, shard_rows=7)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AnyRows]:
    """A folder of 45 rows of 32 positions, and a mixture of it with two others, one of which is small."""
    folder = tmp_path_factory.mktemp("rows")
    parts = [written_rows(folder / str(count), count) for count in (45, 30, 3)]
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


@pytest.fixture(scope="module")
def expected(folders: dict[str, AnyRows]) -> Callable[[str], str]:
    """The hash of the 200 batches of one host without TensorFlow, in one go."""
    return functools.cache(
        lambda name: digest(global_batches("numpy", folders[SETTINGS[name][0]], spec_of(name), 1, 0, STEPS))
    )


@EVERY
def test_a_run_that_stops_and_changes_its_hosts(
    name: str, folders: dict[str, AnyRows], expected: Callable[[str], str]
) -> None:
    """Stopped at five random steps, it goes on with 1, 2, 4 or 8 hosts, each of them once at least."""
    rows, spec, draw = folders[SETTINGS[name][0]], spec_of(name), np.random.default_rng(len(name))
    stops = [0, *sorted(draw.choice(np.arange(1, STEPS), 5, replace=False).tolist()), STEPS]
    hosts = draw.permutation([1, 2, 4, 8, 2, 4]).tolist()
    runs = (
        global_batches("numpy", rows, spec, count, start, stop)
        for count, (start, stop) in zip(hosts, itertools.pairwise(stops), strict=True)
    )
    assert digest(itertools.chain.from_iterable(runs)) == expected(name), f"{hosts} hosts between {stops}"


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [2, 4, 8])
@EVERY
def test_any_number_of_hosts(
    name: str, hosts: int, folders: dict[str, AnyRows], expected: Callable[[str], str]
) -> None:
    found = digest(global_batches("numpy", folders[SETTINGS[name][0]], spec_of(name), hosts, 0, STEPS))
    assert found == expected(name)


@EVERY
def test_tensorflow_in_the_middle_of_a_run(name: str, folders: dict[str, AnyRows]) -> None:
    """20 batches from step 90 on, the middle ones by the feed of TensorFlow, of one host or two."""
    rows, spec, first = folders[SETTINGS[name][0]], spec_of(name), 90
    whole = digest(global_batches("numpy", rows, spec, 1, first, first + FEW))
    start, stop, hosts = first + len(name) % 7, first + FEW - len(name) % 5, 1 + (name == "mixture_single")
    runs = (
        global_batches("numpy", rows, spec, 4, first, start),
        global_batches("tf", rows, spec, hosts, start, stop),
        global_batches("numpy", rows, spec, 2, stop, first + FEW),
    )
    assert digest(itertools.chain.from_iterable(runs)) == whole, f"tf from {start} to {stop}"


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2, 4, 8])
@EVERY
def test_any_number_of_tensorflow_hosts(name: str, hosts: int, folders: dict[str, AnyRows]) -> None:
    rows, spec = folders[SETTINGS[name][0]], spec_of(name)
    first_batches = digest(global_batches("numpy", rows, spec, 1, 0, FEW))
    assert digest(global_batches("tf", rows, spec, hosts, 0, FEW)) == first_batches


def test_everything_that_decides_batches_is_in_the_hash(folders: dict[str, AnyRows], tmp_path: pathlib.Path) -> None:
    """Other seeds, rates, pairs, weights, orders of folders and rows make other batches: what is equal above could differ."""
    mixture: Any = folders["mixture"]
    single, pairs = spec_of("mixture_single"), spec_of("mixture_next_sentence")
    other = written_rows(tmp_path, 45, seed=1)
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
