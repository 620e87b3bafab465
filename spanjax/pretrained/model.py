"""Model: weights with their source, encoder, heads and vocabulary.

`load_model` reads run directories, single checkpoints and folders of PyTorch weights alike. Parameters are the canonical tree of
`torch_format.tables`, NumPy, float32.
"""

import base64
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from spanjax.data.vocab.loading import Vocabulary
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.base import Pretraining
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary, of_run
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.run_format import describe
from spanjax.sharding import map_named, named_leaves
from spanjax.tasks.base import SCORE, HfHead, TextPooling
from spanjax.torch_format.families import Family, family_of, has_pieces
from spanjax.torch_format.tables import Loaded
from spanjax.torch_format.task_tables import head_of
from spanjax.training.eval_history import stored_values

KNOWN: tuple[Pretraining, ...] = (
    PermutedPrediction(),
    MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(), SentencePair())),
)
"""Objectives whose heads weights without a run may have; the last one takes an encoder alone too."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Weights with everything that their use needs."""

    encoder: EncoderConfig
    params: Mapping[str, Any]
    """Canonical tree: "encoder", the heads of tasks ("classifier", "qa", ...), and the `parts` of objectives."""
    vocabulary: Vocabulary | None
    source: pathlib.Path
    """The checkpoint or folder that was read."""
    step: int = 0
    """Updates done, if known."""
    pair: str = "nsp"
    """Objective of the classifier of pairs, if there is one."""
    meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """A checkpoint's record of its run, rows and hardware."""
    notes: tuple[str, ...] = ()
    """Messages on parts that reading skipped, renamed or assumed."""
    loaded: Loaded | None = None
    """Their names, if read from a folder of PyTorch weights."""
    task: Mapping[str, Any] | None = None
    """Task of the fine-tuning: the described objective of its run, or `described_task_from_hf` of a folder of PyTorch weights."""
    trained: Pretraining | None = None
    """Objective of its pretraining run; None if unknown."""
    pooling: TextPooling = "mean"
    """Pooling of vectors of texts: that of its contrastive training, or of a folder of sentence-transformers."""
    model_type: str = ""
    """Family of transformers that the weights came from, if the encoder alone does not tell: see `family_of`."""

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
        """Family whose class in transformers computes the same."""
        return family_of(self.encoder, self.parts, self.model_type)

    @property
    def kind(self) -> HfHead | None:
        """Head of transformers' classes that it was fine-tuned with; None without one."""
        return head_of(self.parts, self.task)

    @property
    def scores(self) -> dict[str, float]:
        """Scores of the dev examples at its step; {} if none were measured then."""
        values = stored_values(self.meta)
        return {name.removeprefix(SCORE): value for name, value in values.items() if name.startswith(SCORE)}

    def objective(self) -> Pretraining:
        """Objective that uses the weights: that of the run if it is known, else the one that finds its heads among `KNOWN`."""
        if self.trained and self.trained.parts.keys() <= self.params.keys():
            return self.trained
        found = (known.of_parts(self.params, self.pair) for known in KNOWN)
        return next(objective for objective in found if objective)


def vocabulary_of(model: Model) -> Vocabulary:
    """Returns the vocabulary of a model that reads texts. ValueError if it came without one."""
    if model.vocabulary is None:
        raise ValueError(
            f"{model.source} came without a vocabulary: put its tokenizer files beside the weights, or convert it with "
            "`python -m spanjax.convert from-torch ... --vocab FILE`"
        )
    return model.vocabulary


def module_params(model: Model, abstract: Any) -> dict[str, Any]:
    """Returns the parameters of the module of `model.objective()`, or of a task, under its names.

    ValueError if some are missing or have other shapes.
    """
    own = named_leaves(model.params if "pooler" in abstract else of_run(model.params, model.pair))
    wrong = [
        f"{name} is {own[name].shape if name in own else 'missing'}, expected {leaf.shape}"
        for name, leaf in named_leaves(abstract).items()
        if name not in own or own[name].shape != leaf.shape
    ]
    if wrong:
        what = "task" if model.task else "objective"
        raise ValueError(f"{model.source}: its parameters are not those of its {what}:\n" + "\n".join(wrong[:8]))
    return map_named(lambda name, _: own[name], abstract)


def model_meta(model: Model) -> dict[str, Any]:
    """Returns the meta for a checkpoint of these weights alone, in addition to their own."""
    return {
        **model.meta,
        "model": {
            "encoder": describe(model.encoder),
            "pair": model.pair,
            "source": model.name,
            "task": model.task,
            "pooling": model.pooling,
            "model_type": model.model_type,
        },
        "vocabulary": stored_vocabulary(model.vocabulary) if model.vocabulary else {},
    }


def stored_vocabulary(vocabulary: Vocabulary) -> dict[str, str]:
    """Encodes the files of a vocabulary for a checkpoint's meta: base64 by name."""
    return {name: base64.b64encode(content).decode() for name, content in vocabulary.files().items()}


def equal_weights(one: Model, other: Model) -> list[str]:
    """Lists parameters that are in one model alone or differ; rows that only pad the vocabulary do not count."""
    left, right = (named_leaves(each.params) for each in (one, other))

    def same(name: str) -> bool:
        a, b = left[name], right[name]
        if has_pieces(name):
            a, b = a[: one.encoder.vocab_size], b[: other.encoder.vocab_size]
        return np.array_equal(a, b)

    return sorted(
        name for name in left.keys() | right.keys() if name not in left or name not in right or not same(name)
    )
