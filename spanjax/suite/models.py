"""Encoders of the suite: any weights that `load_model` reads, and random weights of the same architecture."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from spanjax.objectives.loss_terms import canonical
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model

RANDOM = "random:"
"""Prefix of a model whose weights are sampled anew, by the seed."""


def random_model(model: Model, seed: int) -> Model:
    """Returns the model with weights of the initialiser, in place of all of its own."""
    objective = model.objective()

    def make() -> Any:
        module = objective.build(model.encoder, nnx.Rngs(jax.random.key(seed)))
        return nnx.to_pure_dict(nnx.split(module)[1])

    params = canonical(jax.tree.map(np.asarray, jax.jit(make)()))
    return dataclasses.replace(model, params=params, step=0, meta={}, task=None, notes=(), loaded=None)


def open_encoder(path: str, seed: int = 0) -> Model:
    """Loads a model; the seed decides random weights alone."""
    return random_model(load_model(path.removeprefix(RANDOM)), seed) if path.startswith(RANDOM) else load_model(path)


def names_of(paths: Sequence[str]) -> list[str]:
    """Returns a name for every path, also of a folder: the last parts that tell them apart."""
    found = list[str]()
    for path in paths:
        bare = path.removeprefix(RANDOM).rstrip("/")
        parts = [part for part in pathlib.PurePath(bare).parts if part not in ("/", "model", "checkpoints")]
        name = re.sub(r"[^A-Za-z0-9_.+=-]", "-", "-".join(parts[-2:] if parts and parts[-1].isdigit() else parts[-1:]))
        name = f"random-{name}" if path.startswith(RANDOM) else name or "encoder"
        number = 2
        while name in found:
            name, number = f"{name.removesuffix(f'-{number - 1}')}-{number}", number + 1
        found.append(name)
    return found
