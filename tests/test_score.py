"""`python -m spanjax.score`: the figures of the official scorers, of files in every form, and messages."""

import json
import pathlib
from typing import Any

import pytest

from spanjax import score

Files = Any
SQUAD = {"data": [{"paragraphs": [{"context": "The cat sat on a red mat.", "qas": [
    {"id": "q1", "question": "Who sat?", "answers": [{"text": "The cat", "answer_start": 0}]},
    {"id": "q2", "question": "On what?", "answers": [{"text": "a red mat", "answer_start": 15}]},
    {"id": "q3", "question": "Why?", "answers": [], "is_impossible": True}]}]}]}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert score.main([*map(str, words), "--json", "--samples", "40"]) == 0
    return json.loads(capsys.readouterr().out)


def test_questions_and_two_systems(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("dev.json", "one.json", "two.jsonl", "na.json")]
    files[0].write_text(json.dumps(SQUAD))
    files[1].write_text(json.dumps({"q1": "cat", "q2": "red mat", "q3": "hunger"}))
    files[2].write_text(
        '{"id": "q1", "prediction": "dog"}\n{"id": "q2", "prediction": "mat"}\n{"id": "q3", "prediction": ""}\n'
    )
    files[3].write_text(json.dumps({"q1": 0.1, "q2": 0.2, "q3": 0.9}))
    found = run(capsys, "squad2", "--gold", files[0], "--predictions", files[1], files[2])
    one, two = (system["scores"] for system in found["systems"])
    assert one["exact"] == pytest.approx(200 / 3) and two["exact"] == pytest.approx(100 / 3)
    assert two["f1"] == pytest.approx(100 * (0 + 2 / 3 + 1) / 3)
    assert found["differences"]["exact"]["difference"] == pytest.approx(100 / 3)
    assert (found["mcnemar"]["only_first"], found["mcnemar"]["only_second"]) == (2, 1)
    odds = run(
        capsys, "squad2", "--gold", files[0], "--predictions", files[1], "--na-probs", files[3], "--threshold", "0.5"
    )
    assert odds["systems"][0]["scores"]["exact"] == 100


