"""The sections of `benchmarks.gpu` beside PyTorch: a size with its peer, blocks of real lengths, rows from disk."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.gpu_parts import MEAN_OF_MLPERF, Holder, Ours, Size, fitted, summary
from benchmarks.gpu_sections import (
    BATCHES,
    Bench,
    headline,
    note_utilisation,
    parity,
    setting_list,
    step_figures,
    trace,
)
from benchmarks.peer_process import Peer
from benchmarks.torch_peer import same_losses, sharpened

MLPERF = 998  # sequences/s of one of eight H200, BERT large in FP8 (MLPerf training v4.0)
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-3}  # share by which a loss may differ between the two sides
COMPARED = 4  # rows of which losses are compared
BUCKETS = (0.25, 0.5, 0.75, 1.0)  # of the length of a row


def few(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of which losses are compared."""
    return {name: array[:COMPARED] for name, array in batch.items()}


def compared_dtypes(bench: Bench, size: Size) -> tuple[str, ...]:
    """Types in which the losses of a size are compared: each costs a compilation, so larger sizes have one."""
    return tuple(TOLERANCES) if size == bench.scale.sizes[0] else ("bfloat16",)


def start_peer(bench: Bench, size: Size, batches: Mapping[str, Any] | None = None) -> bool:
    """Starts the peer of a size and queues all that it has to do until it can be timed; True once that is under way."""
    import jax

    device = "cpu" if jax.devices()[0].platform == "cpu" else "cuda"
    peer = Peer(
        size.encoder(vocab_size=bench.folder_of("full").vocabulary.size), device, 1 if device == "cpu" else None
    )
    bench.peers[size.name] = peer
    bench.params[size.name] = params = sharpened(bench.step(size, **bench.settings(size)).params())
    peer.begin("weights", params)
    for dtype in compared_dtypes(bench, size):
        peer.begin("means", few(bench.local_batch("full", size.rows)), dtype == "bfloat16")
    if batches is not None:
        peer.begin("ready", batches, False, way(bench))
    return True


def way(bench: Bench, mode: str = "default") -> str:
    """How the peer's losses run: through torch.compile, if that is wanted and there."""
    return mode if bench.compiles else ""


def compare_losses(bench: Bench, section: str, size: Size) -> None:
    """Compares losses without dropout, in float32 and in the type that is timed; LossesDiffer where they are not equal.

    The peer has no packed rows: on those the type that is timed is compared with float32 of our own.
    """
    import jax

    peer, params = bench.peers[size.name], bench.params.pop(size.name)
    full, packed = (few(bench.local_batch(kind, size.rows)) for kind in ("full", "packed"))
    found, own = [], []
    peer.result(max(1.0, bench.budget.left()))
    for dtype in compared_dtypes(bench, size):
        settings = {**bench.settings(size), "unroll": 1} | ({"attention": "xla"} if dtype == "float32" else {})
        ours = Ours(size.encoder(**settings), bench.folder_of("full"), size.rows, Holder(), dtype)
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            means = ours.means(params, full)
            own.append(ours.means(params, packed))
        theirs = peer.result(max(1.0, bench.budget.left()))
        found.append(f"{dtype}: {same_losses(means, theirs, TOLERANCES[dtype])}")
    if len(own) > 1:
        found.append(f"packed, both of ours: {same_losses(own[0], own[1], TOLERANCES['bfloat16'])}")
    note = "; ".join(found)
    bench.report.row(section, f"{size.name}, losses of {COMPARED} rows without dropout", {"equal": True}, note)


def ready_peer(bench: Bench, section: str, size: Size) -> Peer | None:
    """The peer of a size whose losses were found equal, started if need be; None where that failed."""

    def work() -> bool:
        if size.name not in bench.peers:
            start_peer(bench, size)
        compare_losses(bench, section, size)
        return True

    if size.name in bench.params or size.name not in bench.peers:
        guess = 20.0 + 5.0 * len(compared_dtypes(bench, size))
        if not bench.attempt(section, f"{size.name}, losses of both sides", guess, work, "torch"):
            stop_peer(bench, size)
            bench.refused.add(size.name)
    return None if size.name in bench.refused else bench.peers.get(size.name)


def stop_peer(bench: Bench, size: Size) -> None:
    """Ends the process of a peer."""
    bench.params.pop(size.name, None)
    peer = bench.peers.pop(size.name, None)
    if peer is not None:
        peer.close()


