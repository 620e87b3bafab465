"""spanbert-mini: the weights that `pip install` brings along; 5 layers of 256, rotary positions, hours on two CPU cores.

Command (with your text and its held-out part; models/spanbert_mini/README.md has the text that the weights have seen):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --train-vocab 8000 --length 128 \
        --output runs/mini/rows
    python -m spanjax.train --config configs/pretrain/mini.py --rows runs/mini/rows --feed numpy --workdir runs/mini/run

Expect: the curve in models/spanbert_mini/README.md. Single tokens are masked first: with spans alone a model of this size stays
near the unigram entropy for millions of tokens (docs/results.md). The SBO head learns from the start, from spans of one token.
"""

import dataclasses

from configs.encoders import MODERN
from configs.pretrain.small_muon import RUN as SMALL
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged, Tokens
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import Muon

STEPS = 4_500

RUN = dataclasses.replace(
    SMALL,
    objective=MaskedPrediction(masking=Staged(stages=(Stage(0, Tokens()), Stage(STEPS * 6 // 10, GeometricSpans())))),
    encoder=dataclasses.replace(
        MODERN,
        hidden_size=256,
        layers=5,
        heads=4,
        intermediate_size=688,
        positions=512,
        rope_theta=10_000.0,
        initializer_std=0.0625,
        unroll=5,
    ),
    optimizer=Muon(learning_rate=3e-3, warmup_steps=200, beta2=0.98, weight_decay=0.01),
    cadence=Cadence(log_every=20, eval_every=500, checkpoint_every=250, eval_batches=32),
    steps=STEPS,
    batch_size=32,
)
