"""ALBERT xlarge as published (Lan et al., 2020).

Command (with the rows of albert_base.py):
    python -m spanjax.train --config configs/pretrain/albert_xlarge.py --rows rows --workdir runs/albert_xlarge

Expect: 59,021,490 parameters at the vocabulary of 30,000 pieces (the paper says 60M). Not trained here to the end.
"""

import dataclasses

from configs.encoders import ALBERT_XLARGE
from configs.pretrain.albert_base import RUN as BASE

RUN = dataclasses.replace(BASE, encoder=ALBERT_XLARGE)
