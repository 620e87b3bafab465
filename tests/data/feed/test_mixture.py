"""Mixtures: shares follow the weights, every folder's rows come once an epoch, and batch s is arithmetic."""

import dataclasses
import functools
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.masking import Replacement
from spanjax.data.feed.mixture import CYCLE, MixedRows, MixtureStage, mixed_rows, shares, stage_of
from spanjax.data.feed.order import global_rows
from spanjax.data.feed.rows import Rows, open_rows, slots_needed
from spanjax.data.shards.packing import Block
from spanjax.data.shards.shards import write_rows
from spanjax.data.vocab.loading import WordPieceVocabulary
from tests.data.numbered_rows import VOCABULARY, block, made_rows, random_rows

pytestmark = pytest.mark.unit

FIXED = functools.partial(settings, derandomize=True, deadline=None, database=None)
WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)
SHARES_OF = {
    "odd": ((30, 17, 5), (3.0, 1.0, 0.5)),
    "alike": ((64, 64), (1.0, 1.0)),
    "large": ((100_000, 7), (9.0, 1.0)),
}
FOLDERS = pytest.mark.parametrize(("sizes", "weights"), SHARES_OF.values(), ids=SHARES_OF)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Rows]:
    """Three folders of 40, 17 and 9 rows, with more and fewer blocks a row."""
    folder = tmp_path_factory.mktemp("parts")
    made = [random_rows(folder / str(seed), seed, count, 48, 6) for seed, count in ((1, 40), (2, 17))]
    write_rows(folder / "3", [[block([20, 20], 0, 10)]] * 9, VOCABULARY, 48, made[0].manifest.tags, shard_rows=4)
    return [*made, open_rows(folder / "3")]


def places(seed: int, steps: range, batch_size: int, sizes: tuple[int, ...], weights: tuple[float, ...]) -> np.ndarray:
    """Folder, row in it and epoch of all places of these steps [3, steps * B]."""
    found = [mixed_rows(seed, step, batch_size, sizes, shares(weights)) for step in steps]
    index, epoch = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    first = np.cumsum([0, *sizes])
    folder = np.searchsorted(first, index, side="right") - 1
    return np.stack([folder, index - first[folder], epoch])


@FIXED(max_examples=300)
@given(weights=WEIGHTS)
@example(weights=[1.0])
@example(weights=[1.0, 1e-9, 1e-9, 1e-9])
@example(weights=[1e9, 1e9, *[1e-3] * 18])
@example(weights=[1.0, *[1e-7] * 50])
def test_shares_add_up_and_follow_the_weights(weights: list[float]) -> None:
    """Nobody is left out; more than one place off is only who pays for shares that were rounded up to one."""
    share_F = shares(weights)
    exact_F = np.array(weights) / np.sum(weights) * CYCLE
    assert share_F.sum() == CYCLE and share_F.min() >= 1
    small = int((exact_F < 1).sum())
    assert (share_F - exact_F < 1 + 1e-6).all() and (exact_F - share_F < 1 + small).all()


def test_shares_of_simple_weights() -> None:
    assert shares([3, 1]).tolist() == [49_152, 16_384]
    assert shares([5]).tolist() == [65_536]
    assert shares([1, 1, 1]).tolist() == [21_846, 21_845, 21_845]


