"""The one codec of settings: dataclasses to JSON and back, defaults of older versions, and what differs between two runs.

A class is stored by its name and its module. What a file names is imported only if it is a settings class of spanjax; classes of
a user's own are found in the modules that the command line names (--config, --code), so that no file runs code.
"""

import dataclasses
import importlib
import importlib.util
import itertools
import os
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from spanjax.nn.config import Execution
from spanjax.storage.local import found_again
from spanjax.storage.shipped import CONFIGS, PACKAGE
from spanjax.tasks.base import Task

Settings = TypeVar("Settings")
Kind = Literal["pretraining", "task"]
ORDER_VERSION = "order_version"
"""Entry of run.json: the version of an order that an earlier spanjax defined otherwise; absent in files of version 1."""
MASKS = "mask_version"
"""Entry of run.json: `nn.dropout.MASK_VERSION`, by which the newest process of the run dropped; absent in files of version 1."""
MODEL_TYPE = "model_type"
"""Entry of run.json: the family of the initial weights, if the encoder alone does not tell it (XLM-R, CamemBERT)."""
STARTED_IN = "started_in"
"""Entry of run.json and of a checkpoint: the folder in which the run was started, to which its relative paths refer."""
_PATHS = ("init_from", "data/rows", *(f"objective/{name}" for name in ("train", "dev", "vocabulary", "spans/ngrams")))
"""Settings that are paths of files and folders."""
STAGES = "stage_fingerprints"
"""Entry of run.json: first step and fingerprint of the mixture of each stage of `data.stages`."""
TRACKING = "tracking"
"""Setting of a run that no reader of its folder needs: it may hold objects of classes that are not known there."""
# A run may resume with other values of these: they change speed and bookkeeping, not the result.
MAY_CHANGE = (
    *(
        "mesh/",
        "microbatches",
        "cadence/",
        "guard/",
        "profile/",
        f"{TRACKING}/",
        "data/feed",
        "data/rows",
        "data/cache",
    ),
    *(f"encoder/{field.name}" for field in dataclasses.fields(Execution)),
    ORDER_VERSION,  # the run resumes in the new order, with a note: see `experiment.pretrain`
    MASKS,  # so with new dropout masks, said once: see `experiment.build`
    STARTED_IN,
    "objective/sentences",  # of the training examples, whose fingerprint is compared; version 0.1 did not store it
)
_CONFIG = "spanjax_config_"
"""Prefix of the module names of executed files."""
_ROOMS = frozenset({"data", "nn", "objectives", "run", "sharding", "tasks", "training"})
"""Rooms whose settings classes a file may name."""
CODE: dict[str, types.ModuleType] = {}
"""Modules with classes of a user's own, by the names under which they are stored."""

# Classes of version 0.1, which stored no modules, and old paths of classes that have moved since.
RENAMED: Mapping[str, str] = {
    name: f"spanjax.{module}.{name}"
    for module, names in {
        "data.feed.masking": "Tokens WholeWords GeometricSpans Ngrams TaggedSpans Stage Staged Boundaries Replacement",
        "data.feed.pairing": "Single FullSentences NextSentence SentenceOrder",
        "nn.config": "EncoderConfig",
        "nn.coreference_parts": "CoreferenceConfig",
        "nn.span_network": "SpanNetworkConfig",
        "objectives.masked_lm": "MaskedPrediction",
        "objectives.electra": "ReplacedDetection",
        "objectives.xlnet": "PermutedPrediction PermutedTokens",
        "objectives.loss_terms": "MaskedTokens SpanBoundary SentencePair",
        "run": "Data Run",
        "sharding": "MeshConfig",
        "tasks.coref": "Coref",
        "tasks.glue": "Glue",
        "tasks.ner": "Ner",
        "tasks.relation": "Relation",
        "tasks.squad": "Questions",
        "tasks.span_tuning": "SpanTuning",
        "training.loop": "Cadence",
        "training.nonfinite": "Guard",
        "training.optimizers": "AdamW Lamb Muon",
        "training.optimizers.schedules": "Schedule",
        "training.profiler": "Profile",
        "training.trackers": "Tracking",
    }.items()
    for name in names.split()
}


