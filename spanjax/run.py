"""A run is one frozen dataclass; a file under `configs/` defines it as RUN and the command line overrides single fields."""

import argparse
import contextlib
import dataclasses
import difflib
import importlib.util
import itertools
import json
import pathlib
import sys
import traceback
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

import tyro

from spanjax.bounds import AtLeast0, AtLeast1, BatchSize, Bounds, Derived1, range_problems, type_problems
from spanjax.data.feed.masking import Replacement, TaggedSpans
from spanjax.json_files import read_json
from spanjax.nn.config import EncoderConfig
from spanjax.nn.coreference_parts import CoreferenceConfig
from spanjax.objectives.base import Objective
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.sharding import MeshConfig
from spanjax.storage.local import write_whole
from spanjax.storage.outputs import output_problem
from spanjax.tasks.stored import is_task, stored_task
from spanjax.training.loop import AUTO, Cadence
from spanjax.training.nonfinite import Guard
from spanjax.training.optimizers import WARMUP_STEPS, AdamW, Lamb, Muon, Optimizer
from spanjax.training.profiler import Profile
from spanjax.training.redaction import redacted
from spanjax.training.trackers.settings import Tracking


@dataclasses.dataclass(frozen=True)
class Data:
    """Location of the rows and how to read them."""

    rows: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--rows",))] = ()
    """Folders written by `python -m spanjax.prepare`, holding train/ and, for evaluation, validation/. Several are mixed."""
    weights: Annotated[tuple[float, ...], Bounds(0, above=True)] = ()
    """Share of every folder in a mixture, in any unit; by default in proportion to its rows."""
    feed: Annotated[Literal["tf", "numpy"], tyro.conf.arg(aliases=("--feed",))] = "tf"
    """tf: a seqio task in tf.data; numpy: the same batches, bit for bit, without TensorFlow."""
    order: Literal["auto", "uniform", "by_length", "streams", "both_ways"] = "auto"
    """uniform: a new permutation of the rows every epoch; by_length: fixed batches of equal length, as released (D11). streams,
    both_ways: consecutive rows at every batch index, which XLNet's memory needs. auto: that of the objective, else uniform."""


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
    init_from: str = ""
    """Weights to start from: a run directory, a checkpoint, or a folder of PyTorch weights; empty samples all of them."""
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
    microbatches: AtLeast1 = 1
    """Parts into which each device's rows are split to save memory; the result is the same."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and of the gathered parameters; master weights and moments are always float32."""
    seed: AtLeast0 = 0
    """The one seed of weights, order, masks and dropout."""

    def problems(self) -> list[str]:
        """Returns a message for every problem of these settings; empty if there is none."""
        found = range_problems(self) + self.encoder.problems() + self.objective.problems(self.encoder)
        return list(dict.fromkeys([*found, *self.optimizer.problems(), *self.tracking.problems()]))


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


ORDER_VERSION = "order_version"
"""Entry of run.json: the version of an order that an earlier spanjax defined otherwise; absent in files of version 1."""


# A run may resume with other values of these: they change speed and bookkeeping, not the result.
MAY_CHANGE = (
    *("mesh/", "microbatches", "cadence/", "guard/", "profile/", "tracking/", "data/feed", "data/rows"),
    *("encoder/unroll", "encoder/remat", "encoder/attention"),
    ORDER_VERSION,  # the run resumes in the new order, with a note: see `claim_workdir`
    "started_in",
    "objective/sentences",  # of the training examples, whose fingerprint is compared; version 0.1 did not store it
)


FIRST = ("demo", "small", "spanbert_base")  # configs that the message for a missing file suggests


