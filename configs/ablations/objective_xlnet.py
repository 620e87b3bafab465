"""XLNet: permuted prediction of a sixth of the text by two streams, attention by distances, no memory.

Command:
    python -m spanjax.train --config configs/ablations/objective_xlnet.py --rows rows --workdir runs/objectives/xlnet

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import RUN as BASE
from spanjax.objectives.xlnet import PermutedPrediction

RUN = dataclasses.replace(
    BASE,
    objective=PermutedPrediction(),
    encoder=dataclasses.replace(BASE.encoder, relative_attention=True),
)
