"""SpanBERT base with schedules of 2024 and 2025: warm-up-stable-decay, and fewer and shorter masked spans as training proceeds.

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/spanbert_base_wsd.py --rows rows --workdir runs/spanbert_base_wsd

Expect: 110,300,480 parameters at the cased vocabulary of 28,996 pieces. Not trained here to the end. The 1 - sqrt decay over the
last tenth follows Haegele et al. (2024), the rates of 30, 15 and 5 % mmBERT (Marone et al., 2025). Spans that become shorter are
an example, not a published recipe: their mean is 3.80, 3.80 and 2.21 words.
"""

import dataclasses

from configs.pretrain.spanbert_base import RUN as BASE
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.training.optimizers.schedules import Schedule

RUN = dataclasses.replace(
    BASE,
    objective=MaskedPrediction(
        masking=Staged(
            stages=(
                Stage(0, GeometricSpans(rate=0.3)),
                Stage(1_200_000, GeometricSpans(rate=0.15)),
                Stage(2_160_000, GeometricSpans(rate=0.05, p=0.4, max_words=6)),
            )
        )
    ),
    optimizer=dataclasses.replace(BASE.optimizer, schedule=Schedule(decay="sqrt", decay_share=0.1)),
)
