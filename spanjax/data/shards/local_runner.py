"""Writes portions on the cores of this machine: this process reads and cuts, the others do the rest, shards included."""

import concurrent.futures
import functools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from spanjax.data.shards.portions import Folders, Portion, PortionRows, RowSettings, Written
from spanjax.data.vocab.loading import Vocabulary, vocabulary_from_files

Result = TypeVar("Result")


def begin_worker() -> None:
    """Runs first in a worker process, which leaves Ctrl-C to its parent and ends with the parent, even a killed one."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


class _Worker:
    """The state of a worker process, set once by `start`."""

    rows: PortionRows

    @classmethod
    def start(cls, settings: RowSettings, files: dict[str, bytes], folders: Folders) -> None:
        """Runs first in every worker process."""
        begin_worker()
        cls.rows = PortionRows(settings, vocabulary_from_files(files), folders)

    @classmethod
    def run(cls, portion: Portion) -> Written:
        """Writes the shards of a portion."""
        return cls.rows.write(portion)


def write_portions(
    portions: Iterable[Portion], settings: RowSettings, vocabulary: Vocabulary, folders: Folders, workers: int
) -> Iterator[Written]:
    """Writes the shards of all portions, with `workers` processes (1: this one), and yields each portion's totals.

    At most one portion for every worker and one more are in memory, besides the one that is being cut.
    """
    if workers == 1:
        rows = PortionRows(settings, vocabulary, folders)
        for portion in portions:
            yield rows.write(portion)
        return
    start = functools.partial(_Worker.start, settings, vocabulary.files(), folders)
    # not a generator expression, which would keep the last portion in memory
    tasks = map(lambda portion: (portion,), portions)  # noqa: C417
    yield from in_processes(_Worker.run, tasks, workers, workers + 1, "--workers", start)


def in_processes(
    work: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    workers: int,
    most: int,
    remedy: str,
    start: Callable[[], None] = begin_worker,
) -> Iterator[Result]:
    """Yields the results of `work(*task)` as they come, with fewer than `most` tasks begun or waiting between two of them.

    `start` runs first in every worker process. OSError if one dies, with the options that `remedy` names.
    """
    pool = concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start)
    pending: set[concurrent.futures.Future[Result]] = set()
    try:
        for task in tasks:
            pending.add(pool.submit(work, *task))
            del task  # or this process would keep its documents in memory during the wait
            if len(pending) >= most:
                done, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
                yield from (future.result() for future in done)
        for future in concurrent.futures.as_completed(pending):
            yield future.result()
    except BrokenProcessPool:
        raise OSError(f"a worker process died, perhaps for lack of memory; try fewer {remedy}") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
