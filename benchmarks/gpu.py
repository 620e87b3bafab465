"""python -m benchmarks.gpu [--check] [--json FILE] [--cache FOLDER]: spanjax on one accelerator, beside PyTorch on the same one.

The most valuable figures come first: the device's own limits, then base and large with the best known settings (utilisation,
PyTorch on the same rows, a trace, attention dropout), rows from disk, blocks of real lengths, other forms of the peer; last a
sweep of single settings, which changes no other figure. Work that does not fit into --budget-s becomes a row with this reason;
after --limit-s the process ends. The exit code is 1 where a section has no figure. --cache keeps compiled programs and
autotuning for the next call. --tiny runs all of it small, on any device: its figures mean nothing.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

from benchmarks import timing
from benchmarks.gpu_parts import FULL, SECTIONS, TINY, Budget, Report, Scale


@dataclasses.dataclass(frozen=True)
class Aim:
    """A target of a figure of the report, with its floor."""

    section: str
    value: str
    what: str
    floor: float
    least: float = float("-inf")
    most: float = float("inf")

    def target(self, value: float) -> timing.Target:
        """The target with what was measured."""
        return timing.Target(f"{self.what} (floor {self.floor:g})", value, self.least, self.most)


AIMS = (
    Aim("base", "mfu base", "utilisation, base (G1)", 0.42, least=0.50),
    Aim("large", "mfu large", "utilisation, large (G2)", 0.46, least=0.53),
    Aim("base", "attention dropout base", "rows/s with attention dropout over without, base (G3)", 0.6, least=0.85),
    Aim("large", "attention dropout large", "rows/s with attention dropout over without, large (G3)", 0.6, least=0.85),
    Aim("base", "over PyTorch base", "rows/s over PyTorch's, base (G4)", 1.2, least=1.4),
    Aim("large", "over PyTorch large", "rows/s over PyTorch's, large (G4)", 1.05, least=1.2),
    Aim("mix", "over padded PyTorch base", "useful tokens/s over PyTorch's padded, base (G5)", 1.6, least=1.9),
    Aim("mix", "over padded PyTorch large", "useful tokens/s over PyTorch's padded, large (G5)", 1.2, least=1.4),
    Aim("mix", "of MLPerf", "sequences/s over MLPerf's in FP8, large (G6)", 0.75, least=0.9),
    Aim("feed", "rows from disk", "step on rows from disk over one on a fixed batch (G7)", 1.03, most=1.01),
)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="file to write the figures to, after every one")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed or not measured")
    parser.add_argument("--repeats", type=int, default=timing.REPEATS, help="timed rounds; medians are reported")
    parser.add_argument("--budget-s", type=float, default=480.0, help="seconds after which nothing more begins")
    parser.add_argument(
        "--limit-s", type=float, default=585.0, help="seconds after which the process ends, work or not"
    )
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in FULL.sizes], default=["base", "large"])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rows", type=int, help="rows of a batch, for all sizes")
    parser.add_argument("--steps", type=int, help="steps of a repeat")
    parser.add_argument("--best", nargs="*", default=[], metavar="NAME=VALUE", help="other settings of the encoder")
    parser.add_argument("--profile", default="", metavar="FOLDER", help="keep the trace here")
    parser.add_argument(
        "--cache", type=pathlib.Path, help="folder of compiled programs and autotuning, read and written"
    )
    parser.add_argument("--tiny", action="store_true", help="everything small, to see that it runs")
    parser.add_argument("--no-torch-compile", action="store_true", help="PyTorch without torch.compile")
    found = parser.parse_args(arguments)
    if found.repeats < 5:
        parser.error(f"--repeats {found.repeats}: expected at least 5")
    if any("=" not in each for each in found.best):
        parser.error(f"--best {' '.join(found.best)}: expected NAME=VALUE, for example unroll=12")
    return found


def scale_of(found: argparse.Namespace) -> Scale:
    """Sizes and repetitions."""
    scale = TINY if found.tiny else FULL
    if found.rows:
        scale = dataclasses.replace(
            scale, sizes=tuple(dataclasses.replace(size, rows=found.rows) for size in scale.sizes)
        )
    return dataclasses.replace(scale, steps=found.steps or scale.steps)


def asked(found: argparse.Namespace) -> list[str]:
    """Sections to run, in order; a size that is not asked for has none."""
    return [
        name for name in SECTIONS if name in found.sections and (name not in ("base", "large") or name in found.sizes)
    ]


def keep_programs(folder: pathlib.Path) -> None:
    """Compiled programs, XLA's autotuning and those of PyTorch are read from a folder and written to it."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))  # XLA's autotuning goes along with it
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"] = (
        str(folder / "torch"),
        str(folder / "triton"),
    )