def load(path: str) -> Run:
    """Loads the RUN of a config file. Raises ValueError if the file is missing, does not load or defines no Run."""
    file = pathlib.Path(path)
    if not file.is_file():
        near = [str(p) for p in sorted(pathlib.Path("configs").rglob("*.py"))]
        first = [each for each in near if pathlib.Path(each).stem in FIRST]
        close = difflib.get_close_matches(path, near, n=1) or first or near[:3]
        raise ValueError(f"--config {path}: no such file; did you mean {' or '.join(close)}?")
    if file.suffix != ".py":
        raise ValueError(
            f"--config {path} is no Python file: give one that defines RUN, such as configs/pretrain/demo.py"
        )
    try:
        module = _executed(file)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        # the file is a program of the user, which may raise anything; the message names the line in it and not in a library
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(file)]
        where = f" (line {lines[-1]})" if lines else ""
        moved = MOVED.get(getattr(error, "name", None) or "")
        remedy = f"write {moved} there" if moved else "correct it"
        raise ValueError(f"--config {path} does not load: {type(error).__name__}: {error}{where}; {remedy}") from error
    run = getattr(module, "RUN", None)
    if not isinstance(run, Run):
        del sys.modules[module.__name__]
        raise ValueError(
            f"--config {path} defines no RUN of type spanjax.run.Run (found {type(run).__name__}):"
            " write `RUN = Run(...)`"
        )
    if wrong := type_problems(run, "RUN."):
        raise ValueError("\n".join(f"--config {path}: {each}" for each in wrong))
    return run


def _executed(file: pathlib.Path) -> types.ModuleType:
    """Runs a config file as a module with a name of its own in `sys.modules`; a failing file leaves nothing behind."""
    # dataclasses and tyro resolve annotations through sys.modules, and two files of one stem, or one file loaded twice, must not
    # answer for each other's classes
    names = (f"spanjax_config_{file.stem}_{number}" for number in itertools.count(1))
    name = next(each for each in names if each not in sys.modules)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    root = next((str(p) for p in file.resolve().parents if (p / "configs").is_dir()), None)
    added = [root] if root and root not in sys.path else []
    sys.modules[name] = module
    sys.path += added  # `from configs... import RUN`: only while the file runs, so that it shadows nothing later
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        for each in added:
            sys.path.remove(each)
    return module


MOVED: Mapping[str, str] = {
    "spanjax.data.masking": "spanjax.data.feed.masking",
    "spanjax.data.pairing": "spanjax.data.feed.pairing",
    "spanjax.data.replacement": "spanjax.data.feed.masking",
    "spanjax.data.stages": "spanjax.data.feed.masking",
    "spanjax.objectives.masked": "spanjax.objectives.masked_lm",
    "spanjax.objectives.permuted": "spanjax.objectives.xlnet",
    "spanjax.objectives.replaced": "spanjax.objectives.electra",
    "spanjax.objectives.terms": "spanjax.objectives.loss_terms",
    "spanjax.training.optimizer": "spanjax.training.optimizers",
}
"""Modules that config files of 0.1 import -> the modules that hold their classes now."""
PRESETS: Mapping[str, Mapping[str, Any]] = {"parity": {"attention_dropout": 0.1}, "fast": {"attention_dropout": 0.0}}
"""Settings of the encoder by the name of a preset: attention dropout as in BERT and SpanBERT, or none, which fused attention
kernels need."""
Preset = Literal["", "parity", "fast"]


def named_run(arguments: list[str]) -> tuple[Run, str]:
    """Returns the RUN of the --config file that a command line names, with its --preset, and its path.

    Without --config, a default run and "". The command line rejects an unknown --preset later.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--preset", default="")
    found = parser.parse_known_args(arguments)[0]
    run = load(found.config) if found.config else Run()
    encoder = dataclasses.replace(run.encoder, **PRESETS.get(found.preset, {}))
    return dataclasses.replace(run, encoder=encoder), found.config or ""


def describe(value: Any) -> Any:
    """Describes a run as JSON: nested dicts, a class name under "class" wherever the type is a choice."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    return value


