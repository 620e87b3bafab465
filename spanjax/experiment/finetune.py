"""Builds a fine-tuning session from a `Run` with a task: examples, labels, initial weights, evaluation by scores."""

import collections
import dataclasses
import math
import operator
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from spanjax.bounds import raise_problems
from spanjax.data.sources.tables import quoted
from spanjax.data.vocab.base import Vocabulary
from spanjax.data.vocab.loading import load_vocabulary
from spanjax.experiment.branch import is_branch
from spanjax.experiment.build import CompiledRun, attention_backend, build, local_backend, open_mesh
from spanjax.experiment.init_from import InitialWeights, start_from
from spanjax.experiment.summary import plan_lines, start_lines, tuned_commands
from spanjax.nn.config import Execution, Regularization
from spanjax.objectives.base import Mean
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model
from spanjax.run import Run, with_defaults
from spanjax.run_format import MODEL_TYPE, own_classes
from spanjax.sharding import row_shards, to_global
from spanjax.storage.objects import RANDOM
from spanjax.tasks.base import SCORE, Examples, Task
from spanjax.tasks.rows import (
    Batch,
    Row,
    TaskRows,
    batches_of_epoch,
    host_share,
    is_of_tokens,
    lengths_of_steps,
    rows_by_positions,
    rows_in_order,
    rows_of_step,
)
from spanjax.training.loop import AUTO, Outcome
from spanjax.training.step import StepBuilder, mesh_platform

SHOWN = 20
_LINE = re.compile(r":(?:record |row )?\d+(?=: )")
TOKENS = 128  # of an example in a dry run
PARSED = 3  # examples in a dry run


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """Examples and their rows."""

    examples: Sequence[Any]
    packed: TaskRows
    rows: Sequence[Row] = ()
    """The rows once more with their notes, for predictions; empty in training."""

    @classmethod
    def of(
        cls, task: Task, examples: Sequence[Any], vocabulary: Vocabulary, training: bool = False
    ) -> "EncodedExamples":
        """Builds the task's rows of these examples, for predictions or packed only, for training."""
        rows = task.rows(examples, vocabulary)
        kept = () if training else list(rows)
        return cls(examples, TaskRows(rows if training else kept, vocabulary.specials.pad, task.lengths), kept)


class Predicted(NamedTuple):
    """Predictions of a model for examples."""

    predictions: list[Any]
    """One for every example."""
    outputs: list[dict[str, np.ndarray]]
    """One for every row, see `Task.outputs`."""
    means: dict[str, float]
    """Losses, if the examples have labels."""
    rows: Sequence[Row]
    """The rows that `outputs` are of."""


def predictor(builder: StepBuilder, task: Task, mesh: Mesh, batch_size: int) -> Callable[..., Predicted]:
    """Builds a function: (parameters, examples with their rows, a function to call between batches or None) -> predictions.

    Rows go through in batches of `batch_size` over all devices, of fewer where the task bounds their positions; every process
    gets all predictions. A last argument, if given, is called with the number of batches.
    """
    step = builder.predict_step(task.measure_with_outputs)
    host, hosts = jax.process_index(), jax.process_count()
    compiled: set[int] = set()
    bound, shards = task.positions_together, row_shards(mesh)

    def batches(packed: TaskRows) -> list[np.ndarray]:
        # with a bound a row costs its own positions, whatever its batch
        packed.use_few_lengths(1 if bound else batch_size, compiled=compiled)
        return list(
            rows_by_positions(packed, batch_size, bound, shards) if bound else rows_in_order(packed, batch_size)
        )

    def predict(
        params: Any,
        given: EncodedExamples,
        between: Callable[[], None] | None = None,
        counted: Callable[[int], None] | None = None,
    ) -> Predicted:
        found: list[dict[str, np.ndarray]] = [{} for _ in given.rows]
        sums: dict[str, Mean] = {}
        todo = batches(given.packed)
        if counted is not None:
            counted(len(todo))
        for index_B in todo:
            if between is not None:
                between()
            batch = host_share(given.packed, index_B, host, hosts)
            means, outputs = step(params, to_global(batch, mesh))
            sums = {name: sums[name].merge(mean) if sums else mean for name, mean in means.items()}
            arrays = jax.device_get(outputs)
            # -1 pads the last batch; outputs are of all processes' rows, so `place` counts through the global batch
            for place, index in enumerate(index_B.tolist()):
                if index >= 0:
                    length = len(given.rows[index].tokens_T)
                    found[index] = {n: a[place][:length] if is_of_tokens(n) else a[place] for n, a in arrays.items()}
        values = {name: Mean(*mean).value() for name, mean in jax.device_get(sums).items()}
        return Predicted(task.predictions(given.examples, given.rows, found), found, values, given.rows)

    return predict


