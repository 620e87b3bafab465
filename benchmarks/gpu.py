"""python -m benchmarks.gpu [--check] [--json FILE]: spanjax on one accelerator, beside PyTorch on the same one.

In this order: what the device does at best; attention, dropout, unrolling and remat, one at a time; utilisation with the best
of them; PyTorch and transformers on the same full rows and on blocks of real lengths; rows from disk. What does not fit into
--budget-s is left out, and said to be. --tiny runs all of it small, on any device: figures of that mean nothing.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from benchmarks import timing
from benchmarks.gpu_parts import FULL, SECTIONS, TINY, Budget, Report, Scale


@dataclasses.dataclass(frozen=True)
class Aim:
    """A target of a figure of the report, with the floor under it that is told beside it."""

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
    Aim("model", "mfu base", "utilisation, base (G1)", 0.42, least=0.50),
    Aim("model", "mfu large", "utilisation, large (G2)", 0.46, least=0.53),
    Aim("model", "attention dropout base", "rows/s with attention dropout over without, base (G3)", 0.6, least=0.85),
    Aim("model", "attention dropout large", "rows/s with attention dropout over without, large (G3)", 0.6, least=0.85),
    Aim("peer", "over PyTorch base", "rows/s over PyTorch's, base (G4)", 1.2, least=1.4),
    Aim("peer", "over PyTorch large", "rows/s over PyTorch's, large (G4)", 1.05, least=1.2),
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
    parser.add_argument("--budget-s", type=float, default=540.0, help="seconds after which nothing more is begun")
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in FULL.sizes], default=["base", "large"])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rows", type=int, help="rows of a batch")
    parser.add_argument("--steps", type=int, help="steps of a repeat")
    parser.add_argument("--best", nargs="*", default=[], metavar="NAME=VALUE", help="settings to take without a sweep")
    parser.add_argument("--profile", default="", metavar="FOLDER", help="also record a trace of three steps")
    parser.add_argument("--tiny", action="store_true", help="everything small, to see that it runs")
    parser.add_argument("--no-torch-compile", action="store_true", help="PyTorch as it is")
    found = parser.parse_args(arguments)
    if found.repeats < 5:
        parser.error(f"--repeats {found.repeats}: expected at least 5")
    if any("=" not in each for each in found.best):
        parser.error(f"--best {' '.join(found.best)}: expected NAME=VALUE, unroll=12 say")
    return found


def scale_of(found: argparse.Namespace) -> Scale:
    """What is measured."""
    scale = TINY if found.tiny else FULL
    chosen = {name: getattr(found, name) for name in ("rows", "steps") if getattr(found, name)}
    return dataclasses.replace(scale, **chosen)


def measure(found: argparse.Namespace, report: Report, folder: pathlib.Path) -> bool:
    """Runs the sections in their order; whether both sides computed the same wherever that was looked at."""
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
        profile=found.profile,
        best={
            name: int(value) if value.isdigit() else value for name, _, value in (x.partition("=") for x in found.best)
        },
    )
    for name in SECTIONS:
        if name not in found.sections or (name == "profile" and not found.profile):
            report.sections[name]["status"] = "not asked for"
            continue
        bench.budget.share(name, found.sections)
        begin = time.perf_counter()
        run = getattr(gpu_sections, name, None) or getattr(gpu_peers, name)
        run(bench)
        report.close(name, time.perf_counter() - begin)
    return not bench.differ


def targets(values: Mapping[str, float], found: argparse.Namespace) -> tuple[list[timing.Target], list[str]]:
    """Targets of what was measured, and names of those that were asked for and not measured."""
    asked = [aim for aim in AIMS if aim.section in found.sections]
    asked = [aim for aim in asked if not aim.what.count(", ") or any(f", {size} " in aim.what for size in found.sizes)]
    known = [aim.target(values[aim.value]) for aim in asked if aim.value in values]
    return known, [aim.what for aim in asked if aim.value not in values]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything; the exit code: 1 as well where the losses of both sides are not equal."""
    found = options(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch works on the same device
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.55")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import jax

    device = jax.devices()[0]
    print(
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}; at most {found.budget_s:.0f} s", flush=True
    )
    settings = {name: str(value) for name, value in vars(found).items()}
    report = Report(found.json, settings | dataclasses.asdict(scale_of(found)))
    with tempfile.TemporaryDirectory() as folder:
        equal = measure(found, report, pathlib.Path(folder))
    known, missing = targets(report.values, found)
    code = timing.report(report.figures() | {"not_measured": missing}, known, found)
    for name in missing:
        print(f"NOT MEASURED  {name}", file=sys.stderr if found.check else sys.stdout)
    if not equal:
        print("losses of the two sides differ: nothing was compared there", file=sys.stderr)
    return 1 if code or not equal or (missing and found.check) else 0


if __name__ == "__main__":
    sys.exit(main())