def own_classes(value: Any) -> dict[str, str]:
    """Classes of a run's settings that are not spanjax's -> the file that defines each: readers of a checkpoint need them."""
    if isinstance(value, tuple | list):
        return {name: file for item in value for name, file in own_classes(item).items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    kind = type(value)
    file = pathlib.Path(getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__).name
    own = {} if kind.__module__.partition(".")[0] == "spanjax" else {kind.__name__: file}
    return own | own_classes([getattr(value, field.name) for field in dataclasses.fields(value)])


def completed(described: dict[str, Any]) -> dict[str, Any]:
    """Returns a described run with defaults for settings that an older version does not name, at any depth: a setting that is
    added leaves earlier results unchanged.
    """
    task = described.get("objective") or {}
    if is_task(task):
        # a task of another version, with settings unknown here, is compared unchanged
        with contextlib.suppress(ValueError, TypeError):
            described = described | {"objective": describe(stored_task(task))}
    kinds = (EncoderConfig, AdamW, Lamb, Muon, CoreferenceConfig, Replacement, TaggedSpans)
    own = {each.__name__: each for each in kinds}

    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [filled(each) for each in part]
        if not isinstance(part, dict):
            return part
        kind = own.get(str(part.get("class")))
        defaults = describe(kind()) if kind else {}
        return defaults | {name: filled(value) for name, value in part.items()}

    return filled(described)


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens a described run: names of settings joined by slashes -> their values."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = ((str(i), v) for i, v in enumerate(value))
    else:
        return {prefix: value}
    return {k: v for name, part in items for k, v in flat(part, f"{prefix}/{name}" if prefix else name).items()}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Compares two described runs: lines "name: before -> now" for every setting that differs and may not."""
    old, new = flat(completed(before)), flat(now)
    if old.get("data/order") == "uniform" and new.get("data/order") in ("streams", "both_ways", "auto"):
        # version 0.1 stored its default, but read the rows in the order of XLNet's memory, and a task's in the task's own
        old["data/order"] = new["data/order"]
    names = sorted(n for n in old.keys() | new.keys() if old.get(n) != new.get(n) and not n.startswith(MAY_CHANGE))
    return [f"  {n.replace('/', '.')}: {old.get(n, '(absent)')} -> {new.get(n, '(absent)')}" for n in names]


@contextlib.contextmanager
def writing(workdir: pathlib.Path) -> Iterator[None]:
    """Wraps writes to the work directory: ValueError if it is no folder or cannot be written."""
    if problem := output_problem(workdir):
        raise ValueError(f"--workdir {workdir}: {problem}")
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"--workdir {workdir} cannot be written ({error.strerror or error}): give a folder that can, with space left"
        ) from error


def claim_workdir(workdir: pathlib.Path, description: dict[str, Any]) -> list[str]:
    """Writes run.json into a new work directory; refuses one that belongs to another run, with a diff.

    Returns notes on changes from here on in a run that an older version began.
    """
    file = workdir / "run.json"
    if file.is_file():
        # 0.1 wrote secrets of the environment in clear text
        before = redacted(read_json(file, dict, "restore it, or use another --workdir"))
        found = differences(before, json.loads(json.dumps(description)))
        if found:
            raise ValueError(
                f"--workdir {workdir} holds another run; what differs (there -> now):\n"
                + "\n".join(found)
                + "\nuse the same settings to continue it, or another --workdir"
            )
        return _order_notes(workdir, before, description)
    with writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        # a relative --data.rows is one of this folder: the report finds the rows by it from elsewhere
        write_whole(file, json.dumps({**description, "started_in": str(pathlib.Path.cwd())}, indent=2) + "\n")
    return []


def _order_notes(workdir: pathlib.Path, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns a note if a run resumes with the rows in another order than it began with."""
    if before.get(ORDER_VERSION, 1) == now.get(ORDER_VERSION, 1):
        return []
    return [
        f"{workdir} was begun by spanjax 0.1, whose order by_length never read the longest rows, the remainder of rows /"
        " batch_size. From here on an epoch has one batch more, with those rows, and reads its batches in another order than 0.1"
        " would have; to train in one order from the first step on, use another --workdir"
    ]
