"""Path names of the leaves of a nested dict, and first-match rules over them.

Decay, sharding and conversion are all lists of (pattern, value) matched against names such as
`encoder/layers/attention/query/kernel`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def named_leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}, "c": 2} -> {"a/b": 1, "c": 2}, in the order of the tree."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= named_leaves(value, f"{prefix}/{key}" if prefix else str(key))
    return leaves


def map_named(function: Callable[[str, Any], T], tree: Any, prefix: str = "") -> Any:
    """The same nested dict with every leaf replaced by function(name, leaf)."""
    if not isinstance(tree, Mapping):
        return function(prefix, tree)
    return {key: map_named(function, value, f"{prefix}/{key}" if prefix else str(key)) for key, value in tree.items()}


def first_match(rules: Sequence[tuple[str, T]], name: str) -> T:
    """Value of the first rule whose pattern is found in the name; a name that no rule covers is an error."""
    for pattern, value in rules:
        if re.search(pattern, name):
            return value
    raise ValueError(f"no rule covers the parameter {name!r}; add one to the table ({[p for p, _ in rules]})")


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """Whether any pattern is found in the name."""
    return any(re.search(pattern, name) for pattern in patterns)