def made_ready(
    bench: Bench, peer: Peer, batches: Mapping[str, Any], masked_only: bool = False, mode: str = "default"
) -> tuple[str, float]:
    """Has the peer take a first step on each batch, without torch.compile where that fails: how it runs, and its seconds."""
    from benchmarks.peer_process import PeerFailed

    compiled = way(bench, mode)
    try:
        seconds = peer.call("ready", batches, masked_only, compiled, limit=max(1.0, bench.budget.left()))
    except PeerFailed:
        if not compiled:
            raise
        compiled = ""
        seconds = peer.call("ready", batches, masked_only, "", limit=max(1.0, bench.budget.left()))
    return (f"torch.compile {compiled}" if compiled else "not compiled"), seconds


def against(bench: Bench, section: str, size: Size, peer: Peer, name: str, compiled: str, first: float) -> bool:
    """A step of both on the same full rows, in turn, as two rows of the report; the peer has them as `full`."""
    settings, count = bench.settings(size), bench.scale.steps
    ours, local = bench.ours(size, **settings), bench.local_batch("full", size.rows)
    batch = bench.on_device("full", ours)
    seconds = bench.timed(
        {"spanjax": lambda: ours.repeated(batch, count), "PyTorch": lambda: peer.call("steps", "full", count)}
    )
    figures = step_figures(bench, ours, seconds["spanjax"], local)
    bench.report.row(section, f"{size.name}, spanjax, {setting_list(settings)}", figures, f"beside PyTorch {name}")
    median = float(np.median(seconds["PyTorch"]))
    ratio = median / float(np.median(seconds["spanjax"]))
    theirs = {"rows_per_s": summary(seconds["PyTorch"], size.rows), "step_ms": 1000 * median, "first_step_s": first}
    bench.report.row(section, f"{size.name}, PyTorch {name}, {compiled}", {**theirs, "spanjax_is_times_faster": ratio})
    if name == "as shipped":
        note_utilisation(bench, size, figures)
        bench.report.values[f"over PyTorch {size.name}"] = ratio
    else:
        bench.report.values[f"over PyTorch, {name}, {size.name}"] = ratio
    return True


def base(bench: Bench) -> None:
    """The first size: utilisation (G1), the peer (G4), a trace, attention dropout (G3)."""
    measured(bench, "base")


def large(bench: Bench) -> None:
    """The same of the second size, without a trace (G2, G3, G4)."""
    measured(bench, "large")


def measured(bench: Bench, section: str) -> None:
    """One size. The peer's process compiles next to ours; both are timed in turn when it is ready."""
    size = next(size for size in bench.sizes if size.name == section)
    full = {"full": (bench.local_batch("full", size.rows), None)}
    guess = 10.0 + size.layers / 2
    started = bench.attempt(section, f"{size.name}, PyTorch", guess, lambda: start_peer(bench, size, full), "torch")
    headline(bench, section, size)
    peer = ready_peer(bench, section, size) if started else None
    if peer is not None:

        def work() -> bool:
            from benchmarks.peer_process import PeerFailed

            compiled = way(bench)
            try:
                first = peer.result(max(1.0, bench.budget.left()))
                compiled = f"torch.compile {compiled}" if compiled else "not compiled"
            except PeerFailed:
                compiled, first = made_ready(bench, peer, full, mode="")
            return against(bench, section, size, peer, "as shipped", compiled, first)

        bench.attempt(section, f"{size.name}, PyTorch as shipped", 20 + 2.0 * size.layers, work, "torch")
    if size == bench.scale.sizes[0]:
        trace(bench, section, size, bench.profile)
    parity(bench, section, size)


def extra(bench: Bench) -> None:
    """The first size beside other forms of the peer: a head of masked positions, more autotuning, weights in bf16."""
    size = bench.sizes[0]
    forms = (("masked-only head", True, "default"), ("max-autotune", False, "max-autotune-no-cudagraphs"))
    for name, masked_only, mode in (*forms, ("bf16 weights", False, "default")):
        peer = ready_peer(bench, "extra", size)
        if peer is None:
            return

        def work(name: str = name, masked_only: bool = masked_only, mode: str = mode, peer: Peer = peer) -> bool:
            full = {"full": (bench.local_batch("full", size.rows), None)}
            if name == "bf16 weights":
                peer.call("weights", bench.step(size, **bench.settings(size)).params(), True)
            compiled, first = made_ready(bench, peer, full, masked_only, mode)
            return against(bench, "extra", size, peer, name, compiled, first)

        guess = 20.0 + (6.0 if mode != "default" else 3.0) * size.layers
        bench.attempt("extra", f"{size.name}, PyTorch {name}", guess, work, "torch")
    stop_peer(bench, size)  # its weights are bf16


def tokens_a_row(bench: Bench, kind: str) -> float:
    """Positions of a row that are not padding, the mean over the folder."""
    return bench.folder_of(kind).manifest.fill * bench.scale.length


