"""ONNX graph of an encoder with its heads, written node by node from the parameters: no tracing, no torch, NumPy alone.

Only standard operators of opset 20, so that any runtime can load it. onnxruntime fuses residual and LayerNorm, bias and GELU,
scale and product when it opens the file. Rows and positions are dynamic. Parameters that layers share (ALBERT), and the token
table to which the heads of tokens are tied, are stored once.

Shapes: B rows, L positions, D hidden size, N heads, H width of a head, V vocabulary, C classes.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from spanjax import __version__
from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import Specials
from spanjax.nn.config import EncoderConfig
from spanjax.pretrained.model import Model
from spanjax.torch_format.task_tables import OUTPUTS, PREDICTION_HEAD, RELU

OPSET, IR_VERSION = 20, 9  # the first opset with Gelu; onnxruntime has read both since 1.17
ONE_FILE = 2**31 - 2**24  # bytes of parameters: protobuf ends at 2 GiB, nodes and names take the rest
EXTERNAL = "model.onnx_data"
"""File of the parameters of a model that is larger than ONE_FILE."""
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
HIDDEN, LOGITS, BOUNDARIES = "last_hidden_state", "logits", "sbo_logits"
ANSWERS = ("start_logits", "end_logits")
_UNSEEN = -1e9  # added to the scores of padding: finite, so that a row of padding alone gives no NaN
_ROWS, _POSITIONS = "batch", "length"

Tree = Mapping[str, Any]
_Kind = tuple[tuple[str, str] | None, str]
"""Cosine and sine of the rotary angles of a kind of layer, and the bias of its scores."""


class _Graph:
    """Nodes and parameters; every value is known by its name."""

    def __init__(self, encoder: EncoderConfig):
        self.encoder = encoder
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, np.ndarray] = {}

    def store(self, name: str, array: Any) -> str:
        """Adds a parameter, once however often it is used; returns its name."""
        self.stored.setdefault(name, np.asarray(array))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Adds a small constant; equal ones are stored once."""
        return self.store(f"constant.{np.dtype(dtype)}.{value}".replace(" ", ""), np.asarray(value, dtype))

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Adds a node with one output; returns the output's name, which is `name` or a new one."""
        return self.add_many(kind, 1, *inputs, name=name, **attributes)[0]

    def add_many(self, kind: str, count: int, *inputs: str, name: str = "", **attributes: Any) -> list[str]:
        """Adds a node with `count` outputs; returns their names."""
        own = f"{kind}.{len(self.nodes)}"
        outputs = [f"{name or own}{f'.{number}' if count > 1 else ''}" for number in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=own, **attributes))
        return outputs

    def dense(self, x: str, path: str, part: Tree, name: str = "") -> str:
        """x @ kernel + bias, with a bias where the layer has one."""
        kernel = self.store(f"{path}.kernel", part["kernel"])
        if part.get("bias") is None:
            return self.add("MatMul", x, kernel, name=name)
        return self.add("Add", self.add("MatMul", x, kernel), self.store(f"{path}.bias", part["bias"]), name=name)

    def norm(self, x: str, path: str, part: Tree, name: str = "") -> str:
        """LayerNorm over the last axis."""
        weights = [self.store(f"{path}.{each}", part[each]) for each in ("scale", "bias") if part.get(each) is not None]
        return self.add("LayerNormalization", x, *weights, name=name, axis=-1, epsilon=self.encoder.norm_epsilon)

    def activated(self, x: str, activation: str = "") -> str:
        """An activation, by default the encoder's."""
        activation = activation or self.encoder.activation
        if activation == "relu":
            return self.add("Relu", x)
        return self.add("Gelu", x, approximate="tanh" if activation == "gelu_tanh" else "none")


