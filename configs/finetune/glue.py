"""GLUE: one label or number for a sentence or a pair of sentences (Wang et al., 2018; SpanBERT, section 4.1).

Command:
    python -m spanjax.train --config configs/finetune/glue.py --objective.task RTE --init-from runs/spanbert_base/run \
        --train RTE/train.tsv --dev RTE/dev.tsv --workdir runs/rte

Expect: nothing was measured with this file and the paper's models. The paper's grid (appendix B): learning rate 5e-6, 1e-5, 2e-5,
3e-5 or 5e-5, batch size 16 or 32, 10 epochs (CoLA 4), rows of 128. The released commands: 2e-5, 32 rows, 10 epochs.
`--objective.task` is all that a task needs; labels, scores and the leaderboard's file follow from it.
"""

from spanjax.run import Run
from spanjax.tasks.glue import Glue
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Glue(length=128, epochs=10, evaluations=1),
    optimizer=AdamW(learning_rate=2e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
