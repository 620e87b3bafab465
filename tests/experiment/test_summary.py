"""Masked examples in words: spans, boundaries and truth are the batch's."""

import pathlib
import shlex

import numpy as np
import pytest

from spanjax import train
from spanjax.data.feed.rows import open_rows
from spanjax.data.inspect.as_text import first_block_spans, masked_text, original_tokens
from spanjax.data.vocab.loading import WordPieceVocabulary
from spanjax.experiment.summary import (
    TUNED_LENGTH,
    filled_text,
    hidden_phrase,
    pretrained_commands,
    sparkline,
    tuned_commands,
)
from spanjax.prepare import main as prepare
from spanjax.run import load
from tests.made import made_documents
from tests.running import ROOT, shrunk

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "an", "american", "foot", "##ball", "game", "was", "played"]
VOCABULARY = WordPieceVocabulary(PIECES)


def batch() -> dict:
    """[CLS] an american foot ##ball game was played [SEP], with "american football" masked, then padding."""
    tokens = np.array([[2, 5, 4, 4, 4, 9, 10, 11, 3, 0]], np.int32)
    slots = np.zeros((1, 8), np.int32)
    weights = np.array([[1, 1, 1, 0, 0, 0, 0, 0]], np.float32)

    def filled(*values: int) -> np.ndarray:
        array = slots.copy()
        array[0, : len(values)] = values
        return array

    return {
        "tokens_BL": tokens,
        "segments_BL": np.array([[1] * 9 + [0]], np.int32),
        "slot_position_BK": filled(2, 3, 4),
        "slot_target_BK": filled(6, 7, 8),
        "slot_weight_BK": weights,
        "slot_left_BK": filled(1, 1, 1),
        "slot_right_BK": filled(5, 5, 5),
        "slot_offset_BK": filled(0, 1, 2),
        "slot_boundary_weight_BK": weights,
    }


def test_masked_text_marks_the_span_and_its_boundaries() -> None:
    text = masked_text(batch(), 0, VOCABULARY)  # pyright: ignore[reportArgumentType]
    assert text == "|an| «american football → [MASK] [MASK] [MASK]» |game| was played"


def test_original_tokens_undo_the_masking() -> None:
    assert original_tokens(batch(), 0).tolist() == [2, 5, 6, 7, 8, 9, 10, 11, 3, 0]  # pyright: ignore


def test_filled_text_shows_truth_and_guesses() -> None:
    guesses = {"mlm": np.array([[6, 7, 8, 0, 0, 0, 0, 0]]), "sbo": np.array([[9, 10, 11, 0, 0, 0, 0, 0]])}
    lines = filled_text(batch(), 0, guesses, VOCABULARY)  # pyright: ignore[reportArgumentType]
    assert lines == [
        "masked   … an [MASK] [MASK] [MASK] game was played …",
        "truth    american football",
        "by mlm   american football",
        "by sbo   game was played",
    ]


def test_row_without_a_masked_token_has_nothing_to_fill() -> None:
    empty = {**batch(), "slot_weight_BK": np.zeros((1, 8), np.float32)}
    assert filled_text(empty, 0, {}, VOCABULARY) == []  # pyright: ignore[reportArgumentType]


def test_an_empty_row_has_no_spans_and_is_not_shown() -> None:
    """The rows that fill up the last batch of a small held-out set."""
    padding = {name: np.zeros_like(value) for name, value in batch().items()}
    assert first_block_spans(padding, 0) == []  # pyright: ignore[reportArgumentType]
    assert filled_text(padding, 0, {}, VOCABULARY) == []  # pyright: ignore[reportArgumentType]


