"""The recipe of a small encoder as a sweep: schedule, optimizer, mask rate, positions, initial weights, each against one base.

Command (rows as for pretrain/mini.py; the arm `continued` needs the installed model spanbert-mini, and rows with its vocabulary):
    python -m spanjax.train --sweep configs/sweeps/recipe.py --rows runs/mini/rows --feed numpy --workdir runs/recipe
    python -m spanjax.report runs/recipe
    python -m spanjax.train --config configs/sweeps/recipe.py --rows runs/mini/rows --feed numpy --workdir runs/base    (the base)

Expect: docs/results.md has what was measured. The base has 2 layers of 128 and rotary positions: in minutes on two CPU cores it
leaves the unigram entropy, which the shape of spanbert-mini and learned positions do not, and arms that stay there tell nothing.
The arm `continued` has that shape, and as many FLOPs in fewer steps; the pretraining of its weights is not counted. As in
mini.py, single tokens are masked first and spans later. Muon has the rate of mini.py, AdamW that of demo.py, and a quarter of it
to continue; none was tuned here. Results of so few steps hold for short runs.
"""

import dataclasses

from configs.pretrain.mini import RUN as MINI
from configs.pretrain.tiny import RUN as TINY
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged, Tokens
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW, Muon
from spanjax.training.optimizers.schedules import Schedule

STEPS, WARMUP = 800, 80
ADAMW = AdamW(learning_rate=2e-3, warmup_steps=WARMUP, beta2=0.98, weight_decay=0.01)


def masked(first: float, later: float) -> MaskedPrediction:
    """Returns the objective with these mask rates: single tokens for 60 % of the steps, then spans."""
    stages = (Stage(0, Tokens(rate=first)), Stage(STEPS * 6 // 10, GeometricSpans(rate=later)))
    return MaskedPrediction(masking=Staged(stages=stages))


RUN = dataclasses.replace(
    TINY,
    objective=masked(0.15, 0.15),
    encoder=dataclasses.replace(TINY.encoder, rope_theta=10_000.0),
    optimizer=ADAMW,
    cadence=Cadence(log_every=20, eval_every=STEPS, checkpoint_every=200, eval_batches=64, keep=1),
    steps=STEPS,
    batch_size=16,
)


def scheduled(schedule: Schedule) -> Run:
    """Returns the base with another learning rate schedule."""
    return dataclasses.replace(RUN, optimizer=dataclasses.replace(ADAMW, schedule=schedule))


ARMS = {
    "base": RUN,
    "wsd": scheduled(Schedule(decay="sqrt", decay_share=0.2)),
    "cosine": scheduled(Schedule(decay="cosine")),
    "muon": dataclasses.replace(
        RUN, optimizer=Muon(learning_rate=3e-3, warmup_steps=WARMUP, beta2=0.98, weight_decay=0.01)
    ),
    "mask_30": dataclasses.replace(RUN, objective=masked(0.3, 0.3)),
    "mask_30_to_15": dataclasses.replace(RUN, objective=masked(0.3, 0.15)),
    "learned_positions": dataclasses.replace(RUN, encoder=TINY.encoder),
    "continued": dataclasses.replace(
        RUN,
        encoder=MINI.encoder,
        optimizer=dataclasses.replace(ADAMW, learning_rate=5e-4, warmup_steps=20),
        init_from="spanbert-mini",
    ),
}
SEEDS = (0, 1, 2)
EQUAL_FLOPS = True
