"""The table of totals: every figure of every split, and a line for each kind of tagged span and of skipped input."""

import dataclasses
import io
import types
from typing import Any

import pytest
import rich.console

from spanjax.data.shards.shards import Manifest
from spanjax.data.shards.totals import totals, totals_table

pytestmark = pytest.mark.unit

NUMBERS = {field.name: 10 for field in dataclasses.fields(Manifest)}
TRAIN: Any = types.SimpleNamespace(
    **NUMBERS | {"words": 4, "unknown_tokens": 1, "fill": 0.96512, "unigram_entropy": 3.25, "tags": ("entities",)}
    | {"settings": {"tagged_spans": {"entities": 7}}, "skipped": {"empty documents": 3}}
)  # fmt: skip
HELD_OUT: Any = types.SimpleNamespace(**vars(TRAIN) | {"documents": 2_000, "tags": (), "skipped": {}})


def test_totals_of_two_splits() -> None:
    found = {"train": totals(TRAIN), "validation": totals(HELD_OUT)}
    assert found["train"]["tokens_per_word"] == 2.5 and found["validation"]["tagged_spans"] == {}
    console = rich.console.Console(width=80, record=True, file=io.StringIO())
    console.print(totals_table(found))
    lines = [line.split() for line in console.export_text().splitlines()]
    for line in (
        "documents 10 2,000", "tokens per word 2.500 2.500", "unknown % 10.000 10.000", "fill % 96.51 96.51",
        "unigram entropy (nats) 3.250 3.250", "tagged entities 7 0", "skipped empty documents 3 0",
    ):  # fmt: skip
        assert line.split() in lines, line
