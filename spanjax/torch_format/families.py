"""Names of the parameters of BERT and its family in transformers: our parameter <-> their name <-> transform.

Our tree is canonical: `encoder`, `mlm`, `sbo`, `rtd` (detection of replaced tokens), `query` and `plm` (start and end of XLNet's
query stream), `pooler` (of [CLS]) and `pair` (the classifier of pairs), whatever the terms of a run are called. Layers are
stacked here and numbered there; kernels are [inputs, outputs] here and [outputs, inputs] there; rows that only pad the
vocabulary exist here alone. The span boundary head has the names of the released SpanBERT code. Writing skips parameters
that transformers ties; a file that holds them must have equal copies.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from spanjax.nn.config import EncoderConfig

Transform = Literal["same", "transposed", "pieces", "heads", "heads_transposed", "boxed"]
"""same: unchanged. transposed: a kernel. pieces: one row per token of the vocabulary, here with padding rows. heads: a kernel of
[inputs, heads, head size] there; heads_transposed: one of [outputs, heads, head size]. boxed: a vector that has two leading
axes of length 1 there."""
LAYER, WIDEN = "encoder/layers/", "encoder/embeddings/widen"
POSITION_KEY, POSITION_QUERY, DISTANCE_NORM = (
    f"{LAYER}position_key/",
    f"{LAYER}position_query/",
    "encoder/distances/norm/",
)


class Entry(NamedTuple):
    """One parameter; `{}` in `theirs` is the layer index if `ours` is stacked."""

    ours: str
    theirs: str
    transform: Transform
    part: tuple[int, int] = (0, 1)
    """(index, count): part `index` of `count` equal parts of theirs, along their first axis; such entries are consecutive."""
    first: int = 0
    """First layer with this parameter there; here all layers have it."""


class Family(NamedTuple):
    """Names of one model type in transformers."""

    model_type: str
    class_prefix: str
    """Prefix of transformers' class names."""
    prefix: str
    """Prefix of the encoder's parameter names: "bert."."""
    entries: tuple[Entry, ...]
    tied: Mapping[str, str]
    """Name of a tied copy -> name of the original."""
    buffers: tuple[str, ...]
    """Names that hold no parameter: position numbers and the like."""


def dense(ours: str, theirs: str) -> Iterator[Entry]:
    """A dense layer: kernel and bias."""
    yield Entry(f"{ours}/kernel", f"{theirs}.weight", "transposed")
    yield Entry(f"{ours}/bias", f"{theirs}.bias", "same")


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry(f"{ours}/scale", f"{theirs}.weight", "same")
    yield Entry(f"{ours}/bias", f"{theirs}.bias", "same")


def _embeddings(prefix: str, types: bool) -> Iterator[Entry]:
    ours, theirs = "encoder/embeddings", f"{prefix}.embeddings"
    yield Entry(f"{ours}/token/embedding", f"{theirs}.word_embeddings.weight", "pieces")
    yield Entry(f"{ours}/position/embedding", f"{theirs}.position_embeddings.weight", "same")
    if types:
        yield Entry(f"{ours}/type/embedding", f"{theirs}.token_type_embeddings.weight", "same")
    yield from _norm(f"{ours}/norm", f"{theirs}.LayerNorm")


def _layers(names: Mapping[str, str]) -> Iterator[Entry]:
    for ours, theirs in names.items():
        yield from (_norm if ours.endswith("norm") else dense)(LAYER + ours, theirs)


def _boundary() -> Iterator[Entry]:
    theirs = "cls.pair_target_predictions"
    yield Entry("sbo/position/embedding", f"{theirs}.position_embeddings.weight", "same")
    for number in (1, 2):
        yield from dense(f"sbo/dense{number}", f"{theirs}.mlp_layer_norm.linear{number}")
        yield from _norm(f"sbo/norm{number}", f"{theirs}.mlp_layer_norm.layer_norm{number}")
    yield Entry("sbo/bias", f"{theirs}.bias", "pieces")


def _bert_layers(prefix: str) -> dict[str, str]:
    layer = f"{prefix}.encoder.layer.{{}}"
    return {
        **{name: f"{layer}.attention.self.{name}" for name in ("query", "key", "value")},
        "output": f"{layer}.attention.output.dense",
        "attention_norm": f"{layer}.attention.output.LayerNorm",
        "feed_in": f"{layer}.intermediate.dense",
        "feed_out": f"{layer}.output.dense",
        "feed_norm": f"{layer}.output.LayerNorm",
    }


