"""python -m benchmarks.step [--check] [--json FILE]: the training step beside Hugging Face's and keras-hub's, in one process.

SpanBERT's two losses on the same rows, the same masks and the same weights, fp32, dropout 0.1, AdamW with clipping. The peers:
BertForMaskedLM of transformers with a span boundary head, as shipped, which scores every position, and with a head over the
masked positions alone; BertMaskedLM of keras-hub on JAX, without and with such a head. Losses without dropout are compared before
anything is timed. The matrix products of spanjax's step, at the shapes of its compiled program, are a contender of their own:
their share of the step is its distance from the limit of the machine. First full rows, then real text, which is packed here and
padded there. Where keras-hub is not installed (`pip install --no-deps keras-hub`) its rows are missing, and `--check` fails.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.data import made_rows
from benchmarks.made import one_device_session
from benchmarks.torch_peer import Theirs, same_losses, sharpened
from spanjax.plan.hlo import Program, shapes

VOCABULARY = 28_996
SLOTS = 77  # masked of a full row of 512
TANH = 1e-3  # part by which the tanh approximation of GELU, which keras-hub takes inside its layers, may move a loss
SHIPPED, MASKED = "Hugging Face as shipped + SBO", "Hugging Face, masked-only head + SBO"
KERAS, KERAS_SBO = "keras-hub BertMaskedLM, no SBO", "keras-hub BertMaskedLM + SBO"
PRODUCTS = "products of spanjax's step alone"
Contenders = dict[str, Callable[[], Any]]
Product = tuple[tuple[int, ...], tuple[int, ...], Any]
"""Shapes of both sides, and the dimensions that are contracted and batched, as jax.lax.dot_general takes them."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is timed."""

    layers: int
    width: int
    batch: int
    length: int = 512

    @property
    def encoder(self) -> Any:
        """The encoder of spanjax."""
        from spanjax.nn.config import EncoderConfig

        heads = max(1, self.width // 64)
        sizes = {"layers": self.layers, "heads": heads, "intermediate_size": 4 * self.width}
        return EncoderConfig(hidden_size=self.width, unroll=self.layers, **sizes)  # pyright: ignore[reportArgumentType]


class Ours:
    """spanjax's step on one device, with its state."""

    def __init__(self, sizes: Sizes, rows: Any, dropout: float):
        import jax

        encoder = dataclasses.replace(sizes.encoder, dropout=dropout, attention_dropout=dropout)
        self.session = one_device_session(encoder, rows, batch_size=sizes.batch)
        self.state = self.session.fresh_state()
        self.params = jax.device_get(self.state.params)
        self.step = self.session.train_step()

    def run(self, local: Any) -> None:
        """One update, finished, of rows in the memory of the host."""
        import jax

        from spanjax.sharding import to_global

        self.state, shown = self.step(self.state, to_global(local, self.session.mesh))
        jax.block_until_ready(shown)

    def program(self, local: Any) -> str:
        """Optimised program of the step."""
        from spanjax.sharding import to_global

        compiled = self.step.lower(self.state, to_global(local, self.session.mesh)).compile()
        return compiled.as_text() or ""

    def losses(self, params: Any, local: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Both losses of these weights, without dropout."""
        from spanjax.sharding import to_global

        means = self.session.builder.eval_step()(params, to_global(local, self.session.mesh))
        return {name: means[f"{name}/loss"].value() for name in ("mlm", "sbo")}

    def batches(self, count: int) -> list[Any]:
        """The first batches of the rows."""
        feed = self.session.feed(0)
        found = [next(feed) for _ in range(count)]
        feed.close()  # pyright: ignore[reportAttributeAccessIssue]
        return found


def keras_peers(ours: Ours, params: Any, local: Any, names: Sequence[str]) -> dict[str, Any]:
    """KerasPeer by contender, found to compute our losses; {} with a note where keras-hub is not installed."""
    from benchmarks.keras_peer import KerasPeer

    encoder, found = ours.session.run.encoder, {}
    try:
        for name in names:
            found[name] = KerasPeer(encoder, params, encoder.dropout, boundary=name == KERAS_SBO)
    except ImportError as error:
        print(f"left out: {error}")
        return {}
    means = ours.losses(params, local)
    for peer in found.values():
        theirs = peer.means(peer.batch(local))
        print(f"keras-hub, first: {same_losses({name: means[name] for name in theirs}, theirs, TANH)}")
    return found


def full_rows(sizes: Sizes, folder: pathlib.Path, repeats: int) -> dict[str, list[float]]:
    """Seconds a step on rows that are one full block each, after the losses were found equal."""
    from spanjax.data.feed.rows import open_rows

    made_rows(folder, 64 * sizes.batch, VOCABULARY)
    rows = open_rows(folder)
    plain, quiet = Ours(sizes, rows, 0.1), Ours(sizes, rows, 0.0)
    local, feed = plain.batches(1)[0], plain.session.feed(0)
    params, encoder = sharpened(plain.params), plain.session.run.encoder
    peers = {name: Theirs(encoder, params, masked_only=name == MASKED) for name in (SHIPPED, MASKED)}
    means = plain.losses(params, local)
    for peer in peers.values():
        print(f"Hugging Face, first: {same_losses(means, peer.means(peer.batch(local)), 1e-4)}")
    contenders: Contenders = {
        "spanjax": lambda: plain.run(local),
        "spanjax, dropout 0": lambda: quiet.run(local),
        "spanjax, rows from disk": lambda: plain.run(next(feed)),
        PRODUCTS: all_products(products_of(plain.program(local))),
    }
    peers |= keras_peers(plain, params, local, (KERAS, KERAS_SBO))
    theirs = {name: peer.batch(local) for name, peer in peers.items()}
    contenders |= {name: (lambda name=name: peers[name].run(theirs[name])) for name in peers}
    return timing.alternating(contenders, repeats)


def real_text(sizes: Sizes, folder: pathlib.Path, repeats: int, batches: int = 2) -> dict[str, Any]:
    """Useful tokens a second on Wikipedia, packed here, one block a row there; {} where that text is absent.

    The torch peer pads to the longest row of a batch, as its collators do; keras-hub to the whole length, or else it would
    compile anew for every batch.
    """
    from spanjax.data.feed.rows import open_rows
    from spanjax.prepare import main as prepare

    root = pathlib.Path(__file__).parents[1]
    data = pathlib.Path(os.environ.get("SPANJAX_DATA", root.parent / "shared" / "data"))
    text, vocabulary = data / "wiki" / "validation.jsonl.gz", data / "vocab" / "bert-base-cased-vocab.txt"
    if not (text.is_file() and vocabulary.is_file()):
        print(f"left out: real text; {text} or {vocabulary} is not there, set SPANJAX_DATA")
        return {}
    for name, option in (("packed", "--pack"), ("alone", "--no-pack")):
        command = ["rows", "--input", str(text), "--vocab", str(vocabulary), "--length", str(sizes.length), option]
        if prepare([*command, "--holdout", "0", "--output", str(folder / name)]):
            raise RuntimeError(f"prepare failed: {command}")
    ours, alone = (Ours(sizes, open_rows(folder / name / "train"), 0.1) for name in ("packed", "alone"))
    packed, single = ours.batches(batches), alone.batches(batches)
    params = sharpened(alone.params)
    torch_peer = Theirs(alone.session.run.encoder, params)
    cut = [torch_peer.batch(local, int((local["segments_BL"] > 0).sum(axis=1).max())) for local in single]
    means = alone.losses(params, single[0])
    print(f"Hugging Face, padded, first: {same_losses(means, torch_peer.means(cut[0]), 1e-4)}")
    contenders: Contenders = {
        "spanjax": lambda: [ours.run(local) for local in packed],
        SHIPPED: lambda: [torch_peer.run(batch) for batch in cut],
    }
    for name, peer in keras_peers(alone, params, single[0], (KERAS,)).items():
        made = [peer.batch(local) for local in single]
        contenders[name] = lambda peer=peer, made=made: [peer.run(batch) for batch in made]

    def tokens(rows: Any) -> int:
        return sum(int((local["segments_BL"] > 0).sum()) for local in rows)

    work = {name: tokens(packed if name == "spanjax" else single) for name in contenders}
    return timing.rates(work, timing.alternating(contenders, repeats))


def step_flops(sizes: Sizes) -> float:
    """Of a step of full rows, by the formula of the objective (masked positions alone, nothing computed twice)."""
    from spanjax.objectives.masked_lm import MaskedPrediction

    encoder = dataclasses.replace(sizes.encoder, vocab_size=VOCABULARY)
    return sizes.batch * MaskedPrediction().flops_per_row(encoder, sizes.length, slots=SLOTS)


def products_of(program: str) -> collections.Counter[Product]:
    """Matrix products of an optimised program, with how often each runs."""
    parsed, found = Program(program), collections.Counter[Product]()
    for computation, body in parsed.computations.items():
        types = {line.name: line.result for line in body}
        for line in (line for line in body if line.opcode == "dot"):
            left, right = (shapes(types[name])[0][1] for name in line.operands)
            sides = [
                tuple(
                    tuple(map(int, re.findall(r"\d+", each)))
                    for each in re.findall(rf"{side}_dims={{([^}}]*)}}", line.rest)
                )
                for side in ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
            ]
            contracted, batched = (tuple((*one, ())[0] for one in pair) for pair in (sides[:2], sides[2:]))
            found[left, right, (contracted, batched)] += parsed.runs[computation]
    return found


def all_products(products: Mapping[Product, int]) -> Callable[[], Any]:
    """Runs each product as often as the step does, on random numbers, as a program of its own."""
    import jax
    import jax.numpy as jnp

    def made(left: tuple[int, ...], right: tuple[int, ...], dims: Any) -> Any:
        keys = jax.random.split(jax.random.key(0))
        arrays = (jax.random.normal(key, shape, jnp.float32) for key, shape in zip(keys, (left, right), strict=True))
        return jax.jit(lambda a, b: jax.lax.dot_general(a, b, dims)), *arrays

    calls = [(*made(*product), times) for product, times in products.items()]

    def run() -> None:
        for multiply, left, right, times in calls:
            for _ in range(times):
                multiply(left, right).block_until_ready()

    return run


def targets_of(seconds: Mapping[str, list[float]], text: Mapping[str, Any]) -> list[timing.Target]:
    """The targets; a contender that is not installed gives nan, which misses."""
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    ours, missing = medians["spanjax"], float("nan")
    rates = {name: rate["median"] for name, rate in text.items()}
    useful = rates["spanjax"] / rates[SHIPPED] if SHIPPED in rates else missing
    return [
        timing.Target("products alone, as a share of the step", medians[PRODUCTS] / ours, least=0.66),
        timing.Target(f"{SHIPPED}, over spanjax", medians[SHIPPED] / ours, least=1.4),
        timing.Target(f"{MASKED}, over spanjax", medians[MASKED] / ours, least=1.0),
        timing.Target(f"{KERAS}, over spanjax", medians.get(KERAS, missing) / ours, least=1.0),
        timing.Target(f"{KERAS_SBO}, over spanjax", medians.get(KERAS_SBO, missing) / ours, least=1.7),
        timing.Target("dropout on over off", ours / medians["spanjax, dropout 0"], most=1.02),
        timing.Target("rows from disk over a fixed batch", medians["spanjax, rows from disk"] / ours, most=1.02),
        timing.Target("useful tokens/s of real text, over Hugging Face as shipped", useful, least=1.7),
    ]


def main() -> int:
    """Runs everything; the exit code."""
    more = argparse.ArgumentParser(add_help=False)
    for name, value in (("layers", 4), ("width", 768), ("batch", 4)):
        more.add_argument(f"--{name}", type=int, default=value, help=f"{name} of the model or of its rows")
    found = timing.options(__doc__ or "", more)
    timing.pin(found.cores)
    import torch

    torch.set_num_threads(found.cores)
    sizes = Sizes(found.layers, found.width, found.batch)
    with tempfile.TemporaryDirectory() as folder:
        seconds = full_rows(sizes, pathlib.Path(folder) / "rows", found.repeats)
        for name, values in seconds.items():
            print(f"{name:40s}{np.median(values):8.3f} s a step   ({min(values):.3f} to {max(values):.3f})")
        text = real_text(sizes, pathlib.Path(folder), found.repeats)
    for name, rate in text.items():
        print(f"{name:40s}{rate['median']:8,.0f} tokens/s   ({rate['lowest']:,.0f} to {rate['highest']:,.0f})")
    flops = step_flops(sizes)
    rate, share = (flops / np.median(seconds[PRODUCTS]), np.median(seconds[PRODUCTS]) / np.median(seconds["spanjax"]))
    print(f"products alone: {flops / 1e9:.0f} GFLOP at {rate / 1e9:.0f} GFLOP/s, {share:.1%} of the step")
    figures = {"sizes": dataclasses.asdict(sizes), "seconds": seconds, "tokens_per_second": text, "flops": flops}
    return timing.report(figures, targets_of(seconds, text), found)


if __name__ == "__main__":
    sys.exit(main())
