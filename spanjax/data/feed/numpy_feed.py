"""Batches without TensorFlow: NumPy masks on a background thread. The same batches as `feed.tf_feed`, bit for bit."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

from spanjax.data.feed.batch import Batch, FeedSpec, build_batch
from spanjax.data.feed.host_slice import AnyRows, HostShare

Item = TypeVar("Item")


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
    ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def work() -> None:
        try:
            for item in items:
                ready.put((item, None))
                if stop.is_set():
                    return
            ready.put((None, StopIteration()))
        except BaseException as error:
            ready.put((None, error))

    worker = threading.Thread(target=work, name="spanjax-numpy-feed", daemon=True)
    worker.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # pyright: ignore[reportReturnType]
    finally:
        stop.set()
        # the worker may wait for room in the full queue: take items until it sees `stop`
        while worker.is_alive():
            try:
                ready.get(timeout=0.01)
            except queue.Empty:
                worker.join(timeout=0.01)
