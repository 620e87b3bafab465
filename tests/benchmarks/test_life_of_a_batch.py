"""docs/life-of-a-batch.md is that of a run traced now; the phase, the function and the sentence of a file."""

import pathlib

import pytest

from benchmarks import life_of_a_batch
from benchmarks.life_of_a_batch import PAGE, ROOT, Call, by_phase, page, public, sentence, traced


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_is_that_of_a_run_now() -> None:
    assert page(ROOT) == PAGE.read_text(), "run `python -m benchmarks.life_of_a_batch` and look at what has changed"


def test_a_phase_whose_function_is_gone_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that has only as much of spanjax as the trace needs; its run starts a thread."""
    (tmp_path / "spanjax" / "prepare").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "made.py").write_text("def made_documents(count): return []\n")
    (tmp_path / "spanjax" / "prepare" / "__init__.py").write_text("def main(arguments): return 0\n")
    (tmp_path / "spanjax" / "rows.py").write_text("def read(): pass\nread()\n")
    (tmp_path / "spanjax" / "train.py").write_text(
        "import threading\ndef feed(target):\n    thread = threading.Thread(target=target)\n    thread.start()\n"
        "    thread.join()\ndef main(arguments):\n    from spanjax import rows\n    feed(lambda: rows.read())\n    return 0\n"
    )
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    phases = {"train.py:main": "start", "train.py:feed": "feed"}
    assert [f"{call.phase} {call.file} {call.function}" for call in traced(tmp_path, phases)] == [
        "start train.py main",
        "feed train.py feed",
        "feed train.py main.<locals>.<lambda>",
        "feed rows.py read",
    ]
    with pytest.raises(RuntimeError, match=r"no call of train\.py:gone: correct PHASES"):
        traced(tmp_path, {**phases, "train.py:gone": "feed"})


def test_a_file_is_in_the_phase_of_most_of_its_functions() -> None:
    lines = """session rows.py check, session mesh.py mesh, session mesh.py Mesh.problems, session terms.py head,
        session settings.py Settings.problems, session heads.py Head.__init__, session heads.py Bias.__init__,
        loop watchdog.py at, feed watchdog.py at, feed rows.py Rows.__init__, feed rows.py Rows.read, feed rows.py Rows.find,
        feed order.py order, step terms.py loss, step heads.py Head.__call__, evaluation terms.py loss, evaluation terms.py mean,
        evaluation history.py add, end mesh.py mesh, end mesh.py size, end summary.py lines"""
    found = by_phase([Call(*line.split()) for line in lines.split(",")])
    assert {phase: files for phase, files in found.items() if files} == {
        "session": {"mesh.py": ["mesh"]},
        "loop": {"watchdog.py": ["at"]},
        "feed": {"rows.py": ["Rows", "Rows.read", "Rows.find"], "order.py": ["order"]},
        "step": {"terms.py": ["loss"], "heads.py": ["Head"]},
        "evaluation": {"history.py": ["add"]},
        "end": {"summary.py": ["lines"]},
    }


def test_public_functions() -> None:
    names = ["_a", "B._c", "f.<locals>.g", "B.__init__", "B.__enter__", "B.__call__", "B.d", "B.problems", "problems"]
    assert public(names) == ["B", "B.d"]


@pytest.mark.parametrize(
    ("docstring", "said"),
    [
        ("Packed rows on disk, read by\nindex. `shards` writes them.\n\nMore.", "Packed rows on disk, read by index."),
        ("python -m spanjax.train --config FILE: trains a run.", "Trains a run."),
        ("Rows (Joshi et al. 2020, section 3.1) as in BERT 2.0", "Rows (Joshi et al. 2020, section 3.1) as in BERT 2.0."),
        ("Variables: " + "a name, " * 20 + "and its value.", "Variables."),
    ],
)  # fmt: skip
def test_a_sentence_is_whole(docstring: str, said: str) -> None:
    assert sentence(docstring) == said


def test_main_writes_the_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_of_a_batch, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(life_of_a_batch, "traced", lambda tree: [Call("feed", "data/feed/rows.py", "open_rows")])
    assert life_of_a_batch.main() == 0
    line = "- [data/feed/rows.py](../spanjax/data/feed/rows.py), `open_rows`: Packed rows on disk, read by index.\n"
    assert line in (tmp_path / "page.md").read_text().replace("\n  ", " ")
