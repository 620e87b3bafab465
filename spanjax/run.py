"""A run is one frozen dataclass; a file under `configs/` defines it as RUN and the command line overrides single fields."""

import argparse
import dataclasses
import sys
import traceback
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import tyro

from spanjax.bounds import (
    AtLeast0,
    AtLeast1,
    BatchSize,
    Bounds,
    Derived1,
    collect,
    raise_problems,
    range_problems,
    type_problems,
)
from spanjax.data.feed.warmup import BatchStage, rows_before, warmup_problems, warmup_stage
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.base import Objective
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run_format import describe, execute, flat
from spanjax.sharding import MeshConfig
from spanjax.storage.cache import Cache, user_files
from spanjax.storage.inputs import local_copy
from spanjax.storage.objects import is_remote
from spanjax.storage.shipped import find_config
from spanjax.tasks.base import Task
from spanjax.training.loop import AUTO, Cadence
from spanjax.training.nonfinite import Guard
from spanjax.training.optimizers import WARMUP_STEPS, AdamW, Optimizer
from spanjax.training.profiler import Profile
from spanjax.training.trackers import Tracking

STORES = ("data.rows", "init_from", "objective.train", "objective.dev", "objective.vocabulary")
"""Settings that may be addresses of object stores."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Location of the rows and how to read them."""

    rows: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--rows",), metavar="FOLDER [...]")] = ()
    """Folders written by `python -m spanjax.prepare`, holding train/ and, for evaluation, validation/. Several are mixed. Those
    at gs:// or s3:// addresses are copied to this machine first."""
    weights: Annotated[tuple[float, ...], Bounds(0, above=True)] = ()
    """Share of every folder in a mixture, in any unit; by default in proportion to its rows."""
    temperature: Annotated[float, Bounds(1)] = 1.0
    """Without weights: a folder counts as its rows to the power of 1 / temperature; above 1 small ones are read more often."""
    stages: Annotated[tuple[str, ...], tyro.conf.arg(metavar="STEP:WEIGHT,WEIGHT,... [...]")] = ()
    """Other weights from a step on, for every folder in order; those without one are not read. A run that resumes may add stages
    that are still to come, and folders for them behind its own."""
    feed: Annotated[Literal["tf", "numpy"], tyro.conf.arg(aliases=("--feed",))] = "tf"
    """tf: a seqio task in tf.data; numpy: the same batches, bit for bit, without TensorFlow."""
    order: Literal["auto", "uniform", "by_length", "streams", "both_ways"] = "auto"
    """uniform: a new permutation of the rows every epoch; by_length: fixed batches of equal length, as released (D11). streams,
    both_ways: consecutive rows at every batch index, which XLNet's memory needs. auto: that of the objective, else uniform."""
    cache: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = ""
    """Folder of this machine for copies of rows, weights and examples in buckets; by default $XDG_CACHE_HOME/spanjax/storage."""
    cache_gb: Annotated[float, Bounds(0)] = 0.0
    """Most GB of copies in that folder, the least recently used are removed; 0 sets no limit."""

    def files(self) -> Cache:
        """Returns the cache for copies of files in buckets."""
        return user_files(self.cache, self.cache_gb)

    def local_copy(self, path: str) -> str:
        """Returns a local path unchanged, and the path of a copy of the files at an address."""
        return local_copy(path, self.files()) if is_remote(path) else path


