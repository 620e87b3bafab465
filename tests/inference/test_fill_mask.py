"""Masks filled in: the probabilities of the heads by plain arithmetic, spans by their boundaries alone, and the command line."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax.inference.fill_mask import Filler, runs
from spanjax.nn.encoder import Encoder
from spanjax.predict import main as predict
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model


@pytest.fixture(scope="module")
def model(run_folder: pathlib.Path) -> Model:
    return load_model(run_folder)


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def states(model: Model, ids: list[int]) -> np.ndarray:
    """Hidden states of one sequence without any padding."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from spanjax.pretrained.model import module_params
    from spanjax.training.state import abstract_module

    structure, abstract = abstract_module(model.objective(), model.encoder)
    module: Any = nnx.merge(structure, jax.tree.map(jnp.asarray, module_params(model, abstract)))
    tokens = np.array([ids], np.int32)
    positions = np.arange(len(ids), dtype=np.int32)[None]
    return np.asarray(module.encoder(tokens, np.ones_like(tokens), positions, np.zeros_like(tokens)))[0]


def norm(state: np.ndarray, head: Any) -> np.ndarray:
    state = state - state.mean()
    return state / np.sqrt((state**2).mean() + 1e-12) * head["scale"] + head["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def test_probabilities_are_those_of_the_heads(model: Model) -> None:
    assert model.vocabulary is not None
    ids = model.vocabulary.encode(["time"])[0].tolist()
    mask = model.vocabulary.specials
    sequence = [mask.cls, *ids, mask.mask, mask.mask, *ids, mask.sep]
    hidden, place = states(model, sequence), 1 + len(ids)
    table = model.params["encoder"]["embeddings"]["token"]["embedding"][: model.encoder.vocab_size]
    head = model.params["mlm"]
    filler = Filler(model)
    masks = filler.fill_mask("time [MASK] [MASK] time", top=3)
    assert [each.position for each in masks] == [place, place + 1]
    for each in masks:
        vector = norm(gelu(hidden[each.position] @ head["dense"]["kernel"] + head["dense"]["bias"]), head["norm"])
        expected = softmax(table @ vector + head["bias"][: len(table)])
        best = np.argsort(-expected)[:3]
        assert [piece for piece, _ in each.candidates] == [model.vocabulary.pieces[number] for number in best]
        np.testing.assert_allclose([chance for _, chance in each.candidates], expected[best], rtol=1e-4)
    (span,) = filler.spans("time [MASK] [MASK] time", top=2)
    sbo = model.params["sbo"]
    for offset in range(2):
        joined = np.concatenate([hidden[place - 1], hidden[place + 2], sbo["position"]["embedding"][offset]])
        vector = norm(gelu(joined @ sbo["dense1"]["kernel"] + sbo["dense1"]["bias"]), sbo["norm1"])
        vector = norm(gelu(vector @ sbo["dense2"]["kernel"] + sbo["dense2"]["bias"]), sbo["norm2"])
        expected = softmax(table @ vector + sbo["bias"][: len(table)])
        np.testing.assert_allclose(span.fills["sbo"].candidates[offset][0][1], expected.max(), rtol=1e-4)
        vector = norm(gelu(hidden[place + offset] @ head["dense"]["kernel"] + head["dense"]["bias"]), head["norm"])
        both = expected * softmax(table @ vector + head["bias"][: len(table)])
        np.testing.assert_allclose(span.fills["both"].candidates[offset][0][1], (both / both.sum()).max(), rtol=1e-4)


def test_hidden_phrases_are_known_and_masked(model: Model) -> None:
    filler = Filler(model)
    (span,) = filler.spans("the long time was good", hide=["long time"])
    assert model.vocabulary is not None
    pieces = model.vocabulary.encode(["long time"])[0]
    assert span.pieces == len(pieces) and span.truth == model.vocabulary.decode(pieces)
    for fill in span.fills.values():
        assert (
            fill.truth is not None and len(fill.truth) == len(pieces) and all(0 < chance < 1 for chance in fill.truth)
        )
    masked = filler.spans(f"the {'[MASK] ' * len(pieces)}was good")[0]
    assert masked.fills["mlm"].candidates == span.fills["mlm"].candidates and masked.truth is None


def test_a_span_beyond_the_offsets_has_no_boundary_fill(model: Model) -> None:
    (span,) = Filler(model).spans("time " + "[MASK] " * 20 + "time")
    assert span.pieces == 20 and set(span.fills) == {"mlm"}


def test_what_cannot_be_filled_is_refused(model: Model) -> None:
    filler = Filler(model)
    with pytest.raises(ValueError, match=r"has no \[MASK\]"):
        filler.fill_mask("no mask here")
    with pytest.raises(ValueError, match="'gone' is not in the text"):
        filler.spans("a text", hide=["gone"])
    with pytest.raises(ValueError, match="the model reads at most 128: shorten it"):
        filler.fill_mask("[MASK] " * 200)
    with pytest.raises(ValueError, match="no head that predicts tokens"):
        Filler(dataclasses.replace(model, params={"encoder": model.params["encoder"]}))
    with pytest.raises(ValueError, match="without a vocabulary"):
        Filler(dataclasses.replace(model, vocabulary=None))


def test_a_batch_is_one_program_and_each_text_as_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    original = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, *rest: traced.append(rest[0].shape) or original(self, *rest))
    filler = Filler(model)
    texts = ["the [MASK] was", "a time " * 8 + "[MASK] [MASK] and [MASK] time", "time " + "[MASK] " * 20 + "time"]
    masks, spans = filler.fill_mask(texts, top=3), filler.spans(texts, top=2)
    assert traced == [(4, 128)], "both methods and all texts share one program"
    for text, of_batch, spans_of_batch in zip(texts, masks, spans, strict=True):
        assert_close(of_batch, filler.fill_mask(text, top=3))
        assert_close(spans_of_batch, filler.spans(text, top=2))
    (hidden, masked) = filler.spans(["the long time was", "a [MASK]"], hide=[["long time"], []])
    assert_close(hidden, filler.spans("the long time was", hide=["long time"]))
    assert hidden[0].truth and masked[0].truth is None
    assert filler.fill_mask([]) == [] and filler.spans([]) == []


