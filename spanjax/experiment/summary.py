"""Human-readable text about runs of any kind: devices, memory, learning rate, a filled span, the next commands."""

import shlex
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from spanjax.data.feed.batch import Batch
from spanjax.data.feed.warmup import warmup_text
from spanjax.data.inspect.as_text import first_block_length, first_block_spans, original_tokens
from spanjax.data.vocab.loading import Vocabulary
from spanjax.experiment.build import CompiledRun
from spanjax.training.state import count_parameters

BARS = "▁▂▃▄▅▆▇█"


AROUND = 24  # tokens of the context on either side of a filled span
HINTED = 10  # and of one in a command
TUNED_LENGTH = 128  # of configs/finetune/glue.py


def _filled_span(batch: Batch, row: int, vocabulary: Vocabulary, replaced: bool) -> tuple[int, int, int] | None:
    """(first slot, first position, tokens) of a span that the model saw as [MASK] throughout, in the first packed document.

    A kept token would give itself away. Takes the one nearest to four tokens; None if there is none. Without `replaced` the
    model hides targets by its attention, and all are hidden.
    """
    hidden_L = (np.asarray(batch["tokens_BL"][row]) == vocabulary.specials.mask) | (not replaced)
    positions_K = batch["slot_position_BK"][row]
    spans = [(k, n) for k, n in first_block_spans(batch, row) if hidden_L[positions_K[k : k + n]].all()]
    if not spans:
        return None
    start, count = min(spans, key=lambda span: abs(span[1] - 4))
    return start, int(positions_K[start]), count


def hidden_phrase(batch: Batch, row: int, vocabulary: Vocabulary, replaced: bool = True) -> tuple[str, str] | None:
    """(a few words of a row, the phrase in them that `filled_text` fills), for a command line; None if there are none."""
    found = _filled_span(batch, row, vocabulary, replaced)
    if found is None:
        return None
    _, first, count = found
    tokens, last = original_tokens(batch, row), first_block_length(batch, row) - 1
    starts = np.append(vocabulary.word_starts[tokens[:last]], True)
    left = next((place for place in range(max(1, first - HINTED), first) if starts[place]), first)
    right = next(place for place in range(min(last, first + count + HINTED), last + 1) if starts[place])
    text, phrase = (vocabulary.decode(tokens[a:b].tolist()).strip() for a, b in ((left, right), (first, first + count)))
    return (text, phrase) if phrase and phrase in text and text.isprintable() else None


def filled_text(
    batch: Batch, row: int, guesses: Mapping[str, np.ndarray], vocabulary: Vocabulary, replaced: bool = True
) -> list[str]:
    """Shows a sentence with the span of `_filled_span` blanked, the truth, and the fill of every head; [] without such a span."""
    found = _filled_span(batch, row, vocabulary, replaced)
    if found is None:
        return []
    start, first, count = found
    tokens = original_tokens(batch, row)
    left, right = max(1, first - AROUND), min(first_block_length(batch, row) - 1, first + count + AROUND)
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


def start_lines(session: CompiledRun, data: str, epochs: float) -> list[str]:
    """Describes any run that begins: its devices, size, `data`, length, and what was chosen for its devices."""
    mesh, encoder = session.mesh, session.run.encoder
    split = ", ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1)
    processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return [
        f"devices     {mesh.devices.size} x {mesh.devices.flat[0].device_kind}{processes}"
        + f" ({split})" * bool(split),
        f"model       {encoder.layers} layers x {encoder.hidden_size},"
        f" {count_parameters(session.abstract.params, encoder):,} parameters",
        data,
        _steps_line(session, epochs),
        *session.run.optimizer.average_lines(),
        f"attention   {session.attention}",
        f"layers      {session.layers}",
    ]


def _steps_line(session: CompiledRun, epochs: float) -> str:
    run = session.run
    programs = f"; a program for each of {len(run.batch_stages)} sizes" if run.batch_stages else ""
    return f"steps       {run.steps:,} of {warmup_text(run.batch_size, run.batch_stages)} rows = {epochs:.2f} epochs{programs}"


def plan_lines(session: CompiledRun, batch: Mapping[str, jax.Array], data: Sequence[str], epochs: float) -> list[str]:
    """Describes any run before it starts: where it runs, on which `data`, what its compiled step costs, how long, its rates."""
    run, mesh, encoder = session.run, session.mesh, session.run.encoder
    leaves = jax.tree.leaves(session.abstract)
    state = sum(int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in leaves)
    peak = compiled_peak(session, batch)
    memory = "not compiled" if peak is None else f"{peak / 2**30:.2f} GiB"
    schedule, warmup_steps = run.optimizer.rate_schedule(run.steps), run.optimizer.warmup_steps
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
        _steps_line(session, epochs),
        f"schedule    {run.optimizer.schedule_line(run.steps)}",
        f"rate        {sparkline(rates)}  peak {max(rates):.2e}, last {rates[-1]:.2e}{short}",
        *run.optimizer.average_lines(),
    ]


def compiled_peak(session: CompiledRun, batch: Mapping[str, jax.Array]) -> int | None:
    """Bytes a device needs for one training step, state included, by compiling it; None if XLA does not tell."""
    analysis = session.train_step().lower(session.abstract, batch).compile().memory_analysis()
    return None if analysis is None else analysis.argument_size_in_bytes + analysis.temp_size_in_bytes


def pretrained_commands(
    folder: str, sentence: tuple[str, str] | None, fills: bool, docs: bool, positions: int
) -> list[str]:
    """Lists what to do with a pretraining run: fill masks in, if it `fills` any, in a held-out sentence with a phrase to hide.

    `docs`: its text were the docstrings of installed packages, so text of the user's own is next. `positions` of the encoder.
    """
    run, found = shlex.quote(folder), list[str]()
    if fills:
        text, phrase = map(shlex.quote, sentence) if sentence else ("TEXT", "PHRASE")
        found.append(f"python -m spanjax.predict spans {run} --text {text} --hide {phrase}")
    shorter = f" --objective.length {positions}" if positions < TUNED_LENGTH else ""
    found.append(
        f"python -m spanjax.train --config glue --init-from {run} --train train.csv --dev dev.csv{shorter}"
        f" --workdir {shlex.quote(f'{folder}-tuned')}      (columns text, label)"
    )
    if docs:
        found.append(
            "python -m spanjax.prepare --input 'your/text/*.txt' --train-vocab 8000 --length 128 --holdout 0.02 --output rows"
        )
    return _commands(folder, found)


def tuned_commands(folder: str, command: str, dev: Sequence[str]) -> list[str]:
    """Lists what to do with a fine-tuning run: `command` of `predict` answers new records, `evaluate` scores files."""
    run, files = shlex.quote(folder), shlex.join(dev) or "FILE"
    option = "--text" if command == "coref" else "--file"
    found = [f"python -m spanjax.predict {command} {run} {option} FILE"]
    return _commands(folder, [*found, f"python -m spanjax.evaluate {run} --data {files} --output {run}-answers"])


def _commands(folder: str, commands: Sequence[str]) -> list[str]:
    torch = f"python -m spanjax.convert to-torch {shlex.quote(folder)} {shlex.quote(f'{folder}-torch')}"
    curves = f"tensorboard --logdir {shlex.quote(f'{folder}/tensorboard')}"
    lines = [
        *commands,
        f"{torch}      (a folder for transformers)",
        f"{curves}      (pip install tensorboard; the same numbers: {folder}/metrics.jsonl)",
    ]
    return ["", f"checkpoints and curves are in {folder}; next:", *(f"  {line}" for line in lines)]
