"""--init-from: what is loaded, drawn and left out; vocabularies that grow; longer positions; what does not fit is refused."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest

from spanjax import train
from spanjax.data.vocab import WordPieceVocabulary
from spanjax.model import Model, load_model
from spanjax.nn.config import EncoderConfig
from spanjax.objectives.masked import MaskedPrediction
from spanjax.objectives.terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.starting import MAY_DIFFER, POSITIONS, TOKENS, start_from
from spanjax.training.state import abstract_module
from spanjax.trees import map_named, named_leaves
from tests.running import ROOT, final_leaves, shrunk

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
ENCODER = EncoderConfig(vocab_size=len(PIECES), hidden_size=8, layers=2, heads=2, intermediate_size=16, positions=12)
SPANBERT = MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(position_size=4)))


def shapes(objective: MaskedPrediction, encoder: EncoderConfig) -> Any:
    return abstract_module(objective, encoder)[1]


def model(objective: MaskedPrediction = SPANBERT, encoder: EncoderConfig = ENCODER) -> Model:
    random = np.random.default_rng(0)
    params = map_named(lambda _, leaf: random.normal(size=leaf.shape).astype(np.float32), shapes(objective, encoder))
    vocabulary = WordPieceVocabulary(PIECES[: encoder.vocab_size], lower_case=False)
    return Model(encoder, params, vocabulary, pathlib.Path("weights"))


def started(source: Model, pieces: list[str], objective: MaskedPrediction = SPANBERT, **changes: Any) -> Any:
    encoder = dataclasses.replace(source.encoder, vocab_size=len(pieces), **changes)
    vocabulary = WordPieceVocabulary(pieces, lower_case=False)
    return start_from(source, encoder, vocabulary, shapes(objective, encoder), seed=3)


def test_the_same_model_is_loaded_whole() -> None:
    source = model()
    start = started(source, PIECES)
    expected = named_leaves(source.params)
    assert start.leaves.keys() == expected.keys() and start.lines == ("loaded encoder, mlm, sbo",)
    for name, array in start.leaves.items():
        rows = len(PIECES) if name in (TOKENS, "mlm/bias", "sbo/bias") else None
        np.testing.assert_array_equal(array[:rows], expected[name][:rows], err_msg=name)


def test_heads_that_are_missing_are_fresh_and_others_unused() -> None:
    encoder_only = model(MaskedPrediction(terms=()))
    start = started(encoder_only, PIECES)
    assert {name.split("/")[0] for name in start.leaves} == {"encoder"}
    assert "drawn fresh: mlm, sbo" in start.lines
    start = started(model(), PIECES, MaskedPrediction(terms=(MaskedTokens(),)))
    assert "not used: sbo" in start.lines
    pairs = MaskedPrediction(terms=(MaskedTokens(), SentencePair("sop")))
    pooled = model()
    pooled = dataclasses.replace(
        pooled, params={**pooled.params, "pooler": {"dense": {"kernel": np.ones((8, 8)), "bias": np.ones(8)}}}
    )
    start = started(pooled, PIECES, pairs)
    assert "sop/pooler/dense/kernel" in start.leaves and "sop/seq_relationship/kernel" not in start.leaves


def test_a_larger_vocabulary_in_another_order() -> None:
    """Known pieces keep their rows; new ones are the mean plus a draw; biases of new pieces are the mean."""
    source = model()
    pieces = ["new", *PIECES[:5], *PIECES[:4:-1], "##x"]
    start = started(source, pieces)
    old = source.params["encoder"]["embeddings"]["token"]["embedding"]
    table, bias = start.leaves[TOKENS], start.leaves["mlm/bias"]
    for number, piece in enumerate(pieces):
        if piece in PIECES:
            np.testing.assert_array_equal(table[number], old[PIECES.index(piece)])
            assert bias[number] == source.params["mlm"]["bias"][PIECES.index(piece)]
    known = old[: len(PIECES)]
    for number in (0, len(pieces) - 1):
        away = table[number] - known.mean(axis=0)
        assert 0 < np.abs(away).max() < 6 * ENCODER.initializer_std
        assert bias[number] == pytest.approx(source.params["mlm"]["bias"][: len(PIECES)].mean(), abs=1e-6)
    assert (table[len(pieces) :] == 0).all() and len(table) == 128
    assert "vocabulary: 13 of 15 pieces are known, 2 are new" in start.lines
    np.testing.assert_array_equal(started(source, pieces).leaves[TOKENS], table)


def test_longer_and_shorter_positions() -> None:
    source = model()
    old = source.params["encoder"]["embeddings"]["position"]["embedding"]
    longer = started(source, PIECES, positions=30)
    np.testing.assert_array_equal(longer.leaves[POSITIONS], old[np.arange(30) % 12])
    assert "positions: 12 trained ones, repeated for 30" in longer.lines
    shorter = started(source, PIECES, positions=5)
    np.testing.assert_array_equal(shorter.leaves[POSITIONS], old[:5])
    offset = model(encoder=dataclasses.replace(ENCODER, position_offset=2))
    old = offset.params["encoder"]["embeddings"]["position"]["embedding"]
    longer = started(offset, PIECES, positions=20).leaves[POSITIONS]
    np.testing.assert_array_equal(longer, old[[0, 1, *(2 + np.arange(20) % 12)]])


def test_everything_that_does_not_fit_is_listed() -> None:
    with pytest.raises(ValueError, match=r"(?s)--encoder.layers 2.*--encoder.heads 2.*know 5 of the 25 pieces"):
        started(model(), [*PIECES[:5], *(f"other{n}" for n in range(20))], layers=3, heads=4)
    with pytest.raises(ValueError, match="sbo/position/embedding is"):
        started(model(), PIECES, MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(position_size=5))))
    lower = WordPieceVocabulary(PIECES, lower_case=True)
    with pytest.raises(ValueError, match=r"a wordpiece vocabulary \(cased\), the rows a wordpiece one \(lower\)"):
        start_from(model(), ENCODER, lower, shapes(SPANBERT, ENCODER), 0)
    nameless = dataclasses.replace(model(), vocabulary=None)
    with pytest.raises(ValueError, match="no vocabulary"):
        started(nameless, [*PIECES, "more"])
    assert "ids are taken to mean the same" in " ".join(started(nameless, PIECES).lines)


@pytest.mark.parametrize(
    ("source", "change", "option"),
    [
        (ENCODER, {"relative": True}, "--encoder.no-relative"),
        (dataclasses.replace(ENCODER, relative=True), {"relative": False}, "--encoder.relative"),
        (dataclasses.replace(ENCODER, biases=False), {"biases": True}, "--encoder.no-biases"),
        (ENCODER, {"types": 0}, "--encoder.types 2"),
    ],
)
def test_half_of_an_encoder_is_not_loaded(source: EncoderConfig, change: dict[str, Any], option: str) -> None:
    with pytest.raises(ValueError, match=f"give {option}$"):
        started(model(encoder=source), PIECES, **change)
    arguments = [f"--config={ROOT / 'configs/pretrain/tiny.py'}", *option.split()]
    name = next(iter(change))
    assert getattr(train.parse(arguments).run.encoder, name) == getattr(source, name), "the option is one"


def test_every_setting_of_the_encoder_has_to_agree_but_those_that_are_named() -> None:
    """A setting that is added later as well: it does not load the weights of another architecture in silence."""
    later = dataclasses.make_dataclass("Later", [("window", int, 0)], bases=(EncoderConfig,), frozen=True)
    own = {field.name: getattr(ENCODER, field.name) for field in dataclasses.fields(ENCODER)}
    source = dataclasses.replace(model(), encoder=later(**own, window=4))
    vocabulary = WordPieceVocabulary(PIECES, lower_case=False)
    with pytest.raises(ValueError, match="encoder.window is 0, the weights have 4: give --encoder.window 4"):
        start_from(source, later(**own), vocabulary, shapes(SPANBERT, ENCODER), 0)
    assert start_from(source, later(**own, window=4), vocabulary, shapes(SPANBERT, ENCODER), 0).leaves
    assert {field.name for field in dataclasses.fields(EncoderConfig)} > MAY_DIFFER


def test_training_starts_from_a_converted_folder(
    rows_folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """Rate 0: after the steps the weights are still those of the folder. Resumed, nothing is read from it again."""
    from spanjax.convert import main as convert

    assert convert(["to-torch", str(run_folder), str(tmp_path / "hf")]) == 0
    capsys.readouterr()
    still = ("--data.feed=numpy", "--optimizer.learning-rate=1e-30", f"--init-from={tmp_path / 'hf'}")
    arguments = shrunk(str(ROOT / "configs/pretrain/tiny.py"), rows_folder, tmp_path / "on", 2, *still)
    assert train.main([*arguments, "--dry-run"]) == 0
    assert "init-from   loaded encoder, mlm, sbo" in capsys.readouterr().out
    assert train.main(arguments) == 0
    said = capsys.readouterr()
    assert "loaded encoder, mlm, sbo" in said.out + said.err
    size = load_model(run_folder).encoder.vocab_size
    before, after = final_leaves(run_folder), final_leaves(tmp_path / "on")
    for name in (name for name in before if name.startswith("['params']")):
        rows = size if "token" in name or "['mlm']['bias']" in name or "['sbo']['bias']" in name else None
        np.testing.assert_allclose(after[name][:rows], before[name][:rows], atol=1e-7, err_msg=name)
    (tmp_path / "hf").rename(tmp_path / "moved")
    assert train.main(arguments) == 0
    assert "from step 2" in capsys.readouterr().out


def test_wrong_weights_are_refused_before_anything_is_written(
    rows_folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = shrunk(str(ROOT / "configs/pretrain/tiny.py"), rows_folder, tmp_path / "on", 2, "--data.feed=numpy")
    assert train.main([*arguments, f"--init-from={run_folder}", "--encoder.hidden-size=32"]) == 2
    assert "encoder.hidden_size is 32, the weights have 16: give --encoder.hidden-size 16" in capsys.readouterr().err
    assert train.main([*arguments, "--init-from=nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err and not (tmp_path / "on").exists()