@dataclasses.dataclass(frozen=True)
class Run:
    """All settings that decide the result of a training."""

    objective: Objective = dataclasses.field(default_factory=MaskedPrediction)
    """Objective of the training: masking policy and loss terms."""
    encoder: EncoderConfig = EncoderConfig()
    """Size and constants of the encoder."""
    data: Data = Data()
    """Location of the rows and how to read them."""
    optimizer: Optimizer = AdamW()
    """Learning rate, decay, clipping."""
    init_from: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = ""
    """Weights to start from: a run directory, a checkpoint, or a folder of PyTorch weights; empty samples all of them. Of a task
    also random:FOLDER, sizes and vocabulary of those weights, and weights that are sampled by `seed`."""
    mesh: MeshConfig = MeshConfig()
    """Shape of the device mesh."""
    cadence: Cadence = Cadence()
    """Intervals of logs, evaluations and checkpoints."""
    guard: Guard = Guard()
    """Non-finite handling and stall detection."""
    profile: Profile = Profile()
    """Steps that jax.profiler records."""
    tracking: Tracking = Tracking()
    """Weights & Biases and MLflow."""
    steps: Derived1 = AUTO
    """Number of updates. -1: 100,000 of pretraining; of a task, as many as objective.epochs takes."""
    batch_size: BatchSize = 256
    """Rows of a global batch, over all devices and hosts."""
    batch_warmup: Annotated[tuple[str, ...], tyro.conf.arg(metavar="STEP:ROWS [...]")] = ()
    """Smaller updates first, in pretraining: the rows of an update from a step on, 0:32 80:64 160:256 say. Each number divides
    the next, and the last is batch_size. An update takes the next part of a batch: order and masks stay those of batch_size."""
    microbatches: AtLeast1 = 1
    """Parts into which each device's rows are split to save memory; the result is the same."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and of the gathered parameters; master weights and moments are always float32."""
    seed: AtLeast0 = 0
    """The one seed of weights, order, masks and dropout."""

    @property
    def batch_stages(self) -> tuple[BatchStage, ...]:
        """Stages of `batch_warmup`; ValueError for one that is none."""
        return tuple(warmup_stage(each) for each in self.batch_warmup)

    @property
    def batches(self) -> float:
        """Batches of `batch_size` rows whose rows the run reads: its steps, less where a warm-up takes parts."""
        return rows_before(self.steps, self.batch_size, self.batch_stages) / self.batch_size

    def problems(self) -> list[str]:
        """Returns a message for every problem of these settings; empty if there is none."""
        found = range_problems(self) + self.encoder.problems() + self.objective.problems(self.encoder)
        if self.microbatches > 1 and self.objective.whole_batch:
            found.append(
                f"microbatches is {self.microbatches}: {type(self.objective).__name__} compares each row with all of the batch,"
                " and a microbatch would have fewer; set microbatches 1 (--encoder.remat full saves memory too)"
            )
        stages: list[BatchStage | None] = [collect(found, warmup_stage, each) for each in self.batch_warmup]
        found += warmup_problems(self.batch_size, [stage for stage in stages if stage]) if all(stages) else []
        if stages and isinstance(self.objective, Task):
            found.append(
                f"batch_warmup {' '.join(self.batch_warmup)}: only pretraining has it, as the batches of a task have many lengths"
                " already; leave it out"
            )
        found += self.optimizer.problems() + self.optimizer.schedule_problems(self.steps)
        return list(dict.fromkeys([*found, *self.tracking.problems()]))


def with_defaults(run: Run, *, steps: int = 100_000, warmup_steps: int = WARMUP_STEPS, every: int = 1000) -> Run:
    """Returns the run with a number wherever its settings have AUTO; set values stay.

    `every` is the number of steps between evaluations, and between checkpoints.
    """
    given = run.cadence
    cadence = dataclasses.replace(
        given,
        eval_every=every if given.eval_every == AUTO else given.eval_every,
        checkpoint_every=every if given.checkpoint_every == AUTO else given.checkpoint_every,
    )
    optimizer = run.optimizer
    if optimizer.warmup_steps == AUTO:
        optimizer = dataclasses.replace(optimizer, warmup_steps=warmup_steps)
    return dataclasses.replace(
        run, steps=steps if run.steps == AUTO else run.steps, cadence=cadence, optimizer=optimizer
    )


def overridden(requested: Run, running: Run, named: Collection[str]) -> list[str]:
    """Lists requested settings that would not take effect, one line each; empty if all of them do.

    A setting counts as requested when its value is not the default of its class, or when the command line names it
    (`named`: names as in `flat`). AUTO, "auto" and a vocabulary size of 0 ask for a derived value.
    """
    wanted, got, defaults = (flat(describe(each)) for each in (requested, running, _defaults(requested)))
    found = []
    for name, value in wanted.items():
        derived = value in (AUTO, "auto") or (name.endswith("vocab_size") and value == 0)
        if derived or got.get(name, value) == value or (value == defaults.get(name) and name not in named):
            continue
        why = f"; the weights of {running.init_from} decide it" if name.startswith("encoder/") else ""
        found.append(
            f"{name.replace('/', '.')} is set to {value}, but {got[name]} would be used{why}: leave the setting out"
        )
    return found


