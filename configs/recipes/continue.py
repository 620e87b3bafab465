"""spanbert-mini continued on your text, as in the arm `continued` of configs/sweeps/recipe.py.

Command (rows with the vocabulary of the weights):
    MODEL=$(python -c 'import spanbert_mini; print(spanbert_mini.FOLDER)')
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --vocab $MODEL --length 128 \
        --output runs/recipe/rows
    python -m spanjax.train --config configs/recipes/continue.py --rows runs/recipe/rows --feed numpy --workdir runs/continued

Expect: ten times the steps of that arm; not trained here to the end. Next to the base of the sweep, which starts from nothing and
gets as many FLOPs, held-out loss of single tokens in nats, mean of three seeds with a 95 % interval:
    -2.187 (-2.242 to -2.132): 4.354 in place of 6.540; the pretraining of the weights is not counted
Both arms read Wikipedia, on which the weights were pretrained, so other text may gain less. A rate of 5e-4 was not tuned.
"""

import dataclasses

from configs.pretrain.mini import RUN as MINI
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged, Tokens
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.training.loop import Cadence
from spanjax.training.optimizers import AdamW

STEPS = 1_350
MASKING = Staged(stages=(Stage(0, Tokens()), Stage(STEPS * 6 // 10, GeometricSpans())))

RUN = dataclasses.replace(
    MINI,
    objective=MaskedPrediction(masking=MASKING),
    optimizer=AdamW(learning_rate=5e-4, warmup_steps=50, beta2=0.98, weight_decay=0.01),
    cadence=Cadence(log_every=20, eval_every=270, checkpoint_every=135, eval_batches=64),
    steps=STEPS,
    batch_size=16,
    init_from="spanbert-mini",
)
