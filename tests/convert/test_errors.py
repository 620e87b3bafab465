"""Damaged, hostile and wrong files: one clear error, exit code 2, nothing is written. Killed saves are passed over and said."""

import json
import os
import pathlib
import pickle
import shutil
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from spanjax.convert import main as convert
from spanjax.pretrained.load import load_model
from tests.torch_format.references import saved
from tests.trained import trained


def refused(capsys: Any, *words: Any) -> str:
    """What a command says that has to fail and to write nothing."""
    output = pathlib.Path(words[2]) if words[0] != "inspect" else None
    before = sorted(output.parent.iterdir()) if output else []
    assert convert([str(word) for word in words]) == 2
    assert output is None or sorted(output.parent.iterdir()) == before, "something was left behind"
    return capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    saved("bert", tmp_path / "theirs")
    return tmp_path / "theirs"


def test_damaged_weights(folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    content, out = (folder / "model.safetensors").read_bytes(), tmp_path / "out"
    for broken in (content[:5], content[:1000], content[:-100], b"", b"\xff" * 64):
        (folder / "model.safetensors").write_bytes(broken)
        message = refused(capsys, "from-torch", folder, out)
        assert "model.safetensors" in message and "copy it again" in message
    (folder / "model.safetensors").unlink()
    assert "does not exist" in refused(capsys, "from-torch", tmp_path / "nowhere", out)
    assert "expected a run directory" in refused(capsys, "from-torch", folder, out)


def test_hostile_pickles_are_refused_unexecuted(folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    class Hostile:
        def __reduce__(self) -> tuple:
            return (pathlib.Path.touch, (tmp_path / "executed",))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Hostile()}))
    message = refused(capsys, "from-torch", folder, tmp_path / "out")
    assert "pytorch_model.bin" in message and not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 4}, "missing (16): bert.encoder.layer.3"),
        ({"num_hidden_layers": 2}, "not explained (16): bert.encoder.layer.2"),
        ({"vocab_size": 7}, "113 rows, config.json says vocab_size 7"),
        ({"intermediate_size": 65}, "do not agree"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"model_type": "roberta", "pad_token_id": 1}, "not those of a roberta model"),
        ({"hidden_size": "many"}, "hidden_size is missing"),
    ],
)
def test_a_config_that_does_not_fit(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any, change: dict[str, Any], words: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    assert words in refused(capsys, "from-torch", folder, tmp_path / "out")


def test_a_config_that_is_not_json(folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    (folder / "config.json").write_text('{"model_type": "bert"')
    assert "config.json is not readable JSON" in refused(capsys, "from-torch", folder, tmp_path / "out")
    (folder / "config.json").write_text("[1]")
    assert "expected an object" in refused(capsys, "from-torch", folder, tmp_path / "out")


def test_shards_of_an_index(folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "model-00001-of-00001.safetensors"}}))
    assert convert(["from-torch", str(folder), str(tmp_path / "out")]) == 0
    index.write_text(json.dumps({"weight_map": {"x": "../model.safetensors"}}))
    assert "names files outside" in refused(capsys, "from-torch", folder, tmp_path / "other")
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    assert "gone.safetensors" in refused(capsys, "from-torch", folder, tmp_path / "other")


