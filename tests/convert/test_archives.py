"""The layouts of the archives that SpanBERT was published in, made of random weights; and a checkpoint of eight devices."""

import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from spanjax.convert import main as convert
from spanjax.convert.compare import Inputs, computed_here
from spanjax.convert.export import with_tied_tables
from spanjax.pretrained.load import load_model
from spanjax.pretrained.model import equal_weights
from spanjax.sharding import named_leaves
from spanjax.torch_format.families import BERT
from spanjax.torch_format.folder import original_names
from spanjax.torch_format.tables import tensors_to_hf
from tests.running import ROOT, environment, shrunk
from tests.torch_format.references import REASON, reference, tensors, vocabulary

ELEVEN = (
    *("attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range"),
    *("intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size"),
    "vocab_size",
)
TIED = ("bert.embeddings.word_embeddings", "cls.predictions.decoder", "cls.pair_target_predictions.decoder")


@pytest.fixture
def vocab(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(vocabulary().pieces) + "\n", encoding="utf-8")
    return path


def test_the_encoder_alone(tmp_path: pathlib.Path, vocab: pathlib.Path, capsys: Any) -> None:
    """config.json of eleven fields, pytorch_model.bin of float16 in the format before torch 1.6, no vocabulary, no heads."""
    torch = pytest.importorskip("torch", reason=REASON)
    model = reference("bert")
    config = model.config.to_dict()
    folder = tmp_path / "spanbert_hf_base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in ELEVEN}))
    weights = {name: tensor.detach().half() for name, tensor in model.state_dict().items() if name.startswith("bert.")}
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert convert(["from-torch", str(folder), str(tmp_path / "ours"), "--vocab", str(vocab)]) == 0
    said = capsys.readouterr().out
    assert (
        "float16 became float32" in said
        and "fresh     mlm" in said
        and "tokenizer wordpiece, 113 pieces, cased" in said
    )
    found = load_model(tmp_path / "ours")
    table = found.params["encoder"]["embeddings"]["token"]["embedding"]
    np.testing.assert_array_equal(table[:113], weights["bert.embeddings.word_embeddings.weight"].float().numpy())
    assert found.parts == {"encoder"} and found.vocabulary is not None


