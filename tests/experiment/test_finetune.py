"""Fine-tuning through the command line: it learns, resumes exactly, keeps the best, and says what is wrong all at once."""

import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from spanjax import train
from spanjax.evaluate import main as evaluate
from spanjax.experiment.finetune import distinct, example_text, open_task_session
from spanjax.inference.task_model import open_model
from spanjax.nn.dropout import DropoutKey
from spanjax.predict import main as predict
from spanjax.pretrained.load import load_model
from spanjax.sharding import named_leaves
from spanjax.tasks.base import LOSS
from spanjax.tasks.glue import Sentences
from spanjax.training.state import abstract_module
from tests.running import ROOT, final_leaves, records

CONFIG = "configs/finetune/glue.py"
WORDS = ("parse", "read", "write", "close", "open", "list", "values", "file", "name", "given")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def sentences(path: pathlib.Path, count: int, seed: int) -> pathlib.Path:
    """Sentences of words of one half of WORDS, a seventh of them of the other; the label says which half it is."""
    random = np.random.default_rng(seed)
    with path.open("w") as lines:
        for _ in range(count):
            label, size = int(random.integers(2)), random.integers(6, 15)
            halves = np.where(random.random(size) < 0.15, 1 - label, label)
            words = [WORDS[5 * half + random.integers(5)] for half in halves]
            lines.write(json.dumps({"sentence": " ".join(words), "label": ("no", "yes")[label]}) + "\n")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    folder = tmp_path_factory.mktemp("sentences")
    return sentences(folder / "train.jsonl", 200, 0), sentences(folder / "dev.jsonl", 60, 1)


def arguments(files: Sequence[pathlib.Path], start: pathlib.Path, workdir: pathlib.Path, *more: str) -> list[str]:
    return [
        *(f"--config={CONFIG}", f"--init-from={start}", f"--train={files[0]}", f"--dev={files[1]}"),
        *("--objective.length=32", "--objective.epochs=2", "--batch-size=16", "--optimizer.learning-rate=1e-2"),
        *(f"--workdir={workdir}", "--cadence.log-every=1", *more),
    ]


