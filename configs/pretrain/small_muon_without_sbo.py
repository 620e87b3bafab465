"""small_muon.py without the span boundary objective: the other side of the comparison in docs/results.md.

Command (with the rows of small_muon.py):
    python -m spanjax.train --config configs/pretrain/small_muon_without_sbo.py --rows runs/small/rows \
        --workdir runs/small/without_sbo

Expect: docs/results.md has what was measured on English Wikipedia.
"""

import dataclasses

from configs.pretrain.small_muon import RUN as WITH_SBO
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction

assert isinstance(WITH_SBO.objective, MaskedPrediction)
RUN = dataclasses.replace(WITH_SBO, objective=dataclasses.replace(WITH_SBO.objective, terms=(MaskedTokens(),)))
