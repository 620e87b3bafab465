"""Question answering as a task: what is learnt, loss and padding, scores, files, and training that fits real questions."""

import dataclasses
import gzip
import json
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spanjax import train
from spanjax.data.vocab.wordpiece import WordPieceVocabulary
from spanjax.experiment.finetune import open_task_session
from spanjax.nn.config import EncoderConfig
from spanjax.predict import main as predict
from spanjax.tasks.base import LOSS
from spanjax.tasks.rows import TaskRows
from spanjax.tasks.squad import Questions, half
from spanjax.tasks.squad.answers import Answer, Prediction
from spanjax.tasks.squad.questions import Question
from tests.made import tiny_encoder
from tests.running import ROOT, TINY, records

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
VOCABULARY = WordPieceVocabulary(PIECES, lower_case=False)
ENCODER = tiny_encoder(vocab_size=len(PIECES), layers=1, initializer_std=0.3)
TASK = Questions(version="2.0", length=16, stride=4, max_query=4)
QUESTIONS = [
    Question("1", "a b", "a b c d e f g h a b c d e f", ("g h", "b"), ((12, 15), (2, 3))),
    Question("2", "c", "a b c", (), ()),
    Question("3", "d e", "d e f", None, ()),
]


def predicted(text: str, odds: float = 0.0) -> Prediction:
    return Prediction(text, odds, (Answer(text, 1.0, 2.0, 3.0, 4, 4 + len(text)),))


def test_windows_are_rows_and_those_without_the_answer_point_at_cls() -> None:
    rows = list(TASK.rows(QUESTIONS, VOCABULARY))
    assert [row.example for row in rows] == [0, 0, 1, 2]
    assert [(int(row.fields["start_B"]), int(row.fields["end_B"])) for row in rows] == [
        (10, 11),
        (6, 7),
        (0, 0),
        (0, 0),
    ]
    short = list(dataclasses.replace(TASK, stride=8).rows(QUESTIONS[:1], VOCABULARY))
    assert [(int(row.fields["start_B"]), int(row.fields["end_B"])) for row in short] == [(10, 11), (0, 0)]


@pytest.mark.parametrize(("version", "learnt"), [("1.1", (12, 15)), ("2.0", (12, 15)), ("mrqa", (2, 3))])
def test_the_answer_that_is_learnt(version: Any, learnt: tuple[int, int]) -> None:
    task = dataclasses.replace(TASK, version=version)
    assert [task.learnt(each) for each in QUESTIONS] == [learnt, None, None]
    both = QUESTIONS[0]._replace(spans=((2, 9), (2, 3), (0, 30)))
    assert task.learnt(both) == ((0, 30) if version == "mrqa" else (2, 9))


@pytest.fixture(scope="module")
def module() -> Any:
    return TASK.build(ENCODER, nnx.Rngs(0))


def test_training_needs_answers() -> None:
    """A misspelt field is not a file of questions without an answer."""
    unknown = Question("a", "Who?", "The cat sat.", None, ())
    with pytest.raises(ValueError, match="no training question has answers: give examples with `answers`"):
        TASK.with_training_labels([unknown], VOCABULARY)
    none = unknown._replace(answers=())
    assert TASK.with_training_labels([none, unknown], VOCABULARY) == TASK


def test_the_loss_is_the_mean_of_two_cross_entropies_over_real_positions(module: Any) -> None:
    rows = list(TASK.rows(QUESTIONS, VOCABULARY))
    packed = TaskRows(rows, VOCABULARY.specials.pad, TASK.lengths)
    batch: Any = packed.batch(np.array([0, 2, -1]), np.arange(3), 16)
    found = TASK.measure(module, batch, None)
    outputs = {name: np.asarray(value) for name, value in TASK.outputs(module, batch).items()}
    assert all(value.dtype == np.float32 and value.shape == (3, 16) for value in outputs.values())
    total = 0.0
    for place, row in ((0, rows[0]), (1, rows[2])):
        size = len(row.tokens_T)
        for name, side in (("start_BL", "start_B"), ("end_BL", "end_B")):
            logits = outputs[name][place, :size].astype(np.float64)
            assert np.all(outputs[name][place, size:] == -1e9)
            total += (math.log(np.exp(logits).sum()) - logits[row.fields[side]]) / 2
    assert np.isclose(float(found[LOSS].total), total, rtol=1e-5) and float(found[LOSS].count) == 2
    assert float(TASK.counts(batch)[LOSS]) == 2


