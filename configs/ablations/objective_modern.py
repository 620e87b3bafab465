"""MLM on single tokens with a modern encoder: norms first, rotary positions, GeGLU, no biases.

Command:
    python -m spanjax.train --config configs/ablations/objective_modern.py --rows rows --workdir runs/objectives/modern

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import MASKED
from configs.ablations.objective_base import RUN as BASE

RUN = dataclasses.replace(
    BASE,
    objective=MASKED,
    encoder=dataclasses.replace(
        BASE.encoder,
        types=0,
        norm_first=True,
        rope_theta=10_000.0,
        gated_mlp=True,
        biases=False,
        intermediate_size=341,
    ),
)
