"""Pretraining with an objective and a masking policy of one's own.

Command:
    python -m spanjax.train --config smoothed.py --rows rows --workdir runs/smoothed
"""

from objective import SmoothedPrediction
from policy import PoissonSpans

from spanjax.nn.config import EncoderConfig
from spanjax.run import Run

RUN = Run(
    objective=SmoothedPrediction(masking=PoissonSpans(mean=2.0)),
    encoder=EncoderConfig(hidden_size=256, layers=4, heads=4, intermediate_size=1024, positions=128),
)