def test_it_learns_is_evaluated_and_used(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    workdir = tmp_path / "run"
    more = (
        "--seed=2",
        "--objective.epochs=5",
        "--objective.evaluations=2",
    )  # with seed 0 so high a rate learns nothing
    assert train.main(arguments(files, run_folder, workdir, *more)) == 0
    said = capsys.readouterr().out
    accuracy = records(workdir, "eval/score/accuracy")
    assert max(accuracy.values()) > 85, "the words say it"
    assert "best mean" in said and len(accuracy) == 11
    best = max(accuracy, key=lambda step: (accuracy[step], -step))
    assert (workdir / "checkpoints" / str(best)).is_dir(), "the best one is kept"

    step = int(load_model(workdir).source.name)
    assert evaluate([str(workdir), "--data", str(files[1]), "--output", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == step and told["scores"]["accuracy"] == pytest.approx(accuracy[step])
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert np.mean([line["label"] == line["prediction"] for line in lines]) * 100 == pytest.approx(accuracy[step])

    texts = ["read the file name", "", "open values"]
    assert predict(["classify", str(workdir), "--text", *texts]) == 4, "one of them has no words"
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["input"]["sentence"] for answer in answers] == texts
    assert "error" in answers[1] and sum(answers[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    (alone,) = open_model(workdir, batch_size=3).answers([{"sentence": texts[0]}])
    assert alone["probabilities"] == pytest.approx(answers[0]["probabilities"], abs=1e-5)


def test_a_run_that_was_stopped_goes_on_exactly(
    files: tuple[pathlib.Path, pathlib.Path], run_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train.main(arguments(files, run_folder, whole, "--cadence.keep=5")) == 0
    shutil.copytree(whole, cut)
    for folder in (cut / "checkpoints").iterdir():
        if int(folder.name) > 13:
            shutil.rmtree(folder)
    assert train.main(arguments(files, run_folder, cut, "--cadence.keep=5")) == 0
    for key in ("train/task/loss", "eval/score/accuracy", "eval/task/loss"):
        assert records(whole, key) == records(cut, key), key
    one, other = final_leaves(whole), final_leaves(cut)
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_random_weights_have_the_sizes_of_others_and_depend_on_the_seed(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    model, found = load_model(run_folder), []
    for seed in (5, 6):  # that of the run samples what the run began with
        workdir = tmp_path / str(seed)
        more = (f"--init-from=random:{run_folder}", f"--seed={seed}", "--steps=1", "--optimizer.learning-rate=1e-9")
        assert train.main(arguments(files, run_folder, workdir, *more)) == 0
        tuned = load_model(workdir)
        assert tuned.encoder.layers == model.encoder.layers and tuned.vocabulary is not None and model.vocabulary
        assert tuned.vocabulary.fingerprint == model.vocabulary.fingerprint
        assert tuned.meta["pretrained"].startswith("random:")
        found.append(named_leaves(tuned.params)["encoder/embeddings/token/embedding"])
    trained = named_leaves(model.params)["encoder/embeddings/token/embedding"]
    for one, other in ((found[0], trained), (found[0], found[1])):
        assert abs(np.corrcoef(np.ravel(one), np.ravel(other))[0, 1]) < 0.1, "one has nothing of the other"
    capsys.readouterr()
    words = [f"--config={ROOT}/configs/pretrain/tiny.py", f"--init-from=random:{run_folder}", "--rows", str(tmp_path)]
    assert train.main([*words, "--workdir", str(tmp_path / "none")]) == 2
    assert "pretraining samples weights without --init-from" in capsys.readouterr().err


def test_patience_ends_a_run(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """A learning rate of almost nothing never gets better."""
    more = ("--objective.epochs=9", "--optimizer.learning-rate=1e-12", "--cadence.patience=2")
    command = arguments(files, run_folder, tmp_path / "run", *more)
    assert train.main(command) == 0
    assert sorted(records(tmp_path / "run", "eval/score/mean")) == [13, 26, 39]
    assert "finished: 39 steps" in capsys.readouterr().out
    assert train.main(command) == 0
    assert "finished: 39 steps" in capsys.readouterr().out, "and stays ended"


def test_more_padding_changes_nothing(files: tuple[pathlib.Path, pathlib.Path], run_folder: pathlib.Path) -> None:
    """Loss and gradients of a batch are those of the same rows in a longer batch, dropout included."""
    options = ("--encoder.dropout=0.1", "--encoder.attention-dropout=0.1")
    session = open_task_session(train.parse(arguments(files, run_folder, pathlib.Path("unused"), *options)).run)
    packed, task = session.training.packed, session.task
    structure, _ = abstract_module(task, session.run.encoder)
    params = session.fresh_state(session.initial_weights()).params
    index_B = np.array([0, 1, 2, -1])
    results: list[Any] = []
    for length in (32, 96):
        batch = {name: jax.numpy.asarray(value) for name, value in packed.batch(index_B, np.arange(4), length).items()}
        key = DropoutKey(jax.numpy.uint32(5), batch["row_B"])

        def loss(params: Any, batch: Any = batch, key: Any = key) -> jax.Array:
            from flax import nnx

            return task.measure(nnx.merge(structure, params), batch, key)[LOSS].total

        results.append(jax.value_and_grad(loss)(params))
    (one, gradient), (other, longer) = results
    assert float(one) == pytest.approx(float(other), rel=1e-6) and one > 0
    for name, leaf in named_leaves(gradient).items():
        np.testing.assert_allclose(leaf, named_leaves(longer)[name], atol=2e-6, err_msg=name)


def test_everything_wrong_is_said_at_once(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(files[0].read_text() + '{"sentence": ""}\n')
    command = arguments(
        (bad, tmp_path / "none.jsonl"), run_folder, tmp_path / "run", "--batch-size=3", "--objective.warmup=2"
    )
    assert train.main([*command, "--mesh.data=4"]) == 2
    said = capsys.readouterr().err
    for part in ("warmup is 2.0", "bad.jsonl:201", "--skip-bad", "none.jsonl: no such file", "batch_size 3"):
        assert part in said, part
    assert not (tmp_path / "run").exists()
    assert train.main(arguments((bad, files[1]), run_folder, tmp_path / "run", "--skip-bad", "--dry-run")) == 0
    assert "skipped: " in (said := capsys.readouterr().out) and "200 in 200 rows" in said


def test_labels_that_are_in_the_dev_examples_alone_are_said(
    files: tuple[pathlib.Path, pathlib.Path], run_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    more = tmp_path / "dev.jsonl"
    more.write_text(files[1].read_text() + '{"sentence": "read", "label": "perhaps"}\n')
    session = open_task_session(train.parse(arguments((files[0], more), run_folder, tmp_path / "run")).run)
    assert session.messages[-1:] == (
        "dev examples: 1 of 61 have labels without training examples ('perhaps'): errors, not in the loss",
    )
    assert session.dev and len(session.dev.rows) == 61 and not session.training.rows, "training has packed rows alone"


def test_examples_without_labels(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """Those of training are left out, which is said; those that are to be scored are refused before anything is trained."""
    more = tmp_path / "more.jsonl"
    more.write_text(files[0].read_text() + '{"sentence": "read"}\n{"sentence": "open", "label": " "}\n')
    session = open_task_session(train.parse(arguments((more, files[1]), run_folder, tmp_path / "run")).run)
    assert session.messages[-1:] == ("2 of 202 training examples say nothing to learn from: skipped",)
    assert len(session.training.examples) == 200
    assert train.main(arguments((files[0], more), run_folder, tmp_path / "run")) == 2
    assert "--dev: 2 of 202 examples have no label" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_size_of_class_weights_does_not_matter(
    files: tuple[pathlib.Path, pathlib.Path], run_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    leaves = []
    for name, weights in (("large", ("1", "3")), ("small", ("0.001", "0.003")), ("alike", ("1", "1"))):
        settings = ["--objective.epochs=1", "--objective.class-weights", *weights]
        assert train.main(arguments(files, run_folder, tmp_path / name, *settings)) == 0
        leaves.append(final_leaves(tmp_path / name))
    large, small, alike = ([leaf for name, leaf in each.items() if "params" in name] for each in leaves)
    assert large
    for leaf, scaled in zip(large, small, strict=True):
        np.testing.assert_allclose(leaf, scaled, atol=2e-5)
    assert max(np.abs(leaf - other).max() for leaf, other in zip(large, alike, strict=True)) > 1e-3


def test_fresh_weights_need_a_vocabulary(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    command = arguments(files, run_folder, tmp_path / "run")
    assert train.main([*command, "--init-from="]) == 2
    assert "--objective.vocabulary for fresh ones" in capsys.readouterr().err


SIZES = ("hidden-size=32", "layers=2", "heads=2", "intermediate-size=64", "positions=64", "initializer-std=0.1")
KINDS = {
    "modern": ("types=0", "rope-theta=100.0", "norm-first", "gated-mlp", "no-biases"),
    "local": ("rope-theta=100.0", "norm-first", "local-window=4", "global-every=2", "local-rope-theta=50.0"),
    "relative": ("relative-attention",),
    "shared layers": ("num-layer-groups=1", "embedding-size=16"),
}


@pytest.mark.parametrize(
    "kind", ["modern", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("relative", "local", "shared layers"))]
)
def test_every_kind_of_encoder_is_fine_tuned(
    kind: str, files: tuple[pathlib.Path, pathlib.Path], run_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """From fresh weights, with rows of pairs of types that it may not have."""
    vocabulary = load_model(run_folder).vocabulary
    assert vocabulary is not None
    for name, content in vocabulary.files().items():
        (tmp_path / name).write_bytes(content)
    settings = [f"--encoder.{each}" for each in (*SIZES, *KINDS[kind])]
    command = [*arguments(files, run_folder, tmp_path / "run", *settings), f"--objective.vocabulary={tmp_path}"]
    assert train.main([*command, "--init-from=", "--objective.epochs=8", "--optimizer.learning-rate=3e-3"]) == 0
    scores = records(tmp_path / "run", "eval/score/accuracy")
    assert max(scores.values()) > 85


def test_a_model_of_pretraining_is_not_evaluated(
    run_folder: pathlib.Path, files: tuple[pathlib.Path, pathlib.Path], capsys: pytest.CaptureFixture
) -> None:
    assert evaluate([str(run_folder), "--data", str(files[1]), "--task", "squad3", "--batch-size", "0"]) == 2
    said = capsys.readouterr().err
    assert "--task is squad3: expected one of squad1, squad2" in said and "--batch-size is 0" in said
    assert evaluate([str(run_folder), "--data", str(files[1])]) == 2
    assert "not a fine-tuned model" in capsys.readouterr().err


def test_steps_cadence_and_warm_up_that_are_set_hold(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    more = ("--steps=7", "--cadence.checkpoint-every=3", "--cadence.eval-every=5", "--optimizer.warmup-steps=4")
    assert train.main(arguments(files, run_folder, tmp_path / "run", *more, "--cadence.keep=9")) == 0
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (stored["steps"], stored["optimizer"]["warmup_steps"]) == (7, 4)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["3", "6", "7"]
    assert sorted(records(tmp_path / "run", "eval/score/accuracy")) == [5, 7]
    rates = records(tmp_path / "run", "train/learning_rate")
    assert rates[4] == max(rates.values()) and rates[1] == pytest.approx(rates[4] / 4)
    said = " ".join(capsys.readouterr().out.split())
    assert "steps is set to 7: 0.54 epochs, objective.epochs 2 is not used" in said
    assert "optimizer.warmup_steps is set to 4: objective.warmup 0.1 is not used" in said
    assert "cadence.eval_every is set to 5: objective.evaluations 1 is not used" in said


def test_what_is_not_set_is_counted_for_the_examples(
    files: tuple[pathlib.Path, pathlib.Path], run_folder: pathlib.Path
) -> None:
    words = arguments(files, run_folder, pathlib.Path("unused"), "--objective.evaluations=2", "--cadence.eval-every=0")
    session = open_task_session(train.parse(words).run)
    run = session.run
    assert (run.steps, run.optimizer.warmup_steps) == (26, 2)
    assert (run.cadence.eval_every, run.cadence.checkpoint_every) == (0, 6), "0 evaluates at the end alone"
    assert {
        "steps is 26: 2.00 epochs, from objective.epochs 2",
        "optimizer.warmup_steps is 2: from objective.warmup 0.1",
        "cadence.eval_every is set to 0: objective.evaluations 2 is not used",
    } <= {*session.notes}


def test_settings_that_would_not_hold_are_refused(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """The weights decide the encoder's size, whether another one is set in the config, or the default on the command line."""
    for more in ("--encoder.layers=3", "--encoder.layers=12"):
        assert train.main(arguments(files, run_folder, tmp_path / "run", more)) == 2
        layers = more.rpartition("=")[2]
        assert f"encoder.layers is set to {layers}, but 2 would be used; the weights of" in capsys.readouterr().err
    assert train.main(arguments(files, run_folder, tmp_path / "run", "--data.rows=x", "--data.order=uniform")) == 2
    said = capsys.readouterr().err
    assert "data.rows is set to ('x',), but a task reads --train and --dev: leave it out" in said
    assert "data.order is set to 'uniform'" in said and not (tmp_path / "run").exists()
    assert train.main(arguments(files, run_folder, tmp_path / "run", "--cadence.eval-batches=2")) == 2
    assert "cadence.eval_batches is set to 2, but a task is evaluated on all --dev examples" in capsys.readouterr().err


@pytest.mark.slow
def test_a_table_of_the_users_own_is_trained_resumed_elsewhere_scored_and_predicted(
    files: tuple[pathlib.Path, pathlib.Path],
    run_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two commands from a CSV to predictions; the columns are those of the training unless they are named again."""
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for path in files:
        rows = [json.loads(line) for line in path.read_text().splitlines()[:40]]
        lines = [f"{row['sentence']},{row['label']}\n" for row in rows]
        (tmp_path / "data" / f"{path.stem}.csv").write_text("".join(["review,stars\n", *lines]))
    monkeypatch.chdir(tmp_path)
    tables = (pathlib.Path("data/train.csv"), pathlib.Path("data/dev.csv"))
    words = [f"--config={ROOT / CONFIG}", *arguments(tables, run_folder, pathlib.Path("run"), "--steps=2")[1:]]
    assert train.main(words) == 2
    said = capsys.readouterr().err
    flag = "--columns text=review label=stars"
    assert (
        said.count("\n") == 2 and said.count("columns review, stars: expected `sentence`, or") == said.count(flag) == 2
    )
    words += flag.split()
    assert train.main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert [f"example {number}   name '{number - 1}'  first '" in said for number in (1, 2, 3, 4)] == [True] * 3 + [
        False
    ]
    assert train.main(words) == 0
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["objective"]
    assert (stored["train"], stored["columns"]) == (["data/train.csv"], ["text=review", "label=stars"])
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = [word.replace("--workdir=run", "--workdir=../run") for word in words]
    assert train.main(words) == 0 and train.main([word.replace("=data/", "=../data/") for word in words]) == 0
    capsys.readouterr()
    assert evaluate(["../run", "--data", "../data/dev.csv", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    (tmp_path / "other.csv").write_text((tmp_path / "data" / "dev.csv").read_text().replace("review,stars", "a,b"))
    assert evaluate(["../run", "--data", "../other.csv", "--json"]) == 2
    assert "--data: ../other.csv: columns a, b: expected text=review, label=stars" in capsys.readouterr().err
    assert evaluate(["../run", "--data", "../other.csv", "--json", "--columns", "text=a", "label=b"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"] == scores
    answers = []
    for file, *more in (["../data/dev.csv"], ["../other.csv", "--columns", "text=a"]):
        assert predict(["classify", "../run", "--file", file, *more]) == 0
        answers.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert [each["prediction"] for each in answers[0]] == [each["prediction"] for each in answers[1]]
    assert {*answers[0][0]["input"]} == {"review", "stars"} and {*answers[1][0]["input"]} == {"a", "b"}
    assert predict(["classify", "../run", "--file", "../other.csv"]) == 2
    assert "columns a, b: expected text=review" in capsys.readouterr().err


def test_problems_that_differ_in_their_lines_alone_are_one() -> None:
    problems = [
        *(f"a.csv:{number}: label 'x': expected y" for number in range(2, 5)),
        "a.csv:7: other",
        "b.json:record 1: z",
    ]
    assert distinct([*problems, "b.json:record 9: z"]) == [
        "a.csv:2: label 'x': expected y (and 2 lines like it)",
        "a.csv:7: other",
        "b.json:record 1: z (and 1 lines like it)",
    ]


def test_an_example_as_text() -> None:
    assert example_text(Sentences("1", "a" * 80, None, "x")) == f"name '1'  first '{'a' * 56}...  label 'x'"
    assert example_text(("a", 1)) == "('a', 1)"
