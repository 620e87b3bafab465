"""ALBERT xxlarge as published (Lan et al., 2020).

Command (with the rows of albert_base.py):
    python -m spanjax.train --config configs/pretrain/albert_xxlarge.py --rows rows --workdir runs/albert_xxlarge

Expect: 223,158,450 parameters at the vocabulary of 30,000 pieces (the paper says 235M). Not trained here to the end.
"""

import dataclasses

from configs.encoders import ALBERT_XXLARGE
from configs.pretrain.albert_base import RUN as BASE

RUN = dataclasses.replace(BASE, encoder=ALBERT_XXLARGE)
