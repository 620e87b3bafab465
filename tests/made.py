"""Text, batches and the tiny encoder of the tests."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from spanjax.nn.config import EncoderConfig


def tiny_encoder(**settings: Any) -> EncoderConfig:
    """The encoder of the tests, with these settings on top: 2 layers of 16, 50 pieces, 64 positions."""
    tiny = {"vocab_size": 50, "hidden_size": 16, "layers": 2, "heads": 2, "intermediate_size": 32, "positions": 64}
    return EncoderConfig(**{**tiny, **settings})


def made_sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of a small made-up language with structure to learn: verbs agree with subjects, places follow 'in'."""
    rng = np.random.default_rng(seed)
    subjects = ["the old sailor", "a young painter", "the quiet librarian", "my neighbour", "the mayor of the town"]
    verbs = ["mended", "carried", "painted", "remembered", "sold"]
    things = ["the broken clock", "a small wooden boat", "three heavy books", "the blue lantern", "some warm bread"]
    places = ["in the harbour", "near the bridge", "under the old tower", "at the market", "behind the library"]
    times = ["on Monday", "before the storm", "every winter", "late at night", "after supper"]
    syllables = ["ka", "ro", "mi", "ten", "lu", "sha", "vor", "pel", "dim", "gus"]
    names = [(first + second + third).title() for first in syllables for second in syllables for third in ("n", "ra")]
    parts = (subjects, verbs, things, ["for"], names, places, times)
    picks = rng.integers(0, [len(part) for part in parts], (count, len(parts)))
    sentences = [" ".join(part[i] for part, i in zip(parts, pick, strict=True)) for pick in picks]
    return [sentence[0].upper() + sentence[1:] + "." for sentence in sentences]


def made_documents(count: int, seed: int = 0) -> list[str]:
    """Documents of 3 to 12 made-up sentences."""
    rng = np.random.default_rng(seed + 1)
    sizes = rng.integers(3, 13, count)
    sentences = made_sentences(int(sizes.sum()), seed)
    stops = np.cumsum(sizes)
    return [" ".join(sentences[stop - size : stop]) for size, stop in zip(sizes, stops, strict=True)]


def with_noise(batch: dict) -> dict:
    """The batch with other tokens where there is padding, and other targets in unused slots."""
    tokens_BL = jnp.where(batch["segments_BL"] == 0, 7, batch["tokens_BL"])
    target_BK = jnp.where(batch["slot_weight_BK"] == 0, 9, batch["slot_target_BK"])
    return {**batch, "tokens_BL": tokens_BL, "slot_target_BK": target_BK}


def synthetic_batch(rows: int, length: int, slots: int, vocab: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch by the contract: two blocks a row, three masked spans of random length, the rest padding."""
    rng = np.random.default_rng(seed)
    batch: dict[str, np.ndarray] = {
        name: np.zeros((rows, length), np.int32) for name in ("tokens_BL", "segments_BL", "positions_BL", "types_BL")
    }
    names = ("position", "target", "weight", "left", "right", "offset", "boundary_weight")
    batch |= {f"slot_{n}_BK": np.zeros((rows, slots), np.float32 if "weight" in n else np.int32) for n in names}
    batch["row_B"] = np.arange(rows, dtype=np.int32)
    batch |= {
        f"pair_{n}_BP": np.zeros((rows, 2), np.float32 if n == "weight" else np.int32)
        for n in ("position", "label", "weight")
    }
    for row in range(rows):
        first = int(rng.integers(length // 3, length // 2))
        last = int(rng.integers(first + 8, length))
        batch["segments_BL"][row, :first], batch["segments_BL"][row, first:last] = 1, 2
        batch["positions_BL"][row, :first] = np.arange(first)
        batch["positions_BL"][row, first:last] = np.arange(last - first)
        batch["tokens_BL"][row, :last] = rng.integers(5, vocab, last)
        slot = 0
        for start in (2, first // 2 + 2, first + 3):
            size = int(rng.integers(1, 4))
            for offset in range(size):
                values = (start + offset, rng.integers(5, vocab), 1, start - 1, start + size, offset, 1)
                for name, value in zip(names, values, strict=True):
                    batch[f"slot_{name}_BK"][row, slot] = value
                batch["tokens_BL"][row, start + offset] = 4
                slot += 1
    return batch
