"""XLNet base: permuted prediction of a sixth of the text, a memory of 384 positions, read both ways (Yang et al., 2019).

Command (rows of one document each, in the order of the text, so that a row's memory is the text before it):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --train-vocab 32000 --length 512 --no-pack \
        --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/xlnet_base.py --rows rows --workdir runs/xlnet_base

Expect: 116,750,336 parameters at the vocabulary of 32,000 pieces. Not trained here to the end. The memory takes 7.1 MB a row in
bfloat16 (12 layers x 384 x 768 x 2 bytes), beside the step's own: 256 rows 1.8 GB. The published hyper-parameters are those of
the large model (xlnet_large.py); the batch here is BERT's.
"""

import dataclasses

from configs.encoders import XLNET_BASE
from configs.pretrain.bert_base import RUN as BERT
from configs.pretrain.spanbert_base import RUN as SPANBERT
from spanjax.data.feed.pairing import FullSentences
from spanjax.objectives.xlnet import PermutedPrediction

RUN = dataclasses.replace(
    SPANBERT,
    objective=PermutedPrediction(pairing=FullSentences(), block=256, memory=384),
    encoder=XLNET_BASE,
    optimizer=dataclasses.replace(BERT.optimizer, no_decay=("/bias$", "norm[12]?/"), decay_from="warmup"),
    steps=1_000_000,
    batch_size=256,
)
