"""SpanBERT base as the released code trains it: every setting in which the code contradicts the paper follows the code.

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --no-pack --output rows
    python -m spanjax.train --config configs/pretrain/spanbert_base_as_released.py --rows rows --workdir runs/released

Differences from spanbert_base.py (numbers of docs/design.md): piece-weighted span starts (D2), exact budget with cut words
(D3), no boundary loss at the ends of a block (D5), one extra SBO count (D6), gradients divided once more by a worker's masked
tokens and fairseq's Adam, whose epsilon is large beside them (D7), weight decay 0.01 on everything, rounded before the step
(D8), warm-up counted from 0, decay measured from 0, single peak updates (D9), fixed batches of equal length (D11), batch
2,048 x 300,000 steps at 5e-4 (D12, from the authors), [UNK] among the random tokens (D13). Not reproduced: batches by tokens
(D10). `sample_size_workers` stands for 8 rows a worker, what 4,096 tokens hold of blocks longer than 256; a worker's batch of
shorter blocks had more rows, so that the gradients of such batches are larger here. `peak_every` is the number of updates of an
epoch: set it to rows / batch_size of your corpus, rounded up; the value here stands for a corpus of 11 million blocks.
Expect: 110,300,480 parameters at 28,996 pieces. Not trained here to the end.
"""

import dataclasses

from configs.pretrain.spanbert_base import RUN as PAPER_RUN
from spanjax.data.feed.masking import GeometricSpans
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Data
from spanjax.training.optimizers import AdamW

RUN = dataclasses.replace(
    PAPER_RUN,
    objective=MaskedPrediction(
        masking=GeometricSpans.as_released(),
        terms=(MaskedTokens(), SpanBoundary(extra_count=1.0, specials=False)),
    ),
    data=Data(order="by_length"),
    optimizer=AdamW(
        learning_rate=5e-4,
        warmup_steps=10_000,
        warmup_form="from_zero",
        epsilon=1e-8,
        epsilon_hat=True,
        weight_decay=0.01,
        no_decay=(),
        decay_first=True,
        clip_norm=1.0,
        sample_size_workers=256,
        decay_from="start",
        peak_every=5_372,
    ),
    steps=300_000,
    batch_size=2_048,
)