def test_a_run_with_fewer_held_out_rows_than_a_batch_ends_clean(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """No span is masked throughout, so that the summary looks at every row, the empty ones too."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "corpus.txt").write_text("\n\n".join(made_documents(60)) + "\n")
    rows, workdir = tmp_path / "rows", tmp_path / "run"
    made = ["--input", str(tmp_path / "corpus.txt"), "--train-vocab", "120", "--length", "128", "--holdout", "0.05"]
    assert prepare([*made, "--workers", "1", "--output", str(rows)]) == 0
    assert 0 < len(open_rows(rows / "validation")) < 8
    seen = ["--objective.masking.replacement.mask=0", "--objective.masking.replacement.random=1"]
    more = ["--batch-size=8", "--data.feed=numpy", *seen]
    assert train.main(shrunk("configs/pretrain/tiny.py", rows, workdir, 1, *more)) == 0
    assert "finished: 1 steps" in capsys.readouterr().out and (workdir / "summary.json").exists()


def test_span_that_the_model_could_see_is_not_shown_as_filled_in() -> None:
    kept = batch()
    kept["tokens_BL"] = np.array([[2, 5, 6, 7, 8, 9, 10, 11, 3, 0]], np.int32)
    assert filled_text(kept, 0, {}, VOCABULARY) == []  # pyright: ignore[reportArgumentType]


def test_a_held_out_phrase_for_a_command_line() -> None:
    assert hidden_phrase(batch(), 0, VOCABULARY) == ("an american football game was played", "american football")  # pyright: ignore
    empty = {**batch(), "slot_weight_BK": np.zeros((1, 8), np.float32)}
    assert hidden_phrase(empty, 0, VOCABULARY) is None  # pyright: ignore[reportArgumentType]
    pieces = WordPieceVocabulary([*PIECES[:9], "ga\x1bme", *PIECES[10:]])
    assert hidden_phrase(batch(), 0, pieces) is None, "no control characters"  # pyright: ignore[reportArgumentType]


def test_a_phrase_does_not_begin_or_end_inside_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spanjax.experiment.summary.HINTED", 1)
    row = batch()
    # [CLS] american foot ##ball [MASK] was foot ##ball [SEP]
    row["tokens_BL"] = np.array([[2, 6, 7, 8, 4, 10, 7, 8, 3, 0]], np.int32)
    row |= {"slot_position_BK": np.full((1, 8), 4), "slot_target_BK": np.full((1, 8), 9)}
    row["slot_weight_BK"] = np.array([[1, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    assert hidden_phrase(row, 0, VOCABULARY) == ("game was", "game")  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("spanjax.experiment.summary.HINTED", 2)
    assert hidden_phrase(row, 0, VOCABULARY) == ("football game was football", "game")  # pyright: ignore[reportArgumentType]


def test_commands_fit_a_pretraining_run() -> None:
    sentence = ("it's a game", "a game")
    lines = pretrained_commands("runs/my run", sentence, fills=True, docs=False, positions=512)
    assert lines[1] == "checkpoints and curves are in runs/my run; next:"
    commands = [shlex.split(line.partition("      (")[0]) for line in lines[2:]]
    assert commands[0][3:] == ["spans", "runs/my run", "--text", "it's a game", "--hide", "a game"]
    assert (
        commands[1][3:7] == ["--config", "glue", "--init-from", "runs/my run"]
        and "--objective.length" not in commands[1]
    )
    assert commands[2][2:] == ["spanjax.convert", "to-torch", "runs/my run", "runs/my run-torch"]
    assert not [line for line in lines if "spanjax.prepare" in line]
    text = "\n".join(pretrained_commands("runs/demo", None, fills=False, docs=True, positions=64))
    assert (
        "predict" not in text
        and "--objective.length 64" in text
        and "spanjax.prepare --input 'your/text/*.txt'" in text
    )
    assert "--text TEXT --hide PHRASE" in "\n".join(pretrained_commands("a", None, True, False, 64))
    assert load("glue").objective.length == TUNED_LENGTH  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("command", "option"), [("qa", "--file"), ("coref", "--text"), ("task", "--file")])
def test_commands_fit_a_fine_tuning_run(command: str, option: str) -> None:
    first, second, third, _ = tuned_commands("runs/squad2", command, ("dev one.json", "two.json"))[2:]
    assert first == f"  python -m spanjax.predict {command} runs/squad2 {option} FILE"
    assert (
        second == "  python -m spanjax.evaluate runs/squad2 --data 'dev one.json' two.json --output runs/squad2-answers"
    )
    assert "to-torch runs/squad2 runs/squad2-torch" in third
    assert "--data FILE" in tuned_commands("runs/x", command, ())[3]


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0]) == "▁"
