"""python -m benchmarks.lengths [--check] [--json FILE]: a training step over rows of 1,024 to 8,192 tokens, equally many a batch.

A modern encoder on one device, packed rows of made documents (log-normal, 600 tokens in the median), fp32, no dropout, AdamW: all
layers global, or three of four local with a window of 64 on each side. First the attention of one local layer alone, forward and
backward; last the memory of twice as many layers at the longest rows, in a scan, with and without remat. Asked for: that a token
costs as much in a local layer at 8,192 as at 1,024, that local layers make long rows faster, and that remat saves 40 %.
"""

import argparse
import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.family import Step
from benchmarks.made import packed_rows

WINDOW, EVERY = 64, 4
VOCABULARY = 4_000
MEDIAN, SPREAD = 600, 1.0  # of the documents' tokens, and of their logarithm


def document_rows(folder: pathlib.Path, tokens: int, length: int) -> Any:
    """Rows of this length for so many tokens, packed as `spanjax.prepare --max-blocks 127` does; opened."""
    from spanjax.data.shards.packing import MOST_BLOCKS

    drawn = np.random.default_rng(0).lognormal(np.log(MEDIAN), SPREAD, 8 + 2 * tokens // MEDIAN).astype(np.int64) + 8
    whole, rest = np.divmod(drawn, length - 2)
    sizes = np.concatenate([np.full(int(whole.sum()), length - 2), rest[rest > 1]])
    sizes = np.random.default_rng(1).permutation(sizes)
    sizes = sizes[: np.searchsorted(np.cumsum(sizes), tokens) + 1]
    return packed_rows(folder, sizes, VOCABULARY, length, MOST_BLOCKS)


def encoders(width: int, layers: int, length: int) -> dict[str, Any]:
    """Name -> encoder for rows of this length."""
    from spanjax.nn.config import EncoderConfig

    common = EncoderConfig(
        hidden_size=width,
        layers=layers,
        heads=max(1, width // 64),
        intermediate_size=2 * width,
        positions=length,
        dropout=0.0,
        attention_dropout=0.0,
        unroll=layers,
        **{"types": 0, "norm_first": True, "rope_theta": 160_000.0, "gated_mlp": True, "biases": False},
    )
    local = dataclasses.replace(common, local_window=WINDOW, global_every=EVERY, local_rope_theta=10_000.0)
    return {"global": common, "local": local}


def local_attention(width: int, rows: int, length: int) -> Callable[[], Any]:
    """Forward and backward pass of one local layer's attention over rows of one block, compiled."""
    import jax
    import jax.numpy as jnp

    from spanjax.nn.attention import attention

    shape = (rows, length, max(1, width // 64), 64)
    arrays = jax.random.normal(jax.random.key(0), (3, *shape))
    segments = jnp.ones(shape[:2], jnp.int32)

    @jax.jit
    def gradients(arrays: Any) -> Any:
        def total(arrays: Any) -> Any:
            query, key, value = arrays
            return jnp.sum(attention(query, key, value, segments, backend="xla_chunked", window=WINDOW) ** 2)

        return jax.grad(total)(arrays)

    return lambda: jax.block_until_ready(gradients(arrays))


def temporary(step: Step) -> int:
    """Bytes of a compiled step beside its state and its batch."""
    return step.compiled.memory_analysis().temp_size_in_bytes


def main() -> int:
    """Runs everything; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    for name, value in (("layers", 4), ("width", 256), ("tokens", 8192)):
        more.add_argument(f"--{name}", type=int, default=value, help=f"{name} of the model, or of a batch")
    more.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="tokens of a row")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    from spanjax.objectives.masked_lm import MaskedPrediction

    figures: dict[str, Any] = {"sizes": {name: getattr(found, name) for name in ("layers", "width", "tokens")}}
    first, last = min(found.lengths), max(found.lengths)
    alone = {
        f"{length:,}": local_attention(found.width, found.tokens // length, length) for length in sorted(found.lengths)
    }
    seconds = timing.alternating(alone, found.repeats)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    figures["attention of a local layer"] = seconds
    print("attention of a local layer:", *(f"{name} tokens {1e3 * each:.1f} ms" for name, each in medians.items()))
    growth = medians[f"{last:,}"] / medians[f"{first:,}"]
    targets = [timing.Target(f"a token in a local layer, rows of {last:,} over {first:,}", growth, most=1.35)]
    with tempfile.TemporaryDirectory() as folder:
        for length in sorted(found.lengths):
            rows = document_rows(pathlib.Path(folder) / str(length), 4 * found.tokens, length)
            made = encoders(found.width, found.layers, length)
            steps = {
                name: Step(MaskedPrediction(), each, rows, found.tokens // length, length)
                for name, each in made.items()
            }
            seconds = timing.alternating({name: step.run for name, step in steps.items()}, found.repeats)
            medians = {name: float(np.median(values)) for name, values in seconds.items()}
            for name, step in steps.items():
                used = float((np.asarray(step.batch["segments_BL"]) > 0).mean())
                rate = found.tokens * used / medians[name]
                figures[f"{length}, {name}"] = {"seconds": seconds[name], "used": used, "bytes": temporary(step)}
                print(
                    f"{length:6,} {name:14s}{rate:9,.0f} tokens of text/s, {used:.1%} of the positions,"
                    f" {temporary(step) / 2**20:8.1f} MiB"
                )
            if length == last:
                speed = medians["global"] / medians["local"]
                targets.append(
                    timing.Target(f"rows of {length:,}: global over local layers, seconds", speed, least=1.2)
                )
            del steps
        memory = dict.fromkeys(("none", "full"), 0)
        for remat in memory:
            twice = encoders(found.width, 2 * found.layers, last)["global"]
            encoder = dataclasses.replace(twice, unroll=1, remat=remat)
            memory[remat] = temporary(Step(MaskedPrediction(), encoder, rows, found.tokens // last, last))
            print(f"{last:6,} {2 * found.layers} layers, remat {remat}: {memory[remat] / 2**20:8.1f} MiB")
        figures["memory of twice as many layers"] = memory
        share = memory["full"] / memory["none"]
        targets.append(timing.Target(f"rows of {last:,}: memory with remat over without", share, most=0.6))
    return timing.report(figures, targets, found)


if __name__ == "__main__":
    sys.exit(main())
