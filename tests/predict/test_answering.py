"""The commands of fine-tuned models: what their help says, what they refuse before a model is opened."""

import pathlib
import re

import pytest

from spanjax.predict import main
from spanjax.predict.answering import file_problem

pytestmark = pytest.mark.unit

OWN = {
    "qa": ("Questions on --context", "`question` and `context`", "Windows that go through", "null odds"),
    "classify": ("The second sentences, one for each of --text", "`sentence1` and `sentence2`", "Rows that go through"),
    "relation": ("<e1>...</e1>", "TACRED's form", "Rows that go through"),
    "ner": ("punctuation at their ends", "`words` (a list)", "Rows that go through"),
}
"""Words of the help that are of one command alone."""
SHARED = ("The folder of a run of fine-tuning", "a line of JSON each; empty prints them")


@pytest.mark.parametrize("name", OWN)
def test_the_help_is_each_commands_own(
    name: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0 and f"python -m spanjax.predict {name}" in said
    assert [words for words in (*SHARED, *OWN[name]) if words not in said] == []


@pytest.mark.parametrize("name", OWN)
def test_wrong_options_are_said_at_once(name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out.jsonl"
    words = [name, "no-model", "--file", str(tmp_path / "none.jsonl"), "--batch-size", "0", "--output", str(output)]
    assert main(words) == 2 and not output.exists()
    said = capsys.readouterr().err
    assert f"{name}: cannot " in said and "with no-model" in said
    assert "none.jsonl: no such file" in said and "--batch-size is 0: expected at least 1" in said
    assert main([name, "no-model"]) == 2
    assert f"{name}: cannot" in (said := capsys.readouterr().err) and "nothing to " in said and "or --file" in said


@pytest.mark.parametrize("name", [*OWN, "coref", "encode", "fill-mask", "spans"])
def test_the_usage_calls_the_model_as_the_texts_do(
    name: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    usage = capsys.readouterr().out.splitlines()[0]
    assert f"{name} [-h] " in usage and re.search(r" MODEL\b", usage) and not re.search(r"\] STR\b|\] STR$", usage)


def test_a_file_that_holds_no_answers_stays(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "out.jsonl"
    assert file_problem(str(output)) == file_problem("/dev/null") == ""
    for content in ('{"input": {"text": "x"}, "label": "y"}\n', '{"error": "line 1"}\n', ""):
        output.write_text(content)
        assert file_problem(str(output)) == ""
    output.write_text("mine")
    assert file_problem(str(output)).endswith("holds no answers: give another name")
