"""The family's objectives beside each other, at a size for one core: what the arms objective_*.py have in common.

Command (one corpus for all arms):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --train-vocab 4000 --length 128 \
        --output rows
    python -m spanjax.train --config configs/ablations/objective_base.py --rows rows --workdir runs/objectives/base

2 layers of 128 with Muon, 32 rows a step. An arm changes the objective and, where its system has another one, the encoder; all
read the same rows in the same order. `python -m benchmarks.objectives` trains all of them for the same FLOPs and fine-tunes what
they give.

Expect: nothing of its own; the arm with these settings is objective_spanbert.py. docs/results.md has what was measured.
"""

import dataclasses

from configs.pretrain.small_tokens import RUN as SMALL
from spanjax.data.feed.masking import Tokens
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction

MASKED = MaskedPrediction(masking=Tokens(), terms=(MaskedTokens(),))

RUN = dataclasses.replace(
    SMALL,
    objective=MaskedPrediction(),
    cadence=dataclasses.replace(SMALL.cadence, log_every=50, eval_every=0, eval_batches=32),
    steps=800,
)
