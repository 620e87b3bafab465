"""ALBERT: one set of parameters for all layers, narrow embeddings, n-grams, sentence order.

Command:
    python -m spanjax.train --config configs/ablations/objective_albert.py --rows rows --workdir runs/objectives/albert

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import MASKED
from configs.ablations.objective_base import RUN as BASE
from spanjax.data.feed.masking import Ngrams
from spanjax.data.feed.pairing import SentenceOrder
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair

RUN = dataclasses.replace(
    BASE,
    objective=dataclasses.replace(
        MASKED,
        masking=Ngrams(),
        pairing=SentenceOrder(),
        terms=(MaskedTokens(), SentencePair(name="sop")),
    ),
    encoder=dataclasses.replace(BASE.encoder, num_layer_groups=1, embedding_size=64, activation="gelu_tanh"),
)
