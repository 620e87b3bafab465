"""Batch-size warm-up: updates of a part of a batch first, of whole batches later, as a function of the step.

`batch_size` stays the unit in which orders, epochs and mixtures count. The updates of a stage take the parts of one batch in
turn, then those of the next, so that every row is read in the order, and with the masks, that it has without a warm-up.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple


class BatchStage(NamedTuple):
    """A stage of a warm-up: its first step, and the rows of an update from there on."""

    begin: int
    rows: int


class Part(NamedTuple):
    """Rows of an update: places `first` ... `first + rows - 1` of global batch `batch`."""

    batch: int
    first: int
    rows: int


def warmup_stage(text: str) -> BatchStage:
    """Parses STEP:ROWS; ValueError for another form."""
    begin, _, rows = text.partition(":")
    try:
        return BatchStage(int(begin), int(rows))
    except ValueError:
        raise ValueError(
            f"batch_warmup {text!r}: expected STEP:ROWS, the rows of an update from a step on, 0:64 say"
        ) from None


def rows_before(step: int, batch_size: int, stages: Sequence[BatchStage] = ()) -> int:
    """Rows that the updates before this step read."""
    if not stages:
        return step * batch_size
    ends = [*(stage.begin for stage in stages[1:]), step]
    return sum(max(0, min(end, step) - begin) * rows for (begin, rows), end in zip(stages, ends, strict=True))


def steps_for(rows: float, batch_size: int, stages: Sequence[BatchStage] = ()) -> int:
    """Number of first updates that read about this many rows: the inverse of `rows_before`."""
    for stage in reversed(stages or (BatchStage(0, batch_size),)):
        before = rows_before(stage.begin, batch_size, stages)
        if rows >= before:
            return stage.begin + round((rows - before) / stage.rows)
    return 0


def part_of(step: int, batch_size: int, stages: Sequence[BatchStage] = ()) -> Part:
    """The rows of the update of a step."""
    if not stages:
        return Part(step, 0, batch_size)
    stage = stages[bisect.bisect_right([each.begin for each in stages], step) - 1]
    batch, first = divmod(rows_before(step, batch_size, stages), batch_size)
    return Part(batch, first, stage.rows)


def warmup_problems(batch_size: int, stages: Sequence[BatchStage]) -> list[str]:
    """Problems of the stages with one another and with the batches whose parts they take; [] without stages."""
    if not stages:
        return []
    given = " ".join(f"{begin}:{rows}" for begin, rows in stages)
    begins, sizes = [stage.begin for stage in stages], [stage.rows for stage in stages]
    found = []
    if begins[0] != 0 or begins != sorted({*begins}):
        found.append(f"batch_warmup {given}: its steps are {begins}, expected 0 first and then rising ones")
    if sizes[-1] != batch_size or sizes != sorted({*sizes}) or sizes[0] < 1:
        found.append(
            f"batch_warmup {given}: its rows are {sizes}, expected rising numbers that end with batch_size, {batch_size}"
        )
    pairs = zip(sizes, sizes[1:], strict=False)
    if uneven := [(small, large) for small, large in pairs if small > 0 and large % small]:
        found.append(
            f"batch_warmup {given}: updates of {uneven[0][0]} rows are no equal parts of those of {uneven[0][1]}: use a divisor"
        )
    if found:
        return found
    for before, stage in zip(stages, stages[1:], strict=False):
        rows = rows_before(stage.begin, batch_size, stages)
        if rest := rows % stage.rows:
            # an update must lie inside one batch, so that a stage begins where its parts do
            begin = stage.begin + (stage.rows - rest) // before.rows
            found.append(
                f"batch_warmup {given}: up to step {stage.begin} it reads {rows:,} rows, which is no multiple of {stage.rows}:"
                f" begin the stage at step {begin}"
            )
            break  # moving this stage moves the next ones
    return found


def warmup_text(batch_size: int, stages: Sequence[BatchStage]) -> str:
    """The sizes of the updates, for people: "32 up to step 100, 64 up to step 200, then 256"."""
    ends = [f" up to step {stage.begin:,}, " for stage in stages[1:]]
    sizes = [f"{stage.rows}{end}" for stage, end in zip(stages, ends, strict=False)]
    return "".join([*sizes, "then " if sizes else "", str(batch_size)])
