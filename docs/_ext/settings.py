"""Reference page of all settings: the classes that a run is made of, with the name, type, default and docstring of each field."""

import dataclasses
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import docstring_parser

from docs._ext.markdown import code, escaped, prose
from spanjax.bounds import Bounds

MODULES = (
    "spanjax.run",
    "spanjax.objectives",
    "spanjax.tasks",
    "spanjax.data.feed.masking",
    "spanjax.data.feed.pairing",
    "spanjax.training.optimizers",
    "spanjax.training.trackers",
)
"""Modules, and packages with all of theirs, that define settings. Importing them loads no TensorFlow."""


@dataclasses.dataclass(frozen=True)
class Group:
    """One section of the page: a class, or all classes that derive from a base."""

    title: str
    base: type
    flag: str
    """Prefix of the flags; "" for classes whose fields are set in config files alone."""
    text: str
    without: tuple[type, ...] = ()
    """Derived classes that have sections of their own."""


def groups() -> list[Group]:
    """Returns the sections in the order of the page."""
    for name in MODULES:
        module = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            importlib.import_module(found.name)
    from spanjax.data.feed.masking import MaskingPolicy
    from spanjax.data.feed.pairing import Pairing
    from spanjax.objectives.base import Objective
    from spanjax.objectives.loss_terms import Term
    from spanjax.run import Run
    from spanjax.tasks.base import Task
    from spanjax.training.optimizers import Optimizer
    from spanjax.training.trackers.base import Tracker

    objective = "A config sets `objective` to one of these classes; the command line sets its fields."
    return [
        Group("The run", Run, "--", "A config file defines one `Run` as `RUN`."),
        Group("Pretraining objectives", Objective, "--objective.", objective, without=(Task,)),
        Group(
            "Masking policies",
            MaskingPolicy,
            "--objective.masking.",
            "A config sets the field `masking` of an objective to one of these classes.",
        ),
        Group(
            "Pairings",
            Pairing,
            "--objective.pairing.",
            "A config sets the field `pairing` of an objective to one of these classes.",
        ),
        Group(
            "Loss terms",
            Term,
            "--objective.terms.N.",
            "The field `terms` of `MaskedPrediction` is a tuple of these classes. N counts them from 0.",
        ),
        Group("Tasks", Task, "--objective.", objective),
        Group(
            "Optimizers",
            Optimizer,
            "--optimizer.",
            "A config sets `optimizer` to one of these classes.",
        ),
        Group(
            "Trackers",
            Tracker,
            "",
            "`--tracking.to` names a tracker, which takes the settings of `Tracking`. A config file can put objects of these"
            " classes into `Tracking(to=(...))` instead; their fields are no flags.",
        ),
    ]


def derived(base: type, without: Sequence[type] = ()) -> Iterator[type]:
    """Yields a class and all classes of spanjax that derive from it, bases first."""
    yield base
    for kind in base.__subclasses__():
        if kind not in without and kind.__module__.startswith("spanjax."):
            yield from derived(kind)


def own_fields(kind: type) -> list[dataclasses.Field]:
    """Returns the fields that a class declares, those with a new default of an inherited one included."""
    own = inspect.get_annotations(kind)
    return [field for field in dataclasses.fields(kind) if field.name in own] if dataclasses.is_dataclass(kind) else []


def field_docs(kind: type) -> dict[str, str]:
    """Returns the docstrings below the fields of a class and of its bases; those of the class win."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if dataclasses.is_dataclass(each) or hasattr(each, "_fields"):
            parsed = docstring_parser.parse_from_object(each)
            found |= {parameter.arg_name: inspect.cleandoc(parameter.description or "") for parameter in parsed.params}
    return found


def one_of(choices: Sequence[str]) -> str:
    """Returns "a, b or c"."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def type_text(hint: Any) -> str:
    """Returns the type of a setting for readers: choices, or a type with its bounds."""
    if typing.get_origin(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        if name := next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), ""):
            return one_of(name.strip("{}").split(",")) if name.startswith("{") else name
        bounds = next((str(mark) for mark in marks if isinstance(mark, Bounds)), "")
        return f"{type_text(inner)}, {bounds}" if bounds else type_text(inner)
    if typing.get_origin(hint) is Literal:
        return one_of(["empty" if each == "" else str(each) for each in typing.get_args(hint)])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return one_of([type_text(each) for each in typing.get_args(hint)])
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        if inner[-1] is Ellipsis:
            return f"{type_text(inner[0])} [...]"
        return " ".join(type_text(each) for each in inner)
    return "none" if hint is type(None) else hint.__name__


