"""`predict examples`: phrases of held-out text, chosen by rule and filled by every model as `spans` fills them."""

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spanjax.data.feed.rows import open_rows
from spanjax.inference.fill_mask import Filler
from spanjax.predict import main
from spanjax.predict.examples import WORD, Example, chosen_examples, held_out_texts, hidden_phrases
from spanjax.pretrained.load import load_model


def test_phrases_are_plain_words_that_occur_once() -> None:
    text = "Anna sold the boat in 1990, and Anna bought another boat: the mayor painted it."
    found = [*hidden_phrases(text, 1, np.random.default_rng(0))]
    assert {each.hidden for each in found} == {"sold", "bought", "another", "mayor", "painted"}
    pairs = {each.hidden for each in hidden_phrases(text, 2, np.random.default_rng(0))}
    # not "in 1990," (no plain word), "and Anna" has one of four letters, "the boat" occurs once as a phrase
    assert {"the boat", "and Anna", "bought another", "mayor painted"} <= pairs
    assert all(WORD.fullmatch(word) for pair in pairs for word in pair.split())


def test_a_window_around_the_phrase() -> None:
    text = " ".join(f"word{chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(60))
    example = next(hidden_phrases(text, 2, np.random.default_rng(1)))
    assert example.hidden in example.text and 18 <= len(example.text.split()) <= 34 and example.text in text


def test_fills_are_those_of_spans(
    run_folder: pathlib.Path, rows_folder: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = ["examples", str(run_folder), str(run_folder), "--rows", str(rows_folder), "--count", "4"]
    assert main([*arguments, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 4 and [len(each["hidden"].split()) for each in found] == [2, 3, 1, 1]
    filler = Filler(load_model(run_folder))
    for each in found:
        (expected,) = filler.spans(each["text"], 5, [each["hidden"]])
        of_model = each["fills"][str(run_folder)]
        assert {name: fill["text"] for name, fill in of_model.items()} == {
            name: fill.text for name, fill in expected.fills.items()
        }
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.count("original: ") == 4 and printed.count("by sbo") == 4 and printed.count("the original has") >= 4


def test_held_out_rows_and_short_models(rows_folder: pathlib.Path, run_folder: pathlib.Path) -> None:
    rows = open_rows(rows_folder / "validation")
    texts = [*held_out_texts(rows, np.random.default_rng(0))]
    assert texts and len({*texts}) > 1
    filler = Filler(load_model(run_folder))
    found = chosen_examples(iter([texts[0]] * 4), [filler], 4, np.random.default_rng(0))
    assert found and all(isinstance(each, Example) for each in found)
    # the text of the model's length and more is passed over
    assert not chosen_examples(iter(["many words here " * 60]), [filler], 1, np.random.default_rng(0))


def test_longer_spans_fill_up_and_words_follow() -> None:
    """In a vocabulary with one whole word no span has one token a word."""

    def encode(texts: list[str]) -> list[list[int]]:
        return [[0 for word in text.split() for _ in range(1 + (word != "boat"))] for text in texts]

    positions = SimpleNamespace(encoder=SimpleNamespace(positions=64))
    filler: Any = SimpleNamespace(vocabulary=SimpleNamespace(encode=encode), model=positions)
    texts = [f"once {name} rose near that boat until dawn came back" for name in ("Anna", "Bert", "Cleo", "Dora")]
    found = chosen_examples(iter(texts), [filler], 4, np.random.default_rng(0))
    assert [len(each.hidden.split()) for each in found] == [2, 2, 1, 1]
    assert [each.hidden for each in found[2:]] == ["boat", "boat"] and len({each.text for each in found[2:]}) == 2


def test_rows_without_a_text(run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["examples", str(run_folder), "--rows", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
