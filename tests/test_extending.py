"""Classes of a user's own, in files that spanjax does not know (tests/extending), through every command; docs/extending.md."""

import json
import pathlib
import re
import shutil
import sys
from collections.abc import Callable

import pytest

from spanjax import convert, evaluate, predict, report, run_format, train
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import equal_weights
from tests.made import made_sentences
from tests.running import ROOT, finish, kill, last_step, logged_lines, records, shrunk, start, wait_for_step
from tests.test_resume import assert_same_state

OWN = ROOT / "tests" / "extending"
FILES = sorted(OWN.glob("*.py"))
PRETRAIN, SMOOTHED, TICKETS = (OWN / f"{name}.py" for name in ("pretrain", "smoothed", "tickets"))
KILLED_AFTER, STEPS = 6, 30


@pytest.fixture(autouse=True)
def in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command remembers the code of the one before."""
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the user's modules away, as a new process has them not."""
    monkeypatch.setattr(run_format, "CODE", {})
    for file in FILES:
        monkeypatch.delitem(sys.modules, file.stem, raising=False)


def resumed(arguments: Callable[[str], list[str]], folder: pathlib.Path) -> pathlib.Path:
    """Trains folder/whole for four steps, and folder/parts from what a kill after its step 2 would have left."""
    assert train.main(arguments("whole")) == 0
    shutil.copytree(folder / "whole", folder / "parts")
    shutil.rmtree(folder / "parts" / "checkpoints" / "4")
    (folder / "parts" / "summary.json").unlink()
    assert train.main(arguments("parts")) == 0
    return folder / "parts"


