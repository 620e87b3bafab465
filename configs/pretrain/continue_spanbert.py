"""Continues pretraining a SpanBERT base on other text: published weights, a run of your own, or any BERT of this size.

Command:
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab vocab.txt --length 512 --holdout 0.001 --output rows
    python -m spanjax.train --config configs/pretrain/continue_spanbert.py --init-from spanbert-base-cased \
        --rows rows --workdir runs/continued

The vocabulary of the rows is that of the weights, or extends it. Heads that the weights lack (the released base has none) are
drawn fresh, so the rate warms up again, to half of the paper's peak. Sizes are those of the weights: the large model, or a BERT
of another size, needs no flag.

Expect: first a report of what was loaded, drawn and left out. Nothing was measured with this file beyond the short runs of the
tests.
"""

import dataclasses

from configs.pretrain.spanbert_base import RUN as BASE_RUN

RUN = dataclasses.replace(
    BASE_RUN,
    init_from="(give --init-from FOLDER)",
    optimizer=dataclasses.replace(BASE_RUN.optimizer, learning_rate=5e-5, warmup_steps=2_000),
    cadence=dataclasses.replace(BASE_RUN.cadence, eval_every=2_000, checkpoint_every=2_000),
    steps=50_000,
)
