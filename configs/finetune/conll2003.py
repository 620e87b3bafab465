"""CoNLL-2003 English (Tjong Kim Sang and De Meulder, 2003): named entities as tags of words.

Command:
    python -m spanjax.train --config configs/finetune/conll2003.py --init-from runs/spanbert_base/run \
        --train eng.train --dev eng.testa --workdir runs/conll2003

Expect: nothing was measured with this file and published weights. The grid of span fine-tuning's authors, who report this set:
learning rate 1e-5, 2e-5 or 3e-5, batch size 16, 32 or 48, 2 to 5 epochs, rows of 128, warm-up over a tenth of the steps. The
files have IOB1; other files of columns need `--objective.tag-column` where the tag is not the last, and WikiANN
`--objective.word-prefix en:`. Use a cased model.
"""

from spanjax.run import Run
from spanjax.tasks.ner import Ner
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Ner(scheme="iob2", length=128, epochs=4, evaluations=1),
    optimizer=AdamW(learning_rate=3e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
