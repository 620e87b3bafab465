"""Stages of masking policies: which one masks when, what their settings ask for, and that batches follow them."""

import dataclasses
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.batch import FeedSpec, batch_statistics
from spanjax.data.feed.feeds import open_feed
from spanjax.data.feed.masking import GeometricSpans, Replacement, Stage, Staged, TaggedSpans, Tokens, WholeWords
from spanjax.data.feed.rows import open_rows

ALL_MASKED = Replacement(mask=1.0, random=0.0)
WORDS, PHRASES, ENTITIES = (
    WholeWords(rate=0.1, replacement=ALL_MASKED),
    TaggedSpans(rate=0.2, tag="noun_phrases", share=1.0, replacement=ALL_MASKED),
    TaggedSpans(rate=0.3, tag="entities", share=1.0),
)
ERNIE = Staged(stages=(Stage(0, WORDS), Stage(2, PHRASES), Stage(4, ENTITIES)))


def batches(folder: pathlib.Path, masking: object, count: int, kind: str = "numpy", **more: object) -> list[dict]:
    rows = open_rows(folder / "train")
    spec = FeedSpec(7, 4, masking)  # pyright: ignore[reportArgumentType]
    feed = open_feed(kind, rows, spec, **more)  # pyright: ignore[reportArgumentType]
    found = [dict(batch) for batch in itertools.islice(feed, count)]
    feed.close()
    return found


def same(left: dict, right: dict) -> bool:
    """Whether both show and ask for the same tokens; numbers of unused slots do not count."""
    used = [batch["slot_weight_BK"] > 0 for batch in (left, right)]
    targets = [batch["slot_target_BK"][some] for batch, some in zip((left, right), used, strict=True)]
    return np.array_equal(left["tokens_BL"], right["tokens_BL"]) and np.array_equal(*targets)


def test_each_step_has_its_stage() -> None:
    assert [ERNIE.at(step) for step in (0, 1, 2, 3, 4, 99)] == [WORDS, WORDS, PHRASES, PHRASES, ENTITIES, ENTITIES]
    assert ERNIE.at(None) == ENTITIES and ERNIE.tags == ("noun_phrases", "entities") and ERNIE.most == 0.3
    assert [ERNIE.rate_at(step) for step in (1, 2, 4)] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("kind", ["numpy", "tf"])
def test_batches_are_those_of_the_stage_alone(tagged_rows_folder: pathlib.Path, kind: str) -> None:
    staged = batches(tagged_rows_folder, ERNIE, 6, kind)
    for policy, steps in ((WORDS, (0, 1)), (PHRASES, (2, 3)), (ENTITIES, (4, 5))):
        alone = batches(tagged_rows_folder, policy, 6)
        assert all(same(staged[step], alone[step]) for step in steps)
        others = {0, 1, 2, 3, 4, 5} - {*steps}
        assert not any(same(staged[step], alone[step]) for step in others)


def test_rate_and_span_lengths_are_functions_of_the_step(tagged_rows_folder: pathlib.Path) -> None:
    """Stages that differ in both; the rate of the second also falls inside of its stage."""
    many, few = (GeometricSpans(rate=rate, p=p, max_words=most) for rate, p, most in ((0.3, 0.1, 10), (0.15, 0.8, 2)))
    falling = dataclasses.replace(few, schedule=((2, 0.2), (4, 0.05)))
    masking, found = Staged(stages=(Stage(0, many), Stage(2, falling))), []
    assert [masking.rate_at(step) for step in range(5)] == pytest.approx([0.3, 0.3, 0.2, 0.125, 0.05])
    batch: Any
    for batch in batches(tagged_rows_folder, masking, 5):
        used = batch["slot_weight_BK"] > 0
        # offset 0 is the first token of a span with a boundary on both sides
        firsts = ((batch["slot_offset_BK"] == 0) & (batch["slot_boundary_weight_BK"] > 0)).sum()
        found.append((batch_statistics(batch)["masked"], used.sum() / firsts))
    shares, lengths = zip(*found, strict=True)
    # budgets are rounded up in every block, and spans of whole words end below them
    assert shares == pytest.approx([0.3, 0.3, 0.2, 0.125, 0.05], abs=0.03)
    assert min(lengths[:2]) > 1.3 * max(lengths[2:]), lengths


def test_held_out_rows_are_masked_by_the_last_stage(tagged_rows_folder: pathlib.Path) -> None:
    staged, alone = (batches(tagged_rows_folder, each, 2, held_out=True) for each in (ERNIE, ENTITIES))
    assert all(same(a, b) for a, b in zip(staged, alone, strict=True))


def test_a_start_in_the_middle_changes_nothing(tagged_rows_folder: pathlib.Path) -> None:
    whole, late = (batches(tagged_rows_folder, ERNIE, n, start_step=6 - n) for n in (6, 3))
    assert all(same(a, b) for a, b in zip(whole[3:], late, strict=True))


def test_what_cannot_be_is_refused(tagged_rows_folder: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"stages begin at the steps \[1\]: expected at least one, 0 first"):
        Staged(stages=(Stage(1),))
    with pytest.raises(ValueError, match="rising"):
        Staged(stages=(Stage(0), Stage(5), Stage(3)))
    with pytest.raises(ValueError, match="a stage of stages"):
        Staged(stages=(Stage(0, Staged()),))
    unread: list[dict[str, Any]] = [{"rate": 0.2}, {"schedule": ((0, 0.1),)}, {"replacement": Replacement(mask=0.5)}]
    for beside in unread:
        with pytest.raises(ValueError, match="beside the stages: give them to the policies"):
            Staged(**beside)
    with pytest.raises(ValueError, match="copies in a stage: give them to Staged"):
        Staged(stages=(Stage(0, WholeWords(copies=3)),))
    with pytest.raises(ValueError, match="reads the tags 'people', the rows have .*--tags people"):
        batches(tagged_rows_folder, Staged(stages=(Stage(0), Stage(2, TaggedSpans(tag="people")))), 1)


def test_fixed_maskings_come_round(tagged_rows_folder: pathlib.Path) -> None:
    """With copies=2 the masks of a row in epoch 2 are those of epoch 0 and not those of epoch 1; without, all differ."""
    rows = open_rows(tagged_rows_folder / "train")
    steps = -(-3 * len(rows) // 4)

    def by_row(masking: Tokens) -> dict[int, list[bytes]]:
        from spanjax.data.feed.host_slice import HostShare

        share = HostShare(rows, FeedSpec(7, 4, masking))
        found: dict[int, list[bytes]] = {}
        for step, batch in enumerate(batches(tagged_rows_folder, masking, steps)):
            for place, (index, epoch) in enumerate(zip(*map(np.ndarray.tolist, share.global_rows(step)), strict=True)):
                if epoch < 3:
                    found.setdefault(index, []).append(batch["tokens_BL"][place].tobytes())
        return {index: masks for index, masks in found.items() if len(masks) == 3}

    fixed, fresh = by_row(Tokens(copies=2)), by_row(Tokens())
    assert fixed and all(first == third for first, _, third in fixed.values())
    assert sum(first != second for first, second, _ in fixed.values()) > 0.9 * len(fixed)
    assert sum(first != third for first, _, third in fresh.values()) > 0.9 * len(fresh)
    with pytest.raises(ValueError, match="copies is -1"):
        Tokens(copies=-1)
