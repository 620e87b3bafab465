"""Finds and reads files of weights in a folder without executing anything, and writes tensors."""

import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from spanjax.json_files import read_json
from spanjax.storage.local import is_file_name
from spanjax.torch_format.pickles import open_torch_file
from spanjax.torch_format.training_checkpoint import encoder_settings, skipped_notes

CONFIGS = ("config.json", "bert_config.json")
EXTRA_HEADS = "sbo_head.safetensors"
"""File of the heads that transformers has no class for, next to its weights so that it does not warn about them."""
_INDEX = ".index.json"  # of weights in several files
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")


class FolderContents(NamedTuple):
    """Contents of a folder, or of a single file of weights."""

    tensors: dict[str, np.ndarray]
    """By their names in the files; float16 and bfloat16 are not converted."""
    config: dict[str, Any] | None
    files: tuple[pathlib.Path, ...]
    """Files that were read."""
    recorded: Mapping[str, Any] = {}
    """Settings of the encoder that a training checkpoint records itself, under the names of config.json."""
    notes: tuple[str, ...] = ()
    """Human-readable notes on skipped contents of the files."""


def is_weights(path: pathlib.Path) -> bool:
    """True if `read_folder` could read this: a file of weights, or a folder with one."""
    return path.is_file() or any((path / f"{name}{end}").is_file() for name in WEIGHTS for end in ("", _INDEX))


def read_folder(path: pathlib.Path, config: pathlib.Path | None = None) -> FolderContents:
    """Reads the weights of a file or a folder (safetensors first) and its config.json, or the given one.

    ValueError if something is missing or damaged, or if reading it would execute code.
    """
    folder = path if path.is_dir() else path.parent
    files = [path] if path.is_file() else _weight_files(path)
    if path.is_dir() and (path / EXTRA_HEADS).is_file():
        files.append(path / EXTRA_HEADS)
    tensors: dict[str, np.ndarray] = {}
    recorded: dict[str, Any] = {}
    notes: list[str] = []
    for file in files:
        if file.suffix == ".safetensors":
            found = _read_safetensors(file)
        else:
            found, top, classes = open_torch_file(file)
            recorded |= encoder_settings(top)
            notes += skipped_notes(top, classes)
        if twice := sorted(tensors.keys() & found.keys()):
            raise ValueError(f"{file}: {twice[0]} is in another file of {folder} too: the index is wrong")
        tensors |= found
    configs = [config] if config else [folder / name for name in CONFIGS if (folder / name).is_file()]
    settings = read_json(configs[0]) if configs else None
    return FolderContents(tensors, settings, (*files, *configs[:1]), recorded, tuple(notes))


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}{_INDEX}").is_file():
            return _indexed(index)
    listed = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "nothing: no such folder"
    raise ValueError(f"{folder}: no weights: expected one of {', '.join(WEIGHTS)}; it holds {listed or 'no files'}")


def _indexed(index: pathlib.Path) -> list[pathlib.Path]:
    """The files that an index names, all in its own folder."""
    folder, listed = index.parent, read_json(index).get("weight_map")
    if not isinstance(listed, dict):
        raise ValueError(
            f"{index}: weight_map is {listed!r:.60}, expected an object of names: copy the whole folder again"
        )
    wrong = [each for each in listed.values() if not is_file_name(each)]
    names = sorted(set(listed.values())) if not wrong else []
    missing = [each for each in names if not (folder / each).is_file()]
    if wrong or missing or not names:
        what = (
            f"files outside of its folder ({wrong[0]!r:.60})" if wrong else f"{missing or 'no files'}, which is missing"
        )
        raise ValueError(f"{index}: names {what}: copy the whole folder again")
    return [folder / each for each in names]


def _read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, TypeError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}): copy it again") from None


def write_safetensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], step: int) -> None:
    """Writes a model.safetensors with the metadata that transformers looks for."""
    from spanjax import __version__

    metadata = {"format": "pt", "spanjax": __version__, "step": str(step)}
    whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(whole, path, metadata=metadata)


def original_names(name: str) -> str:
    """Converts a BERT name to that of SpanBERT's archive with heads: prefix `decoder.`, gamma and beta in LayerNorm."""
    ends = {"weight": "gamma", "bias": "beta"}
    name = re.sub(r"((?:LayerNorm|layer_norm\d?)\.)(weight|bias)$", lambda found: found[1] + ends[found[2]], name)
    return f"decoder.{name}"


def cast(
    tensors: Iterator[tuple[str, np.ndarray]], dtype: Any, name: Callable[[str], str] = str
) -> dict[str, np.ndarray]:
    """Converts tensors to another dtype and other names; ValueError if a finite number becomes infinite."""
    found = {}
    for theirs, array in tensors:
        with np.errstate(over="ignore"):
            made = found[name(theirs)] = array.astype(dtype, copy=False)
        if dtype != np.float32 and np.isfinite(array).all() and not np.isfinite(made.astype(np.float32)).all():
            raise ValueError(
                f"{theirs} has numbers up to {np.abs(array).max():.3g}, too large for {np.dtype(dtype)}: use float32"
            )
    return found
