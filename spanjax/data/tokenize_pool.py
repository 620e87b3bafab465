"""Documents to blocks of token ids, in order, on one process or several; the result does not depend on how many."""

import collections
import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np

from spanjax.data.corpus import Document
from spanjax.data.packing import make_blocks
from spanjax.data.sentences import clean, sentences
from spanjax.data.vocab import Vocabulary, vocabulary_from_files

_CHUNK_CHARACTERS = 250_000
_AHEAD = 4  # chunks in flight for every worker


class Tokenized(NamedTuple):
    """What becomes of one document."""

    blocks: list[np.ndarray]  # int32 ids, no specials
    sentences: int
    characters: int


def tokenize(texts: Sequence[str], vocabulary: Vocabulary, limit: int) -> list[Tokenized]:
    """Cleans, splits, encodes and cuts documents into blocks of at most `limit` tokens."""
    split = [sentences(clean(text)) for text in texts]
    encoded = iter(vocabulary.encode(list(itertools.chain.from_iterable(split))))
    results = []
    for text, found in zip(texts, split, strict=True):
        ids = [each for each in itertools.islice(encoded, len(found)) if len(each)]
        results.append(Tokenized(make_blocks(ids, vocabulary.word_starts, limit), len(ids), len(text)))
    return results


class _Worker:
    """The state of a worker process, set once by `start`."""

    vocabulary: Vocabulary
    limit: int

    @classmethod
    def start(cls, files: dict[str, bytes], limit: int) -> None:
        """Runs first in every worker process; the process then ends when its parent does, even if that was killed."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        cls.vocabulary, cls.limit = vocabulary_from_files(files), limit
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=cls._end_with, args=(parent.sentinel,), daemon=True).start()

    @staticmethod
    def _end_with(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    @classmethod
    def run(cls, texts: list[str]) -> list[Tokenized]:
        """Tokenizes a chunk of documents."""
        return tokenize(texts, cls.vocabulary, cls.limit)


def _chunks(documents: Iterator[Document]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for document in documents:
        chunk.append(document.text)
        size += len(document.text)
        if size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def tokenized(documents: Iterator[Document], vocabulary: Vocabulary, limit: int, workers: int) -> Iterator[Tokenized]:
    """Tokenizes every document, in order, with `workers` processes (1: in this process)."""
    chunks = _chunks(documents)
    if workers == 1:
        for chunk in chunks:
            yield from tokenize(chunk, vocabulary, limit)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _Worker.start, (vocabulary.files(), limit)
    )
    pending: collections.deque[concurrent.futures.Future[list[Tokenized]]] = collections.deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(_Worker.run, chunk))
            if len(pending) >= _AHEAD * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool:
        raise OSError("a tokenizing process died, perhaps for lack of memory; try fewer --workers") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