def test_the_scores_are_those_of_the_prediction_head() -> None:
    task = dataclasses.replace(TASK, pooler="prediction_head")
    module: Any = task.build(ENCODER, nnx.Rngs(0))
    packed = TaskRows(list(task.rows(QUESTIONS, VOCABULARY)), VOCABULARY.specials.pad, task.lengths)
    batch = made_batch(packed, 16)
    read_BLD = module.prediction_head(task.hidden(module, batch, None))
    used_BL = batch["segments_BL"] > 0
    for side, found_BL in enumerate(task.outputs(module, batch).values()):
        expected_BL = module.qa(read_BLD)[..., side]
        np.testing.assert_allclose(np.asarray(found_BL)[used_BL], np.asarray(expected_BL)[used_BL], atol=1e-5)
    plain: Any = TASK.build(ENCODER, nnx.Rngs(0))
    assert not hasattr(plain, "prediction_head")
    assert Questions.settings_from_hf({"encoder", "qa", "prediction_head"}, ()) == {"pooler": "prediction_head"}
    assert Questions.settings_from_hf({"encoder", "qa", "pooler"}, ()) == {}


def made_batch(packed: TaskRows, length: int) -> Any:
    return packed.batch(np.array([2, 3]), np.arange(2), length)


def test_padding_changes_nothing(module: Any) -> None:
    packed = TaskRows(list(TASK.rows(QUESTIONS, VOCABULARY)), VOCABULARY.specials.pad, TASK.lengths)
    short, long = (made_batch(packed, length) for length in (8, 48))
    one, other = (TASK.outputs(module, batch) for batch in (short, long))
    for name in one:
        assert jnp.allclose(one[name], other[name][:, :8], atol=1e-5), name
    assert np.isclose(
        float(TASK.measure(module, short, None)[LOSS].total), float(TASK.measure(module, long, None)[LOSS].total)
    )


def test_predictions_put_windows_together() -> None:
    rows = list(TASK.rows(QUESTIONS, VOCABULARY))
    outputs = [{name: np.full(len(row.tokens_T), -9, np.float32) for name in ("start_BL", "end_BL")} for row in rows]
    outputs[1]["start_BL"][6] = outputs[1]["end_BL"][7] = 7  # "g h", around which the first window shows more
    outputs[1]["start_BL"][9] = outputs[1]["end_BL"][10] = 5  # "b c"
    outputs[1]["start_BL"][0] = 8
    found = TASK.predictions(QUESTIONS, rows, outputs)
    assert found[0].text == "b c" and found[0].null_odds == -18 - 10
    assert [each.text for each in found[1:]] == ["a", "d"]


def test_scores_of_every_version() -> None:
    answered = [QUESTIONS[0], QUESTIONS[0]]  # the same id twice: two files
    guesses = [predicted("g h"), predicted("b c")]
    for version in ("1.1", "mrqa"):
        task = dataclasses.replace(TASK, version=version)
        assert task.scores(answered, guesses) == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}
        assert task.metric == "f1"
    found = TASK.scores(QUESTIONS[:2], [predicted("g h", 1.0), predicted("a", 4.0)])
    assert TASK.metric == "best_f1" and found["best_f1"] == 100 and found["best_f1_thresh"] == 1.0
    assert found["f1"] == 50.0  # at a threshold of 0 nothing is answered
    higher = dataclasses.replace(TASK, threshold=2.0)
    assert higher.scores(QUESTIONS[:2], [predicted("g h", 1.0), predicted("a", 4.0)])["f1"] == 100
    with pytest.raises(ValueError, match="1 questions have no answers: 3; scores need those of every question"):
        TASK.scores(QUESTIONS, [predicted("a")] * 3)


def test_files_of_predictions(tmp_path: pathlib.Path) -> None:
    files = TASK.write(tmp_path, QUESTIONS[:2], [predicted("g h", -1.0), predicted("b", 0.5)])
    contents = {path.name: json.loads(path.read_text()) for path in files}
    nbest = [{"text": text, "probability": 1.0, "start_logit": 2.0, "end_logit": 3.0} for text in ("g h", "b")]
    assert contents == {
        "predictions.json": {"1": "g h", "2": ""},
        "nbest_predictions.json": {"1": nbest[:1], "2": nbest[1:]},
        "null_odds.json": {"1": -1.0, "2": 0.5},
        "best_non_null.json": {"1": "g h", "2": "b"},
    }
    task = dataclasses.replace(TASK, version="1.1")
    assert [path.name for path in task.write(tmp_path, QUESTIONS[:1], [predicted("x")])] == [
        "predictions.json",
        "nbest_predictions.json",
    ]
    with pytest.raises(ValueError, match="1 ids are those of several questions: '?1'?; predictions are written by id"):
        TASK.write(tmp_path, [QUESTIONS[0]] * 2, [predicted("x")] * 2)


