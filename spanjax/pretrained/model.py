"""A set of weights with what is needed to use it: where they came from, the encoder, the heads, the vocabulary.

`load_model` reads run directories, single checkpoints and folders of PyTorch weights alike. Parameters are the canonical tree of
`torch_format.tables`, NumPy, float32.
"""

import base64
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from spanjax import __version__
from spanjax.bounds import type_problems
from spanjax.data.vocab.loading import Vocabulary, vocabulary_from_files
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.sharding import map_named, named_leaves
from spanjax.tasks.base import SCORE
from spanjax.tasks.stored import described_task
from spanjax.torch_format.configs import gelu_problem, guessed_config, our_config
from spanjax.torch_format.families import BERT, Family, family_of, has_pieces
from spanjax.torch_format.folder import Found, is_weights, read_folder
from spanjax.torch_format.names import family_of_names, known_names
from spanjax.torch_format.tables import Loaded, our_params
from spanjax.torch_format.task_configs import our_task
from spanjax.torch_format.task_tables import Kind, our_kind, their_kind, with_heads, without_left_over
from spanjax.torch_format.tokenizer_files import vocabulary_of_folder
from spanjax.training.checkpoint import read_weights
from spanjax.training.eval_history import stored_values
from spanjax.training.checkpoint_files import best_step, steps_of, stored_losses, stored_meta, whole_step

PAIR_NAMES = ("nsp", "sop")
_PAIR_PARTS = {"pooler": "pooler", "seq_relationship": "pair"}


@dataclasses.dataclass(frozen=True)
class Model:
    """Weights and all that they need."""

    encoder: EncoderConfig
    params: Mapping[str, Any]
    """Canonical tree: "encoder", and "mlm", "sbo", "pooler", "pair", "classifier", "qa" where they are there."""
    vocabulary: Vocabulary | None
    source: pathlib.Path
    """The checkpoint or folder that was read."""
    step: int = 0
    """Updates done, where it is known."""
    pair: str = "nsp"
    """What the classifier of pairs was trained for, where there is one."""
    meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What a checkpoint says of its run, rows and hardware."""
    said: tuple[str, ...] = ()
    """What was passed over, renamed or assumed in reading, in words."""
    loaded: Loaded | None = None
    """Their names, where it was read from a folder of PyTorch weights."""
    task: Mapping[str, Any] | None = None
    """What it was fine-tuned for: the described objective of its run, or `our_task` of a folder of PyTorch weights."""

    @property
    def name(self) -> str:
        """Name of the run or folder that it is from, without the folders around it."""
        in_run = self.source.name.isdigit() and self.source.parent.name == "checkpoints"
        return (self.source.absolute().parent.parent if in_run else self.source).name

    @property
    def parts(self) -> set[str]:
        """Top-level names of the parameters."""
        return set(self.params)

    @property
    def family(self) -> Family:
        """Whose class in transformers computes what it does."""
        return family_of(self.encoder, self.parts)

    @property
    def kind(self) -> Kind | None:
        """The kind of its head, where it was fine-tuned."""
        return our_kind(self.parts, self.task or {})

    @property
    def scores(self) -> dict[str, float]:
        """Scores of the dev examples at its step; {} where they were not measured then."""
        values = stored_values(self.meta)
        return {name.removeprefix(SCORE): value for name, value in values.items() if name.startswith(SCORE)}

    def objective(self) -> MaskedPrediction | PermutedPrediction:
        """Masked prediction with a term for every head that can be used by itself; permuted prediction where that is the head."""
        if {"query", "plm"} <= self.parts:
            return PermutedPrediction()
        terms: list[Any] = [MaskedTokens()] if "mlm" in self.params else []
        if "sbo" in self.params:
            offsets, width = self.params["sbo"]["position"]["embedding"].shape
            terms.append(SpanBoundary(position_size=width, max_offset=offsets))
        if {"pooler", "pair"} <= self.parts:
            terms.append(SentencePair(name="sop" if self.pair == "sop" else "nsp"))
        return MaskedPrediction(terms=tuple(terms))


def canonical(params: Mapping[str, Any]) -> dict[str, Any]:
    """A run's tree with its pair head, "nsp" or "sop", as "pooler" and "pair"."""
    tree = {name: part for name, part in params.items() if name not in PAIR_NAMES}
    for name in PAIR_NAMES:
        tree |= {_PAIR_PARTS[each]: part for each, part in params.get(name, {}).items()}
    return tree


