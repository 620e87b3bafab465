"""--init-from: what is loaded, drawn and left out; vocabularies that grow; longer positions; what does not fit is refused."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from flax import nnx

from spanjax import train
from spanjax.data.vocab.loading import WordPieceVocabulary
from spanjax.experiment.init_from import MAY_DIFFER, OFFSETS, POSITIONS, TOKENS, start_from, with_sizes_of
from spanjax.nn.config import EncoderConfig
from spanjax.nn.coreference import Coreference
from spanjax.nn.coreference_parts import CoreferenceConfig
from spanjax.objectives.electra import ReplacedDetection
from spanjax.objectives.loss_terms import MaskedTokens, SentencePair, SpanBoundary
from spanjax.objectives.masked_lm import MaskedPrediction
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import Model
from spanjax.sharding import map_named, named_leaves
from spanjax.tasks.coref import Coref
from spanjax.tasks.glue import Glue
from spanjax.tasks.squad import Questions
from spanjax.training.state import abstract_module
from tests.made import tiny_encoder
from tests.running import ROOT, final_leaves, shrunk
from tests.torch_format.references import REASON

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
ENCODER = tiny_encoder(vocab_size=len(PIECES), hidden_size=8, intermediate_size=16, positions=12)
SPANBERT = MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(position_size=4)))


def shapes(objective: Any, encoder: EncoderConfig) -> Any:
    return abstract_module(objective, encoder)[1]


def model(objective: Any = SPANBERT, encoder: EncoderConfig = ENCODER) -> Model:
    random = np.random.default_rng(0)
    params = map_named(lambda _, leaf: random.normal(size=leaf.shape).astype(np.float32), shapes(objective, encoder))
    vocabulary = WordPieceVocabulary(PIECES[: encoder.vocab_size], lower_case=False)
    return Model(encoder, params, vocabulary, pathlib.Path("weights"))


def started(source: Model, pieces: list[str], objective: Any = SPANBERT, **changes: Any) -> Any:
    encoder = dataclasses.replace(source.encoder, vocab_size=len(pieces), **changes)
    vocabulary = WordPieceVocabulary(pieces, lower_case=False)
    return start_from(source, encoder, vocabulary, shapes(objective, encoder), seed=3, objective=objective)


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


@pytest.mark.parametrize(
    "task", [Glue(labels=("a", "b"), pooler="prediction_head"), Questions(pooler="prediction_head")]
)
def test_a_prediction_head_starts_as_the_masked_token_head(task: Any) -> None:
    """As transformers loads a ForMaskedLM of ModernBERT; a fine-tuned one keeps its own, and so does ELECTRA's generator."""
    source = model()
    start = started(source, PIECES, task)
    for name in ("dense/kernel", "dense/bias", "norm/scale", "norm/bias"):
        expected = named_leaves(source.params["mlm"])[name]
        np.testing.assert_array_equal(start.leaves[f"prediction_head/{name}"], expected)
    assert "prediction_head: starts as the layers of the masked token head" in start.lines
    assert any(line.startswith("drawn fresh: ") and "prediction_head" not in line for line in start.lines)
    tuned = dataclasses.replace(model(task), params={**model(task).params, "mlm": source.params["mlm"]})
    start = started(tuned, PIECES, task)
    own = tuned.params["prediction_head"]["dense"]["kernel"]
    np.testing.assert_array_equal(start.leaves["prediction_head/dense/kernel"], own)
    detector = dataclasses.replace(source, params={**source.params, "rtd": {"score": {"bias": np.ones(1)}}})
    narrow = model(encoder=dataclasses.replace(ENCODER, embedding_size=4))
    for other in (detector, narrow, model(MaskedPrediction(terms=()))):
        start = started(other, PIECES, task)
        assert any(line.startswith("drawn fresh: ") and "prediction_head" in line for line in start.lines)
    plain = dataclasses.replace(task, pooler="none")
    assert "not used: mlm, sbo" in started(source, PIECES, plain).lines


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


def test_a_span_boundary_table_of_another_length() -> None:
    """The original's own default is 20 offsets, its published command's 15: rows are cut, or drawn behind the trained ones."""

    def of(offsets: int) -> MaskedPrediction:
        return MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(position_size=4, max_offset=offsets)))

    source = model(of(20))
    old = source.params["sbo"]["position"]["embedding"]
    cut = started(source, PIECES, of(15))
    np.testing.assert_array_equal(cut.leaves[OFFSETS], old[:15])
    keep = "--objective.terms.1.max-offset 20 keeps all"
    assert f"span boundary offsets: the first 15 of 20; {keep}" in cut.lines
    terms = train.parse([f"--config={ROOT / 'configs/pretrain/tiny.py'}", *keep.split()[:2]]).run.objective.terms
    assert terms[1].max_offset == 20, "the flag is one"
    longer = started(source, PIECES, of(400))
    np.testing.assert_array_equal(longer.leaves[OFFSETS][:20], old)
    drawn = longer.leaves[OFFSETS][20:]
    assert drawn.shape == (380, 4) and drawn.dtype == np.float32 and len(np.unique(drawn)) == drawn.size
    assert drawn.std() == pytest.approx(ENCODER.initializer_std, rel=0.1) and abs(drawn.mean()) < 2e-3
    assert "span boundary offsets: 20 trained ones, 380 drawn fresh" in longer.lines
    np.testing.assert_array_equal(started(source, PIECES, of(400)).leaves[OFFSETS], longer.leaves[OFFSETS])
    for start in (cut, longer):
        others = {name: leaf for name, leaf in named_leaves(source.params).items() if name != OFFSETS}
        for name, leaf in others.items():
            np.testing.assert_array_equal(start.leaves[name][: len(PIECES)], leaf[: len(PIECES)], err_msg=name)
    assert not any("offsets" in line for line in started(source, PIECES, of(20)).lines)


