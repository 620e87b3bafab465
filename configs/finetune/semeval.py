"""SemEval-2010 task 8 (Hendrickx et al., 2010): one of nine directed relations between two nominals, or Other.

Command:
    python -m spanjax.train --config configs/finetune/semeval.py --init-from runs/spanbert_base/run \
        --train TRAIN_FILE.TXT --dev TEST_FILE_FULL.TXT --workdir runs/semeval

Expect: nothing was measured with this file and the paper's weights, and the SpanBERT paper has no such run. The files have no
entity types, and what the nominals are decides the relation: so they stay, between markers. The task has no development set:
hold examples of the training file out where settings are chosen. Settings are those of TACRED in the paper (appendix B):
learning rate 5e-6, 1e-5, 2e-5, 3e-5 or 5e-5, batch size 16 or 32, 10 epochs, rows of 128.
"""

from spanjax.run import Run
from spanjax.tasks.relation import Relation
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Relation(scheme="semeval", marking="markers", length=128, epochs=10, evaluations=1),
    optimizer=AdamW(learning_rate=2e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
