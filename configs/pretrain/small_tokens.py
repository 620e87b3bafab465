"""BERT's single-token masks on 2 layers of 128, with Muon: the start of the fine-tunings in docs/results.md.

Command (with your text and its held-out part):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --train-vocab 4000 --length 128 \
        --output runs/small/rows
    python -m spanjax.train --config configs/pretrain/small_tokens.py --rows runs/small/rows --workdir runs/small/tokens

Expect: docs/results.md has what was measured on English Wikipedia. So few steps teach a small model more by masks of single
tokens than by spans of whole words, whose pieces it can hardly guess yet.
"""

import dataclasses

from configs.pretrain.small_muon import RUN as SMALL
from spanjax.data.feed.masking import Tokens
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction

RUN = dataclasses.replace(
    SMALL,
    objective=MaskedPrediction(masking=Tokens(), terms=(MaskedTokens(),)),
    encoder=dataclasses.replace(SMALL.encoder, hidden_size=128, heads=2, intermediate_size=512, initializer_std=0.088),
    optimizer=dataclasses.replace(SMALL.optimizer, warmup_steps=100),
    steps=4_600,
    batch_size=32,
)
