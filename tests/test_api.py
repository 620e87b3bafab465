"""`import spanjax`: quick, typed, and the same as the command lines."""

import ast
import json
import pathlib
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import spanjax
from spanjax import api, train
from spanjax.cli import STOPPED
from spanjax.convert import main as convert
from spanjax.inference.encode import TextEncoder
from spanjax.inference.fill_mask import Filler
from spanjax.predict import main as predict
from spanjax.pretrained.load import load_model
from spanjax.run import load as load_config
from tests.running import ROOT, environment, final_leaves, shrunk
from tests.trained import RUN_CONFIG

LAZY = """
import sys, time
began = time.perf_counter()
import spanjax
print(time.perf_counter() - began)
print(*sorted({name.split(".")[0] for name in sys.modules} & {"jax", "flax", "tyro", "numpy", "orbax"}))
print(*(name for name in dir(spanjax) if name in spanjax.__all__))
"""


def test_the_import_is_quick() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, libraries, names = done.stdout.splitlines()
    assert float(seconds) < 0.1 and libraries == "" and names.split() == sorted(spanjax.__all__)


@pytest.mark.unit
def test_names_for_type_checkers_are_the_public_ones() -> None:
    tree = ast.parse(pathlib.Path(str(spanjax.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted([*typed, "__version__"]) == sorted(spanjax.__all__)
    for name, module in typed.items():
        assert getattr(spanjax, name) is getattr(sys.modules[str(module)], name)
    with pytest.raises(AttributeError, match="no attribute 'lod': its public names are Data, "):
        spanjax.lod  # type: ignore[attr-defined] # noqa: B018


def test_a_model_is_what_the_classes_below_make_of_it(run_folder: pathlib.Path) -> None:
    model, weights = spanjax.load(run_folder), load_model(run_folder)
    texts = ["the long time", "was good"]
    np.testing.assert_array_equal(model.encode(texts), TextEncoder(weights).encode(texts))
    assert model.fill_mask("the [MASK]") == Filler(weights).fill_mask("the [MASK]")
    assert model.spans("a [MASK] [MASK] b", top=1) == Filler(weights).spans("a [MASK] [MASK] b", top=1)
    assert repr(model) == (
        f"<TextModel '{run_folder}/checkpoints/2', step 2, bert of 2 layers x 16, {model.parameters:,} parameters, "
        "120 sentencepiece tokens, heads mlm + sbo>"
    )
    assert model.hidden_size == 16 and model.notes == weights.notes
    with pytest.raises(ValueError, match="nowhere does not exist"):
        spanjax.load("nowhere")


def test_save_torch_writes_what_the_command_writes(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    model = spanjax.load(run_folder)
    model.save_torch(tmp_path / "one" / "hf", license="mit", dtype="float16")
    arguments = ["to-torch", str(run_folder), str(tmp_path / "other" / "hf"), "--license=mit", "--dtype=float16"]
    assert convert(arguments) == 0
    one, other = (sorted((tmp_path / name / "hf").iterdir()) for name in ("one", "other"))
    assert [file.name for file in one] == [file.name for file in other] and len(one) > 4
    for mine, theirs in zip(one, other, strict=True):
        if mine.suffix != ".safetensors":
            assert mine.read_bytes() == theirs.read_bytes(), mine.name
            continue
        written, expected = load_file(mine), load_file(theirs)  # the order of their metadata varies
        assert written.keys() == expected.keys()
        for name in written:
            np.testing.assert_array_equal(written[name], expected[name], err_msg=name)
    with pytest.raises(ValueError, match="exists already"):
        model.save_torch(tmp_path / "one" / "hf")
    # of the float16 numbers that were written
    exported = spanjax.load(tmp_path / "one" / "hf")
    assert exported.encode(["a"]).shape == (1, 16) and "heads mlm + sbo" in repr(exported)


def test_answers_are_those_of_the_command(
    run_folder: pathlib.Path, tuned_folder: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    assert (
        predict(["classify", str(tuned_folder), "--text", "the old clock", "the blue clock", "--batch-size", "4"]) == 0
    )
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for each in expected:
        del each["input"]
    task = spanjax.load_task(tuned_folder, batch_size=4)
    records = [{"sentence": "the old clock"}, {"sentence": "the blue clock"}]
    assert task.predict(records) == expected
    assert task.predict(records[0]) == task.predict(sentence="the old clock") == expected[0]
    bad, good = task.predict([{"text": 3}, records[0]])
    assert "expected" in bad["error"] and good == expected[0] and task.predict([]) == []
    assert repr(task).startswith("<TaskPredictor ") and ", task Glue" in repr(task)
    for arguments, fields, message in (
        ((), {"sentenc": "a"}, "sentenc"),
        (([{"text": 3}, {}],), {}, "expected"),
        ((), {}, "give a list of records, or the fields of one record"),
        ((records,), {"sentence": "a"}, "and not both"),
        ((["a text"],), {}, "record 0 is 'a text': expected a dict of fields"),
    ):
        with pytest.raises(ValueError, match=message):
            task.predict(*arguments, **fields)
    with pytest.raises(ValueError, match="is not a fine-tuned model"):
        spanjax.load_task(run_folder)


def run_of(arguments: list[str]) -> spanjax.Run:
    return train.parse(arguments).run


def test_fit_is_the_command_line(
    run_folder: pathlib.Path, rows_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = shrunk(str(ROOT / RUN_CONFIG), rows_folder, tmp_path / "run", 2, "--data.feed=numpy")
    result = spanjax.fit(run_of(arguments), workdir=tmp_path / "run")
    assert (result.workdir, result.step) == (tmp_path / "run", 2) and result.metrics["mlm/loss"] > 0
    expected = final_leaves(run_folder)
    for name, leaf in final_leaves(tmp_path / "run").items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == json.loads((run_folder / "run.json").read_text())
    # a stop request: the same exit code as the command line
    monkeypatch.setattr(train, "train", lambda command, ends_process: STOPPED if not ends_process else 0)
    with pytest.raises(SystemExit) as stop:
        spanjax.fit(run_of(arguments), tmp_path / "run")
    assert stop.value.code == 75


def test_wrong_settings_of_fit_are_listed(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run = load_config(str(ROOT / RUN_CONFIG))
    wrong: Any = types.SimpleNamespace()
    for arguments, message in (
        ((wrong, "x"), "run is namespace.*: expected a spanjax.Run"),
        ((spanjax.Run(steps="2"), "x"), "run.steps is '2': expected int"),  # type: ignore[arg-type]
        ((run, ""), "workdir is empty"),
        ((spanjax.Run(steps=0, batch_size=0), tmp_path / "run"), "(?s)steps is 0.*batch_size is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            api.fit(*arguments)
    assert not (tmp_path / "run").exists()


STOPS = """
import os, signal, sys, threading, time, pathlib
import spanjax
from spanjax import train
if __name__ == "__main__":
    arguments, workdir = sys.argv[1:], pathlib.Path(sys.argv[-1])
    def stop():
        while not (workdir / "metrics.jsonl").exists() or not (workdir / "metrics.jsonl").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=stop, daemon=True).start()
    try:
        print(spanjax.fit(train.parse(arguments[:-1]).run, workdir).step)
    except SystemExit as error:
        print("the program is still here", flush=True)
        raise
"""


@pytest.mark.slow
def test_a_stop_request_saves_and_ends_with_75(rows_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """And while a program is compiled, where the command line ends at once, the process of the caller stays."""
    (tmp_path / "stops.py").write_text(STOPS)
    arguments = shrunk(str(ROOT / RUN_CONFIG), rows_folder, tmp_path / "run", 5000, "--data.feed=numpy")
    command = [sys.executable, str(tmp_path / "stops.py"), *arguments, str(tmp_path / "run")]
    done = subprocess.run(
        command, env=environment(1, PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 75, done.stdout + done.stderr
    assert "the program is still here" in done.stdout and "saved" in done.stdout + done.stderr
    assert 0 < spanjax.load(tmp_path / "run").weights.step < 5000