def of_run(params: Mapping[str, Any], pair: str = "nsp") -> dict[str, Any]:
    """A canonical tree with the names of a run: the other way. A pooler without its classifier stands in the pair head too."""
    tree = {name: part for name, part in params.items() if name not in _PAIR_PARTS.values()}
    head = {own: params[name] for own, name in _PAIR_PARTS.items() if name in params}
    return {**tree, pair: head} if head else tree


def module_params(model: Model, abstract: Any) -> dict[str, Any]:
    """The parameters that the module of `model.objective()`, or of a task, has, under its names."""
    own = named_leaves(model.params if "pooler" in abstract else of_run(model.params, model.pair))
    return map_named(lambda name, _: own[name], abstract)


def load_model(path: str | pathlib.Path, config: str | pathlib.Path | None = None) -> Model:
    """A whole checkpoint of a run directory (the newest; of a fine-tuned run the best), one checkpoint, or PyTorch weights.

    `config` is a config.json for weights that come without one. ValueError says what is wrong with the path or its files.
    """
    path = pathlib.Path(path)
    if (path / "checkpoints").is_dir():
        tuned = _fine_tuned(path)
        step, said = best_step(path) if tuned else whole_step(path)
        if tuned and step in stored_losses(path):
            said.append(f"step {step} is the best of the whole checkpoints of this fine-tuned run")
        return _from_checkpoint(path / "checkpoints" / str(step), said)
    if path.name.isdigit() and (path / "state").is_dir():
        return _from_checkpoint(path, [])
    if is_weights(path):
        from spanjax.pretrained.electra import with_generator

        return with_generator(from_weights(path, read_folder(path, pathlib.Path(config) if config else None)))
    what = "holds none of them" if path.is_dir() else "does not exist"
    raise ValueError(
        f"{path} {what}: expected a run directory (with checkpoints/), a checkpoint (checkpoints/STEP), or a folder or file of "
        "PyTorch weights (model.safetensors, pytorch_model.bin, model.pt)"
    )


def _fine_tuned(workdir: pathlib.Path) -> bool:
    metas = (stored_meta(workdir, step) for step in reversed(steps_of(workdir)))
    return any(isinstance(meta, Mapping) and described_task(meta, workdir) is not None for meta in metas)


def _from_checkpoint(folder: pathlib.Path, said: list[str]) -> Model:
    step, params, meta = read_weights(folder)
    encoder = _stored_encoder(folder, meta)
    pair = next((name for name in PAIR_NAMES if name in params), meta.get("model", {}).get("pair", "nsp"))
    try:
        files = {name: base64.b64decode(content) for name, content in meta.get("vocabulary", {}).items()}
        vocabulary = vocabulary_from_files(files) if files else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder}: the vocabulary in its meta is damaged ({error}): take another step") from error
    return Model(
        encoder=encoder,
        params=canonical(params),
        vocabulary=vocabulary,
        source=folder,
        step=step,
        pair=pair,
        meta=meta,
        said=(*said, *_own_lines(meta)),
        task=described_task(meta, folder),
    )


def _own_lines(meta: Mapping[str, Any]) -> list[str]:
    """What a reader without the run's own classes goes without, as text."""
    files = meta.get("own_classes")
    if not isinstance(files, Mapping) or not files:
        return []
    told = ", ".join(f"{name} ({file})" for name, file in files.items())
    return [
        f"its run has classes that are not spanjax's: {told}; heads of theirs are not used here: to use them train on with"
        " --init-from and that --config, to write PyTorch weights train on with an objective of spanjax's"
    ]


def _stored_encoder(folder: pathlib.Path, meta: Mapping[str, Any]) -> EncoderConfig:
    """The encoder that a checkpoint's meta describes. ValueError where this version does not know all that it says."""
    written, own = f"it was written by spanjax {meta.get('spanjax', 'of another version')}", __version__
    found: Any = meta.get("model", {}).get("encoder") or meta.get("run", {}).get("encoder")
    if not isinstance(found, dict):
        raise ValueError(
            f"{folder}: its meta names no encoder: {written}, this is {own}; take the version that wrote it"
        )
    fields = {field.name: field for field in dataclasses.fields(EncoderConfig)}
    if unknown := sorted(found.keys() - fields.keys() - {"class"}):
        names = ", ".join(f"encoder.{name}" for name in unknown)
        raise ValueError(
            f"{folder}: {names} is not known here: {written}, this is {own}; take a newer version of spanjax"
        )
    settings: dict[str, Any] = {name: value for name, value in found.items() if name in fields}
    settings |= {"attention": "auto", "remat": "none"}  # those were for the run's devices
    try:
        encoder = EncoderConfig(**settings)
        problems = type_problems(encoder, "encoder.") or encoder.problems()
    except TypeError as error:
        raise ValueError(f"{folder}: its meta is damaged ({error}): take another step") from error
    if problems:
        raise ValueError(f"{folder}: its meta is damaged ({'; '.join(problems)}): take another step")
    return encoder


