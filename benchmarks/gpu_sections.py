"""The sections of `benchmarks.gpu` that measure spanjax alone, and what all sections share.

Each leaves rows in the report and the figures that targets are set for. A piece of work that fails, for want of memory or time
say, becomes a row with the reason, and the next one begins.
"""

import collections
import dataclasses
import functools
import gc
import importlib
import itertools
import pathlib
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
    chip_of,
    fitted,
    summary,
    write_blocks,
)
from benchmarks.torch_peer import LossesDiffer
from spanjax.plan.cost import KINDS

BATCHES = 16  # in a folder of rows
NEEDED = ("flax", "optax", "orbax.checkpoint", "numba", "tyro", "docstring_parser", "safetensors", "tokenizers")
PEERS = ("torch", "transformers")
TRACED = 3  # steps
PARITY = {"attention_dropout": 0.1}


@dataclasses.dataclass
class Bench:
    """State that the sections share."""

    scale: Scale
    sizes: tuple[Size, ...]
    folder: pathlib.Path
    report: Report
    budget: Budget
    repeats: int
    compiles: bool
    """Whether PyTorch runs through torch.compile."""
    profile: str
    """Folder of the trace."""
    flags: dict[str, Any] = dataclasses.field(default_factory=dict)
    """XLA's flags for all programs but those of the sweep."""
    best: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the encoder that replace the default ones."""
    differ: bool = False
    """Whether losses of the two sides were not equal."""
    refused: set[str] = dataclasses.field(default_factory=set)
    """Sizes whose peer did not start, or did not compute the same."""
    steps: dict[Any, Ours] = dataclasses.field(default_factory=dict)
    peers: dict[str, Any] = dataclasses.field(default_factory=dict)
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Weights of peers whose losses were not compared yet."""
    holders: dict[str, Holder] = dataclasses.field(default_factory=dict)
    rows: dict[str, Any] = dataclasses.field(default_factory=dict)

    def settings(self, size: Size) -> dict[str, Any]:
        """The best known settings of a size: all layers unrolled, attention by the fastest kernel that the device has."""
        return {"attention": "auto", "unroll": size.layers, **self.best}

    def folder_of(self, kind: str) -> Any:
        """Rows of a kind, written when first asked for: full, packed or single blocks of the paper's mean, or MLPerf's."""
        if kind not in self.rows:
            scale, count = self.scale, max(size.rows for size in scale_sizes(self.scale)) * BATCHES
            mean = {"full": 512.0, "packed": MEAN_OF_PAPER, "single": MEAN_OF_PAPER, "mlperf": MEAN_OF_MLPERF}[kind]
            sizes_M = (
                np.full(count, scale.length - 2) if kind == "full" else block_lengths(2 * count, mean, scale.length)
            )
            self.rows[kind] = write_blocks(self.folder / kind, sizes_M, scale, pack=kind in ("packed", "mlperf"))
        return self.rows[kind]

    def local_batch(self, kind: str, rows: int) -> dict[str, np.ndarray]:
        """The first batch of a kind, NumPy, in the shape that all programs take."""
        from spanjax.data.feed.batch import FeedSpec
        from spanjax.data.feed.feeds import open_feed

        feed = open_feed("numpy", self.folder_of(kind), FeedSpec(0, rows))
        try:
            return fitted(next(feed), self.slots)
        finally:
            feed.close()

    @property
    def slots(self) -> int:
        """Slots of a full row: packed rows of so few blocks need no more."""
        from spanjax.data.feed.batch import FeedSpec
        from spanjax.data.feed.host_slice import HostShare

        return HostShare(self.folder_of("full"), FeedSpec(0, 1)).facts.slots

    def holder(self, size: Size) -> Holder:
        """The state that all steps of a size share."""
        return self.holders.setdefault(size.name, Holder())

    def step(self, size: Size, **settings: Any) -> Ours:
        """spanjax's step with these settings of the encoder, not compiled."""
        return Ours(size.encoder(**settings), self.folder_of("full"), size.rows, self.holder(size))

    def ours(self, size: Size, flags: Mapping[str, Any] | None = None, **settings: Any) -> Ours:
        """spanjax's compiled step with these settings of the encoder; each is compiled once."""
        flags = self.flags if flags is None else flags
        key = step_key(size, flags, settings)
        if key not in self.steps:
            made = self.step(size, **settings)
            made.compile(self.on_device("full", made), flags)
            self.steps[key] = made
        return self.steps[key]

    def guess(self, size: Size, settings: Mapping[str, Any]) -> float:
        """Seconds to compile and time this step on an H200, guessed."""
        if step_key(size, self.flags, settings) in self.steps:
            return 4.0 + size.layers / 3
        return 18.0 + 2.0 * settings.get("unroll", 1) + size.layers / 3

    def on_device(self, kind: str, ours: Ours) -> Any:
        """The first batch of a kind on the device of a step."""
        from spanjax.sharding import to_global

        return to_global(self.local_batch(kind, ours.rows), ours.session.mesh)

    def timed(self, contenders: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Seconds a step of contenders that each run `scale.steps` of them, in turn."""
        found = timing.alternating(contenders, self.repeats)
        return {name: [second / self.scale.steps for second in seconds] for name, seconds in found.items()}

    def attempt(self, section: str, name: str, guess: float, work: Callable[[], Any], kind: str = "jax") -> Any:
        """Result of `work`; None, and a row with the reason, where there is no time for it or it fails."""
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

    def close(self) -> None:
        """Ends the processes of the peers."""
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()


def scale_sizes(scale: Scale) -> tuple[Size, ...]:
    """All sizes, with the largest batch of the sweep as one."""
    return (*scale.sizes, *(dataclasses.replace(scale.sizes[0], rows=rows) for rows in scale.rows))


def step_key(size: Size, flags: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple:
    """Key of a compiled step."""
    return (size, *sorted(flags.items()), *sorted(settings.items()))


def release() -> None:
    """Frees everything that nobody refers to."""
    gc.collect()


def step_figures(bench: Bench, ours: Ours, seconds: list[float], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Rows a second, milliseconds, model FLOP/s and utilisation of a step, and its figures from compilation."""
    import jax

    from spanjax.data.feed.batch import batch_sizes
    from spanjax.hardware import peak_flops

    run, peak = ours.session.run, peak_flops(jax.devices()[0].device_kind)
    median = float(np.median(seconds))
    rate = run.objective.flops(run.encoder, *batch_sizes(batch)) / median  # pyright: ignore[reportArgumentType]
    return {
        "rows_per_s": summary(seconds, ours.rows),
        "step_ms": 1000 * median,
        "model_tflops": rate / 1e12,
        "mfu": "unknown device" if peak is None else rate / peak,
        **ours.about,
    }


def variant(
    bench: Bench,
    section: str,
    name: str,
    size: Size,
    settings: Mapping[str, Any],
    flags: Mapping[str, Any] | None = None,
) -> float | None:
    """Rows a second of a step with these settings, as a row of the report; None where it did not run."""

    def work() -> float:
        ours = bench.ours(size, flags, **settings)
        batch, local = bench.on_device("full", ours), bench.local_batch("full", ours.rows)
        seconds = bench.timed({name: lambda: ours.repeated(batch, bench.scale.steps)})[name]
        figures = step_figures(bench, ours, seconds, local)
        bench.report.row(section, name, figures, f"attention {ours.session.attention}")
        return figures["rows_per_s"]["median"]

    return bench.attempt(section, name, bench.guess(size, settings), work)


def preflight(bench: Bench) -> bool:
    """Imports everything, takes one step of a small model, and tries XLA's flags; False where something is missing."""
    import jax

    from spanjax.plan.topology import flags_for

    missing = {name: error for name in (*NEEDED, *PEERS) if (error := import_error(name))}
    for name, error in missing.items():
        bench.report.row("preflight", f"import {name}", None, error)
    if missing.keys() - set(PEERS):
        return False

    def step() -> bool:
        small = dataclasses.replace(bench.scale.sizes[0], name="small", layers=2, width=64, rows=4)
        ours = bench.ours(small, {}, unroll=2)
        begin = time.perf_counter()
        ours.repeated(bench.on_device("full", ours), 1)
        params = ours.params()
        ours.means(params, bench.local_batch("full", ours.rows))
        bench.report.row("preflight", "a step of a small model", {"step_s": time.perf_counter() - begin, **ours.about})
        bench.steps.clear()
        return True

    if bench.attempt("preflight", "a step of a small model", 10, step) is None:
        return False
    chip = chip_of(jax.devices()[0].device_kind)
    asked = {} if chip is None else {name: value for name, value in flags_for(chip).items() if "autotune" not in name}
    refused = {name: error for name, value in asked.items() if (error := flag_error(name, value))}
    bench.flags = {name: value for name, value in asked.items() if name not in refused}
    bench.report.row("preflight", "XLA's flags", {"taken": len(bench.flags)}, "; ".join(refused.values()))
    return not missing


def import_error(name: str) -> str:
    """Why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  (a broken installation raises anything)
        return f"failed: {type(error).__name__}: {error}"
    return ""


def flag_error(name: str, value: Any) -> str:
    """Why the compiler refuses a flag; empty if it takes it."""
    import jax

    try:
        jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options={name: value})
    except Exception as error:  # noqa: BLE001  (each version of jaxlib has its own)
        return f"{name}: {str(error).splitlines()[0][:100]}"
    return ""


def ceilings(bench: Bench) -> None:
    """The device at its best: a bf16 matrix product of random numbers, and a copy (bytes read and written)."""
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


def headline(bench: Bench, section: str, size: Size) -> None:
    """Rows/s and utilisation with the best known settings (G1, G2)."""
    settings = bench.settings(size)
    if variant(bench, section, f"{size.name}, {setting_list(settings)}", size, settings):
        note_utilisation(bench, size, bench.report.sections[section]["rows"][-1])


def note_utilisation(bench: Bench, size: Size, figures: Mapping[str, Any]) -> None:
    """Takes utilisation, and the measured time as a multiple of the modelled one, from the figures of a step."""
    if isinstance(figures["mfu"], float):
        bench.report.values[f"mfu {size.name}"] = figures["mfu"]
    if "modelled_ms" in figures:
        bench.report.values[f"measured over modelled {size.name}"] = figures["step_ms"] / figures["modelled_ms"]


def parity(bench: Bench, section: str, size: Size) -> None:
    """A step with attention dropout 0.1 and one without, in turn, and the ratio of their rows/s (G3)."""

    def work(attention: str) -> bool:
        settings, dropped = bench.settings(size), {**bench.settings(size), "attention": attention, **PARITY}
        both = {
            "attention dropout 0": bench.ours(size, **settings),
            "attention dropout 0.1": bench.ours(size, **dropped),
        }
        batch, local = bench.on_device("full", bench.ours(size, **settings)), bench.local_batch("full", size.rows)
        found = bench.timed(
            {name: (lambda ours=ours: ours.repeated(batch, bench.scale.steps)) for name, ours in both.items()}
        )
        for name, ours in both.items():
            figures = step_figures(bench, ours, found[name], local)
            bench.report.row(section, f"{size.name}, {name}", figures, f"attention {ours.session.attention}")
        without, dropping = (float(np.median(each)) for each in found.values())
        bench.report.values[f"attention dropout {size.name}"] = without / dropping
        return True

    for attention in ("auto", "xla_chunked"):  # the second keeps no probabilities, for where memory is short
        guess = bench.guess(size, {**bench.settings(size), **PARITY})
        if bench.attempt(
            section, f"{size.name}, attention dropout 0.1, {attention}", guess, functools.partial(work, attention)
        ):
            return


def trace(bench: Bench, section: str, size: Size, folder: str) -> None:
    """A trace of a few steps; milliseconds of each kind of kernel, measured and modelled."""
    import jax

    def work() -> None:
        ours = bench.ours(size, **bench.settings(size))
        batch = bench.on_device("full", ours)
        ours.repeated(batch, 1)
        with jax.profiler.trace(folder):
            ours.repeated(batch, TRACED)
        seconds = {name: value / TRACED for name, value in traced(pathlib.Path(folder)).items()}
        kinds = {kernel.name: kernel.kind for kernel in ours.model.kernels} if ours.model else {}
        measured, modelled = collections.defaultdict[str, float](float), collections.defaultdict[str, float](float)
        for name, value in seconds.items():
            measured[kinds.get(name, "others")] += value
        for kernel in ours.model.kernels if ours.model else ():
            modelled[kernel.kind] += kernel.total
        for kind in (*KINDS, "others"):
            if measured[kind] or modelled[kind]:
                figures = {"measured_ms": 1000 * measured[kind], "modelled_ms": 1000 * modelled[kind]}
                bench.report.row(section, f"{size.name}, trace of {TRACED} steps: {kind}", figures)
        dearest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:10]
        note = ", ".join(f"{name} {1000 * seconds[name]:.3f} ms" for name in dearest)
        bench.report.row(section, f"{size.name}, ten dearest kernels", {"kernels": len(seconds)}, note)

    bench.attempt(section, f"{size.name}, trace", 5 + bench.guess(size, bench.settings(size)), work)


def traced(folder: pathlib.Path) -> dict[str, float]:
    """Seconds of every HLO instruction in the traces below a folder, by name."""
    import jax

    found = collections.defaultdict[str, float](float)
    for file in folder.rglob("*.xplane.pb"):
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
        for event in itertools.chain.from_iterable(line.events for plane in planes for line in plane.lines):
            name = dict(event.stats).get("hlo_op")
            if name:
                found[str(name)] += event.duration_ns / 1e9
    if not found:
        raise ValueError(f"no instruction of a program in the traces below {folder}")
    return found


def sweep(bench: Bench) -> None:
    """One setting at a time on the first size (G8): batches, XLA's flags, a scan of the layers, LayerNorm, remat, attention.

    The figures of the other sections are taken before, so that nothing here changes them.
    """
    import jax

    from spanjax.nn.attention import BACKENDS, CANDIDATES, platform_name

    size, platform = bench.sizes[0], str(jax.devices()[0].platform)
    settings = bench.settings(size)

    def run(name: str, flags: Mapping[str, Any] | None = None, rows: int = size.rows, **changed: Any) -> None:
        sized = dataclasses.replace(size, rows=rows)
        variant(bench, "sweep", f"{size.name}, {name}", sized, {**settings, **changed}, flags)

    for rows in bench.scale.rows:
        run(f"{rows} rows", rows=rows)
    for flag in bench.flags:
        run(f"without {flag}", {name: value for name, value in bench.flags.items() if name != flag})
    if platform_name(platform) == "gpu":
        run("with fusion autotuner", {**bench.flags, "xla_gpu_experimental_enable_fusion_autotuner": True})
    run("layers in a scan", unroll=1)
    run("dropout, sum and LayerNorm by xla", residual_norm="xla")
    run("remat elementwise", remat="elementwise")
    first = CANDIDATES.get(platform_name(platform), ())
    for name in (*first, *(name for name in BACKENDS if name not in first)):
        run(f"attention {name}", attention=name)
    run("hidden dropout 0", dropout=0.0)


def setting_list(settings: Mapping[str, Any]) -> str:
    """Settings as text."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())
