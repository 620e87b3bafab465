"""The recipe of a small encoder as a sweep: schedule, optimizer, mask rate, positions, initial weights, each against one base.

Command (rows as for pretrain/mini.py; the arm `continued` needs the installed model spanbert-mini, and rows with its vocabulary):
    python -m spanjax.train --sweep configs/sweeps/recipe.py --rows runs/mini/rows --feed numpy --workdir runs/recipe
    python -m spanjax.report runs/recipe
    python -m spanjax.train --config configs/sweeps/recipe.py --rows runs/mini/rows --feed numpy --workdir runs/base    (the base)

Expect: about 4 minutes for each of 24 runs on two CPU cores. All arms have the shape of spanbert-mini, so that one
can continue it; its pretraining is not counted. Every arm gets the FLOPs of the base. Results of so few steps hold for
short runs; there are none yet. Muon has the rate of mini.py, AdamW that of small.py; neither was tuned here.
"""

import dataclasses

from configs.pretrain.mini import RUN as MINI
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW, Muon
from spanjax.training.optimizers.schedules import Schedule

STEPS, WARMUP = 350, 40
ADAMW = AdamW(learning_rate=1.2e-3, warmup_steps=WARMUP, beta2=0.98, weight_decay=0.01)

RUN = dataclasses.replace(
    MINI,
    objective=MaskedPrediction(masking=GeometricSpans()),
    encoder=dataclasses.replace(MINI.encoder, rope_theta=0.0),
    optimizer=ADAMW,
    cadence=Cadence(log_every=20, eval_every=STEPS, checkpoint_every=100, eval_batches=16, keep=1),
    steps=STEPS,
    batch_size=16,
)


def scheduled(schedule: Schedule) -> Run:
    """Returns the base with another learning rate schedule."""
    return dataclasses.replace(RUN, optimizer=dataclasses.replace(ADAMW, schedule=schedule))


def masked(masking: GeometricSpans | Staged) -> Run:
    """Returns the base with another masking policy."""
    return dataclasses.replace(RUN, objective=MaskedPrediction(masking=masking))


SPARSE, DENSE = GeometricSpans(rate=0.15), GeometricSpans(rate=0.3)
ROTARY = dataclasses.replace(RUN, encoder=MINI.encoder)
ARMS = {
    "base": RUN,
    "wsd": scheduled(Schedule(decay="sqrt", decay_share=0.2)),
    "cosine": scheduled(Schedule(decay="cosine")),
    "muon": dataclasses.replace(
        RUN, optimizer=Muon(learning_rate=3e-3, warmup_steps=WARMUP, beta2=0.98, weight_decay=0.01)
    ),
    "mask_30": masked(DENSE),
    "mask_30_to_15": masked(Staged(stages=(Stage(0, DENSE), Stage(STEPS // 2, SPARSE)))),
    "rope": ROTARY,
    "continued": dataclasses.replace(ROTARY, init_from="spanbert-mini"),
}
SEEDS = (0, 1, 2)
EQUAL_FLOPS = True
