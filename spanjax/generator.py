"""The generator of a model that detects replaced tokens (ELECTRA), taken out as a model of its own and put back.

It shares the embeddings of its encoder; by itself it is an encoder with a masked token head.
"""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from spanjax.model import Model, load_model
from spanjax.torch_format.folder import is_weights
from spanjax.trees import named_leaves

PART = "generator"
FOLDER = "generator"  # in a folder of PyTorch weights
_SHARED = ("token", "position", "type", "norm")


def generator_of(model: Model) -> Model:
    """The generator with the embeddings that it shares, and its masked token head. ValueError where there is none."""
    if PART not in model.params:
        raise ValueError(f"{model.source} has no generator")
    part, encoder = model.params[PART], model.encoder
    embeddings = {name: model.params["encoder"]["embeddings"][name] for name in _SHARED}
    embeddings |= {"widen": part["widen"]} if "widen" in part else {}
    layers, inner = part["layers"]["feed_in"]["kernel"].shape[0], part["layers"]["feed_in"]["kernel"].shape[2]
    size = part["layers"]["feed_in"]["kernel"].shape[1]
    config = dataclasses.replace(
        encoder,
        hidden_size=size,
        layers=layers,
        heads=_heads(model, size),
        intermediate_size=inner,
        embedding_size=encoder.embedding_width if "widen" in part else 0,
        groups=0,
        unroll=1,
    )
    params = {"encoder": {"embeddings": embeddings, "layers": part["layers"]}, "mlm": part["mlm"]}
    return dataclasses.replace(model, encoder=config, params=params, said=(), loaded=None)


def filling(model: Model) -> Model:
    """The model that puts tokens into masks: itself, or the generator where only that can."""
    return generator_of(model) if PART in model.params and "mlm" not in model.params else model


def without_generator(model: Model) -> Model:
    """The encoder with its own heads."""
    return dataclasses.replace(model, params={name: part for name, part in model.params.items() if name != PART})


def with_generator(model: Model) -> Model:
    """A model of PyTorch weights together with the generator in the folder `generator` beside them, where there is one.

    ValueError where the two do not belong together.
    """
    folder = (model.source if model.source.is_dir() else model.source.parent) / FOLDER
    if "rtd" not in model.params or not is_weights(folder):
        return model
    found = load_model(folder)
    if problems := _problems(model, found, folder):
        raise ValueError(
            f"{folder} is not the generator of {model.source}:\n" + "\n".join(f"  - {each}" for each in problems)
        )
    part: dict[str, Any] = {"layers": found.params["encoder"]["layers"], "mlm": found.params["mlm"]}
    if "widen" in found.params["encoder"]["embeddings"]:
        part["widen"] = found.params["encoder"]["embeddings"]["widen"]
    return dataclasses.replace(model, params={**model.params, PART: part}, said=(*model.said, f"with its {FOLDER}"))


def _heads(model: Model, size: int) -> int:
    """Attention heads of a generator of this width: as wide as those of the encoder."""
    return max(1, size * model.encoder.heads // model.encoder.hidden_size)


def _problems(model: Model, found: Model, folder: pathlib.Path) -> list[str]:
    """Why the second model cannot be the generator of the first, in words."""
    if "mlm" not in found.params:
        return [f"{folder} has no masked token head"]
    expected = _heads(model, found.encoder.hidden_size)
    problems = []
    if found.encoder.heads != expected:
        problems.append(f"it has {found.encoder.heads} attention heads: expected {expected}, as wide as the encoder's")
    own, theirs = (named_leaves(each.params["encoder"]["embeddings"]) for each in (model, found))
    shared = [name for name in own if name.split("/")[0] in _SHARED]
    problems += [
        f"embeddings/{name} differs from the encoder's: expected shared embeddings"
        for name in shared
        if name not in theirs or not np.array_equal(own[name], theirs[name])
    ]
    return problems
