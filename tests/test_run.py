"""Config files: what they leave behind when they are loaded, and classes that they define themselves."""

import importlib.util
import json
import pathlib
import sys

import pytest

from spanjax import convert, predict, run_format, train
from spanjax.nn.config import EncoderConfig
from spanjax.pretrained.load import load_model
from spanjax.run import MOVED, Run, load, named_run
from spanjax.run_format import describe
from spanjax.training.redaction import redacted
from spanjax.training.workdir import claim_workdir
from tests.running import ROOT, records, shrunk

OWN = '''"""A masking policy, a loss term and an objective of a user's own, under postponed annotations."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib

import numpy as np

from configs.pretrain.tiny import RUN as TINY
from spanjax.data.feed.masking import MaskingPolicy
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.objectives.loss_terms import MaskedTokens, SpanBoundary


@dataclasses.dataclass(frozen=True)
class FirstTokens(MaskingPolicy):
    """Masks the first text tokens of every block."""

    skip: int = 0
    """Text tokens of a block that are never masked, from its first on."""

    def masked_places(self, rows, specials, key_B, rate_B):
        """Places of those tokens."""
        found = []
        for row, (tokens_L, segments_L) in enumerate(zip(rows.tokens_BL, rows.segments_BL)):
            for block in range(1, int(segments_L.max(initial=0)) + 1):
                text = np.flatnonzero((segments_L == block) & (tokens_L != specials.cls) & (tokens_L != specials.sep))
                count = int(np.ceil(rate_B[row] * len(text)))
                found += [row * rows.tokens_BL.shape[1] + place for place in text[self.skip : self.skip + count]]
        return np.array(found, np.int64)


@dataclasses.dataclass(frozen=True)
class OwnTokens(MaskedTokens):
    """The masked language model under a name of its own."""

    sharpness: float = 1.0
    """What the vectors are multiplied by."""

    @property
    def name(self) -> str:
        """Name in metrics and parameter paths."""
        return "own"

    def vectors(self, head, hidden_BLD, batch):
        """Those of MaskedTokens, scaled."""
        return self.sharpness * super().vectors(head, hidden_BLD, batch)


@dataclasses.dataclass(frozen=True)
class OwnPrediction(MaskedPrediction):
    """Masked prediction with a factor before every loss."""

    factor: float = 1.0
    """What the weight of every loss is multiplied by."""

    def loss_weights(self) -> dict[str, float]:
        """The weights of the terms times the factor."""
        return {name: self.factor * weight for name, weight in super().loss_weights().items()}


RUN = dataclasses.replace(TINY, objective=OwnPrediction(masking=FirstTokens(), terms=(OwnTokens(), SpanBoundary())))
'''


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def own_config(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return str(path)


def test_settings_of_own_classes_are_flags(own_config: str) -> None:
    flags = ["--objective.factor=2", "--objective.masking.skip=3", "--objective.terms.0.sharpness=0.5"]
    run = train.parse([f"--config={own_config}", *flags]).run
    assert (run.objective.factor, run.objective.masking.skip, run.objective.terms[0].sharpness) == (2, 3, 0.5)
    assert type(run.objective).__module__ in sys.modules


@pytest.mark.slow
def test_a_config_of_own_classes_trains_resumes_and_is_named_by_whoever_reads_it(
    own_config: str,
    rows_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workdir, more = tmp_path / "run", ("--data.feed=numpy", "--objective.factor=0.5")
    saved = "--cadence.checkpoint-every=2"
    assert train.main(shrunk(own_config, rows_folder, workdir, 2, *more, saved)) == 0
    written = json.loads((workdir / "run.json").read_text())["objective"]
    assert (written["class"], written["factor"]) == ("OwnPrediction", 0.5)
    assert written["masking"]["class"] == "FirstTokens" and written["terms"][0]["class"] == "OwnTokens"
    assert set(records(workdir, "train/own/loss")) == {1, 2}

    description = json.loads((workdir / "run.json").read_text())
    (workdir / "run.json").write_text(json.dumps(description | {"steps": 3}))
    assert train.main(shrunk(own_config, rows_folder, workdir, 3, *more, saved)) == 0
    assert set(records(workdir, "train/own/loss")) == {1, 2, 3}
    capsys.readouterr()

    monkeypatch.setattr(run_format, "CODE", {})  # as in another process
    said = "classes that are not spanjax's: OwnPrediction (own.py), FirstTokens (own.py), OwnTokens (own.py)"
    assert predict.main(["spans", str(workdir), "--text", "the old sailor", "--hide", "sailor"]) == 0
    assert said in capsys.readouterr().err
    assert convert.main(["to-torch", str(workdir), str(tmp_path / "out")]) == 0
    written = capsys.readouterr().out
    assert said in written and "own skipped: transformers has no class with such a head" in written
    assert load_model(tmp_path / "out").parts == {"encoder", "sbo"}


def test_files_of_one_stem_and_a_file_loaded_twice_keep_their_own_classes(tmp_path: pathlib.Path) -> None:
    text = "import dataclasses\nfrom spanjax.run import Run\n\n@dataclasses.dataclass(frozen=True)\nclass Own(Run):\n"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text(f'{text}    {name}: int = 1\n    """A setting."""\n\nRUN = Own()\n')
    kinds = [type(load(str(tmp_path / name / "own.py"))) for name in ("a", "b", "a")]
    for name, kind in zip(("a", "b", "a"), kinds, strict=True):
        assert sys.modules[kind.__module__].Own is kind and name in kind.__dataclass_fields__
    assert len({kind.__module__ for kind in kinds}) == 3


@pytest.mark.parametrize("content", ["from configs.encoders import BERT_BASE\nraise KeyError('x')", "RUN = 3", "1 +"])
def test_a_config_that_fails_leaves_nothing_behind(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / "configs").mkdir()
    path = tmp_path / "configs" / "own.py"
    path.write_text(content)
    before = ({name for name in sys.modules if "own" in name}, list(sys.path))
    with pytest.raises(ValueError, match="own.py"):
        load(str(path))
    assert ({name for name in sys.modules if "own" in name}, sys.path) == before


def test_configs_import_their_neighbours_and_leave_the_path_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project" / "configs"
    (folder / "own_part").mkdir(parents=True)
    (folder / "own_part" / "base.py").write_text("from spanjax.run import Run\nRUN = Run(seed=7)\n")
    (folder / "own.py").write_text("from configs.own_part.base import RUN as BASE\nRUN = BASE\n")
    before = list(sys.path)
    assert load(str(folder / "own.py")).seed == 7
    assert sys.path == before


def test_a_run_whose_settings_hold_a_secret_resumes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 wrote it as it was."""
    monkeypatch.setenv("MY_TOKEN", "hushhush")
    described = json.loads(json.dumps(describe(Run(init_from="runs/hushhush"))))
    (tmp_path / "run.json").write_text(json.dumps(described))
    assert claim_workdir(tmp_path, redacted(described)) == redacted(described)
    (tmp_path / "run.json").unlink()
    for _ in range(2):
        assert claim_workdir(tmp_path, redacted(described))["init_from"] == "runs/***"
    assert "hushhush" not in (tmp_path / "run.json").read_text()


def test_a_config_of_the_version_before_is_told_where_its_classes_are(tmp_path: pathlib.Path) -> None:
    for old, new in MOVED.items():
        file = tmp_path / "config.py"
        file.write_text(f"import {old}\n")
        with pytest.raises(ValueError, match=rf"No module named '{old}' \(line 1\); write {new} there"):
            load(str(file))
        assert importlib.util.find_spec(new), new


def test_old_names_of_encoder_settings_are_refused_with_the_new_ones(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError) as caught:
        named_run(["--encoder.groups=1", "--encoder.no-relative", "--encoder.layers", "2", "--encoder.rotary", "1e4"])
    assert str(caught.value).splitlines() == [
        "--encoder.groups was renamed: write --encoder.num-layer-groups",
        "--encoder.no-relative was renamed: write --encoder.no-relative-attention",
        "--encoder.rotary was renamed: write --encoder.rope-theta",
    ]
    for old, new in EncoderConfig.RENAMED.items():
        file = tmp_path / "config.py"
        file.write_text(f"from spanjax.nn.config import EncoderConfig\nEncoderConfig({old}=1)\n")
        with pytest.raises(ValueError, match=rf"unexpected keyword argument '{old}' \(line 2\); write {new} there"):
            load(str(file))