def _defaults(value: Any) -> Any:
    """Returns the settings with each field at the default of its class, nested settings of the same classes as here."""
    changed = {}
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        if dataclasses.is_dataclass(own) and not isinstance(own, type):
            changed[field.name] = _defaults(own)
        elif field.default is not dataclasses.MISSING:
            changed[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            changed[field.name] = field.default_factory()
    return dataclasses.replace(value, **changed)


def load(path: str) -> Run:
    """Loads the RUN of a config file, or of a preset by its name.

    Raises ValueError if the file is missing, does not load or defines no Run.
    """
    file = find_config(path)
    if file.suffix != ".py":
        raise ValueError(
            f"--config {path} is no Python file: give one that defines RUN, or a preset such as spanbert_base"
        )
    try:
        module = execute(file)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        # the file is a program of the user, which may raise anything; the message names the line in it and not in a library
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(file)]
        where = f" (line {lines[-1]})" if lines else ""
        old = getattr(error, "name", None) or str(error).rpartition("unexpected keyword argument ")[2].strip("'")
        new = MOVED.get(old) or EncoderConfig.RENAMED.get(old)
        remedy = f"write {new} there" if new else "correct it"
        raise ValueError(f"--config {path} does not load: {type(error).__name__}: {error}{where}; {remedy}") from error
    run = getattr(module, "RUN", None)
    if not isinstance(run, Run):
        del sys.modules[module.__name__]
        raise ValueError(
            f"--config {path} defines no RUN of type spanjax.run.Run (found {type(run).__name__}):"
            " write `RUN = Run(...)`"
        )
    raise_problems(f"--config {path}: {problem}" for problem in type_problems(run, "RUN."))
    return run


MOVED: Mapping[str, str] = {
    "spanjax.data.masking": "spanjax.data.feed.masking",
    "spanjax.data.pairing": "spanjax.data.feed.pairing",
    "spanjax.data.replacement": "spanjax.data.feed.masking",
    "spanjax.data.stages": "spanjax.data.feed.masking",
    "spanjax.objectives.masked": "spanjax.objectives.masked_lm",
    "spanjax.objectives.permuted": "spanjax.objectives.xlnet",
    "spanjax.objectives.replaced": "spanjax.objectives.electra",
    "spanjax.objectives.terms": "spanjax.objectives.loss_terms",
    "spanjax.tasks.tables": "spanjax.data.sources.tables",
    "spanjax.training.optimizer": "spanjax.training.optimizers",
}
"""Modules that config files of 0.1 import -> the modules that hold their classes now."""
PRESETS: Mapping[str, Mapping[str, Any]] = {"parity": {"attention_dropout": 0.1}, "fast": {"attention_dropout": 0.0}}
"""Settings of the encoder by the name of a preset: attention dropout as in BERT and SpanBERT, or none, which fused attention
kernels need."""
Preset = Literal["", "parity", "fast"]


def named_run(arguments: list[str], start: Run | None = None) -> tuple[Run, str]:
    """Returns `start`, or the RUN of the --config file that a command line names, with its --preset, and the file's path.

    Without either, a default run and "". The command line rejects an unknown --preset later.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--preset", default="")
    found = parser.parse_known_args(arguments)[0]
    raise_problems(_renamed_flags(arguments))
    run = start or (load(found.config) if found.config else Run())
    encoder = dataclasses.replace(run.encoder, **PRESETS.get(found.preset, {}))
    return dataclasses.replace(run, encoder=encoder), found.config or ""


def _renamed_flags(arguments: list[str]) -> list[str]:
    """Lists the flags of version 0.1 on a command line that have another name now."""
    flags = {
        f"--encoder.{no}{old}": f"--encoder.{no}{new.replace('_', '-')}"
        for old, new in EncoderConfig.RENAMED.items()
        for no in ("", "no-")
    }
    words = (word.partition("=")[0] for word in arguments)
    return [f"{word} was renamed: write {flags[word]}" for word in words if word in flags]
