"""Detection of replaced tokens where the generator fills spans, with SBO on the detector; all else is objective_electra.py's.

Command:
    python -m spanjax.train --config configs/ablations/objective_electra_spans.py --rows rows \
        --workdir runs/objectives/electra_spans

Expect: docs/results.md; the settings in common are in objective_base.py.
"""

import dataclasses

from configs.ablations.objective_base import RUN as BASE
from spanjax.data.feed.masking import GeometricSpans, Replacement
from spanjax.objectives.electra import ReplacedDetection
from spanjax.objectives.loss_terms import SpanBoundary

RUN = dataclasses.replace(
    BASE,
    objective=ReplacedDetection(
        generator_size=0.5,
        masking=GeometricSpans(replacement=Replacement(mask=0.85, random=0.0, unit="span")),
        boundary=SpanBoundary(),
    ),
)
