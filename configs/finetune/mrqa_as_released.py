"""MRQA 2019 as the released code trains it, without fp16.

Command:
    python -m spanjax.train --config configs/finetune/mrqa_as_released.py --init-from MODEL \
        --train HotpotQA-train.jsonl.gz --dev HotpotQA-dev.jsonl.gz --workdir runs/mrqa

The optimizer is BertAdam: no bias correction, the gradient of every parameter clipped by its own norm, warm-up counted from
0. The released commands have --fp16, for which the code takes apex's FusedAdam instead; that one is not reproduced.
Not reproduced: that code reads the rows in the order of their lengths in every epoch (D19); here they are shuffled.
Expect: nothing was measured with this file and published weights; see mrqa.py for the published scores.
"""

import dataclasses

from configs.finetune.mrqa import RUN as PAPER_RUN

RUN = dataclasses.replace(
    PAPER_RUN,
    optimizer=dataclasses.replace(
        PAPER_RUN.optimizer, bias_correction=False, clip_per_parameter=True, warmup_form="from_zero"
    ),
)
