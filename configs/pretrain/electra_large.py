"""ELECTRA large as published: a quarter of the tokens masked (Clark et al., 2020).

Command (with the rows of electra_base.py):
    python -m spanjax.train --config configs/pretrain/electra_large.py --rows rows --workdir runs/electra_large

Expect: 335,142,913 parameters of encoder and head at the uncased vocabulary of 30,522 pieces. Not trained here to the end;
the number of steps was not checked against the paper. See electra_small.py.
"""

import dataclasses

from configs.encoders import ELECTRA_LARGE
from configs.pretrain.electra_base import RUN as BASE
from spanjax.data.feed.masking import Replacement, Tokens
from spanjax.objectives.electra import ReplacedDetection

RUN = dataclasses.replace(
    BASE,
    objective=ReplacedDetection(
        masking=Tokens(rate=0.25, replacement=Replacement(mask=0.85, random=0.0, unit="token"))
    ),
    encoder=ELECTRA_LARGE,
    steps=400_000,
    batch_size=2_048,
)
