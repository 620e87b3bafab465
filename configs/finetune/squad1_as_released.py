"""SQuAD 1.1 as the released code trains it, without fp16.

Command:
    python -m spanjax.train --config configs/finetune/squad1_as_released.py --init-from MODEL \
        --train train-v1.1.json --dev dev-v1.1.json --workdir runs/squad1

The optimizer is BertAdam: no bias correction, the gradient of every parameter clipped by its own norm, warm-up counted from
0. The released commands have --fp16, for which the code takes apex's FusedAdam instead; that one is not reproduced.
The question comes first (D15), which is the default here too.
Expect: nothing was measured with this file and published weights; see squad1.py for the published scores.
"""

import dataclasses

from configs.finetune.squad1 import RUN as PAPER_RUN

RUN = dataclasses.replace(
    PAPER_RUN,
    optimizer=dataclasses.replace(
        PAPER_RUN.optimizer, bias_correction=False, clip_per_parameter=True, warmup_form="from_zero"
    ),
)