class _EncoderGraph(_Graph):
    """The graph of an encoder; heads read `hidden_BLD`."""

    def __init__(self, encoder: EncoderConfig, params: Tree, last: str):
        super().__init__(encoder)
        # Positions count the tokens that are no padding, so padding in front changes nothing. A running sum has the shape of its
        # input, from which onnxruntime infers the shapes that its fusions ask for; Range has one of its own.
        before = self.add("Sub", self.add("CumSum", MASK, self.constant(1)), self.constant(1))
        self.position_BL = self.add("Max", before, self.constant(0))
        seen_B11L = self.add("Cast", self.add("Unsqueeze", MASK, self.constant([1, 2])), to=TensorProto.FLOAT)
        unseen_B11L = self.add("Sub", self.constant(1, np.float32), seen_B11L)
        self.bias_B11L = self.add("Mul", unseen_B11L, self.constant(_UNSEEN, np.float32))
        self.local_bias = self._local_bias() if encoder.local_window else ""
        self.table = self.store("token", params["embeddings"]["token"]["embedding"][: encoder.vocab_size])
        self.hidden_BLD = self._stack(self._embedded(params["embeddings"]), params, last)

    def _embedded(self, params: Tree) -> str:
        encoder = self.encoder
        sum_BLE = self.add("Gather", self.table, IDS, axis=0)
        if not encoder.rope_theta:
            table = self.store("position", params["position"]["embedding"][encoder.position_offset :])
            sum_BLE = self.add("Add", sum_BLE, self.add("Gather", table, self.position_BL, axis=0))
        if encoder.types:
            # a table of one row is no choice: tokenizers of RoBERTa give no types
            table = params["type"]["embedding"]
            row = self.store("type", table if encoder.types > 1 else table[0])
            sum_BLE = self.add("Add", sum_BLE, self.add("Gather", row, TYPES, axis=0) if encoder.types > 1 else row)
        normed_BLE = self.norm(sum_BLE, "embeddings.norm", params["norm"])
        return self.dense(normed_BLE, "embeddings.widen", params["widen"]) if encoder.embedding_size else normed_BLE

    def _stack(self, hidden_BLD: str, params: Tree, last: str) -> str:
        """The layers; the last value is called `last`."""
        encoder, kinds = self.encoder, [(self._angles("", self.encoder.rope_theta), self.bias_B11L)]
        if encoder.local_window:
            kinds.append((self._angles("local_", encoder.local_rope_theta), self.local_bias))
        for number in range(encoder.layers):
            kind = kinds[int(number % (encoder.global_every or 1) > 0)]
            # layers of a group share their parameters, under the name of the group
            own = number // (encoder.layers // encoder.own_layers)
            layer = {
                part: {name: array[own] for name, array in leaves.items()} for part, leaves in params["layers"].items()
            }
            name = last if number == encoder.layers - 1 and not encoder.norm_first else ""
            hidden_BLD = self._layer(hidden_BLD, f"layer.{own}", layer, kind, number == 0, name)
        return self.norm(hidden_BLD, "final_norm", params["final_norm"], last) if encoder.norm_first else hidden_BLD

    def _local_bias(self) -> str:
        """Bias of scores in local layers, [B, 1, L, L]: of padding, and of tokens further apart than the window."""
        across = (self.add("Unsqueeze", self.position_BL, self.constant([1, axis])) for axis in (3, 2))
        apart_B1LL = self.add("Abs", self.add("Sub", *across))
        far_B1LL = self.add("Greater", apart_B1LL, self.constant(self.encoder.local_window))
        unseen_B1LL = self.add("Cast", far_B1LL, to=TensorProto.FLOAT)
        return self.add("Add", self.bias_B11L, self.add("Mul", unseen_B1LL, self.constant(_UNSEEN, np.float32)))

    def _layer(self, x: str, path: str, layer: Tree, kind: _Kind, first: bool, name: str) -> str:
        attention_norm, feed_norm = f"{path}.attention_norm", f"{path}.feed_norm"
        if self.encoder.norm_first:
            read = x if first else self.norm(x, attention_norm, layer["attention_norm"])
            x = self.add("Add", x, self._attended(read, path, layer, kind))
            return self.add("Add", x, self._fed(self.norm(x, feed_norm, layer["feed_norm"]), path, layer))
        x = self.norm(self.add("Add", x, self._attended(x, path, layer, kind)), attention_norm, layer["attention_norm"])
        return self.norm(self.add("Add", x, self._fed(x, path, layer)), feed_norm, layer["feed_norm"], name)

    def _attended(self, x: str, path: str, layer: Tree, kind: _Kind) -> str:
        """Attention, of one product for queries, keys and values."""
        heads, size, (angles, bias) = self.encoder.heads, self.encoder.hidden_size, kind
        parts = [layer[name] for name in ("query", "key", "value")]
        joint = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
        made = self.add_many("Split", 3, self.dense(x, f"{path}.qkv", joint), axis=-1, num_outputs=3)
        split = self.constant([0, 0, heads, size // heads])
        query_BLNH, key_BLNH, value_BLNH = (self.add("Reshape", each, split) for each in made)
        if angles:
            query_BLNH, key_BLNH = self._rotated(query_BLNH, *angles), self._rotated(key_BLNH, *angles)
        query_BNLH = self.add("Transpose", query_BLNH, perm=[0, 2, 1, 3])
        product_BNLL = self.add("MatMul", query_BNLH, self.add("Transpose", key_BLNH, perm=[0, 2, 3, 1]))
        scores_BNLL = self.add("Mul", product_BNLL, self.constant((size // heads) ** -0.5, np.float32))
        weights_BNLL = self.add("Softmax", self.add("Add", scores_BNLL, bias), axis=-1)
        mixed_BNLH = self.add("MatMul", weights_BNLL, self.add("Transpose", value_BLNH, perm=[0, 2, 1, 3]))
        mixed_BLNH = self.add("Transpose", mixed_BNLH, perm=[0, 2, 1, 3])
        mixed_BLD = self.add("Reshape", mixed_BLNH, self.constant([0, 0, size]))
        return self.dense(mixed_BLD, f"{path}.output", layer["output"])

    def _fed(self, x: str, path: str, layer: Tree) -> str:
        inner_BLI = self.activated(self.dense(x, f"{path}.feed_in", layer["feed_in"]))
        if self.encoder.gated_mlp:
            inner_BLI = self.add("Mul", inner_BLI, self.dense(x, f"{path}.feed_gate", layer["feed_gate"]))
        return self.dense(inner_BLI, f"{path}.feed_out", layer["feed_out"])

    def _angles(self, kind: str, base: float) -> tuple[str, str] | None:
        """Cosine and sine of `nn.layer.rotary_angles`, [B, L, 1, H] each, from tables of all positions; None without a base."""
        if not base:
            return None
        encoder = self.encoder
        head_size = encoder.hidden_size // encoder.heads
        exponent_H = -np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
        rates_H = np.float32(base) ** exponent_H
        angle = np.arange(encoder.positions, dtype=np.float32)[:, None] * rates_H
        angle = np.concatenate([angle, angle], axis=-1)[:, None]
        tables = (self.store(f"{kind}cosine", np.cos(angle)), self.store(f"{kind}sine", np.sin(angle)))
        cosine, sine = (self.add("Gather", table, self.position_BL, axis=0) for table in tables)
        return cosine, sine

    def _rotated(self, x_BLNH: str, cosine: str, sine: str) -> str:
        left, right = self.add_many("Split", 2, x_BLNH, axis=-1, num_outputs=2)
        crossed_BLNH = self.add("Concat", self.add("Neg", right), left, axis=-1)
        return self.add("Add", self.add("Mul", x_BLNH, cosine), self.add("Mul", crossed_BLNH, sine))

    def decoded(self, x_BLE: str, path: str, bias_V: Any, name: str) -> str:
        """Scores of every token of the vocabulary, [B, L, V]: a Gemm reads the table of the embeddings as it is stored."""
        width, size = self.encoder.embedding_width, self.encoder.vocab_size
        flat = self.add("Reshape", x_BLE, self.constant([-1, width]))
        bias = self.store(f"{path}.bias", bias_V[:size])
        scores = self.add("Gemm", flat, self.table, bias, transB=1)
        shape = self.add("Concat", self.add("Shape", IDS), self.constant([size]), axis=0)
        return self.add("Reshape", scores, shape, name=name)

    def masked_tokens(self, head: Tree) -> str:
        """The masked token head, [B, L, V]."""
        return self.decoded(self.predicted(self.hidden_BLD, "mlm", head), "mlm", head["bias"], LOGITS)

    def predicted(self, x: str, path: str, head: Tree) -> str:
        """`nn.heads.PredictionHead`."""
        inner = self.activated(self.dense(x, f"{path}.dense", head["dense"]))
        return self.norm(inner, f"{path}.norm", head["norm"])

    def mean(self) -> str:
        """The mean over the tokens of a row that are no padding, [B, D]; 0 for a row of padding alone."""
        real_BL1 = self.add("Cast", self.add("Unsqueeze", MASK, self.constant([2])), to=TensorProto.FLOAT)
        parts = (self.add("Mul", self.hidden_BLD, real_BL1), real_BL1)
        sum_BD, count_B1 = (self.add("ReduceSum", each, self.constant([1]), keepdims=0) for each in parts)
        return self.add("Div", sum_BD, self.add("Max", count_B1, self.constant(1, np.float32)))

    def boundaries(self, head: Tree, mask: int) -> str:
        """The span boundary head, [B, L, V], for every token `mask` of `input_ids`: a span is a run of them, as in
        `inference.fill_mask`. Scores of other tokens mean nothing. Offsets beyond the table take its last row."""
        last = self.add("Sub", self.add("Shape", IDS, start=1, end=2), self.constant([1]))
        place_L = self.add(
            "Range", self.constant(0), self.add("Squeeze", self.add("Shape", IDS, start=1)), self.constant(1)
        )
        here_L1 = self.add("Unsqueeze", place_L, self.constant([1]))
        other_B1L = self.add(
            "Unsqueeze", self.add("Not", self.add("Equal", IDS, self.constant(mask))), self.constant([1])
        )
        # [B, L, L]: the nearest token on either side that is no mask
        before = self.add("And", other_B1L, self.add("LessOrEqual", place_L, here_L1))
        after = self.add("And", other_B1L, self.add("GreaterOrEqual", place_L, here_L1))
        axis = self.constant([-1])
        left_BL = self.add("ReduceMax", self.add("Where", before, place_L, self.constant(0)), axis, keepdims=0)
        right_BL = self.add("ReduceMin", self.add("Where", after, place_L, last), axis, keepdims=0)
        inside_BL = self.add("Sub", self.add("Sub", place_L, left_BL), self.constant(1))
        rows = len(head["position"]["embedding"])
        offset_BL = self.add("Max", self.add("Min", inside_BL, self.constant(rows - 1)), self.constant(0))
        neighbours = [
            self.add("GatherND", self.hidden_BLD, self.add("Unsqueeze", each, axis), batch_dims=1)
            for each in (left_BL, right_BL)
        ]
        offsets = self.add("Gather", self.store("sbo.position", head["position"]["embedding"]), offset_BL, axis=0)
        state = self.add("Concat", *neighbours, offsets, axis=-1)
        for number in ("1", "2"):
            state = self.activated(self.dense(state, f"sbo.dense{number}", head[f"dense{number}"]))
            state = self.norm(state, f"sbo.norm{number}", head[f"norm{number}"])
        return self.decoded(state, "sbo", head["bias"], BOUNDARIES)

    def classes(self, params: Tree, part: str, whole_row: bool, mean: bool = False) -> list[str]:
        """Scores of rows [B, C], read from [CLS] or from the mean, or of tokens [B, L, C]; of answers the two outputs ANSWERS."""
        x = self.hidden_BLD
        if whole_row:
            x = self.mean() if mean else self.add("Gather", x, self.constant(0), axis=1)
        if PREDICTION_HEAD in params:
            x = self.predicted(x, PREDICTION_HEAD, params[PREDICTION_HEAD])
        elif whole_row and "pooler" in params:
            x = self.add("Tanh", self.dense(x, "pooler", params["pooler"]["dense"]))
        elif whole_row and "pre_classifier" in params:
            x = self.activated(self.dense(x, "pre_classifier", params["pre_classifier"]), "gelu")
        elif whole_row and RELU in params:
            x = self.activated(self.dense(x, RELU, params[RELU]), "relu")
        if part != OUTPUTS["question"]:
            return [self.dense(x, part, params[part], LOGITS)]
        both_BL2 = self.dense(x, part, params[part])
        places = [self.constant(0), self.constant(1)]
        return [
            self.add("Gather", both_BL2, each, name=name, axis=2) for each, name in zip(places, ANSWERS, strict=True)
        ]


def graph_problems(model: Model, boundaries: bool) -> list[str]:
    """Returns the reasons why no graph of this model can be written."""
    found = []
    if model.encoder.relative_attention:
        found.append("the encoder has relative attention (XLNet): expected absolute or rotary positions; use to-torch")
    if model.encoder.disentangled:
        found.append(
            "the encoder has disentangled attention (DeBERTa): expected absolute or rotary positions; use to-torch"
        )
    if "span_network" in model.params:
        found.append("the model has a span_network (span fine-tuning), which is not exported: fine-tune without spans")
    if boundaries and "sbo" not in model.params:
        found.append("--sbo: the model has no span boundary head; leave it out")
    if boundaries and model.vocabulary is None:
        found.append("--sbo: the model came without a vocabulary, so the id of [MASK] is unknown; leave it out")
    return found


def onnx_model(model: Model, boundaries: bool = False) -> onnx.ModelProto:
    """Builds the graph of the encoder and of the heads in `model.params`: a task's, else those of tokens, else none.

    `boundaries` adds the span boundary head. ValueError lists what has no graph.
    """
    raise_problems(graph_problems(model, boundaries), "")
    encoder, params, head = model.encoder, model.params, OUTPUTS[model.kind] if model.kind else ""
    bare = not head and "mlm" not in params
    graph = _EncoderGraph(encoder, params["encoder"], HIDDEN if bare else "")
    if head:
        mean = (model.task or {}).get("pooling") == "mean"
        outputs = graph.classes(params, head, model.kind == "sequence", mean)
        shape = [_ROWS] if model.kind == "sequence" else [_ROWS, _POSITIONS]
        shape += [] if model.kind == "question" else [params[head]["kernel"].shape[1]]
    elif bare:
        outputs, shape = [graph.hidden_BLD], [_ROWS, _POSITIONS, encoder.hidden_size]
    else:
        outputs, shape = [graph.masked_tokens(params["mlm"])], [_ROWS, _POSITIONS, encoder.vocab_size]
        if boundaries:
            specials: Specials = model.vocabulary.specials  # pyright: ignore[reportOptionalMemberAccess]
            outputs.append(graph.boundaries(params["sbo"], specials.mask))
    return _finished(graph, outputs, shape)


def _finished(graph: _Graph, outputs: Sequence[str], shape: Sequence[str | int]) -> onnx.ModelProto:
    given = [IDS, MASK, *([TYPES] if graph.encoder.types > 1 else [])]
    made = helper.make_graph(
        graph.nodes,
        "spanjax",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [_ROWS, _POSITIONS]) for name in given],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in graph.stored.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(
        made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="spanjax", producer_version=__version__
    )


def write_onnx(graph: onnx.ModelProto, path: pathlib.Path) -> None:
    """Writes a graph: as one file, or with its parameters in EXTERNAL next to it where they are larger than ONE_FILE."""
    external = sum(len(tensor.raw_data) for tensor in graph.graph.initializer) > ONE_FILE
    onnx.save_model(graph, str(path), save_as_external_data=external, location=EXTERNAL if external else None)
    # the checker reads files of any size by their path alone
    onnx.checker.check_model(str(path), full_check=True)
