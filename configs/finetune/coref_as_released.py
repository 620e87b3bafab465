"""Coreference resolution as the released code trains SpanBERT base.

Command:
    python -m spanjax.train --config configs/finetune/coref_as_released.py --init-from MODEL \
        --train train.v4_gold_conll --dev dev.v4_gold_conll --workdir runs/coref

Differences from coref.py: two Adams, that of the encoder without bias correction and epsilon 1e-6, that of all else corrected,
epsilon 1e-8 beside the uncorrected second moment; warm-up of the encoder's rate counted from 0 and both decays measured from
update 0 (D21); spans anywhere in words; new dropout masks after the refinement, dropout of the width prior by widths, and
truncated normal initial weights. What is not reproduced: docs/tasks_coref.md, "Where it differs from the released code".
Expect: nothing was measured with this file and published weights; the authors' F1 is 77.7 (base) and 79.6 (large: segments of
512, `--optimizer.learning-rate 1e-5 --optimizer.head-learning-rate 3e-4`).
"""

import dataclasses

from configs.finetune.coref import RUN as PAPER_RUN
from spanjax.nn.coreference_parts import CoreferenceConfig

RUN = dataclasses.replace(
    PAPER_RUN,
    objective=dataclasses.replace(
        PAPER_RUN.objective,  # pyright: ignore[reportArgumentType]
        model=CoreferenceConfig(
            words_only=False, dropout_per_refinement=True, width_dropout="width", initializer="truncated_normal"
        ),
    ),
    optimizer=dataclasses.replace(
        PAPER_RUN.optimizer,
        warmup_form="from_zero_exclusive",
        decay_from="start",
        bias_correction=False,
        epsilon_hat=True,
        head_bias_correction=True,
        head_epsilon=1e-8,
    ),
)
