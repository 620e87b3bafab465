"""Span fine-tuning of RTE (Bao et al., 2021): the classifier reads [CLS] and a vector of the spans of a dictionary of n-grams.

Command:
    python -m spanjax.prepare ngrams --input 'text/*.jsonl.gz' --output runs/ngrams.txt
    python -m spanjax.train --config configs/finetune/span_tuning.py --init-from runs/spanbert_base/run \
        --train RTE/train.tsv --dev RTE/dev.tsv --objective.spans.ngrams runs/ngrams.txt --workdir runs/rte_spans

Expect: nothing was measured with this file and the paper's weights. The paper's grid (section 4.1): learning rate 1e-5, 2e-5 or
3e-5, warm-up over 0.1 of the steps, weight decay 0.01, batch size 16, 32 or 48, 2 to 5 epochs, rows of 128 or 256. Its
dictionary is of WikiText-103, n-grams of up to 5 words that occur more than 10 times; 20,000 to 200,000 of them were best on two
tasks (--objective.spans.most). `--objective.spans.segmentation random|chunker|none` are the other arms of its Table 6,
`--objective.spans.network.token-level` and `span-level` those of Table 7. Without spans: configs/finetune/glue.py.
"""

from spanjax.run import Run
from spanjax.tasks.glue import Glue
from spanjax.tasks.span_tuning import SpanTuning
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Glue(task="RTE", length=128, epochs=5, warmup=0.1, spans=SpanTuning(ngrams="runs/ngrams.txt", spans=128)),
    optimizer=AdamW(learning_rate=2e-5, epsilon=1e-6, weight_decay=0.01),
    batch_size=32,
)
