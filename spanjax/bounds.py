"""Bounds of settings, declared with each field and checked in one place; problems, gathered and raised together.

A field without bounds is checked too: no number of a setting may be NaN or infinite, no whole number beyond 32 bits.
"""

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

LARGEST = 2**31 - 1
"""Largest whole number of a setting: steps, seeds and sizes are int32 on devices."""
_ACCEPTED = {int: numbers.Integral, float: numbers.Real, tuple: (tuple, list)}  # beyond the class: NumPy's, and lists


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The values that a number may have; of a tuple, each number in it."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """`low` itself is excluded."""
    below: bool = False
    """`high` itself is excluded."""
    default: str = ""
    """Meaning of -1, if it is allowed."""
    zero: str = ""
    """Meaning of 0, which is below `low` and allowed."""

    def hold(self, value: float) -> bool:
        """Returns True if a finite number is within them."""
        if (self.default and value == -1) or (self.zero and value == 0):
            return True
        return (value > self.low if self.above else value >= self.low) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        low = f"{'more than' if self.above else 'at least'} {self.low:g}" if self.low > -math.inf else ""
        high = f"{'less than' if self.below else 'at most'} {self.high:,}" if self.high < math.inf else ""
        text = " and ".join(filter(None, (low, high)))
        text = "0 or more" if text == "at least 0" else text
        text += f", or 0 for {self.zero}" if self.zero else ""
        return f"{text}, or -1 for {self.default}" if self.default else text


Positive = Annotated[float, Bounds(0, above=True)]
NotNegative = Annotated[float, Bounds(0)]
Share = Annotated[float, Bounds(0, 1, above=True)]
DropRate = Annotated[float, Bounds(0, 1, below=True)]
Probability = Annotated[float, Bounds(0, 1)]
AtLeast0 = Annotated[int, Bounds(0)]
AtLeast1 = Annotated[int, Bounds(1)]
OrAll = Annotated[int, Bounds(1, zero="all")]
MOST_ROWS = 2**17
BatchSize = Annotated[int, Bounds(1, MOST_ROWS)]
"""Rows of a global batch: at most more than any published run uses; of 512 positions that is about 2 GB on one host."""
Derived0 = Annotated[int, Bounds(0, default="the default")]
Derived1 = Annotated[int, Bounds(1, default="the default")]


def range_problems(settings: Any, prefix: str = "") -> list[str]:
    """Lists numbers of a dataclass, and of those inside of it, that are out of their bounds: "NAME is VALUE: expected ...".

    Names begin with `prefix`.
    """
    return [
        problem
        for field in dataclasses.fields(settings)
        for problem in _problems(f"{prefix}{field.name}", getattr(settings, field.name), _bounds(field.type))
    ]


def collect(problems: list[str], work: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `work(*arguments)`. If it raises ValueError, adds its lines to `problems` and returns None."""
    try:
        return work(*arguments)
    except ValueError as error:
        problems += str(error).splitlines()


def raise_problems(problems: Iterable[str], title: str | None = None) -> None:
    """Raises one ValueError with a line for each problem, if there are any.

    With a title, which may be empty, the lines are items of a list below it.
    """
    lines = [line if title is None or line.startswith("  ") else f"  - {line}" for line in problems]
    if lines:
        raise ValueError("\n".join([title, *lines] if title else lines))


def type_problems(settings: Any, prefix: str = "") -> list[str]:
    """Lists values of a dataclass, and of those inside of it, that are not of the type of their field."""
    found = []
    for field, kind in ((each, _kind(each.type)) for each in dataclasses.fields(settings)):
        name, value = f"{prefix}{field.name}", getattr(settings, field.name)
        fits = isinstance(value, _ACCEPTED.get(kind, kind))
        if not fits or (isinstance(value, bool) and kind in (int, float)):
            found.append(f"{name} is {value!r:.60}: expected {kind.__name__}")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found += type_problems(value, f"{name}.")
    return found


def _kind(annotation: Any) -> Any:
    """Returns the class of an annotation; object for protocols, choices and unions, which are checked elsewhere."""
    annotation = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    annotation = typing.get_origin(annotation) or annotation
    plain = isinstance(annotation, type) and annotation is not types.UnionType
    return annotation if plain and not getattr(annotation, "_is_protocol", False) else object


def flag_problems(options: Any) -> list[str]:
    """Lists the numbers of a command's own options, without those of its run, that are out of their bounds."""
    own = [field.name for field in dataclasses.fields(options) if field.name != "run"]
    kinds = {field.name: _bounds(field.type) for field in dataclasses.fields(options)}
    return [p for name in own for p in _problems(f"--{name}", getattr(options, name), kinds[name])]


def _bounds(kind: Any) -> Bounds:
    """Returns the bounds of an annotation; an annotation that is a string has none."""
    return next((each for each in typing.get_args(kind) if isinstance(each, Bounds)), Bounds())


def _problems(name: str, value: Any, bounds: Bounds) -> Iterator[str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from range_problems(value, f"{name}.")
    elif isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _problems(f"{name}.{number}", each, bounds)
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        if isinstance(number, int) and abs(number) > LARGEST:
            expected = f"at most {LARGEST:,}" if number > 0 else str(bounds) or f"at least {-LARGEST:,}"
        elif not math.isfinite(number):
            expected = ", ".join(filter(None, ("a finite number", str(bounds))))
        elif not bounds.hold(number):
            expected = str(bounds)
        else:
            return
        name = name.replace("_", "-") if name.startswith("--") else name
        long = isinstance(number, int) and abs(number) > 10**18
        yield f"{name} is {f'a number of {len(str(abs(number)))} digits' if long else value}: expected {expected}"
