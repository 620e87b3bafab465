"""Named entities that may be nested or overlap: all spans of words are classified.

Command:
    python -m spanjax.train --config configs/finetune/span_ner.py --init-from runs/spanbert_base/run \
        --train train.jsonl --dev dev.jsonl --workdir runs/span_ner

Expect: docs/results.md has WikiANN with spanbert-mini. Files: JSON lines with `tokens` and `entities`, CoNLL-U, and those of
conll2003.py.
"""

from spanjax.run import Run
from spanjax.tasks.ner.spans import SpanNer
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=SpanNer(length=128, epochs=4, evaluations=1),
    optimizer=AdamW(learning_rate=3e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
