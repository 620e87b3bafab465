"""Coreference resolution with the settings of SpanBERT base (appendix B): segments of 384, three of a document in training.

Command:
    python -m spanjax.train --config configs/finetune/coref.py --init-from runs/spanbert_base/run \
        --train train.v4_gold_conll --dev dev.v4_gold_conll --workdir runs/coref

Expect: nothing was measured with this file and published weights; docs/results.md has a small encoder on LitBank. One document is
one row: a batch of one is the published one; short documents can share a larger one, and several devices need as many. The large
model has segments of 512, `--optimizer.learning-rate 1e-5 --optimizer.head-learning-rate 3e-4`. The released training differs
from the paper's words in three settings (D20, D21): refinements, head_warmup and clip_apart are as released here.
"""

from spanjax.run import Run
from spanjax.tasks.coref import Coref
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Coref(length=384, max_segments=3, epochs=20, evaluations=1),
    optimizer=AdamW(
        learning_rate=2e-5,
        head_learning_rate=1e-4,
        head_warmup=False,
        clip_apart=True,
        epsilon=1e-6,
        weight_decay=0.01,
        no_decay=("bias$", "norm[12]?/", "^coreference/", "^overlap_gate/"),
    ),
    batch_size=1,
)
