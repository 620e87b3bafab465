"""small.py with Muon, which learns more from as many rows; docs/results.md fine-tunes what it gives on every kind of task.

Command (with your text and its held-out part):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --train-vocab 4000 --length 128 \
        --output runs/small/rows
    python -m spanjax.train --config configs/pretrain/small_muon.py --rows runs/small/rows --workdir runs/small/run

Expect: docs/results.md has what was measured on English Wikipedia.
"""

import dataclasses

from configs.pretrain.small import RUN as SMALL
from spanjax.training.optimizers import Muon

RUN = dataclasses.replace(SMALL, optimizer=Muon(learning_rate=3e-3, warmup_steps=200, beta2=0.98, weight_decay=0.01))