def measure(found: argparse.Namespace, report: Report, folder: pathlib.Path) -> bool:
    """Runs the sections in their order; True if both sides computed the same wherever that was compared."""
    from benchmarks import gpu_peers, gpu_sections

    scale = scale_of(found)
    bench = gpu_sections.Bench(
        scale=scale,
        sizes=tuple(size for size in scale.sizes if size.name in found.sizes),
        folder=folder,
        report=report,
        budget=Budget(found.budget_s, scale.pace),
        repeats=found.repeats,
        compiles=not (found.tiny or found.no_torch_compile),
        profile=found.profile or str(folder / "trace"),
        best={
            name: int(value) if value.isdigit() else value for name, _, value in (x.partition("=") for x in found.best)
        },
    )
    try:
        for name in SECTIONS:
            if name not in asked(found):
                report.sections[name]["status"] = "not asked for"
        for name in asked(found):
            begin = time.perf_counter()
            report.begin(name)
            usable = (getattr(gpu_sections, name, None) or getattr(gpu_peers, name))(bench)
            report.close(name, time.perf_counter() - begin)
            if usable is False:
                break
    finally:
        bench.close()
    return not bench.differ


def end_at(seconds: float, report: Report) -> threading.Timer:
    """Ends the process after so many seconds, its figures written: a compilation cannot be stopped otherwise."""

    def end() -> None:
        report.row(report.running, "the rest", None, f"stopped after {seconds:.0f} s (--limit-s)")
        report.close(report.running, seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def targets(values: Mapping[str, float], found: argparse.Namespace) -> tuple[list[timing.Target], list[str]]:
    """Targets with measured figures, and names of those whose figures were asked for and are missing."""
    aims = [aim for aim in AIMS if aim.section in asked(found)]
    aims = [aim for aim in aims if not aim.what.count(", ") or any(f", {size} " in aim.what for size in found.sizes)]
    known = [aim.target(values[aim.value]) for aim in aims if aim.value in values]
    return known, [aim.what for aim in aims if aim.value not in values]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything; the exit code is also 1 where a section has no figure or the losses of both sides differ."""
    found = options(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch works on the same device
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.55")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import jax

    if found.cache:
        keep_programs(found.cache.resolve())
    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}; at most {found.limit_s:.0f} s", flush=True)
    settings = {name: str(value) for name, value in vars(found).items()}
    report = Report(found.json, settings | dataclasses.asdict(scale_of(found)))
    timer = end_at(found.limit_s, report)
    with tempfile.TemporaryDirectory() as folder:
        equal = measure(found, report, pathlib.Path(folder))
    timer.cancel()
    known, missing = targets(report.values, found)
    empty = [name for name in asked(found) if report.sections[name]["status"] == "not measured"]
    code = timing.report(report.figures() | {"not_measured": missing, "empty": empty}, known, found)
    for name in missing:
        print(f"NOT MEASURED  {name}", file=sys.stderr if found.check else sys.stdout)
    if empty:
        print(f"sections without a figure: {', '.join(empty)}", file=sys.stderr)
    if not equal:
        print("losses of the two sides differ: nothing was compared there", file=sys.stderr)
    return 1 if code or empty or not equal or (missing and found.check) else 0


if __name__ == "__main__":
    sys.exit(main())
