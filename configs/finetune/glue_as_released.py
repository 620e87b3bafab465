"""GLUE as the released code trains it, without fp16.

Command:
    python -m spanjax.train --config configs/finetune/glue_as_released.py --objective.task RTE --init-from MODEL \
        --train RTE/train.tsv --dev RTE/dev.tsv --workdir runs/rte

The optimizer is BertAdam: no bias correction, the gradient of every parameter clipped by its own norm, warm-up counted from
0. The released commands have --fp16, for which the code takes apex's FusedAdam instead; that one is not reproduced.
Expect: nothing was measured with this file and published weights; see glue.py for the published scores.
"""

import dataclasses

from configs.finetune.glue import RUN as PAPER_RUN

RUN = dataclasses.replace(
    PAPER_RUN,
    optimizer=dataclasses.replace(
        PAPER_RUN.optimizer, bias_correction=False, clip_per_parameter=True, warmup_form="from_zero"
    ),
)
