"""Initial weights: maps those of another model onto the parameters of a run; samples and reports the missing ones.

Tokens of the vocabulary are matched by their names, specials by their roles. New tokens get the mean of the trained rows plus a
normal sample with the initialiser's deviation, and the mean of the trained biases. Positions beyond the trained ones repeat them
from the first on. Offsets of the span boundary head beyond the trained ones are sampled, because each stands for a different
place in a span.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.data.vocab.base import Vocabulary
from spanjax.nn.config import EncoderConfig, Execution, Regularization
from spanjax.objectives.base import Objective
from spanjax.objectives.loss_terms import PAIR_NAMES, of_run
from spanjax.pretrained.model import Model
from spanjax.sharding import named_leaves
from spanjax.torch_format.families import has_pieces
from spanjax.torch_format.task_configs import default_labels
from spanjax.torch_format.task_tables import PREDICTION_HEAD

LEAST_KNOWN = 0.5  # share of tokens that the model must know
# Every other setting but those of training and execution must be that of the weights. Tables are resized, and the
# initialiser only samples what the weights lack.
MAY_DIFFER = frozenset({"vocab_size", "positions", "types", "initializer_std"})
CLASSIFIER = ("classifier/kernel", "classifier/bias")
SHOWN = 8  # labels that are listed
TOKENS, POSITIONS, TYPES = (f"encoder/embeddings/{name}/embedding" for name in ("token", "position", "type"))
OFFSETS = "sbo/position/embedding"
RESIZED = (POSITIONS, TYPES, OFFSETS)  # tables whose number of rows may differ
_SIZES = {
    (OFFSETS, 1): "{boundary}.position-size {size}",
    ("generator/layers/feed_in/kernel", 0): "generator-depth {depth:g}",
    ("generator/layers/feed_in/kernel", 1): "generator-size {width:g}",
    ("coreference/width/embedding", 0): "model.max-width {size}",
    ("coreference/width/embedding", 1): "model.feature-size {size}",
    ("coreference/mention/hidden/kernel", 1): "model.hidden-size {size}",
    ("coreference/segment_distance/embedding", 0): "max-segments {size}",
    ("coreference/genre/embedding", 0): "genres {genres}",
}
"""(Parameter, axis) whose length a setting of the objective is -> that setting as a flag, without `--objective.`."""


class InitialWeights(NamedTuple):
    """Weights that a run starts from."""

    leaves: Mapping[str, np.ndarray]
    """Parameters by their names in the run, float32, in the run's shapes; the others are sampled."""
    lines: tuple[str, ...]
    """Messages on the parameters that were loaded, sampled and skipped."""


def start_from(
    model: Model,
    encoder: EncoderConfig,
    vocabulary: Vocabulary,
    shapes: Any,
    seed: int,
    labels: Sequence[str] = (),
    objective: Objective | None = None,
) -> InitialWeights:
    """Maps the weights of `model` onto a run with this encoder and vocabulary; `shapes` is the run's tree of parameters.

    A classifier for other labels than the run's `labels` is sampled; one for the same labels in another order is reordered.
    `objective`, the run's objective or task, only decides how messages name its settings.
    ValueError lists everything that does not fit, with the settings that would make it fit.
    """
    wanted = named_leaves(shapes)
    pair = next((name for name in PAIR_NAMES if any(leaf.startswith(f"{name}/") for leaf in wanted)), model.pair)
    as_stored = any(leaf.startswith("pooler/") for leaf in wanted)  # a task reads the pooler itself
    found = named_leaves(model.params if as_stored else of_run(model.params, pair))
    problems = _settings_problems(model, encoder)
    known_V, lines = np.arange(encoder.vocab_size), []
    try:
        known_V, lines = _known_pieces(model, vocabulary)
    except ValueError as error:
        problems.append(str(error))
    found, changes = _classifier(found, wanted, (model.task or {}).get("labels") or (), labels)
    lines += changes
    found, changes = _prediction_head(found, wanted)
    lines += changes
    leaves: dict[str, np.ndarray] = {}
    comparable = not problems  # with other sizes or tokens every shape would differ, and tell nothing new
    unequal: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    random = np.random.default_rng([seed, len(known_V)])
    for name, leaf in wanted.items():
        if name not in found:
            continue
        array = np.asarray(found[name], np.float32)
        if has_pieces(name) or (objective and objective.has_pieces(name)):
            array = _pieces(array, known_V, leaf.shape[0], encoder.initializer_std, random)
        elif name in RESIZED and comparable and len(array) != leaf.shape[0]:
            array, note = _resized(name, array, leaf.shape[0], encoder, random, _boundary_flag(objective))
            lines.append(note)
        if array.shape != leaf.shape and comparable:
            unequal[name] = (np.shape(found[name]), tuple(leaf.shape))
        leaves[name] = array
    problems += _shape_problems(unequal, model, encoder, objective)
    raise_problems(problems, f"--init-from {model.source} does not fit this run:")
    fresh, unused = (
        sorted({_part(name) for name in names}) for names in (wanted.keys() - leaves, found.keys() - leaves)
    )
    loaded = sorted({_part(name) for name in leaves})
    lines = [f"loaded {', '.join(loaded)}", *lines]
    lines += [f"drawn fresh: {', '.join(fresh)}"] if fresh else []
    lines += [f"not used: {', '.join(unused)}"] if unused else []
    return InitialWeights(leaves, (*model.notes, *lines))