def from_weights(path: pathlib.Path, found: Found) -> Model:
    """The model of PyTorch weights that were read from `path`. ValueError for what is not known, or does not fit together."""
    said: list[str] = []
    if found.config is None:
        family = family_of_names(found.tensors) or BERT
        tensors, said = known_names(found.tensors, family)
        settings = guessed_config(tensors, found.recorded)
        heads = f"{settings['num_attention_heads']} heads"
        constants = "and constants from its args.config" if found.recorded else "of 64, BERT's constants"
        said.append(f"no config.json: sizes from the weights, {heads} {constants}")
        encoder, family = our_config(settings, f"the shapes{' and args.config' * bool(found.recorded)} of {path}")
    else:
        encoder, family = our_config(found.config, str(found.files[-1]))
        tensors, said = known_names(found.tensors, family)
    settings, task = found.config or {}, None
    try:
        kind = their_kind(settings, tensors, family)
        tensors, unused = without_left_over(tensors, family, kind)
        loaded = our_params(tensors, encoder, with_heads(family, kind))
        task = our_task(settings, kind, loaded.params, encoder) if kind else None
        if told := gelu_problem(encoder, loaded.params, family):
            raise ValueError(f"{told}: read the encoder alone, as {family.class_prefix}Model saves it")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _check_shapes(path, loaded.params, encoder)
    halves = sorted({str(array.dtype) for array in found.tensors.values()} - {"float32", "int64"})
    said += [*found.notes, *unused, *([f"{', '.join(halves)} became float32"] if halves else [])]
    vocabulary = vocabulary_of_folder(path if path.is_dir() else path.parent)
    if vocabulary is not None and vocabulary.size != encoder.vocab_size:
        said.append(f"the tokenizer files have {vocabulary.size:,} ids, the weights {encoder.vocab_size:,}: left out")
        vocabulary = None
    pair = "sop" if family.model_type == "albert" else "nsp"
    return Model(encoder, loaded.params, vocabulary, path, pair=pair, said=tuple(said), loaded=loaded, task=task)


def _check_shapes(path: pathlib.Path, params: Mapping[str, Any], encoder: EncoderConfig) -> None:
    from spanjax.training.state import abstract_module

    model = Model(encoder, params, None, path)
    expected = named_leaves(canonical(abstract_module(model.objective(), encoder)[1]))
    leaves = named_leaves(params)
    wrong = [
        f"{name} is {leaves[name].shape}, config.json says {leaf.shape}"
        for name, leaf in expected.items()
        if name in leaves and leaves[name].shape != leaf.shape
    ]
    if wrong:
        raise ValueError(
            f"{path}: weights and config.json do not agree:\n" + "\n".join(f"  - {each}" for each in wrong[:8])
        )


def model_meta(model: Model) -> dict[str, Any]:
    """What a checkpoint of these weights alone says, beside what it already said."""
    from spanjax.run import describe

    return {
        **model.meta,
        "model": {"encoder": describe(model.encoder), "pair": model.pair, "source": model.name, "task": model.task},
        "vocabulary": stored_vocabulary(model.vocabulary) if model.vocabulary else {},
    }


def stored_vocabulary(vocabulary: Vocabulary) -> dict[str, str]:
    """The files of a vocabulary as a checkpoint's meta holds them: base64 by name."""
    return {name: base64.b64encode(content).decode() for name, content in vocabulary.files().items()}


def equal_weights(one: Model, other: Model) -> list[str]:
    """Names of parameters that are in one model alone or differ; rows that only pad the vocabulary do not count."""
    left, right = (named_leaves(each.params) for each in (one, other))

    def same(name: str) -> bool:
        a, b = left[name], right[name]
        if has_pieces(name):
            a, b = a[: one.encoder.vocab_size], b[: other.encoder.vocab_size]
        return np.array_equal(a, b)

    return sorted(
        name for name in left.keys() | right.keys() if name not in left or name not in right or not same(name)
    )
