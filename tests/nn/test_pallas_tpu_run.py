"""A run of 300 steps with the attention kernels for TPU, interpreted: the losses of `xla`, dropout included."""

import functools
import pathlib

import pytest

from spanjax import train
from spanjax.nn import relative
from spanjax.nn.attention import pallas_tpu, tpu_relative
from tests.running import records, shrunk

DEMO, STEPS = "configs/pretrain/demo.py", 300
KEYS = ("train/mlm/loss", "train/sbo/loss", "eval/loss")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_has_the_losses_of_xla(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pallas_tpu, "supports", lambda request: None)
    monkeypatch.setattr(pallas_tpu, "verify", lambda *_: (1.0, 2.0))
    monkeypatch.setattr(pallas_tpu, "run", functools.partial(pallas_tpu.run, interpret=True))
    found = {}
    for backend in ("xla", "pallas_tpu"):
        settings = ("--compute-dtype=float32", "--encoder.dropout=0.1", "--encoder.attention-dropout=0.1")
        more = (*settings, "--cadence.log-every=10", f"--encoder.attention={backend}", "--cadence.eval-every=100")
        assert train.main(shrunk(DEMO, rows_folder, tmp_path / backend, STEPS, *more)) == 0
        found[backend] = [records(tmp_path / backend, key) for key in KEYS]
    for plain, own in zip(found["xla"], found["pallas_tpu"], strict=True):
        assert len(plain) >= 3 and own.keys() == plain.keys()
        assert list(own.values()) == pytest.approx(list(plain.values()), rel=1e-5)
    losses = list(found["xla"][0].values())
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_of_xlnet_has_the_losses_of_the_formula(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both streams, with a memory that rows read before and behind them, and dropout."""
    monkeypatch.setattr(pallas_tpu, "supports_distances", lambda request, memory: None)
    monkeypatch.setattr(relative, "verify", lambda *_: (1.0, 2.0))
    monkeypatch.setattr(tpu_relative, "run", functools.partial(tpu_relative.run, interpret=True))
    found = {}
    for backend in ("xla", "pallas_tpu"):
        settings = ("--compute-dtype=float32", "--encoder.dropout=0.1", "--encoder.attention-dropout=0.1")
        memory = ("--objective.memory=128", "--objective.block=32", "--optimizer.warmup-steps=2")
        more = (*settings, *memory, f"--encoder.attention={backend}", "--cadence.eval-every=15")
        assert train.main(shrunk("configs/pretrain/xlnet_small.py", rows_folder, tmp_path / backend, 30, *more)) == 0
        found[backend] = [records(tmp_path / backend, key) for key in ("train/plm/loss", "eval/loss")]
    for plain, own in zip(found["xla"], found["pallas_tpu"], strict=True):
        assert len(plain) >= 2 and own.keys() == plain.keys()
        assert list(own.values()) == pytest.approx(list(plain.values()), rel=1e-5)
    losses = list(found["xla"][0].values())
    assert losses[-1] < losses[0]