def test_what_is_shown_has_the_characters_of_the_answer() -> None:
    context = "  a b\u00e9\U0001f600 c"  # characters, not bytes
    question = Question("7", "c", context, None, ())
    rows = list(TASK.rows([question], VOCABULARY))
    outputs = [{name: np.full(len(row.tokens_T), -9, np.float32) for name in ("start_BL", "end_BL")} for row in rows]
    outputs[0]["start_BL"][-2] = outputs[0]["end_BL"][-2] = 3  # the last piece of the passage
    outputs[0]["start_BL"][0] = -2.5  # null odds of -17.5
    for task, text in ((TASK, "c"), (dataclasses.replace(TASK, threshold=-20.0), "")):
        (prediction,) = task.predictions([question], rows, outputs)
        said = task.prediction_json(question, prediction, outputs)
        json.dumps(said)
        assert said["prediction"] == text and said["null_odds"] == -17.5
        assert (said["start"], said["end"]) == ((8, 9) if text else (None, None))
        assert len(said["best"]) == 3 and said["best"][0]["text"] == "c"
        for each in said["best"]:
            assert context[each["start"] : each["end"]] == each["text"] != ""
    nothing = Prediction("", 0.0, (Answer("", 1.0, 2.0, 3.0, None, None),))
    said = dataclasses.replace(TASK, version="1.1").prediction_json(question, nothing, [])
    assert (said["prediction"], said["start"], said["end"], said["best"][0]["start"]) == ("", None, None, None)


def test_several_answers_are_a_set_where_the_setting_says_so(tmp_path: pathlib.Path) -> None:
    asked = [Question("a", "who?", "Anna Bonn IBM", ("Anna", "Bonn"), ((0, 4), (5, 9)))]
    asked.append(Question("b", "who?", "Anna Bonn IBM", ("IBM",), ((10, 13),)))
    given = [predicted("Bonn"), predicted("IBM")]
    assert Questions().scores(asked, given) == {"exact_match": 100.0, "f1": 100.0}, "alternatives"
    together = Questions(answers="set")
    assert together.scores(asked, given) == {"exact_match": 50.0, "f1": 75.0}
    assert together.metric == "f1" and together.learnt(asked[0]) == (0, 4)
    for version in ("2.0", "mrqa"):
        (problem,) = Questions(version=version, answers="set").problems(EncoderConfig())
        assert problem == f"objective.answers is set: expected objective.version 1.1, got {version}"
    lines = [
        {
            "id": each.name,
            "question": "who?",
            "context": each.context,
            "answers": {"text": each.answers, "answer_start": starts},
        }
        for each, starts in zip(asked, ([0, 5], [10]), strict=True)
    ]
    (path := tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    (note,) = Questions().read(path).notes
    assert "1 of 1 questions with several answers" in note and "(a, ...)" in note and "--objective.answers set" in note
    (note,) = together.read(path).notes
    assert "1 of 2 questions have several answers, scored as a set: the first is learnt" in note


@pytest.mark.parametrize(
    ("name", "version", "alternatives", "together"),
    [
        ("dev-v1.1.json.gz", "1.1", "", "they look like alternatives"),
        ("dev-v2.0.json.gz", "2.0", "", ""),
        ("xquad-en-part1.json.gz", "1.1", "", ""),
        ("policyqa-dev.json.gz", "1.1", "", "they look like alternatives"),
        ("quoref-original-subset.json.gz", "1.1", "look like parts of one answer", "scored as a set"),
    ],
)
def test_a_note_where_the_data_look_like_the_other_kind(
    name: str, version: Any, alternatives: str, together: str, shared_data: pathlib.Path
) -> None:
    path = shared_data / "squad" / name
    notes = Questions(version=version).read(path).notes
    assert (alternatives in "".join(notes)) and bool(notes) == bool(alternatives)
    if version == "1.1":
        notes = Questions(answers="set").read(path).notes
        assert together in "".join(notes) and len(notes) == (2 if "alternatives" in together else bool(together))


def test_halves(tmp_path: pathlib.Path) -> None:
    record = {"question": "Who?", "context": "a b", "answers": [{"text": "a", "start": 0}]}
    for name in ("train.jsonl", "dev.jsonl"):
        lines = [json.dumps({"id": f"q{number}", **record}) for number in range(400)]
        (tmp_path / name).write_text("\n".join([*lines, "{"]))
    names: dict[str, set[str]] = {}
    for which in ("", "dev", "test"):
        task = Questions(version="mrqa", dev_half=which, train=(str(tmp_path / "train.jsonl"),))
        found = task.read(tmp_path / "dev.jsonl")
        names[which] = {each.name for each in found}
        assert len(found.problems) == 1 and len(task.read(tmp_path / "train.jsonl")) == 400
    assert names["dev"] | names["test"] == names[""] and not names["dev"] & names["test"]
    assert 160 < len(names["dev"]) < 240
    halves = {"q0": "dev", "q1": "test", "q2": "dev", "q3": "dev"}  # sha256sum begins with 34, c7, be, 58
    assert {name: half(name) for name in halves} == halves


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stride": 0}, "objective.stride is 0: expected at least 1"),
        ({"n_best": 0}, "objective.n_best is 0"),
        ({"max_answer": 0}, "objective.max_answer is 0"),
        ({"max_query": 0}, "objective.max_query is 0"),
        ({"max_query": 13}, "objective.length is 16: expected at least 17"),
        ({"dev_half": "dev", "train": ("a", "b"), "dev": ("b",)}, "objective.dev_half is dev: b is trained on"),
    ],
)
def test_problems(changes: dict[str, Any], says: str) -> None:
    assert TASK.problems(ENCODER) == []
    assert any(says in problem for problem in dataclasses.replace(TASK, **changes).problems(ENCODER))