@dataclasses.dataclass(frozen=True)
class TaskSession(CompiledRun):
    """A run of a task with its examples read; implements `training.loop.Session`."""

    vocabulary: Vocabulary
    model: Model | None
    """Source of the initial weights."""
    training: EncodedExamples
    dev: EncodedExamples | None
    messages: tuple[str, ...]
    """Facts about the examples, and the settings that were derived from them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Implements `training.loop.Session.notes`."""
        return (*start_lines(self, self._data_line, self._epochs), *self.messages)

    @property
    def _epochs(self) -> float:
        return self.run.steps / batches_of_epoch(len(self.training.packed), self.run.batch_size)

    @property
    def _data_line(self) -> str:
        packed = self.training.packed
        dev = f"; {len(self.dev.examples):,} dev examples" if self.dev else "; no dev examples"
        return (
            f"examples    {len(self.training.examples):,} in {len(packed):,} rows of {np.mean(packed.lengths_N):.1f} tokens on"
            f" average, {packed.lengths_N.max():,} at most{dev}"
        )

    @property
    def task(self) -> Task:
        """Task of the run."""
        assert isinstance(self.run.objective, Task)
        return self.run.objective

    def identity(self) -> dict[str, Any]:
        """Implements `training.loop.Session.identity`."""
        family = {MODEL_TYPE: self.model.model_type} if self.model and self.model.model_type else {}
        return {"rows_fingerprint": self.training.packed.fingerprint, **family}

    def about(self) -> dict[str, Any]:
        """Implements `training.loop.Session.about`, with the numbers of examples."""
        sizes = {"train": len(self.training.examples), "dev": len(self.dev.examples) if self.dev else 0}
        own = {"kind": "task", "own_classes": own_classes(self.run), "report_row": self.task.report_row._asdict()}
        sampled = RANDOM if self.run.init_from.startswith(RANDOM) else ""
        return {**own, "examples": sizes, "pretrained": f"{sampled}{self.model.name}" if self.model else ""}

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Figures of a batch for logs."""
        return {"fill": float((batch["segments_BL"] > 0).mean()), "length": float(batch["segments_BL"].shape[1])}

    def flops(self, batch: Batch) -> float:
        """Operations of one step over these rows."""
        segments_BL = batch["segments_BL"]
        blocks = range(1, int(segments_BL.max(initial=0)) + 1)
        pairs = sum(float(np.square((segments_BL == block).sum(axis=1, dtype=np.int64)).sum()) for block in blocks)
        return self.task.flops(self.run.encoder, float((segments_BL > 0).sum()), pairs, 0.0)

    def initial_weights(self) -> InitialWeights | None:
        """Implements `training.loop.Session.initial_weights`."""
        # of random weights the model gives sizes and vocabulary alone
        if self.model is None or self.run.init_from.startswith(RANDOM):
            return None
        params, labels = self.abstract.params, self.task.label_names
        return start_from(self.model, self.run.encoder, self.vocabulary, params, self.run.seed, labels, self.task)

    def batch_rows(self, number: int) -> list[int]:
        """Numbers of the examples of a global batch."""
        index_B = rows_of_step(self.training.packed, self.run.seed, number, self.run.batch_size)
        return self.training.packed.example_N[index_B[index_B >= 0]].tolist()

    def feed(self, start: int) -> Iterator[Batch]:
        """This process's rows of batch `start`, `start + 1`, ..."""
        packed, run = self.training.packed, self.run
        for step in range(start, run.steps):
            index_B = rows_of_step(packed, run.seed, step, run.batch_size)
            yield host_share(packed, index_B, jax.process_index(), jax.process_count())

    def open_step(self, start: int) -> Callable[[Any, Mapping[str, Any]], Any]:
        """Compiles the step for every length of the batches from step `start` on: no later step waits for a compiler."""
        packed, run, jitted = self.training.packed, self.run, self.train_step()
        lengths = sorted(lengths_of_steps(packed, run.seed, range(start, run.steps), run.batch_size))
        empty_B = np.full(run.batch_size, -1)
        compiled = {}
        for length in lengths:
            share = host_share(packed, empty_B, jax.process_index(), jax.process_count(), length)
            compiled[length] = jitted.lower(self.abstract, to_global(share, self.mesh)).compile()
        return lambda state, batch: compiled[batch["tokens_BL"].shape[1]](state, batch, jitted.seed)

    def evaluator(self) -> Callable[[Any, Callable[[], None]], dict[str, float]]:
        """Builds `training.loop.Evaluate`: losses and scores of the dev examples; {} if there are none."""
        predict = predictor(self.builder, self.task, self.mesh, self.run.batch_size)

        def evaluate(params: Any, between: Callable[[], None]) -> dict[str, float]:
            if self.dev is None:
                return {}
            found = predict(params, self.dev, between)
            scores = self.task.scores(self.dev.examples, found.predictions)
            # confidences are those of the settings that inference will use
            task = dataclasses.replace(self.task, **self.task.inferred_settings(scores))
            scores |= task.calibration(self.dev.examples, found.rows, found.predictions, found.outputs)
            return {**found.means, **{f"{SCORE}{name}": value for name, value in scores.items()}}

        return evaluate

    def probes(self, weights: Any) -> dict[str, float]:
        """Implements `training.loop.Session.probes`: none."""
        return {}

    def selection_metric(self, values: Mapping[str, float]) -> float | None:
        """Returns the negated task score."""
        return -values[f"{SCORE}{self.task.metric}"] if values else None

    def dry_run_lines(self) -> list[str]:
        """Describes the run before it starts, its step compiled for the first batch, and an example."""
        row, batch = self.training.packed.row(0), next(iter(self.feed(0)))
        more = len(row.tokens_T) - TOKENS
        text = self.vocabulary.decode(row.tokens_T[:TOKENS]) + (f" ... and {more:,} tokens" if more > 0 else "")
        parsed = [
            f"example {number + 1}   {each}"
            for number, each in enumerate(map(example_text, self.training.examples[:PARSED]))
        ]
        # long fields, such as a label of every token, say nothing in one line
        short = [f"{name} {np.asarray(value).tolist()}" for name, value in row.fields.items() if np.size(value) <= 16]
        plan = plan_lines(self, to_global(batch, self.mesh), [self._data_line], self._epochs)
        return [*plan, *self.messages, "", *parsed, f"first row   {text}  {', '.join(short)}"]

    def summary_lines(self, outcome: Outcome, workdir: str) -> list[str]:
        """Summarises a finished run: the scores of the last evaluation, the best one, what to do next."""
        lines = [f"finished: {outcome.step:,} steps"]
        if self.dev is None:
            lines.append("no dev examples, so nothing to measure: give --dev FILE")
            return [*lines, *tuned_commands(workdir, self.task.predict_command, ())]
        scores = {name.removeprefix(SCORE): value for name, value in outcome.held_out.items() if name.startswith(SCORE)}
        listed = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
        lines.append(f"scores of the {len(self.dev.examples):,} dev examples at the end: {listed}")
        if outcome.best:
            step, value = outcome.best
            lines.append(f"best {self.task.metric}: {-value:.2f} after step {step:,}; that checkpoint is kept")
        return [*lines, *tuned_commands(workdir, self.task.predict_command, self.task.dev)]


