"""Builds a pretraining session (rows, mesh, step functions, state) from a `Run` and validates it before the first step."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from spanjax.bounds import collect, raise_problems
from spanjax.cli import visible_name
from spanjax.data.feed.batch import Batch, FeedSpec, batch_sizes, batch_spec, batch_statistics
from spanjax.data.feed.feeds import Kind, ending_the_run, open_feed
from spanjax.data.feed.host_slice import AnyRows, HostShare
from spanjax.data.feed.mixture import MixedRows, stage_of
from spanjax.data.feed.order import BY_LENGTH_VERSION, steps_per_epoch
from spanjax.data.feed.rows import open_rows, slots_needed
from spanjax.data.inspect.as_text import masked_text
from spanjax.data.shards.record_file import ShardCheck
from spanjax.data.shards.remote import local_rows
from spanjax.data.sources.corpus import INSTALLED_DOCS
from spanjax.data.vocab.base import Vocabulary
from spanjax.experiment.branch import Branch, branch_line, is_branch, open_branch
from spanjax.experiment.build import CompiledRun, attention_backend, build, local_backend, open_mesh
from spanjax.experiment.init_from import InitialWeights, start_from, with_sizes_of
from spanjax.experiment.summary import filled_text, hidden_phrase, plan_lines, pretrained_commands, start_lines
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.base import Mean, Pretraining
from spanjax.objectives.loss_terms import canonical
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model
from spanjax.run import Data, Run, with_defaults
from spanjax.run_format import MODEL_TYPE, ORDER_VERSION, STAGES, describe, own_classes
from spanjax.sharding import replicated, row_sharding, to_global
from spanjax.storage.objects import RANDOM
from spanjax.suite.during import probe_problems, probe_scores
from spanjax.training.loop import Outcome


@dataclasses.dataclass(frozen=True)
class PretrainingSession(CompiledRun):
    """A run of pretraining with its rows opened; implements `training.loop.Session`."""

    rows: AnyRows
    validation: AnyRows | None
    spec: FeedSpec
    messages: tuple[str, ...] = ()
    """Notes on settings that the initial weights replaced."""
    model_type: str = ""
    """Family of the initial weights, see `MODEL_TYPE`."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the rows."""
        return self.rows.vocabulary

    @property
    def objective(self) -> Pretraining:
        """Objective of the run."""
        assert isinstance(self.run.objective, Pretraining)
        return self.run.objective

    @property
    def notes(self) -> tuple[str, ...]:
        """Implements `training.loop.Session.notes`."""
        order = self.objective.required_order
        name = type(self.objective).__name__
        return (
            *start_lines(self, self._rows_line, self._epochs),
            *self.messages,
            *((branch_line(self.run),) if is_branch(self.run) else ()),
            *((f"data.order is {order}: objective {name} reads rows in it",) if order else ()),
        )

    @property
    def _epochs(self) -> float:
        return self.run.batches / steps_per_epoch(self.spec.order, self.run.batch_size, len(self.rows))

    @property
    def _rows_line(self) -> str:
        rows, used = self.rows, float(np.mean(self.rows.lengths_N)) / self.rows.length
        held_out = len(self.validation) if self.validation else 0
        stages = "".join(f"; from step {each.replace(':', ' weights ')}" for each in self.run.data.stages)
        return f"rows        {len(rows):,} of {rows.length} tokens, {used:.1%} filled; held out {held_out:,}{stages}"

    def identity(self) -> dict[str, Any]:
        """Extra entries of run.json that identify the training data and, if it differs from version 1's, its order; and the
        family of the weights that the encoder alone does not tell."""
        entries: dict[str, Any] = {"rows_fingerprint": self.rows.manifest.fingerprint}
        if isinstance(self.rows, MixedRows) and self.rows.stages:
            entries[STAGES] = self.rows.fingerprints()
        # if the batch size divides the rows, by_length has always read all of them
        if self.spec.order == "by_length" and len(self.rows) % self.spec.batch_size:
            entries[ORDER_VERSION] = BY_LENGTH_VERSION
        return entries | ({MODEL_TYPE: self.model_type} if self.model_type else {})

    def resume_notes(self, workdir: str, stored: Mapping[str, Any]) -> list[str]:
        """Returns a note if a run resumes with the rows in another order than it began with, and those of any run."""
        notes = super().resume_notes(workdir, stored)
        if stored.get(ORDER_VERSION, 1) == self.identity().get(ORDER_VERSION, 1):
            return notes
        return [
            *notes,
            f"{workdir} was begun by spanjax 0.1, whose order by_length never read the longest rows, the remainder of rows /"
            " batch_size. From here on an epoch has one batch more, with those rows, and reads its batches in another order than"
            " 0.1 would have; to train in one order from the first step on, use another --workdir",
        ]

    def about(self) -> dict[str, Any]:
        """Implements `training.loop.Session.about`, with the manifest of the rows."""
        own = own_classes(self.run)
        return {"kind": "pretraining", "own_classes": own, "rows": dataclasses.asdict(self.rows.manifest)}

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Figures of a batch for logs."""
        return batch_statistics(batch)

    def flops(self, batch: Batch) -> float:
        """Operations of one step over these rows."""
        return self.objective.flops(self.run.encoder, *batch_sizes(batch))

    def selection_metric(self, values: Mapping[str, float]) -> float | None:
        """Returns the held-out loss."""
        return values.get("loss")

    def initial_weights(self) -> InitialWeights | Branch | None:
        """Implements `training.loop.Session.initial_weights`; of a decay branch, the checkpoint that it continues."""
        if is_branch(self.run):
            return open_branch(self.run, {**describe(self.run), **self.identity()})
        if not self.run.init_from:
            return None
        model, encoder = load_model(self.run.data.local_copy(self.run.init_from)), self.run.encoder
        params, objective = self.abstract.params, self.objective
        return start_from(model, encoder, self.vocabulary, params, self.run.seed, objective=objective)

    @property
    def checks(self) -> tuple[ShardCheck, ...]:
        """Comparisons of the shards of all rows with their checksums."""
        return self.rows.checks + (self.validation.checks if self.validation is not None else ())

    def check_data(self, seconds: float = 0.0) -> None:
        """Implements `training.loop.Session.check_data`."""
        until = time.monotonic() + seconds
        with ending_the_run():
            for check in self.checks:
                check.raise_damage(max(0.0, until - time.monotonic()) if seconds else 0.0)

    def feed(self, start: int) -> Iterator[Batch]:
        """This process's rows of batch `start`, `start + 1`, ..."""
        return self._open_feed(self.run.data.feed, self.rows, start)

    def open_step(self, start: int) -> Any:
        """Returns the step; in a batch-size warm-up compiled for every size from step `start` on, so that no later step waits."""
        jitted, run, stages = super().open_step(start), self.run, self.spec.warmup
        if not stages:
            return jitted
        facts, sharding, compiled = HostShare(self.rows, self.spec).facts, row_sharding(self.mesh), {}
        for stage, end in zip(stages, [*(each.begin for each in stages[1:]), run.steps], strict=True):
            if start < end and stage.begin < run.steps:
                shapes = batch_spec(stage.rows, self.rows.length, facts.slots, facts.pairs)
                batch = {n: jax.ShapeDtypeStruct(s, dtype, sharding=sharding) for n, (s, dtype) in shapes.items()}
                compiled[stage.rows] = jitted.lower(self.abstract, batch).compile()
        return lambda state, batch: compiled[len(batch["row_B"])](state, batch, jitted.seed)

    def _open_feed(self, kind: Kind, rows: AnyRows, start: int = 0, held_out: bool = False) -> Iterator[Batch]:
        host, hosts = jax.process_index(), jax.process_count()
        return open_feed(kind, rows, self.spec, start, host=host, hosts=hosts, held_out=held_out)

    def batch_rows(self, number: int) -> list[int]:
        """Indices of the rows of a global batch, of all processes; in a mixture they count through all folders."""
        return HostShare(self.rows, self.spec).global_rows(number)[0].tolist()

    def held_out_feed(self) -> Iterator[Batch]:
        """Every held-out row once, with the masks of epoch 0."""
        assert self.validation is not None
        return self._open_feed("numpy", self.validation, held_out=True)

    def evaluator(self) -> Any:
        """Builds `training.loop.Evaluate`: held-out losses and accuracies, and their weighted sum as "loss"; {} without rows."""
        step, weights = self.builder.eval_step(), self.objective.loss_weights()

        def evaluate(params: Any, between: Callable[[], None]) -> dict[str, float]:
            if self.validation is None:
                return {}
            sums: dict[str, Mean] = {}
            for number, rows in enumerate(self.held_out_feed()):
                if self.run.cadence.eval_batches and number >= self.run.cadence.eval_batches:
                    break
                between()
                means = step(params, to_global(rows, self.mesh))
                sums = {name: sums[name].merge(mean) if sums else mean for name, mean in means.items()}
            values = {name: Mean(*mean).value() for name, mean in jax.device_get(sums).items()}
            return {**values, "loss": sum(weight * values[name] for name, weight in weights.items())}

        return evaluate

    def probes(self, weights: Any) -> dict[str, float]:
        """Implements `training.loop.Session.probes` by `suite.during`."""
        encoder = self.run.encoder.off_its_devices()
        params = canonical(jax.tree.map(np.asarray, jax.device_get(weights)))
        model = Model(encoder, params, self.vocabulary, pathlib.Path("this run"), trained=self.objective)
        return probe_scores(model, self.run.cadence.probe_data)

    def _guesses(self, params: Any, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Most probable tokens of every head for a batch of any size, [B, K]."""

        def predict(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            cast = jax.tree.map(lambda leaf: leaf.astype(self.run.compute_dtype), params)
            return self.objective.predict(nnx.merge(self.builder.structure, cast), batch)

        return jax.device_get(jax.jit(predict, out_shardings=replicated(self.mesh))(params, batch))

    def dry_run_lines(self) -> list[str]:
        """Describes the plan of the run, its step compiled, and a masked example."""
        run, rows = self.run, self.rows
        batch = next(iter(self.feed(run.batch_stages[-1].begin if run.batch_stages else 0)))
        slots = slots_needed(rows.manifest, self.spec.masking.most, self.spec.pairing.parts)
        flops = self.objective.flops_per_row(run.encoder, rows.length, slots)
        data = [
            f"{self._rows_line}; {slots} slots a row",
            f"FLOPs       {flops / 1e9:.2f} GFLOP a row, {flops * run.batch_size / 1e12:.3f} TFLOP a step"
            f" (forward and backward){', of all rows' * bool(run.batch_stages)}",
        ]
        plan = plan_lines(self, to_global(batch, self.mesh), data, self._epochs)
        return [*plan, *self.messages, "", f"example     {masked_text(batch, 0, self.vocabulary)}"]

    def summary_lines(self, outcome: Outcome, workdir: str) -> list[str]:
        """Compares held-out losses with those of a model that knows nothing, fills one span in, and says what to do next."""
        lines = [f"finished: {outcome.step:,} steps"]
        if missing := sum(check.missing for check in self.checks):
            lines.append(
                f"checksums of {missing:,} shards are not compared yet: the next run on this machine resumes it"
            )
        if self.validation is None:
            lines.append("no validation rows, so nothing to measure: prepare with --holdout or --validation")
            return [*lines, *self._next(workdir, None)]
        baselines = self.objective.baseline_losses(self.validation.manifest.unigram_entropy)
        for name, (loss, what) in baselines.items():
            value = outcome.held_out[name]
            lines.append(
                f"held-out {name.split('/')[0]} loss {value:.4f} nats, {what} {loss:.4f}:"
                f" {abs(loss - value):.4f} {'below' if value < loss else 'ABOVE'} it"
            )
        sentence = None
        # parameters of several processes are not all on this one
        if jax.process_count() == 1:
            whole: Any = next(iter(self.held_out_feed()))
            batch: Any = {name: value[:8] for name, value in whole.items()}
            guesses = self._guesses(outcome.state.weights, batch)
            given = self.spec.masking.at(None).replacement
            replaced = given.mask + given.random > 0
            rows = range(len(batch["row_B"]) if guesses else 0)
            examples = (filled_text(batch, row, guesses, self.vocabulary, replaced) for row in rows)
            lines += ["", *next((example for example in examples if example), [])]
            phrases = (hidden_phrase(batch, row, self.vocabulary, replaced) for row in rows)
            sentence = next(filter(None, phrases), None)
        return [*lines, *self._next(workdir, sentence)]

    def _next(self, workdir: str, sentence: tuple[str, str] | None) -> list[str]:
        docs = self.rows.manifest.source.startswith(INSTALLED_DOCS)
        return pretrained_commands(workdir, sentence, bool(self.objective.fill_heads), docs, self.run.encoder.positions)


def _find_rows(data: Data) -> tuple[AnyRows | None, AnyRows | None, list[str]]:
    """Opens folders written by prepare: (training rows, validation rows or None, problems); several are mixed."""
    train, held_out, problems = [], [], []
    if not any(data.rows):
        problems.append("data.rows is not set: give --rows FOLDER, written by `python -m spanjax.prepare`")
    for folder in filter(None, data.rows):
        try:
            path = local_rows(folder, data.files())
            if not (path / "train").is_dir():
                train.append(open_rows(path))
                continue
            train.append(open_rows(path / "train"))
            if (path / "validation").is_dir():
                held_out.append(open_rows(path / "validation", train[-1].vocabulary))
        except (ValueError, OSError) as error:
            problems.append(f"data.rows {folder}: {error}")
    stages = [collect(problems, stage_of, text) for text in data.stages]
    if data.stages and len(data.rows) < 2:
        problems.append("data.stages is for a mixture: give several folders as --rows")
    if data.weights and len(data.weights) != len(data.rows) and not (stages and len(data.weights) < len(data.rows)):
        problems.append(f"data.weights has {len(data.weights)} values for {len(data.rows)} folders: give one each")
    if problems:
        return None, None, problems
    try:
        mixed = MixedRows(train, data.weights, stages, data.temperature) if len(train) > 1 else train[0]
        if not held_out:
            return mixed, None, []
        # every held-out row is read once, so the weights of the mixture do not apply to them
        return mixed, MixedRows(held_out) if len(held_out) > 1 else held_out[0], []
    except ValueError as error:
        return None, None, [f"data.rows: {error}"]


def _row_problems(run: Run, rows: AnyRows, validation: AnyRows | None) -> list[str]:
    found = []
    size, folders = rows.vocabulary.size, ", ".join(run.data.rows)
    if run.encoder.vocab_size not in (0, size):
        found.append(
            f"encoder.vocab_size is {run.encoder.vocab_size:,} but the rows in {folders} have a vocabulary of {size:,}:"
            " set it to 0, or prepare rows with the right vocabulary"
        )
    if rows.length > run.encoder.positions:
        found.append(
            f"rows of {rows.length} tokens need encoder.positions of at least {rows.length}, got {run.encoder.positions}"
        )
    if not len(rows):
        found.append(f"data.rows {folders} holds no rows: prepare a larger text")
    if validation is not None and validation.length != rows.length:
        found.append(
            f"validation rows have length {validation.length}, training rows {rows.length}: prepare both alike"
        )
    if validation is not None and not len(validation):
        found.append(f"{folders}: validation holds no rows: hold out more of the text")
    return found + _feed_problems(run, rows, validation)


def _feed_problems(run: Run, rows: AnyRows, validation: AnyRows | None) -> list[str]:
    """Returns the problems that the feeds have with these rows: order, tags, sizes."""
    assert isinstance(run.objective, Pretraining)
    if found := run.objective.order_problems(run.data.order):
        return found
    spec = feed_spec(run)
    for some, held_out in ((rows, False), (validation, True)):
        try:
            if some is not None and len(some):
                HostShare(some, spec, held_out=held_out)
        except ValueError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def _with_sizes(
    run: Run, named: Collection[str], stored: EncoderConfig | None, family: str
) -> tuple[Run, str, list[str], list[str]]:
    """Returns the run with the sizes of the weights that it starts from, their family, notes, and problems."""
    if not run.init_from or (is_branch(run) and stored is None):  # `open_branch` reports a run that cannot be read
        return run, family, [], []
    if run.init_from.startswith(RANDOM):
        return (
            run,
            family,
            [],
            [f"--init-from {run.init_from} is of tasks: pretraining samples weights without --init-from"],
        )
    try:
        # a run that resumes needs the weights no more: they may be gone
        model = None if stored else load_model(run.data.local_copy(run.init_from))
    except ValueError as error:
        return run, family, [], [str(error)]
    weights, family = (model.encoder, model.model_type) if model else (stored, family)
    assert weights is not None
    encoder, notes, problems = with_sizes_of(weights, run.encoder, named)
    assert isinstance(run.objective, Pretraining)
    # a table of types that the weights lack would be sampled, read by nothing, and keep ModernBERT from being written back
    if encoder.types and not weights.types and run.objective.pairing.types < 2 and "encoder/types" not in named:
        notes.append(
            f"the weights have no token types, and the pairing needs none: encoder.types 0 (not {encoder.types})"
        )
        encoder = dataclasses.replace(encoder, types=0)
    # against its own checkpoint the work directory compares all settings
    problems = [] if stored else [f"--init-from {run.init_from}: {problem}" for problem in problems]
    notes = [f"init-from {run.init_from}: {note}" for note in notes]
    return dataclasses.replace(run, encoder=encoder), family, notes, problems


def open_pretraining_session(
    run: Run, named: Collection[str] = (), stored: EncoderConfig | None = None, family: str = ""
) -> PretrainingSession:
    """Opens the rows and builds the mesh and every function. Raises one ValueError that lists all problems.

    Sizes of the encoder are those of the weights of `init_from`, or `stored`, those of the run's own checkpoint if it resumes;
    `family` is then what its run.json has under `MODEL_TYPE`.
    Settings that the command line names (`named`) must agree with the weights.
    """
    run, family, notes, problems = _with_sizes(with_defaults(run), named, stored, family)
    problems += run.problems() + probe_problems(run.cadence)
    rows, validation, row_problems = _find_rows(run.data)
    problems += row_problems
    mesh, mesh_problems = open_mesh(run)
    problems += mesh_problems
    # invalid settings would fail inside of these checks, with messages that help nobody
    if rows is not None and mesh is not None and not problems:
        problems += _row_problems(run, rows, validation)
        try:
            local_backend(run, mesh, rows.length, attention_backend(run, mesh, rows.length)[0])
        except ValueError as error:
            problems.append(str(error))
    raise_problems(problems)
    assert rows is not None and mesh is not None
    encoder = dataclasses.replace(run.encoder, vocab_size=rows.vocabulary.size)
    assert isinstance(run.objective, Pretraining)
    chosen: Any = run.objective.order_of(run.data.order)
    data = dataclasses.replace(run.data, order=chosen)
    session = assemble(dataclasses.replace(run, encoder=encoder, data=data), rows, validation, mesh)
    return dataclasses.replace(session, messages=tuple(map(visible_name, notes)), model_type=family)


def assemble(run: Run, rows: AnyRows, validation: AnyRows | None, mesh: Mesh) -> PretrainingSession:
    """Builds the session of a pretraining run whose settings are valid."""
    run = with_defaults(run)
    if run.encoder.attention == "cudnn_packed":
        # a list by the number of blocks; one more for the padding. Too little room would give wrong results unnoticed
        most = max(len(each.manifest.text_tokens_by_blocks) for each in (rows, validation) if each is not None)
        room = max(most, run.encoder.attention_blocks)
        run = dataclasses.replace(run, encoder=dataclasses.replace(run.encoder, attention_blocks=room))
    built = build(run, rows.length, mesh)
    return PretrainingSession(**vars(built), rows=rows, validation=validation, spec=feed_spec(run))


def feed_spec(run: Run) -> FeedSpec:
    """Returns the settings of the feed of a pretraining run."""
    assert isinstance(run.objective, Pretraining)
    spec = run.objective.feed_spec(seed=run.seed, batch_size=run.batch_size, order=run.data.order)
    return dataclasses.replace(spec, warmup=run.batch_stages)
