"""Functions and classes for Python programs and notebooks, public as `spanjax.load`, `spanjax.load_task` and `spanjax.fit`.

    import spanjax

    model = spanjax.load("runs/mine")
    model.encode(["a text", "another"])
    spanjax.load_task("runs/sst2").predict(sentence="A fine film.")

A front end next to the command lines, which calls what they call. ValueError describes wrong input.
"""

import functools
import os
import pathlib
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

from spanjax import train
from spanjax.bounds import raise_problems, type_problems
from spanjax.cli import STOPPED
from spanjax.convert.export import exportable, save
from spanjax.convert.options import GraphTask, ToOnnx, ToTorch
from spanjax.inference.encode import TextEncoder
from spanjax.inference.fill_mask import Filler
from spanjax.inference.task_model import TaskModel, open_model
from spanjax.json_files import read_json
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model
from spanjax.run import Run
from spanjax.run_format import load_code
from spanjax.storage.remote_outputs import on_local_files
from spanjax.training.state import count_parameters

StrPath = str | os.PathLike[str]


class _Loaded:
    """Common parts of loaded models."""

    def __init__(self, weights: Model):
        self.weights = weights
        """Weights with their origin. Not part of the stable interface."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages on parts that reading skipped, renamed or assumed."""
        return self.weights.notes

    @property
    def parameters(self) -> int:
        """Number of parameters, those of heads included."""
        return count_parameters(self.weights.params, self.weights.encoder)

    def save_torch(
        self,
        folder: StrPath,
        *,
        format: Literal["hf", "hf-bin", "fairseq"] = "hf",
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        name: str = "",
        license: str = "",
        language: str = "",
        overwrite: bool = False,
        sentence_transformers: bool = False,
    ) -> None:
        """Writes the folder that `python -m spanjax.convert to-torch` writes, with the options of the command.

        ValueError, and nothing is written, if the folder exists (`overwrite` replaces one that spanjax wrote) or the format has
        no place for the model.
        """
        source = os.fspath(self.weights.source)
        # options that only the command has keep their defaults
        options = ToTorch(
            source,
            os.fspath(folder),
            format,
            dtype,
            overwrite=overwrite,
            name=name,
            license=license,
            language=language,
            sentence_transformers=sentence_transformers,
        )
        on_local_files(lambda local: save(exportable(self.weights), local), options, (), ["output"])

    def save_onnx(
        self,
        folder: StrPath,
        *,
        task: GraphTask = "auto",
        sbo: bool = False,
        int8: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Writes the folder that `python -m spanjax.convert to-onnx` writes, with the options of the command.

        It needs the extra `onnx`. ValueError, and nothing is written, if the folder exists (`overwrite` replaces one that spanjax
        wrote), the model has no head for the task, or there is no graph for its encoder.
        """
        from spanjax.convert import onnx_export  # imports onnx and onnxruntime, which the core does without

        options = ToOnnx(os.fspath(self.weights.source), os.fspath(folder), task, sbo, int8, False, overwrite)
        on_local_files(
            lambda local: onnx_export.save(onnx_export.of_task(self.weights, task), local), options, (), ["output"]
        )

    def _described(self, *more: str) -> str:
        weights, encoder = self.weights, self.weights.encoder
        vocabulary = weights.vocabulary
        parts = [
            repr(os.fspath(weights.source)),
            *([f"step {weights.step:,}"] if weights.step else []),
            f"{weights.family.model_type} of {encoder.layers} layers x {encoder.hidden_size}",
            f"{self.parameters:,} parameters",
            f"{vocabulary.size:,} {vocabulary.kind} tokens" if vocabulary else "no vocabulary",
            *more,
        ]
        return f"<{type(self).__name__} {', '.join(parts)}>"


class TextModel(_Loaded):
    """An encoder with its vocabulary and its heads, as `spanjax.load` returns it."""

    def __repr__(self) -> str:
        heads = sorted(self.weights.parts - {"encoder"})
        return self._described(f"heads {' + '.join(heads)}" if heads else "no heads")

    @property
    def hidden_size(self) -> int:
        """D, the width of vectors."""
        return self.weights.encoder.hidden_size

    # The next three are properties, so that the methods' overloads are declared once. Encoder and heads go to the device at
    # first use and keep their compiled programs.
    @property
    def encode(self):
        """Vectors of texts, pooled, of tokens or of spans: `TextEncoder.encode`."""
        return self._encoder.encode

    @property
    def fill_mask(self):
        """The most probable tokens at every [MASK] of a text or of a list of texts: `Filler.fill_mask`."""
        return self._filler.fill_mask

    @property
    def spans(self):
        """Runs of [MASK] filled in by every head and by all of them: `Filler.spans`."""
        return self._filler.spans

    @functools.cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder(self.weights)

    @functools.cached_property
    def _filler(self) -> Filler:
        return Filler(self.weights)


class TaskPredictor(_Loaded):
    """A fine-tuned model with its task, as `spanjax.load_task` returns it."""

    def __init__(self, model: TaskModel):
        super().__init__(model.model)
        self._model = model

    def __repr__(self) -> str:
        scores = (f"{name} {value:.4g}" for name, value in self.weights.scores.items())
        return self._described(f"task {type(self._model.task).__name__}", *scores)

    @overload
    def predict(self, records: Mapping[str, Any], /) -> dict[str, Any]: ...

    @overload
    def predict(self, records: Iterable[Mapping[str, Any]], /) -> list[dict[str, Any]]: ...

    @overload
    def predict(self, /, **fields: Any) -> dict[str, Any]: ...

    def predict(
        self, records: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None, /, **fields: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Answers one record, given by its fields, or a list of records: a dict with `prediction` and more for each.

        Fields and answers are those of the files of `python -m spanjax.predict`. As there, a record of a list that cannot be used
        has {"error": reason}; ValueError if that is the only record, or all are such.
        """
        if (records is None) == (not fields):
            raise ValueError("give a list of records, or the fields of one record by their names, and not both")
        single = records is None or isinstance(records, Mapping)
        given: list[Any] = [records or fields] if single else list(records or ())
        wrong = [f"record {number} is {repr(each)[:60]}: expected a dict of fields" for number, each in enumerate(given)
                 if not isinstance(each, Mapping)]  # fmt: skip
        raise_problems(wrong[:8])
        answers = list(self._model.answers(given))
        problems = [answer["error"] for answer in answers if "error" in answer]
        if problems and len(problems) == len(answers):
            raise_problems(dict.fromkeys(problems[:8]))
        return answers[0] if single else answers


class FitResult(NamedTuple):
    """A finished run."""

    workdir: pathlib.Path
    """Folder of checkpoints and metrics, for `spanjax.load` or `spanjax.load_task`."""
    step: int
    """Updates done."""
    metrics: dict[str, float]
    """Metrics of the last evaluation, by the names of metrics.jsonl; {} without one."""


def load(path: StrPath, *, code: Sequence[str] = ()) -> TextModel:
    """Loads a run directory (its newest whole checkpoint; of a fine-tuned run the best), a checkpoint, or PyTorch weights.

    PyTorch weights are a folder as transformers saves it, or a file. `code` are files or modules with classes of your own that
    the run has; they are run. ValueError describes a fault of the path or its files.
    """
    load_code(code)
    return TextModel(load_model(os.fspath(path)))


def load_task(
    path: StrPath, batch_size: int | None = None, *, code: Sequence[str] = (), **settings: Any
) -> TaskPredictor:
    """Loads a fine-tuned model: the best checkpoint of a run, one checkpoint, or a fine-tuned model of transformers.

    `batch_size` is the number of rows in a batch, by default the task's; `code` as in `load`; `settings` replace those of its
    task. ValueError if it is no fine-tuned model.
    """
    load_code(code)
    return TaskPredictor(open_model(os.fspath(path), batch_size, **settings))


def fit(run: Run, workdir: StrPath, *, compilation_cache: bool = True) -> FitResult:
    """Trains a run, or resumes the one in `workdir`, as `python -m spanjax.train` does, and returns its last evaluation.

    ValueError lists wrong settings; damaged checkpoints, locked folders and numbers that are not finite raise errors of their
    own. A stop request (Ctrl-C, SIGTERM) saves after the current step and raises SystemExit(75), the exit code of the command:
    the same call resumes. `compilation_cache` keeps compiled programs in the user's cache folder.
    """
    if not isinstance(run, Run):
        raise ValueError(f"run is {repr(run)[:60]}: expected a spanjax.Run")
    raise_problems(type_problems(run, "run."))
    if not os.fspath(workdir):
        raise ValueError("workdir is empty: give a folder for checkpoints and metrics")
    command = types.SimpleNamespace(
        run=run, workdir=os.fspath(workdir), dry_run=False, compilation_cache=compilation_cache
    )
    # without `ends_process` a Ctrl-C in a notebook does not end its kernel
    if train.train(command, ends_process=False) == STOPPED:
        raise SystemExit(STOPPED)
    folder = pathlib.Path(workdir)
    summary = read_json(folder / "summary.json")
    return FitResult(folder, summary["step"], summary["eval"])
