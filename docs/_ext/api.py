"""Reference page of the Python API: signatures and docstrings of the names in `spanjax.__all__`."""

import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import spanjax
from docs._ext.markdown import prose
from docs._ext.settings import field_docs

_MODULES = re.compile(r"(?<![\w.])(?:[a-z_]\w*\.)+(?=[A-Za-z_])")
_DELEGATES = re.compile(r"`(\w+)\.(\w+)`\.?$")


def signatures(function: Callable[..., Any]) -> list[str]:
    """Returns the signatures of a function, of each overload if it has some, without modules and without `self`."""
    found = []
    for each in typing.get_overloads(function) or [function]:
        signature = inspect.signature(each)
        kept = [value for name, value in signature.parameters.items() if name != "self"]
        text = str(signature.replace(parameters=kept))
        found.append(_MODULES.sub("", text).replace("'", '"'))
    return found


def described(kind: str, name: str, calls: list[str], body: str, depth: int = 0) -> str:
    """Returns a directive of Sphinx's Python domain; a directive inside of another one has the larger depth."""
    fence = ":" * (5 - depth)
    first, *more = [f"{name}{call}" for call in calls] or [name]
    lines = [f"{fence}{{py:{kind}}} {first}", *more]
    return "\n".join([*lines, "", body, fence])


def members(kind: type) -> Iterator[str]:
    """Yields the directives of a class's public methods, properties and documented fields."""
    docs = field_docs(kind) if issubclass(kind, tuple) else {}
    for name in getattr(kind, "_fields", ()):
        body = prose(docs[name]) if name in docs else ""
        hint = _MODULES.sub("", inspect.formatannotation(typing.get_type_hints(kind)[name]))
        yield described("attribute", name, [], f":type: {hint}\n\n{body}", 1).replace("\n\n:type:", "\n:type:", 1)
    # the bases' members too, in the order in which they are written
    own = [
        part for each in reversed(kind.__mro__) if each.__module__.startswith("spanjax") for part in vars(each).items()
    ]
    for name, member in dict(own).items():
        if name.startswith("_") or name in getattr(kind, "_fields", ()):
            continue
        if isinstance(member, property):
            function = delegate(kind, member)
            if function is None:
                yield described("property", name, [], prose(inspect.getdoc(member) or ""), 1)
            else:
                yield described("method", name, signatures(function), prose(inspect.getdoc(function) or ""), 1)
        elif inspect.isfunction(member):
            yield described("method", name, signatures(member), prose(inspect.getdoc(member) or ""), 1)


def delegate(kind: type, member: property) -> Callable[..., Any] | None:
    """Returns the method that a property returns, which its docstring names last; None for a value."""
    found = _DELEGATES.search(inspect.getdoc(member) or "")
    for module in (sys.modules[each.__module__] for each in kind.__mro__):
        if found and hasattr(module, found[1]):
            return getattr(getattr(module, found[1]), found[2])
    return None


def entry(name: str) -> str:
    """Returns the directive of a public name."""
    value = getattr(spanjax, name)
    text = prose(inspect.getdoc(value) or "")
    if inspect.isfunction(value):
        return described("function", f"spanjax.{name}", signatures(value), text)
    if dataclasses.is_dataclass(value):
        link = f"Its fields are [settings](settings.md#{name.lower()})."
        return described("class", f"spanjax.{name}", ["(**settings)"], f"{text}\n\n{link}")
    return described("class", f"spanjax.{name}", [], "\n\n".join([text, *members(value)]))


def page() -> str:
    """Returns the Markdown of the API: functions, then classes."""
    importlib.import_module("spanjax.api")
    names = [name for name in spanjax.__all__ if not name.startswith("__")]
    functions = [name for name in names if inspect.isfunction(getattr(spanjax, name))]
    settings = [name for name in names if dataclasses.is_dataclass(getattr(spanjax, name))]
    rest = [name for name in names if name not in functions and name not in settings]
    parts = []
    for title, group in (("Functions", functions), ("Models and results", rest), ("Settings", settings)):
        for name in (parts.append(f"## {title}"), *group)[1:]:
            parts += [f"### {name}", entry(name)]
    return "\n\n".join(parts)
