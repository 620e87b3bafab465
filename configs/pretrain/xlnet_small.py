"""XLNet on 4 layers of 512: permuted prediction with a memory as long as half a row, for one device.

Command (rows as for xlnet_base.py, of 128):
    python -m spanjax.train --config configs/pretrain/xlnet_small.py --rows rows --workdir runs/xlnet_small

Expect: nothing was measured with this file beyond the short runs of the tests.
"""

import dataclasses

from configs.encoders import XLNET_SMALL
from configs.pretrain.xlnet_base import RUN as BASE
from spanjax.data.feed.pairing import FullSentences
from spanjax.objectives.xlnet import PermutedPrediction

RUN = dataclasses.replace(
    BASE,
    objective=PermutedPrediction(pairing=FullSentences(), block=64, memory=64),
    encoder=XLNET_SMALL,
    optimizer=dataclasses.replace(BASE.optimizer, learning_rate=5e-4, warmup_steps=2_000),
    steps=100_000,
    batch_size=64,
)
