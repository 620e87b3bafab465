"""SpanBERT large as the paper trains it (Joshi et al., TACL 2020, sections 3 and 4.2).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/spanbert_large.py --rows rows --workdir runs/spanbert_large

Expect: 336,998,976 parameters at the cased vocabulary of 28,996 pieces. The paper's run took 15 days on 32 V100. Not
trained here to the end; the first steps were run by the tests at a small size.
Where the paper is silent (clipping, decay of biases and LayerNorm) the released code is followed.
"""

from configs.encoders import LARGE
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=MaskedPrediction(),
    encoder=LARGE,
    optimizer=AdamW(
        learning_rate=1e-4, warmup_steps=10_000, epsilon=1e-8, weight_decay=0.1, no_decay=(), clip_norm=1.0
    ),
    cadence=Cadence(log_every=100, eval_every=50_000, checkpoint_every=10_000),
    steps=2_400_000,
    batch_size=256,
    compute_dtype="bfloat16",
)