@pytest.fixture(scope="module")
def poisson(rows_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run with the policy, the term and the tracker that was killed and resumed, beside one that was not."""
    folder = tmp_path_factory.mktemp("poisson")

    def arguments(name: str) -> list[str]:
        return shrunk(
            str(PRETRAIN), rows_folder, folder / name, STEPS, "--data.feed=numpy", "--cadence.checkpoint-every=5"
        )

    # the same number of devices as in this process: sums of other parts are rounded in other ways
    process = start(arguments("killed"), env=None)
    wait_for_step(process, folder / "killed", KILLED_AFTER)
    assert process.poll() is None, finish(process)
    kill(process)
    assert KILLED_AFTER <= last_step(folder / "killed") < STEPS
    for name in ("killed", "whole"):
        assert train.main(arguments(name)) == 0
    return folder / "killed"


@pytest.fixture(scope="module")
def smoothed(rows_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run with the objective that was resumed, beside one that was not."""
    folder = tmp_path_factory.mktemp("smoothed")
    more = ("--data.feed=numpy", "--cadence.checkpoint-every=2")
    return resumed(lambda name: shrunk(str(SMOOTHED), rows_folder, folder / name, 4, *more), folder)


@pytest.fixture(scope="module")
def tickets(smoothed: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of the task that was resumed, beside one that was not; its examples are beside it too."""
    folder = tmp_path_factory.mktemp("tickets")
    lines = [f"{'sales' if 'sold' in each else 'repairs'}: {each}\n" for each in made_sentences(24)]
    (folder / "tickets.txt").write_text("".join(lines))

    def arguments(name: str) -> list[str]:
        files = [f"--train={folder / 'tickets.txt'}", f"--dev={folder / 'tickets.txt'}", f"--init-from={smoothed}"]
        sizes = ["--batch-size=12", "--objective.epochs=2", "--cadence.log-every=1"]
        return [f"--config={TICKETS}", *files, *sizes, f"--workdir={folder / name}"]

    return resumed(arguments, folder)


def test_a_policy_a_term_and_a_tracker_survive_a_kill(poisson: pathlib.Path) -> None:
    whole = poisson.parent / "whole"
    assert_same_state(whole, poisson)
    for key in ("train/mlm/loss", "train/length/loss", "eval/length/accuracy", "data/masked"):
        assert records(whole, key) == records(poisson, key), key
    assert json.loads((poisson / "run.json").read_text())["objective"]["masking"]["class"] == "PoissonSpans"
    (curve,) = poisson.glob("*.csv")
    drawn = {tuple(line.split(",")) for line in curve.read_text().splitlines()}
    losses = records(poisson, "train/length/loss")
    assert {(str(step), "train/length/loss", f"{value:.17g}") for step, value in losses.items()} < drawn
    assert {step for step, *_ in drawn} == {str(line["step"]) for line in logged_lines(poisson)}


def test_an_objective_resumes_fills_masks_and_exports_its_encoder(
    smoothed: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same_state(smoothed.parent / "whole", smoothed)
    words = ["spans", str(smoothed), "--text=The old sailor sold three books.", "--hide=old sailor", "--json"]
    assert predict.main(words) == 2
    told = capsys.readouterr().err
    assert "SmoothedPrediction (objective), PoissonSpans (policy); to use heads of theirs give --code objective" in told
    assert "has an encoder and no head that predicts tokens" in told
    assert predict.main([*words, f"--code={SMOOTHED}"]) == 0
    (span,) = json.loads(capsys.readouterr().out)["spans"]
    assert [*span["fills"]] == ["smooth"] and len(span["fills"]["smooth"]["truth"]) == span["pieces"]
    for number, code in enumerate(([f"--code={SMOOTHED}"], [])):
        forget(monkeypatch)
        folder = tmp_path / str(number)
        assert convert.main(["to-torch", str(smoothed), str(folder), *code]) == 0
        told = capsys.readouterr().out
        assert "smooth skipped: transformers has no class" in told and ("--code objective" in told) == (not code)
        assert {each.split("/")[0] for each in equal_weights(load_model(smoothed), load_model(folder))} == {"smooth"}


def test_a_task_resumes_is_scored_predicts_and_is_exported(
    tickets: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same_state(tickets.parent / "whole", tickets)
    scores = records(tickets, "eval/score/mean_recall")
    data = [f"--data={tickets.parent / 'tickets.txt'}", "--json"]
    assert evaluate.main([str(tickets), *data]) == 2
    told = capsys.readouterr().err
    assert "Tickets of task is no class of spanjax: name the module or file that defines it, --code task" in told
    code = f"--code={TICKETS}"
    assert evaluate.main([str(tickets), *data, code, f"--output={tmp_path / 'scores'}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == {"mean_recall": pytest.approx(scores[found["step"]])}
    assert (tmp_path / "scores" / "predictions.jsonl").is_file()
    (tmp_path / "new.jsonl").write_text('{"text": "My neighbour sold some bread."}\n{"words": []}\n')
    assert predict.main(["task", str(tickets), f"--file={tmp_path / 'new.jsonl'}", code]) == 4
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["prediction"] in first["probabilities"].keys() == {"repairs", "sales"}
    assert second["error"] == "fields words: expected `text`"
    for words, kind in (([code], "BertForSequenceClassification"), ([], "BertModel")):
        folder = tmp_path / kind
        assert convert.main(["to-torch", str(tickets), str(folder), *words]) == 0
        assert json.loads((folder / "config.json").read_text())["architectures"] == [kind]
        forget(monkeypatch)


def test_the_report_shows_all_of_them(
    poisson: pathlib.Path, smoothed: pathlib.Path, tickets: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    runs = [*map(str, (poisson, smoothed, tickets)), "--rows=20", "--examples=1"]
    unknown = "PoissonSpans of policy is no class of spanjax: name the module or file that defines it, --code policy"
    for code in ([], [f"--code={SMOOTHED}", f"--code={PRETRAIN}"]):
        assert report.main([*runs, *code, f"--output={tmp_path / 'report.html'}"]) == 0
        page = (tmp_path / "report.html").read_text()
        assert "fine-tuning, Tickets" in page and "mean_recall" in page
        assert (unknown in page) == (not code) and ("by SMOOTH" in page) == bool(code)


def test_the_page_quotes_the_files() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
    assert {*blocks} == {file.read_text() for file in FILES}
