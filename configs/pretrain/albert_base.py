"""ALBERT base as published: shared layers, factorised embeddings, n-gram masks, sentence order, LAMB (Lan et al., 2020).

Command (a SentencePiece vocabulary):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab 30k.model --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/albert_base.py --rows rows --workdir runs/albert_base

Expect: 11,813,810 parameters at the vocabulary of 30,000 pieces (the paper says 12M). Not trained here to the end.
"""

import dataclasses

from configs.encoders import ALBERT_BASE
from configs.pretrain.spanbert_base import RUN as SPANBERT
from spanjax.data.feed.masking import Ngrams
from spanjax.data.feed.pairing import SentenceOrder
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.training.optimizers import Lamb

RUN = dataclasses.replace(
    SPANBERT,
    objective=MaskedPrediction(
        masking=Ngrams(), pairing=SentenceOrder(short=0.1), terms=(MaskedTokens(), SentencePair(name="sop"))
    ),
    encoder=ALBERT_BASE,
    optimizer=Lamb(
        learning_rate=0.00176,
        warmup_steps=3_125,
        bias_correction=False,
        weight_decay=0.01,
        clip_norm=1.0,
        decay_from="start",
    ),
    steps=125_000,
    batch_size=4_096,
)
