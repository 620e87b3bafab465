"""Inference with a fine-tuned model: files or records in, predictions out.

from spanjax.inference.task_model import open_model

model = open_model("runs/sst2")
next(model.answers([{"sentence": "A fine film."}]))["prediction"]
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from spanjax.cli import Progress
from spanjax.data.vocab.base import Vocabulary
from spanjax.experiment.build import attention_backend
from spanjax.experiment.finetune import EncodedExamples, Predicted, predictor
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, module_params
from spanjax.run import Run
from spanjax.run_format import inferred_settings, stored_task
from spanjax.sharding import MeshConfig, make_mesh, map_named, named_leaves, parameter_shardings, placed, row_shards
from spanjax.tasks.base import ANY_TASK, Task
from spanjax.tasks.included import score_names, tasks_named
from spanjax.training.state import abstract_module
from spanjax.training.step import StepBuilder

CHUNK = 512  # records that are read and answered in one go


@dataclasses.dataclass(frozen=True)
class TaskModel:
    """A fine-tuned model with its task, on the devices of this process."""

    task: Task
    vocabulary: Vocabulary
    model: Model
    params: Any
    mesh: Mesh
    builder: StepBuilder
    batch_size: int
    inferred_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the task inferred from the scores of its dev examples, see `Task.inferred_settings`."""

    @functools.cached_property
    def _predictor(self) -> Callable[..., Predicted]:
        """Predictor, kept with its compiled programs from one call to the next."""
        return predictor(self.builder, self.task, self.mesh, self.batch_size)

    def predict(self, examples: Iterable[Any], progress: Progress | None = None) -> Predicted:
        """Predicts examples, as `Task.read` or `Task.example` return them; `progress` displays the batches."""
        given = EncodedExamples.of(self.task, list(examples), self.vocabulary)
        if progress is None:
            return self._predictor(self.params, given)
        progress.name, progress.unit = "predicting", "batches"
        begun = itertools.count()

        def between() -> None:
            progress.done = next(begun)

        def counted(batches: int) -> None:
            progress.total = batches

        return self._predictor(self.params, given, between, counted)

    def answers(self, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the answer to each record, in order and as they come; {"error": ...} for one that cannot be used."""
        waiting: list[tuple[Any, str]] = []
        for number, record in enumerate(records):
            waiting.append(self.task.example(record, number))
            if len(waiting) == CHUNK:
                yield from self._answered(waiting)
                waiting = []
        yield from self._answered(waiting)

    def _answered(self, waiting: list[tuple[Any, str]]) -> Iterator[dict[str, Any]]:
        examples = [example for example, problem in waiting if not problem]
        answers = iter(())
        if examples:
            given = EncodedExamples.of(self.task, examples, self.vocabulary)
            found = self._predictor(self.params, given)
            outputs: list[list[Any]] = [[] for _ in examples]
            for row, output in zip(given.rows, found.outputs, strict=True):
                outputs[row.example].append(output)
            answers = map(self.task.prediction_json, examples, found.predictions, outputs)
        for _, problem in waiting:
            yield {"error": problem} if problem else next(answers)


def open_model(
    path: str | pathlib.Path | Model,
    batch_size: int | None = None,
    *,
    predict_command: str = ANY_TASK,
    score_name: str = "",
    **settings: Any,
) -> TaskModel:
    """Opens the best checkpoint of a fine-tuning run, a checkpoint, a fine-tuned model in transformers' files, or loaded weights.

    `batch_size` is the number of rows in a batch, by default the task's. Only a model whose task has the `predict_command` and
    the `score_name` is accepted; ANY_TASK and "" accept any. The score name stands for settings, see `Task.score_names`.
    Settings of its task are those given here, else those inferred from the dev scores, else those of the training.

    ValueError if it is no fine-tuned model, one of another task, or its parameters are not those of its task.
    """
    model = path if isinstance(path, Model) else load_model(path)
    path = model.source if isinstance(path, Model) else path
    described = model.task
    if described is None:
        raise ValueError(f"{path} is not a fine-tuned model: give the folder of a run of a task (configs/finetune)")
    kind = type(stored_task(described))
    wanted = (
        tasks_named(predict_command=predict_command) if predict_command not in (ANY_TASK, kind.predict_command) else ""
    )
    if score_name and score_name not in kind.score_names:
        wanted = tasks_named(score_name)
        if not wanted:
            known = ", ".join(dict.fromkeys([*kind.score_names, *score_names()]))
            raise ValueError(f"--task is {score_name}: expected one of {known}")
    if wanted:
        raise ValueError(f"{path} was trained for {kind.__name__}: expected a model of {wanted}")
    settings = {**kind.score_names.get(score_name, {}), **settings}
    if model.vocabulary is None:
        raise ValueError(f"{path} has no vocabulary: take another checkpoint")
    chosen = {name: value for name, value in inferred_settings(described, model.scores).items() if name not in settings}
    task, mesh = stored_task(described, **chosen, **settings), make_mesh(MeshConfig())
    if task.length > model.encoder.positions:
        raise ValueError(f"length {task.length}: the encoder has {model.encoder.positions} positions")
    shards = row_shards(mesh)
    run = Run(objective=task, encoder=model.encoder)
    backend, _ = attention_backend(run, mesh, task.length)
    encoder = dataclasses.replace(model.encoder, attention="xla" if backend not in ("xla", "xla_chunked") else backend)
    structure, abstract = abstract_module(task, encoder)
    found = named_leaves(module_params(model, abstract))
    params = map_named(lambda name, sharding: placed(found[name], sharding), parameter_shardings(abstract, mesh))
    builder = StepBuilder(
        objective=task,
        structure=structure,
        abstract_params=abstract,
        mesh=mesh,
        compute_dtype=jax.numpy.float32,
        microbatches=1,
        seed=0,
    )
    # a batch must split evenly over the devices: round up
    rows = -(-(batch_size or task.rows_together) // shards) * shards
    return TaskModel(task, model.vocabulary, model, params, mesh, builder, rows, chosen)
