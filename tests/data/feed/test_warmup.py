"""Batch-size warm-up: parts of batches in the order, and with the masks, of whole ones; any host, any step, both feeds."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.feed.batch import Batch, FeedSpec
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.masking import GeometricSpans, Stage, Staged, Tokens
from spanjax.data.feed.mixture import MixedRows, MixtureStage
from spanjax.data.feed.pairing import NextSentence
from spanjax.data.feed.warmup import (
    BatchStage,
    part_of,
    rows_before,
    steps_for,
    warmup_problems,
    warmup_stage,
    warmup_text,
)
from tests.data.feed.test_feeds import KINDS, ROWS, assert_equal, taken

STAGES = tuple(map(warmup_stage, ("0:2", "2:4", "5:8")))  # two steps of 2, three of 4, then 8 rows
SPEC = FeedSpec(7, 8, warmup=STAGES)


def joined(batches: list[Batch]) -> Any:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@KINDS
@pytest.mark.parametrize(
    "spec",
    [SPEC, FeedSpec(7, 8, order="by_length", warmup=(BatchStage(0, 4), BatchStage(4, 8)))]
    + [dataclasses.replace(SPEC, pairing=NextSentence())],
    ids=["uniform", "by_length", "pairs"],
)
def test_parts_of_a_batch_are_the_batch(kind: Any, spec: FeedSpec) -> None:
    """All fields of 2 + 2 + 4 rows, then 4 + 4, then whole batches; they straddle epochs, or one is short."""
    whole = taken(kind, 4, dataclasses.replace(spec, warmup=()))
    steps = steps_for(4 * 8, 8, spec.warmup)
    parts = taken(kind, steps, spec)
    for batch, expected in enumerate(whole):
        mine = [part for step, part in enumerate(parts) if part_of(step, 8, spec.warmup).batch == batch]
        assert_equal(expected, joined(mine))
    sizes = [len(part["row_B"]) for part in parts]
    assert sizes == ([4, 4, 4, 4, 8, 8] if spec.order == "by_length" else [2, 2, 4, 4, 4, 8, 8])


@KINDS
def test_hosts_share_each_part_and_any_step_can_be_the_first(kind: Any) -> None:
    whole = taken(kind, 7, SPEC)
    hosts = [taken(kind, 7, SPEC, host=host, hosts=2) for host in range(2)]
    for step, batch in enumerate(whole):
        assert_equal(batch, joined([host[step] for host in hosts]))
    for start in range(7):
        assert_equal(taken(kind, 1, SPEC, start_step=start)[0], whole[start])


def test_each_row_comes_once_an_epoch() -> None:
    share, seen = HostShare(ROWS, SPEC), list[int]()
    for step in range(8):
        index_R, epoch_R = share.global_rows(step)
        seen += index_R[epoch_R == 0].tolist()
    assert sorted(seen) == list(range(21))


def test_masking_follows_the_step_of_the_update() -> None:
    """Schedules of the masking are functions of the step, as the learning rate is: step 5, batch 2, is already in stage 2."""
    masking = Staged(stages=(Stage(0, Tokens()), Stage(5, GeometricSpans(rate=0.5))))
    found = taken("numpy", 6, dataclasses.replace(SPEC, masking=masking))
    late = taken("numpy", 3, FeedSpec(7, 8, masking.stages[1].policy))
    assert_equal(found[5], late[2])
    early = taken("numpy", 3, FeedSpec(7, 8, masking.stages[0].policy))
    few = early[1]["slot_position_BK"][4:]  # a rate of 0.15 needs fewer slots
    assert (found[4]["slot_position_BK"][:, : few.shape[1]] == few).all()


@KINDS
def test_held_out_rows_come_in_whole_batches(kind: Any) -> None:
    plain = dataclasses.replace(SPEC, warmup=())
    for left, right in zip(taken(kind, 9, SPEC, held_out=True), taken(kind, 9, plain, held_out=True), strict=True):
        assert_equal(left, right)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=4), st.integers(1, 3))
def test_steps_are_places_in_the_rows(stages: list[tuple[int, int]], first: int) -> None:
    """Against a plain count of rows: stages that take whole parts of the next size, each `grows` times as large."""
    given, begin, rows, read = [BatchStage(0, first)], 0, first, 0
    for turns, grows in stages:
        steps = turns * (grows + 1) - (read // rows) % (grows + 1)
        begin, read, rows = begin + steps, read + steps * rows, rows * (grows + 1)
        given.append(BatchStage(begin, rows))
    assert warmup_problems(rows, given) == []
    place = 0
    for step in range(begin + 3):
        size = [stage.rows for stage in given if stage.begin <= step][-1]
        assert rows_before(step, rows, given) == place and steps_for(place, rows, given) == step
        assert part_of(step, rows, given) == (place // rows, place % rows, size)
        assert place % rows + size <= rows
        place += size


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["1:2", "5:8"], r"its steps are \[1, 5\], expected 0 first and then rising ones"),
        (["0:2", "0:8"], r"its steps are \[0, 0\]"),
        (["0:2", "4:4"], r"its rows are \[2, 4\], expected rising numbers that end with batch_size, 8"),
        (["0:0", "4:8"], r"its rows are \[0, 8\]"),
        (["0:3", "8:8"], "updates of 3 rows are no equal parts of those of 8: use a divisor"),
        (["0:2", "3:4", "9:8"], "up to step 3 it reads 6 rows, which is no multiple of 4: begin the stage at step 4"),
        (["0:2", "4:4", "5:8"], "up to step 5 it reads 12 rows, which is no multiple of 8: begin the stage at step 6"),
    ],
)
def test_stages_that_do_not_fit_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeedSpec(7, 8, warmup=tuple(map(warmup_stage, texts)))


@pytest.mark.parametrize("text", ["", "3", "a:2", "1:2:3", "1:2.5"])
def test_text_that_is_no_stage(text: str) -> None:
    with pytest.raises(ValueError, match="expected STEP:ROWS"):
        warmup_stage(text)


def test_what_cannot_have_parts_says_why() -> None:
    with pytest.raises(ValueError, match="updates of 2 rows, which is not divisible by 4 hosts"):
        HostShare(ROWS, SPEC, hosts=4)
    with pytest.raises(ValueError, match="order 'streams': the memory has a row for each of batch_size 8"):
        HostShare(ROWS, dataclasses.replace(SPEC, order="streams"))
    with pytest.raises(ValueError, match="order 'by_length': the last of 21 rows are a batch of 5"):
        HostShare(ROWS, dataclasses.replace(SPEC, order="by_length", warmup=(BatchStage(0, 1), BatchStage(8, 8))))


def test_stages_of_a_mixture_are_refused(rows_folder: Any) -> None:
    from spanjax.data.feed.rows import open_rows

    rows = open_rows(rows_folder / "train")
    HostShare(MixedRows([rows, rows]), SPEC)
    with pytest.raises(ValueError, match="batch_warmup with data.stages"):
        HostShare(MixedRows([rows, rows], stages=[MixtureStage(5, (1.0, 2.0))]), SPEC)


def test_sizes_for_people() -> None:
    assert warmup_text(8, STAGES) == "2 up to step 2, 4 up to step 5, then 8" and warmup_text(8, ()) == "8"