def describe(value: Any) -> Any:
    """Describes settings as JSON: nested dicts, with the class and its module."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__qualname__, "module": _module_name(type(value)), **fields}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    return value


def _module_name(kind: type) -> str:
    """Returns the name under which a class's module is stored: of an executed file, the file's name."""
    if not kind.__module__.startswith(_CONFIG):
        return kind.__module__
    return pathlib.Path(getattr(sys.modules[kind.__module__], "__file__", None) or kind.__module__).name


def own_classes(value: Any) -> dict[str, str]:
    """Returns the classes among a run's settings that are not spanjax's -> the module or file of each."""
    if isinstance(value, tuple | list):
        return {name: module for item in value for name, module in own_classes(item).items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    module = _module_name(type(value))
    own = {} if module.partition(".")[0] == "spanjax" else {type(value).__qualname__: module}
    inner = [getattr(value, field.name) for field in dataclasses.fields(value) if field.name != TRACKING]
    return own | own_classes(inner)


def execute(file: pathlib.Path) -> types.ModuleType:
    """Runs a Python file of the user's as a module; classes in it and in modules that it imports can then be restored.

    A failing file leaves nothing behind.
    """
    # dataclasses and tyro resolve annotations through sys.modules, and two files of one stem, or one file loaded twice, must not
    # answer for each other's classes
    names = (f"{_CONFIG}{file.stem}_{number}" for number in itertools.count(1))
    name = next(each for each in names if each not in sys.modules)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    roots = [p for p in file.resolve().parents if (p / "configs").is_dir() and p != PACKAGE]
    added = [each for each in map(str, (file.resolve().parent, *roots[:1])) if each not in sys.path]
    before = set(sys.modules)
    sys.modules[name] = module
    sys.path += added  # modules next to the file: only while it runs, so that they shadow nothing later
    _reach_configs([*(root / "configs" for root in roots[:1]), CONFIGS])
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        for each in added:
            sys.path.remove(each)
    CODE.update({each: sys.modules[each] for each in sys.modules.keys() - before if not each.startswith(_CONFIG)})
    CODE[file.name] = CODE[file.stem] = module
    return module


def _reach_configs(folders: Iterable[pathlib.Path]) -> None:
    """Makes `from configs.pretrain.spanbert_base import RUN` find the user's own configs and the presets, wherever they are."""
    package = sys.modules.setdefault("configs", types.ModuleType("configs"))
    package.__path__ = list(dict.fromkeys([*getattr(package, "__path__", ()), *map(str, folders)]))


def load_code(names: Iterable[str]) -> None:
    """Imports modules, or runs Python files, that hold classes of the user's own. ValueError if one cannot be."""
    expected = "give a Python file, or the name of a module that can be imported"
    for name in names:
        file = pathlib.Path(name)
        if file.suffix == ".py" and not file.is_file():
            raise ValueError(f"--code {name}: no such file; {expected}")
        try:
            if file.suffix == ".py":
                execute(file)
            else:
                CODE[name] = importlib.import_module(name)
        except Exception as error:
            raise ValueError(f"--code {name} does not load ({type(error).__name__}: {error}): {expected}") from error


def class_of(described: Mapping[str, Any], expected: type[Settings]) -> type[Settings]:
    """Returns the class that described settings name. ValueError if it is unknown here or no `expected`."""
    name, module = str(described.get("class")), str(described.get("module") or "")
    path = RENAMED.get(f"{module}.{name}" if module else name, f"{module}.{name}")
    module, _, name = path.rpartition(".")
    found = None
    if module.startswith("spanjax.") and module.split(".")[1] in _ROOMS and "__" not in module:
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError:
            found = None
    else:
        places = [CODE[module]] if module in CODE else [] if module else CODE.values()
        found = next((getattr(each, name) for each in places if hasattr(each, name)), None)
        if found is None and not module.startswith("spanjax."):
            where = f" of {module}" if module else ""
            raise ValueError(
                f"{name}{where} is no class of spanjax: name the module or file that defines it, --code {module or 'FILE'}"
            )
    if not (isinstance(found, type) and issubclass(found, expected) and dataclasses.is_dataclass(found)):
        raise ValueError(
            f"{path} is no {expected.__name__} that is known here: take the version of spanjax that wrote it"
        )
    return found


def _renamed(kind: type, described: Mapping[str, Any]) -> dict[str, Any]:
    """Returns described settings of a class under the names of today."""
    names = getattr(kind, "RENAMED", {})
    return {names.get(name, name): value for name, value in described.items()}


def restored(described: Mapping[str, Any], expected: type[Settings]) -> Settings:
    """Rebuilds settings that `describe` described, of a class that derives from `expected`; missing ones get their defaults, and
    so does `TRACKING` with a class that is not known here.

    ValueError for a class or a setting that is not known here, or one that is missing and has no default.
    """
    kind: Any = class_of(described, expected)
    hints, described = typing.get_type_hints(kind), _renamed(kind, described)
    unknown = sorted(described.keys() - {field.name for field in dataclasses.fields(kind)} - {"class", "module"})
    if unknown:
        raise ValueError(
            f"{kind.__name__} has no setting {', '.join(unknown)} here: take the version of spanjax that wrote it"
        )
    values = {}
    for name in (each for each in described if each in hints):
        try:
            values[name] = _value(described[name], hints[name])
        except ValueError:
            if name != TRACKING:
                raise
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}: take the version of spanjax that wrote it") from error


