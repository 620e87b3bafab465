"""BERT large as published (Devlin et al., 2019).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/bert_large.py --rows rows --workdir runs/bert_large

Expect: 336,226,108 parameters at the uncased vocabulary of 30,522 pieces. Not trained here to the end; see bert_base.py.
"""

import dataclasses

from configs.encoders import LARGE
from configs.pretrain.bert_base import RUN as BASE

RUN = dataclasses.replace(BASE, encoder=dataclasses.replace(LARGE, activation="gelu_tanh"))
