"""The batch contract: names, shapes and types of every field."""

import numpy as np
import pytest

from spanjax.data.feed.batch import Batch, FeedSpec, batch_spec
from spanjax.data.feed.feeds import numpy_feed
from tests.data.memory_rows import MemoryRows


def test_spec_names_every_field_with_its_shape() -> None:
    spec = batch_spec(4, 128, 24, 3)
    assert list(spec) == list(Batch.__annotations__)
    assert spec["tokens_BL"] == ((4, 128), np.int32)
    assert spec["row_B"] == ((4,), np.int32)
    assert spec["slot_left_BK"] == ((4, 24), np.int32)
    assert spec["pair_label_BP"] == ((4, 3), np.int32)
    assert {name for name, (_, dtype) in spec.items() if dtype == np.float32} == {
        "slot_weight_BK",
        "slot_boundary_weight_BK",
        "pair_weight_BP",
    }


def test_a_batch_is_what_the_spec_says() -> None:
    rows = MemoryRows(10, 64, blocks=3)
    batch = next(numpy_feed(rows, FeedSpec(0, 4)))  # pyright: ignore[reportArgumentType]
    slots = batch["slot_weight_BK"].shape[1]
    assert slots % 8 == 0
    assert {name: (batch[name].shape, batch[name].dtype) for name in batch} == batch_spec(4, 64, slots, 3)
    assert list(batch) == list(Batch.__annotations__)


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(ValueError, match="batch_size is 1000000000: expected 1 to 131,072 rows"):
        FeedSpec(0, 10**9)
    with pytest.raises(ValueError, match=r"seed is -1.*batch_size is 0.*order is 'random'"):
        FeedSpec(seed=-1, batch_size=0, order="random")  # pyright: ignore[reportArgumentType]
