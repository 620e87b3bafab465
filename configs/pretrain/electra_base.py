"""ELECTRA base as published: a generator of a third of its width (Clark et al., 2020).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/electra_base.py --rows rows --workdir runs/electra_base

Expect: 109,483,009 parameters of encoder and head at the uncased vocabulary of 30,522 pieces. Not trained here to the end;
the number of steps was not checked against the paper. See electra_small.py.
"""

import dataclasses

from configs.encoders import ELECTRA_BASE
from configs.pretrain.electra_small import RUN as SMALL
from spanjax.objectives.electra import ReplacedDetection

RUN = dataclasses.replace(
    SMALL,
    objective=ReplacedDetection(generator_size=1 / 3),
    encoder=ELECTRA_BASE,
    optimizer=dataclasses.replace(SMALL.optimizer, learning_rate=2e-4),
    steps=766_000,
    batch_size=256,
)
