"""RoBERTa base as published: full sentences, new masks every epoch, large batches, no next sentence (Liu et al., 2019).

Command (a byte-level vocabulary: train one, or give vocab.json and merges.txt):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab tokenizer.json --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/roberta_base.py --rows rows --workdir runs/roberta_base

Expect: 124,697,433 parameters at the vocabulary of 50,265 pieces. Not trained here to the end. Batches of 8,192 rows: give
--microbatches until a device holds its part (`python -m spanjax.plan` says how many). All parameters decay, as in the published
code (fairseq's Adam has one group of them); the paper does not say.
"""

import dataclasses

from configs.encoders import ROBERTA_BASE
from configs.pretrain.spanbert_base import RUN as SPANBERT
from spanjax.data.feed.masking import Tokens
from spanjax.data.feed.pairing import FullSentences
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.training.optimizers import AdamW

RUN = dataclasses.replace(
    SPANBERT,
    objective=MaskedPrediction(masking=Tokens(), pairing=FullSentences(), terms=(MaskedTokens(),)),
    encoder=ROBERTA_BASE,
    optimizer=AdamW(
        learning_rate=6e-4,
        warmup_steps=24_000,
        beta2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        no_decay=(),
        clip_norm=0.0,
    ),
    steps=500_000,
    batch_size=8_192,
)
