"""Tables 6 and 7 of SpanBERT at small scale: what is masked, SBO, and two segments with NSP, by the recipe of from_scratch.py.

Command (rows as for pretrain/mini.py; `evaluate suite` judges the checkpoints that each run keeps):
    python -m spanjax.train --sweep configs/sweeps/masking.py --rows runs/mini/rows --feed numpy --workdir runs/masking
    python -m spanjax.report runs/masking
    python -m spanjax.train --config configs/sweeps/masking.py --rows runs/mini/rows --feed numpy --workdir runs/base   (the base)

Expect: 1.6 hours of two cores; docs/results.md has what was found, masking_tasks.toml the tasks.
All arms have the FLOPs of the base and mask single tokens for 60 % of their steps,
as the recipe does: with spans alone a model of 2 layers of 128 stays near the unigram entropy for as long as an arm lasts. So the
arms differ in what the rest masks (rate 15 %), and in their terms from the start. Losses of different masking cannot be compared,
only what the weights are good for. Each run keeps four checkpoints.
"""

import dataclasses

from configs.recipes.from_scratch import RUN as RECIPE
from spanjax.data.feed.masking import GeometricSpans, MaskingPolicy, Stage, Staged, Tokens, WholeWords
from spanjax.data.feed.pairing import NextSentence
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run
from spanjax.training.loop import Cadence

STEPS = 4_000


def arm(later: MaskingPolicy, objective: MaskedPrediction) -> Run:
    """Returns the recipe with this objective, whose masking becomes `later` after single tokens."""
    stages = (Stage(0, Tokens()), Stage(STEPS * 6 // 10, later))
    return dataclasses.replace(
        RECIPE,
        objective=dataclasses.replace(objective, masking=Staged(stages=stages)),
        cadence=Cadence(log_every=20, eval_every=STEPS // 4, checkpoint_every=STEPS // 4, eval_batches=64, keep=4),
        steps=STEPS,
    )


TOKENS = MaskedPrediction(terms=(MaskedTokens(),))
NSP = MaskedPrediction(pairing=NextSentence(), terms=(MaskedTokens(), SentencePair()))
RUN, PAIRED = arm(Tokens(), TOKENS), arm(GeometricSpans(), NSP)

ARMS = {
    "tokens": RUN,
    "words": arm(WholeWords(), TOKENS),
    "spans": arm(GeometricSpans(), TOKENS),
    "spans_sbo": arm(GeometricSpans(), MaskedPrediction(terms=(MaskedTokens(), SpanBoundary()))),
    "two_segments": dataclasses.replace(PAIRED, encoder=dataclasses.replace(PAIRED.encoder, types=2)),
}
SEEDS = (0, 1, 2)
EQUAL_FLOPS = True
