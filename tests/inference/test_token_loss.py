"""The yardstick: single tokens of held-out rows, the same for all models."""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.rows import open_rows
from spanjax.inference.fill_mask import compiled
from spanjax.inference.token_loss import BATCH, MASKING, TokenLoss, single_token_loss
from spanjax.objectives.loss_terms import SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pretrained.load import load_model


def test_it_is_the_loss_of_the_objective_on_all_held_out_rows(
    run_folder: pathlib.Path, rows_folder: pathlib.Path
) -> None:
    model, rows = load_model(run_folder), open_rows(rows_folder / "validation")
    found = single_token_loss(model, rows, 10**6)
    share = HostShare(rows, FeedSpec(seed=0, batch_size=BATCH, masking=MASKING), held_out=True)
    measure = compiled(model, lambda objective, module, batch: objective.measure(module, batch, None))
    total = count = 0.0
    for step in share.steps(0):
        mean = measure(share.masked(share.global_rows(step)[0]).batch)["mlm/loss"]
        total, count = total + float(mean.total), count + float(mean.count)
    assert isinstance(found, TokenLoss) and found.tokens == count
    assert found.loss == pytest.approx(total / count, rel=1e-5) and 0 <= found.accuracy <= 1


def test_masks_do_not_depend_on_the_training(run_folder: pathlib.Path, rows_folder: pathlib.Path) -> None:
    """A model trained with spans and seed 0 is measured on single tokens, all of them [MASK], and twice alike."""
    model, rows = load_model(run_folder), open_rows(rows_folder / "validation")
    share = HostShare(rows, FeedSpec(seed=0, batch_size=BATCH, masking=MASKING), held_out=True)
    batch = share.masked(share.global_rows(0)[0]).batch
    used_BK = batch["slot_weight_BK"] > 0
    hidden = np.take_along_axis(batch["tokens_BL"], batch["slot_position_BK"], axis=1)[used_BK]
    assert {*hidden.tolist()} == {rows.vocabulary.specials.mask}
    text = (batch["segments_BL"] > 0).sum()
    assert 0.13 < used_BK.sum() / text < 0.16
    assert single_token_loss(model, rows, BATCH) == single_token_loss(model, rows, BATCH)


def test_a_model_without_a_head_on_the_token_itself_has_none(
    run_folder: pathlib.Path, rows_folder: pathlib.Path
) -> None:
    model: Any = load_model(run_folder)
    boundary = next(term for term in model.trained.terms if isinstance(term, SpanBoundary))
    alone = dataclasses.replace(model, trained=MaskedPrediction(terms=(boundary,)))
    assert single_token_loss(alone, open_rows(rows_folder / "validation")) is None


def test_a_loss_of_an_untrained_model_is_near_that_of_chance(
    run_folder: pathlib.Path, rows_folder: pathlib.Path
) -> None:
    model, rows = load_model(run_folder), open_rows(rows_folder / "validation")
    found = single_token_loss(model, rows)
    assert found and abs(found.loss - math.log(rows.vocabulary.size)) < 1
