"""Our parameter <-> their name <-> transform: one table a family, used in both directions. NumPy only.

Our tree is canonical: `encoder`, `mlm`, `sbo`, `pooler` (of [CLS]) and `pair` (the classifier of pairs), whatever the terms of a
run are called. Layers are stacked here and numbered there; kernels are [inputs, outputs] here and [outputs, inputs] there; rows
that only pad the vocabulary exist here alone. Names of BERT, RoBERTa and ALBERT are those of transformers; those of the span
boundary head are the released SpanBERT code's. What transformers ties is not written; when read, it has to be equal.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from spanjax.nn.encoder import EncoderConfig
from spanjax.trees import named_leaves

Transform = Literal["same", "transposed", "pieces"]
"""same: as it is. transposed: a kernel. pieces: one row for each piece of the vocabulary, here with rows of padding."""
LAYER = "encoder/layers/"


class Entry(NamedTuple):
    """One parameter; `{}` in `theirs` is the number of the layer, where `ours` is stacked."""

    ours: str
    theirs: str
    transform: Transform


class Family(NamedTuple):
    """How one kind of model is named there."""

    model_type: str
    entries: tuple[Entry, ...]
    tied: Mapping[str, str]
    """Name that only repeats another -> that other."""
    buffers: tuple[str, ...]
    """Names that hold no parameter: position numbers and the like."""

    @property
    def prefix(self) -> str:
        """What stands before the names of the encoder: "bert."."""
        return f"{self.model_type}."


def dense(ours: str, theirs: str) -> Iterator[Entry]:
    """A dense layer: kernel and bias."""
    yield Entry(f"{ours}/kernel", f"{theirs}.weight", "transposed")
    yield Entry(f"{ours}/bias", f"{theirs}.bias", "same")


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry(f"{ours}/scale", f"{theirs}.weight", "same")
    yield Entry(f"{ours}/bias", f"{theirs}.bias", "same")


def _embeddings(prefix: str) -> Iterator[Entry]:
    ours, theirs = "encoder/embeddings", f"{prefix}.embeddings"
    yield Entry(f"{ours}/token/embedding", f"{theirs}.word_embeddings.weight", "pieces")
    yield Entry(f"{ours}/position/embedding", f"{theirs}.position_embeddings.weight", "same")
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
    return {
        f"{decoder}.weight": word_embeddings,
        f"{decoder}.bias": bias,
        f"{boundary}.decoder.weight": word_embeddings,
        f"{boundary}.decoder.bias": f"{boundary}.bias",
    }


BERT = Family(
    "bert",
    (
        *_embeddings("bert"),
        *_layers(_bert_layers("bert")),
        *dense("mlm/dense", "cls.predictions.transform.dense"),
        *_norm("mlm/norm", "cls.predictions.transform.LayerNorm"),
        Entry("mlm/bias", "cls.predictions.bias", "pieces"),
        *dense("pooler/dense", "bert.pooler.dense"),
        *dense("pair", "cls.seq_relationship"),
        *_boundary(),
    ),
    _tied("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder", "cls.predictions.bias"),
    ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids"),
)

ROBERTA = Family(
    "roberta",
    (
        *_embeddings("roberta"),
        *_layers(_bert_layers("roberta")),
        *dense("mlm/dense", "lm_head.dense"),
        *_norm("mlm/norm", "lm_head.layer_norm"),
        Entry("mlm/bias", "lm_head.bias", "pieces"),
        *dense("pooler/dense", "roberta.pooler.dense"),
        *dense("pair", "cls.seq_relationship"),
        *_boundary(),
    ),
    _tied("roberta.embeddings.word_embeddings.weight", "lm_head.decoder", "lm_head.bias"),
    ("roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids"),
)

_GROUP = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
ALBERT = Family(
    "albert",
    (
        *_embeddings("albert"),
        *dense("encoder/embeddings/widen", "albert.encoder.embedding_hidden_mapping_in"),
        *_layers(
            {
                **{name: f"{_GROUP}.attention.{name}" for name in ("query", "key", "value")},
                "output": f"{_GROUP}.attention.dense",
                "attention_norm": f"{_GROUP}.attention.LayerNorm",
                "feed_in": f"{_GROUP}.ffn",
                "feed_out": f"{_GROUP}.ffn_output",
                "feed_norm": f"{_GROUP}.full_layer_layer_norm",
            }
        ),
        *dense("mlm/dense", "predictions.dense"),
        *_norm("mlm/norm", "predictions.LayerNorm"),
        Entry("mlm/bias", "predictions.bias", "pieces"),
        *dense("pooler/dense", "albert.pooler"),
        *dense("pair", "sop_classifier.classifier"),
        *_boundary(),
    ),
    _tied("albert.embeddings.word_embeddings.weight", "predictions.decoder", "predictions.bias"),
    ("albert.embeddings.position_ids", "albert.embeddings.token_type_ids"),
)

VOCABULARY_ROWS = frozenset(entry.ours for entry in BERT.entries if entry.transform == "pieces")
"""Our parameters with a row for each piece, in every family: what pads the vocabulary pads them."""

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in (BERT, ROBERTA, ALBERT)}


def family_of(encoder: EncoderConfig) -> Family:
    """The family whose transformers class computes what this encoder does."""
    if encoder.embedding_size or encoder.groups:
        return ALBERT
    return ROBERTA if encoder.position_offset else BERT


def _rows(entry: Entry, encoder: EncoderConfig) -> int:
    """Into how many arrays of theirs one array of ours goes; 0 where it is one and not stacked."""
    return encoder.own_layers if entry.ours.startswith(LAYER) else 0


def their_tensors(params: Any, encoder: EncoderConfig, family: Family) -> Iterator[tuple[str, np.ndarray]]:
    """Every parameter of a canonical tree under their name, in the order of the table; views where that is possible.

    ValueError lists parameters that the table does not have.
    """
    leaves = named_leaves(params)
    unknown = sorted(leaves.keys() - {entry.ours for entry in family.entries})
    if unknown:
        raise ValueError(
            f"{family.model_type} has no names for {', '.join(unknown)}: this model cannot be written as {family.model_type}"
        )
    for entry in family.entries:
        if entry.ours in leaves:
            array, stacked = np.asarray(leaves[entry.ours]), _rows(entry, encoder)
            for number, part in enumerate(array if stacked else [array]):
                yield entry.theirs.format(number), _theirs(part, entry.transform, encoder.vocab_size)


def _theirs(array: np.ndarray, transform: Transform, vocab_size: int) -> np.ndarray:
    if transform == "transposed":
        return array.T
    return array[:vocab_size] if transform == "pieces" else array


def _ours(array: np.ndarray, transform: Transform, encoder: EncoderConfig) -> np.ndarray:
    if transform == "transposed":
        return array.T
    if transform == "pieces":
        padding = [(0, encoder.padded_vocab_size - len(array))] + [(0, 0)] * (array.ndim - 1)
        return np.pad(array, padding)
    return array


class Loaded(NamedTuple):
    """What reading made of a file of theirs."""

    params: dict[str, Any]
    """Canonical tree, float32."""
    loaded: tuple[str, ...]
    """Their names that became parameters."""
    repeated: tuple[str, ...]
    """Their names that repeat others (tied), and were equal."""
    buffers: tuple[str, ...]
    """Their names that hold no parameter."""


def our_params(tensors: Mapping[str, np.ndarray], encoder: EncoderConfig, family: Family) -> Loaded:
    """The canonical tree of the tensors; a head is there when the file has all of it.

    ValueError lists names that the table does not have, names that are missing, wrong shapes and tied tensors that differ.
    """
    used: set[str] = set()
    leaves: dict[str, np.ndarray] = {}
    missing: list[str] = []
    problems: list[str] = []
    for part, entries in _parts(family).items():
        names = {entry: _names(entry, encoder) for entry in entries}
        absent = [name for each in names.values() for name in each if name not in tensors]
        if absent and part != "encoder" and len(absent) == sum(map(len, names.values())):
            continue  # a head that the file does not have
        missing += absent
        used.update(name for each in names.values() for name in each if name in tensors)
        if absent:
            continue
        for entry, each in names.items():
            rows = (
                {len(tensors[name]) for name in each} - {encoder.vocab_size} if entry.transform == "pieces" else set()
            )
            if rows:
                problems.append(
                    f"{entry.theirs} has {rows.pop():,} rows, config.json says vocab_size {encoder.vocab_size:,}"
                )
                continue
            found = [_ours(np.asarray(tensors[name], np.float32), entry.transform, encoder) for name in each]
            shapes = {array.shape for array in found}
            if len(shapes) > 1:
                problems.append(f"{entry.theirs} has different shapes in different layers: {sorted(shapes)}")
            else:
                leaves[entry.ours] = np.stack(found) if _rows(entry, encoder) else found[0]
    repeated = [name for name, other in family.tied.items() if name in tensors and other in tensors]
    problems += [
        f"{name} differs from {family.tied[name]}, to which it is tied: a model with an output table of its own is not known here"
        for name in repeated
        if not np.array_equal(tensors[name], tensors[family.tied[name]])
    ]
    buffers = [name for name in tensors if name in family.buffers]
    unknown = sorted(tensors.keys() - used - {*repeated} - {*buffers})
    if missing or unknown or problems:
        raise ValueError(_told(family, missing, unknown, problems))
    return Loaded(_nested(leaves), tuple(sorted(used)), tuple(repeated), tuple(buffers))


def _parts(family: Family) -> dict[str, list[Entry]]:
    """Entries by the part of the canonical tree."""
    parts: dict[str, list[Entry]] = {}
    for entry in family.entries:
        parts.setdefault(entry.ours.split("/")[0], []).append(entry)
    return parts


def _names(entry: Entry, encoder: EncoderConfig) -> list[str]:
    return [entry.theirs.format(number) for number in range(max(1, _rows(entry, encoder)))]


def _told(family: Family, missing: list[str], unknown: list[str], problems: list[str]) -> str:
    lines = [f"the weights are not those of a {family.model_type} model as its config.json describes it:"]
    lines += [f"  - {problem}" for problem in problems]
    for what, names in (("missing", missing), ("not explained", unknown)):
        if names:
            lines.append(f"  - {what} ({len(names)}): {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}")
    lines.append("give the folder that the weights came with, or look at both with `python -m spanjax.convert inspect`")
    return "\n".join(lines)


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split("/")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = leaf
    return tree
