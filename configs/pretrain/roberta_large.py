"""RoBERTa large as published (Liu et al., 2019).

Command (with the rows of roberta_base.py):
    python -m spanjax.train --config configs/pretrain/roberta_large.py --rows rows --workdir runs/roberta_large

Expect: 355,412,057 parameters at the vocabulary of 50,265 pieces. Not trained here to the end.
"""

import dataclasses

from configs.encoders import ROBERTA_LARGE
from configs.pretrain.roberta_base import RUN as BASE

RUN = dataclasses.replace(
    BASE,
    encoder=ROBERTA_LARGE,
    optimizer=dataclasses.replace(BASE.optimizer, learning_rate=4e-4, warmup_steps=30_000),
)
