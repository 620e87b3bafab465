"""The sections of `benchmarks.gpu` that measure spanjax alone, and what all sections share.

Each leaves rows in the report and the figures that targets are set for. Whatever fails, for want of memory or time say, becomes
a row with the reason, and the next thing is measured.
"""

import dataclasses
import gc
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.gpu_parts import (
    MEAN_OF_MLPERF,
    MEAN_OF_PAPER,
    Budget,
    Holder,
    Ours,
    Refused,
    Report,
    Scale,
    Size,
    block_lengths,
    fitted,
    summary,
    write_blocks,
)
from benchmarks.torch_peer import LossesDiffer, Theirs

BATCHES = 16  # that a folder of rows holds


@dataclasses.dataclass
class Bench:
    """What the sections share."""

    scale: Scale
    sizes: tuple[Size, ...]
    folder: pathlib.Path
    report: Report
    budget: Budget
    repeats: int
    compiles: bool
    """Whether PyTorch runs through torch.compile."""
    profile: str = ""
    best: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the encoder that were fastest in the sweep."""
    with_dropout: str = "auto"
    """What computes attention fastest when it drops probabilities."""
    differ: bool = False
    """Whether losses of the two sides were not equal."""
    steps: dict[Any, Ours] = dataclasses.field(default_factory=dict)
    peers: dict[str, Theirs] = dataclasses.field(default_factory=dict)
    holders: dict[str, Holder] = dataclasses.field(default_factory=dict)
    rows: dict[str, Any] = dataclasses.field(default_factory=dict)

    def settings(self, size: Size) -> dict[str, Any]:
        """The best settings, for this size; without a sweep, all layers unrolled."""
        unrolled = self.best.get("unroll", size.layers) > 1
        return {"attention": "auto", **self.best, "unroll": size.layers if unrolled else 1}

    def folder_of(self, kind: str) -> Any:
        """Rows of a kind, written when first asked for: full, packed or single blocks of the paper's mean, or MLPerf's."""
        if kind not in self.rows:
            scale, count = self.scale, self.scale.rows * BATCHES
            mean = {"full": 512.0, "packed": MEAN_OF_PAPER, "single": MEAN_OF_PAPER, "mlperf": MEAN_OF_MLPERF}[kind]
            sizes_M = (
                np.full(count, scale.length - 2) if kind == "full" else block_lengths(2 * count, mean, scale.length)
            )
            self.rows[kind] = write_blocks(self.folder / kind, sizes_M, scale, pack=kind in ("packed", "mlperf"))
        return self.rows[kind]

    def local_batch(self, kind: str) -> dict[str, np.ndarray]:
        """The first batch of a kind, NumPy, as all programs take it."""
        from spanjax.data.feed.batch import FeedSpec
        from spanjax.data.feed.feeds import open_feed

        feed = open_feed("numpy", self.folder_of(kind), FeedSpec(0, self.scale.rows))
        try:
            return fitted(next(feed), self.slots)
        finally:
            feed.close()

    @property
    def slots(self) -> int:
        """Slots of a full row: packed rows of so few blocks need no more."""
        from spanjax.data.feed.batch import FeedSpec
        from spanjax.data.feed.host_slice import HostShare

        return HostShare(self.folder_of("full"), FeedSpec(0, self.scale.rows)).facts.slots

    def ours(self, size: Size, **settings: Any) -> Ours:
        """spanjax's compiled step with these settings of the encoder; every one is compiled once."""
        key = step_name(size, settings)
        if key not in self.steps:
            holder = self.holders.setdefault(size.name, Holder())
            made = Ours(size.encoder(**settings), self.folder_of("full"), self.scale.rows, holder)
            made.compile(self.on_device("full", made))
            self.steps[key] = made
        return self.steps[key]

    def guess(self, size: Size, settings: Mapping[str, Any]) -> float:
        """Seconds to compile and time this step on an H200, guessed."""
        if step_name(size, settings) in self.steps:
            return 4.0 + size.layers / 3
        return 18.0 + 3.0 * settings.get("unroll", 1) + size.layers / 3

    def on_device(self, kind: str, ours: Ours) -> Any:
        """The first batch of a kind where the step wants it."""
        from spanjax.sharding import to_global

        return to_global(self.local_batch(kind), ours.session.mesh)

    def timed(self, contenders: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Seconds a step of contenders that each run `scale.steps` of them, in turn."""
        found = timing.alternating(contenders, self.repeats)
        return {name: [second / self.scale.steps for second in seconds] for name, seconds in found.items()}

    def attempt(self, section: str, name: str, guess: float, work: Callable[[], Any], kind: str = "jax") -> Any:
        """What `work` returns; None, and a row with the reason, where there is no time for it or it fails."""
        needs, left = self.budget.needs(kind, guess), self.budget.left()
        if needs > left:
            why = f"over budget: it needs about {needs:.0f} s, {max(0.0, left):.0f} s are left"
            self.report.row(section, name, None, why)
            return None
        begin, why = time.perf_counter(), ""
        try:
            return work()
        except Refused as error:
            why = str(error)
        except LossesDiffer as error:
            self.differ, why = True, f"refused: {error}"
        except Exception as error:  # noqa: BLE001  (a variant that fails must not lose the others)
            text = f"{type(error).__name__}: {error}"
            memory = "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
            why = f"{'out of memory' if memory else 'failed'}: {text[:300]}".replace("\n", " ")
        finally:
            if not why.startswith("refused"):
                self.budget.learn(kind, guess, time.perf_counter() - begin)
            release()
        self.report.row(section, name, None, why)
        return None


def step_name(size: Size, settings: Mapping[str, Any]) -> tuple:
    """What tells compiled steps apart."""
    return (size.name, *sorted(settings.items()))


def release() -> None:
    """Frees what nobody holds any more, and hands back what PyTorch keeps of it for later: both share the device's memory."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def step_figures(bench: Bench, ours: Ours, seconds: list[float], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Rows a second, milliseconds, model FLOP/s and utilisation of a step, and what compiling said."""
    import jax

    from spanjax.data.feed.batch import batch_sizes
    from spanjax.hardware import peak_flops

    run, peak = ours.session.run, peak_flops(jax.devices()[0].device_kind)
    median = float(np.median(seconds))
    rate = run.objective.flops(run.encoder, *batch_sizes(batch)) / median  # pyright: ignore[reportArgumentType]
    return {
        "rows_per_s": summary(seconds, bench.scale.rows),
        "step_ms": 1000 * median,
        "model_tflops": rate / 1e12,
        "mfu": "unknown device" if peak is None else rate / peak,
        **ours.about,
    }


def variant(bench: Bench, section: str, name: str, size: Size, settings: Mapping[str, Any]) -> float | None:
    """Rows a second of a step with these settings, as a row of the report; None where it did not run."""

    def work() -> float:
        ours = bench.ours(size, **settings)
        batch, local = bench.on_device("full", ours), bench.local_batch("full")
        seconds = bench.timed({name: lambda: ours.repeated(batch, bench.scale.steps)})[name]
        figures = step_figures(bench, ours, seconds, local)
        bench.report.row(section, name, figures, f"attention {ours.session.attention}")
        return figures["rows_per_s"]["median"]

    return bench.attempt(section, name, bench.guess(size, settings), work)


def ceilings(bench: Bench) -> None:
    """What the device does at best: a bf16 matrix product of random numbers, and a copy (bytes read and written)."""
    import jax
    import jax.numpy as jnp

    scale, count = bench.scale, 10

    def product() -> None:
        shape = (scale.matmul, scale.matmul)
        left, right = (jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16) for seed in (0, 1))
        multiply = jax.jit(lambda a, b: a @ b)

        def run() -> None:
            out = [multiply(left, right) for _ in range(count)]
            jax.block_until_ready(out)

        seconds = timing.alternating({"": run}, bench.repeats)[""]
        rate = summary(seconds, count * 2 * scale.matmul**3 / 1e12)
        bench.report.values["matmul_tflops"] = rate["median"]
        bench.report.row("ceilings", f"bf16 product, {scale.matmul} cubed", {"tflop_per_s": rate})

    def copy() -> None:
        source = jax.random.bits(jax.random.key(0), (scale.copied // 4,), jnp.uint32)
        add = jax.jit(lambda x: x + jnp.uint32(1))

        def run() -> None:
            for _ in range(count):
                out = add(source)
            jax.block_until_ready(out)

        seconds = timing.alternating({"": run}, bench.repeats)[""]
        rate = summary(seconds, count * 2 * scale.copied / 1e9)
        bench.report.row("ceilings", f"copy of {scale.copied / 2**20:,.0f} MiB", {"gb_per_s": rate})

    bench.attempt("ceilings", "bf16 product", 5, product)
    bench.attempt("ceilings", "copy", 5, copy)


def sweep(bench: Bench) -> None:
    """One setting at a time on the first size (G8): attention, then unrolling with the best, dropout and remat."""
    import jax

    from spanjax.nn.attention import BACKENDS, CANDIDATES, platform_name

    size, platform = bench.sizes[0], str(jax.devices()[0].platform)
    first = CANDIDATES.get(platform_name(platform), ())

    def run(name: str, **settings: Any) -> float | None:
        return variant(bench, "sweep", f"{size.name}, {name}", size, settings)

    names = [*first, *(name for name in BACKENDS if name not in first)]
    speeds = {name: run(f"attention {name}", attention=name, unroll=1) for name in names}
    found = {name: speed for name, speed in speeds.items() if speed}
    if not found:
        return
    best: dict[str, Any] = {"attention": max(found, key=lambda name: found[name]), "unroll": 1}
    unrolled = run(f"unroll {size.layers}", **{**best, "unroll": size.layers})
    dropped = {
        name: run(f"attention dropout 0.1, {name}", attention=name, unroll=1, attention_dropout=0.1) or 0.0
        for name in (name for name in names if name in found)
    }
    if any(dropped.values()):
        bench.with_dropout = max(dropped, key=lambda name: dropped[name])
    run("hidden dropout 0", **best, dropout=0.0)
    for remat in ("dots", "full"):
        run(f"remat {remat}", **best, remat=remat)
    if unrolled and unrolled > found[best["attention"]]:
        best["unroll"] = size.layers
    bench.best = best
    bench.report.settings["best"] = best


def model(bench: Bench) -> None:
    """Rows/s and utilisation of every size with the best settings (G1, G2), and with attention dropout 0.1 (G3)."""
    for size in bench.sizes:
        settings = bench.settings(size)
        rate = variant(bench, "model", f"{size.name}, {said(settings)}", size, settings)
        if rate:
            figures = bench.report.sections["model"]["rows"][-1]
            if isinstance(figures["mfu"], float):
                bench.report.values[f"mfu {size.name}"] = figures["mfu"]
        parity = None
        for attention in dict.fromkeys((bench.with_dropout, "xla_chunked")):  # which keeps no probabilities
            dropped = {**settings, "attention": attention, "attention_dropout": 0.1}
            name = f"{size.name}, attention dropout 0.1, {attention}"
            parity = parity or variant(bench, "model", name, size, dropped)
        if rate and parity:
            bench.report.values[f"attention dropout {size.name}"] = parity / rate


def said(settings: Mapping[str, Any]) -> str:
    """Settings in words."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())