def test_coreference_in_two_columns_and_in_twelve(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [("(0", "(0"), ("0)", "0)"), ("-", "-"), ("(0)", "-"), ("(1)", "(0)"), ("(1)", "(1)")]
    head, end = "#begin document (a/b); part 000\n", "#end document\n"
    two = tmp_path / "two.response"
    two.write_text(head + "".join(f"w\t{cell}\n" for _, cell in cells) + "\n" + end)
    twelve = tmp_path / "key.conll"
    twelve.write_text(head + "".join(f"a/b 0 {n} w - - - - - x * {cell}\n" for n, (cell, _) in enumerate(cells)) + end)
    scores = run(capsys, "coref", "--gold", twelve, "--predictions", two)["systems"][0]["scores"]
    # key {a b} {c d}, response {a c} {d}: no link is right, and all but one mention are found
    assert (scores["muc_f1"], scores["mention_recall"], scores["mention_precision"]) == (0, 75, 100)
    assert scores["bcub_recall"] == pytest.approx(100 * (0.5 + 0.5 + 0.5) / 4)
    same = run(capsys, "coref", "--gold", twelve, "--predictions", twelve)["systems"][0]
    assert same["scores"]["f1"] == 100 and same["intervals"]["f1"] == {"low": 100, "high": 100}


def test_labels_of_glue_relations_and_entities(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    def file(name: str, text: str) -> pathlib.Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    gold = file("rte.tsv", "index\tsentence1\tsentence2\tlabel\n" + "".join(
        f"{n}\ta b\tc\t{label}\n" for n, label in enumerate(["entailment", "not_entailment", "entailment"])))  # fmt: skip
    submitted = file("RTE.tsv", "index\tprediction\n2\tentailment\n0\tentailment\n1\tentailment\n")
    plain = file("rte.txt", "entailment\nentailment\nentailment\n")
    found = run(capsys, "RTE", "--gold", gold, "--predictions", submitted, plain)
    assert [system["scores"]["accuracy"] for system in found["systems"]] == [pytest.approx(200 / 3)] * 2
    assert found["differences"]["accuracy"]["p"] == 1 and found["mcnemar"]["exact_p"] == 1
    key = file("key.txt", "1\tCause-Effect(e1,e2)\n2\tOther\n3\tCause-Effect(e2,e1)\n")
    proposed = file("proposed.txt", "1\tCause-Effect(e1,e2)\n3\tCause-Effect(e1,e2)\n")
    assert score.main(["semeval", "--gold", str(key), "--predictions", str(proposed)]) == 2
    assert "1 ids have no prediction: 2" in capsys.readouterr().err
    relations = run(capsys, "semeval", "--gold", key, "--predictions", proposed, "--missing-is-wrong")
    assert relations["systems"][0]["scores"]["f1"] == 50
    labels = file("gold.txt", "no_relation\nper:age\n")
    tacred = run(capsys, "tacred", "--gold", labels, "--predictions", file("p.txt", "per:age\nper:age\n"))
    assert tacred["systems"][0]["scores"]["f1"] == pytest.approx(200 / 3)
    columns = file("both.conll", "EU B-ORG B-ORG\nsays O B-PER\n\nBonn B-LOC B-LOC\n")
    entities = run(capsys, "ner", "--predictions", columns)["systems"][0]["scores"]
    assert entities["precision"] == pytest.approx(200 / 3) and entities["recall"] == 100


def test_messages(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score.main(["glue", "--predictions", "a", "b", "c"]) == 2
    err = capsys.readouterr().err
    assert "TASK is glue: expected one of squad1" in err and "names 3 files" in err and "--gold is missing" in err
    gold, bad = tmp_path / "dev.json", tmp_path / "bad.json"
    gold.write_text(json.dumps(SQUAD))
    bad.write_text('{"q1": "a"\n')
    assert score.main(["squad2", "--gold", str(gold), "--predictions", str(bad)]) == 2
    assert "bad.json:1" in capsys.readouterr().err
    bad.write_text('{"q1": "a"}\n')
    assert score.main(["squad2", "--gold", str(gold), "--predictions", str(bad)]) == 2
    assert "2 ids have no prediction" in capsys.readouterr().err


def test_published_predictions_and_the_official_cases(
    shared_data: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = json.loads((shared_data / "coref/scorer_cases/expected_metrics.json").read_text())["cases"]
    compared = 0
    for case in cases:
        files = [shared_data / "coref/scorer_cases" / case[name] for name in ("key_file", "response_file")]
        if not all(file.is_file() for file in files):
            continue
        words = ("coref", "--gold", str(files[0]), "--predictions", str(files[1]), "--samples", "0", "--json")
        assert score.main([*words]) == 0
        scores = json.loads(capsys.readouterr().out)["systems"][0]["scores"]
        for metric, figures in case["expected"].items():
            for part, value in figures.items():
                if (case["id"], metric) == ("B1", "muc"):
                    value = 1 / 3  # 1 of 3 links by hand; the official file states 1 in a line that is commented out
                assert scores[f"{metric}_{part}"] == pytest.approx(100 * value, abs=0.01), (case["id"], metric, part)
                compared += 1
    assert compared > 200
    folder = shared_data / "squad"
    expected = json.loads((folder / "predictions/expected-scores.json").read_text())["v1.1-bert-ensemble"]["scores"]
    words = ("--gold", folder / "dev-v1.1.json.gz", "--predictions", folder / "predictions/v1.1-bert-ensemble.json.gz")
    assert score.main(["squad1", *map(str, words), "--samples", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["systems"][0]["scores"]
    assert (found["exact_match"], found["f1"]) == pytest.approx((expected["exact"], expected["f1"]))
