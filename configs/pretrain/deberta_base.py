"""SpanBERT's objective on the encoder of DeBERTa-v3 base: disentangled attention, no tables of positions and types.

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --train-vocab 32000 --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/deberta_base.py --rows rows --workdir runs/deberta_base

Expect: 184,551,780 parameters at the published vocabulary of 128,100 pieces, without the span boundary head; not trained here
to the end. `convert to-torch` writes a DebertaV2ForMaskedLM. Optimizer, batch and steps are SpanBERT's; the published model was
trained to detect replaced tokens.
"""

import dataclasses

from configs.encoders import DEBERTA_BASE
from configs.pretrain.spanbert_base import RUN as SPANBERT

RUN = dataclasses.replace(SPANBERT, encoder=DEBERTA_BASE)