def short_questions(shared_data: pathlib.Path, count: int) -> dict[str, Any]:
    """So many real questions on different short passages, in SQuAD's form."""
    content = json.loads(gzip.decompress((shared_data / "squad" / "dev-v1.1.json.gz").read_bytes()))
    parts = [part for article in content["data"] for part in article["paragraphs"] if 200 < len(part["context"]) < 270]
    assert len(parts) >= count
    kept = [{"context": part["context"], "qas": part["qas"][:1]} for part in parts[:count]]
    return {"version": "1.1", "data": [{"title": "", "paragraphs": kept}]}


@pytest.mark.slow
def test_training_fits_real_questions(
    shared_data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    file, workdir = tmp_path / "questions.json", tmp_path / "run"
    file.write_text(json.dumps(short_questions(shared_data, 20)))
    sizes = [word for word in TINY if "batch-size" not in word and "hidden-size" not in word]
    arguments = [
        f"--config={ROOT / 'configs/finetune/squad1.py'}",
        *sizes,
        "--encoder.layers=1",
        "--encoder.hidden-size=32",
        "--encoder.dropout=0",
        f"--objective.vocabulary={shared_data / 'vocab' / 'bert-base-cased-vocab.txt'}",
        "--objective.length=96",
        "--objective.stride=24",
        "--objective.max-query=32",
        "--objective.evaluations=1",
        "--optimizer.learning-rate=0.01",
        "--batch-size=20",
        "--train",
        *[str(file)] * 60,  # an epoch of sixty passes
        "--dev",
        str(file),
    ]
    arguments += ["--objective.epochs=1", f"--workdir={workdir}"]
    assert train.main(arguments) == 0
    session = open_task_session(train.parse(arguments).run)
    untrained = session.evaluator()(session.fresh_state(None).params, lambda: None)["score/f1"]
    f1 = records(workdir, "eval/score/f1")
    assert untrained < 25 and f1[max(f1)] > 75 > 2 * untrained

    capsys.readouterr()
    asked = Questions().read(file)[:3]
    lines = tmp_path / "asked.jsonl"
    lines.write_text(
        "".join(json.dumps({"id": q.name, "question": q.question, "context": q.context}) + "\n" for q in asked)
    )
    assert predict(["qa", str(workdir), "--file", str(lines), "--question", "Who?", "--context", asked[0].context]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["id"] for each in said[1:]] == [each.name for each in asked]
    assert said[0]["prediction"] in asked[0].context and 0 < said[0]["best"][0]["probability"] <= 1
    assert all(
        q.context[each["start"] : each["end"]] == each["prediction"] for each, q in zip(said[1:], asked, strict=True)
    )
    assert sum(each["prediction"] in q.answers for each, q in zip(said[1:], asked, strict=True)) >= 2
