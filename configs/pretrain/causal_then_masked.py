"""SpanBERT after a causal stage: masked prediction with the encoder and the token head that causal_small.py trained.

Command (with the rows and the run of causal_small.py):
    python -m spanjax.train --config configs/pretrain/causal_then_masked.py --init-from runs/small/causal \
        --rows runs/small/rows --workdir runs/small/run

900 causal and 2,700 masked steps are the 3,600 of small_muon.py. Under a fixed budget, causal and then masked prediction was best
in the comparison of Gisserot-Boukhlef et al. (2025); it continued French and English models better, too (arXiv 2605.12438). The
optimizer's moments begin at 0, so the rate warms up again. Attention reads both directions from the first step on.

Expect: a first report that the encoder and the token head were loaded and the span boundary head was drawn. Nothing was measured
with this file beyond the short runs of the tests.
"""

import dataclasses

from configs.pretrain.small_muon import RUN as SMALL

RUN = dataclasses.replace(SMALL, init_from="(give --init-from FOLDER)", steps=2700)
