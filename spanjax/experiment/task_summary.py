"""Human-readable text before and after a run of a task: examples, lengths, scores."""

import jax
import numpy as np

from spanjax.experiment.finetune import TaskSession
from spanjax.experiment.summary import compiled_peak, cost_lines, device_lines, rate_line
from spanjax.sharding import to_global
from spanjax.tasks.base import SCORE
from spanjax.training.loop import Outcome

TOKENS = 128  # of an example


def dry_run_lines(session: TaskSession) -> list[str]:
    """Describes a run of a task before it starts, its step compiled for the first batch, and an example."""
    run, packed = session.run, session.training.packed
    batch = next(iter(session.feed(0)))
    peak = compiled_peak(session, to_global(batch, session.mesh))
    row = packed.row(0)
    dev = f"; {len(session.dev.examples):,} dev examples" if session.dev else "; no dev examples"
    return [
        *device_lines(session),
        f"examples    {len(session.training.examples):,} in {len(packed):,} rows of {np.mean(packed.lengths_N):.1f} tokens on"
        f" average, {packed.lengths_N.max():,} at most{dev}",
        *cost_lines(session, peak),
        f"steps       {run.steps:,} of {run.batch_size} rows = {session.task.epochs:g} epochs",
        rate_line(run),
        *session.said,
        "",
        f"example     {shown_tokens(session, row.tokens_T)}  {describe_fields(row.fields)}",
    ]


def shown_tokens(session: TaskSession, tokens_T: np.ndarray) -> str:
    """Decodes the first tokens of a row."""
    more = len(tokens_T) - TOKENS
    return session.vocabulary.decode(tokens_T[:TOKENS]) + (f" ... and {more:,} tokens" if more > 0 else "")


def describe_fields(fields: object) -> str:
    """Formats the short fields of a row."""
    assert isinstance(fields, dict)
    return ", ".join(f"{name} {np.asarray(value).tolist()}" for name, value in fields.items() if np.size(value) <= 16)


def summary_lines(session: TaskSession, outcome: Outcome, workdir: str) -> list[str]:
    """Summarises a finished run: the scores of the last evaluation, the best one, what to do next."""
    lines = [f"finished: {outcome.step:,} steps"]
    if session.dev is None:
        return [*lines, "no dev examples, so nothing to measure: give --dev FILE"]
    scores = {name.removeprefix(SCORE): value for name, value in outcome.held_out.items() if name.startswith(SCORE)}
    shown = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
    lines.append(f"scores of the {len(session.dev.examples):,} dev examples at the end: {shown}")
    if outcome.best:
        step, value = outcome.best
        lines.append(f"best {session.task.metric}: {-value:.2f} after step {step:,}; that checkpoint is kept")
    files = f" on {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return [*lines, "", f"checkpoints and curves are in {workdir}{files}"]
