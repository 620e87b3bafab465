"""Models that packages bring: found by name by the API, the commands and `--init-from`; faults of such a package."""

import json
import pathlib

import pytest

import spanjax
from spanjax.predict import main as predict
from spanjax.pretrained.load import load_model
from spanjax.pretrained.packaged import GROUP, packaged_folder, packaged_models
from tests.trained import trained

NAME = "tiny-spans"


@pytest.fixture
def installed(run_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A distribution on the path whose module names the folder of a run; returns the folder of the distribution."""
    site = tmp_path / "site"
    described = site / "tiny_spans-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-spans\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = tiny_spans_of_test:FOLDER\n")
    (site / "tiny_spans_of_test.py").write_text(f"FOLDER = {str(run_folder)!r}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(__import__("sys").modules, "tiny_spans_of_test", raising=False)
    monkeypatch.chdir(tmp_path)
    return site


def test_found_by_its_name(installed: pathlib.Path, run_folder: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    assert NAME in packaged_models() and packaged_folder(NAME) == run_folder
    texts = ["the long time"]
    assert (spanjax.load(NAME).encode(texts) == spanjax.load(run_folder).encode(texts)).all()
    assert predict(["fill-mask", NAME, "--text", "the [MASK] time", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["masks"][0]["position"] == 2


def test_an_existing_path_goes_first(installed: pathlib.Path) -> None:
    (pathlib.Path.cwd() / NAME).mkdir()
    with pytest.raises(ValueError, match=f"{NAME} holds none of them"):
        load_model(NAME)


def test_a_run_starts_from_it_and_resumes(
    installed: pathlib.Path, rows_folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    workdir = trained(rows_folder, tmp_path / "continued", f"--init-from={NAME}", "--seed=1")
    assert json.loads((workdir / "run.json").read_text())["init_from"] == NAME
    trained(rows_folder, workdir, f"--init-from={NAME}", "--seed=1")
    models = [load_model(folder) for folder in (run_folder, workdir)]
    # rows behind the vocabulary only pad the table: no training reads them
    used = slice(models[0].encoder.vocab_size)
    start, continued = (model.params["encoder"]["embeddings"]["token"]["embedding"][used] for model in models)
    # other than the seed's own weights, which are 0.1 and more away
    assert abs(continued - start).max() < 1e-3


@pytest.mark.parametrize(
    ("module", "message"),
    (
        ("FOLDER = '/nowhere'\n", "lacks its folder /nowhere"),
        ("", "has no attribute 'FOLDER'"),
        ("import a_module_that_nobody_has\n", "No module named 'a_module_that_nobody_has'"),
        ("FOLDER = None\n", "cannot be read"),
    ),
)
def test_a_damaged_package(installed: pathlib.Path, module: str, message: str) -> None:
    (installed / "tiny_spans_of_test.py").write_text(module)
    with pytest.raises(ValueError, match="the installed model tiny-spans") as error:
        load_model(NAME)
    assert message in str(error.value) and "install its package again" in str(error.value)


def test_an_unknown_name(installed: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"nobody does not exist: .* or an installed model"):
        load_model("nobody")