def example_text(example: Any) -> str:
    """The fields of an example as it was read, each cut to 60 characters, for a dry run."""
    # tasks have named tuples or dataclasses; another example of a user's own is one value
    names = getattr(example, "_fields", None) or getattr(example, "__dataclass_fields__", ())
    fields = {name: getattr(example, name) for name in names} or {"": example}
    return "  ".join(f"{name} {quoted(value)}".strip() for name, value in fields.items() if value is not None)


def read_examples(
    task: Task, files: Sequence[str], what: str, local: Callable[[str], str] = str
) -> tuple[Examples, list[str]]:
    """Reads the examples of some files. Also returns problems that stop the run: unreadable files, and bad examples unless
    those are to be skipped. `local` returns the path of an address's copy; messages name the address."""
    found, problems = Examples(), []
    for name in files:
        path = name
        try:
            path = local(name)
            examples = task.read(pathlib.Path(path))
        except ValueError as error:
            problems.append(f"{what}: {str(error).replace(path, name)}")
            continue
        found.extend(examples)
        # the path of a copy tells nothing about the file that must be corrected
        for known, new in (
            (found.problems, examples.problems),
            (found.notes, examples.notes),
            (found.hints, examples.hints),
        ):
            known += [text.replace(path, name) for text in new]
    if found.problems and not task.skip_bad:
        different = distinct(found.problems)
        more = len(different) - SHOWN
        problems += [f"{what}: {problem}" for problem in different[:SHOWN]]
        problems += [f"{what}: and {more:,} more"] if more > 0 else []
        problems.append(f"{what}: correct these examples, or leave them out with --skip-bad")
    elif files and not found and not problems:
        problems.append(f"{what}: no examples in {', '.join(files)}")
    return found, problems


