"""The layouts of the archives that SpanBERT was published in, made of random weights; and a checkpoint of eight devices."""

import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from spanjax.convert import main as convert
from spanjax.model import load_model
from spanjax.torch_format.folder import original_names
from spanjax.trees import named_leaves
from tests.running import ROOT, environment, shrunk
from tests.torch_format.references import REASON, reference, tensors, vocabulary

ELEVEN = (
    *("attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range"),
    *("intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size"),
    "vocab_size",
)


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
    assert all(torch.equal(tensor, whole[name]) for name, tensor in again.items()) and len(again) == len(whole) - 3


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
