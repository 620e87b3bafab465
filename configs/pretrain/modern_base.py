"""SpanBERT's objective on a modern encoder: rotary positions, LayerNorms first, GeGLU, no biases, rows of 1,024 tokens.

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 1024 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/modern_base.py --rows rows --workdir runs/modern_base

Expect: 109,802,048 parameters at 28,996 pieces; not trained here to the end. `convert to-torch` writes a ModernBertForMaskedLM.
Dropout is 0, so that fused attention can be used everywhere; the rate is higher than BERT's, which LayerNorms first allow.
"""

import dataclasses

from configs.encoders import MODERN
from configs.pretrain.spanbert_base import RUN as SPANBERT
from spanjax.training.optimizers import AdamW

RUN = dataclasses.replace(
    SPANBERT,
    encoder=MODERN,
    optimizer=AdamW(
        learning_rate=5e-4, warmup_steps=10_000, beta2=0.98, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0
    ),
    steps=500_000,
)
