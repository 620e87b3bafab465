"""PyTorch's files without torch, held against torch itself: what it writes is read, and it reads what is written."""

import argparse
import collections
import pathlib
import subprocess
import sys
import tracemalloc
import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from spanjax.torch_format.pickles import open_torch_file, write_torch_file


def read_torch_file(path):
    """The tensors of a file, by name."""
    return open_torch_file(path).tensors


torch = pytest.importorskip("torch", reason="compares with PyTorch: .venv/bin/pip install torch")

NAMES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
UNSIGNED = ("uint16", "uint32", "uint64")
either_format = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])


def save(tensors: Any, path: pathlib.Path, is_zip: bool) -> pathlib.Path:
    torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    return path


def same(array: np.ndarray, tensor: Any) -> bool:
    """Equal in dtype, shape and every bit."""
    content = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return (f"torch.{array.dtype.name}", array.shape, array.tobytes()) == (
        str(tensor.dtype),
        tuple(tensor.shape),
        content,
    )


def numbers(name: str, *shape: int) -> Any:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) * 100
    return drawn.abs().to(getattr(torch, name)) if name.startswith("u") else drawn.to(getattr(torch, name))


@either_format
@pytest.mark.parametrize("name", NAMES + UNSIGNED)
def test_every_dtype_is_read(name: str, is_zip: bool, tmp_path: pathlib.Path) -> None:
    shapes = ((3, 5), (7,), (), (0,), (2, 0, 3), (1, 1), (2, 3, 4, 5))
    tensors = {f"t{place}": numbers(name, *shape) for place, shape in enumerate(shapes)}
    found = read_torch_file(save(tensors, tmp_path / "w.bin", is_zip))
    assert list(found) == list(tensors)
    assert all(same(found[each], tensors[each]) for each in tensors)
    assert all(array.flags.aligned and not array.flags.writeable for array in found.values())


@either_format
@pytest.mark.parametrize("name", ["float32", "bfloat16", "uint16"])
def test_views_are_read_and_share_memory(name: str, is_zip: bool, tmp_path: pathlib.Path) -> None:
    base, row = numbers(name, 4, 6), numbers(name, 1, 3)
    tensors = {
        "base": base,
        "transposed": base.T,
        "columns": base[:, 1::2],
        "last": base[3, 5],
        "diagonal": base.diagonal(),
        "windows": base.as_strided((3, 4), (2, 1), 5),
        "none": base[4:],
        "repeated": row.expand(5, 3),
        "odd strides": row.as_strided((1, 3), (2**62, 1)),
    }
    found = read_torch_file(save(tensors, tmp_path / "w.bin", is_zip))
    assert all(same(found[each], tensors[each]) for each in tensors)
    assert np.shares_memory(found["base"], found["columns"]) and not np.shares_memory(found["base"], found["repeated"])


@either_format
def test_modules_and_parameters_are_read(is_zip: bool, tmp_path: pathlib.Path) -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9), torch.nn.BatchNorm1d(9)).half()
    module[1].weight = module[0].weight
    state = module.state_dict()
    found = read_torch_file(save(state, tmp_path / "w.bin", is_zip))
    assert list(found) == list(state) and all(same(found[name], state[name]) for name in state)
    assert np.shares_memory(found["0.weight"], found["1.weight"])

    noted, tagged = torch.nn.Parameter(numbers("float32", 2, 3)), numbers("int64", 3)
    noted.note, tagged.note = "Python's", {"attributes": (1, torch.Size([2]), torch.float32, torch.device("cpu"))}
    tensors = {**dict(module.named_parameters()), "frozen": torch.nn.Parameter(numbers("bfloat16", 2), False)}
    tensors |= {"noted": noted, "tagged": tagged}
    found = read_torch_file(save(tensors, tmp_path / "p.bin", is_zip))
    assert list(found) == list(tensors) and all(same(found[name], tensors[name]) for name in tensors)


@either_format
@pytest.mark.parametrize("key", ["model", "state_dict"])
def test_the_state_dict_of_a_checkpoint_is_read(key: str, is_zip: bool, tmp_path: pathlib.Path) -> None:
    weights = collections.OrderedDict(a=numbers("float32", 2, 3), b=numbers("float16", 4), version=3, note=None)
    checkpoint = {
        "args": argparse.Namespace(arch="cased_bert_pair", lr=[1e-4], inner=argparse.Namespace(a=(1, 2))),
        key: weights,
        "optimizer": {"state": {0: {"step": 3, "exp_avg": numbers("float32", 9)}}},
        "extra_state": ("text", 2**70, -1.5, [None, True]),
    }
    found = read_torch_file(save(checkpoint, tmp_path / "c.pt", is_zip))
    assert list(found) == ["a", "b"] and all(same(found[name], weights[name]) for name in "ab")

    checkpoint["model"] = checkpoint["state_dict"] = weights
    with pytest.raises(ValueError, match="2 state dicts in it: .*'args', .*; save one with"):
        read_torch_file(save(checkpoint, tmp_path / "c.pt", is_zip))
    checkpoint["top"] = weights["b"]
    assert list(read_torch_file(save(checkpoint, tmp_path / "c.pt", is_zip))) == ["top"]


