"""The sections of `benchmarks.gpu` after those of spanjax alone: PyTorch, blocks of real lengths, rows from disk, a trace."""

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.gpu_parts import MEAN_OF_MLPERF, Holder, Ours, Size, fitted, summary
from benchmarks.gpu_sections import BATCHES, Bench, release, said, step_figures
from benchmarks.torch_peer import Theirs, same_losses, sharpened

MLPERF = 998  # sequences/s of one of eight H200, BERT large in FP8 (MLPerf training v4.0)
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-3}  # part by which a loss may differ between the two sides
COMPARED = 4  # rows of which losses are compared
BUCKETS = (0.25, 0.5, 0.75, 1.0)  # of the length of a row


def few(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of which losses are compared."""
    return {name: array[:COMPARED] for name, array in batch.items()}


def compare_losses(bench: Bench, size: Size, peer: Theirs, params: Any) -> str:
    """Losses of both sides without dropout, in float32 and in what is timed, in words; LossesDiffer where they are not equal.

    The peer has no packed rows: on those what is timed is compared with float32 of our own.
    """
    import jax

    full, packed, found, own = few(bench.local_batch("full")), few(bench.local_batch("packed")), [], []
    for dtype, tolerance in TOLERANCES.items():
        attention = "xla" if dtype == "float32" else bench.settings(size)["attention"]
        ours = Ours(size.encoder(attention=attention), bench.folder_of("full"), bench.scale.rows, Holder(), dtype)
        peer.bf16 = dtype == "bfloat16"
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            means = ours.means(params, full)
            own.append(ours.means(params, packed))
        found.append(f"{dtype}: {same_losses(means, peer.means(peer.batch(full)), tolerance)}")
    found.append(f"packed, both of ours: {same_losses(own[0], own[1], TOLERANCES['bfloat16'])}")
    return "; ".join(found)


def peer_of(bench: Bench, size: Size, ours: Ours) -> Theirs:
    """The peer with our weights of now, once for every size; found to compute the same losses."""
    import jax

    if size.name not in bench.peers:
        device = "cpu" if jax.devices()[0].platform == "cpu" else "cuda"
        params = sharpened(ours.params())
        made = Theirs(ours.session.run.encoder, params, device=device, bf16=True)
        note = compare_losses(bench, size, made, params)
        bench.report.row("peer", f"{size.name}, losses of {COMPARED} rows without dropout", {"equal": True}, note)
        bench.peers[size.name] = made
    return bench.peers[size.name]


def both_ways(bench: Bench, section: str, name: str, guess: float, work: Callable[[bool], Any]) -> None:
    """`work(True)` with torch.compile; where that fails `work(False)` without it."""
    for compiled in (True, False) if bench.compiles else (False,):
        way = "torch.compile" if compiled else "not compiled"
        if bench.attempt(section, f"{name} ({way})", guess, functools.partial(work, compiled), "torch") or bench.differ:
            return


def against(bench: Bench, size: Size, masked_only: bool, compiled: bool) -> bool:
    """A step of both on the same full rows, in turn."""
    settings, count = bench.settings(size), bench.scale.steps
    ours = bench.ours(size, **settings)
    made, local = peer_of(bench, size, ours), bench.local_batch("full")
    made.masked_only, made.objective = masked_only, made.losses
    if compiled:
        made.compile()
    batch, theirs = bench.on_device("full", ours), made.batch(local)
    begin = time.perf_counter()
    made.steps(theirs, 1)
    first = time.perf_counter() - begin
    seconds = bench.timed(
        {"spanjax": lambda: ours.repeated(batch, count), "PyTorch": lambda: made.steps(theirs, count)}
    )
    head = "masked-only head" if masked_only else "as shipped"
    name = f"{size.name}, PyTorch {head}, {'torch.compile' if compiled else 'not compiled'}"
    section = "extra" if masked_only else "peer"
    bench.report.row(
        section, f"{size.name}, spanjax, {said(settings)}", step_figures(bench, ours, seconds["spanjax"], local)
    )
    median = float(np.median(seconds["PyTorch"]))
    figures = {
        "rows_per_s": summary(seconds["PyTorch"], bench.scale.rows),
        "step_ms": 1000 * median,
        "first_step_s": first,
    }
    ratio = median / float(np.median(seconds["spanjax"]))
    bench.report.row(section, name, {**figures, "spanjax_is_times_faster": ratio})
    bench.report.values[f"over PyTorch{', masked-only head,' if masked_only else ''} {size.name}"] = ratio
    return True


def peer(bench: Bench) -> None:
    """spanjax beside PyTorch on the same full rows (G4)."""
    for size in bench.sizes:
        work = functools.partial(against, bench, size, False)
        both_ways(bench, "peer", f"{size.name}, PyTorch as shipped", 30 + 3.0 * size.layers, work)
        release()


def extra(bench: Bench) -> None:
    """The first size again beside a peer that scores the masked positions alone."""
    size = bench.sizes[0]
    work = functools.partial(against, bench, size, True)
    both_ways(bench, "extra", f"{size.name}, PyTorch masked-only head", 20 + 3.0 * size.layers, work)
    release()


def tokens_a_row(bench: Bench, kind: str) -> float:
    """Positions of a row that are not padding, the mean over the folder."""
    return bench.folder_of(kind).manifest.fill * bench.scale.length


def mixed_row(bench: Bench, size: Size, what: str, ours: float, theirs: float, compiled: bool) -> None:
    """Two rows of useful tokens a second, and the ratio of ours to theirs for the targets."""
    fill = bench.folder_of("packed").manifest.fill
    bench.report.row("mix", f"{size.name}, spanjax packed, {fill:.1%} full", {"useful_tokens_per_s": ours})
    name = f"{size.name}, PyTorch {what}, {'torch.compile' if compiled else 'not compiled'}"
    bench.report.row("mix", name, {"useful_tokens_per_s": theirs, "spanjax_is_times_faster": ours / theirs})
    bench.report.values[f"over {what} PyTorch {size.name}"] = ours / theirs


def padded(bench: Bench, size: Size, compiled: bool) -> bool:
    """Packed rows here, one block a row there."""
    count, rows = bench.scale.steps, bench.scale.rows
    ours = bench.ours(size, **bench.settings(size))
    made = peer_of(bench, size, ours)
    made.masked_only, made.objective = False, made.losses
    if compiled:
        made.compile()
    batch, theirs = bench.on_device("packed", ours), made.batch(bench.local_batch("single"))
    seconds = bench.timed({"": lambda: ours.repeated(batch, count), "PyTorch": lambda: made.steps(theirs, count)})
    here, there = (rows / float(np.median(each)) for each in seconds.values())
    here, there = here * tokens_a_row(bench, "packed"), there * tokens_a_row(bench, "single")
    mixed_row(bench, size, "padded", here, there, compiled)
    return True


def bucket_batches(bench: Bench, made: Theirs) -> dict[int, tuple[Any, int, float]]:
    """Length of a bucket -> a batch of as many positions as ours has, its rows, and the share of blocks that belong there."""
    from spanjax.data.feed.batch import FeedSpec
    from spanjax.data.feed.feeds import open_feed

    scale = bench.scale
    feed = open_feed("numpy", bench.folder_of("single"), FeedSpec(0, scale.rows))
    taken = [fitted(batch, bench.slots) for batch in itertools.islice(feed, BATCHES)]
    feed.close()
    every = {name: np.concatenate([batch[name] for batch in taken]) for name in taken[0]}
    lengths, found, low = (every["segments_BL"] > 0).sum(axis=1), {}, 0
    for part in BUCKETS:
        high = round(part * scale.length)
        index = np.flatnonzero((lengths > low) & (lengths <= high))
        rows, low = scale.rows * scale.length // high, high
        if len(index):
            some = {name: array[np.resize(index, rows)] for name, array in every.items()}
            found[high] = made.batch(some, high), rows, len(index) / len(lengths)
    return found


def bucketed(bench: Bench, size: Size, compiled: bool) -> bool:
    """Packed rows here, blocks of like length together there; the shorter ones run in one program for all lengths."""
    count = bench.scale.steps
    ours = bench.ours(size, **bench.settings(size))
    made = peer_of(bench, size, ours)
    made.masked_only, made.objective = False, made.losses
    if compiled:
        made.compile(dynamic=True)
    batch, buckets = bench.on_device("packed", ours), bucket_batches(bench, made)
    contenders: dict[str, Any] = {"": lambda: ours.repeated(batch, count)}
    contenders |= {str(high): (lambda some=some: made.steps(some, count)) for high, (some, _, _) in buckets.items()}
    median = {name: float(np.median(each)) for name, each in bench.timed(contenders).items()}
    block = sum(share * median[str(high)] / rows for high, (_, rows, share) in buckets.items())
    here = tokens_a_row(bench, "packed") * bench.scale.rows / median[""]
    mixed_row(bench, size, "bucketed", here, tokens_a_row(bench, "single") / block, compiled)
    return True


def mlperf(bench: Bench, size: Size) -> bool:
    """Sequences a second of MLPerf's mean length, packed, beside what MLPerf says of the same device."""
    ours = bench.ours(size, **bench.settings(size))
    batch, manifest = bench.on_device("mlperf", ours), bench.folder_of("mlperf").manifest
    seconds = bench.timed({"": lambda: ours.repeated(batch, bench.scale.steps)})[""]
    rate = summary(seconds, bench.scale.rows * manifest.blocks / manifest.rows)
    mean = manifest.fill * manifest.rows * manifest.length / manifest.blocks
    note = f"mean length {mean:.1f} (MLPerf {MEAN_OF_MLPERF}); {MLPERF} there, in FP8"
    bench.report.row("mix", f"{size.name}, sequences as long as MLPerf's", {"sequences_per_s": rate}, note)
    bench.report.values["of MLPerf"] = rate["median"] / MLPERF
    return True


def mix(bench: Bench) -> None:
    """Blocks of real lengths: MLPerf's (G6), then packed rows beside a peer that pads, and one that buckets (G5)."""
    for size in (size for size in bench.sizes if size.name == "large"):
        guess = bench.guess(size, bench.settings(size))
        bench.attempt("mix", "large, sequences as long as MLPerf's", guess, functools.partial(mlperf, bench, size))
    for size in bench.sizes:
        for name, work in (("padded", padded), ("bucketed", bucketed)):
            guess = 25 + (3.0 if name == "padded" else 4.0) * size.layers
            both_ways(bench, "mix", f"{size.name}, PyTorch {name}", guess, functools.partial(work, bench, size))
            release()


def feed(bench: Bench) -> None:
    """A step on rows from disk over one on a batch that stays (G7)."""
    from spanjax.sharding import to_global

    size, count = bench.sizes[0], bench.scale.steps

    def work() -> None:
        ours = bench.ours(size, **bench.settings(size))
        batch, batches = bench.on_device("full", ours), ours.session.feed(0)
        mesh = ours.session.mesh
        some = (to_global(fitted(each, bench.slots), mesh) for each in batches)
        seconds = bench.timed(
            {
                "a fixed batch": lambda: ours.repeated(batch, count),
                "rows from disk, NumPy feed": lambda: ours.steps(itertools.islice(some, count)),
            }
        )
        batches.close()  # pyright: ignore[reportAttributeAccessIssue]
        fixed, read = (float(np.median(each)) for each in seconds.values())
        for name, each in seconds.items():
            bench.report.row("feed", f"{size.name}, {name}", {"rows_per_s": summary(each, bench.scale.rows)})
        bench.report.values["rows from disk"] = read / fixed

    bench.attempt("feed", f"{size.name}, rows from disk", 2 * bench.guess(size, bench.settings(size)), work)


def profile(bench: Bench) -> None:
    """A trace of three steps on rows from disk."""
    import jax

    from spanjax.sharding import to_global

    size = bench.sizes[0]

    def work() -> None:
        ours = bench.ours(size, **bench.settings(size))
        batches = ours.session.feed(0)
        some = (to_global(fitted(each, bench.slots), ours.session.mesh) for each in batches)
        ours.steps(itertools.islice(some, 3))
        with jax.profiler.trace(bench.profile):
            ours.steps(itertools.islice(some, 3))
        batches.close()  # pyright: ignore[reportAttributeAccessIssue]
        bench.report.row("profile", f"{size.name}, 3 steps", {"folder": bench.profile})

    bench.attempt("profile", f"{size.name}, 3 steps", 5 + bench.guess(size, bench.settings(size)), work)
