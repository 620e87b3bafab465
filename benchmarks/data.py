"""python -m benchmarks.data [--check] [--json FILE]: the data pipeline at L = 512 on two cores.

Rows on disk to finished batches with both feeds, masking alone against the same sampler row by row (NumPy, tf.data), resuming at
step 1,000,000 of 10,000,000 rows, and how full packed rows are. Everything that is compared runs in turn in one process.
"""

import itertools
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.made import made_blocks

ROWS, LENGTH, BATCH, PER_ROW = 20_000, 512, 256, 512
LARGE = 10_000_000
STEP = 1_000_000


def made_rows(folder: pathlib.Path, count: int, size: int = 29_000) -> None:
    """Rows of one full block each of `made_blocks`."""
    from spanjax.data.shards.shards import write_rows
    from spanjax.data.vocab.loading import WordPieceVocabulary

    blocks, pieces = made_blocks(np.full(count, LENGTH - 2), size)
    write_rows(folder, ([block] for block in blocks), WordPieceVocabulary(pieces), LENGTH)


def feed_rates(folder: pathlib.Path, repeats: int) -> dict[str, Any]:
    """Rows a second from disk to finished batches, for both feeds and both pairings."""
    from spanjax.data.feed.batch import FeedSpec
    from spanjax.data.feed.feeds import open_feed
    from spanjax.data.feed.pairing import NextSentence, Single
    from spanjax.data.feed.rows import open_rows

    rows, batches = open_rows(folder), 40
    specs = {
        "single": FeedSpec(0, BATCH, pairing=Single()),
        "next sentence": FeedSpec(0, BATCH, pairing=NextSentence()),
    }
    feeds = {
        f"{kind} feed, {name}": open_feed(kind, rows, spec) for kind in ("tf", "numpy") for name, spec in specs.items()
    }

    def take(feed: Any) -> None:
        for _ in itertools.islice(feed, batches):
            pass

    contenders: dict[str, Any] = {name: (lambda feed=feed: take(feed)) for name, feed in feeds.items()}
    found = {}
    for name, run in contenders.items():  # one feed at a time: an open one keeps making batches ahead
        found |= timing.alternating({name: run}, repeats)
        feeds[name].close()
    return timing.rates(dict.fromkeys(found, batches * BATCH), found)


def masking_rates(folder: pathlib.Path, repeats: int) -> dict[str, Any]:
    """Rows a second of masking alone: whole batches with and without tf.data, and row by row in NumPy and in a tf.data map."""
    from benchmarks.per_row import numpy_masks, tf_data_map
    from spanjax.data.feed.feeds import import_tensorflow
    from spanjax.data.feed.hashing import Purpose, row_keys
    from spanjax.data.feed.masking import GeometricSpans, TextRows
    from spanjax.data.feed.rows import open_rows

    tf = import_tensorflow()
    rows, policy = open_rows(folder), GeometricSpans()
    specials, batches = rows.vocabulary.specials, 40
    index_B = np.arange(PER_ROW)
    fetched, rate_B = rows.fetch(index_B), np.full(PER_ROW, policy.rate)
    text = TextRows(fetched.tokens_BL, fetched.segments_BL, fetched.word_starts_BL, None)
    key_B = row_keys(0, Purpose.MASK, 0, index_B)
    batch = TextRows(text.tokens_BL[:BATCH], text.segments_BL[:BATCH], text.word_starts_BL[:BATCH], None)

    def masked(step: np.ndarray) -> np.ndarray:
        return policy.masked_places(batch, specials, key_B[:BATCH] + np.uint64(step), rate_B[:BATCH])

    batched_map = tf.data.Dataset.range(batches).map(
        lambda step: tf.numpy_function(masked, [step], tf.int64, stateful=False), num_parallel_calls=tf.data.AUTOTUNE
    )
    row_map = tf_data_map(policy, text.word_starts_BL, key_B)
    batched = policy.masked_places(text, specials, key_B, rate_B)
    by_row = numpy_masks(policy, text.word_starts_BL, key_B), np.stack(list(row_map.as_numpy_iterator()))
    if not all((np.flatnonzero(mask_BL) == batched).all() for mask_BL in by_row):
        raise AssertionError("a row-by-row sampler gives other masks")

    def numpy_batches() -> None:
        for number in range(batches):
            masked(np.array(number))

    def drained(dataset: Any) -> None:
        for _ in dataset.as_numpy_iterator():
            pass

    contenders = {
        "tf.data, batched": lambda: drained(batched_map),
        "batched (one core)": numpy_batches,
        "tf.data, row by row": lambda: drained(row_map),
        "NumPy, row by row (one core)": lambda: numpy_masks(policy, text.word_starts_BL, key_B),
    }
    work = dict(zip(contenders, (batches * BATCH, batches * BATCH, PER_ROW, PER_ROW), strict=True))
    return timing.rates(work, timing.alternating(contenders, repeats))


