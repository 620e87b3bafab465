"""SQuAD 1.1: the passage has the answer (Rajpurkar et al., 2016; SpanBERT, section 4.1).

Command:
    python -m spanjax.train --config configs/finetune/squad1.py --init-from runs/spanbert_base/run \
        --train train-v1.1.json --dev dev-v1.1.json --workdir runs/squad1

Expect: nothing was measured with this file and the paper's weights. Published F1 of SpanBERT: base 92.4 (dev), large 94.6 (test).
The paper's grid (appendix B): learning rate 5e-6, 1e-5, 2e-5, 3e-5 or 5e-5, batch size 16 or 32, 4 epochs, rows of 512. The
released commands: 2e-5, 32 rows, 4 epochs, a window every 128 pieces, 10 evaluations an epoch. `--objective.first
passage` is the order of the paper.
"""

from spanjax.run import Run
from spanjax.tasks.squad import Questions
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Questions(version="1.1", length=512, stride=128, epochs=4, evaluations=10),
    optimizer=AdamW(learning_rate=2e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
