"""Settings of the encoder in three groups: what the weights mean, how they are trained, how they run. BERT's by default; RoBERTa,
ALBERT, XLNet, DeBERTa and a modern recipe are settings of the architecture.

The fields of a class tell to which group a setting belongs.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from spanjax.bounds import AtLeast0, AtLeast1, DropRate, NotNegative, Positive, range_problems
from spanjax.nn.pointwise import ACTIVATIONS

VOCABULARY_MULTIPLE = 128
POSITION_SCORES = {"none": 0, "c2p": 1, "p2c": 1, "both": 2}
"""Value of `disentangled_attention` -> number of scores that read positions."""
REMAT = ("none", "elementwise", "dots", "full")


Backend = Literal[
    "auto", "xla", "xla_chunked", "splash", "cudnn", "cudnn_packed", "pallas_hopper", "pallas_tpu", "pallas_triton"
]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Settings that decide what a tree of parameters means: another value needs other weights."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "gated": "gated_mlp",
        "groups": "num_layer_groups",
        "relative": "relative_attention",
        "rotary": "rope_theta",
    }
    """Names of settings in version 0.1 -> their names now; `run_format` reads both."""

    vocab_size: AtLeast0 = 0
    """Number of pieces; 0 takes the size of the vocabulary of the rows."""
    hidden_size: AtLeast1 = 768
    """Width of the hidden states."""
    layers: AtLeast1 = 12
    """Number of layers."""
    heads: AtLeast1 = 12
    """Attention heads; must divide hidden_size."""
    intermediate_size: AtLeast1 = 3072
    """Width inside the feed-forward part of a layer."""
    positions: AtLeast1 = 512
    """The longest block that can be encoded."""
    position_offset: AtLeast0 = 0
    """Rows of the position table before that of position 0, which are never used: 2 in RoBERTa."""
    embedding_size: AtLeast0 = 0
    """Width of the embeddings, which a product widens to hidden_size (ALBERT); 0 takes hidden_size, without a product."""
    num_layer_groups: AtLeast0 = 0
    """Number of layer groups; the consecutive layers of a group share parameters: 1 in ALBERT; 0 gives every layer its own."""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """Activation of feed-forward parts and heads: GELU by the error function (BERT), its tanh approximation (ALBERT v2), or
    max(x, 0)."""
    types: AtLeast0 = 2
    """Rows of the token type table; 0: there is none."""
    norm_first: bool = False
    """Pre-norm: LayerNorm before attention and feed-forward parts, and one after the last layer; the first attention reads the
    embeddings' own LayerNorm. False: after each of them (post-norm), as in BERT."""
    rope_theta: NotNegative = 0.0
    """Base of the rotary position embeddings (RoPE; 10,000, or 160,000 in ModernBERT), which replace the table of positions; 0
    uses learned positions."""
    local_window: AtLeast0 = 0
    """Positions on each side that a token of a local layer attends to, besides its own (64 in ModernBERT, whose `local_attention`
    128 counts both sides); 0: all layers are global."""
    global_every: AtLeast0 = 0
    """Distance between global layers, the first layer being one; those in between are local (3 in ModernBERT). Above 1 with
    local_window, else 0."""
    local_rope_theta: NotNegative = 0.0
    """Base of the rotary position embeddings of local layers (10,000 in ModernBERT, 160,000 in mmBERT). Above 0 with local_window
    and rope_theta, else 0."""
    relative_attention: bool = False
    """Relative attention: scores of distances and of equal types, instead of tables of positions and types and the LayerNorm of
    the embeddings (Transformer-XL and XLNet)."""
    disentangled_attention: Literal["none", "c2p", "p2c", "both"] = "none"
    """Disentangled attention (DeBERTa): adds scores of a query's content with the embedding of the distance (c2p), of that
    embedding with a key's content (p2c), or both, instead of a table of positions; none: without them."""
    max_distance: AtLeast0 = 0
    """Distance from which on all count as one in disentangled attention, on each side (512 in DeBERTa-v3). Above 0 with
    disentangled_attention, else 0."""
    distance_buckets: AtLeast0 = 0
    """Embeddings of distances on each side: small distances have one each, larger ones share them by their logarithm (256 in
    DeBERTa-v3); 0: one for every distance below max_distance."""
    distance_norm: bool = False
    """LayerNorm of the embeddings of distances."""
    shared_projections: bool = False
    """Project the embeddings of distances by the query and key kernels of each layer's content; False: by two of their own."""
    gated_mlp: bool = False
    """Gated feed-forward parts: the activation of one product is multiplied by a second product (GeGLU)."""
    biases: bool = True
    """Biases in dense layers, LayerNorms and the masked token head, whose bias of every piece always stays."""
    norm_epsilon: Positive = 1e-12
    """Added to the variance in every LayerNorm."""
    initializer_std: NotNegative = 0.02
    """Standard deviation of the normal initialisation of every kernel and table (not truncated)."""

    @property
    def padded_vocab_size(self) -> int:
        """vocab_size rounded up to a multiple of 128, as the tables are stored."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def embedding_width(self) -> int:
        """Width of the token table and of the vectors that it decodes."""
        return self.embedding_size or self.hidden_size

    @property
    def disentangled(self) -> bool:
        """True with disentangled attention."""
        return self.disentangled_attention != "none"

    @property
    def own_layers(self) -> int:
        """Layers with parameters of their own: the length of the stack."""
        return self.num_layer_groups or self.layers

    @property
    def global_layers(self) -> int:
        """Layers in which a token attends to its whole block."""
        return -(-self.layers // self.global_every) if self.local_window else self.layers

    def _local_pairs(self, tokens: float, pairs: float) -> float:
        """Pairs of tokens at most local_window apart; exact where all blocks are of one length, which is then pairs / tokens."""
        window = self.local_window
        if pairs <= tokens * (window + 1):
            return pairs
        # the window is cut off at both ends of a block
        return tokens * (2 * window + 1) - window * (window + 1) * tokens**2 / pairs

    def flops(self, tokens: float, pairs: float) -> float:
        """Operations (multiply-add = 2) of the matrix products of layers and attention, forward and backward, without remat, for
        `tokens` tokens and `pairs` pairs of tokens of one block (PaLM-style count). Local layers count pairs in the window."""
        size = self.hidden_size
        inner = (3 if self.gated_mlp else 2) * self.intermediate_size
        products = 6 * self.layers * (4 * size**2 + size * inner) * tokens
        # of content and distances, and the mixed values
        scores = (2 if self.relative_attention else 1 + POSITION_SCORES[self.disentangled_attention]) + 1
        attended = self.global_layers * pairs
        if self.local_window:
            attended += (self.layers - self.global_layers) * self._local_pairs(tokens, pairs)
        return products + 6 * self.embedding_size * size * tokens + 6 * scores * size * attended

    def _relative_problems(self) -> list[str]:
        """Settings that do not combine with relative attention."""
        others = ("position_offset", "embedding_size", "norm_first", "rope_theta", "gated_mlp", "local_window")
        found = [
            f"encoder.{name} is {getattr(self, name)}: expected {type(getattr(self, name))()} with encoder.relative_attention"
            for name in others
            if getattr(self, name)
        ]
        if not self.biases:
            found.append("encoder.biases is False: expected True with encoder.relative_attention")
        if self.hidden_size % 2:
            found.append(
                f"encoder.hidden_size is {self.hidden_size}: expected an even one with encoder.relative_attention"
            )
        return found

    def _disentangled_problems(self) -> list[str]:
        """Settings of distances that do not combine with or without disentangled attention, as text."""
        if self.disentangled_attention not in POSITION_SCORES:
            expected = ", ".join(POSITION_SCORES)
            return [f"encoder.disentangled_attention is {self.disentangled_attention!r}: expected one of {expected}"]
        own = ("max_distance", "distance_buckets", "distance_norm", "shared_projections")
        others = ("relative_attention", "position_offset", "rope_theta", "local_window")
        names, which = (others, "with") if self.disentangled else (own, "without")
        found = [
            f"encoder.{name} is {getattr(self, name)}: expected {type(getattr(self, name))()} {which}"
            " encoder.disentangled_attention"
            for name in names
            if getattr(self, name)
        ]
        if self.disentangled_attention == "none":
            return found
        if not self.max_distance:
            found.append(
                "encoder.max_distance is 0: expected a distance above 0 with encoder.disentangled_attention, 512 in DeBERTa-v3"
            )
        # half of the buckets hold one distance each; the logarithm needs a larger one for the other half
        least = self.distance_buckets // 2 + 2
        if self.distance_buckets == 1 or (self.distance_buckets and 0 < self.max_distance < least):
            found.append(
                f"encoder.distance_buckets is {self.distance_buckets} with encoder.max_distance {self.max_distance}: expected 0,"
                " or 2 to twice the distance minus 4"
            )
        return found

    def _local_problems(self) -> list[str]:
        """Settings of local layers without each other, as text."""
        found = []
        if self.local_window and self.global_every < 2:
            found.append(
                f"encoder.global_every is {self.global_every}: expected 2 or more with encoder.local_window, 3 in ModernBERT"
            )
        if self.global_every and not self.local_window:
            found.append(f"encoder.global_every is {self.global_every}: expected 0 without encoder.local_window")
        needs_base = bool(self.local_window and self.rope_theta)
        if needs_base != bool(self.local_rope_theta):
            expected = "a base above 0 (10,000 in ModernBERT) with" if needs_base else "0 unless there are"
            found.append(
                f"encoder.local_rope_theta is {self.local_rope_theta:g}: expected {expected} encoder.local_window and"
                " encoder.rope_theta"
            )
        return found

    def problems(self) -> list[str]:
        """Returns a message for each problem of these values."""
        found = self._local_problems() + (self._relative_problems() if self.relative_attention else [])
        found += self._disentangled_problems()
        if self.num_layer_groups > 0 and self.layers % self.num_layer_groups:
            found.append(
                f"encoder.layers {self.layers} is not a multiple of encoder.num_layer_groups {self.num_layer_groups}:"
                " change either"
            )
        if self.rope_theta and self.heads > 0 and self.hidden_size // self.heads % 2:
            found.append(
                f"encoder.rope_theta turns pairs of numbers: expected heads of even width, got {self.hidden_size // self.heads}"
            )
        if self.rope_theta and self.position_offset:
            found.append(f"encoder.position_offset is {self.position_offset}: expected 0 with encoder.rope_theta")
        if self.activation not in ACTIVATIONS:
            found.append(f"encoder.activation is {self.activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        if self.heads > 0 and self.hidden_size % self.heads:
            found.append(
                f"encoder.hidden_size {self.hidden_size} is not a multiple of encoder.heads {self.heads}: change either"
            )
        return found


@dataclasses.dataclass(frozen=True)
class Regularization:
    """Dropout rates: settings of the training alone."""

    dropout: DropRate = 0.1
    """Dropout on the embeddings and on the outputs of attention and feed-forward parts, in [0, 1)."""
    attention_dropout: DropRate = 0.1
    """Dropout on attention probabilities, in [0, 1)."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """Settings that change speed and memory, and the result by rounding at most."""

    unroll: AtLeast0 = 0
    """Layers unrolled in one step of the scan over layers: 1 compiles fastest, `layers` runs fastest on CPU and GPU; 0 takes what
    fits the devices of the run, and outside of a run 1. With local layers a step takes whole groups of global_every layers."""
    attention: Backend = "auto"
    """Attention backend; auto takes the best one for the devices of the mesh, and outside of a run xla. cudnn_packed and
    pallas_hopper, which have run on no GPU yet, are compared with xla before the first step; cudnn_packed must be named."""
    attention_blocks: AtLeast0 = 0
    """Most blocks of a row, padding included, for cudnn_packed; 0 takes those of the rows of a pretraining run, and else 17."""
    local_backend: Backend = "auto"
    """Attention backend of local layers; auto takes that of the others. Where that is cudnn, which computes pairs outside of the
    window too, and was not named, auto takes a kernel of the project that skips them, if it is faster before the first step."""
    residual_norm: Literal["auto", "xla", "pallas"] = "auto"
    """Backend of what follows each part of a layer: dropout, the sum and LayerNorm. pallas is the project's own kernel for GPUs;
    auto takes it where it fits and is faster in a trial before the first step, and outside of a run xla."""
    remat: Literal["none", "elementwise", "dots", "full"] = "none"
    """Parts of layers that the backward pass computes again: none, elementwise (LayerNorms, activations and dropout; products
    and attention are kept), dots (all but the products with parameters) or full (whole layers)."""


@dataclasses.dataclass(frozen=True)
class EncoderConfig(Execution, Regularization, Architecture):
    """All settings of the encoder."""

    def problems(self) -> list[str]:
        """Returns a message for each problem of these values."""
        found = range_problems(self, "encoder.") + super().problems()
        by_distance = {
            "relative_attention": (self.relative_attention, ("auto", "xla", "pallas_tpu")),
            "disentangled_attention": (self.disentangled, ("auto", "xla")),
        }
        found += [
            f"encoder.attention is {self.attention!r}: expected {', '.join(map(repr, able[:-1]))} or {able[-1]!r} with"
            f" encoder.{name}, the only {'backend that adds' if len(able) < 3 else 'backends that add'} scores of distances"
            for name, (used, able) in by_distance.items()
            if used and self.attention not in able
        ]
        if self.local_backend != "auto" and not self.local_window:
            found.append(f"encoder.local_backend is {self.local_backend!r}: expected auto without encoder.local_window")
        if self.remat not in REMAT:
            found.append(f"encoder.remat is {self.remat!r}: expected one of {', '.join(REMAT)}")
        return found

    def off_its_devices(self) -> "EncoderConfig":
        """Returns this encoder without the settings that a run chose for its devices."""
        return dataclasses.replace(self, attention="auto", local_backend="auto", residual_norm="auto", remat="none")

    def with_settings_of(self, other: "EncoderConfig", *groups: type) -> "EncoderConfig":
        """Returns this encoder with the settings of these groups taken from the other one."""
        names = (field.name for group in groups for field in dataclasses.fields(group))
        return dataclasses.replace(self, **{name: getattr(other, name) for name in names})
