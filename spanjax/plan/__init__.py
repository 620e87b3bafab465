"""python -m spanjax.plan --config FILE --topology v5e:16x16: resources of a run on devices that this machine lacks.

Compiles the training step for these devices ahead of time, and reports whether it fits into their memory, the transfers
between them and, by a model of bandwidths, the time of a step and of the run. It needs neither the devices nor rows. Exit
codes: 0 it fits, 1 it does not fit, 2 wrong input.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import sys
import time
import types
from collections.abc import Iterator
from typing import Annotated, Any

import tyro

from spanjax.bounds import AtLeast0, AtLeast1, Share, collect, flag_problems, raise_problems
from spanjax.cli import exit_code, parse_options
from spanjax.hardware import SOURCE
from spanjax.plan import cost
from spanjax.plan import topology as places
from spanjax.plan.hlo import Program, exhausted, memory_of
from spanjax.storage.remote_outputs import on_local_files

VOCABULARY = 28_996


def parse(arguments: list[str]) -> Any:
    """Parses the command line over the RUN of its --config file; tyro answers `--help` and misspelt settings."""
    # imported only now: `main` must set the environment before anything imports jax
    from spanjax.run import STORES, Preset, Run, named_run

    base, path = named_run(arguments)

    @dataclasses.dataclass(frozen=True)
    class Plan:
        """Compiles the training step of a run for simulated devices; any setting of the run can be overridden."""

        run: Annotated[Run, tyro.conf.arg(name="")]
        config: str
        """File that defines RUN."""
        topology: str
        """Devices: v4, v5e, v5p or v6e and the chips along each axis (v5e:16x16), or h200 and a number (h200:64)."""
        slices: AtLeast1 = 1
        """TPU slices of that shape; each holds a copy of the state (mesh.replica)."""
        vocab_size: AtLeast0 = 0
        """Tokens of the vocabulary; 0 takes encoder.vocab_size, or BERT's 28,996 if that is 0 too."""
        length: int = 512
        """Tokens of a row."""
        blocks: int = 1
        """Most blocks packed into a row; more need a few more slots, and cudnn_packed and pallas_hopper compute less."""
        memory_fraction: Share = 0.75
        """Share of a GPU's memory that jax takes (XLA_PYTHON_CLIENT_MEM_FRACTION). On a TPU it takes all."""
        flags: str = ""
        """File of XLA flags; empty takes the one in launch/xla_flags for this chip, if it exists, `none` no flags."""
        search: bool = True
        """If it does not fit, compile again with other settings until it does."""
        hlo: str = ""
        """File for the text of the compiled program."""
        preset: Preset = ""
        """parity: attention dropout 0.1, as BERT and SpanBERT; fast: none, as fused attention kernels need.
        --encoder.attention-dropout overrides both."""
        json: bool = False
        """Print one JSON object."""

    default = Plan(run=base, config=path, topology="")
    return parse_options(
        Plan,
        default=default,
        args=arguments,
        config=(tyro.conf.AvoidSubcommands,),
        prog="python -m spanjax.plan",
        elsewhere=("tracking",),
        stores=(*STORES, "flags", "hlo"),
    )


def prepared(command: Any, topology: places.Topology) -> Any:
    """Returns the run with its vocabulary and, over slices, its replicas filled in. ValueError with all problems."""
    from spanjax.experiment.build import batch_problems
    from spanjax.run import with_defaults

    run = with_defaults(command.run)
    vocabulary = command.vocab_size or run.encoder.vocab_size or VOCABULARY
    run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, vocab_size=vocabulary))
    if topology.slices > 1 and run.mesh.replica == 1:
        run = dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, replica=topology.slices))
    problems = [*run.problems(), *flag_problems(command)]
    if command.blocks < 1 or command.length < 3 * command.blocks:
        problems.append(
            f"--length {command.length} has no room for --blocks {command.blocks}: expected 3 tokens a block"
        )
    if command.length > run.encoder.positions:
        problems.append(
            f"--length {command.length} needs encoder.positions of at least that, got {run.encoder.positions}"
        )
    if run.mesh.replica % topology.slices:
        problems.append(
            f"mesh.replica {run.mesh.replica} does not divide over {topology.slices} slices: use a multiple"
        )
    # a mesh that does not fit the devices raises: one problem more in the list, not the only one
    problems += collect(problems, lambda: batch_problems(run, math.prod(run.mesh.shape(topology.size)[:2]))) or []
    raise_problems(problems)
    return run


