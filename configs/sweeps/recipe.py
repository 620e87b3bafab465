"""The recipe of a small encoder as a sweep: schedule, optimizer, mask rate, positions, initial weights, each against one base.

Command (rows as for pretrain/mini.py; the arm `continued` needs the installed model spanbert-mini, and rows with its vocabulary):
    python -m spanjax.train --sweep configs/sweeps/recipe.py --rows runs/mini/rows --feed numpy --workdir runs/recipe
    python -m spanjax.report runs/recipe
    python -m spanjax.train --config configs/sweeps/recipe.py --rows runs/mini/rows --feed numpy --workdir runs/base    (the base)

Expect: four minutes or so for each of 24 runs on two CPU cores. All arms have the shape of spanbert-mini, so that one can
continue it; its pretraining is not counted. As in mini.py, single tokens are masked first and spans later: spans alone stay at
the unigram entropy for longer than an arm lasts. Every arm gets the FLOPs of the base. Muon has the rate of mini.py, AdamW
that of small.py; neither was tuned here. Results of so few steps hold for short runs; there are none yet.
"""

import dataclasses

from configs.pretrain.mini import RUN as MINI
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged, Tokens
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW, Muon
from spanjax.training.optimizers.schedules import Schedule

STEPS, WARMUP = 700, 70
ADAMW = AdamW(learning_rate=1.2e-3, warmup_steps=WARMUP, beta2=0.98, weight_decay=0.01)


def masked(first: float, later: float) -> MaskedPrediction:
    """Returns the objective with these mask rates: single tokens for 60 % of the steps, then spans."""
    stages = (Stage(0, Tokens(rate=first)), Stage(STEPS * 6 // 10, GeometricSpans(rate=later)))
    return MaskedPrediction(masking=Staged(stages=stages))


RUN = dataclasses.replace(
    MINI,
    objective=masked(0.15, 0.15),
    encoder=dataclasses.replace(MINI.encoder, rope_theta=0.0),
    optimizer=ADAMW,
    cadence=Cadence(log_every=20, eval_every=STEPS, checkpoint_every=100, eval_batches=16, keep=1),
    steps=STEPS,
    batch_size=8,
)


def scheduled(schedule: Schedule) -> Run:
    """Returns the base with another learning rate schedule."""
    return dataclasses.replace(RUN, optimizer=dataclasses.replace(ADAMW, schedule=schedule))


ROTARY = dataclasses.replace(RUN, encoder=MINI.encoder)
ARMS = {
    "base": RUN,
    "wsd": scheduled(Schedule(decay="sqrt", decay_share=0.2)),
    "cosine": scheduled(Schedule(decay="cosine")),
    "muon": dataclasses.replace(
        RUN, optimizer=Muon(learning_rate=3e-3, warmup_steps=WARMUP, beta2=0.98, weight_decay=0.01)
    ),
    "mask_30": dataclasses.replace(RUN, objective=masked(0.3, 0.3)),
    "mask_30_to_15": dataclasses.replace(RUN, objective=masked(0.3, 0.15)),
    "rope": ROTARY,
    "continued": dataclasses.replace(ROTARY, init_from="spanbert-mini"),
}
SEEDS = (0, 1, 2)
EQUAL_FLOPS = True
