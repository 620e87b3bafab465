"""ELECTRA small with SpanBERT's masks for its generator, and the span boundary objective beside detection.

Command (with the rows of electra_small.py):
    python -m spanjax.train --config configs/pretrain/electra_spans.py --rows rows --workdir runs/electra_spans

Expect: nothing is published for this combination, and it was not trained here to the end. The generator fills whole spans; the
encoder detects what is not the original, and predicts every masked token from the two tokens around its span.
"""

import dataclasses

from configs.pretrain.electra_small import RUN as ELECTRA
from spanjax.data.feed.masking import GeometricSpans, Replacement
from spanjax.objectives.electra import ReplacedDetection
from spanjax.objectives.loss_terms import SpanBoundary

RUN = dataclasses.replace(
    ELECTRA,
    objective=ReplacedDetection(
        masking=GeometricSpans(replacement=Replacement(mask=0.85, random=0.0, unit="span")), boundary=SpanBoundary()
    ),
)
