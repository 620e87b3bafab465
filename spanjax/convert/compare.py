"""Compares two models on the same sentences in float32: every layer, every head's scores and the tokenizers' ids.

spanjax computes one side. transformers computes the other if it is installed and the model is a folder that it loads; else
spanjax does, from the written files. The table names who computed each side.

Shapes: S sentences, L positions, N layers, D hidden size, V vocabulary, C classes (2 for start and end of an answer).
"""

import contextlib
import functools
import io
import logging
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich.box
import rich.console
import rich.table
from flax import nnx

from spanjax.convert import TOLERANCE
from spanjax.data.vocab.loading import Vocabulary
from spanjax.nn.heads import DetectionHead, PredictionHead, row_mean
from spanjax.nn.pointwise import ACTIVATIONS
from spanjax.pretrained.electra import FOLDER, PART, generator_of
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model, module_params
from spanjax.torch_format.folder import is_weights
from spanjax.torch_format.task_tables import CLASSES, OUTPUTS, PREDICTION_HEAD, RELU
from spanjax.training.state import abstract_module

SENTENCES = (
    "The span boundary objective predicts a masked span from the tokens at its two ends.",
    "In 1843, Ada Lovelace published the first algorithm intended to be carried out by a machine.",
    "Naïve Bayes isn't state-of-the-art; it's a baseline (and a good one!).",
    "The river Rhône rises in Switzerland, passes Geneva and reaches the Mediterranean near Arles.",
    "Proteins such as p53 and BRCA1 repair DNA in up to 90% of cells.",
    "E-mail support@example.com or call +1 (555) 010-9999 before 5 p.m.",
    "Zürich, São Paulo, Kraków and 東京 are cities; مرحبا is a greeting.",
    "Short.",
)


class Inputs(NamedTuple):
    """Inputs of both sides: every sentence is a row."""

    tokens_SL: np.ndarray
    used_SL: np.ndarray  # bool, not padding
    left_SL: np.ndarray  # boundaries and offset of a span for every position
    right_SL: np.ndarray
    offset_SL: np.ndarray
    types_SL: np.ndarray | None = None  # None: all 0


class Outputs(NamedTuple):
    """Outputs of one side; None for heads that it does not have."""

    states_NSLD: np.ndarray  # the embeddings and the state after every layer
    mlm_SLV: np.ndarray | None
    sbo_SLV: np.ndarray | None
    ids: list[list[int]] | None
    by: str
    task: np.ndarray | None = None  # [S, C] or [S, L, C]
    rtd_SL: np.ndarray | None = None


class Difference(NamedTuple):
    """One line of the table."""

    what: str
    largest: float
    note: str = ""


