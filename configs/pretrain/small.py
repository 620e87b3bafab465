"""SpanBERT of 4 layers of 256: what two CPU cores can pretrain on real text."""

import dataclasses

from configs.pretrain.tiny import RUN as TINY
from spanjax.training.loop import Cadence
from spanjax.training.optimizer import AdamW

RUN = dataclasses.replace(
    TINY,
    encoder=dataclasses.replace(
        TINY.encoder,
        hidden_size=256,
        layers=4,
        heads=4,
        intermediate_size=1024,
        positions=512,
        initializer_std=0.0625,
        unroll=4,
    ),
    optimizer=AdamW(learning_rate=1e-3, warmup_steps=200, weight_decay=0.01),
    cadence=Cadence(log_every=20, eval_every=400, checkpoint_every=200),
    steps=2400,
    batch_size=16,
)