def rows_of(command: Any) -> Any:
    """Placeholder for rows that are full of text, in at most this many blocks: all that the number of slots depends on."""
    tokens = (0, *(command.length - 2 * blocks for blocks in range(1, command.blocks + 1)))
    return types.SimpleNamespace(length=command.length, manifest=types.SimpleNamespace(text_tokens_by_blocks=tokens))


def slots_of(command: Any, run: Any) -> int:
    """Prediction slots of such a row."""
    from spanjax.data.feed.rows import slots_needed

    spec = run.objective.feed_spec(seed=run.seed, batch_size=run.batch_size, order="uniform")
    return slots_needed(rows_of(command).manifest, spec.masking.most, spec.pairing.parts)


def lowered(command: Any, run: Any, topology: places.Topology, found: list[Any]) -> tuple[Any, dict[str, Any]]:
    """Lowers the step that `spanjax.train` would run, with abstract rows and for these devices; returns it with its sizes."""
    import jax

    from spanjax.data.feed.batch import batch_spec
    from spanjax.experiment.pretrain import assemble
    from spanjax.sharding import make_mesh, row_sharding

    mesh = make_mesh(run.mesh, found)
    session = assemble(run, rows_of(command), None, mesh)
    rows = row_sharding(mesh)
    shapes = batch_spec(run.batch_size, command.length, slots_of(command, run), command.blocks)
    batch = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows) for name, (shape, dtype) in shapes.items()}
    step = session.train_step()
    leaves = jax.tree.leaves(session.abstract)
    sizes = {
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(session.abstract.params)),
        "state": sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves),
        "state_arrays": len(leaves),
        "attention": session.run.encoder.attention,
        "local_backend": session.run.encoder.local_backend,
        "layers": session.layers,
    }
    with places.cudnn_answered(topology.chip):
        return step.lower(session.abstract, batch), sizes


def report(command: Any, run: Any, topology: places.Topology, found: list[Any]) -> dict[str, Any]:
    """Compiles, and returns the results as one object; bytes of one device, seconds of one step."""
    import jax

    step, sizes = lowered(command, run, topology, found)
    settings = {"batch_size": run.batch_size, "microbatches": run.microbatches, "encoder.remat": run.encoder.remat}
    share = command.memory_fraction if topology.chip.platform == "cuda" else 1.0
    limit, begin = int(topology.chip.memory * share), time.monotonic()
    summary = {"topology": str(topology), "devices": topology.size, "settings": settings, "limit": limit, **sizes}
    summary["mesh"] = dataclasses.asdict(run.mesh)
    summary["versions"] = {"jax": jax.__version__, **places.compiler_version(topology.chip.platform)}
    summary["figures"] = {**dataclasses.asdict(topology.chip), "link": topology.link, "source": SOURCE}
    try:
        result = step.compile(compiler_options=places.flags_for(topology.chip, command.flags) or None)
    except jax.errors.JaxRuntimeError as error:
        # A program that needs more than the device has is a result, not an error: its message holds the bytes.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise ValueError(f"the compiler for {topology} says: {str(error)[:1000]}") from error
        return {**summary, "fits": False, "memory": {"peak": exhausted(str(error))}}
    summary["compile_seconds"], text = round(time.monotonic() - begin, 1), result.as_text()
    if command.hlo:
        pathlib.Path(command.hlo).write_text(text)
    memory, program = memory_of(result.memory_analysis()), Program(text)
    flops = run.objective.flops_per_row(run.encoder, command.length, slots_of(command, run)) * run.batch_size
    model = cost.CostModel(program, topology.chip.achievable, command.blocks)
    rows = places.moved(cost.transfers(model, topology.seconds_of), topology)
    tokens = run.batch_size // topology.size * command.length
    near = [row for row in rows if not row["slices"]]
    return {
        **summary,
        "fits": memory["peak"] <= limit,
        "memory": memory,
        "donated_arrays": program.donated(),
        "instructions": sum(program.opcodes().values()),
        "gradient_bytes": sum(row["bytes"] for row in near if row["kind"] in ("all-reduce", "reduce-scatter")),
        "parameter_bytes": sum(row["bytes"] for row in near if row["kind"] == "all-gather"),
        "collectives": rows,
        "kernels": sum(each.runs for each in model.kernels),
        "kinds": cost.by_kind(model.kernels, tokens, run.encoder.layers, run.encoder.hidden_size),
        "dearest": cost.dearest(model.kernels),
        "steps": run.steps,
        "batches": run.batches,
        "schedule": run.optimizer.schedule_line(run.steps),
        **places.modelled(topology, rows, model.seconds, flops, run.batches),
    }


