"""BERT base as published: two segments, next sentence prediction, ten fixed maskings of the data (Devlin et al., 2019).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/bert_base.py --rows rows --workdir runs/bert_base

Expect: 110,106,428 parameters at the uncased vocabulary of 30,522 pieces. Not trained here to the end. The published run
takes 90 % of its steps on rows of 128 tokens and the rest on 512: train twice, the second time with --init-from.
"""

import dataclasses

from configs.encoders import BASE
from configs.pretrain.spanbert_base import RUN as SPANBERT
from spanjax.data.feed.masking import Replacement, Tokens
from spanjax.data.feed.pairing import NextSentence
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.training.optimizers import AdamW

RUN = dataclasses.replace(
    SPANBERT,
    objective=MaskedPrediction(
        masking=Tokens(copies=10, replacement=Replacement(unit="token")),
        pairing=NextSentence(short=0.1),
        terms=(MaskedTokens(), SentencePair()),
    ),
    encoder=dataclasses.replace(BASE, activation="gelu_tanh"),
    optimizer=AdamW(
        learning_rate=1e-4,
        warmup_steps=10_000,
        epsilon=1e-6,
        bias_correction=False,
        weight_decay=0.01,
        clip_norm=1.0,
        decay_from="start",
    ),
    steps=1_000_000,
    batch_size=256,
)
