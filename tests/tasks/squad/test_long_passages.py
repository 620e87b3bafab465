"""A passage of 100,000 characters in many scripts: every piece is shown, answers keep their characters, training goes on."""

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.data.sources.cleaning import clean
from spanjax.data.vocab.loading import ByteBpeVocabulary, Vocabulary, save_vocabulary
from spanjax.data.vocab.offsets import pieces_of
from spanjax.data.vocab.training import train_byte_bpe
from spanjax.tasks.squad.passage_windows import WindowSettings, windows
from spanjax.tasks.squad.questions import read_questions
from tests.made import made_sentences
from tests.running import ROOT, TINY, records
from tests.tasks.small_vocabulary import small_wordpiece

SCRIPTS = (
    "The cat sat, naïve. 老船长在港口修理旧钟。東京 أصلح البحّار السّاعة؟ עברית: שָׁלוֹם Ελληνικά и русский नमस्ते दुनिया "
    "ภาษาไทยทำน้ำ 한국어도 🙂👍🏽 ｶﾞｷﾞ \u200b\u200d zero\u200bwidth \ue000 "
)
ANSWERS = ("Anna of 東京", "ภาษาไทย", "👍🏽", "שָׁלוֹם")
SIZE = 100_000
LAYOUT = WindowSettings(length=128, stride=96, max_query=16, first="question")


def passage() -> str:
    """Exactly so many characters; each of the answers stands after the last quarter begins, the first one only there."""
    before, last = SCRIPTS * (3 * SIZE // 4 // len(SCRIPTS)), f"{ANSWERS[0]} {SCRIPTS}"
    return (before + last + SCRIPTS * (SIZE // len(SCRIPTS)))[:SIZE]


def span_of(answer: str) -> tuple[int, int]:
    start = CONTEXT.index(answer, 3 * SIZE // 4 - len(SCRIPTS))
    return start, start + len(answer)


CONTEXT = passage()
VOCABULARIES: dict[str, Any] = {
    "wordpiece": small_wordpiece,
    "bytes": lambda: ByteBpeVocabulary(train_byte_bpe([*made_sentences(50), SCRIPTS], 400)),
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_windows_show_every_piece(kind: str) -> None:
    vocabulary: Vocabulary = VOCABULARIES[kind]()
    assert len(CONTEXT) == SIZE
    query, found = pieces_of(["Who sat?", CONTEXT], vocabulary)
    assert np.all(np.diff(found.starts_T) >= 0) and found.ends_T[-1] <= SIZE
    for answer in ANSWERS:
        start, end = span_of(answer)
        seen, hits = np.zeros(len(found.ids_T), int), 0
        first = 0
        for placed in windows(query.ids_T, found, (start, end), vocabulary, LAYOUT):
            assert len(placed.tokens_T) <= LAYOUT.length
            seen[first : first + len(placed.window.widest_T)] += placed.window.widest_T
            first += min(LAYOUT.stride, LAYOUT.room(len(query.ids_T), vocabulary.separators))
            if placed.start:
                hits += 1
                ends = placed.start - placed.window.offset, placed.end - placed.window.offset
                text = CONTEXT[placed.window.starts_T[ends[0]] : placed.window.ends_T[ends[1]]]
                assert answer in text and len(text) < 40, text
        assert hits and (seen == 1).all(), "each piece is in the widest place of one window"


def question(name: str, **changes: Any) -> dict[str, Any]:
    start, _ = span_of(ANSWERS[0])
    answers = [{"text": ANSWERS[0], "start": start}]
    return {"id": name, "question": "Who sat?", "context": CONTEXT, "answers": answers, **changes}


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two good questions on long passages, and four bad lines."""
    path, start = tmp_path / "long.jsonl", span_of(ANSWERS[0])[0]
    lines = [
        json.dumps(question("long")),
        json.dumps(question("moved", answers=[{"text": ANSWERS[0], "start": start - 1}])),
        json.dumps(question("behind", answers=[{"text": "cat", "start": SIZE + 5}])),
        json.dumps(question("cut"))[: SIZE // 2],
        json.dumps(question("blank", context=" \u200b" * (SIZE // 2))),
        json.dumps(question("short", context="老船 sat.", answers=[{"text": "老船", "start": 0}])),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_bad_questions_on_long_passages_are_listed(file: pathlib.Path) -> None:
    found = read_questions(file, unanswerable=False)
    assert [each.name for each in found] == ["long", "short"] and found[0].context == CONTEXT
    start = span_of(ANSWERS[0])[0]
    says = [
        f"at {start - 1} is",
        f"at {SIZE + 5} is ''; expected the answer 'cat', which is at",
        "not JSON",
        "the context is empty",
    ]
    assert len(found.problems) == 4
    for line, problem, said in zip((2, 3, 4, 5), found.problems, says, strict=True):
        assert problem.startswith(f"{file}:{line}: ") and said in problem and len(problem) < 400
    assert clean(CONTEXT) != CONTEXT, "some of its characters are cleaned away"


@pytest.mark.slow
def test_training_leaves_them_out(file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    save_vocabulary(small_wordpiece(), tmp_path / "vocabulary")
    command = [
        f"--config={ROOT / 'configs/finetune/squad1.py'}",
        *TINY,
        "--encoder.layers=1",
        "--encoder.hidden-size=16",
    ]
    command += [f"--objective.vocabulary={tmp_path / 'vocabulary'}", f"--train={file}", f"--dev={file}"]
    command += ["--objective.length=128", "--objective.stride=120", "--objective.max-query=8", "--objective.epochs=1"]
    command += ["--batch-size=64", f"--workdir={tmp_path / 'run'}", "--cadence.log-every=1"]
    assert train.main(command) == 2
    said = capsys.readouterr().err
    assert all(f"{file}:{line}: " in said for line in (2, 3, 4, 5)) and "--skip-bad" in said
    assert train.main([*command, "--skip-bad"]) == 0
    assert capsys.readouterr().out.count("skipped: ") == 8, "of both files"
    losses = records(tmp_path / "run", "train/task/loss")
    assert len(losses) == 5 and all(math.isfinite(loss) for loss in losses.values())
    assert 0 <= max(records(tmp_path / "run", "eval/score/f1").values()) <= 100
