"""The one reader of JSON: limits of size, depth and numbers, and every fault a ValueError."""

import json
import pathlib
from typing import Any

MAX_BYTES = 2**30
MAX_DEPTH = 100
MAX_DIGITS = 300  # of a whole number: more do not fit into a float; Hugging Face writes 10**30 for "no limit"
_TOO_DEEP = f"brackets more than {MAX_DEPTH} deep"


def _number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits, at most {MAX_DIGITS} are read")
    return int(digits)


class JsonError(ValueError):
    """A text that is not JSON, or beyond the limits; the message is the reason."""


def parse_json(content: str | bytes, kind: type = object) -> Any:
    """Returns the value in a JSON text, of type `kind`. JsonError if it is none."""
    if len(content) > MAX_BYTES:
        raise JsonError(f"{len(content):,} bytes, at most {MAX_BYTES:,} are read")
    try:
        found = json.loads(content, parse_int=_number)
    except RecursionError:
        raise JsonError(_TOO_DEEP) from None
    except ValueError as error:
        raise JsonError(str(error)) from None
    level, depth = [found], 1
    while level := [part for value in level for part in _parts(value)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise JsonError(_TOO_DEEP)
    if not isinstance(found, kind):
        raise JsonError(
            f"it holds a {type(found).__name__}, expected an object" if kind is dict else f"no {kind.__name__}"
        )
    return found


def _parts(value: Any) -> list[Any]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in values if isinstance(part, dict | list)]


def read_json(path: pathlib.Path, kind: type = dict, remedy: str = "copy it again") -> Any:
    """Returns the value in a JSON file, of type `kind`. JsonError names the file and the remedy; OSError if unreadable."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise JsonError(f"{path.stat().st_size:,} bytes, at most {MAX_BYTES:,} are read")
        return parse_json(path.read_bytes(), kind)
    except JsonError as error:
        raise JsonError(f"{path} is not readable JSON ({error}): {remedy}") from None
