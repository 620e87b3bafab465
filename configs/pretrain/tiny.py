"""SpanBERT of 2 layers of 128 on rows of at most 128 tokens: for trying things out on one core.

Command:
    python -m spanjax.prepare --input 'text/*.txt' --train-vocab 8000 --length 128 --holdout 0.02 --output rows
    python -m spanjax.train --config configs/pretrain/tiny.py --rows rows --workdir runs/tiny

Expect: a first look at your own text; nothing was measured with this file beyond the short runs of the tests.
Weights start at 1/sqrt(width) and not at the paper's 0.02, with which a model this narrow stays on the unigram plateau for
thousands of steps.
"""

from spanjax.nn.config import EncoderConfig
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=MaskedPrediction(),
    encoder=EncoderConfig(
        hidden_size=128,
        layers=2,
        heads=2,
        intermediate_size=512,
        positions=128,
        dropout=0.0,
        attention_dropout=0.0,
        initializer_std=0.088,
        unroll=2,
    ),
    optimizer=AdamW(learning_rate=1e-3, warmup_steps=500, weight_decay=0.01),
    cadence=Cadence(log_every=100, eval_every=2000, checkpoint_every=2000),
    steps=10_000,
    batch_size=32,
)
