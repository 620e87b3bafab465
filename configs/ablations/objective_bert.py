"""BERT: single tokens with ten maskings, two segments, MLM and NSP.

Command:
    python -m spanjax.train --config configs/ablations/objective_bert.py --rows rows --workdir runs/objectives/bert

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import MASKED
from configs.ablations.objective_base import RUN as BASE
from spanjax.data.feed.masking import Tokens
from spanjax.data.feed.pairing import NextSentence
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair

RUN = dataclasses.replace(
    BASE,
    objective=dataclasses.replace(
        MASKED,
        masking=Tokens(copies=10),
        pairing=NextSentence(),
        terms=(MaskedTokens(), SentencePair()),
    ),
)
