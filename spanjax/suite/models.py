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
from spanjax.storage.objects import RANDOM


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
    """Returns a name for every path: its last part, and of the step of a run, or the seed of a sweep, what is before numbers.

    A name does not depend on what else is named, unless that has the same one: encoders may be added to a folder of results.
    """
    found = list[str]()
    for path in paths:
        bare = path.removeprefix(RANDOM).rstrip("/")
        parts = [part for part in pathlib.PurePath(bare).parts if part not in ("/", "model", "checkpoints")]
        last = next((n for n, part in enumerate(reversed(parts), 1) if not part.isdigit()), len(parts))
        name = re.sub(r"[^A-Za-z0-9_.+=-]", "-", "-".join(parts[-last:]))
        name = f"random-{name}" if path.startswith(RANDOM) else name or "encoder"
        number = 2
        while name in found:
            name, number = f"{name.removesuffix(f'-{number - 1}')}-{number}", number + 1
        found.append(name)
    return found