def _classifier(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, Any], theirs: Sequence[str], labels: Sequence[str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the parameters with a classifier for the run's labels, or without one, and messages on its changes."""
    kernel, bias = CLASSIFIER
    if not found.keys() & wanted.keys() & {kernel}:
        return dict(found), []
    nameless = not theirs or not labels or list(theirs) == default_labels(len(theirs))
    if found[kernel].shape == wanted[kernel].shape and (nameless or sorted(theirs) == sorted(labels)):
        if nameless or list(theirs) == list(labels):
            unsure = bool(labels) and nameless
            return dict(found), ["classifier: its labels have no names, they are taken to mean the same"] * unsure
        order = [list(theirs).index(label) for label in labels]
        return {**found, kernel: found[kernel][:, order], bias: found[bias][order]}, ["classifier: labels put in order"]
    before = ", ".join(theirs[:SHOWN]) or f"{found[kernel].shape[-1]} outputs"
    note = f"classifier: it was trained for {before}{', ...' * (len(theirs) > SHOWN)}, not for the labels of this run"
    return {name: leaf for name, leaf in found.items() if name not in CLASSIFIER}, [note]


def _prediction_head(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the parameters with the layers of the masked token head as the prediction head of a task that the weights lack, as
    transformers loads them for ModernBERT; and a message on it."""
    names = {name: name.replace(PREDICTION_HEAD, "mlm", 1) for name in wanted if _part(name) == PREDICTION_HEAD}
    # that of an ELECTRA is its generator's, and one of another width decodes narrower embeddings
    if (
        not names
        or found.keys() & names.keys()
        or any(_part(name) == "rtd" for name in found)
        or any(name not in found or found[name].shape != wanted[own].shape for own, name in names.items())
    ):
        return dict(found), []
    others = {name: leaf for name, leaf in found.items() if name not in names.values()}
    return {**others, **{own: found[name] for own, name in names.items()}}, [
        f"{PREDICTION_HEAD}: starts as the layers of the masked token head"
    ]


def _part(name: str) -> str:
    return name.split("/")[0]


def _differing(encoder: EncoderConfig, weights: EncoderConfig) -> dict[str, tuple[Any, Any]]:
    """Settings that must be those of the weights and are not: name -> (the run's, the weights')."""
    dropped = {"types"} if weights.types and not encoder.types and not encoder.relative_attention else set()
    # a group that is added later counts as well, so that a setting that is in no group gives an error
    others = {field.name for group in (Regularization, Execution) for field in dataclasses.fields(group)}
    names = (field.name for field in dataclasses.fields(encoder) if field.name not in (MAY_DIFFER - dropped) | others)
    pairs = {name: (getattr(encoder, name), getattr(weights, name)) for name in names}
    return {name: (own, theirs) for name, (own, theirs) in pairs.items() if own != theirs}


def _setting_problem(name: str, own: Any, theirs: Any) -> str:
    option = name.replace("_", "-")
    option = f"{'' if theirs else 'no-'}{option}" if isinstance(theirs, bool) else f"{option} {theirs}"
    return f"encoder.{name} is {own}, the weights have {theirs}: give --encoder.{option}"


def _settings_problems(model: Model, encoder: EncoderConfig) -> list[str]:
    return [_setting_problem(name, *values) for name, values in _differing(encoder, model.encoder).items()]


def with_sizes_of(
    weights: EncoderConfig, encoder: EncoderConfig, named: Collection[str] = ()
) -> tuple[EncoderConfig, list[str], list[str]]:
    """Returns the encoder with every setting of the weights that a run must share with them, notes on the changed ones, and
    problems: settings with another value that the command line names (`named`: names as in `spanjax.run.flat`)."""
    differing = _differing(encoder, weights)
    kept = {name for name in differing if {f"encoder/{name}", f"encoder/no_{name}"} & {*named}}
    problems = [f"{_setting_problem(name, *differing[name])} or leave it out" for name in differing if name in kept]
    taken = {name: theirs for name, (_, theirs) in differing.items() if name not in kept}
    changes = ", ".join(f"encoder.{name} {theirs} (not {differing[name][0]})" for name, theirs in taken.items())
    notes = [f"settings of the weights: {changes}"] if changes else []
    return dataclasses.replace(encoder, **taken), notes, problems


def _boundary_flag(objective: Objective | None) -> str:
    """Returns the path of the span boundary term in the settings of the run's objective."""
    return (objective.setting_of(_part(OFFSETS)) if objective else "") or "boundary"


def _shape_problems(
    unequal: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
    model: Model,
    encoder: EncoderConfig,
    objective: Objective | None,
) -> list[str]:
    """Lists parameters whose shapes (in the weights, in the run) differ, with the flags that would make them alike; not one
    that differs because another one of its head does."""
    messages: dict[str, str] = {}
    genres = " ".join((model.task or {}).get("genres") or ())
    for name, (theirs, own) in unequal.items():
        flags = []
        for (parameter, axis), flag in _SIZES.items():
            if parameter == name and theirs[axis] != own[axis]:
                size = theirs[axis]
                ratios = {"depth": size / encoder.layers, "width": size / encoder.hidden_size}
                flag = flag.format(boundary=_boundary_flag(objective), size=size, genres=genres, **ratios)
                flags.append(f"--objective.{flag}".strip())
        if flags:
            messages[name] = f"{name} is {theirs} in the weights, {own} in this run: give {' '.join(flags)}"
    # another parameter of the same head needs no flag of its own
    explained = {_part(name) for name in messages}
    rest = [
        f"{name} is {theirs} in the weights, {own} in this run: make the settings of {_part(name)} alike"
        for name, (theirs, own) in unequal.items()
        if _part(name) not in explained
    ]
    return [*messages.values(), *rest]


def _known_pieces(model: Model, vocabulary: Vocabulary) -> tuple[np.ndarray, list[str]]:
    """Maps every id of the run's vocabulary to the model's id of the same token, or -1: int64 [V]."""
    theirs = model.vocabulary
    if theirs is None:
        if model.encoder.vocab_size != vocabulary.size:
            raise ValueError(
                f"the weights have {model.encoder.vocab_size:,} pieces and no vocabulary, the rows {vocabulary.size:,}: convert "
                "the weights with `python -m spanjax.convert from-torch ... --vocab`, or prepare rows with their vocabulary"
            )
        return np.arange(vocabulary.size), ["the weights came without a vocabulary: ids are taken to mean the same"]
    if theirs.fingerprint == vocabulary.fingerprint:
        return np.arange(vocabulary.size), []
    if (theirs.kind, theirs.casing) != (vocabulary.kind, vocabulary.casing):
        raise ValueError(
            f"the weights have a {theirs.kind} vocabulary ({theirs.casing}), the rows a {vocabulary.kind} one "
            f"({vocabulary.casing}): prepare rows with the vocabulary of the weights, or one that extends it"
        )
    ids = {piece: number for number, piece in enumerate(theirs.pieces)}
    known_V = np.array([ids.get(piece, -1) for piece in vocabulary.pieces])
    # specials by their roles, as their names may differ
    known_V[list(vocabulary.specials)] = list(theirs.specials)
    count = int((known_V >= 0).sum())
    if count < LEAST_KNOWN * vocabulary.size:
        raise ValueError(
            f"the weights know {count:,} of the {vocabulary.size:,} pieces of the rows' vocabulary: expected at least "
            f"{LEAST_KNOWN:.0%}; prepare rows with the vocabulary of the weights, or one that extends it"
        )
    return known_V, [
        f"vocabulary: {count:,} of {vocabulary.size:,} pieces are known, {vocabulary.size - count:,} are new"
    ]


def _pieces(
    array: np.ndarray, known_V: np.ndarray, stored: int, deviation: float, random: np.random.Generator
) -> np.ndarray:
    """Returns rows of the known tokens, sampled ones for new tokens, zeros for rows that only pad to `stored`."""
    rows = np.zeros((stored, *array.shape[1:]), np.float32)
    known = known_V >= 0
    mean = array[known_V[known]].mean(axis=0, dtype=np.float64)
    drawn = random.normal(0, deviation, (int((~known).sum()), *array.shape[1:])) if array.ndim > 1 else 0.0
    rows[: len(known_V)][known] = array[known_V[known]]
    rows[: len(known_V)][~known] = mean + drawn
    return rows


def _resized(
    name: str, array: np.ndarray, size: int, encoder: EncoderConfig, random: np.random.Generator, flag: str
) -> tuple[np.ndarray, str]:
    """Returns a table of RESIZED with another number of rows, and a message: further positions repeat the trained ones, further
    types the last; offsets are sampled as the run would."""
    known = len(array)
    if name == POSITIONS:
        offset = encoder.position_offset
        trained, wanted = known - offset, size - offset
        if size < known:
            return array[:size], f"positions: the first {wanted:,} of {trained:,}"
        places = np.concatenate([np.arange(offset), offset + np.arange(wanted) % trained])
        return array[places], f"positions: {trained:,} trained ones, repeated for {wanted:,}"
    if name == TYPES:
        last = ", the last repeated" if size > known else ""
        kept = array[np.minimum(np.arange(size), known - 1)]
        return kept, f"token types: {known} in the weights, {size} here{last}"
    if size < known:
        keep = f"--objective.{flag}.max-offset {known} keeps all"
        return array[:size], f"span boundary offsets: the first {size:,} of {known:,}; {keep}"
    drawn = random.normal(0, encoder.initializer_std, (size - known, *array.shape[1:])).astype(np.float32)
    note = f"span boundary offsets: {known:,} trained ones, {size - known:,} drawn fresh"
    return np.concatenate([array, drawn]), note
