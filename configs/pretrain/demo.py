"""The first look: SpanBERT of 2 layers on the docstrings of the installed packages, on a laptop. `make demo` runs it."""

import dataclasses

from configs.pretrain.tiny import RUN as TINY
from spanjax.run import Data
from spanjax.training.loop import Cadence
from spanjax.training.optimizer import AdamW

RUN = dataclasses.replace(
    TINY,
    encoder=dataclasses.replace(TINY.encoder, positions=64),
    data=Data(rows="runs/demo/rows"),
    optimizer=AdamW(learning_rate=2e-3, warmup_steps=300, weight_decay=0.01),
    cadence=Cadence(log_every=100, eval_every=1000, checkpoint_every=1000),
    steps=3000,
    batch_size=32,
)
