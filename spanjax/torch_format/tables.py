"""Parameters under the names of another library and back, by the tables of `families`. NumPy only."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from spanjax.nn.config import EncoderConfig
from spanjax.sharding import named_leaves
from spanjax.torch_format.families import LAYER, Entry, Family, Transform, entries_of


def _rows(entry: Entry, encoder: EncoderConfig) -> int:
    """Number of their arrays in one stacked array of ours; 0 if it is not stacked."""
    return encoder.own_layers if entry.ours.startswith(LAYER) else 0


def tensors_to_hf(params: Any, encoder: EncoderConfig, family: Family) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every parameter of a canonical tree under their name, in the order of the table; views if possible.

    ValueError lists parameters that the table does not have.
    """
    leaves = named_leaves(params)
    entries = entries_of(family, encoder)
    unknown = sorted(leaves.keys() - {entry.ours for entry in entries})
    if unknown:
        raise ValueError(
            f"{family.model_type} has no names for {', '.join(unknown)}: this model cannot be written as {family.model_type}"
        )
    waiting: dict[str, list[np.ndarray]] = {}
    for entry in entries:
        if entry.ours in leaves:
            array, stacked = np.asarray(leaves[entry.ours]), _rows(entry, encoder)
            for number, one in enumerate(array[entry.first :] if stacked else [array], entry.first):
                name, found = entry.theirs.format(number), _theirs(one, entry.transform, encoder)
                parts = [*waiting.pop(name, []), found]
                if len(parts) == entry.part[1]:
                    yield name, np.concatenate(parts) if len(parts) > 1 else found
                else:
                    waiting[name] = parts


def _theirs(array: np.ndarray, transform: Transform, encoder: EncoderConfig) -> np.ndarray:
    if transform == "transposed":
        return array.T
    if transform in ("heads", "heads_transposed"):
        return (array if transform == "heads" else array.T).reshape(len(array), encoder.heads, -1)
    if transform == "boxed":
        return array[None, None]
    return array[: encoder.vocab_size] if transform == "pieces" else array


def _ours(array: np.ndarray, transform: Transform, encoder: EncoderConfig) -> np.ndarray:
    if transform == "transposed":
        return array.T
    if transform == "pieces":
        padding = [(0, encoder.padded_vocab_size - len(array))] + [(0, 0)] * (array.ndim - 1)
        return np.pad(array, padding)
    if transform == "boxed":
        return array[0, 0]
    if transform in ("heads", "heads_transposed"):
        array = array.reshape(len(array), -1)
        return array if transform == "heads" else array.T
    return array


class Loaded(NamedTuple):
    """Result of reading a file of theirs."""

    params: dict[str, Any]
    """Canonical tree, float32."""
    loaded: tuple[str, ...]
    """Their names that became parameters."""
    repeated: tuple[str, ...]
    """Their names of tied copies, which were equal."""
    buffers: tuple[str, ...]
    """Their names that hold no parameter."""


def params_from_hf(tensors: Mapping[str, np.ndarray], encoder: EncoderConfig, family: Family) -> Loaded:
    """Builds the canonical tree of the tensors; a head exists if the file has all of it.

    ValueError lists names that the table does not have, names that are missing, wrong shapes and tied tensors that differ.
    """
    if encoder.own_layers > len(tensors):  # before a list of so many names is made
        mismatch = f"config.json says {encoder.own_layers:,} layers, there are {len(tensors):,} tensors in all"
        raise ValueError(_message(family, [], [], [mismatch]))
    used: set[str] = set()
    leaves: dict[str, np.ndarray] = {}
    missing: list[str] = []
    problems: list[str] = []
    for part, entries in _parts(entries_of(family, encoder)).items():
        names = {entry: _names(entry, encoder) for entry in entries}
        absent = [name for each in names.values() for name in each if name not in tensors]
        if absent and part != "encoder" and len(absent) == sum(map(len, names.values())):
            continue  # a head that the file does not have
        missing += absent
        used.update(name for each in names.values() for name in each if name in tensors)
        if absent:
            continue
        for entry, each in names.items():
            if entry.transform == "pieces" and (rows := {len(tensors[name]) for name in each} - {encoder.vocab_size}):
                mismatch = f"{rows.pop():,} rows, config.json says vocab_size {encoder.vocab_size:,}"
                problems.append(f"{entry.theirs} has {mismatch}")
                continue
            arrays = (_part(np.asarray(tensors[name], np.float32), entry) for name in each)
            found = [_ours(array, entry.transform, encoder) for array in arrays]
            if entry.first:  # a norm that the first layers lack, all of them in a model of one layer
                found = [np.ones(encoder.hidden_size, np.float32)] * entry.first + found
            shapes = {array.shape for array in found}
            if len(shapes) > 1:
                problems.append(f"{entry.theirs} has different shapes in different layers: {sorted(shapes)}")
            else:
                leaves[entry.ours] = np.stack(found) if _rows(entry, encoder) else found[0]
    problems += unusable({name: tensors[name] for name in sorted(used)})
    repeated = [name for name, other in family.tied.items() if name in tensors and other in tensors]
    problems += [
        f"{name} differs from {family.tied[name]}, to which it is tied: a model with an output table of its own is not known here"
        for name in repeated
        if not np.array_equal(tensors[name], tensors[family.tied[name]])
    ]
    buffers = [name for name in tensors if name in family.buffers]
    unknown = sorted(tensors.keys() - used - {*repeated} - {*buffers})
    if missing or unknown or problems:
        raise ValueError(_message(family, missing, unknown, problems))
    return Loaded(_nested(leaves), tuple(sorted(used)), tuple(repeated), tuple(buffers))


def unusable(tensors: Mapping[str, Any]) -> list[str]:
    """Lists tensors that cannot be weights: integers or booleans, NaN or infinite numbers."""
    found = []
    for name, array in tensors.items():
        if array.dtype.kind in "iub":
            mismatch = f"{array.dtype}, expected floating-point numbers: quantised weights are not known here"
        elif wrong := int(array.size - np.isfinite(np.asarray(array, np.float32)).sum()):
            mismatch = f"{wrong:,} of {array.size:,} numbers that are NaN or infinite: take other weights"
        else:
            continue
        found.append(f"{name} holds {mismatch}")
    return found


def _parts(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Entries by the part of the canonical tree."""
    parts: dict[str, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(entry.ours.split("/")[0], []).append(entry)
    return parts


def _names(entry: Entry, encoder: EncoderConfig) -> list[str]:
    return [entry.theirs.format(number) for number in range(entry.first, max(1, _rows(entry, encoder)))]


def _part(array: np.ndarray, entry: Entry) -> np.ndarray:
    """The part of theirs that is this entry's."""
    number, count = entry.part
    size = len(array) // count
    return array[number * size : (number + 1) * size]


def _message(family: Family, missing: list[str], unknown: list[str], problems: list[str]) -> str:
    lines = [f"the weights are not those of a {family.model_type} model as its config.json describes it:"]
    lines += [f"  - {problem}" for problem in problems]
    for what, names in (("missing", missing), ("not explained", unknown)):
        if names:
            lines.append(f"  - {what} ({len(names)}): {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}")
    lines.append("give the folder that the weights came with, or look at both with `python -m spanjax.convert inspect`")
    return "\n".join(lines)


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split("/")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = leaf
    return tree