def make_inputs(model: Model, sentences: Sequence[str]) -> Inputs:
    """Builds rows of the sentences, cut at the positions of the model; random ids without a vocabulary.

    A model with local layers gets one more row, of all of them, that is longer than its window.
    """
    rows = _ids(model.vocabulary, sentences) if model.vocabulary else None
    if rows is None:
        random = np.random.default_rng(0)
        rows = [random.integers(0, model.encoder.vocab_size, 5 + 4 * n).tolist() for n in range(8)]
    if window := model.encoder.local_window:
        joined = [number for row in rows for number in row]
        rows.append((joined * (4 * window // len(joined) + 1))[: 4 * window])
    rows = [row[: model.encoder.positions] for row in rows]
    sizes, length = np.array([len(row) for row in rows])[:, None], max(map(len, rows))
    pad = model.vocabulary.specials.pad if model.vocabulary else max(0, model.encoder.position_offset - 1)
    place_SL = np.arange(length)[None]
    offset_SL = np.broadcast_to(place_SL % 3, (len(rows), length))
    return Inputs(
        tokens_SL=np.array([row + [pad] * (length - len(row)) for row in rows], np.int32),
        used_SL=place_SL < sizes,
        left_SL=np.maximum(0, place_SL - 1 - offset_SL).astype(np.int32),
        right_SL=np.minimum(place_SL + 1, sizes - 1).astype(np.int32),
        offset_SL=offset_SL.astype(np.int32),
        # every second row is a pair, where the model tells pairs apart
        types_SL=np.where(_second_half(len(rows), sizes, place_SL) & (model.encoder.types > 1), 1, 0).astype(np.int32),
    )


def _second_half(rows: int, sizes_S1: np.ndarray, place_SL: np.ndarray) -> np.ndarray:
    """True at the second half of the tokens of every second row."""
    odd_S1 = np.arange(rows)[:, None] % 2 == 1
    return odd_S1 & (place_SL >= sizes_S1 // 2) & (place_SL < sizes_S1)


def _ids(vocabulary: Vocabulary, sentences: Sequence[str]) -> list[list[int]]:
    specials = vocabulary.specials
    return [[specials.cls, *ids.tolist(), specials.sep] for ids in vocabulary.encode(list(sentences))]


def computed_here(model: Model, inputs: Inputs, sentences: Sequence[str]) -> Outputs:
    """Computes the outputs by spanjax, in float32 with exact products."""
    objective = model.objective()
    structure, abstract = abstract_module(objective, model.encoder)
    module: Any = nnx.merge(structure, jax.tree.map(jnp.asarray, module_params(model, abstract)))
    shape = inputs.tokens_SL.shape
    position_SL = np.where(inputs.used_SL, np.arange(shape[1], dtype=np.int32), 0)
    batch = {
        "slot_position_BK": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
        "slot_left_BK": inputs.left_SL,
        "slot_right_BK": inputs.right_SL,
        "slot_offset_BK": inputs.offset_SL,
    }
    # GPUs and TPUs multiply float32 at lower precision by default, which would look like a difference
    with jax.default_matmul_precision("highest"):
        segments_SL = inputs.used_SL.astype(np.int32)
        types_SL = np.zeros(shape, np.int32) if inputs.types_SL is None else inputs.types_SL
        states_NSLD = module.encoder.every_state(
            *map(jnp.asarray, (inputs.tokens_SL, segments_SL, position_SL, types_SL))
        )
        scores: dict[bool, np.ndarray] = {}
        if objective.fill_heads:
            arrays = {name: jnp.asarray(array) for name, array in batch.items()}
            logits_STLV = np.asarray(objective.logits(module, states_NSLD[-1], arrays))[..., : model.encoder.vocab_size]
            # of several heads of a kind the first, which is the one that other libraries may have
            heads = reversed([*enumerate(objective.fill_heads)])
            scores = {head.neighbours: logits_STLV[:, place] for place, head in heads}
        task = scores_here(model, states_NSLD[-1], inputs.used_SL)
        rtd_SL = detection_here(model, states_NSLD[-1])
    ids = _ids(model.vocabulary, sentences) if model.vocabulary else None
    return Outputs(np.asarray(states_NSLD), scores.get(False), scores.get(True), ids, "spanjax", task, rtd_SL)


def computed_by_transformers(folder: pathlib.Path, model: Model, inputs: Inputs, sentences: Sequence[str]) -> Outputs:
    """Computes the outputs by transformers' classes for the folder; the span boundary head, which it does not have, by torch."""
    import torch
    import transformers

    with _silenced():
        kind = transformers_class(transformers, model)
        theirs = kind.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    given = {"input_ids": inputs.tokens_SL, "attention_mask": inputs.used_SL}
    if model.encoder.types:
        given["token_type_ids"] = np.zeros_like(inputs.tokens_SL) if inputs.types_SL is None else inputs.types_SL
    arrays = {name: torch.from_numpy(array.astype(np.int64)) for name, array in given.items()}
    with torch.no_grad():
        found = theirs(**arrays, output_hidden_states=True)
        states = torch.stack(found.hidden_states)
        sbo = None
        if "sbo" in model.params:
            sbo = _torch_boundaries(model.params["sbo"], model, states[-1], inputs).numpy()
        mlm = found.logits.numpy() if {"mlm", "plm"} & model.parts and model.kind is None else None
        rtd = found.logits.numpy() if "rtd" in model.params else None
    try:
        with _silenced():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        ids = [tokenizer(sentence)["input_ids"] for sentence in sentences]
    except (OSError, ValueError):  # no tokenizer, or none that AutoTokenizer loads: the weights can still be compared
        ids = None
    by = f"transformers {transformers.__version__}"
    return Outputs(states.numpy(), mlm, sbo, ids, by, transformers_scores(model, found), rtd)


def _torch_boundaries(head: Mapping[str, Any], model: Model, hidden_SLD: Any, inputs: Inputs) -> Any:
    import torch
    from torch.nn import functional

    def tensor(*path: str) -> Any:
        value: Any = head
        for name in path:
            value = value[name]
        return torch.from_numpy(np.ascontiguousarray(value))

    rows = torch.arange(len(hidden_SLD))[:, None]
    left, right = (hidden_SLD[rows, torch.from_numpy(place).long()] for place in (inputs.left_SL, inputs.right_SL))
    # In torch on transformers' own states, so that it shares no code with the head of ours that it checks.
    offset = torch.from_numpy(inputs.offset_SL).long().clamp(max=len(head["position"]["embedding"]) - 1)
    state = torch.cat([left, right, tensor("position", "embedding")[offset]], dim=-1)
    approximate = "tanh" if model.encoder.activation == "gelu_tanh" else "none"
    gelu = functools.partial(functional.gelu, approximate=approximate)
    activation = functional.relu if model.encoder.activation == "relu" else gelu
    for number in ("1", "2"):
        state = activation(state @ tensor(f"dense{number}", "kernel") + tensor(f"dense{number}", "bias"))
        scale, bias = tensor(f"norm{number}", "scale"), tensor(f"norm{number}", "bias")
        state = functional.layer_norm(state, scale.shape, scale, bias, model.encoder.norm_epsilon)
    table = torch.from_numpy(np.ascontiguousarray(model.params["encoder"]["embeddings"]["token"]["embedding"]))
    return (state @ table.T + tensor("bias"))[..., : model.encoder.vocab_size]


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Silences transformers' messages on loading; the table here reports the same better."""
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(before)


def has_transformers() -> bool:
    """True if torch and transformers can be imported."""
    try:
        import torch
        import transformers
    except ImportError:
        return False
    return bool(torch.__version__ and transformers.__version__)


def compare(one: Model, other: pathlib.Path, sentences: Sequence[str] = SENTENCES) -> tuple[str, list[Difference]]:
    """Returns the name of each side with who computed it, and the largest absolute difference of all common outputs.

    ValueError if the two models have different sizes.
    """
    second, folder = load_model(other), other if is_weights(other) else None
    sides, found = _compared(one, second, folder, sentences)
    if PART in one.params and PART in second.params:
        inner = folder / FOLDER if folder else None
        lines = _compared(generator_of(one), generator_of(second), inner, sentences)[1]
        found += [line._replace(what=f"{PART}: {line.what}") for line in lines]
    return sides, found


def _compared(
    one: Model, second: Model, other: pathlib.Path | None, sentences: Sequence[str]
) -> tuple[str, list[Difference]]:
    """Does the same for two models without generators; `other` is the folder of the second, if it came from one."""
    if one.encoder.vocab_size != second.encoder.vocab_size or one.encoder.layers != second.encoder.layers:
        raise ValueError(
            f"{one.source} has {one.encoder.layers} layers and {one.encoder.vocab_size:,} pieces, {second.source} has "
            f"{second.encoder.layers} and {second.encoder.vocab_size:,}: these are different models"
        )
    inputs = make_inputs(one if one.vocabulary else second, sentences)
    left = computed_here(one, inputs, sentences)
    if other and other.is_dir() and (other / "config.json").is_file() and has_transformers():
        right = computed_by_transformers(other, second, inputs, sentences)
    else:
        right = computed_here(second, inputs, sentences)
    names = ["embeddings", *(f"layer {number}" for number in range(1, one.encoder.layers + 1))]
    found = []
    if left.states_NSLD.shape != right.states_NSLD.shape:
        raise ValueError(
            f"hidden states are {left.states_NSLD.shape[1:]} and {right.states_NSLD.shape[1:]}: different models"
        )
    # Only used positions count: the states of padding are not defined and may differ.
    for name, a, b in zip(names, left.states_NSLD, right.states_NSLD, strict=True):
        found.append(Difference(name, float(np.abs(a - b)[inputs.used_SL].max())))
    heads = [("mlm logits", left.mlm_SLV, right.mlm_SLV), ("sbo logits", left.sbo_SLV, right.sbo_SLV)]
    if kind := one.kind or second.kind:
        heads = [(f"{kind} logits", left.task, right.task), *(each for each in heads if each[1] is not None)]
    if left.rtd_SL is not None or right.rtd_SL is not None:
        heads = [("rtd logits", left.rtd_SL, right.rtd_SL), *(each for each in heads if each[1] is not None)]
    for name, a, b in heads:
        if a is None or b is None:
            missing = "both" if a is None and b is None else str(one.source if a is None else second.source)
            found.append(Difference(name, 0.0, f"not compared: no such head in {missing}"))
        elif a.shape != b.shape:
            raise ValueError(f"{name} are {a.shape[1:]} and {b.shape[1:]}: different models")
        else:
            used = inputs.used_SL if a.shape[:2] == inputs.used_SL.shape else slice(None)
            found.append(Difference(name, float(np.abs(a - b)[used].max())))
    found.append(_tokenizer_difference(left, right))
    return f"{one.source} by {left.by}, {second.source} by {right.by}", found


def _tokenizer_difference(left: Outputs, right: Outputs) -> Difference:
    if left.ids is None or right.ids is None:
        return Difference("tokenizer ids", 0.0, "not compared: a side has no tokenizer")
    differing = sum(a != b for a, b in zip(left.ids, right.ids, strict=True))
    return Difference("tokenizer ids", float(differing), f"sentences that differ, of {len(left.ids)}")


def print_differences(found: tuple[str, list[Difference]], tolerance: float = TOLERANCE) -> int:
    """Prints the table; returns 1 if a difference is above the tolerance, else 0."""
    sides, lines = found
    table = rich.table.Table("", "largest difference", "", box=rich.box.SIMPLE_HEAD, title=sides, title_justify="left")
    above = [line.what for line in lines if not line.largest <= tolerance]
    for line in lines:
        value = f"{line.largest:.0f}" if line.what == "tokenizer ids" else f"{line.largest:.2e}"
        cell = "-" if line.note.startswith("not compared") else value
        table.add_row(line.what, cell, line.note or ("ABOVE" if line.what in above else ""))
    rich.console.Console(soft_wrap=True, highlight=False).print(table)
    print(f"above {tolerance:g}: {', '.join(above)}" if above else f"all within {tolerance:g}")
    return 1 if above else 0


def scores_here(model: Model, hidden_SLD: Any, used_SL: np.ndarray) -> np.ndarray | None:
    """Scores of each row [S, C] or position [S, L, C], from the hidden states of the last layer; None without such a head.

    `used_SL` is False on padding.
    """
    if model.kind is None or "span_network" in model.params:
        return None
    head = model.params[OUTPUTS[model.kind]]
    read_SLD = jnp.asarray(hidden_SLD)
    if model.kind == "sequence":
        pooling = (model.task or {}).get("pooling", "cls")
        read_SLD = row_mean(read_SLD, jnp.asarray(used_SL)) if pooling == "mean" else read_SLD[:, 0]
        if "pooler" in model.params:
            dense = model.params["pooler"]["dense"]
            read_SLD = jnp.tanh(read_SLD @ dense["kernel"] + dense["bias"][None])
        for part, activation in (("pre_classifier", "gelu"), (RELU, "relu")):
            if part in model.params:
                dense = model.params[part]
                read_SLD = ACTIVATIONS[activation](read_SLD @ dense["kernel"] + dense["bias"][None])
    if PREDICTION_HEAD in model.params:
        read_SLD = _applied(PredictionHead(model.encoder, nnx.Rngs(0)), model.params[PREDICTION_HEAD], read_SLD)
    scores_SLC = jnp.einsum("...d,dc->...c", read_SLD, jnp.asarray(head["kernel"]))
    return np.asarray(scores_SLC) + head["bias"]


def detection_here(model: Model, hidden_SLD: Any) -> np.ndarray | None:
    """Log-odds that a token was replaced, [S, L]; None without such a head."""
    if "rtd" not in model.params:
        return None
    return np.asarray(_applied(DetectionHead(model.encoder, nnx.Rngs(0)), model.params["rtd"], hidden_SLD))


def _applied(head: Any, params: Any, hidden_SLD: Any) -> jax.Array:
    """Outputs of the head with these parameters in place of its own."""
    made: Any = nnx.merge(nnx.split(head)[0], jax.tree.map(jnp.asarray, params))
    return made(jnp.asarray(hidden_SLD))


def transformers_class(transformers: Any, model: Model) -> Any:
    """The class of transformers that loads a folder of such a model."""
    if model.kind:
        return getattr(transformers, f"AutoModel{CLASSES[model.kind]}")
    if "rtd" in model.params:
        return transformers.AutoModelForPreTraining
    if "plm" in model.params:
        return transformers.XLNetLMHeadModel
    return transformers.AutoModelForMaskedLM if "mlm" in model.params else transformers.AutoModel


def transformers_scores(model: Model, output: Any) -> np.ndarray | None:
    """The same scores in the output of such a class."""
    if model.kind == "question":
        return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)
    return output.logits.numpy() if model.kind else None
