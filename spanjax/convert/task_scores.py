"""Scores of fine-tuning heads: computed here, or taken from the output of transformers.

Shapes: S sentences, L positions, D hidden size, C classes (2 for start and end of an answer).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from spanjax.nn.heads import DetectionHead
from spanjax.nn.pointwise import ACTIVATIONS
from spanjax.pretrained.model import Model
from spanjax.torch_format.task_tables import CLASSES, OUTPUTS


def scores_here(model: Model, hidden_SLD: Any) -> np.ndarray | None:
    """Scores of each row [S, C] or position [S, L, C], from the hidden states of the last layer; None without such a head."""
    if model.kind is None or "span_network" in model.params:
        return None
    head = model.params[OUTPUTS[model.kind]]
    read_SLD = jnp.asarray(hidden_SLD)
    if model.kind == "sequence":
        read_SLD = read_SLD[:, 0]
        if "pooler" in model.params:
            dense = model.params["pooler"]["dense"]
            read_SLD = jnp.tanh(read_SLD @ dense["kernel"] + dense["bias"][None])
        elif "pre_classifier" in model.params:
            dense = model.params["pre_classifier"]
            read_SLD = ACTIVATIONS["gelu"](read_SLD @ dense["kernel"] + dense["bias"][None])
    scores_SLC = jnp.einsum("...d,dc->...c", read_SLD, jnp.asarray(head["kernel"]))
    return np.asarray(scores_SLC) + head["bias"]


def detection_here(model: Model, hidden_SLD: Any) -> np.ndarray | None:
    """Log-odds that a token was replaced, [S, L]; None without such a head."""
    if "rtd" not in model.params:
        return None
    structure = nnx.split(nnx.eval_shape(lambda: DetectionHead(model.encoder, nnx.Rngs(0))))[0]
    head: Any = nnx.merge(structure, jax.tree.map(jnp.asarray, model.params["rtd"]))
    return np.asarray(head(jnp.asarray(hidden_SLD)))


def their_class(transformers: Any, model: Model) -> Any:
    """The class of transformers that loads a folder of such a model."""
    if model.kind:
        return getattr(transformers, f"AutoModel{CLASSES[model.kind]}")
    if "rtd" in model.params:
        return transformers.AutoModelForPreTraining
    if "plm" in model.params:
        return transformers.XLNetLMHeadModel
    return transformers.AutoModelForMaskedLM if "mlm" in model.params else transformers.AutoModel


def their_scores(model: Model, output: Any) -> np.ndarray | None:
    """The same scores in the output of such a class."""
    if model.kind == "question":
        return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)
    return output.logits.numpy() if model.kind else None