def assert_close(found: Any, expected: Any) -> None:
    """Nested values that are equal, numbers to 1e-5."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        assert_close([*found.values()], [*expected.values()])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    else:
        assert found == expected


def test_long_batches_are_cut(model: Model) -> None:
    """More texts than rows of a batch, more masks than its slots: in order, each as alone."""
    filler = Filler(model)
    texts = ["the [MASK] was", "[MASK] " * 100, "a [MASK]", "time [MASK] [MASK]"] * 10
    found = filler.fill_mask(texts, top=1)
    assert [len(each) for each in found] == [1, 100, 1, 2] * 10
    for number in (1, 2, 38):
        assert_close(found[number], filler.fill_mask(texts[number], top=1))


def test_all_texts_of_a_batch_that_cannot_be_filled_are_listed(model: Model) -> None:
    filler = Filler(model)
    with pytest.raises(ValueError) as error:
        filler.fill_mask(["no mask", "a [MASK]", "[MASK] " * 200, *["none"] * 8])
    lines = str(error.value).splitlines()
    assert "'no mask' has no [MASK]" in lines[0] and "at most 128" in lines[1] and lines[-1] == "and 2 more texts"
    with pytest.raises(ValueError, match="hide has 1 items for 2 texts"):
        filler.spans(["a [MASK]", "b"], hide=[["b"]])


def test_runs_of_positions() -> None:
    assert runs([2, 3, 5]) == [(2, 2), (5, 1)] and runs([]) == []


def test_the_command_lines(run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    """From the run directory and from the converted folder: the same answers."""
    from spanjax.convert import main as convert

    assert convert(["to-torch", str(run_folder), str(tmp_path / "hf")]) == 0
    capsys.readouterr()
    answers = []
    for source in (run_folder, tmp_path / "hf"):
        assert predict(["fill-mask", str(source), "--text", "the [MASK] was good", "--top", "2", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert [piece for piece, _ in answers[0]["masks"][0]["candidates"]] == [
        piece for piece, _ in answers[1]["masks"][0]["candidates"]
    ]
    assert predict(["fill-mask", str(run_folder), "--text", "the [MASK] was", "a [MASK] [MASK]"]) == 0
    said = capsys.readouterr().out
    assert "the [MASK] was" in said and "mask 2 (token" in said
    assert predict(["spans", str(run_folder), "--text", "the long time was good", "--hide", "long time"]) == 0
    said = capsys.readouterr().out
    assert "was: long time" in said and "sbo" in said and "both" in said
    assert predict(["spans", str(run_folder), "--text", "the [MASK] [MASK] was", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["spans"][0]["fills"]) == {"mlm", "sbo", "both"}
    assert predict(["fill-mask", str(tmp_path / "nowhere"), "--text", "a [MASK]"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert predict(["fill-mask", str(run_folder), "--text", "a [MASK]", "--top", "0"]) == 2
    assert predict(["guess"]) == 2 and "no command 'guess'" in capsys.readouterr().err
