"""SpanBERT large as the released command trains it: the settings of spanbert_base_as_released.py at the large model's sizes.

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --no-pack --output rows
    python -m spanjax.train --config configs/pretrain/spanbert_large_as_released.py --rows rows --workdir runs/released

The released command has 2,400,000 updates at 1e-4 on 32 workers of 4,096 tokens: 256 rows of 512, or more rows that are
shorter (D10, not reproduced: 256 rows always). `peak_every` is the number of updates of an epoch, as in the base model's file.
Expect: 336,998,976 parameters at 28,996 pieces. Not trained here to the end.
"""

import dataclasses

from configs.encoders import LARGE
from configs.pretrain.spanbert_base_as_released import RUN as BASE_RUN

RUN = dataclasses.replace(
    BASE_RUN,
    encoder=LARGE,
    optimizer=dataclasses.replace(BASE_RUN.optimizer, learning_rate=1e-4, sample_size_workers=32, peak_every=42_969),  # pyright: ignore[reportCallIssue]
    steps=2_400_000,
    batch_size=256,
)
