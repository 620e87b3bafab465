"""ALBERT large as published (Lan et al., 2020).

Command (with the rows of albert_base.py):
    python -m spanjax.train --config configs/pretrain/albert_large.py --rows rows --workdir runs/albert_large

Expect: 17,847,474 parameters at the vocabulary of 30,000 pieces (the paper says 18M). Not trained here to the end.
"""

import dataclasses

from configs.encoders import ALBERT_LARGE
from configs.pretrain.albert_base import RUN as BASE

RUN = dataclasses.replace(BASE, encoder=ALBERT_LARGE)
