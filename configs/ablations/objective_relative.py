"""Masked single tokens on layers that read distances: XLNet's encoder under BERT's objective, to tell one from the other.

Command:
    python -m spanjax.train --config configs/ablations/objective_relative.py --rows rows --workdir runs/objectives/relative

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import MASKED
from configs.ablations.objective_base import RUN as BASE

RUN = dataclasses.replace(BASE, objective=MASKED, encoder=dataclasses.replace(BASE.encoder, relative_attention=True))
