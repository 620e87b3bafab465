"""continue_minilm.py without the span boundary objective: the other side of a comparison in docs/results.md.

Command (with the weights and rows of continue_minilm.py):
    python -m spanjax.train --config configs/pretrain/continue_minilm_without_sbo.py --rows rows \
        --workdir runs/minilm_without_sbo

Expect: docs/results.md has what was measured.
"""

import dataclasses

from configs.pretrain.continue_minilm import RUN as WITH_SBO
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction

assert isinstance(WITH_SBO.objective, MaskedPrediction)
RUN = dataclasses.replace(WITH_SBO, objective=dataclasses.replace(WITH_SBO.objective, terms=(MaskedTokens(),)))