def alternatives(run: Any, shards: int, backend: str) -> Iterator[tuple[str, Any]]:
    """Yields (text, run) of settings that need less memory, cheapest first: attention without stored scores where it is computed
    by `xla`, remat, more microbatches, fewer rows.
    """
    by_distance = run.encoder.relative_attention or run.encoder.disentangled
    if backend == "xla" and not by_distance and run.mesh.tensor == 1:
        run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, attention="xla_chunked"))
        yield "encoder.attention=xla_chunked", run
    encoder = run.encoder
    # microbatches split the smallest update of a batch-size warm-up, too
    rows = (run.batch_stages[0].rows if run.batch_stages else run.batch_size) // shards
    levels = ("none", "elementwise", "dots", "full")
    later = levels[levels.index(encoder.remat) + 1 :]
    for level in later:
        yield f"encoder.remat={level}", dataclasses.replace(run, encoder=dataclasses.replace(encoder, remat=level))
    parts = run.microbatches * 2
    while rows % parts == 0:
        yield f"microbatches={parts}", dataclasses.replace(run, microbatches=parts)
        parts *= 2
    if later:
        run = dataclasses.replace(run, encoder=dataclasses.replace(encoder, remat="full"))
        most = max(part for part in range(1, rows + 1) if rows % part == 0)
        yield f"encoder.remat=full, microbatches={most}", dataclasses.replace(run, microbatches=most)
    if run.batch_size // shards > 1:
        without = ", no batch_warmup" * bool(run.batch_warmup)
        yield (
            f"batch_size={shards}{without}",
            dataclasses.replace(run, batch_size=shards, batch_warmup=(), microbatches=1),
        )


def lines(summary: dict[str, Any]) -> list[str]:
    """Formats a report as human-readable lines."""
    memory, figures, gib = summary["memory"], summary["figures"], 2**30
    mesh = " ".join(f"{name}={size}" for name, size in summary["mesh"].items())
    settings = ", ".join(f"{name} {value}" for name, value in summary["settings"].items())
    peak = f"{memory['peak'] / gib:.2f} GiB" if memory["peak"] else "more than there is"
    local = summary["local_backend"]
    beside = f" (local layers by {local})" if local not in ("auto", summary["attention"]) else ""
    printed = [
        f"{summary['topology']}: {summary['devices']} devices, mesh {mesh}, {settings}, attention by"
        f" {summary['attention']}{beside}, layers {summary['layers']}",
        f"fits        {'yes' if summary['fits'] else 'NO'}: peak {peak}, a device has {summary['limit'] / gib:.2f} GiB",
    ]
    if "collectives" not in summary:  # the compiler refused the program, so nothing but its memory is known
        return printed
    reached = figures["achievable"]
    copies = [summary[name] / summary["parameters"] for name in ("gradient_bytes", "parameter_bytes")]
    return [
        *printed,
        f"memory      arguments {memory['arguments'] / gib:.2f} GiB, temporaries {memory['temporaries'] / gib:.2f},"
        f" code {memory['code'] / gib:.2f}; state {summary['state'] / gib:.2f}, of which {summary['donated_arrays']} of"
        f" {summary['state_arrays']} arrays are overwritten in place",
        f"moved       gradients {summary['gradient_bytes'] / 1e6:.1f} MB = {copies[0]:.3f} x parameters, parameters"
        f" {summary['parameter_bytes'] / 1e6:.1f} MB = {copies[1]:.3f} x parameters",
        *places.table(summary["collectives"]),
        f"step        {summary['step_seconds'] * 1e3:.1f} ms modelled, {summary['mfu']:.1%} of the peak (MFU):"
        f" {summary['kernels']:,} kernels {summary['compute_seconds'] * 1e3:.1f} ms, transfers"
        f" {summary['transfer_seconds'] * 1e3:.1f} ms, of which kernels hide {summary['hidden_seconds'] * 1e3:.1f} ms",
        *_kernel_lines(summary),
        f"efficiency  {summary['efficiency']:.1%}; {summary['efficiency_all_hidden']:.1%} if all transfers were hidden,"
        f" {summary['efficiency_none_hidden']:.1%} if none",
        f"run         {summary['steps']:,} steps{_warmup(summary)} = {summary['hours']:,.1f} hours"
        f" = {summary['device_hours']:,.0f} device-hours",
        f"schedule    {summary['schedule']}",
        f"figures     {figures['flops'] / 1e12:g} TFLOP/s bf16, {figures['link'] / 1e9:g} GB/s to near devices,"
        f" {figures['network'] / 1e9:g} GB/s to far ones (datasheet); {reached['products'] / 1e12:g} TFLOP/s and"
        f" {reached['bandwidth'] / 1e12:g} TB/s reached by kernels (docs/plan.md): a model, not a measurement",
        f"compiled    in {summary['compile_seconds']} s by "
        + ", ".join(f"{k} {v}" for k, v in summary["versions"].items()),
    ]