def _value(value: Any, hint: Any) -> Any:
    """Returns a value of a described setting with this annotation as a setting: lists become tuples."""
    if isinstance(value, list):
        inner = typing.get_args(hint)
        return tuple(_value(item, inner[0] if inner else object) for item in value)
    if isinstance(value, dict):
        plain = (type(None), str, int, float, bool)
        choices = [each for each in (hint, *typing.get_args(hint)) if isinstance(each, type) and each not in plain]
        return restored(value, choices[0] if len(choices) == 1 else object)
    return value


def with_paths(settings: Any, find: Callable[[str], str], name: str = "") -> Any:
    """Returns settings, or described settings, with `find(path)` in the place of every path in them.

    `name` is that of the settings in a run: "objective" for a task alone.
    """
    if isinstance(settings, list | tuple):
        return type(settings)(with_paths(each, find, name) for each in settings)
    if isinstance(settings, str):
        return find(settings) if settings and name in _PATHS else settings
    inside = [path for path in _PATHS if not name or path.startswith(f"{name}/")]
    names = {path.removeprefix(f"{name}/").partition("/")[0] for path in inside}
    if isinstance(settings, Mapping):
        found = {each: settings[each] for each in names & settings.keys()}
    elif dataclasses.is_dataclass(settings):
        found = {each: getattr(settings, each) for each in names if hasattr(settings, each)}
    else:
        return settings
    found = {each: with_paths(value, find, f"{name}/{each}".lstrip("/")) for each, value in found.items()}
    if isinstance(settings, Mapping):
        return {**settings, **found}
    return dataclasses.replace(settings, **found) if found else settings  # pyright: ignore[reportArgumentType]


def located(settings: Any, started_in: str, folder: pathlib.Path, name: str = "") -> Any:
    """Returns stored settings with every path as one that exists here: from the current folder, from `started_in`, or from
    those around the run's `folder`, which may have moved together with its data; see `with_paths`."""
    bases = ("", *([started_in] if started_in else []), *folder.absolute().parents)
    return with_paths(settings, lambda path: found_again(path, bases), name)


def kind_of(described: Mapping[str, Any]) -> Kind:
    """Returns the kind of a described run; files of version 0.1 do not name it."""
    if described.get("kind") in ("pretraining", "task"):
        return described["kind"]
    objective = described.get("objective")
    settings = objective if isinstance(objective, Mapping) else {}
    try:
        return "task" if issubclass(class_of(settings, object), Task) else "pretraining"
    except ValueError:  # of another version, or a user's own
        return "task" if {"train", "dev"} <= settings.keys() else "pretraining"


def completed(described: dict[str, Any]) -> dict[str, Any]:
    """Returns a described run with its kind, and with defaults for settings that an older version does not name, at any depth: a
    setting that is added leaves earlier results unchanged.
    """

    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [filled(each) for each in part]
        if not isinstance(part, dict):
            return part
        inner = {name: filled(value) for name, value in part.items()}
        try:
            kind: Any = class_of(part, object)
        except ValueError:  # of another version, or a user's own: compared unchanged
            return inner
        return _defaults(kind) | _renamed(kind, inner) | {"class": kind.__qualname__, "module": _module_name(kind)}

    return {"kind": kind_of(described)} | filled(described)


