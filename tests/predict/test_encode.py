"""`predict encode`: vectors of files in the order of their texts, and what it refuses."""

import json
import pathlib

import numpy as np
import pytest
from pyarrow import parquet

from spanjax.inference.encode import TextEncoder
from spanjax.predict import encode, main
from spanjax.pretrained.load import load_model

TEXTS = ["the long time", "a", "was good and the time was long", "é"]


@pytest.fixture(scope="module")
def expected(run_folder: pathlib.Path) -> np.ndarray:
    return TextEncoder(load_model(run_folder)).encode(TEXTS)


@pytest.fixture
def files(tmp_path: pathlib.Path) -> list[str]:
    """The first two texts as lines, with a blank one, the others as JSON lines."""
    (tmp_path / "a.txt").write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n")
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps({'body': text, 'text': text})}\n" for text in TEXTS[2:]))
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]


def test_vectors_of_files(
    run_folder: pathlib.Path,
    expected: np.ndarray,
    files: list[str],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encode, "CHUNK", 3)
    command = ["encode", str(run_folder), "--input", *files, "--output"]
    assert main([*command, str(tmp_path / "new" / "v.npy")]) == 0
    assert f"4 vectors of 16 numbers -> {tmp_path / 'new' / 'v.npy'}" in capsys.readouterr().out
    found = np.load(tmp_path / "new" / "v.npy")
    assert found.dtype == np.float32 and found.shape == (4, 16)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert main([*command, str(tmp_path / "v.parquet"), "--field", "body"]) == 0
    table = parquet.read_table(tmp_path / "v.parquet")
    assert table.column("text").to_pylist() == TEXTS
    np.testing.assert_allclose(np.stack(table.column("vector").to_numpy()), expected, rtol=1e-5, atol=1e-6)


def test_files_that_cannot_be_encoded_leave_nothing(
    run_folder: pathlib.Path, files: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "v.npy"
    command = ["encode", str(run_folder), "--output", str(output), "--input"]
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"review": "b"}\n')
    assert main([*command, str(tmp_path / "bad.jsonl")]) == 2
    assert "record 2: expected a text in the field 'text', got the fields review" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text"\n')
    assert main([*command, str(tmp_path / "bad.jsonl")]) == 2
    assert "bad.jsonl:2: not JSON" in capsys.readouterr().err
    (tmp_path / "long.txt").write_text("a\n" + "long time " * 100)
    assert main([*command, str(tmp_path / "long.txt")]) == 2
    said = capsys.readouterr().err
    assert "the text at index 1 has" in said and "index 0 is text 1 of the files; --truncate cuts texts" in said
    (tmp_path / "empty.txt").write_text("\n")
    assert main([*command, str(tmp_path / "empty.txt")]) == 2 and "no text" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if "v.npy" in path.name]
    assert main([*command, str(tmp_path / "long.txt"), "--truncate"]) == 0 and np.load(output).shape == (2, 16)


@pytest.mark.unit
def test_wrong_options_are_listed(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "v.npy").write_text("mine")
    (tmp_path / "a.txt").write_text("a\n")
    for output, problem, more in (
        ("v.bin", "v.bin: expected a name that ends in .npy or .parquet", ["--batch-size", "0"]),
        ("v.npy", "v.npy exists already: choose another name, or replace it with --overwrite", []),
        ("v.npy", "v.npy holds no vectors: give another name", ["--overwrite"]),
        ("a.txt/v.npy", "a.txt is a file, expected a folder", []),
    ):
        words = ["encode", "no-model", "--input", str(tmp_path / "none.txt"), "--output", str(tmp_path / output), *more]
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "encode: cannot encode with no-model" in said and "none.txt: no such file" in said and problem in said
    assert "--batch-size is 0" in said or (tmp_path / "v.npy").read_text() == "mine"
