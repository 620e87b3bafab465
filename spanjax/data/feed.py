"""Batches from a seqio Task on tf.data: one Python call a batch fetches rows, all masking is in the graph.

The Task's elements are whole host batches and its source is the step number, so the state of the pipeline is that
number: starting at step s is the stream from step s on. Open a feed with `open_feed`; `numpy` is the kind that needs no
TensorFlow.

Shapes: B rows of this host, L positions, K slots a row.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal, get_args

import numpy as np

from spanjax.data.batch import Batch, FeedSpec, RowKeys, batch_spec
from spanjax.data.numpy_feed import numpy_feed
from spanjax.data.pairing import Examples
from spanjax.data.share import AnyRows, HostShare
from spanjax.data.slots import restarted_positions

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
    unknown kind and for settings that do not fit the rows or the hosts.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"feed kind is {kind!r}: expected one of {get_args(Kind)}")
    return (tf_feed if kind == "tf" else numpy_feed)(rows, spec, start_step, host, hosts, held_out)


def tf_feed(
    rows: AnyRows, spec: FeedSpec, start_step: int = 0, host: int = 0, hosts: int = 1, held_out: bool = False
) -> Generator[Batch]:
    """`numpy_feed` by seqio and tf.data. TensorFlow is told to leave accelerators alone."""
    share = HostShare(rows, spec, host, hosts, held_out)
    task = seqio_task(share, share.steps(start_step))
    dataset = task.get_dataset(sequence_length=None, split="train", shuffle=False, use_cached=False)
    return _drained(dataset.as_numpy_iterator())


def _drained(batches: Iterator[Any]) -> Generator[Batch]:
    yield from batches


def seqio_task(share: HostShare, steps: Any) -> Any:
    """An unregistered seqio.Task whose elements are this host's batches of `steps`."""
    tf = import_tensorflow()
    import seqio

    from spanjax.data.seqio_vocab import seqio_vocabulary

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
        del split, shuffle_files, seed
        first, end = (steps.start, steps.stop) if isinstance(steps, range) else (next(steps), np.iinfo(np.int64).max)
        return tf.data.Dataset.range(first, end).map(lambda step: {"step": step})

    return seqio.Task(
        "spanjax_rows",
        source=seqio.FunctionDataSource(source, splits=["train"]),
        preprocessors=[fetch_rows(share), mask_rows(share)],
        output_features=features,
        shuffle_buffer_size=None,
    )


def fetch_rows(share: HostShare) -> Callable[[Any], Any]:
    """Preprocessor: {"step"} -> the sequences and their keys, by one Python call a batch."""
    tf = import_tensorflow()
    size, length, pairs = share.size, share.rows.length, share.facts.pairs
    shapes = {"BL": [size, length], "BP": [size, pairs], "B": [size]}
    bytes_ = {"word_starts_BL": tf.bool, "flags_BL": tf.uint8}
    types = {name: bytes_.get(name, tf.int32) for name in Examples._fields} | {"pair_weight_BP": tf.float32}
    types |= {name: tf.int64 for name in RowKeys._fields} | {"rate_B": tf.float64, "positions_BL": tf.int32}

    def fetched(step: np.ndarray) -> list[np.ndarray]:
        rows, keys = share.read(int(step))
        found = {**rows._asdict(), **keys._asdict(), "positions_BL": restarted_positions(rows.segments_BL)}
        return [np.asarray(found[name], kind.as_numpy_dtype) for name, kind in types.items()]

    def element(example: dict[str, Any]) -> dict[str, Any]:
        arrays = tf.numpy_function(fetched, [example["step"]], list(types.values()), stateful=False)
        return {
            name: tf.ensure_shape(array, shapes[name.rsplit("_", 1)[1]])
            for name, array in zip(types, arrays, strict=True)
        }

    return lambda dataset: dataset.map(element)


def mask_rows(share: HostShare) -> Callable[[Any], Any]:
    """Preprocessor: sequences and keys -> a batch, in the graph, the next batches while this one is used."""
    tf = import_tensorflow()
    from spanjax.data import masking_tf

    facts = share.facts
    shapes = batch_spec(share.size, share.rows.length, facts.slots, facts.pairs)

    def element(example: dict[str, Any]) -> dict[str, Any]:
        rows = Examples(*(example[name] for name in Examples._fields))
        keys = RowKeys(*(example[name] for name in RowKeys._fields))
        batch = masking_tf.build_batch(rows, example["positions_BL"], keys, share.spec, facts)
        return {name: tf.ensure_shape(array, shapes[name][0]) for name, array in batch.items()}

    plain = tf.autograph.experimental.do_not_convert(element)  # graph functions as they are: nothing to rewrite
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
    """TensorFlow's C++ code tells every machine without CUDA that it has none; that is shown only when starting fails."""
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
