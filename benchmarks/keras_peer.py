"""keras-hub's BertMaskedLM on JAX as a peer of the training step, as it comes and with a span boundary head."""

import os
from typing import Any

import numpy as np

_LAYER = (  # keras-hub's name inside a layer, ours inside the stack
    ("self_attention_layer/query", "query"),
    ("self_attention_layer/key", "key"),
    ("self_attention_layer/value", "value"),
    ("self_attention_layer/attention_output", "output"),
    ("self_attention_layer_norm", "attention_norm"),
    ("feedforward_intermediate_dense", "feed_in"),
    ("feedforward_output_dense", "feed_out"),
    ("feedforward_layer_norm", "feed_norm"),
)
_OTHERS = (
    ("token_embedding/embeddings", "encoder/embeddings/token/embedding"),
    ("position_embedding/embeddings", "encoder/embeddings/position/embedding"),
    ("segment_embedding/embeddings", "encoder/embeddings/type/embedding"),
    ("embeddings_layer_norm", "encoder/embeddings/norm"),
    ("mlm_head/output_bias", "mlm/bias"),
    ("mlm_head/intermediate_dense", "mlm/dense"),
    ("mlm_head/intermediate_layer_norm", "mlm/norm"),
    ("sbo_position", "sbo/position"),
    ("sbo_dense1", "sbo/dense1"),
    ("sbo_norm1", "sbo/norm1"),
    ("sbo_dense2", "sbo/dense2"),
    ("sbo_norm2", "sbo/norm2"),
    ("sbo_bias/bias", "sbo/bias"),
)
_PARTS = {"gamma": "scale", "beta": "bias", "embeddings": "embedding"}


def keras_hub() -> Any:
    """The package, on JAX. ImportError says how it is installed."""
    os.environ["KERAS_BACKEND"] = "jax"
    try:
        import keras_hub  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("keras-hub is not installed: pip install --no-deps keras-hub") from error
    return keras_hub


class KerasPeer:
    """BertMaskedLM, compiled with AdamW and clipping, holding the weights of `params` (nested, named as ours).

    It activates its layers by the tanh approximation of GELU, and knows one block a row.
    """

    def __init__(self, encoder: Any, params: Any, dropout: float, boundary: bool):
        hub = keras_hub()
        import keras

        backbone = hub.models.BertBackbone(
            vocabulary_size=encoder.vocab_size,
            num_layers=encoder.layers,
            num_heads=encoder.heads,
            hidden_dim=encoder.hidden_size,
            intermediate_dim=encoder.intermediate_size,
            dropout=dropout,
            max_sequence_length=encoder.positions,
        )
        self.boundary = boundary
        self.model: Any = hub.models.BertMaskedLM(backbone, preprocessor=None)
        losses: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if boundary:
            self.model = with_boundary_head(self.model, params)
            losses = [losses, losses]
        optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.1, global_clipnorm=1.0)
        self.model.compile(optimizer=optimizer, loss=losses, jit_compile=True)
        load(self.model, params)

    def batch(self, batch: Any) -> tuple[dict[str, np.ndarray], Any, Any]:
        """(inputs, targets, weights) of our batch of one block a row; weights make each loss a mean over its targets."""
        inputs = {
            "token_ids": batch["tokens_BL"],
            "segment_ids": batch["types_BL"],
            "padding_mask": (batch["segments_BL"] > 0).astype(np.int32),
            "mask_positions": batch["slot_position_BK"],
        }
        target, weight = batch["slot_target_BK"], _scaled(batch["slot_weight_BK"])
        if not self.boundary:
            return inputs, target, weight
        inputs |= {f"{side}_positions": batch[f"slot_{side}_BK"] for side in ("left", "right", "offset")}
        return inputs, [target, target], [weight, _scaled(batch["slot_boundary_weight_BK"])]

    def means(self, batch: tuple[Any, Any, Any]) -> dict[str, float]:
        """The losses, without dropout."""
        found = self.model.test_on_batch(*batch, return_dict=True)
        names = {"mlm": "mlm_head_loss", "sbo": "sbo_bias_loss"} if self.boundary else {"mlm": "loss"}
        return {ours: float(found[name]) for ours, name in names.items()}

    def run(self, batch: tuple[Any, Any, Any]) -> None:
        """One update, finished."""
        self.model.train_on_batch(*batch)


def _scaled(weight_BK: np.ndarray) -> np.ndarray:
    """Keras divides by the number of slots, not of targets."""
    return weight_BK * np.float32(weight_BK.size / max(float(weight_BK.sum()), 1.0))


def with_boundary_head(masked: Any, params: Any) -> Any:
    """A model of both losses around the encoder of `masked`: SpanBERT's head as Keras layers, decoded by the token table."""
    import keras

    offsets, width = params["sbo"]["position"]["embedding"].shape
    hidden = masked.backbone.output["sequence_output"]
    extra = {
        name: keras.Input((None,), dtype="int32", name=f"{name}_positions") for name in ("left", "right", "offset")
    }

    ops: Any = keras.ops

    def gather(pair: Any) -> Any:
        states, places = pair  # as one table: its gradient is faster than that of take_along_axis
        rows, length, size = ops.shape(states)
        first = ops.arange(rows, dtype="int32")[:, None] * length
        return ops.take(ops.reshape(states, (-1, size)), places + first, axis=0)

    left, right = (
        keras.layers.Lambda(gather, output_shape=(None, hidden.shape[-1]))([hidden, extra[side]])
        for side in ("left", "right")
    )
    state = [left, right, keras.layers.Embedding(offsets, width, name="sbo_position")(extra["offset"])]
    state = keras.layers.Concatenate()(state)
    for number in ("1", "2"):
        state = keras.layers.Dense(hidden.shape[-1], activation="gelu", name=f"sbo_dense{number}")(state)
        state = keras.layers.LayerNormalization(epsilon=1e-12, name=f"sbo_norm{number}")(state)
    scores = masked.backbone.token_embedding(state, reverse=True)

    class Bias(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.bias = self.add_weight(name="bias", shape=(shape[-1],), initializer="zeros")

        def call(self, scores: Any) -> Any:
            return scores + self.bias

    inputs = {**masked.input, **{f"{name}_positions": value for name, value in extra.items()}}
    return keras.Model(inputs, [masked.output, Bias(name="sbo_bias")(scores)])


def load(model: Any, params: Any) -> None:
    """Puts our weights into the model; AssertionError for one that found none."""
    from spanjax.sharding import named_leaves

    ours, named = named_leaves(params), dict(_OTHERS)
    for weight in model.weights:
        path, _, part = weight.path.rpartition("/")
        if path.startswith("pooled_dense"):
            continue  # of no loss here
        if weight.path in named:
            found = np.asarray(ours[named[weight.path]])[: weight.shape[0]]
        elif path in named:
            found = np.asarray(ours[f"{named[path]}/{_PARTS.get(part, part)}"])
        else:
            layer, _, inner = path.removeprefix("transformer_layer_").partition("/")
            name = f"encoder/layers/{dict(_LAYER)[inner]}/{_PARTS.get(part, part)}"
            found = np.asarray(ours[name])[int(layer)]
        assert found.size == np.prod(weight.shape), f"{weight.path} has shape {weight.shape}, ours {found.shape}"
        weight.assign(found.reshape(weight.shape))