def _warmup(summary: dict[str, Any]) -> str:
    """Names the batches of a run whose steps have fewer rows at first, which the hours count by their rows."""
    return f" = {summary['batches']:,.1f} whole batches" if summary["batches"] != summary["steps"] else ""


def _kernel_lines(summary: dict[str, Any]) -> list[str]:
    """The kinds of kernels, and the dearest ones."""
    kinds = [
        f"            {row['kind']:17s}{row['seconds'] * 1e3:8.2f} ms ({row['seconds'] / summary['compute_seconds']:5.1%}),"
        f" {row['kernels']:6,} kernels, {row['bytes'] / 1e9:7.2f} GB ="
        f" {row['per_token_layer']:6.1f} x hidden size bytes a token and layer"
        for row in summary["kinds"]
    ]
    dear = [
        f"            {each['seconds'] * 1e3:8.2f} ms {each['runs']:5,} x {each['kind']}, bound by {each['bound']}:"
        f" {each['bytes'] / 1e6:,.1f} MB, {each['flops'] / 1e9:,.1f} GFLOP, {_shortened(each['result'])}"
        for each in summary["dearest"]
    ]
    return [*kinds, "dearest     kernels of one shape, all their runs together:", *dear]


def _shortened(result: str) -> str:
    return result if len(result) <= 60 else f"{result[:57]}..."


def plan(command: Any, topology: places.Topology) -> int:
    """Compiles, searches if it does not fit, prints; returns the exit code."""
    run = prepared(command, topology)
    devices = places.devices(topology)
    summary = report(command, run, topology, devices)
    tried, replica_data = [], run.mesh.shape(topology.size)[:2]
    for words, other in (
        ()
        if summary["fits"] or not command.search
        else alternatives(run, math.prod(replica_data), summary["attention"])
    ):
        print(f"does not fit: trying {words}", file=sys.stderr, flush=True)
        found = report(command, other, topology, devices)
        tried.append({"setting": words, "fits": found["fits"], "peak": found["memory"]["peak"]})
        if found["fits"]:
            summary["fitting"] = found
            break
    summary["tried"] = tried
    printed = lines(summary)
    for one in tried:
        ends = "fits" if one["fits"] else "does not fit"
        printed.append(f"tried       {one['setting']}: peak {one['peak'] / 2**30:.2f} GiB, {ends}")
    printed += ["", *lines(summary["fitting"])] if "fitting" in summary else []
    print(json.dumps(summary, indent=1) if command.json else "\n".join(printed))
    return 0 if summary["fits"] else 1


def main(arguments: list[str] | None = None) -> int:
    """Entry point: sets the environment for ahead-of-time compilation, then imports jax."""
    words = sys.argv[1:] if arguments is None else arguments
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("--topology", default="")
    reader.add_argument("--slices", default="1")
    given, _ = reader.parse_known_args(words)

    def work() -> int:
        if {"-h", "--help"} & set(words):
            parse(words)
        slices = int(given.slices) if given.slices.lstrip("-").isdigit() else 1
        topology = places.parse(given.topology, slices)
        if "jax" not in sys.modules:
            os.environ.update(places.environment(topology.chip.platform))
        return on_local_files(lambda command: plan(command, topology), parse(words), ["flags"], ["hlo"])

    return exit_code("spanjax.plan", work, cannot="cannot plan this run")