def _defaults(kind: Any) -> dict[str, Any]:
    """Returns the described defaults of a class's settings that have one."""
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = describe(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = describe(field.default_factory())
    return found


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens a described run: names of settings joined by slashes -> their values."""
    if isinstance(value, dict):
        items = ((name, part) for name, part in value.items() if name != "module" or "class" not in value)
    elif isinstance(value, list):
        items = ((str(i), v) for i, v in enumerate(value))
    else:
        return {prefix: value}
    return {k: v for name, part in items for k, v in flat(part, f"{prefix}/{name}" if prefix else name).items()}


def differences_in_paths(before: dict[str, Any], now: dict[str, Any], folder: pathlib.Path) -> list[str]:
    """Compares two described runs, see `differences`. A path is the same if it names the same file from the folder in which each
    run was started; `folder` is that of the run."""
    lines = differences(before, now)
    if not lines:
        return []

    def absolute(described: dict[str, Any], bases: Sequence[str | pathlib.Path]) -> dict[str, Any]:
        return with_paths(described, lambda path: os.path.abspath(found_again(path, bases)))

    start = before.get(STARTED_IN)
    bases = (*([start] if isinstance(start, str) and start else []), "", *folder.absolute().parents)
    remain = {line.partition(": ")[0] for line in differences(absolute(before, bases), absolute(now, [""]))}
    return [line for line in lines if line.partition(": ")[0] in remain]


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Compares two described runs: lines "name: before -> now" for every setting that differs and may not."""
    old, new = flat(completed(before)), flat(completed(now))
    if old.get("data/order") == "uniform" and new.get("data/order") in ("streams", "both_ways", "auto"):
        # version 0.1 stored its default, but read the rows in the order of XLNet's memory, and a task's in the task's own
        old["data/order"] = new["data/order"]
    names = sorted(n for n in old.keys() | new.keys() if old.get(n) != new.get(n) and not n.startswith(MAY_CHANGE))
    return [f"  {n.replace('/', '.')}: {old.get(n, '(absent)')} -> {new.get(n, '(absent)')}" for n in names]


def adds_stages(before: dict[str, Any], now: dict[str, Any], folder: pathlib.Path, step: int) -> bool:
    """True if a run of `folder` differs from the stored one only by stages of its mixture that begin at `step` or later.

    The stages before and the rows that the run began with must be the same; weights that describe them may be written otherwise.
    """
    old, new = (each.get(STAGES) or [] for each in (before, now))
    if len(new) <= len(old):
        return False
    kept = {**now, STAGES: before.get(STAGES), "data": {**now["data"]}}
    for name in ("stages", "weights"):
        kept["data"][name] = before["data"].get(name, [])
    if kept[STAGES] is None:
        del kept[STAGES]
    return (
        new[: len(old)] == old
        and all(begin >= step for begin, _ in new[len(old) :])
        and not differences_in_paths(before, kept, folder)
    )


def described_task(meta: Mapping[str, Any], source: object) -> Mapping[str, Any] | None:
    """Returns the described task in the meta of checkpoint `source`; None in that of pretraining. Files that
    the task reads are `located`.

    A checkpoint has its `kind`. Those of 0.1 do not: there tasks count `examples`, and pretraining has a manifest of `rows`.
    ValueError if a checkpoint has none of these, and its objective is not known here.
    """
    found = _described_task(meta, source)
    start, spans = meta.get(STARTED_IN), (found or {}).get("spans")
    if found is None or not isinstance(spans, Mapping):
        return found
    # a model with spans reads its dictionary wherever it is used; the other paths are of its training alone
    spans = located(spans, start if isinstance(start, str) else "", pathlib.Path(str(source)), "objective/spans")
    return {**found, "spans": spans}


def _described_task(meta: Mapping[str, Any], source: object) -> Mapping[str, Any] | None:
    model, run = meta.get("model"), meta.get("run")
    if isinstance(model, Mapping) and isinstance(model.get("task"), Mapping):
        return model["task"]
    objective = run.get("objective") if isinstance(run, Mapping) else None
    if not isinstance(objective, Mapping):
        return None
    kind = meta.get("kind") or ("task" if "examples" in meta else "pretraining" if "rows" in meta else "")
    if not kind and kind_of({"objective": objective}) == "task":
        kind = "task"
    if kind == "task":
        return objective
    if kind == "pretraining" or "masking" in objective:
        return None
    raise ValueError(
        f"{source}: its meta does not say whether {objective.get('class', 'its objective')} is a task or pretrains: expected the"
        " kind 'task' or 'pretraining'; take the version of spanjax that wrote it"
    )


def stored_task(described: Mapping[str, Any], **settings: Any) -> Task:
    """Restores a described task, with `settings` replaced. ValueError as in `restored`, or for settings that it does not have."""
    task = restored(described, Task)
    if unknown := sorted(settings.keys() - {field.name for field in dataclasses.fields(task)}):
        given = ", ".join(f"{each} ({settings[each]})" for each in unknown)
        raise ValueError(
            f"a model of {type(task).__name__} has no setting {given}: leave it out, or take a model of the task that has it"
        )
    return dataclasses.replace(task, **settings)


def inferred_settings(described: Mapping[str, Any] | None, scores: Mapping[str, float]) -> dict[str, Any]:
    """Returns `Task.inferred_settings` of a described task; {} without scores, and for a class that is not known here."""
    try:
        return restored(described or {}, Task).inferred_settings(scores) if scores else {}
    except ValueError:
        return {}
