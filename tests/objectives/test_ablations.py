"""The ablations' arms differ in what the paper's tables say, and in nothing else; they read the same rows at the same steps."""

import ast
import dataclasses
import pathlib

import numpy as np
import pytest

from spanjax import train
from spanjax.data.feed.host_slice import HostShare
from spanjax.objectives.base import Pretraining
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.run import Run, load
from spanjax.run_format import describe, differences
from tests.data.numbered_rows import random_rows
from tests.running import ROOT, records, shrunk

BASE = "configs/ablations/base.py"
ARMS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "configs" / "ablations").glob("table*.py"))
TABLES = {
    "table6": {"subword_tokens", "whole_words", "named_entities", "noun_phrases", "geometric_spans"},
    "table7": {"two_sequences", "single_sequence", "single_sequence_sbo"},
}
MAY_DIFFER = ("masking", "pairing", "terms")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def objective(path: str) -> MaskedPrediction:
    found = load(path).objective
    assert isinstance(found, MaskedPrediction)
    return found


def changed(path: str) -> set[str]:
    """The settings of an arm that are not those of the base."""
    before, now = load(BASE), load(path)
    found = {field.name for field in dataclasses.fields(Run) if getattr(before, field.name) != getattr(now, field.name)}
    if "objective" in found:
        one, two = objective(BASE), objective(path)
        inside = {f.name for f in dataclasses.fields(one) if getattr(one, f.name) != getattr(two, f.name)}
        found = found - {"objective"} | {f"objective.{name}" for name in inside}
    return found


def test_there_is_an_arm_for_every_row_of_both_tables() -> None:
    assert {pathlib.Path(path).stem for path in ARMS} == {f"{t}_{row}" for t, rows in TABLES.items() for row in rows}


@pytest.mark.parametrize("path", [BASE, *ARMS])
def test_arm_is_a_lab_note_without_problems(path: str) -> None:
    note = ast.get_docstring(ast.parse((ROOT / path).read_text()))
    assert note and f"--config {path}" in note and "Expect" in note and "--tags entities noun_phrases" in note
    run = load(path)
    assert run.problems() == []
    assert (run.steps, run.batch_size, run.encoder.hidden_size) == (1_200_000, 256, 768)


def test_arms_differ_from_the_base_in_what_their_table_compares() -> None:
    found = {pathlib.Path(path).stem: changed(path) for path in ARMS}
    assert found == {
        "table6_subword_tokens": {"objective.masking"},
        "table6_whole_words": {"objective.masking"},
        "table6_named_entities": {"objective.masking"},
        "table6_noun_phrases": {"objective.masking"},
        "table6_geometric_spans": set(),
        "table7_two_sequences": set(),
        "table7_single_sequence": {"objective.pairing", "objective.terms"},
        "table7_single_sequence_sbo": {"objective.pairing", "objective.terms"},
    }
    maskings = {objective(path).masking for path in ARMS if "table6" in path}
    assert len(maskings) == 5, "every arm of table 6 masks in a way of its own"
    assert {(masking.rate, masking.schedule) for masking in maskings} == {(0.15, ())}


@pytest.mark.parametrize("path", ARMS)
def test_a_resolved_run_differs_in_nothing_else(path: str) -> None:
    """What run.json would say, setting by setting."""
    lines = differences(describe(load(BASE)), describe(load(path)))
    assert all(line.strip().startswith(tuple(f"objective.{name}." for name in MAY_DIFFER)) for line in lines), lines


def test_arms_read_the_same_rows_at_the_same_steps(tmp_path: pathlib.Path) -> None:
    rows = random_rows(tmp_path, 0, 50, 64, 9)
    order = [(0, 1), (6, 7), (1_000_000, 1_000_001)]
    base = load(BASE)
    expected = None
    for path in ARMS:
        run = load(path)
        assert isinstance(run.objective, Pretraining)
        spec = run.objective.feed_spec(seed=run.seed, batch_size=8, order=run.data.order)
        share = HostShare(rows, spec)
        found = [share.global_rows(step) for steps in order for step in steps]
        assert run.seed == base.seed
        for step, (index_B, epoch_B) in zip((step for steps in order for step in steps), found, strict=True):
            keys = share.read(step)[1]
            np.testing.assert_array_equal(keys.index_B, index_B)
            np.testing.assert_array_equal(keys.epoch_B, epoch_B)
        expected = expected or found
        np.testing.assert_array_equal(found, expected)


def test_arms_of_table_6_read_the_same_pairs(tmp_path: pathlib.Path) -> None:
    """The pairs are drawn apart from the masks: only what is masked differs."""
    rows = random_rows(tmp_path, 0, 50, 64, 9)
    read = []
    for path in (path for path in ARMS if "table6" in path):
        run = load(path)
        assert isinstance(run.objective, Pretraining)
        spec = run.objective.feed_spec(seed=run.seed, batch_size=8, order=run.data.order)
        read.append(HostShare(rows, spec).read(3)[0])
    for other in read[1:]:
        for one, two in zip(read[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
    assert read[0].pair_weight_BP.sum() > 4


@pytest.mark.slow  # test_configs runs every arm; this one looks at the loss of pairs as well
def test_pulse(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    """Pairs and tags through the whole of a run: two steps, a checkpoint, and on from it."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for seed, (part, count) in enumerate({"train": 40, "validation": 12}.items()):
        random_rows(tmp_path / part, seed, count, 64, 9)
        (tmp_path / part / "rows").rename(folder / part)
    config = "configs/ablations/table6_named_entities.py"
    arguments = shrunk(config, folder, tmp_path / "run", 2, "--data.feed=numpy")
    arguments = [word for word in arguments if "position-size" not in word]
    assert train.main(arguments) == 0
    losses = records(tmp_path / "run", "train/nsp/loss")
    assert set(losses) == {1, 2}
    assert all(abs(loss - np.log(2)) < 0.2 for loss in losses.values()), losses
    capsys.readouterr()
    assert train.main(arguments) == 0
    assert "from step 2" in capsys.readouterr().out