def _tied(word_embeddings: str, decoder: str, bias: str) -> dict[str, str]:
    boundary = "cls.pair_target_predictions"
    tied = {
        f"{decoder}.weight": word_embeddings,
        f"{decoder}.bias": bias,
        f"{boundary}.decoder.weight": word_embeddings,
        f"{boundary}.decoder.bias": f"{boundary}.bias",
    }
    return {name: other for name, other in tied.items() if name != other}


def _token_head(dense_name: str, norm: str, bias: str) -> Iterator[Entry]:
    """The masked token head."""
    yield from dense("mlm/dense", dense_name)
    yield from _norm("mlm/norm", norm)
    yield Entry("mlm/bias", bias, "pieces")


def _like_bert(
    model_type: str,
    class_prefix: str,
    layers: Iterable[Entry],
    heads: Iterable[Entry],
    decoder: str,
    bias: str,
    types: bool = True,
) -> Family:
    """A family with the embeddings and buffers of BERT; `decoder` and `bias` are those of its masked token head."""
    entries = (*_embeddings(model_type, types), *layers, *heads, *_boundary())
    tied = _tied(f"{model_type}.embeddings.word_embeddings.weight", decoder, bias)
    buffers = (f"{model_type}.embeddings.position_ids", f"{model_type}.embeddings.token_type_ids")
    return Family(model_type, class_prefix, f"{model_type}.", entries, tied, buffers)


