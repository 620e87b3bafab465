"""MRQA 2019: NewsQA, TriviaQA, SearchQA, HotpotQA, Natural Questions (Fisch et al., 2019; SpanBERT, section 4.1).

Command:
    python -m spanjax.train --config configs/finetune/mrqa.py --init-from runs/spanbert_base/run \
        --train HotpotQA-train.jsonl.gz --dev HotpotQA-dev.jsonl.gz --workdir runs/mrqa

Expect: nothing was measured with this file and the paper's weights. Published F1 of SpanBERT: on the five, base 70.4, 79.2,
82.9, 81.0 and 80.6, large 73.6, 83.6, 84.8, 83.0 and 82.5.
The paper's grid (appendix B): learning rate 5e-6, 1e-5, 2e-5, 3e-5 or 5e-5, batch size 16 or 32, 4 epochs, rows of 512. The
released commands: 2e-5, 32 rows, 4 epochs, a window every 128 pieces, 5 evaluations an epoch. The paper splits the dev
sets in half: `--objective.dev-half dev` chooses checkpoints on one half, `test` is the other.
"""

from spanjax.run import Run
from spanjax.tasks.squad import Questions
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Questions(version="mrqa", length=512, stride=128, epochs=4, evaluations=5),
    optimizer=AdamW(learning_rate=2e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