def distinct(problems: Sequence[str]) -> list[str]:
    """The problems 'FILE:LINE: what', those that differ in their lines alone once: with the first line and a count."""
    alike = collections.Counter(_LINE.sub("", problem, count=1) for problem in problems)
    first = {_LINE.sub("", problem, count=1): problem for problem in reversed(problems)}
    return [first[each] + (f" (and {count - 1:,} lines like it)" if count > 1 else "") for each, count in alike.items()]


def _labelled(task: Task, examples: Examples) -> Examples:
    """Returns the training examples that teach, with a note on the skipped ones; all of them if none does."""
    kept = [example for example in examples if task.teaches(example)]
    if not kept or len(kept) == len(examples):
        return examples
    note = f"{len(examples) - len(kept):,} of {len(examples):,} training examples say nothing to learn from: skipped"
    return Examples(kept, examples.problems, [*examples.notes, note])


def unlabelled_problems(task: Task, examples: Examples, what: str) -> list[str]:
    """Returns messages on examples that cannot be scored; `what` is the setting that named them."""
    count = sum(not task.is_labelled(example) for example in examples)
    if not count:
        return []
    if count == len(examples) and examples.hints:
        return [f"{what}: {hint}" for hint in examples.hints]
    return [f"{what}: {count:,} of {len(examples):,} examples have no label: give a file whose examples all have one"]


def _vocabulary(run: Run, task: Task) -> tuple[Model | None, Vocabulary | None, list[str]]:
    try:
        if run.init_from:
            model = load_model(run.data.local_copy(run.init_from.removeprefix(RANDOM)))
            if model.vocabulary is None:
                raise ValueError(
                    f"--init-from {run.init_from} has no vocabulary: put the tokenizer's files beside the weights"
                )
            return model, model.vocabulary, []
        if task.vocabulary:
            return None, load_vocabulary(run.data.local_copy(task.vocabulary)), []
    except ValueError as error:
        return None, None, [str(error)]
    return None, None, ["--init-from is not set: give weights to start from, or --objective.vocabulary for fresh ones"]


