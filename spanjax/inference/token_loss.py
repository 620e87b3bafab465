"""Held-out loss of single masked tokens: one yardstick for models that were trained with different masking.

Shapes: B rows, T heads, K slots, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.host_slice import AnyRows, HostShare
from spanjax.data.feed.masking import Replacement, Tokens
from spanjax.inference.fill_mask import compiled
from spanjax.pretrained.electra import filling
from spanjax.pretrained.model import Model

SEED, BATCH, MOST_ROWS = 0, 32, 1024
"""Seed of the masks, rows of a batch, and most held-out rows that are read: the first ones."""
MASKING = Tokens(replacement=Replacement(mask=1.0, random=0.0))
"""15 % single tokens, BERT's choice. All become [MASK]: a random or kept token would also measure how well a model notices it,
which depends on the replacement that it was trained with."""


class TokenLoss(NamedTuple):
    """Figures of the head that reads the masked token itself."""

    loss: float
    """Cross-entropy in nats, mean over the tokens."""
    accuracy: float
    """Share of the tokens that the head finds the most probable."""
    tokens: int


def single_token_loss(model: Model, rows: AnyRows, most_rows: int = MOST_ROWS) -> TokenLoss | None:
    """Measures a model on held-out rows of its vocabulary; None if it has no head that reads the masked token itself.

    The masks are a function of the rows alone, so that any two models are measured on the same tokens.
    """
    model = filling(model)
    heads = model.objective().fill_heads
    head = next((number for number, each in enumerate(heads) if not each.neighbours), None)
    if head is None:
        return None
    # `held_out` reads rows in stored order, as epoch 0: with a fixed seed the masks are the same for all models
    share = HostShare(rows, FeedSpec(seed=SEED, batch_size=BATCH, masking=MASKING), held_out=True)

    def compute(objective: Any, module: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits_BTKV = objective.logits(module, objective.hidden(module, batch, None), batch)
        log_BKV = jax.nn.log_softmax(logits_BTKV[:, head, :, : model.encoder.vocab_size], axis=-1)
        target_BK = batch["slot_target_BK"]
        of_target_BK = jnp.take_along_axis(log_BKV, target_BK[..., None], axis=-1)[..., 0]
        return of_target_BK, log_BKV.argmax(axis=-1) == target_BK

    run = compiled(model, compute)
    nats, right, tokens = 0.0, 0, 0
    for step in share.steps(0)[: -(-most_rows // BATCH)]:
        batch = share.masked(share.global_rows(step)[0]).batch
        log_BK, right_BK = map(np.asarray, run({name: jnp.asarray(value) for name, value in batch.items()}))
        used_BK = batch["slot_weight_BK"] > 0
        nats -= float(log_BK[used_BK].sum(dtype=np.float64))
        right += int(right_BK[used_BK].sum())
        tokens += int(used_BK.sum())
    return TokenLoss(nats / tokens, right / tokens, tokens) if tokens else None
