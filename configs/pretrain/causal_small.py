"""The causal stage of causal_then_masked.py: the encoder of small_muon.py predicts every next token of the text.

Command (with your text and its held-out part):
    python -m spanjax.prepare --input 'text/*.jsonl.gz' --validation 'held-out/*.jsonl.gz' --train-vocab 4000 --length 128 \
        --output runs/small/rows
    python -m spanjax.train --config configs/pretrain/causal_small.py --rows runs/small/rows --workdir runs/small/causal

A step has a target at every token instead of at 15 %, so it costs more in the decoder; 900 steps are a quarter of small.py.

Expect: a held-out clm loss below the unigram entropy. The run fills no masks; it is a start for masked prediction. Nothing was
measured with this file beyond the short runs of the tests.
"""

import dataclasses

from configs.pretrain.small_muon import RUN as SMALL
from spanjax.objectives.causal_lm import CausalPrediction

RUN = dataclasses.replace(SMALL, objective=CausalPrediction(), steps=900)
