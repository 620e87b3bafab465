"""XLNet large with the published hyper-parameters (Yang et al., 2019): 500,000 batches of 8,192 rows of 512.

Command (rows as for xlnet_base.py):
    python -m spanjax.train --config configs/pretrain/xlnet_large.py --rows rows --workdir runs/xlnet_large

Expect: 360,300,800 parameters at the vocabulary of 32,000 pieces. Not trained here to the end. The memory takes 18.9 MB a row in
bfloat16 (24 layers x 384 x 1,024 x 2 bytes): 8,192 rows 155 GB over all devices; `python -m spanjax.plan` counts it.
"""

import dataclasses

from configs.encoders import XLNET_LARGE
from configs.pretrain.xlnet_base import RUN as BASE

RUN = dataclasses.replace(
    BASE,
    encoder=XLNET_LARGE,
    optimizer=dataclasses.replace(BASE.optimizer, learning_rate=4e-4, warmup_steps=40_000),
    steps=500_000,
    batch_size=8_192,
)
