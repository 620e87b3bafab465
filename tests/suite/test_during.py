"""The quick suite inside of a pretraining run: figures in metrics.jsonl, curves in the report, messages."""

import pathlib
from unittest import mock

import pytest

from spanjax import report, train
from spanjax.suite.during import probe_problems
from spanjax.training.loop import Cadence
from tests.running import ROOT, records, shrunk
from tests.suite.made_data import made_folder


@pytest.mark.slow
def test_figures_of_a_run_and_their_curves(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data, run = made_folder(tmp_path / "data", size=1200), tmp_path / "run"
    words = shrunk(str(ROOT / "configs/pretrain/tiny.py"), rows_folder, run, 4, "--data.feed=numpy")
    probes = ["--cadence.probe-every", "2", "--cadence.probe-data", str(data)]
    assert train.main([*words, *probes]) == 0
    for part in ("tags", "entities", "relations", "sentences", "similarity", "pairs", "fills"):
        assert records(run, f"eval/probe/{part}").keys() == {2, 4}
    # the run ends as one without probes: they change nothing that is trained
    plain = tmp_path / "plain"
    assert train.main(shrunk(str(ROOT / "configs/pretrain/tiny.py"), rows_folder, plain, 4, "--data.feed=numpy")) == 0
    assert records(run, "train/mlm/loss") == records(plain, "train/mlm/loss")
    page = tmp_path / "report.html"
    assert report.main([str(run), "--output", str(page), "--rows", "5", "--examples", "0"]) == 0
    assert "probe/tags" in page.read_text() and "<svg" in page.read_text()


def test_problems(tmp_path: pathlib.Path) -> None:
    assert probe_problems(Cadence()) == []
    (problem,) = probe_problems(Cadence(probe_every=5, probe_data=str(tmp_path / "none")))
    assert "expected the data folder" in problem
    (problem,) = probe_problems(Cadence(probe_every=5, probe_data=str(tmp_path)))
    assert "no file of any part" in problem
    with mock.patch.dict("sys.modules", {"sklearn": None}):
        (problem,) = probe_problems(Cadence(probe_every=5, probe_data=str(tmp_path)))
    assert "pip install 'spanjax[suite]'" in problem
