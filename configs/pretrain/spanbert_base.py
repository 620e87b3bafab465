"""SpanBERT base with the paper's hyper-parameters (the paper describes only the large model; section 4.2).

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/spanbert_base.py --rows rows --workdir runs/spanbert_base

Expect: 110,300,480 parameters at the cased vocabulary of 28,996 pieces. Not trained here to the end.
The base model that the authors released used another recipe: see spanbert_base_as_released.py.
"""

import dataclasses

from configs.encoders import BASE
from configs.pretrain.spanbert_large import RUN as LARGE_RUN

RUN = dataclasses.replace(LARGE_RUN, encoder=BASE)
