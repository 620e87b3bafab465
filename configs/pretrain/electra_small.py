"""ELECTRA small as published: replaced token detection beside a generator of a quarter of its width (Clark et al., 2020).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 128 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/electra_small.py --rows rows --workdir runs/electra_small

Expect: 13,549,057 parameters of encoder and head at the uncased vocabulary of 30,522 pieces. Not trained here to the end.
Single segments instead of the published halves of rows; places are drawn without replacement. The published rate is the product
of warm-up and decay, both from step 0; here it is the first until warm-up ends, by then 1 % higher, and the second from there on.
"""

import dataclasses

from configs.encoders import ELECTRA_SMALL
from configs.pretrain.bert_base import RUN as BERT
from configs.pretrain.spanbert_base import RUN as SPANBERT
from spanjax.objectives.electra import ReplacedDetection

RUN = dataclasses.replace(
    SPANBERT,
    objective=ReplacedDetection(),
    encoder=ELECTRA_SMALL,
    optimizer=dataclasses.replace(BERT.optimizer, learning_rate=5e-4),
    steps=1_000_000,
    batch_size=128,
)
