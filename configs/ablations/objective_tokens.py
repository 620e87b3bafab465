"""MLM on single tokens, new ones every epoch, single segments: RoBERTa's masks, BERT without pairs.

Command:
    python -m spanjax.train --config configs/ablations/objective_tokens.py --rows rows --workdir runs/objectives/tokens

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import MASKED
from configs.ablations.objective_base import RUN as BASE

RUN = dataclasses.replace(BASE, objective=MASKED)