def test_the_archive_with_heads(tmp_path: pathlib.Path, vocab: pathlib.Path, capsys: Any) -> None:
    """A flat model.pt with decoder. before every name, gamma and beta, both heads, tied tables repeated, and no config.json."""
    torch = pytest.importorskip("torch", reason=REASON)
    theirs = tensors(reference("bert", hidden_size=64, num_attention_heads=1))
    random, hidden = np.random.default_rng(0), 64
    shapes = {
        "position_embeddings.weight": (20, 200),
        "mlp_layer_norm.linear1.weight": (hidden, 2 * hidden + 200),
        "mlp_layer_norm.linear1.bias": (hidden,),
        "mlp_layer_norm.linear2.weight": (hidden, hidden),
        "mlp_layer_norm.linear2.bias": (hidden,),
        "bias": (113,),
        **{f"mlp_layer_norm.layer_norm{n}.{what}": (hidden,) for n in (1, 2) for what in ("weight", "bias")},
    }
    boundary = {f"cls.pair_target_predictions.{name}": random.normal(size=shape) for name, shape in shapes.items()}
    boundary["cls.pair_target_predictions.decoder.weight"] = theirs["bert.embeddings.word_embeddings.weight"]
    whole = {
        original_names(name): torch.from_numpy(np.asarray(array, np.float32))
        for name, array in (theirs | boundary).items()
    }
    assert "decoder.cls.pair_target_predictions.mlp_layer_norm.layer_norm1.gamma" in whole
    torch.save(whole, tmp_path / "model.pt")
    assert convert(["from-torch", str(tmp_path / "model.pt"), str(tmp_path / "ours"), "--vocab", str(vocab)]) == 0
    said = capsys.readouterr().out
    assert "decoder. taken off every name" in said and "gamma and beta" in said and "heads of 64" in said
    found = load_model(tmp_path / "ours")
    assert found.parts == {"encoder", "mlm", "sbo"} and found.objective().problems(found.encoder) == []
    dense = boundary["cls.pair_target_predictions.mlp_layer_norm.linear1.weight"].astype(np.float32)
    np.testing.assert_array_equal(found.params["sbo"]["dense1"]["kernel"], dense.T)
    assert convert(["to-torch", str(tmp_path / "ours"), str(tmp_path / "again"), "--format", "fairseq"]) == 0
    again = torch.load(tmp_path / "again" / "model.pt", weights_only=True)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in again.items())
    assert whole.keys() - again.keys() == {"decoder.cls.predictions.decoder.bias"}, "a name of transformers' alone"


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
def test_a_training_checkpoint_of_the_original(
    half: bool, is_zip: bool, tmp_path: pathlib.Path, vocab: pathlib.Path, capsys: Any
) -> None:
    """With `args.config` and meters of fairseq's classes, no config.json: every value to the bit, and the settings recorded."""
    torch = pytest.importorskip("torch", reason=REASON)
    from tests.torch_format import originals

    theirs = originals.Original(vocab=113)
    dtype = torch.float16 if half else torch.float32
    path = originals.checkpoint(theirs, tmp_path / "checkpoint_last.pt", is_zip, dtype)
    assert convert(["from-torch", str(path), str(tmp_path / "ours"), "--vocab", str(vocab)]) == 0
    said = capsys.readouterr().out
    for words in (
        "no config.json: sizes from the weights, 2 heads and constants from its args.config",
        "the optimizer's state of update 12,345 (2 tensors) is skipped",
        "objects skipped, no code of theirs imported or run: fairseq.models.pair_bert.BertConfig, fairseq.meters.",
    ):
        assert words in said, words
    found = load_model(tmp_path / "ours")
    encoder = {"heads": 2, "activation": "relu", "dropout": 0.05, "attention_dropout": 0.15, "initializer_std": 0.03}
    assert encoder.items() <= dataclasses.asdict(found.encoder).items() and found.encoder.norm_epsilon == 1e-12
    assert found.parts == {"encoder", "mlm", "sbo"} and found.objective().problems(found.encoder) == []
    written = tensors_to_hf(found.params, found.encoder, BERT)
    back = with_tied_tables({original_names(name): array for name, array in written}, BERT)
    assert back.keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(back[name], tensor.to(dtype).float().numpy(), err_msg=name)
    assert convert(["inspect", str(path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["heads"] == ["mlm", "sbo"] and any("update 12,345" in note for note in listed["notes"])
    assert listed["tensors"].keys() == theirs.state_dict().keys()


def test_settings_that_are_not_of_the_weights_are_refused(tmp_path: pathlib.Path, capsys: Any) -> None:
    pytest.importorskip("torch", reason=REASON)
    from tests.torch_format import originals

    theirs = originals.Original()
    del theirs.decoder.bert.encoder.layer[1]
    path = originals.checkpoint(theirs, tmp_path / "checkpoint_last.pt", True, originals.torch.float32)
    assert convert(["from-torch", str(path), str(tmp_path / "ours")]) == 2
    assert "num_hidden_layers is 2, by the shapes 1: give --config FILE" in capsys.readouterr().err
    config = originals.CONFIG | {"num_hidden_layers": 1, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert convert(["from-torch", str(path), str(tmp_path / "ours")]) == 0, "the file beside it goes first"
    assert load_model(tmp_path / "ours").encoder.heads == 4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_original_loads_strictly_and_computes_the_same(dtype: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    """`--format fairseq` has every name of the original's state dict; both heads agree to 1e-5 of the largest logit."""
    torch = pytest.importorskip("torch", reason=REASON)
    from tests.torch_format import originals

    source = originals.Original(offsets=15, vocab=113)
    path = originals.checkpoint(source, tmp_path / "checkpoint_last.pt", True, getattr(torch, dtype))
    words = ["to-torch", str(path), str(tmp_path / "out"), "--format", "fairseq", "--dtype", dtype]
    assert convert(words) == 0
    written = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    loaded = originals.Original(offsets=15, vocab=113)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    assert str(loaded.load_state_dict(written, strict=True)) == "<All keys matched successfully>"
    tables = {written[f"decoder.{name}.weight"].data_ptr() for name in TIED}
    assert len(tables) == 1, "one storage for the three names"
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["parameters"] == parameters

    model = load_model(tmp_path / "out")
    random, shape = np.random.default_rng(0), (3, 17)
    tokens_SL, left_SL, right_SL = (random.integers(0, high, shape).astype(np.int32) for high in (113, 17, 17))
    offset_SL = random.integers(0, 15, shape).astype(np.int32)
    inputs = Inputs(tokens_SL, np.ones(shape, bool), left_SL, right_SL, offset_SL)
    ours = computed_here(model, inputs, ())
    with torch.no_grad():
        given = (torch.from_numpy(array).long() for array in (tokens_SL, left_SL, right_SL, offset_SL))
        masked, boundary = loaded.float()(*given)
    for found, expected in ((ours.mlm_SLV, masked), (ours.sbo_SLV, boundary)):
        assert found is not None and float(expected.abs().max()) > 1
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert convert(["from-torch", str(tmp_path / "out"), str(tmp_path / "back")]) == 0
    assert (
        "tied      cls.predictions.decoder.weight, cls.pair_target_predictions.decoder.weight"
        in capsys.readouterr().out
    )
    assert equal_weights(load_model(path), load_model(tmp_path / "back")) == []


@pytest.mark.slow
def test_a_checkpoint_of_eight_devices_converts_on_one(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Parameters and moments split over eight devices; read by a process that has one."""
    config = str(ROOT / "configs/pretrain/tiny.py")
    arguments = shrunk(config, rows_folder, tmp_path / "run", 2, "--data.feed=numpy", "--batch-size=8")
    program = "import sys; from spanjax.train import main; sys.exit(main(sys.argv[1:]))"
    run = [sys.executable, "-c", program, *arguments]
    process = subprocess.run(run, cwd=ROOT, env=environment(8), capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stderr
    words = [sys.executable, "-m", "spanjax.convert", "to-torch", str(tmp_path / "run"), str(tmp_path / "hf")]
    process = subprocess.run(words, cwd=ROOT, env=environment(1), capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stderr
    model, written = load_model(tmp_path / "run"), load_model(tmp_path / "hf")
    assert model.meta["hardware"]["devices"].startswith("8 x")
    for name, array in named_leaves(model.params).items():
        rows = model.encoder.vocab_size if "token" in name or name.endswith(("mlm/bias", "sbo/bias")) else None
        np.testing.assert_array_equal(array[:rows], named_leaves(written.params)[name][:rows])