def resume_seconds(folder: pathlib.Path, repeats: int) -> dict[str, list[float]]:
    """Seconds from nothing open to the first batch of step 1,000,000 of 10,000,000 rows, a sparse file of 20 GB."""
    import dataclasses
    import json

    from spanjax.data.feed.batch import FeedSpec
    from spanjax.data.feed.feeds import import_tensorflow, open_feed
    from spanjax.data.feed.rows import open_rows
    from spanjax.data.shards.shards import BLOCKS, DOCUMENTS, LENGTHS, MANIFEST, record

    import_tensorflow()
    manifest = open_rows(folder).manifest
    size = record(manifest.length, manifest.vocabulary_size).itemsize
    shard = manifest.shards[0]
    os.truncate(folder / shard.name, LARGE * size)
    large = dataclasses.replace(manifest, rows=LARGE, shards=(shard._replace(rows=LARGE),))
    (folder / MANIFEST).write_text(json.dumps(dataclasses.asdict(large)))
    for name, dtype in ((LENGTHS, np.uint16), (BLOCKS, np.uint8), (DOCUMENTS, np.uint32)):
        np.save(folder / name, np.ones(LARGE, dtype))
    seconds: dict[str, list[float]] = {"tf": [], "numpy": []}
    for _ in range(repeats + 1):
        for kind, found in seconds.items():
            begin = time.perf_counter()
            feed = open_feed(kind, open_rows(folder), FeedSpec(0, BATCH), start_step=STEP)  # pyright: ignore[reportArgumentType]
            next(feed)
            found.append(time.perf_counter() - begin)
            feed.close()
    return {kind: found[1:] for kind, found in seconds.items()}


def packing_fill() -> tuple[float, str]:
    """Share of used positions of packed rows of 512, and of what text."""
    from spanjax.data.feed.rows import open_rows
    from spanjax.prepare import main as prepare

    root = pathlib.Path(__file__).parents[1]
    data = pathlib.Path(os.environ.get("SPANJAX_DATA", root.parent / "shared" / "data"))
    real = sorted((data / "wiki").glob("train*.jsonl.gz"))[:1]
    with tempfile.TemporaryDirectory() as folder:
        command = ["--length", str(LENGTH), "--output", f"{folder}/rows", "--input"]
        if real:
            command += [str(real[0]), "--vocab", str(next((data / "vocab").glob("*base-cased*vocab.txt")))]
        else:
            command += ["installed-docs", "--train-vocab", "8000"]
        if prepare(["rows", *command]):
            raise RuntimeError(f"prepare failed: {command}")
        return open_rows(f"{folder}/rows/train").manifest.fill, real[0].name if real else "installed documentation"


def main() -> int:
    """Runs everything; the exit code."""
    found = timing.options(__doc__ or "")
    timing.pin(found.cores)
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows"
        made_rows(rows, ROWS)
        feeds = feed_rates(rows, found.repeats)
        masks = masking_rates(rows, found.repeats)
        resume = resume_seconds(rows, found.repeats)
    fill, text = packing_fill()
    for name, rate in (feeds | masks).items():
        print(f"{name:36s}{rate['median']:>12,.0f} rows/s   ({rate['lowest']:,.0f} to {rate['highest']:,.0f})")
    batched, numpy_batched, tf_rows, numpy_rows = (rate["median"] for rate in masks.values())
    targets = [
        timing.Target("rows on disk to batches, tf feed, rows/s", feeds["tf feed, single"]["median"], least=40_000),
        timing.Target(
            "rows on disk to batches, numpy feed, rows/s", feeds["numpy feed, single"]["median"], least=40_000
        ),
        timing.Target("masking alone in tf.data, rows/s", batched, least=60_000),
        timing.Target("masking alone, one core, rows/s", numpy_batched, least=60_000),
        timing.Target("batched over row-by-row NumPy, both on one core", numpy_batched / numpy_rows, least=8),
        timing.Target("batched over row-by-row tf.data map", batched / tf_rows, least=10),
        timing.Target("resume at step 1,000,000 of 10,000,000 rows, s, tf", float(np.median(resume["tf"])), most=0.5),
        timing.Target(
            "resume at step 1,000,000 of 10,000,000 rows, s, numpy", float(np.median(resume["numpy"])), most=0.5
        ),
        timing.Target(f"fill of packed rows of {LENGTH}, {text}", fill, least=0.97),
    ]
    return timing.report({"feeds": feeds, "masking": masks, "resume": resume, "fill": fill}, targets, found)


if __name__ == "__main__":
    sys.exit(main())
