"""SpanBERT of 2 layers of 256: what two CPU cores can pretrain on real text in 36 minutes (docs/results.md).

Command (with your text and its held-out part):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --train-vocab 4000 --length 128 \
        --output runs/small/rows
    python -m spanjax.train --config configs/pretrain/small.py --rows runs/small/rows --workdir runs/small/run

Expect: docs/results.md has the curve that was measured on English Wikipedia. The position table has 512 rows, of which rows of
128 tokens train the first 128. Weights start at 1/sqrt(width), as in tiny.py.
"""

import dataclasses

from configs.pretrain.tiny import RUN as TINY
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW

RUN = dataclasses.replace(
    TINY,
    encoder=dataclasses.replace(
        TINY.encoder,
        hidden_size=256,
        layers=2,
        heads=4,
        intermediate_size=1024,
        positions=512,
        initializer_std=0.0625,
        unroll=2,
    ),
    optimizer=AdamW(learning_rate=1.2e-3, warmup_steps=300, beta2=0.98, weight_decay=0.01),
    cadence=Cadence(log_every=20, eval_every=400, checkpoint_every=200),
    steps=3600,
    batch_size=16,
)
