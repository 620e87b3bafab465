"""Contrastive training of text vectors on pairs, triplets or single texts (InfoNCE; SimCSE: Gao et al., 2021).

Command:
    python -m spanjax.train --config configs/finetune/contrastive.py --init-from runs/mine --train pairs.csv \
        --dev STS-B/dev.tsv --workdir runs/vectors

Expect: nothing was measured with this file and published models; docs/tasks.md has what was measured. Temperature 0.05 and one
epoch are SimCSE's; its supervised runs take 512 rows and 5e-5. Larger batches have more negatives: set `--batch-size` first.
"""

from spanjax.run import Run
from spanjax.tasks.contrastive import Contrastive
from spanjax.training.optimizers import AdamW

RUN = Run(
    objective=Contrastive(length=64, epochs=1, evaluations=4),
    optimizer=AdamW(learning_rate=5e-5, weight_decay=0.0),
    batch_size=128,
)