def mixed_row(bench: Bench, size: Size, what: str, ours: float, theirs: float, compiled: str) -> None:
    """Two rows of useful tokens a second, and the ratio of ours to theirs for the targets."""
    fill = bench.folder_of("packed").manifest.fill
    bench.report.row("mix", f"{size.name}, spanjax packed, {fill:.1%} full", {"useful_tokens_per_s": ours})
    figures = {"useful_tokens_per_s": theirs, "spanjax_is_times_faster": ours / theirs}
    bench.report.row("mix", f"{size.name}, PyTorch {what}, {compiled}", figures)
    bench.report.values[f"over {what} PyTorch {size.name}"] = ours / theirs


def padded(bench: Bench, size: Size, peer: Peer) -> bool:
    """Packed rows here, one block a row there."""
    count, rows = bench.scale.steps, size.rows
    ours = bench.ours(size, **bench.settings(size))
    compiled, _ = made_ready(bench, peer, {"single": (bench.local_batch("single", rows), None)})
    batch = bench.on_device("packed", ours)
    seconds = bench.timed(
        {"": lambda: ours.repeated(batch, count), "PyTorch": lambda: peer.call("steps", "single", count)}
    )
    here, there = (rows / float(np.median(each)) for each in seconds.values())
    here, there = here * tokens_a_row(bench, "packed"), there * tokens_a_row(bench, "single")
    mixed_row(bench, size, "padded", here, there, compiled)
    return True


def bucket_batches(bench: Bench, size: Size) -> dict[int, tuple[Any, int, float]]:
    """Length of a bucket -> a batch of as many positions as ours has, its rows, and the share of blocks that belong there."""
    from spanjax.data.feed.batch import FeedSpec
    from spanjax.data.feed.feeds import open_feed

    scale = bench.scale
    feed = open_feed("numpy", bench.folder_of("single"), FeedSpec(0, size.rows))
    taken = [fitted(batch, bench.slots) for batch in itertools.islice(feed, BATCHES)]
    feed.close()
    every = {name: np.concatenate([batch[name] for batch in taken]) for name in taken[0]}
    lengths, found, low = (every["segments_BL"] > 0).sum(axis=1), {}, 0
    for part in BUCKETS:
        high = round(part * scale.length)
        index = np.flatnonzero((lengths > low) & (lengths <= high))
        rows, low = size.rows * scale.length // high, high
        if len(index):
            some = {name: array[np.resize(index, rows)] for name, array in every.items()}
            found[high] = some, rows, len(index) / len(lengths)
    return found


def bucketed(bench: Bench, size: Size, peer: Peer) -> bool:
    """Packed rows here, blocks of like length together there; the shorter ones run in one program for all lengths."""
    count, buckets = bench.scale.steps, bucket_batches(bench, size)
    ours = bench.ours(size, **bench.settings(size))
    compiled, _ = made_ready(
        bench, peer, {str(high): (some, high) for high, (some, _, _) in buckets.items()}, mode="dynamic"
    )
    batch = bench.on_device("packed", ours)
    contenders: dict[str, Callable[[], Any]] = {"": lambda: ours.repeated(batch, count)}
    contenders |= {str(high): functools.partial(peer.call, "steps", str(high), count) for high in buckets}
    median = {name: float(np.median(each)) for name, each in bench.timed(contenders).items()}
    block = sum(share * median[str(high)] / rows for high, (_, rows, share) in buckets.items())
    here = tokens_a_row(bench, "packed") * size.rows / median[""]
    mixed_row(bench, size, "bucketed", here, tokens_a_row(bench, "single") / block, compiled)
    return True


def mlperf(bench: Bench, size: Size) -> bool:
    """Sequences a second of MLPerf's mean length, packed, beside MLPerf's figure of the same device."""
    ours = bench.ours(size, **bench.settings(size))
    batch, manifest = bench.on_device("mlperf", ours), bench.folder_of("mlperf").manifest
    seconds = bench.timed({"": lambda: ours.repeated(batch, bench.scale.steps)})[""]
    rate = summary(seconds, size.rows * manifest.blocks / manifest.rows)
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
            peer = ready_peer(bench, "mix", size)
            if peer is not None:
                guess = 25 + (3.0 if name == "padded" else 4.0) * size.layers
                work = functools.partial(work, bench, size, peer)
                bench.attempt("mix", f"{size.name}, PyTorch {name}", guess, work, "torch")


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
            bench.report.row("feed", f"{size.name}, {name}", {"rows_per_s": summary(each, size.rows)})
        bench.report.values["rows from disk"] = read / fixed

    bench.attempt("feed", f"{size.name}, rows from disk", 2 * bench.guess(size, bench.settings(size)), work)
