"""The feeds of masked batches: a seqio Task on tf.data that masks several batches at once, and plain NumPy on a thread.

The Task's elements are whole host batches and its source is the step number, so the state of the pipeline is that
number: starting at step s is the stream from step s on. Open a feed with `open_feed`.

Shapes: B rows of this host, L positions, K slots a row.
"""

import collections
import concurrent.futures
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from spanjax.data.feed.batch import Batch, FeedSpec, batch_spec, build_batch
from spanjax.data.feed.host_slice import AnyRows, HostShare
from spanjax.data.shards.record_file import DamagedRowsError, ShardCheck, whole_rows

Item = TypeVar("Item")
Kind = Literal["tf", "numpy"]
"""tf: seqio and tf.data. numpy: no TensorFlow. Both yield the same batches bit for bit."""


def open_feed(
    kind: Kind,
    rows: AnyRows,
    spec: FeedSpec,
    start_step: int = 0,
    host: int = 0,
    hosts: int = 1,
    held_out: bool = False,
) -> Generator[Batch]:
    """This host's part of global batches start_step, start_step + 1, ... as NumPy arrays; `close()` it when done.

    With `held_out` the rows come once, in stored order, with the masks of epoch 0. Raises ValueError at once for an
    unknown kind and for settings that do not fit the rows or the hosts; later, naming the file, where rows are damaged.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"feed kind is {kind!r}: expected one of {get_args(Kind)}")
    feed = (tf_feed if kind == "tf" else numpy_feed)(rows, spec, start_step, host, hosts, held_out)
    return _checked(feed, rows.checks)


def _checked(feed: Generator[Batch], checks: Sequence[ShardCheck]) -> Generator[Batch]:
    """The same batches, until one of the checks, which run meanwhile, finds damage."""
    with ending_the_run(), contextlib.closing(feed), whole_rows(checks) as look:
        for batch in feed:
            look()
            yield batch


@contextlib.contextmanager
def ending_the_run() -> Iterator[None]:
    """Turns damage to rows into a ValueError that describes the end of the run."""
    try:
        yield
    except DamagedRowsError as error:
        raise ValueError(
            f"{error}.\nThe run ends and saves nothing more. Its checkpoints stay; those saved since this start may come from"
            " damaged rows. Once the rows are whole the same command continues"
        ) from error


def numpy_feed(
    rows: AnyRows, spec: FeedSpec, start_step: int = 0, host: int = 0, hosts: int = 1, held_out: bool = False
) -> Generator[Batch]:
    """This host's part of global batches start_step, start_step + 1, ...; `close()` ends the background thread.

    Raises ValueError for settings that do not fit the rows or the hosts, at once.
    """
    share = HostShare(rows, spec, host, hosts, held_out)
    batches = (build_batch(*share.read(step), spec, share.facts) for step in share.steps(start_step))
    return prefetched(batches, depth=2)


def prefetched(items: Iterable[Item], depth: int) -> Generator[Item]:
    """The same items, made up to `depth` ahead on a thread. An exception of `items` is raised in place of its item."""
    made, end = iter(items), object()
    with concurrent.futures.ThreadPoolExecutor(1, "spanjax-numpy-feed") as worker:
        ready: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
        ready.extend(worker.submit(next, made, end) for _ in range(depth))
        while (item := ready.popleft().result()) is not end:
            ready.append(worker.submit(next, made, end))
            yield item


def tf_feed(
    rows: AnyRows, spec: FeedSpec, start_step: int = 0, host: int = 0, hosts: int = 1, held_out: bool = False
) -> Generator[Batch]:
    """`numpy_feed` by seqio and tf.data. TensorFlow uses no accelerator."""
    share, failed = HostShare(rows, spec, host, hosts, held_out), list[Exception]()
    task = seqio_task(share, share.steps(start_step), failed)
    dataset = task.get_dataset(sequence_length=None, split="train", shuffle=False, use_cached=False)
    return _drained(dataset.as_numpy_iterator(), failed)


def _drained(batches: Iterator[Any], failed: Sequence[Exception]) -> Generator[Batch]:
    for batch in batches:
        if failed:
            raise failed[0]
        yield batch


def seqio_task(share: HostShare, steps: range, failed: list[Exception] | None = None) -> Any:
    """Returns an unregistered seqio.Task whose elements are this host's batches of `steps`: the same in every dataset.

    `failed` gets the exceptions of reading and masking, of which TensorFlow passes only the text; a batch of zeros stands in
    their place.
    """
    tf = import_tensorflow()
    import seqio

    from spanjax.data.vocab.seqio import seqio_vocabulary

    text, numbers = seqio_vocabulary(share.rows.vocabulary), seqio.PassThroughVocabulary(share.rows.vocabulary.size)
    shapes = batch_spec(share.size, share.rows.length, share.facts.slots, share.facts.pairs)
    features = {
        name: seqio.Feature(
            text if name in ("tokens_BL", "slot_target_BK") else numbers,
            add_eos=False,
            dtype=tf.as_dtype(dtype),
            rank=len(shape),
        )
        for name, (shape, dtype) in shapes.items()
    }

    def source(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
        del split, shuffle_files, seed  # the order of rows follows from the step alone
        return tf.data.Dataset.range(steps.start, steps.stop).map(lambda step: {"step": step})

    return seqio.Task(
        "spanjax_rows",
        source=seqio.FunctionDataSource(source, splits=["train"]),
        preprocessors=[mask_rows(share, failed)],
        output_features=features,
        shuffle_buffer_size=None,
    )


def mask_rows(share: HostShare, failed: list[Exception] | None = None) -> Callable[[Any], Any]:
    """Preprocessor: {"step"} -> this host's batch, the next batches while this one is used."""
    # NumPy and compiled loops, which run without the interpreter's lock, and not a graph of hundreds of small operations:
    # docs/design.md says why
    tf = import_tensorflow()
    facts = share.facts
    shapes = batch_spec(share.size, share.rows.length, facts.slots, facts.pairs)
    rows = None if share.sizes_vary else share.size

    def masked(step: np.ndarray) -> list[np.ndarray]:
        try:
            batch = build_batch(*share.read(int(step)), share.spec, facts)
        except Exception as error:
            if failed is None:
                raise
            failed.append(error)
            return [np.zeros(*each) for each in shapes.values()]
        return [np.asarray(batch[name], dtype) for name, (_, dtype) in shapes.items()]

    def element(example: dict[str, Any]) -> dict[str, Any]:
        types = [tf.as_dtype(dtype) for _, dtype in shapes.values()]
        arrays = tf.numpy_function(masked, [example["step"]], types, stateful=False)
        return {
            name: tf.ensure_shape(array, (rows, *shapes[name][0][1:]))
            for name, array in zip(shapes, arrays, strict=True)
        }

    plain = tf.autograph.experimental.do_not_convert(element)
    return lambda dataset: dataset.map(plain, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def import_tensorflow() -> Any:
    """TensorFlow, quiet, and kept off the accelerators that jax uses."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _held_back_stderr():
        import tensorflow as tf

        for kind in ("GPU", "TPU"):
            tf.config.set_visible_devices([], kind)
    return tf


@contextlib.contextmanager
def _held_back_stderr() -> Iterator[None]:
    """Shows the messages of TensorFlow's C++ code (on every machine without CUDA, that it has none) only if starting fails."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
