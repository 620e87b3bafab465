"""Runs with a batch-size warm-up: updates are those of small batches, sizes are compiled first, totals count rows."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.data.feed.pairing import FullSentences
from spanjax.experiment.pretrain import open_pretraining_session
from spanjax.experiment.sweep import equal_steps
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.objectives.xlnet import PermutedPrediction
from spanjax.run import Data, Run
from spanjax.tasks.glue import Glue
from spanjax.training.step import SeededStep
from tests.made import tiny_encoder
from tests.running import records, shrunk

STAGES = ("0:4", "4:8")


def tiny(rows: pathlib.Path, **settings: Any) -> Run:
    encoder = tiny_encoder(vocab_size=0, hidden_size=16, heads=2, intermediate_size=32, positions=128)
    given = {"data": Data(rows=(str(rows),), feed="numpy"), "encoder": encoder, "steps": 10, "batch_size": 8} | settings
    return Run(batch_warmup=STAGES, **given)


@pytest.mark.slow
def test_small_updates_are_those_of_a_run_with_small_batches(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Four updates of 4 rows have the losses, gradients and rates of batch_size 4; then whole batches follow."""
    more = ("--data.feed=numpy", "--cadence.log-every=1", "--cadence.eval-every=0")
    for name, given in {
        "small": ("--batch-size=4",),
        "warm": ("--batch-size=8", "--batch-warmup", *STAGES),
        "large": ("--batch-size=8",),
    }.items():
        assert train.main(shrunk("configs/pretrain/demo.py", rows_folder, tmp_path / name, 6, *more, *given)) == 0
    for key in ("train/mlm/loss", "train/sbo/loss", "train/gradient_norm", "train/learning_rate", "data/masked"):
        small, warm = (records(tmp_path / name, key) for name in ("small", "warm"))
        assert [small[step] for step in range(1, 5)] == [warm[step] for step in range(1, 5)], key
    rates = [records(tmp_path / name, "train/learning_rate") for name in ("warm", "large")]
    assert rates[0] == rates[1], "a function of the update"
    fills = [records(tmp_path / name, "data/fill") for name in ("warm", "large")]
    assert fills[0][5] == fills[1][3], "the fifth update has the third batch"


def test_all_sizes_to_come_are_compiled_before_the_first_step(
    rows_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, lowered = open_pretraining_session(tiny(rows_folder)), list[int]()

    class Compiled:
        def compile(self) -> Any:
            return lambda state, batch, seed: (lowered[-1], len(batch["row_B"]))

    monkeypatch.setattr(SeededStep, "lower", lambda _, __, batch: lowered.append(len(batch["row_B"])) or Compiled())
    step = session.open_step(0)
    assert lowered == [4, 8]
    batch = next(iter(session.feed(0)))
    assert step(None, batch) == (8, 4)  # pyright: ignore[reportArgumentType]
    lowered.clear()
    session.open_step(4)
    assert lowered == [8], "a run that resumes behind a stage does not compile it"
    short = open_pretraining_session(tiny(rows_folder, steps=3))
    lowered.clear()
    short.open_step(0)
    assert lowered == [4]


def test_totals_count_rows(rows_folder: pathlib.Path) -> None:
    """Epochs, FLOPs of steps and equal FLOPs of a sweep: 4 updates of 4 rows and 6 of 8 are 8 batches."""
    run = tiny(rows_folder)
    session = open_pretraining_session(run)
    assert run.batches == 8.0 and dataclasses.replace(run, batch_warmup=()).batches == 10
    assert session.notes[3].startswith("steps       10 of 4 up to step 4, then 8 rows = ")
    assert session.notes[3].endswith("; a program for each of 2 sizes")
    epochs = float(session.notes[3].partition(" = ")[2].partition(" ")[0])
    assert epochs == pytest.approx(8 * 8 / len(session.rows), abs=0.01)
    assert equal_steps(run, 8.0) == 10 and equal_steps(run, 0.5) == 1 and equal_steps(run, 0.0) == 1
    assert equal_steps(dataclasses.replace(run, batch_warmup=()), 7.0) == 7
    feed = iter(session.feed(3))
    small, large = next(feed), next(feed)
    whole = open_pretraining_session(dataclasses.replace(run, batch_warmup=()))
    assert session.batch_rows(3) == whole.batch_rows(1)[4:] and session.batch_rows(4) == whole.batch_rows(2)
    assert 1.2 < session.flops(large) / session.flops(small) < 8


def test_what_cannot_warm_up_says_why(rows_folder: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="only pretraining has it"):
        raise ValueError("\n".join(Run(objective=Glue(), batch_warmup=STAGES, batch_size=8).problems()))
    found = dataclasses.replace(tiny(rows_folder), batch_warmup=("0:4", "x")).problems()
    assert found == ["batch_warmup 'x': expected STEP:ROWS, the rows of an update from a step on, 0:64 say"]
    encoder = dataclasses.replace(tiny(rows_folder).encoder, relative_attention=True)
    memory = PermutedPrediction(memory=16, block=32, pairing=FullSentences())
    with pytest.raises(ValueError, match="the memory has a row for each of batch_size 8, in every update"):
        open_pretraining_session(tiny(rows_folder, objective=memory, encoder=encoder))


@dataclasses.dataclass(frozen=True)
class WithState(MaskedPrediction):
    """An objective of a user's own whose batches pass something on."""

    def recurrent_state(self, encoder: EncoderConfig, length: int, dtype: Any) -> Any:
        del encoder, length, dtype
        return {"state": np.zeros(3, np.float32)}


def test_any_recurrent_state_is_refused(rows_folder: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="WithState passes a state of batch_size rows to the next update"):
        open_pretraining_session(tiny(rows_folder, objective=WithState()))