def test_what_is_there_is_not_overwritten(folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    assert "exists already: choose another folder, or replace it with" in refused(capsys, "from-torch", folder, out)
    assert "did not write ('mine')" in refused(capsys, "from-torch", folder, out, "--overwrite")
    assert (out / "mine").read_text() == "x"
    (out / "mine").unlink()
    for _ in range(2):
        assert convert(["from-torch", str(folder), str(out), "--overwrite"]) == 0
    assert (out / "checkpoints" / "0").is_dir()
    assert "is read: name another" in refused(capsys, "from-torch", folder, folder, "--overwrite")
    (out / "checkpoints" / "0" / "mine").write_text("x")
    assert "did not write ('checkpoints/0/mine')" in refused(capsys, "from-torch", folder, out, "--overwrite")


def test_names_of_foreign_files_do_not_reach_the_terminal(
    folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any
) -> None:
    weights = folder / "model.safetensors"
    found = safetensors.numpy.load_file(weights)
    hostile = "evil\x1b]0;title\x07\x1b[31m[red]\n"
    safetensors.numpy.save_file({**found, hostile: np.zeros(3, np.float32)}, weights)
    assert convert(["inspect", str(folder)]) == 0
    said = capsys.readouterr().out
    assert r"evil\x1b]0;title\x07\x1b[31m[red]\n" in said and not {"\x1b", "\x07"} & {*said}
    message = refused(capsys, "from-torch", folder, tmp_path / "out")
    assert r"evil\x1b]0;title" in message and not {"\x1b", "\x07"} & {*message}


@pytest.mark.parametrize("tolerance", ["nan", "-1", "inf"])
def test_a_tolerance_that_is_none_is_refused_before_anything_is_read(tolerance: str, capsys: Any) -> None:
    assert convert(["verify", "none", "neither", f"--tolerance={tolerance}"]) == 2
    assert f"--tolerance is {float(tolerance)}: expected a finite number, 0 or more" in capsys.readouterr().err


def test_the_source_is_not_replaced(
    folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any
) -> None:
    run = pathlib.Path(shutil.copytree(run_folder, tmp_path / "run"))
    step = max((run / "checkpoints").iterdir(), key=lambda each: int(each.name))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for source in (run, step):
        assert "is read" in refused(capsys, "to-torch", source, run, "--overwrite")
    assert "training run" in refused(capsys, "to-torch", run_folder, run, "--overwrite")
    assert "training run" in refused(capsys, "from-torch", folder, run, "--overwrite")
    (run / "run.json").rename(tmp_path / "run.json")
    assert "training run" in refused(capsys, "to-torch", run_folder, run, "--overwrite")
    (tmp_path / "run.json").rename(run / "run.json")
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_folder_of_weights_is_replaced_by_one_and_keeps_the_umask(
    run_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out, before = tmp_path / "out", os.umask(0o077)
    try:
        assert convert(["to-torch", str(run_folder), str(out)]) == 0
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in (out, *out.rglob("*"))} == {0}
    assert convert(["to-torch", str(run_folder), str(out), "--overwrite", "--format", "hf-bin"]) == 0
    assert (out / "pytorch_model.bin").is_file() and not (out / "model.safetensors").exists()
    (out / "precious.txt").write_text("mine")
    assert convert(["to-torch", str(run_folder), str(out), "--overwrite"]) == 2
    assert (out / "precious.txt").read_text() == "mine" and [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_vocabulary_of_another_size(folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    pieces = (folder / "vocab.txt").read_text() + "extra\n"
    (tmp_path / "vocab.txt").write_text(pieces)
    message = refused(capsys, "from-torch", folder, tmp_path / "out", "--vocab", tmp_path / "vocab.txt")
    assert "give the vocabulary that the weights were trained with" in message


def test_a_killed_and_a_damaged_save_are_passed_over(
    rows_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any
) -> None:
    """Saved by four devices with sharded moments; converted on one array at a time."""
    run = trained(rows_folder, tmp_path / "run", "--cadence.checkpoint-every=1")
    steps = run / "checkpoints"
    (steps / "7.orbax-checkpoint-tmp-3").mkdir()
    shutil.copytree(steps / "2", steps / "5")
    biggest = max((p for p in (steps / "5" / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    biggest.write_bytes(biggest.read_bytes()[:-7])
    (steps / "6").mkdir()
    assert convert(["to-torch", str(run), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "checkpoint 5 is damaged (missing files [], changed files" in said and "(step 2)" in said
    assert "7.orbax-checkpoint-tmp-3 was never finished" in said and "checkpoint 6 is damaged" in said
    assert load_model(steps / "1").step == 1
    assert "is damaged" in refused(capsys, "to-torch", steps / "5", tmp_path / "other")
    for step in ("1", "2"):
        shutil.rmtree(steps / step)
    assert "no whole checkpoint" in refused(capsys, "to-torch", run, tmp_path / "other")


def test_looking_at_all_of_them(
    folder: pathlib.Path, run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: Any
) -> None:
    capsys.readouterr()
    assert convert(["inspect", str(run_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 2 and found["heads"] == ["mlm", "sbo"] and found["run"]["batch_size"] == 4
    assert found["tensors"]["encoder/layers/query/kernel"] == {"shape": [2, 16, 16], "dtype": "float32", "bytes": 2048}
    assert convert(["inspect", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "bert.embeddings.word_embeddings.weight" in said and "tensors" in said and "family      bert" in said
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    assert convert(["inspect", str(folder)]) == 0, "weights that are not known are still listed"
    assert "model_type is 'gpt2'" in capsys.readouterr().out
    assert "does not exist" in refused(capsys, "inspect", tmp_path / "nowhere")
