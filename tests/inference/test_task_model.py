"""A fine-tuned model in use: the threshold that its dev examples decided, records that are read as they are answered."""

import itertools
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from spanjax import train
from spanjax.cli import Progress
from spanjax.convert import main as convert
from spanjax.data.vocab.loading import save_vocabulary
from spanjax.evaluate import main as evaluate
from spanjax.inference import task_model
from spanjax.inference.task_model import TaskModel, open_model
from spanjax.predict import main as predict
from spanjax.predict.answering import answer
from spanjax.tasks.coref import Coref
from spanjax.tasks.squad import Questions, half
from tests.running import ROOT, TINY, records
from tests.tasks.small_vocabulary import small_wordpiece

QUESTIONS = [
    {"id": name, "question": "the cat", "context": context, "answers": answers}
    for name, context, answers in (
        *((word, word, [{"text": word, "start": 0}]) for word in ("Bonn", "Anna", "IBM")),
        ("none", "the blue dog", []),
    )
]
"""Any answer to one of the first three is right, so the best threshold answers all of them, whatever the weights."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of configs/finetune/squad2.py, two steps with an evaluation after each; not to be changed."""
    folder = tmp_path_factory.mktemp("squad2")
    save_vocabulary(small_wordpiece(), folder / "vocabulary")
    (folder / "dev.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in QUESTIONS))
    arguments = [f"--config={ROOT / 'configs/finetune/squad2.py'}", *TINY, f"--workdir={folder / 'run'}"]
    arguments += [f"--{name}={folder / 'dev.jsonl'}" for name in ("train", "dev")]
    arguments += [f"--objective.vocabulary={folder / 'vocabulary'}", "--objective.length=32", "--objective.max-query=8"]
    assert train.main([*arguments, "--objective.epochs=2", "--encoder.initializer-std=0.3"]) == 0
    return folder / "run"


def best_threshold(run: pathlib.Path) -> float:
    """That of the checkpoint which is used, as the run logged it."""
    found = records(run, "eval/score/best_f1_thresh")[open_model(run, 4).model.step]
    assert found, "not the default"
    return found


def changed(run: pathlib.Path, folder: pathlib.Path, threshold: float, evaluated: bool) -> pathlib.Path:
    """A copy of the checkpoint that is used, whose training had this threshold and was evaluated at its step or not."""
    source = open_model(run, 4).model.source
    copy = pathlib.Path(shutil.copytree(source, folder / "checkpoints" / source.name))
    (copy / "checksums.json").unlink()
    file = copy / "meta" / "metadata"
    meta = json.loads(file.read_text())
    meta["run"]["objective"]["threshold"] = threshold
    if not evaluated:
        (copy / "evaluation.json").unlink()
    file.write_text(json.dumps(meta))
    return copy


def test_the_threshold_comes_from_the_checkpoint(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    best = best_threshold(run)
    assert open_model(run, 4).task == open_model(run, 4, threshold=best).task
    assert (
        open_model(run, 4).inferred_settings == {"threshold": best}
        and open_model(run, 4, threshold=2.0).inferred_settings == {}
    )
    never = open_model(changed(run, tmp_path / "never", 0.0, evaluated=False), 4)
    assert (vars(never.task)["threshold"], never.inferred_settings) == (0.0, {})
    set_by_hand = open_model(changed(run, tmp_path / "set", 1.5, evaluated=True), 4)
    assert (vars(set_by_hand.task)["threshold"], set_by_hand.inferred_settings) == (1.5, {})
    other = open_model(run, 4, version="1.1")
    assert list(other.answers(QUESTIONS[:1]))[0]["prediction"] == "Bonn"


def test_documents_are_bounded_by_positions_where_nobody_says_otherwise(run: pathlib.Path) -> None:
    """A row of coreference is a whole document."""
    assert open_model(run).batch_size == 32 and open_model(run, 4).batch_size == 4
    assert (Coref().rows_together, Questions().rows_together) == (32, 32)
    assert (Coref().positions_together, Questions().positions_together) == (12_288, 0)


def test_progress_counts_the_batches_that_are_done(run: pathlib.Path) -> None:
    model = open_model(run, 4)
    examples = [model.task.example(record, number)[0] for number, record in enumerate(QUESTIONS * 3)]
    progress, plain = Progress("loading"), model.predict(examples)
    assert model.predict(examples, progress).predictions == plain.predictions
    rows = len(plain.outputs)
    assert (progress.name, progress.unit, progress.total) == ("predicting", "batches", -(-rows // model.batch_size))
    assert progress.total and progress.done == progress.total - 1 > 0, "the last one is done when all is"


def test_the_threshold_goes_into_the_folder_for_transformers(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert convert(["to-torch", str(run), str(tmp_path / "hf")]) == 0
    assert vars(open_model(tmp_path / "hf", 4).task)["threshold"] == best_threshold(run)


def evaluated(run: pathlib.Path, capsys: pytest.CaptureFixture, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert evaluate([str(run), "--data", str(run.parent / "dev.jsonl"), "--batch-size=4", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_and_predict_use_it(run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    best = best_threshold(run)
    assert evaluated(run, capsys)["decided"] == {"threshold": best}
    for threshold, has_answer, no_answer in (("-1e9", 0, 100), ("1e9", 100, 0)):
        told = evaluated(run, capsys, f"--threshold={threshold}")
        assert (told["decided"], told["scores"]["best_f1_thresh"]) == ({}, pytest.approx(best, rel=1e-3))
        assert (told["scores"]["HasAns_f1"], told["scores"]["NoAns_f1"]) == (has_answer, no_answer)
    assert evaluate([str(run), "--data", str(run.parent / "dev.jsonl"), "--batch-size=4"]) == 0
    assert f"threshold {best}: the best on the dev examples" in capsys.readouterr().out
    for more, threshold in (((), best), (("--threshold=-1e9",), -1e9)):
        assert predict(["qa", str(run), "--file", str(run.parent / "dev.jsonl"), "--batch-size=4", *more]) == 0
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(said) == 4 and all(each["threshold"] == pytest.approx(threshold, abs=1e-6) for each in said)
        for each in said:
            assert (each["prediction"] == "") == (each["start"] is None) == (each["null_odds"] > each["threshold"])


def test_records_are_answered_as_they_come(
    run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without end, a chunk at a time; what was answered is in the file when a later record ends the command."""
    monkeypatch.setattr(task_model, "CHUNK", 3)
    taken = 0

    def endless() -> Iterator[dict[str, str]]:
        nonlocal taken
        for number in itertools.count():
            if number == 11:
                raise ValueError("the 12th record cannot be read")
            taken += 1
            yield {"id": str(number), "question": "the cat", "context": "" if number == 4 else "Bonn"}

    answers = open_model(run, 4).answers(endless())
    for number in range(7):
        assert ("error" in (said := next(answers))) == (number == 4)
        assert said.get("id", "4") == str(number) and taken == 3 * (number // 3 + 1)
    taken = 0
    with pytest.raises(ValueError, match="12th"):
        answer(open_model(run, 4, predict_command="qa"), endless(), str(tmp_path / "out.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["input"]["id"] for line in lines] == [str(number) for number in range(9)]
    assert len(list(itertools.islice(open_model(run, 4).answers(endless()), 2))) == 2


def test_files_without_answers_are_predicted_and_not_scored(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    bare = [{name: value for name, value in each.items() if name != "answers"} for each in QUESTIONS]
    (tmp_path / "test.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in bare))
    command = [str(run), "--data", str(tmp_path / "test.jsonl"), "--output", str(tmp_path / "out")]
    assert evaluate(command) == 0
    assert "no labels: predictions, no scores" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["scores"] == {}
    assert {*json.loads((tmp_path / "out" / "predictions.json").read_text())} == {each["id"] for each in QUESTIONS}


def test_a_file_with_labels_for_a_part_is_refused_before_it_is_predicted(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskModel, "predict", lambda *_: pytest.fail("predicted"))
    bare = {name: value for name, value in QUESTIONS[0].items() if name != "answers"}
    (tmp_path / "test.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (bare, *QUESTIONS[1:])))
    assert evaluate([str(run), "--data", str(tmp_path / "test.jsonl")]) == 2
    assert f"--data: 1 of {len(QUESTIONS)} examples have no label" in capsys.readouterr().err


def test_what_was_computed_is_said_before_files_cannot_be_written(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    twice = [str(run.parent / "dev.jsonl")] * 2
    assert evaluate([str(run), "--data", *twice, "--output", str(tmp_path / "out"), "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["examples"] == 8 and "give one file at a time" in said.err


def test_either_half_of_a_file_is_scored(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    halves = [evaluated(run, capsys, *more)["examples"] for more in ((), ("--dev-half=dev",), ("--dev-half=test",))]
    named = [half(str(each["id"])) for each in QUESTIONS]
    assert halves == [4, named.count("dev"), named.count("test")] and {*named} == {"dev", "test"}
    assert evaluate([str(run), "--data", str(run.parent / "dev.jsonl"), "--dev-half=dev"]) == 0
    assert "are in the half dev, the others are skipped" in capsys.readouterr().out


def test_a_file_with_broken_lines_is_answered_to_its_end(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """In the place of every one its error, the exit code says so; halves of characters are written as they were read."""
    lines = ['{"id": "a", "question": "the cat", "context": "Bonn \\ud83d"}', "{", json.dumps(QUESTIONS[1])]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    output = tmp_path / "made" / "out.jsonl"
    for _ in range(2):  # the second time over the first
        assert predict(["qa", str(run), "--file", str(tmp_path / "in.jsonl"), "--output", str(output)]) == 4
        assert "in.jsonl:2: not JSON" in (said := capsys.readouterr().err)
        assert "1 of 3 records could not be answered" in said and "all others are answered" in said
        found = [json.loads(line) for line in output.read_text().splitlines()]
        assert [each.get("id") for each in found] == ["a", None, "Anna"]
        assert found[0]["input"]["context"] == "Bonn \ud83d" and "in.jsonl:2" in found[1]["error"]
    assert predict(["qa", str(run), "--file", str(output), "--output", str(output)]) == 2
    assert "is read as --file: give another name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ([], 2, "no record in the files: expected one at least"),
        (["", "  "], 2, "no record in the files"),
        (['{"question": "the cat"}', '{"context": "Bonn"}'], 2, "none of 2 records is answered"),
        (['{"question": "the cat"}', "{", "[]"], 2, "none of 3 records is answered"),
        ([json.dumps(QUESTIONS[0]), '{"question": "the cat"}'], 4, "1 of 2 records could not be answered"),
        ([json.dumps(QUESTIONS[0])], 0, ""),
    ],
)
def test_the_exit_code_says_how_many_records_failed(
    lines: list[str], code: int, said: str, run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert predict(["qa", str(run), "--file", str(tmp_path / "in.jsonl")]) == code
    printed = capsys.readouterr()
    assert said in printed.err and (code or not printed.err)
    answers = [json.loads(line) for line in printed.out.splitlines()]
    assert len(answers) == len([line for line in lines if line.strip()])
    assert sum("error" in each for each in answers) == len(
        [line for line in lines if '"id"' not in line and line.strip()]
    )
    if code and answers:
        assert "record" in printed.err and "the context is missing" in printed.err


def test_an_evaluation_without_a_usable_example_fails(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"question": "the cat"}\n')
    for name in ("empty.jsonl", "bad.jsonl"):
        assert evaluate([str(run), "--data", str(tmp_path / name), "--skip-bad"]) == 2
        assert f"no examples in {tmp_path / name}" in capsys.readouterr().err


def test_answers_that_belong_together_are_scored_as_quoref_scores_them(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    both = {"id": "both", "question": "the cat", "context": "Bonn", "answers": [{"text": "Bonn", "start": 0}]}
    parts = {
        **both,
        "id": "parts",
        "context": "Anna Bonn",
        "answers": {"text": ["Anna", "Bonn"], "answer_start": [0, 5]},
    }
    (tmp_path / "dev.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (both, parts)))
    command = [str(run), "--data", str(tmp_path / "dev.jsonl"), "--task"]
    assert evaluate([*command, "quoref", "--output", str(tmp_path / "out")]) == 0
    assert "1 of 2 questions have several answers, scored as a set" in capsys.readouterr().out
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["scores"]
    assert scores["exact_match"] == 50 and scores["f1"] in (75, 66.5)  # one of the two, or both as one span
    assert evaluate([*command, "squad1"]) == 0
    assert "are read as alternatives; --objective.answers set" in capsys.readouterr().out
