"""Metrics files survive a kill; the progress line says what a person wants to know."""

import dataclasses
import json
import os
import pathlib
import struct
import types
from typing import Any

import numpy as np
import pytest

from spanjax.training import metrics
from spanjax.training.metrics import JsonLines, ResilientWriter, TensorBoard, format_duration, progress_line
from spanjax.training.trackers import read_records
from tests.disk import files_of_at_most


def test_lines_after_the_restored_step_and_half_lines_are_cut(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a": 3}\n{"step": 4, "a"')
    writer = JsonLines(path, resumed_from=2)
    writer.write(3, {"a": 30.0})
    writer.close()
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 2, 30.0]


def events(folder: pathlib.Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of every scalar in a folder, in the order of the files."""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    found = []
    for file in sorted(folder.iterdir()):
        content, place = file.read_bytes(), 0
        while place + 12 <= len(content):
            (size,) = struct.unpack("<Q", content[place : place + 8])
            event = Event.FromString(content[place + 12 : place + 12 + size])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            place += 16 + size
    return found


def test_tensorboard_holds_the_scalars(tmp_path: pathlib.Path) -> None:
    writer = TensorBoard(tmp_path, resumed_from=2)
    writer.write(3, {"train/mlm/loss": 0.5, "train/skipped": 0.0})
    writer.close()
    assert events(tmp_path) == [(3, "train/mlm/loss", 0.5), (3, "train/skipped", 0.0)]


def test_a_full_disk_is_said_once_and_records_go_on_when_there_is_space(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FLUSH_SECONDS", 0.0)
    lines = ResilientWriter("metrics.jsonl", lambda last: JsonLines(tmp_path / "metrics.jsonl", last), 0)
    board = ResilientWriter("tensorboard", lambda last: TensorBoard(tmp_path / "tensorboard", last), 0)
    for step in range(1, 21):
        with files_of_at_most(400 if 8 <= step < 15 else 10**9):
            for writer in (lines, board):
                writer.write(step, {"train/mlm/loss": step / 2})
    for writer in (lines, board):
        writer.close()
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2 and said[0].startswith(
        "metrics.jsonl cannot be written ([Errno 27] File too large): training"
    )
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and {*range(1, 8), *range(15, 21)} <= set(steps)
    assert {*range(1, 6), *range(15, 21)} <= {step for step, _, _ in events(tmp_path / "tensorboard")}


def test_a_writer_that_cannot_be_opened_does_not_stop_a_run(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file")
    writer = ResilientWriter("metrics.jsonl", lambda last: JsonLines(folder / "metrics.jsonl", last), 0)
    writer.write(1, {"a": 1.0})
    folder.unlink()
    folder.mkdir()
    writer.write(2, {"a": 2.0})
    writer.close()
    assert json.loads((folder / "metrics.jsonl").read_text()) == {"step": 2, "a": 2.0}

    def missing(last: int) -> Any:
        raise ModuleNotFoundError("tensorboardX")

    with pytest.raises(ModuleNotFoundError):
        ResilientWriter("tensorboard", missing, 0)


def test_progress_line() -> None:
    values = {"train/mlm/loss": 2.5, "train/mlm/accuracy": 0.5, "speed/tokens_per_s": 1234.6, "speed/data_wait": 0.02}
    line = progress_line(10, 1000, {**values, "speed/eta_s": 3725.0})
    assert line == "step 10/1,000  mlm 2.500  mlm acc 50.0%  1,235 tokens/s  data wait 2% (compute-bound)  ETA 1h02m"
    line = progress_line(10, 1000, {**values, "speed/data_wait": 0.06, "speed/mfu": 0.41, "speed/goodput": 0.934})
    assert "data wait 6% (data-bound)  MFU 41%  goodput 93%" in line
    assert progress_line(10, 1000, {"train/skipped": 2.0}) == "step 10/1,000  2 skipped (not finite)"


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "7s"), (95, "1m35s"), (3725, "1h02m"), (-1, "0s")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_flops_are_the_formula_of_the_sheet() -> None:
    """SpanBERT base, one full row of 512 tokens with 77 slots: 311.6 GFLOP, large 1,034.5, as computed by hand."""
    from configs.encoders import BASE, LARGE
    from spanjax.objectives.masked_lm import MaskedPrediction

    for encoder, expected in ((BASE, 311.6), (LARGE, 1034.5)):
        encoder = dataclasses.replace(encoder, vocab_size=28_996)
        assert MaskedPrediction().flops(encoder, 512, 512**2, 77) / 1e9 == pytest.approx(expected, abs=0.06)


def test_sizes_of_a_batch_are_counted_block_by_block() -> None:
    from spanjax.data.feed.batch import batch_sizes

    batch: Any = {
        "segments_BL": np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], np.int32),
        "slot_weight_BK": np.array([[1, 1], [1, 0], [0, 0]], np.float32),
    }
    assert batch_sizes(batch) == (11, 9 + 4 + 36, 3)


def test_an_error_in_our_own_code_is_not_taken_for_a_full_disk(tmp_path: pathlib.Path) -> None:
    lines = ResilientWriter("metrics.jsonl", lambda last: JsonLines(tmp_path / "metrics.jsonl", last), 0)
    with pytest.raises(TypeError, match="not JSON serializable"):
        lines.write(1, {"train/loss": {1.0}})  # pyright: ignore[reportArgumentType]
    lines.close()


def test_lines_that_are_no_records_are_cut_off(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "x": 2.0}\n[1]\n3\n{"step": "x"}\n{"step": null}\n{"st')
    lines = JsonLines(path, 5)
    lines.write(6, {"x": 1.0})
    lines.close()
    assert path.read_text() == '{"step": 1, "x": 2.0}\n{"step": 6, "x": 1.0}\n'


@pytest.mark.parametrize(
    "bad", [b'{"step": 2, "x": \xff}', b"[1]", b'{"step": 1' + b"0" * 400 + b"}", b"[" * 100_000, b'{"step": 2']
)
def test_a_damaged_line_costs_one_record(bad: bytes, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once and mended; a run whose metrics have one goes on writing."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "x": 1.0}\n' + bad + b'\n{"step": 3, "x": 3.0}\n{"st')
    for last in (3, 4):
        lines = ResilientWriter("metrics.jsonl", lambda last: JsonLines(path, last), last)
        lines.write(last + 1, {"x": 0.5})
        lines.close()
    assert [json.loads(line)["step"] for line in path.read_bytes().splitlines()] == [1, 3, 4, 5]
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == f"{path}: 1 damaged line(s) dropped, the others are kept (line 2)"


def test_utilisation_is_known_for_known_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics.utilisation(1.0) == {}, "a CPU has no data sheet here"
    kinds = {"NVIDIA H200": 989.0, "TPU v5 lite": 197.0, "TPU v5p": 459.0}
    for kind, peak in kinds.items():
        monkeypatch.setattr(metrics.jax, "devices", lambda kind=kind: [types.SimpleNamespace(device_kind=kind)])
        monkeypatch.setattr(metrics.jax, "device_count", lambda: 4)
        assert metrics.utilisation(2 * peak) == {"speed/mfu": 0.5}


def test_an_evaluation_that_is_made_again_is_one_record(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for _ in range(2):
        lines = JsonLines(file, resumed_from=2)
        lines.write(2, {"eval/loss": 1.5})
        lines.write(3, {"train/loss": 1.0})
        lines.close()
    assert file.read_text().splitlines() == ['{"step": 2, "eval/loss": 1.5}', '{"step": 3, "train/loss": 1.0}']
    lines = JsonLines(file, resumed_from=2)
    lines.write(2, {"train/loss": 2.0})
    lines.close()
    assert len(file.read_text().splitlines()) == 2, "a record of another kind is written"


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_the_file_does_not_block(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    lines = ResilientWriter("metrics.jsonl", lambda last: JsonLines(tmp_path / "metrics.jsonl", last), 0)
    lines.write(1, {"x": 1.0})
    assert "metrics.jsonl is a pipe, expected a file" in caplog.text
    assert list(read_records(tmp_path / "metrics.jsonl")) == []
    (tmp_path / "metrics.jsonl").unlink()
    lines.write(2, {"x": 1.0})
    lines.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 2, "x": 1.0}\n'
