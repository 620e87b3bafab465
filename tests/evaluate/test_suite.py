"""`evaluate suite` as a command: the table, twice the same, killed and resumed, added encoders, messages."""

import json
import pathlib
import shutil
from typing import Any
from unittest import mock

import numpy as np
import pytest

from spanjax.evaluate import main as evaluate
from spanjax.suite import quick, resampled, table
from tests.suite.made_data import made_folder

PARTS = ["tags", "entities", "relations", "sentences", "similarity", "pairs", "fills"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return made_folder(tmp_path_factory.mktemp("data"))


def suite(run: pathlib.Path, data: pathlib.Path, workdir: pathlib.Path, *more: str) -> int:
    words = ["suite", str(run), "--data", str(data), "--workdir", str(workdir), "--seeds", "0", "1", *more]
    return evaluate([*words, "--no-compilation-cache"])


@pytest.fixture(scope="module")
def done(run_folder: pathlib.Path, data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("suite") / "work"
    assert suite(run_folder, data, workdir) == 0
    return workdir


def tables(workdir: pathlib.Path) -> list[str]:
    return [(workdir / name).read_text() for name in ("suite.md", "suite.html", "suite.json")]


def test_the_table_has_every_part_and_the_floor(done: pathlib.Path) -> None:
    found = json.loads((done / "suite.json").read_text())
    assert list(found["encoders"]) == ["run", "random-run"]
    assert list(found["encoders"]["run"]) == PARTS and found["differences"].keys() == {"random-run"}
    tags = found["encoders"]["run"]["tags"]
    assert tags["seeds"].keys() == {"0", "1"} and tags["interval"][0] <= tags["mean"] <= tags["interval"][1]
    assert tags["tasks"].keys() == {"0", "1"} and tags["tasks"]["0"].keys() == {"tags", "chunks"}
    assert all(own["tags"]["layer"] in (None, *range(1, 20)) for own in tags["tasks"].values())
    # relations of the made data are random: nobody knows more than the constant answer
    for encoder in found["encoders"].values():
        assert encoder["relations"]["mean"] == pytest.approx(encoder["relations"]["baseline"], abs=8)
    assert found["encoders"]["run"]["fills"]["figures"] and found["encoders"]["run"]["pairs"]["phenomena"].keys() == {
        "order"
    }
    markdown, page, _ = tables(done)
    assert (
        "| random-run |" in markdown and "| baseline |" in markdown and "<h1>Evaluation suite of spanjax</h1>" in page
    )
    assert not list(done.glob("quick/*/vectors/*/*.npy"))


@pytest.mark.slow
def test_stopped_anywhere_it_ends_in_the_same_table(
    done: pathlib.Path, run_folder: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    workdir, write = tmp_path / "work", quick.write_whole
    for allowed in (0, 1, 2, 3):
        left = [allowed]

        def interrupted(path: pathlib.Path, content: Any, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            write(path, content)

        with mock.patch.object(quick, "write_whole", interrupted):
            assert suite(run_folder, data, workdir) == 130
    # what a killed process can leave: a vector file that is cut off
    (broken,) = [workdir / "quick/run/vectors/0/entities.npy"]
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_bytes(b"\x93NUMPY")
    assert suite(run_folder, data, workdir) == 0
    assert tables(workdir) == tables(done)


def test_a_finished_suite_computes_nothing(
    done: pathlib.Path, run_folder: pathlib.Path, data: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tables(done)
    with mock.patch.object(quick.QuickSuite, "results", side_effect=AssertionError("computes")):
        assert suite(run_folder, data, done) == 0
    assert tables(done) == before and "Scores" in capsys.readouterr().out


def test_messages(
    done: pathlib.Path,
    run_folder: pathlib.Path,
    data: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert suite(run_folder, data, done, "--share", "0.5") == 2
    assert "holds another suite" in capsys.readouterr().err
    assert suite(run_folder, tmp_path, tmp_path / "w") == 2
    assert "no file of any part" in capsys.readouterr().err
    assert suite(run_folder, data, tmp_path / "w", "--files", "tag=a", "tags") == 2
    assert "expected PART=FILE, with one of tags, chunks, entities" in capsys.readouterr().err
    assert suite(run_folder, data, tmp_path / "w", "--files", "tags=none.gz") == 2
    assert "no such file" in capsys.readouterr().err
    assert suite(run_folder, data, tmp_path / "w", "--seeds", "1", "1") == 2
    assert "--seeds is (1, 1)" in capsys.readouterr().err
    with mock.patch.dict("sys.modules", {"sklearn": None}):
        assert suite(run_folder, data, tmp_path / "w") == 2
    assert "pip install 'spanjax[suite]'" in capsys.readouterr().err


def test_results_of_older_rules_are_not_mixed(
    done: pathlib.Path,
    run_folder: pathlib.Path,
    data: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workdir = tmp_path / "work"
    shutil.copytree(done, workdir)
    settings = json.loads((workdir / "settings.json").read_text())
    del settings["protocol"]  # as version 1 wrote it
    (workdir / "settings.json").write_text(json.dumps(settings))
    assert suite(run_folder, data, workdir) == 2
    assert "protocol was 1, now 4: the rules have changed" in capsys.readouterr().err


def test_what_was_resampled_is_not_computed_again(
    done: pathlib.Path, run_folder: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    workdir = tmp_path / "work"
    shutil.copytree(done, workdir)
    with (
        mock.patch.object(resampled, "intervals", side_effect=AssertionError("computes")),
        mock.patch.object(resampled, "differences", side_effect=AssertionError("computes")),
    ):
        assert suite(run_folder, data, workdir) == 0
    assert tables(workdir) == tables(done)
    # other results have other figures, whatever the file holds; a damaged file costs its computation
    file = workdir / "quick/run/sentences/0.json"
    result = json.loads(file.read_text())
    file.write_text(json.dumps({**result, "right": "1" * len(result["right"])}))
    assert suite(run_folder, data, workdir) == 0
    found, before = (json.loads((each / "suite.json").read_text())["encoders"]["run"] for each in (workdir, done))
    assert found["sentences"]["interval"] != before["sentences"]["interval"] and found["tags"] == before["tags"]
    file.write_text(json.dumps(result))
    (workdir / "quick/resampled.json").write_text("{")
    assert suite(run_folder, data, workdir) == 0 and tables(workdir) == tables(done)


def test_an_older_command_line_is_run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate([str(tmp_path / "none"), "--data", str(tmp_path / "f")]) == 2
    old = capsys.readouterr().err
    assert evaluate(["run", str(tmp_path / "none"), "--data", str(tmp_path / "f")]) == 2
    assert capsys.readouterr().err == old and "none does not exist" in old


def test_a_sweep_is_compared_by_its_arms(
    run_folder: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, words = tmp_path / "sweep", ("--files", "tags=", "chunks=", "entities=", "relations=", "fills=", "pairs=")
    for arm in ("first", "second"):
        shutil.copytree(run_folder, sweep / arm / "0")
        (sweep / arm / "0/result.json").write_text("{}")
    arms = {"first": {"settings": {}}, "second": {"settings": {}}}
    (sweep / "sweep.json").write_text(json.dumps({"seeds": [0], "arms": arms}))
    assert suite(sweep, data, tmp_path / "work", *words, "--no-floor", "--share", "0.2") == 0
    step = max(int(each.name) for each in (run_folder / "checkpoints").iterdir() if each.name.isdigit())
    found = json.loads((tmp_path / "work/suite.json").read_text())
    assert list(found["encoders"]) == [f"first-0-{step}", f"second-0-{step}"]
    # the same weights in both arms
    assert found["arms"][str(sweep)]["differences"]["second - first"]["sentences"]["mean"] == 0
    assert "second - first" in capsys.readouterr().out
    (sweep / "second/0/result.json").unlink()
    assert suite(sweep, data, tmp_path / "other", *words) == 2
    assert "second/0 not finished" in capsys.readouterr().err


def test_units_of_two_encoders_are_the_same_items(done: pathlib.Path) -> None:
    for part in ("tags", "entities", "relations"):
        for seed in (0, 1):
            files = [
                json.loads((done / f"quick/{name}/{part}/{seed}.json").read_text()) for name in ("run", "random-run")
            ]
            assert files[0]["items"] == files[1]["items"]
            # the mean over both tasks of tags is another
            right = 100 * np.mean([each == "1" for each in files[0]["right"]])
            assert part == "tags" or right == pytest.approx(files[0]["score"])


def test_sentences_are_all_items_of_both_tasks(done: pathlib.Path) -> None:
    result = json.loads((done / "quick/run/sentences/0.json").read_text())
    assert result["tasks"].keys() == {"sentences", "order"} and len(set(result["items"])) == len(result["right"])
    # 500 labelled sentences, then those of the order
    of_order = [right for item, right in zip(result["items"], result["right"], strict=True) if item >= 500]
    assert 0 < len(of_order) < len(result["items"])
    assert 100 * np.mean([each == "1" for each in of_order]) == pytest.approx(result["tasks"]["order"]["score"])
    assert result["score"] == np.mean([each["score"] for each in result["tasks"].values()])
    assert result["baseline"] == np.mean([each["baseline"] for each in result["tasks"].values()])
    # what is resampled is the same mean, though one task has more items
    found = json.loads((done / "suite.json").read_text())["encoders"]["run"]["sentences"]
    results = quick.read_results(done / "quick", ["run"], ["sentences"])["run"]["sentences"]
    units: Any = table.units_of("sentences", {0: results[0]}, mock.Mock())
    assert units.sampled(np.arange(units.count)[None])["score"][0] == pytest.approx(result["score"])
    assert found["interval"][0] <= found["mean"] <= found["interval"][1]


def test_a_part_of_two_tasks_needs_files_of_one(
    run_folder: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    skipped = ("tags", "chunks", "entities", "relations", "fills", "pairs", "similarity")
    others = ("--no-floor", "--share", "0.4", "--files", *(f"{part}=" for part in skipped))
    assert suite(run_folder, data, tmp_path / "one", *others, "order=") == 0
    alone = json.loads((tmp_path / "one/quick/run/sentences/0.json").read_text())
    assert alone["tasks"].keys() == {"sentences"}
    assert suite(run_folder, data, tmp_path / "other", *others, "sentences=") == 0
    order = json.loads((tmp_path / "other/quick/run/sentences/0.json").read_text())
    assert order["tasks"].keys() == {"order"} and order["score"] == order["tasks"]["order"]["score"]
