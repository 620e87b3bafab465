"""Lists what a run directory, a checkpoint or a folder of PyTorch weights holds: names, shapes, types, step and settings."""

import dataclasses
import json
import pathlib
from typing import Annotated, Any

import numpy as np
import rich.box
import rich.console
import rich.table
import rich.text
import tyro

from spanjax.cli import Code, exit_code, parse_options, visible, visible_name
from spanjax.storage.remote_outputs import on_local_files


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Source and output format of `inspect`."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """A run directory, a checkpoint, or a folder or file of PyTorch weights."""
    config: str | None = None
    """A config.json, for weights that come without one."""
    json: bool = False
    """Print one JSON object."""
    code: Code = ()


def contents(source: str, config: str | None = None) -> dict[str, Any]:
    """Returns everything as plain values. Weights of unknown models are still listed, with the reason."""
    # these import jax, which --help does not need
    from spanjax.pretrained.electra import FOLDER, PART, folder_beside, with_generator
    from spanjax.pretrained.load import from_weights, load_model
    from spanjax.run_format import describe
    from spanjax.sharding import named_leaves
    from spanjax.torch_format.folder import is_weights, read_folder
    from spanjax.torch_format.tables import unusable

    path, found = pathlib.Path(source), None
    if is_weights(path):
        found = read_folder(path, pathlib.Path(config) if config else None)
    try:
        model = with_generator(from_weights(path, found), load_model) if found else load_model(path, config)
    except ValueError as error:
        if not found:
            raise
        return {"source": source, "problem": str(error), "config": found.config, "tensors": _listed(found.tensors)}
    # A file is listed as stored, with its own names and dtypes, not as the canonical tree made from it.
    leaves = found.tensors if found else named_leaves(model.params)
    if found and PART in model.parts:
        inner = read_folder(folder_beside(path)).tensors
        leaves = {**leaves, **{f"{FOLDER}/{name}": each for name, each in inner.items()}}
    run = model.meta.get("run", {})
    return {
        "source": str(model.source),
        "step": model.step,
        "family": model.family.model_type,
        "heads": sorted(model.parts - {"encoder"}),
        "kind": model.kind,
        "task": model.task,
        "encoder": describe(model.encoder),
        "vocabulary": None
        if model.vocabulary is None
        else {name: getattr(model.vocabulary, name) for name in ("kind", "size", "casing", "fingerprint")},
        "run": run,
        "notes": [*model.notes, *unusable(named_leaves(model.params))],
        "tensors": _listed(leaves),
    }


def _listed(tensors: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    return {
        name: {"shape": list(array.shape), "dtype": str(array.dtype), "bytes": int(array.nbytes)}
        for name, array in tensors.items()
    }


def show(options: Inspect) -> None:
    """Prints the contents."""
    from spanjax.run_format import load_code  # imports jax, which --help does not need

    load_code(options.code)
    found = contents(options.source, options.config)
    if options.json:
        print(json.dumps(found))
        return
    console = rich.console.Console(soft_wrap=True, highlight=False)
    tensors = found.pop("tensors")
    table = rich.table.Table("name", "shape", "dtype", "MiB", box=rich.box.SIMPLE_HEAD)
    for name, each in tensors.items():
        shape, size = " x ".join(map(str, each["shape"])), f"{each['bytes'] / 2**20:.2f}"
        table.add_row(rich.text.Text(visible_name(name)), shape, each["dtype"], size)
    console.print(table)
    total = sum(each["bytes"] for each in tensors.values())
    numbers = sum(int(np.prod(each["shape"])) for each in tensors.values())
    console.print(f"{len(tensors)} tensors, {numbers:,} numbers, {total / 2**20:,.1f} MiB")
    for name, value in found.items():
        if value not in (None, [], {}):
            printed = str(value) if isinstance(value, str | int) else json.dumps(value)
            console.print(f"{name:12s}{visible(printed)}", markup=False)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    inputs = ("source", "config")
    program = "python -m spanjax.convert inspect"
    options = parse_options(Inspect, args=arguments, prog=program, description=__doc__, stores=inputs)
    return exit_code(
        "inspect", lambda: on_local_files(show, options, inputs), cannot=f"cannot look at {options.source}"
    )
