"""RoBERTa: single tokens, new ones every epoch, whole rows across documents.

Command:
    python -m spanjax.train --config configs/ablations/objective_roberta.py --rows rows --workdir runs/objectives/roberta

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import MASKED
from configs.ablations.objective_base import RUN as BASE
from spanjax.data.feed.pairing import FullSentences

RUN = dataclasses.replace(
    BASE,
    objective=dataclasses.replace(MASKED, pairing=FullSentences()),
    encoder=dataclasses.replace(BASE.encoder, types=1),
)