BERT = _like_bert(
    "bert",
    "Bert",
    _layers(_bert_layers("bert")),
    (
        *_token_head("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        *dense("pooler/dense", "bert.pooler.dense"),
        *dense("pair", "cls.seq_relationship"),
    ),
    "cls.predictions.decoder",
    "cls.predictions.bias",
)

ROBERTA = _like_bert(
    "roberta",
    "Roberta",
    _layers(_bert_layers("roberta")),
    (
        *_token_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        *dense("pooler/dense", "roberta.pooler.dense"),
        *dense("pair", "cls.seq_relationship"),
    ),
    "lm_head.decoder",
    "lm_head.bias",
)

LIKE_ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Families with RoBERTa's parameters, positions and pairs: the encoder does not tell them apart, so models store the name."""
_XLM_ROBERTA = ROBERTA._replace(model_type="xlm-roberta", class_prefix="XLMRoberta")
_CAMEMBERT = ROBERTA._replace(model_type="camembert", class_prefix="Camembert")

_GROUP = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
_ALBERT_LAYERS = {
    **{name: f"{_GROUP}.attention.{name}" for name in ("query", "key", "value")},
    "output": f"{_GROUP}.attention.dense",
    "attention_norm": f"{_GROUP}.attention.LayerNorm",
    "feed_in": f"{_GROUP}.ffn",
    "feed_out": f"{_GROUP}.ffn_output",
    "feed_norm": f"{_GROUP}.full_layer_layer_norm",
}
ALBERT = _like_bert(
    "albert",
    "Albert",
    (*dense(WIDEN, "albert.encoder.embedding_hidden_mapping_in"), *_layers(_ALBERT_LAYERS)),
    (
        *_token_head("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        *dense("pooler/dense", "albert.pooler"),
        *dense("pair", "sop_classifier.classifier"),
    ),
    "predictions.decoder",
    "predictions.bias",
)

ELECTRA = _like_bert(
    "electra",
    "Electra",
    (*dense(WIDEN, "electra.embeddings_project"), *_layers(_bert_layers("electra"))),
    (
        *dense("rtd/dense", "discriminator_predictions.dense"),
        *dense("rtd/score", "discriminator_predictions.dense_prediction"),
        *_token_head("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
    ),
    "generator_lm_head",
    "generator_lm_head.bias",
)

_DISTIL = "distilbert.transformer.layer.{}"
_DISTIL_LAYERS = {
    **{name: f"{_DISTIL}.attention.{name[0]}_lin" for name in ("query", "key", "value")},
    "output": f"{_DISTIL}.attention.out_lin",
    "attention_norm": f"{_DISTIL}.sa_layer_norm",
    "feed_in": f"{_DISTIL}.ffn.lin1",
    "feed_out": f"{_DISTIL}.ffn.lin2",
    "feed_norm": f"{_DISTIL}.output_layer_norm",
}
DISTILBERT = _like_bert(
    "distilbert",
    "DistilBert",
    _layers(_DISTIL_LAYERS),
    _token_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "vocab_projector",
    "vocab_projector.bias",
    types=False,
)

_MODERN = "model.layers.{}"
MODERNBERT = Family(
    "modernbert",
    "ModernBert",
    "model.",
    (
        Entry("encoder/embeddings/token/embedding", "model.embeddings.tok_embeddings.weight", "pieces"),
        Entry("encoder/embeddings/norm/scale", "model.embeddings.norm.weight", "same"),
        Entry(f"{LAYER}attention_norm/scale", f"{_MODERN}.attn_norm.weight", "same", first=1),
        *(
            Entry(f"{LAYER}{name}/kernel", f"{_MODERN}.attn.Wqkv.weight", "transposed", (number, 3))
            for number, name in enumerate(("query", "key", "value"))
        ),
        Entry(f"{LAYER}output/kernel", f"{_MODERN}.attn.Wo.weight", "transposed"),
        Entry(f"{LAYER}feed_norm/scale", f"{_MODERN}.mlp_norm.weight", "same"),
        Entry(f"{LAYER}feed_in/kernel", f"{_MODERN}.mlp.Wi.weight", "transposed", (0, 2)),
        Entry(f"{LAYER}feed_gate/kernel", f"{_MODERN}.mlp.Wi.weight", "transposed", (1, 2)),
        Entry(f"{LAYER}feed_out/kernel", f"{_MODERN}.mlp.Wo.weight", "transposed"),
        Entry("encoder/final_norm/scale", "model.final_norm.weight", "same"),
        Entry("mlm/dense/kernel", "head.dense.weight", "transposed"),
        Entry("mlm/norm/scale", "head.norm.weight", "same"),
        Entry("mlm/bias", "decoder.bias", "pieces"),
        *_boundary(),
    ),
    _tied("model.embeddings.tok_embeddings.weight", "decoder", "decoder.bias"),
    (),
)

_XLNET = "transformer.layer.{}"
XLNET = Family(
    "xlnet",
    "XLNet",
    "transformer.",
    (
        Entry("encoder/embeddings/token/embedding", "transformer.word_embedding.weight", "pieces"),
        *(
            Entry(f"{LAYER}{ours}/kernel", f"{_XLNET}.rel_attn.{theirs}", "heads")
            for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("distance", "r"))
        ),
        Entry(f"{LAYER}output/kernel", f"{_XLNET}.rel_attn.o", "heads_transposed"),
        Entry(f"{LAYER}content_bias", f"{_XLNET}.rel_attn.r_w_bias", "same"),
        Entry(f"{LAYER}distance_bias", f"{_XLNET}.rel_attn.r_r_bias", "same"),
        Entry(f"{LAYER}type_bias", f"{_XLNET}.rel_attn.r_s_bias", "same"),
        Entry(f"{LAYER}types", f"{_XLNET}.rel_attn.seg_embed", "same"),
        *_norm(f"{LAYER}attention_norm", f"{_XLNET}.rel_attn.layer_norm"),
        *dense(f"{LAYER}feed_in", f"{_XLNET}.ff.layer_1"),
        *dense(f"{LAYER}feed_out", f"{_XLNET}.ff.layer_2"),
        *_norm(f"{LAYER}feed_norm", f"{_XLNET}.ff.layer_norm"),
        Entry("query/start", "transformer.mask_emb", "boxed"),
        Entry("plm/bias", "lm_loss.bias", "pieces"),
        *_boundary(),
    ),
    _tied("transformer.word_embedding.weight", "lm_loss", "lm_loss.bias"),
    (),
)

_DEBERTA = "deberta.encoder.layer.{}"
DEBERTA = Family(
    "deberta-v2",
    "DebertaV2",
    "deberta.",
    (
        *(entry for entry in _embeddings("deberta", True) if "/position/" not in entry.ours),
        Entry(f"{WIDEN}/kernel", "deberta.embeddings.embed_proj.weight", "transposed"),
        Entry("encoder/distances/table/embedding", "deberta.encoder.rel_embeddings.weight", "same"),
        *_norm(DISTANCE_NORM.rstrip("/"), "deberta.encoder.LayerNorm"),
        *_layers(
            _bert_layers("deberta")
            | {name: f"{_DEBERTA}.attention.self.{name}_proj" for name in ("query", "key", "value")}
            | {f"position_{name}": f"{_DEBERTA}.attention.self.pos_{name}_proj" for name in ("key", "query")}
        ),
        *_token_head("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        *_boundary(),
    ),
    _tied("deberta.embeddings.word_embeddings.weight", "cls.predictions.decoder", "cls.predictions.bias"),
    ("deberta.embeddings.position_ids",),
)

_VOCABULARY_ROWS = frozenset(
    entry.ours for family in (BERT, XLNET) for entry in family.entries if entry.transform == "pieces"
)
"""Our parameters with a row per token of the vocabulary, in every family; vocabulary padding pads them too."""


def has_pieces(name: str) -> bool:
    """True if our parameter of this name, or a generator's, has a row per token of the vocabulary."""
    return name.removeprefix("generator/") in _VOCABULARY_ROWS


FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (BERT, ROBERTA, ALBERT, ELECTRA, MODERNBERT, XLNET, DEBERTA, _XLM_ROBERTA, _CAMEMBERT, DISTILBERT)
}


def family_of(encoder: EncoderConfig, parts: Collection[str] = (), model_type: str = "") -> Family:
    """Returns the family nearest to an encoder with these parts of the canonical tree; `unknown_settings` lists what it lacks.

    `model_type`, the family that the weights came from, decides between families with the same parameters.
    """
    found, named = _nearest(encoder, parts), FAMILIES.get(model_type)
    return named if named and named.entries is found.entries else found


def _nearest(encoder: EncoderConfig, parts: Collection[str]) -> Family:
    """Returns the family by the settings and parts alone.

    Widened embeddings without shared layers mean ELECTRA. With a pooler, or at the width of the layers, which ELECTRA does not
    have, they mean ALBERT with a group per layer. A pre_classifier always means ELECTRA.
    """
    if encoder.relative_attention:
        return XLNET
    if encoder.disentangled:
        return DEBERTA
    if encoder.norm_first or encoder.rope_theta or encoder.gated_mlp or not encoder.biases:
        return MODERNBERT
    if not encoder.types:
        return DISTILBERT
    widened = encoder.embedding_size not in (0, encoder.hidden_size)
    if {"rtd", "pre_classifier"} & {*parts} or (widened and not encoder.num_layer_groups and "pooler" not in parts):
        return ELECTRA
    if encoder.embedding_size or encoder.num_layer_groups:
        return ALBERT
    return ROBERTA if encoder.position_offset else BERT


def entries_of(family: Family, encoder: EncoderConfig) -> list[Entry]:
    """Returns the entries of an encoder of these settings: without the embedding projection if its embeddings have full width,
    and without those parts of disentangled attention that it lacks."""
    absent = [] if encoder.embedding_size else [WIDEN]
    if encoder.disentangled:
        own, kind = not encoder.shared_projections, encoder.disentangled_attention
        used = {
            POSITION_KEY: own and kind != "p2c",
            POSITION_QUERY: own and kind != "c2p",
            DISTANCE_NORM: encoder.distance_norm,
            "encoder/embeddings/type/": encoder.types > 0,
        }
        absent += [part for part, present in used.items() if not present]
    return [entry for entry in family.entries if not entry.ours.startswith(tuple(absent))]


def pretraining_class(family: Family, parts: Collection[str]) -> str:
    """transformers' class of a model with these parts and no head of fine-tuning: BertForMaskedLM."""
    pairs = {"mlm", "pair", "pooler"}.issubset(parts) and family.model_type in ("bert", "albert")
    if pairs or "rtd" in parts:
        return f"{family.class_prefix}ForPreTraining"
    if family.model_type == "xlnet" and "plm" in parts:
        return "XLNetLMHeadModel"
    return family.class_prefix + ("ForMaskedLM" if "mlm" in parts else "Model")
