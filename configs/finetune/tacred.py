"""TACRED (Zhang et al., 2017; SpanBERT, section 4.1): the relation between two entities, each replaced by its role and type.

Command:
    python -m spanjax.train --config configs/finetune/tacred.py --init-from runs/spanbert_base/run \
        --train tacred/train.json --dev tacred/dev.json --workdir runs/tacred

Expect: nothing was measured with this file and the paper's weights. Published micro F1 of the test set: SpanBERT large 70.8
(precision 70.8, recall 70.9), Google's BERT large 66.4 (table 4); base models 68.2 and 67.7 (released code's README). The
paper's grid (appendix B): learning rate 5e-6, 1e-5, 2e-5, 3e-5 or 5e-5, batch size 16 or 32, 10 epochs, rows of 128. The
released command: 2e-5, 32 rows, 10 epochs. `--objective.marking markers` keeps the words of the entities between markers.
"""

from spanjax.run import Run
from spanjax.tasks.relation import Relation
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Relation(scheme="tacred", marking="types", length=128, epochs=10, evaluations=1),
    optimizer=AdamW(learning_rate=2e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
