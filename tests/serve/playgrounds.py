"""Models for the page that no training made: random weights of every kind, and a page that is served for a `with` block."""

import contextlib
import dataclasses
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from spanjax.objectives.base import Objective
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pretrained.model import Model
from spanjax.run_format import describe
from spanjax.serve import playground
from spanjax.serve.playground import Playground
from spanjax.serve.server import LOOPBACK, Answering, opened
from spanjax.tasks.base import Task
from spanjax.tasks.contrastive import Contrastive
from spanjax.tasks.coref import Coref
from spanjax.tasks.glue import Glue
from spanjax.tasks.ner import Ner
from spanjax.tasks.relation import Relation
from spanjax.tasks.squad import Questions
from spanjax.training.state import abstract_module
from tests.made import tiny_encoder
from tests.tasks.small_vocabulary import small_wordpiece

NAME = "runs/</script><b>made</b>"
KINDS: dict[str, Objective] = {
    "fill": MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(position_size=8))),
    "ner": Ner(length=64, labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC")),
    "coref": Coref(length=32, singletons="keep"),
    "qa": Questions(length=64, max_query=16, stride=16),
    "classify": Glue(length=64, labels=("<b>no</b>", "yes")),
    "relation": Relation(length=64, labels=("no_relation", "born_in"), marking="markers",
                         pieces=(("[/OBJ]", 5), ("[/SUBJ]", 6), ("[OBJ]", 7), ("[SUBJ]", 8))),
    "task": Contrastive(length=32),
}  # fmt: skip


def made_model(objective: Objective, seed: int = 0) -> Model:
    """A model of this objective or task with random weights and a small vocabulary."""
    vocabulary, rng = small_wordpiece(), np.random.default_rng(seed)
    encoder = tiny_encoder(vocab_size=vocabulary.size)
    _, abstract = abstract_module(objective, encoder)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), abstract)
    task = describe(objective) if isinstance(objective, Task) else None
    source = pathlib.Path(NAME)
    return dataclasses.replace(Model(encoder, params, vocabulary, source), task=task)


def made_playground(kind: str) -> Playground:
    """The playground of a model with random weights."""
    with mock.patch.object(playground, "load_model", lambda path: made_model(KINDS[kind])):
        return Playground(NAME)


def example(playground: Playground) -> dict[str, Any]:
    """The record that the page shows first, with a span to hide."""
    fields = {field["name"]: field["example"] for field in playground.settings["fields"]}
    fields |= {"hide": [[4, 14]]} if playground.settings["kind"] == "fill" else {}
    return json.loads(fields["record"]) if "record" in fields else fields


@contextlib.contextmanager
def served_page(model: Answering, host: str = LOOPBACK) -> Iterator[str]:
    """Serves the page on a free port and yields its address."""
    with opened(host, 0) as server:
        thread = threading.Thread(target=server.run, args=(model,), daemon=True)
        thread.start()
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/"
        finally:
            server.stop()
            thread.join()
