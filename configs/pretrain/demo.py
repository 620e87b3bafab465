"""The first look: SpanBERT of 2 layers of 128 on the docstrings of the installed Python packages. `make demo` runs it.

Command:
    python -m spanjax.prepare --input installed-docs --train-vocab 1000 --length 64 --holdout 0.02 --output runs/demo/rows
    python -m spanjax.train --config configs/pretrain/demo.py --workdir runs/demo/run

Expect: held-out MLM and SBO losses well below the unigram entropy of the held-out text, which the run prints at its end;
docs/results.md has the figures that were measured.
"""

import dataclasses

from configs.pretrain.tiny import RUN as TINY
from spanjax.run import Data
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW

RUN = dataclasses.replace(
    TINY,
    encoder=dataclasses.replace(TINY.encoder, positions=64),
    data=Data(rows=("runs/demo/rows",)),
    optimizer=AdamW(learning_rate=2e-3, warmup_steps=200, weight_decay=0.01),
    cadence=Cadence(log_every=50, eval_every=700, checkpoint_every=700),
    steps=1400,
    batch_size=32,
)