@FOLDERS
def test_a_cycle_has_every_folder_its_share_of_times(sizes: tuple[int, ...], weights: tuple[float, ...]) -> None:
    for cycle in (0, 1, 2**40):
        folder = places(3, range(cycle, cycle + 1), CYCLE, sizes, weights)[0]
        np.testing.assert_array_equal(np.bincount(folder, minlength=len(sizes)), shares(weights))
        half = np.bincount(folder[: CYCLE // 2], minlength=len(sizes)) / (CYCLE / 2)
        share = shares(weights) / CYCLE  # the first half of an order drawn for the cycle
        assert (abs(half - share) <= 5 * np.sqrt(share * (1 - share) / CYCLE)).all()


@FOLDERS
def test_every_row_of_a_folder_comes_once_an_epoch(sizes: tuple[int, ...], weights: tuple[float, ...]) -> None:
    """Through 4 cycles: full epochs are permutations, the last one is in part, and epochs and folders differ."""
    folder, row, epoch = places(11, range(4), CYCLE, sizes, weights)
    for number, size in enumerate(sizes):
        rows, epochs = row[folder == number], epoch[folder == number]
        turns = 4 * int(shares(weights)[number])
        assert len(rows) == turns
        counts = np.bincount(epochs * size + rows, minlength=size * -(-turns // size))
        assert counts[: turns // size * size].tolist() == [1] * (turns // size * size)
        assert counts.max() == 1 and counts.sum() == turns


def test_batches_are_named_by_their_step() -> None:
    """Any batch alone is the stream there, whatever the batch size, across the ends of cycles and far out."""
    sizes, weights = (30, 17, 5), (3.0, 1.0, 0.5)
    stream = places(5, range(3), CYCLE, sizes, weights)
    for batch_size in (1, 7, 64, 1_000):
        for step in (0, 3, CYCLE // batch_size - 1, CYCLE // batch_size, 2 * CYCLE // batch_size):
            alone = places(5, range(step, step + 1), batch_size, sizes, weights)
            np.testing.assert_array_equal(alone, stream[:, step * batch_size :][:, :batch_size])
    far = places(5, range(10**12, 10**12 + 2), 64, sizes, weights)
    np.testing.assert_array_equal(far, places(5, range(5 * 10**11, 5 * 10**11 + 1), 128, sizes, weights))
    assert far[2].min() > 10**9


def test_seeds_cycles_folders_and_epochs_have_orders_of_their_own() -> None:
    """Two folders of 65,536 rows with half a cycle each: every cycle has half of an epoch, and which half is drawn anew."""
    sizes, weights = (CYCLE, CYCLE), (1.0, 1.0)
    seeds_and_cycles = ((0, 0), (0, 1), (0, 2), (1, 0))
    found = [places(seed, range(cycle, cycle + 1), CYCLE, sizes, weights) for seed, cycle in seeds_and_cycles]
    for other in found[1:]:
        assert abs((found[0][0] == other[0]).mean() - 0.5) < 5 * 0.5 / math.sqrt(CYCLE), "the folders of the places"
    rows = [{*row[folder == number].tolist()} for folder, row, _ in found for number in (0, 1)]
    assert rows[2] == {*range(CYCLE)} - rows[0] and rows[3] == {*range(CYCLE)} - rows[1], "the rest of the epoch"
    for name, other in (("the other folder", 1), ("the next epoch", 4), ("the other seed", 6)):
        shared = len(rows[0] & rows[other])
        assert abs(shared - CYCLE / 4) < 5 * math.sqrt(CYCLE) / 4, f"{name} has {shared} of the {CYCLE // 2} rows"


def test_the_feed_reads_these_rows(parts: list[Rows]) -> None:
    mixed, spec = MixedRows(parts, (1, 2, 3)), FeedSpec(seed=9, batch_size=24)
    for step in (0, 5, 10**6):
        index_B, epoch_B = mixed_rows(9, step, 24, (40, 17, 9), shares((1, 2, 3)))
        for host in range(3):
            found, keys = HostShare(mixed, spec, host, 3).read(step)
            here = slice(8 * host, 8 * host + 8)
            np.testing.assert_array_equal(keys.index_B, index_B[here])
            np.testing.assert_array_equal(keys.epoch_B, epoch_B[here])
            np.testing.assert_array_equal(found.tokens_BL, mixed.fetch(index_B[here]).tokens_BL)
    held_out = HostShare(mixed, spec, held_out=True)
    assert list(held_out.steps(0)) == [0, 1, 2]
    np.testing.assert_array_equal(held_out.read(1)[1].index_B, np.arange(24, 48))
    with pytest.raises(ValueError, match="order 'by_length' does not exist for a mixture"):
        HostShare(mixed, FeedSpec(seed=9, batch_size=24, order="by_length"))


def test_rows_of_parts_come_back_in_any_order(parts: list[Rows]) -> None:
    mixed = MixedRows(parts)
    assert len(mixed) == 66 and mixed.sizes == (40, 17, 9) and mixed.weights == (40, 17, 9)
    every = [part.fetch(np.arange(len(part))) for part in parts]
    for index_B in (
        np.arange(66),
        np.random.default_rng(0).permutation(66),
        np.array([65, 0, 65, 40, 39]),
        np.array([57]),
    ):
        for name, array in mixed.fetch(index_B)._asdict().items():
            expected = np.concatenate([getattr(rows, name) for rows in every])[index_B]
            np.testing.assert_array_equal(array, expected)
            assert array.dtype == expected.dtype
    assert mixed.fetch(np.zeros(0, np.int64)).tokens_BL.shape == (0, 48)
    np.testing.assert_array_equal(mixed.lengths_N, np.concatenate([part.lengths_N for part in parts]))


@pytest.mark.parametrize("index", [-1, 66])
def test_rows_outside_are_refused_as_by_rows(parts: list[Rows], index: int) -> None:
    with pytest.raises(IndexError):
        MixedRows(parts).fetch(np.array([0, index]))


def test_documents_of_different_folders_differ(parts: list[Rows]) -> None:
    mixed, first, seen = MixedRows(parts), 0, set()
    for part in parts:
        blocks = part.fetch(np.arange(len(part))).segments_BL.max(axis=1)
        row_M = np.repeat(np.arange(len(part)), blocks)
        block_M = np.concatenate([np.arange(1, count + 1) for count in blocks])
        own_M, number_M = part.block_documents(row_M, block_M), mixed.block_documents(first + row_M, block_M)
        pairs = {*zip(own_M.tolist(), number_M.tolist(), strict=True)}
        assert len(pairs) == len({own for own, _ in pairs}) == len({number for _, number in pairs})
        assert not seen & {*number_M.tolist()}
        seen |= {*number_M.tolist()}
        first += len(part)
    shuffled = np.random.default_rng(0).permutation(66)
    whole = mixed.block_documents(np.arange(66), np.ones(66, int))
    np.testing.assert_array_equal(mixed.block_documents(shuffled, np.ones(66, int)), whole[shuffled])


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 5), (1000, 1, 1)])
def test_unigrams_have_the_proportions_of_the_mixture(parts: list[Rows], weights: tuple[float, ...]) -> None:
    mixed = MixedRows(parts, weights)
    exact = sum(
        share / CYCLE * part.unigram_V / part.unigram_V.sum() for share, part in zip(mixed.share_F, parts, strict=True)
    )
    found = mixed.unigram_V / mixed.unigram_V.sum()
    assert mixed.unigram_V.dtype == np.int64
    np.testing.assert_allclose(found, exact, atol=1e-9)
    assert ((found > 0) == (np.asarray(exact) > 0)).all() and (mixed.unigram_V[:5] == 0).all()
    share = found[found > 0]
    assert mixed.manifest.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())


def test_unknown_tokens_have_the_proportions_of_the_mixture(tmp_path: pathlib.Path) -> None:
    """[UNK] is a tenth of the text of one folder and a half of the other's; random tokens are drawn so on request (D13)."""
    parts = []
    for number, share in enumerate((0.1, 0.5)):
        tokens = np.full(20, 50 + number, np.int32)
        tokens[: int(20 * share)] = 1
        parts.append(made_rows(tmp_path / str(number), [[Block(tokens, np.zeros(20, np.uint8), 0)]], 48))
    assert [part.unknown_count for part in parts] == [2, 10] and all(part.unigram_V[1] == 0 for part in parts)
    for rows in (*parts, MixedRows(parts, (3, 1))):
        facts = HostShare(rows, FeedSpec(seed=9, batch_size=2)).facts
        assert facts.random_counts(Replacement()) is facts.cumulative_V
        counts_V = np.diff(facts.random_counts(Replacement(unknown=True)), prepend=0)
        exact_V = rows.unigram_V.copy()
        exact_V[1] = rows.unknown_count
        np.testing.assert_array_equal(counts_V, exact_V)
    # known tokens are 3 to 1; [UNK] goes with them, 2 for 18 in the one and 10 for 10 in the other
    found = counts_V[[1, 50, 51]] / counts_V[50:52].sum()
    np.testing.assert_allclose(found, [0.75 * 2 / 18 + 0.25 * 10 / 10, 0.75, 0.25], atol=1e-9)


def test_the_manifest_is_that_of_all_folders(parts: list[Rows]) -> None:
    mixed = MixedRows(parts, (3, 1, 1)).manifest
    every = [part.manifest for part in parts]
    for name in ("rows", "documents", "sentences", "text_tokens", "words", "unknown_tokens", "blocks"):
        assert getattr(mixed, name) == sum(getattr(one, name) for one in every)
    assert mixed.fill == pytest.approx(np.concatenate([part.lengths_N for part in parts]).mean() / 48)
    assert mixed.max_blocks == max(one.max_blocks for one in every) and mixed.tags == every[0].tags
    assert len(mixed.text_tokens_by_blocks) == max(len(one.text_tokens_by_blocks) for one in every)
    for number, most in enumerate(mixed.text_tokens_by_blocks):
        assert most == max(dict(enumerate(one.text_tokens_by_blocks)).get(number, 0) for one in every)
    for rate in (0.01, 0.15, 0.7):
        for halves in (1, 2):
            assert slots_needed(mixed, rate, halves) == max(slots_needed(one, rate, halves) for one in every)
    prints = [
        MixedRows(some, weights).manifest.fingerprint
        for some, weights in ((parts, (3, 1, 1)), (parts, (1, 3, 1)), (parts[::-1], (1, 1, 3)), (parts[:2], (3, 1)))
    ]
    assert prints[0] == mixed.fingerprint and len({*prints, *(one.fingerprint for one in every)}) == 7
    assert MixedRows(parts, (6, 2, 2)).manifest.fingerprint == mixed.fingerprint, "the same mixture"


def test_what_does_not_fit_is_named_at_once(parts: list[Rows], tmp_path: pathlib.Path) -> None:
    other: Any = WordPieceVocabulary([*VOCABULARY.files()["vocab.txt"].decode().split()[:100]])
    write_rows(tmp_path / "short", [[block([3], 0, 10)]], other, 16, ("entities",))
    short = open_rows(tmp_path / "short")
    with pytest.raises(ValueError) as refused:
        MixedRows([parts[0], short], (1, 0, float("nan")))
    said = str(refused.value).splitlines()
    assert len(said) == 5
    assert said[0].startswith(f"{short.folder} has rows of length 16, ") and "has 48: prepare them alike" in said[0]
    assert "the vocabulary" in said[1] and other.fingerprint[:16] in said[1] and VOCABULARY.fingerprint[:16] in said[1]
    assert "the tags ['entities']" in said[2] and "verbs" in said[2]
    assert said[3] == "3 weights for 2 folders: give one each"
    assert said[4] == "weights are (1, 0, nan): expected numbers above 0"
    for weights in ((1.0, -1.0), (1.0, math.inf), (0.0, 1.0)):
        with pytest.raises(ValueError, match=r"weights are .* expected numbers above 0"):
            MixedRows(parts[:2], weights)
    empty: Any = Rows.__new__(Rows)
    empty.folder = tmp_path / "empty"
    empty.manifest = dataclasses.replace(parts[0].manifest, rows=0)
    with pytest.raises(ValueError, match="empty holds no rows: leave it out"):
        MixedRows([parts[0], empty], (1.0, 1.0))


def test_a_small_folder_is_read_epoch_by_epoch() -> None:
    """The first draws of a folder are its rows, each once, then each once again: also inside a cycle."""
    share_F = shares([0.5, 0.5])
    drawn, epochs = zip(*(mixed_rows(3, step, 100, (150, 10_000), share_F) for step in range(12)), strict=True)
    index, epoch = np.concatenate(drawn), np.concatenate(epochs)
    own, times = index[index < 150], epoch[index < 150]
    assert (np.diff(times) >= 0).all() and len(own) > 450
    for number in range(3):
        assert sorted(own[times == number].tolist()) == list(range(150))


STAGES = {
    "other weights": ((3, 1), [MixtureStage(7, (1, 1)), MixtureStage(100, (1, 3, 0))]),
    "one more folder": ((3, 1), [MixtureStage(7, (3, 1, 2))]),
    "from one folder": ((1,), [MixtureStage(7, (2, 1, 1)), MixtureStage(90, (0, 1, 0))]),
}


@pytest.mark.parametrize(("weights", "stages"), STAGES.values(), ids=STAGES)
def test_rows_go_on_through_the_stages_of_a_mixture(
    parts: list[Rows], weights: tuple[float, ...], stages: list[MixtureStage]
) -> None:
    """Each folder's rows are read once an epoch, whatever the stage; weights hold in each; before the first nothing changes."""
    staged, batch = MixedRows(parts, weights, stages), 1_000
    read = np.zeros(66, np.int64)
    begins = [0, *(stage.begin for stage in stages), 160]
    first = np.cumsum([0, *staged.sizes])
    for number, (begin, end) in enumerate(zip(begins, begins[1:], strict=False)):
        before = [int(read[low:high].sum()) for low, high in zip(first, first[1:], strict=False)]
        counts = np.zeros(3, np.int64)
        for step in range(begin, end):
            index_B, epoch_B = staged.global_rows(5, step, batch)
            for index, epoch in zip(index_B.tolist(), epoch_B.tolist(), strict=True):
                folder = int(np.searchsorted(first, index, side="right")) - 1
                assert epoch == (before[folder] + counts[folder]) // staged.sizes[folder]
                counts[folder] += 1
                read[index] += 1
        wanted = shares([*weights, 0, 0][:3] if number == 0 else [*stages[number - 1].weights, 0][:3]) / CYCLE
        assert np.abs(counts / counts.sum() - wanted).max() < 0.03
        assert ((counts == 0) == (wanted == 0)).all()
    for low, high in zip(first, first[1:], strict=False):
        assert read[low:high].max() - read[low:high].min() <= 1, "no row twice before all have been read"
    begun = MixedRows(parts[: len(weights)], weights)
    for step in range(7):
        alone = global_rows(5, step, batch, 40) if len(weights) == 1 else begun.global_rows(5, step, batch)
        np.testing.assert_array_equal(staged.global_rows(5, step, batch), alone)
    expected = parts[0].manifest if len(weights) == 1 else begun.manifest
    assert staged.manifest.fingerprint == expected.fingerprint


def test_a_temperature_reads_small_folders_more_often(parts: list[Rows]) -> None:
    flat = MixedRows(parts, temperature=2)
    assert flat.share_F.tolist() == shares([size**0.5 for size in (40, 17, 9)]).tolist()
    assert MixedRows(parts, temperature=1).share_F.tolist() == MixedRows(parts).share_F.tolist()


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([MixtureStage(5, (1, 1, 1, 1))], "stage 5 has 4 weights for 3 folders"),
        ([MixtureStage(5, (1, 1, 1)), MixtureStage(5, (2, 1, 1))], "stages begin at 5, 5: expected rising steps"),
        ([MixtureStage(0, (1, 1, 1))], "stages begin at 0: expected rising steps above 0"),
        ([MixtureStage(5, (0, 0, 0))], "weights are (0, 0, 0): expected numbers of 0 and more, one of them above 0"),
    ],
)
def test_stages_that_cannot_be_are_said(parts: list[Rows], stages: list[MixtureStage], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        MixedRows(parts, (), stages)


def test_stages_are_parsed() -> None:
    assert stage_of("20000:1,0.5,0") == MixtureStage(20_000, (1, 0.5, 0))
    with pytest.raises(ValueError, match="expected STEP:WEIGHT"):
        stage_of("20000")