@pytest.mark.parametrize(
    ("theirs", "ours", "config", "flags"),
    [
        (
            MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(position_size=4))),
            MaskedPrediction(terms=(MaskedTokens(), SpanBoundary(position_size=5, max_offset=9))),
            "configs/pretrain/tiny.py",
            ("--objective.terms.1.position-size 4",),
        ),
        (
            ReplacedDetection(generator_size=0.5, boundary=SpanBoundary(position_size=4)),
            ReplacedDetection(generator_size=1.0, generator_depth=0.5, boundary=SpanBoundary(position_size=6)),
            "configs/pretrain/electra_small.py",
            ("--objective.boundary.position-size 4", "--objective.generator-depth 1 --objective.generator-size 0.5"),
        ),
    ],
)
def test_sizes_of_heads_that_differ_name_their_flags(
    theirs: Any, ours: Any, config: str, flags: tuple[str, ...]
) -> None:
    """One line for each cause, not for each parameter that follows from it; set so, the weights fit."""
    with pytest.raises(ValueError, match="does not fit this run") as refused:
        started(model(theirs), PIECES, ours)
    lines = str(refused.value).splitlines()[1:]
    assert sorted(line.split(": give ")[1] for line in lines) == sorted(flags)
    assert all(" in the weights, (" in line for line in lines)
    given = [word for each in flags for word in each.split() if "boundary" not in each]
    run = train.parse([f"--config={ROOT / config}", *given]).run
    for flag, value in zip(given[::2], given[1::2], strict=True):
        place: Any = run
        for name in flag.removeprefix("--").replace("-", "_").split("."):
            place = place[int(name)] if name.isdigit() else getattr(place, name)
        assert place == float(value), flag


def test_sizes_of_coreference_name_their_flags() -> None:
    """A fine-tuned model in whose head nothing fits: every setting is named once; what has no setting is said as well."""
    before = Coref(genres=("bn", "nw"), max_segments=3, model=CoreferenceConfig(hidden_size=6, feature_size=4))
    changed = CoreferenceConfig(hidden_size=7, feature_size=5, max_width=9)
    after = dataclasses.replace(before, genres=("bn",), max_segments=4, model=changed)
    own, other = ({"coreference": head_shapes(task)} for task in (before, after))
    params = map_named(lambda _, leaf: np.zeros(leaf.shape, np.float32), own)
    vocabulary = WordPieceVocabulary(PIECES, lower_case=False)
    weights = Model(ENCODER, params, vocabulary, pathlib.Path("weights"), task={"genres": ["bn", "nw"]})
    with pytest.raises(ValueError, match="does not fit this run") as refused:
        start_from(weights, ENCODER, vocabulary, other, 0, (), after)
    flags = " ".join(line.split(": give ")[1] for line in str(refused.value).splitlines()[1:])
    for flag in ("model.max-width 30", "model.feature-size 4", "model.hidden-size 6", "max-segments 3", "genres bn nw"):
        assert flags.count(f"--objective.{flag}") == 1, flag
    shapes_of = {"other": {"kernel": np.zeros((2, 3), np.float32)}}
    odd = dataclasses.replace(weights, params={"other": {"kernel": np.zeros((2, 4), np.float32)}})
    with pytest.raises(
        ValueError, match=r"other/kernel is \(2, 4\) in the weights, \(2, 3\) in this run: make the settings of"
    ):
        start_from(odd, ENCODER, vocabulary, shapes_of, 0)


def head_shapes(task: Coref) -> Any:
    """Shapes of the head of a coreference task."""
    module = nnx.eval_shape(lambda: Coreference(ENCODER, task.model, len(task.genres), task.max_segments, nnx.Rngs(0)))
    return nnx.to_pure_dict(nnx.state(module))


def test_everything_that_does_not_fit_is_listed() -> None:
    with pytest.raises(ValueError, match=r"(?s)--encoder.layers 2.*--encoder.heads 2.*know 5 of the 25 pieces"):
        started(model(), [*PIECES[:5], *(f"other{n}" for n in range(20))], layers=3, heads=4)
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
        (ENCODER, {"relative_attention": True}, "--encoder.no-relative-attention"),
        (
            dataclasses.replace(ENCODER, relative_attention=True),
            {"relative_attention": False},
            "--encoder.relative-attention",
        ),
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


