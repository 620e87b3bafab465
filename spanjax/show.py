"""What a person sees before and after a run: the plan of a dry run, a masked example in words, a span filled in."""

from collections.abc import Mapping

import jax
import numpy as np

from spanjax.data.batch import Batch
from spanjax.data.rows import slots_needed
from spanjax.data.spelling import masked_text, original_tokens, span_slots
from spanjax.data.vocab import Vocabulary
from spanjax.session import Session
from spanjax.training.state import count_parameters

__all__ = ["compiled_peak", "filled_text", "masked_text", "original_tokens", "plan_lines", "sparkline"]

BARS = "▁▂▃▄▅▆▇█"


def filled_text(batch: Batch, row: int, guesses: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> list[str]:
    """A sentence with a span blanked, the truth, and what every head fills in; [] where there is no such span.

    Of the spans of the first block that the model saw as [MASK] throughout (one that was kept would give itself away), the one
    nearest to four pieces.
    """
    last = int(np.flatnonzero(np.asarray(batch["segments_BL"][row]) == 1)[-1])
    hidden_L = np.asarray(batch["tokens_BL"][row]) == vocabulary.specials.mask
    positions_K = batch["slot_position_BK"][row]
    spans = [(k, n) for k, n in span_slots(batch, row, last) if hidden_L[positions_K[k : k + n]].all()]
    if not spans:
        return []
    start, count = min(spans, key=lambda span: abs(span[1] - 4))
    first = int(positions_K[start])
    tokens = original_tokens(batch, row)
    left, right = max(1, first - 24), min(last, first + count + 24)
    blank = " ".join(["[MASK]"] * count)
    around = [vocabulary.decode(tokens[a:b].tolist()) for a, b in ((left, first), (first + count, right))]
    lines = [f"masked   … {around[0]} {blank} {around[1]} …"]
    lines += [f"truth    {vocabulary.decode(tokens[first : first + count].tolist())}"]
    lines += [
        f"by {name:6s}{vocabulary.decode(ids[row, start : start + count].tolist())}" for name, ids in guesses.items()
    ]
    return lines


def sparkline(values: list[float]) -> str:
    """Values as one line of bars, the largest at full height."""
    top = max(values) or 1.0
    return "".join(BARS[min(7, int(8 * value / top))] for value in values)


def plan_lines(session: Session, compiled_bytes: int | None) -> list[str]:
    """What a run is going to do: mesh, parameters, FLOPs, memory, steps, epochs, learning rate."""
    run, rows, mesh = session.run, session.rows, session.mesh
    slots = slots_needed(rows.manifest, session.spec.masking.most, session.spec.pairing.parts)
    flops = run.objective.flops_per_row(run.encoder, rows.length, slots)
    used = float(np.mean(rows.lengths_N)) / rows.length
    state = sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(session.abstract)
    )
    rates = [float(np.asarray(run.optimizer.schedule(run.steps)(round(i * (run.steps - 1) / 39)))) for i in range(40)]
    device = mesh.devices.flat[0]
    short = f" (the warm-up of {run.optimizer.warmup_steps:,} steps is longer than the run)"
    memory = "not compiled" if compiled_bytes is None else f"{compiled_bytes / 2**30:.2f} GiB"
    return [
        f"mesh        {dict(mesh.shape)} on {mesh.devices.size} x {device.device_kind}, {jax.process_count()} process(es)",
        f"parameters  {count_parameters(session.abstract.params, run.encoder):,}",
        f"rows        {len(rows):,} of {rows.length} tokens, {used:.1%} filled; held out"
        f" {len(session.validation) if session.validation else 0:,}; {slots} slots a row",
        f"FLOPs       {flops / 1e9:.2f} GFLOP a row, {flops * run.batch_size / 1e12:.3f} TFLOP a step (forward and backward)",
        f"memory      {state / 2**30:.2f} GiB of state a device; the compiled step peaks at {memory} with it",
        f"attention   {session.attention}; recomputed in the backward pass: {run.encoder.remat}",
        f"steps       {run.steps:,} of {run.batch_size} rows = {run.steps * run.batch_size / len(rows):.2f} epochs",
        f"rate        {sparkline(rates)}  peak {max(rates):.2e}, last {rates[-1]:.2e}"
        + (short if run.optimizer.warmup_steps >= run.steps else ""),
    ]


def compiled_peak(session: Session, batch: Mapping[str, jax.Array]) -> int | None:
    """Bytes a device needs for one training step, state included, by compiling it; None where XLA does not tell."""
    schedule = session.run.optimizer.schedule(session.run.steps)
    step = session.builder.train_step(session.optimizer, schedule, session.shardings)
    analysis = step.lower(session.abstract, batch).compile().memory_analysis()
    if analysis is None:
        return None
    return analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
