"""SpanBERT: geometric spans of whole words, MLM and SBO, single segments.

Command:
    python -m spanjax.train --config configs/ablations/objective_spanbert.py --rows rows --workdir runs/objectives/spanbert

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import RUN as BASE

RUN = dataclasses.replace(BASE)