@either_format
def test_what_holds_no_weights_is_refused(is_zip: bool, tmp_path: pathlib.Path) -> None:
    one = numbers("float32", 2)
    for nothing in ({}, {"epoch": 3, "model": {"lr": 1.0}}, {"inside": {"a": one}}, [one], one, "text"):
        with pytest.raises(
            ValueError, match=r"w\.bin: 0 state dicts in it: expected .* torch\.save\(model\.state_dict"
        ):
            read_torch_file(save(nothing, tmp_path / "w.bin", is_zip))
    with pytest.raises(ValueError, match=r"called \[3\]: expected names"):
        read_torch_file(save({"a": one, 3: one}, tmp_path / "w.bin", is_zip))
    with pytest.raises(ValueError, match="lazy negative"):
        read_torch_file(save({"a": torch._neg_view(one)}, tmp_path / "w.bin", is_zip))
    with pytest.raises(ValueError, match=r"requests torch\.ComplexFloatStorage"):
        read_torch_file(save({"a": one.to(torch.complex64)}, tmp_path / "w.bin", is_zip))


@pytest.mark.parametrize("protocol", [3, 4, 5])
@either_format
def test_other_protocols_of_pickle_are_read(protocol: int, is_zip: bool, tmp_path: pathlib.Path) -> None:
    tensors = {"a": numbers("float32", 2, 3), "args": argparse.Namespace(a=1), "ä": torch.nn.Parameter(torch.ones(2))}
    torch.save(tensors, tmp_path / "w", pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
    found = read_torch_file(str(tmp_path / "w"))
    assert list(found) == ["a", "ä"] and all(same(found[name], tensors[name]) for name in found)


def test_strings_of_python_2_are_read(tmp_path: pathlib.Path) -> None:
    save({"ä": torch.arange(5)}, tmp_path / "3.bin", True)
    with zipfile.ZipFile(tmp_path / "3.bin") as new, zipfile.ZipFile(tmp_path / "2.bin", "w") as old:
        for record in new.namelist():
            content = new.read(record)
            old.writestr(record, content.replace(b"X", b"T") if record.endswith("data.pkl") else content)  # BINSTRING
    assert read_torch_file(tmp_path / "2.bin")["ä"].tolist() == [0, 1, 2, 3, 4]


def test_a_file_without_checksums_is_read(tmp_path: pathlib.Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save({"a": torch.arange(5)}, tmp_path / "w.bin", True)
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(tmp_path / "w.bin") as archive:
        assert not any(info.CRC for info in archive.infolist())
    assert read_torch_file(tmp_path / "w.bin")["a"].tolist() == [0, 1, 2, 3, 4]


def test_the_other_byte_order_is_read(tmp_path: pathlib.Path) -> None:
    arrays = {name: (np.arange(6).reshape(2, 3) % 2).astype(getattr(ml_dtypes, name, name)) for name in NAMES}
    write_torch_file(tmp_path / "here.pt", arrays)
    other = "big" if sys.byteorder == "little" else "little"
    with zipfile.ZipFile(tmp_path / "here.pt") as here, zipfile.ZipFile(tmp_path / "there.pt", "w") as there:
        for record in here.namelist():
            content = here.read(record)
            if "/data/" in record:
                size = len(content) // 6
                content = np.frombuffer(content, f"u{size}").byteswap().tobytes()
            there.writestr(record, other if record.endswith("byteorder") else content)
    assert (tmp_path / "here.pt").read_bytes() != (tmp_path / "there.pt").read_bytes()
    found, loaded = read_torch_file(tmp_path / "there.pt"), torch.load(tmp_path / "there.pt", weights_only=True)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].tolist() == array.tolist()
        assert same(found[name], loaded[name])


@pytest.mark.parametrize("mapped", [False, True])
def test_torch_reads_what_is_written(mapped: bool, tmp_path: pathlib.Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {name: (generator.normal(size=(3, 5)) * 50).astype(getattr(ml_dtypes, name, name)) for name in NAMES}
    arrays |= {f"{name} scalar": array[1, 2] for name, array in arrays.items()}
    arrays |= {f"{name} empty": arrays[name][:, :0] for name in NAMES}
    arrays |= {f"{name} turned": arrays[name].T[::-2] for name in NAMES}
    arrays |= {
        "big": np.arange(4, dtype=">i4"),
        "long": np.arange(70_000),
        "": np.ones((1, 1, 1, 2)),
        "0": np.array(5),
        "ä.\n": np.ones(1),
    }
    write_torch_file(tmp_path / "w.bin", arrays)
    loaded = torch.load(tmp_path / "w.bin", weights_only=True, mmap=mapped)
    found = read_torch_file(tmp_path / "w.bin")
    assert type(loaded) is collections.OrderedDict and list(loaded) == list(arrays) == list(found)
    for name, array in arrays.items():
        native = array.astype(array.dtype.newbyteorder("="))
        assert same(native, loaded[name]) and same(found[name], loaded[name])
        assert loaded[name].is_contiguous() and loaded[name].device.type == "cpu"


def test_one_array_of_two_names_is_written_once(tmp_path: pathlib.Path) -> None:
    table = np.arange(1000.0, dtype=np.float32)
    write_torch_file(tmp_path / "w.bin", {"a": table, "b": table, "equal": table.copy(), "view": table[:]})
    loaded = torch.load(tmp_path / "w.bin", weights_only=True)
    places = {name: tensor.data_ptr() for name, tensor in loaded.items()}
    assert places["a"] == places["b"] and len(set(places.values())) == 3
    assert 3 * 4000 < (tmp_path / "w.bin").stat().st_size < 4 * 4000


def test_records_are_those_of_torch_and_can_be_mapped(tmp_path: pathlib.Path) -> None:
    arrays = {f"a{n}": np.full(n, n, np.uint8) for n in range(1, 130)}
    write_torch_file(tmp_path / "one.bin", arrays)
    write_torch_file(tmp_path / "two.bin", arrays)
    content = (tmp_path / "one.bin").read_bytes()
    assert content == (tmp_path / "two.bin").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.bin") as archive:
        assert archive.testzip() is None and archive.read("archive/version") == b"3\n"
        assert archive.read("archive/byteorder").decode() == sys.byteorder
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            with archive.open(info):  # moves to the first byte of the record
                assert archive.fp is not None and archive.fp.tell() % 64 == 0
    assert all(array.ctypes.data % 64 == 0 for array in read_torch_file(tmp_path / "one.bin").values())


def test_what_torch_has_no_storage_for_is_not_written(tmp_path: pathlib.Path) -> None:
    bad: Any = {"fine": np.ones(1), "c": np.ones(2, np.complex64), "o": np.array(["x"]), "l": [1.0], 3: np.ones(1)}
    with pytest.raises(
        ValueError, match=r"(?s)expected names with .* float32.*'c': complex64\n.*'o': <U1\n.*'l': list\n.*3: "
    ):
        write_torch_file(tmp_path / "w.bin", bad)
    with pytest.raises(ValueError, match="no folder .*none; make it"):
        write_torch_file(tmp_path / "none" / "w.bin", {})
    assert not list(tmp_path.iterdir())


def test_a_file_that_fails_leaves_the_one_before(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_torch_file(tmp_path / "w.bin", {"old": np.ones(1)})

    def full(_: int) -> None:
        raise OSError("full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="full"):
        write_torch_file(tmp_path / "w.bin", {"new": np.ones(1)})
    assert [path.name for path in tmp_path.iterdir()] == ["w.bin"] and list(read_torch_file(tmp_path / "w.bin")) == [
        "old"
    ]


def test_memory_stays_about_the_size_of_the_file(tmp_path: pathlib.Path) -> None:
    size, arrays = 2**22, {f"a{n}": np.full(2**20, n, np.float32) for n in range(6)}

    def peak(work: Any, *arguments: Any) -> int:
        tracemalloc.start()
        kept = work(*arguments)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        del kept
        return most

    assert peak(write_torch_file, tmp_path / "w.bin", arrays) < 0.5 * size
    assert (
        peak(write_torch_file, tmp_path / "t.bin", {n: a.reshape(2**10, -1).T for n, a in arrays.items()}) < 2.5 * size
    )
    assert peak(read_torch_file, tmp_path / "w.bin") < 0.5 * size
    for odd in range(4):  # names of 1 to 4 letters put the storages at every place within four bytes
        named = {f"{n}"[:1] + "x" * odd: torch.from_numpy(a) for n, a in enumerate(arrays.values())}
        save(named, tmp_path / "legacy.bin", False)
        assert peak(read_torch_file, tmp_path / "legacy.bin") < 6.5 * size


def test_torch_is_not_imported() -> None:
    code = "import sys, spanjax.torch_format.pickles; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=pathlib.Path(__file__).parents[2], check=True)