def value_text(value: Any) -> str:
    """Returns a value as a config file or a command line would have it; of a class only what differs from its defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = [
            f"{field.name}={value_text(getattr(value, field.name))}"
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != default_of(field)
        ]
        return f"{type(value).__name__}({', '.join(changed)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(value_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float):
        return f"{value:.4g}" if len(repr(value)) > 10 else repr(value)
    return repr(value).replace("'", '"') if isinstance(value, str) else repr(value)


def default_text(value: Any) -> str:
    """Returns a default as a command line has it."""
    if value in ("", ()) or value is None:
        return "none" if value is None else "empty"
    if isinstance(value, tuple) and all(isinstance(each, str | int | float) for each in value):
        return code(" ".join(map(str, value)))
    return code(value if isinstance(value, str) else value_text(value))


def default_of(field: dataclasses.Field) -> Any:
    """Returns the default of a field, or MISSING."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def nested(kind: type) -> list[tuple[str, type]]:
    """Returns (field, class) of the classes of settings in a class's own fields, inside of tuples and unions too."""
    hints, found = typing.get_type_hints(kind), []
    for field in own_fields(kind):
        choices = [hints[field.name], *typing.get_args(hints[field.name])]
        found += [(field.name, each) for each in choices if inspect.isclass(each) and dataclasses.is_dataclass(each)]
    return found


def anchor(kind: type, field: dataclasses.Field) -> str:
    """Returns the id of a setting on the page."""
    return f"{kind.__name__}-{field.name}".lower().replace("_", "-")


def setting(kind: type, field: dataclasses.Field, flag: str, docs: dict[str, str], sections: dict[type, str]) -> str:
    """Returns the entry of one field. `sections` are the anchors of classes: a field that holds one of them is no flag."""
    hint = typing.get_type_hints(kind, include_extras=True)[field.name]
    default = default_of(field)
    shown = "no default" if default is dataclasses.MISSING else f"default {default_text(default)}"
    parts = [each for each in (hint, *typing.get_args(hint)) if inspect.isclass(each) and each in sections]
    dotted = flag.removeprefix("--") + field.name
    name = f"{flag}{field.name.replace('_', '-')}" if flag and not parts else dotted
    aliases = [
        alias
        for mark in typing.get_args(hint)
        if typing.get_origin(hint) is Annotated
        for alias in getattr(mark, "aliases", None) or ()
    ]
    names = ", ".join([f"[{code(name)}]{{#{anchor(kind, field)}}}", *map(code, aliases)])
    what = escaped(type_text(hint))
    for each in parts:
        what = what.replace(each.__name__, f"[{each.__name__}](#{sections[each]})")
    text = escaped(docs[field.name]).replace("\n", "\n  ")
    return f"{names}: {what}; {shown}\n: {text}"


class Page:
    """The page while it is written: each class has one section."""

    def __init__(self, groups: Sequence[Group]):
        self.parts: list[str] = []
        self._written: set[type] = set()
        # a class of a group has its section there, also where a field of another class holds it
        self._grouped = {kind for each in groups[1:] for kind in derived(each.base, each.without)}
        self._sections = {kind: kind.__name__.lower() for kind in self._grouped}
        self._sections |= {each.base: each.title.lower().replace(" ", "-") for each in groups[1:]}

    def add_group(self, group: Group) -> None:
        """Adds the sections of a group's classes, and of classes in their fields."""
        self.parts += [f"## {group.title}", group.text]
        for kind in derived(group.base, group.without):
            shared = inspect.isabstract(kind) or (kind is group.base and kind in self._grouped)
            if own_fields(kind) or not shared:
                self._add_class(kind, group.flag, shared)

    def _add_class(self, kind: type, flag: str, shared: bool = False) -> None:
        if kind in self._written:
            return
        self._written.add(kind)
        self.parts += [f"### {kind.__name__}", prose(inspect.cleandoc(kind.__doc__ or ""))]
        if shared:
            self.parts.append(
                "These settings are those of all classes that derive from it; it is no choice of its own."
            )
        bases = [each for each in kind.__mro__[1:] if each in self._written]
        if bases:
            links = " and ".join(f"[{each.__name__}](#{each.__name__.lower()})" for each in bases)
            self.parts.append(f"It also has the settings of {links}.")
        inside = nested(kind)
        sections = self._sections | {each: each.__name__.lower() for _, each in inside if each not in self._sections}
        docs = _docs(kind)
        self.parts += [setting(kind, field, flag, docs, sections) for field in self._fields(kind)]
        for name, each in inside:
            if each not in self._grouped:
                number = ".N" if "tuple" in str(typing.get_type_hints(kind)[name]) else ""
                self._add_class(each, f"{flag}{name.replace('_', '-')}{number}." if flag else "")

    def _fields(self, kind: type) -> list[dataclasses.Field]:
        """Returns the fields of a class that no section before has, or that have another default here."""
        known = {field.name for each in kind.__mro__[1:] if each in self._written for field in own_fields(each)}
        own = {field.name for field in own_fields(kind)}
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        return [field for field in fields if field.name in own or field.name not in known]


def _docs(kind: type) -> dict[str, str]:
    """Returns the docstrings of a class's fields; an object of a tracker shares those of `Tracking`."""
    from spanjax.training.trackers import Tracking
    from spanjax.training.trackers.base import Tracker

    return (field_docs(Tracking) if issubclass(kind, Tracker) else {}) | field_docs(kind)


def page() -> str:
    """Returns the Markdown of all sections."""
    found = groups()
    written = Page(found)
    for group in found:
        written.add_group(group)
    return "\n\n".join(written.parts)
