"""Human-readable text about runs of any kind: devices, memory, learning rate, a filled span, the next commands."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from spanjax.data.feed.batch import Batch
from spanjax.data.inspect.as_text import first_block_length, first_block_spans, original_tokens
from spanjax.data.vocab.loading import Vocabulary
from spanjax.experiment.build import CompiledRun
from spanjax.training.state import count_parameters

BARS = "▁▂▃▄▅▆▇█"


def filled_text(
    batch: Batch, row: int, guesses: Mapping[str, np.ndarray], vocabulary: Vocabulary, replaced: bool = True
) -> list[str]:
    """Shows a sentence with a span blanked, the truth, and the fill of every head; [] if there is no such span.

    Takes the span nearest to four tokens among those of the first packed document that the model saw as [MASK] throughout (a
    kept one would give itself away). Without `replaced` the model hides targets by its attention, and all are hidden.
    """
    hidden_L = (np.asarray(batch["tokens_BL"][row]) == vocabulary.specials.mask) | (not replaced)
    positions_K = batch["slot_position_BK"][row]
    spans = [(k, n) for k, n in first_block_spans(batch, row) if hidden_L[positions_K[k : k + n]].all()]
    if not spans:
        return []
    start, count = min(spans, key=lambda span: abs(span[1] - 4))
    first = int(positions_K[start])
    tokens = original_tokens(batch, row)
    left, right = max(1, first - 24), min(first_block_length(batch, row) - 1, first + count + 24)
    blank = " ".join(["[MASK]"] * count)
    around = [vocabulary.decode(tokens[a:b].tolist()) for a, b in ((left, first), (first + count, right))]
    lines = [f"masked   … {around[0]} {blank} {around[1]} …"]
    lines += [f"truth    {vocabulary.decode(tokens[first : first + count].tolist())}"]
    lines += [
        f"by {name:6s}{vocabulary.decode(ids[row, start : start + count].tolist())}" for name, ids in guesses.items()
    ]
    return lines


def sparkline(values: list[float]) -> str:
    """Draws values as one line of bars, the largest at full height."""
    top = max(values) or 1.0
    return "".join(BARS[min(7, int(8 * value / top))] for value in values)


def plan_lines(session: CompiledRun, batch: Mapping[str, jax.Array], data: Sequence[str], epochs: float) -> list[str]:
    """Describes any run before it starts: where it runs, on which `data`, what its compiled step costs, how long, its rates."""
    run, mesh, encoder = session.run, session.mesh, session.run.encoder
    leaves = jax.tree.leaves(session.abstract)
    state = sum(int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in leaves)
    peak = compiled_peak(session, batch)
    memory = "not compiled" if peak is None else f"{peak / 2**30:.2f} GiB"
    schedule, warmup_steps = run.optimizer.schedule(run.steps), run.optimizer.warmup_steps
    rates = [float(np.asarray(schedule(round(i * (run.steps - 1) / 39)))) for i in range(40)]
    short = f" (the warm-up of {warmup_steps:,} steps is longer than the run)" if warmup_steps >= run.steps else ""
    # the order of a reader's questions
    return [
        f"mesh        {dict(mesh.shape)} on {mesh.devices.size} x {mesh.devices.flat[0].device_kind},"
        f" {jax.process_count()} process(es)",
        f"parameters  {count_parameters(session.abstract.params, encoder):,}",
        *data,
        f"memory      {state / 2**30:.2f} GiB of state a device; the compiled step peaks at {memory} with it",
        f"attention   {session.attention}; remat {encoder.remat}",
        f"layers      {session.layers}",
        f"steps       {run.steps:,} of {run.batch_size} rows = {epochs:.2f} epochs",
        f"rate        {sparkline(rates)}  peak {max(rates):.2e}, last {rates[-1]:.2e}{short}",
    ]


def compiled_peak(session: CompiledRun, batch: Mapping[str, jax.Array]) -> int | None:
    """Bytes a device needs for one training step, state included, by compiling it; None if XLA does not tell."""
    analysis = session.train_step().lower(session.abstract, batch).compile().memory_analysis()
    return None if analysis is None else analysis.argument_size_in_bytes + analysis.temp_size_in_bytes


def next_commands(folder: str) -> list[str]:
    """Lists commands for a run's folder."""
    return [
        "",
        f"checkpoints and curves are in {folder}; next:",
        f"  tensorboard --logdir {folder}/tensorboard      (pip install tensorboard; the same numbers: {folder}/metrics.jsonl)",
        f"  python -m spanjax.predict spans {folder} --text 'Returns the sum of the elements.' --hide 'the sum'",
        f"  python -m spanjax.convert to-torch {folder} OUT      (a folder for transformers)",
        "  python -m spanjax.prepare --input 'your/text/*.txt' --train-vocab 8000 --length 128 --holdout 0.02 --output rows",
        "  python -m spanjax.train --config configs/pretrain/tiny.py --data.rows rows --workdir runs/tiny",
    ]