def test_training_starts_from_a_checkpoint_of_the_original(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """float16, 20 offsets, fairseq's classes around the weights, a run with 15: at rate 0 all of it is in the checkpoint."""
    pytest.importorskip("torch", reason=REASON)
    from tests.torch_format import originals

    theirs = originals.Original(offsets=20, vocab=120)
    path = originals.checkpoint(theirs, tmp_path / "checkpoint_last.pt", False, originals.torch.float16)
    sizes = {
        "hidden-size": originals.HIDDEN,
        "layers": originals.LAYERS,
        "heads": originals.HEADS,
        "activation": "relu",
    }
    sizes["intermediate-size"] = originals.INNER
    more = [f"--encoder.{name}={size}" for name, size in sizes.items()]
    more += ["--data.feed=numpy", "--optimizer.learning-rate=1e-30", "--objective.terms.1.position-size=200"]
    config = str(ROOT / "configs/pretrain/tiny.py")
    arguments = shrunk(config, rows_folder, tmp_path / "on", 2, *more, f"--init-from={path}")
    assert train.main(arguments) == 0
    said = "".join(capsys.readouterr())
    assert "span boundary offsets: the first 15 of 20; --objective.terms.1.max-offset 20 keeps all" in said
    assert "the optimizer's state of update 12,345 (2 tensors) is skipped" in said
    expected, after = named_leaves(load_model(path).params), named_leaves(load_model(tmp_path / "on").params)
    assert after[OFFSETS].shape == (15, 200) and expected.keys() == after.keys()
    for name, array in after.items():
        wanted = np.resize(expected[name], array.shape) if name == POSITIONS else expected[name][: len(array)]
        np.testing.assert_allclose(array, wanted, atol=1e-7, err_msg=name)


def test_wrong_weights_are_refused_before_anything_is_written(
    rows_folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = shrunk(str(ROOT / "configs/pretrain/tiny.py"), rows_folder, tmp_path / "on", 2, "--data.feed=numpy")
    assert train.main([*arguments, f"--init-from={run_folder}", "--encoder.hidden-size=32"]) == 2
    assert "encoder.hidden_size is 32, the weights have 16: give --encoder.hidden-size 16 or" in capsys.readouterr().err
    assert train.main([*arguments, "--init-from=nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err and not (tmp_path / "on").exists()


def test_sizes_come_from_the_weights_unless_the_command_line_names_others() -> None:
    other = dataclasses.replace(
        ENCODER, hidden_size=32, layers=3, biases=False, types=0, positions=40, dropout=0.5, attention="xla"
    )
    sized, notes, problems = with_sizes_of(ENCODER, other)
    expected = dataclasses.replace(ENCODER, positions=40, dropout=0.5, attention="xla")
    assert sized == expected and not problems, "positions, dropout and execution stay the run's"
    assert notes == [
        "settings of the weights: encoder.hidden_size 8 (not 32), encoder.layers 2 (not 3), encoder.types 2 (not 0),"
        " encoder.biases True (not False)"
    ]
    sized, notes, problems = with_sizes_of(ENCODER, other, {"encoder/layers", "encoder/no_biases", "encoder/dropout"})
    assert problems == [
        "encoder.layers is 3, the weights have 2: give --encoder.layers 2 or leave it out",
        "encoder.biases is False, the weights have True: give --encoder.biases or leave it out",
    ]
    assert (sized.layers, sized.biases, sized.hidden_size) == (3, False, 8) and len(notes) == 1
    assert with_sizes_of(ENCODER, ENCODER, {"encoder/layers"}) == (ENCODER, [], [])


@pytest.mark.slow
def test_pretraining_takes_its_sizes_from_the_weights(
    rows_folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    """No flag of a size: the config's give way with a note. Resumed, the sizes are those of the run; other ones are refused."""
    weights = tmp_path / "weights"
    weights.symlink_to(run_folder)
    named = [f"--encoder.{name}" for name in ("hidden-size", "layers", "heads", "intermediate-size")]
    arguments = [
        word
        for word in shrunk(str(ROOT / "configs/pretrain/tiny.py"), rows_folder, tmp_path / "on", 2, "--data.feed=numpy")
        if word.partition("=")[0] not in named
    ]
    arguments.append(f"--init-from={weights}")
    assert train.main([*arguments, "--dry-run"]) == 0
    note = "settings of the weights: encoder.hidden_size 16 (not 128), encoder.intermediate_size 32 (not 512)"
    assert note in capsys.readouterr().out
    assert train.main(arguments) == 0
    assert note in "".join(capsys.readouterr())
    assert load_model(tmp_path / "on").encoder.hidden_size == 16
    weights.unlink()
    assert train.main(arguments) == 0
    assert "from step 2" in capsys.readouterr().out
    assert train.main([*arguments, "--encoder.hidden-size=64"]) == 2
    said = capsys.readouterr().err
    assert "holds another run" in said and "encoder.hidden_size: 16 -> 64" in said
