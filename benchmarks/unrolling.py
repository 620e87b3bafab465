"""python -m benchmarks.unrolling --topology h200:1 --layers 12 24 36: what compiling costs with layers in a scan and unrolled.

For every number of layers the training step of SpanBERT base (or --config) is compiled in processes of their own, by turns, for a
simulated device or `cpu`. CPU seconds count, not those of a clock; of an accelerator's program also its modelled step. The median
of --repeats. Writes one JSON object to --json. Further options are settings of the run, as for spanjax.plan.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent


def compiled(topology: str, config: str, layers: int, unroll: int, more: list[str]) -> dict[str, float]:
    """CPU seconds of lowering and of compiling one step in this process, and its modelled seconds."""
    from spanjax import plan
    from spanjax.plan import cost, hlo
    from spanjax.plan import topology as places

    on_cpu = topology == "cpu"
    os.environ.update({"JAX_PLATFORMS": "cpu"} if on_cpu else places.environment(places.parse(topology).chip.platform))
    import jax

    where = places.parse("h200:1" if on_cpu else topology)
    rows = 2 if on_cpu else 32 * where.size
    settings = [f"--encoder.layers={layers}", f"--encoder.unroll={unroll}", f"--batch-size={rows}", "--preset=fast"]
    command = plan.parse([f"--config={config}", f"--topology={where}", *settings, *more])
    run = plan.prepared(command, where)
    before = _cpu()
    step, _ = plan.lowered(command, run, where, jax.devices()[:1] if on_cpu else places.devices(where))
    middle = _cpu()
    result = step.compile(compiler_options=None if on_cpu else places.flags_for(where.chip) or None)
    found = {"lower": middle - before, "compile": _cpu() - middle}
    if not on_cpu:
        found["step_ms"] = 1e3 * cost.CostModel(hlo.Program(result.as_text()), where.chip.achievable).seconds
    return found


def _cpu() -> float:
    """CPU seconds of this process and of the compilers that it started."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in usage)


def main() -> None:
    """Entry point; `--one` is a measurement in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="cpu", help="cpu, or as for spanjax.plan: h200:1, v5e:2x2")
    parser.add_argument("--config", default=str(ROOT / "configs/pretrain/spanbert_base.py"))
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 24, 36])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", default="")
    parser.add_argument("--one", type=int, nargs=2, metavar=("LAYERS", "UNROLL"), help=argparse.SUPPRESS)
    options, more = parser.parse_known_args()
    if options.one:
        layers, unroll = options.one
        print(json.dumps(compiled(options.topology, options.config, layers, unroll, more)))
        return
    rows = []
    for layers in options.layers:
        runs: dict[int, list[dict[str, Any]]] = {1: [], layers: []}
        for _ in range(options.repeats):
            for unroll, found in runs.items():
                command = [sys.executable, "-m", "benchmarks.unrolling", "--one", str(layers), str(unroll)]
                command += ["--topology", options.topology, "--config", options.config, *more]
                done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
                found.append(json.loads(done.stdout.splitlines()[-1]))
        scan, unrolled = (
            {name: statistics.median(one[name] for one in found) for name in found[0]} for found in runs.values()
        )
        ratio = (unrolled["lower"] + unrolled["compile"]) / (scan["lower"] + scan["compile"])
        rows.append({"layers": layers, "scan": scan, "unrolled": unrolled, "ratio": ratio})
        print(f"{layers} layers: {ratio:.2f} x the scan's CPU seconds; scan {scan}, unrolled {unrolled}", flush=True)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps({"topology": options.topology, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
