"""Coreference through the command lines: it learns, goes on exactly, is scored, and says which mentions of a text are one."""

import json
import pathlib
import random

import numpy as np
import pytest
from safetensors.numpy import load_file

from spanjax import train
from spanjax.convert import main as convert
from spanjax.data.vocab.loading import save_vocabulary
from spanjax.evaluate import main as evaluate
from spanjax.predict import main as predict
from spanjax.tasks.coref.documents import CorefDocument, sorted_clusters
from spanjax.tasks.coref.files import read_documents
from spanjax.tasks.coref.writing import write_conll
from tests.running import ROOT, TINY, final_leaves, records
from tests.tasks.small_vocabulary import small_wordpiece

NAMES = ("Anna", "Bonn", "IBM")
FILLERS = ("red", "cat", "sat", "in", "the", "at")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def document(number: int, sentences: int = 6) -> CorefDocument:
    """Sentences in which all mentions of one name are one cluster."""
    rng = random.Random(number)
    lines, clusters, words = [], {name: [] for name in NAMES}, 0
    for _ in range(sentences):
        name = rng.choice(NAMES)
        line = [*rng.choices(FILLERS, k=rng.randint(0, 3)), name, *rng.choices(FILLERS, k=rng.randint(1, 3)), "."]
        clusters[name].append((words + line.index(name),) * 2)
        words += len(line)
        lines.append(tuple(line))
    found = sorted_clusters(each for each in clusters.values() if len(each) > 1)
    return CorefDocument(f"nw/made_{number}", 0, tuple(lines), ("",) * words, found, "nw")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("coref")
    made = [document(number) for number in range(28)]
    write_conll(folder / "train.conll", made[:24], [each.clusters for each in made[:24]])
    write_conll(folder / "dev.conll", made[24:], [each.clusters for each in made[24:]])
    save_vocabulary(small_wordpiece(), folder / "vocabulary")
    return folder


def arguments(files: pathlib.Path, workdir: pathlib.Path, *more: str, times: int = 1) -> list[str]:
    """A run over the training documents, each `times` times in an epoch."""
    given = {word.split("=")[0] for word in more}
    sizes = [word for word in TINY if word.split("=")[0] not in {*given, "--encoder.layers", "--batch-size"}]
    own = [
        *(f"--objective.vocabulary={files / 'vocabulary'}", "--objective.length=16", "--objective.max-segments=3"),
        *("--objective.model.hidden-size=16", "--objective.model.feature-size=4", "--objective.model.dropout=0"),
        *("--objective.model.max-width=3", "--objective.model.spans-per-piece=1", "--objective.epochs=2"),
        *(
            "--encoder.layers=1",
            "--encoder.initializer-std=0.3",
            "--encoder.dropout=0",
            "--encoder.attention-dropout=0",
        ),
        *("--optimizer.learning-rate=3e-3", "--optimizer.head-learning-rate=3e-3", "--batch-size=8"),
        *("--config=configs/finetune/coref.py", f"--workdir={workdir}", f"--dev={files / 'dev.conll'}"),
    ]
    train_files = ["--train", *[str(files / "train.conll")] * times]
    return [*sizes, *(word for word in own if word.split("=")[0] not in given), *train_files, *more]


def test_it_learns_is_scored_and_used(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    workdir = tmp_path / "run"
    assert train.main(arguments(files, workdir, "--objective.overlap", times=15)) == 0
    f1 = records(workdir, "eval/score/f1")
    assert max(f1.values()) > 75, "names say it"
    capsys.readouterr()
    out = tmp_path / "scored"
    options = ["--task", "coref", "--data", str(files / "dev.conll"), "--output", str(out), "--json"]
    assert evaluate([str(workdir), *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["scores"]["f1"] == pytest.approx(max(f1.values()))
    key, response = (read_documents(out / f"{name}.conll") for name in ("key", "predictions"))
    assert [each.clusters for each in key] == [document(number).clusters for number in range(24, 28)]
    assert len(response) == 4 and any(each.clusters for each in response)
    recall = json.loads((out / "recall.json").read_text())
    assert recall["mentions"]["name"]["total"] == sum(len(c) for each in key for c in each.clusters or ())

    assert convert(["to-torch", str(workdir), str(tmp_path / "hf"), "--verify"]) == 0
    assert "coreference, overlap_gate skipped" in capsys.readouterr().out
    assert {name.split(".")[0] for name in load_file(tmp_path / "hf" / "model.safetensors")} == {"bert"}

    text = tmp_path / "story.txt"
    text.write_text("Anna sat in Bonn.\n\nThe cat sat. Anna works at IBM, and IBM sat in Bonn.\n")
    assert predict(["coref", str(workdir), "--text", str(text)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    for cluster in json.loads(line)["prediction"]:
        for mention in cluster:
            assert text.read_text()[mention["start"] : mention["end"]] == mention["text"]
    found = [sorted(mention["text"] for mention in cluster) for cluster in json.loads(line)["prediction"]]
    assert ["Anna", "Anna"] in found
    assert predict(["coref", str(workdir), "--text", str(text), "--output", str(tmp_path / "told")]) == 0
    page = (tmp_path / "told" / "clusters.html").read_text()
    assert page.count("<mark") == page.count("</mark>") == 2 * sum(map(len, found))  # in the text and in the list
    assert ">Anna<sub>" in page and "works at" in page
    assert len([*(tmp_path / "told").iterdir()]) == 5


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_exactly_on_any_number_of_devices(
    files: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    more = ("--objective.model.dropout=0.2", "--encoder.dropout=0.1", "--cadence.keep=9")
    assert train.main(arguments(files, whole, *more)) == 0
    assert train.main(arguments(files, part, *more)) == 0
    newest = max((part / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    for path in sorted(newest.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    newest.rmdir()
    assert train.main(arguments(files, part, *more)) == 0
    for key in ("train/task/loss", "eval/score/f1", "eval/task/loss"):
        assert records(whole, key) == records(part, key), key
    one, other = final_leaves(whole), final_leaves(part)
    assert all(np.array_equal(one[name], other[name]) for name in one)

    other_way = tmp_path / "other_way"
    assert train.main(arguments(files, other_way, *more, "--mesh.replica=2", "--mesh.data=2", "--microbatches=2")) == 0
    losses, same = records(whole, "train/task/loss"), records(other_way, "train/task/loss")
    assert list(losses.values()) == pytest.approx(list(same.values()), rel=1e-4)


def test_what_cannot_be_used_is_told_at_once(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "bad.jsonl").write_text(
        '{"text": "Anna sat.", "clusters": [[[0, 3], [5, 8]]]}\n{"words": []}\nno JSON\n'
    )
    assert (
        train.main(arguments(files, tmp_path / "run", "--objective.length=512", f"--dev={tmp_path / 'bad.jsonl'}")) == 2
    )
    said = capsys.readouterr().err
    assert all(part in said for part in ("bad.jsonl:1", "bad.jsonl:2", "bad.jsonl:3", "--skip-bad"))
