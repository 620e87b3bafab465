"""Metrics files survive a kill; the progress line says what a person wants to know."""

import dataclasses
import json
import pathlib
import types
from typing import Any

import numpy as np
import pytest

from spanjax.training import metrics
from spanjax.training.metrics import JsonLines, format_duration, progress_line


def test_lines_after_the_restored_step_and_half_lines_are_cut(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a": 3}\n{"step": 4, "a"')
    writer = JsonLines(path, resumed_from=2)
    writer.write(3, {"a": 30.0})
    writer.close()
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 2, 30.0]


def test_progress_line() -> None:
    values = {"train/mlm/loss": 2.5, "train/mlm/accuracy": 0.5, "speed/tokens_per_s": 1234.6, "speed/data_wait": 0.02}
    line = progress_line(10, 1000, {**values, "speed/eta_s": 3725.0})
    assert line == "step 10/1,000  mlm 2.500  mlm acc 50.0%  1,235 tokens/s  data wait 2%  ETA 1h02m"


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "7s"), (95, "1m35s"), (3725, "1h02m"), (-1, "0s")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_flops_are_the_formula_of_the_sheet() -> None:
    """SpanBERT base, one full row of 512 tokens with 77 slots: 311.6 GFLOP, large 1,034.5, as computed by hand."""
    from configs.encoders import BASE, LARGE
    from spanjax.objectives.masked import MaskedPrediction

    for encoder, expected in ((BASE, 311.6), (LARGE, 1034.5)):
        encoder = dataclasses.replace(encoder, vocab_size=28_996)
        assert MaskedPrediction().flops(encoder, 512, 512**2, 77) / 1e9 == pytest.approx(expected, abs=0.06)


def test_sizes_of_a_batch_are_counted_block_by_block() -> None:
    from spanjax.data.batch import batch_sizes

    batch: Any = {
        "segments_BL": np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], np.int32),
        "slot_weight_BK": np.array([[1, 1], [1, 0], [0, 0]], np.float32),
    }
    assert batch_sizes(batch) == (11, 9 + 4 + 36, 3)


def test_utilisation_is_known_for_known_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics.utilisation(1.0) == {}, "a CPU has no data sheet here"
    kinds = {"NVIDIA H200": 989.0, "TPU v5 lite": 197.0, "TPU v5p": 459.0}
    for kind, peak in kinds.items():
        monkeypatch.setattr(metrics.jax, "devices", lambda kind=kind: [types.SimpleNamespace(device_kind=kind)])
        monkeypatch.setattr(metrics.jax, "device_count", lambda: 4)
        assert metrics.utilisation(2 * peak) == {"speed/mfu": 0.5}