def _with_schedule(run: Run, task: Task, rows: int) -> tuple[Run, list[str]]:
    """Fills in steps, warm-up and cadence that are not set, for `rows` rows; also returns a note on each, set or derived."""
    epoch = batches_of_epoch(rows, run.batch_size)
    steps = max(1, math.ceil(task.epochs * epoch)) if run.steps == AUTO else run.steps
    every = max(1, epoch // task.evaluations)
    filled = with_defaults(run, steps=steps, warmup_steps=int(task.warmup * steps), every=every)
    notes = []
    origins = {"steps": "epochs", "optimizer.warmup_steps": "warmup", "cadence.eval_every": "evaluations"}
    for name, origin in origins.items():
        value, of_task = operator.attrgetter(name)(filled), f"objective.{origin} {getattr(task, origin):g}"
        reach = f" {steps / epoch:.2f} epochs," if name == "steps" else ""
        if operator.attrgetter(name)(run) == AUTO:
            notes.append(f"{name} is {value:,}:{reach} from {of_task}")
        else:
            notes.append(f"{name} is set to {value:,}:{reach} {of_task} is not used")
    raise_problems(filled.optimizer.schedule_problems(filled.steps))
    return dataclasses.replace(filled, objective=task), notes


def _unused_problems(run: Run) -> list[str]:
    """Returns messages on settings that a task would not use: those of prepared rows, and a number of held-out batches."""
    batches, decay_from = run.cadence.eval_batches, run.optimizer.schedule.decay_from
    found = [
        f"data.{field.name} is set to {getattr(run.data, field.name)!r}, but a task reads --train and --dev: leave it out"
        for field in dataclasses.fields(run.data)
        if getattr(run.data, field.name) != field.default and not field.name.startswith("cache")
    ]
    if batches:
        found.append(
            f"cadence.eval_batches is set to {batches}, but a task is evaluated on all --dev examples: leave it out"
        )
    if is_branch(run):
        found.append(
            f"optimizer.schedule.decay_from is set to {decay_from}: with --init-from it begins a branch of a pretraining run, and"
            " this is a task; give --optimizer.schedule.decay-steps or --optimizer.schedule.decay-share"
        )
    return found


def open_task_session(run: Run) -> TaskSession:
    """Reads weights and examples and builds the mesh and every function. One ValueError lists all problems."""
    task = run.objective
    assert isinstance(task, Task)
    problems = run.problems() + _unused_problems(run)
    model, vocabulary, found = _vocabulary(run, task)
    problems += found
    if not task.train:
        problems.append("objective.train is not set: give --train FILE, and --dev FILE to evaluate on")
    examples, found = read_examples(task, task.train, "--train", run.data.local_copy)
    problems += found
    dev_examples, found = read_examples(task, task.dev, "--dev", run.data.local_copy)
    problems += found + unlabelled_problems(task, dev_examples, "--dev")
    examples = _labelled(task, examples)
    if examples.hints and not any(map(task.teaches, examples)):
        problems += [f"--train: {hint}" for hint in examples.hints]
    mesh, found = open_mesh(run)
    problems += found
    if not problems and vocabulary is not None:
        encoder = dataclasses.replace(run.encoder, vocab_size=vocabulary.size)
        if model is not None:
            encoder = model.encoder.with_settings_of(run.encoder, Regularization, Execution)
        run = dataclasses.replace(run, encoder=encoder)
        if task.length > run.encoder.positions:
            problems.append(f"objective.length is {task.length}: the encoder has {run.encoder.positions} positions")
    if problems or mesh is None or vocabulary is None:
        raise ValueError("\n".join(problems))
    # the task infers settings such as its labels from the examples, so it can check itself only now
    task = task.with_training_labels(examples, vocabulary)
    raise_problems(task.problems(run.encoder))
    training = EncodedExamples.of(task, examples, vocabulary, training=True)
    dev = EncodedExamples.of(task, dev_examples, vocabulary) if dev_examples else None
    run, derived = _with_schedule(run, task, len(training.packed))
    training.packed.use_few_lengths(run.batch_size, run.steps, finer=takes_finer_lengths(task, mesh))
    run = _with_attention(run, training.packed, mesh)
    built = build(run, _longest(task, training.packed), mesh)
    left_out = (*examples.problems, *dev_examples.problems)
    messages = [f"skipped: {problem}" for problem in left_out[:SHOWN]]
    messages += [f"skipped: {len(left_out) - SHOWN:,} more"] if len(left_out) > SHOWN else []
    messages += [
        *derived,
        *examples.notes,
        *dev_examples.notes,
        *(f"dev examples: {note}" for note in task.notes(dev_examples)),
    ]
    return TaskSession(
        **vars(built), vocabulary=vocabulary, model=model, training=training, dev=dev, messages=tuple(messages)
    )


def takes_finer_lengths(task: Task, mesh: Mesh) -> bool:
    """True if training may pad to lengths between those of the task."""
    # kernels of accelerators read tiles, and a task with lengths of its own may need these
    return mesh_platform(mesh) == "cpu" and type(task).lengths is Task.lengths


def _longest(task: Task, packed: TaskRows) -> int:
    return max(task.length, *map(task.attended_length, packed.buckets))


def _with_attention(run: Run, packed: TaskRows, mesh: Mesh) -> Run:
    """Falls back to `xla` if the auto-selected kernel does not support every bucket length, and local layers to the backend of
    the others if theirs does not."""
    encoder, task = run.encoder, run.objective
    assert isinstance(task, Task)
    longest, lengths = _longest(task, packed), {task.attended_length(length) for length in packed.buckets}

    def taking(**backends: Any) -> Run:
        return dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, **backends))

    # what suits the longest rows may refuse shorter ones, and a run has one choice for all
    def suits_all(choose: Callable[[int], Any], wanted: str) -> bool:
        try:
            for length in lengths:
                choose(length)
        except ValueError:
            if wanted != "auto":
                raise
            return False
        return True

    backend, _ = attention_backend(run, mesh, longest)
    asked = taking(attention=backend)
    if not suits_all(lambda length: attention_backend(asked, mesh, length), encoder.attention):
        backend, run = "xla", taking(attention="xla")
    local, _ = local_backend(run, mesh, longest, backend)
    locally = taking(local_backend=local)
    if not suits_all(lambda length: local_backend(locally, mesh, length, backend), encoder.local_backend):
        run = taking(local_backend=backend)
    return run
