"""ELECTRA: a generator of half the width, detection of replaced tokens.

Command:
    python -m spanjax.train --config configs/ablations/objective_electra.py --rows rows --workdir runs/objectives/electra

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import RUN as BASE
from spanjax.objectives.electra import ReplacedDetection

RUN = dataclasses.replace(BASE, objective=ReplacedDetection(generator_size=0.5))
