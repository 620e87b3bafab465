"""What becomes of files of text, of the language that is asked for, and of characters that no file can hold."""

import dataclasses
import io
import json
import pathlib
import sys
import types
from typing import Any

import pytest

from spanjax.inference import task_model
from spanjax.predict import main
from spanjax.tasks.coref import Coref
from spanjax.tasks.coref.answers import CorefPrediction
from spanjax.tasks.coref.documents import CorefDocument

pytest.importorskip("spacy", reason="spaCy is not installed (spanjax[spacy])")
CLUSTER = ((0, 0), (3, 3))


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model to which the first and the fourth word are one."""

    def predict(documents: list[CorefDocument]) -> Any:
        answers = [CorefPrediction((CLUSTER,), dict.fromkeys(CLUSTER, 0.5)) for _ in documents]
        return types.SimpleNamespace(predictions=answers)

    def opened(path: str, batch_size: int, predict_command: str, **settings: Any) -> Any:
        return types.SimpleNamespace(task=dataclasses.replace(Coref(), **settings), predict=predict)

    monkeypatch.setattr(task_model, "open_model", opened)


def found(text: list[pathlib.Path], folder: pathlib.Path, *more: str) -> list[dict[str, Any]]:
    """The lines of clusters.jsonl."""
    assert main(["coref", "no-model", "--text", *map(str, text), "--output", str(folder), *more]) == 0
    return [json.loads(line) for line in (folder / "clusters.jsonl").read_text(encoding="utf-8").splitlines()]


def test_half_a_character_loses_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "\\ud83d sat . \\ud83d left é ."}\n{"text": "Zoë sat . She left ."}\n', encoding="utf-8")
    broken, whole = found([path], tmp_path / "told")
    assert [each["text"] for each in broken["prediction"][0]] == ["\ud83d"] * 2
    assert [each["text"] for each in whole["prediction"][0]] == ["Zoë", "She"]
    assert '"Zoë"' in (tmp_path / "told" / "clusters.jsonl").read_text(encoding="utf-8")
    assert ">\ufffd<" in (tmp_path / "told" / "clusters.html").read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", printed := io.TextIOWrapper(io.BytesIO(), "latin-1"))
    assert main(["coref", "no-model", "--text", str(path)]) == 0
    printed.seek(0)
    assert [json.loads(line) for line in printed] == [broken, whole]


def test_clusters_of_before_are_replaced_when_asked(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    text, told = tmp_path / "a.txt", tmp_path / "told"
    text.write_text("Ida sat. She left.")
    found([text], told)
    (told / "clusters.jsonl").write_text("checked by hand")
    command = ["coref", "no-model", "--text", str(text), "--output", str(told)]
    assert main(command) == 2 and "--overwrite" in capsys.readouterr().err
    assert (told / "clusters.jsonl").read_text() == "checked by hand"
    assert len(found([text], told, "--overwrite")) == 1


def test_files_of_other_endings_are_texts(tmp_path: pathlib.Path) -> None:
    text = "Ida sat.\r\n\r\nShe left."
    for name in ("story.md", "story"):
        (tmp_path / name).write_bytes(text.encode())
    told = found([tmp_path / "story.md", tmp_path / "story"], tmp_path / "told")
    assert [each["id"] for each in told] == ["story.md", "story"]
    for each in told:
        for mention in each["prediction"][0]:
            assert text[mention["start"] : mention["end"]] == mention["text"]
    page = (tmp_path / "told" / "clusters.html").read_bytes().decode()
    assert "sat.\n\n<mark" in page and "\ufffd" not in page and "\r" not in page
    names = {"clusters.jsonl", "clusters.html", "predictions.conll", "predictions.jsonl", "left_out.json"}
    assert {each.name for each in (tmp_path / "told").iterdir()} == names


def test_folders_are_read_with_their_subfolders(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    texts = tmp_path / "texts"
    (texts / "more").mkdir(parents=True)
    for name in ("b.txt", "more/a.md", ".hidden", "c.jsonl"):
        (texts / name).write_text(
            '{"text": "Ida sat. She left.", "id": "c"}' if name == "c.jsonl" else "Ida sat. She left."
        )
    single = tmp_path / "single.txt"
    single.write_text("Ida sat. She left.")
    assert [each["id"] for each in found([texts, single], tmp_path / "told")] == ["b", "c", "a.md", "single"]
    (tmp_path / "empty").mkdir()
    assert main(["coref", "no-model", "--text", str(tmp_path / "empty")]) == 2
    assert "a folder without files; expected texts or documents in it" in capsys.readouterr().err


def test_a_long_document_is_resolved_among_few_spans_unless_read_in_windows(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    text = tmp_path / "long.txt"
    text.write_text("She left. " * 3300)
    found([text], tmp_path / "told")
    assert "long has 9,900 words, of which the model keeps 3,900 spans: --memory 2000" in capsys.readouterr().err
    found([text], tmp_path / "again", "--memory", "2000")
    assert "--memory" not in capsys.readouterr().err


def test_the_language_of_texts(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "x.txt").write_text("我爱北京。", encoding="utf-8")
    (told,) = found([tmp_path / "x.txt"], tmp_path / "told", "--language", "zh")
    assert told["sentences"] == [["我", "爱", "北", "京", "。"]]
    assert main(["coref", "no-model", "--text", str(tmp_path / "x.txt"), "--language", "qq"]) == 2
    assert "--text: the language of text is 'qq'" in capsys.readouterr().err
