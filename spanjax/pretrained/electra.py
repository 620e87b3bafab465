"""Takes the generator out of a model that detects replaced tokens (ELECTRA), as a model of its own, and puts it back.

It shares the embeddings of its encoder; on its own it is an encoder with a masked token head.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.electra import generator_encoder
from spanjax.pretrained.model import Model
from spanjax.sharding import named_leaves
from spanjax.torch_format.folder import is_weights

PART = "generator"  # of our parameters
FOLDER = "generator"  # in a folder of PyTorch weights
WIDEN = "widen"  # the only part of the embeddings that is the generator's own


def generator_of(model: Model) -> Model:
    """Returns the generator with the embeddings that it shares, and its masked token head. ValueError if there is none."""
    if PART not in model.params:
        raise ValueError(f"{model.source} has no generator")
    part = model.params[PART]
    embeddings = _shared(model) | {name: part[name] for name in part.keys() & {WIDEN}}
    layers = {name: each for name, each in part.items() if name not in ("mlm", WIDEN)}
    return dataclasses.replace(
        model,
        encoder=_encoder(model, part["layers"]),
        params={"encoder": {"embeddings": embeddings, **layers}, "mlm": part["mlm"]},
        notes=(),
        loaded=None,
        trained=None,
    )


def _shared(model: Model) -> dict[str, Any]:
    return {name: each for name, each in model.params["encoder"]["embeddings"].items() if name != WIDEN}


def _encoder(model: Model, layers: Any) -> EncoderConfig:
    """Sizes of a generator with these layers."""
    return generator_encoder(model.encoder, *(layers["feed_in"]["kernel"].shape[axis] for axis in (1, 0, 2)))


def filling(model: Model) -> Model:
    """Returns the model that fills masks: itself, or the generator if only that can."""
    return generator_of(model) if PART in model.params and "mlm" not in model.params else model


def without_generator(model: Model) -> Model:
    """Returns the encoder with its own heads."""
    return dataclasses.replace(model, params={name: part for name, part in model.params.items() if name != PART})


def folder_beside(source: pathlib.Path) -> pathlib.Path:
    """Returns the folder for the generator of PyTorch weights; `source` is their folder or a file in it."""
    return (source if source.is_dir() else source.parent) / FOLDER


def with_generator(model: Model, load: Callable[[pathlib.Path], Model]) -> Model:
    """Adds to a model of PyTorch weights the generator in the folder `generator` next to them, if there is one.

    `load` reads a folder. ValueError if the two do not belong together.
    """
    folder = folder_beside(model.source)
    if "rtd" not in model.params or not is_weights(folder):
        return model
    found = load(folder)
    raise_problems(_problems(model, found, folder), f"{folder} is not the generator of {model.source}:")
    encoder = found.params["encoder"]
    own = {name: each for name, each in encoder.items() if name != "embeddings"}
    own |= {name: encoder["embeddings"][name] for name in encoder["embeddings"].keys() & {WIDEN}}
    part = {**own, "mlm": found.params["mlm"]}
    return dataclasses.replace(model, params={**model.params, PART: part}, notes=(*model.notes, f"with its {FOLDER}"))


def _problems(model: Model, found: Model, folder: pathlib.Path) -> list[str]:
    """Returns the reasons why the second model cannot be the generator of the first."""
    if "mlm" not in found.params:
        return [f"{folder} has no masked token head"]
    expected = _encoder(model, found.params["encoder"]["layers"]).heads
    problems = []
    if found.encoder.heads != expected:
        problems.append(f"it has {found.encoder.heads} attention heads: expected {expected}, as wide as the encoder's")
    own, theirs = (named_leaves(_shared(each)) for each in (model, found))
    problems += [
        f"embeddings/{name} differs from the encoder's: expected shared embeddings"
        for name in own
        if name not in theirs or not np.array_equal(own[name], theirs[name])
    ]
    return problems
