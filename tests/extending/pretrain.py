"""Pretraining with a masking policy, a loss term and a tracker of one's own.

Command:
    python -m spanjax.train --config pretrain.py --rows rows --workdir runs/poisson
"""

from policy import PoissonSpans
from term import SpanLength
from tracker import Csv

from spanjax.nn.config import EncoderConfig
from spanjax.objectives.loss_terms import MaskedTokens
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run
from spanjax.training.trackers import Tracking

RUN = Run(
    objective=MaskedPrediction(masking=PoissonSpans(), terms=(MaskedTokens(), SpanLength())),
    encoder=EncoderConfig(hidden_size=256, layers=4, heads=4, intermediate_size=1024, positions=128),
    tracking=Tracking(to=(Csv(),)),
)
