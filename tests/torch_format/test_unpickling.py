"""Hostile, damaged and wrong files: every one is a ValueError that names the file, and nothing in it runs."""

import collections
import io
import os
import pathlib
import pickle
import random
import re
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from spanjax.torch_format.pickles import open_torch_file, write_torch_file


def read_torch_file(path):
    """The tensors of a file, by name."""
    return open_torch_file(path).tensors


torch = pytest.importorskip("torch", reason="writes files with PyTorch: .venv/bin/pip install torch")
either_format = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])


def save(tensors: Any, path: pathlib.Path, is_zip: bool, **more: Any) -> pathlib.Path:
    torch.save(tensors, path, _use_new_zipfile_serialization=is_zip, **more)
    return path


def weights() -> dict[str, Any]:
    table = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {"embeddings": table, "turned": table.T, "half": torch.ones(5).half(), "bias": torch.nn.Parameter(table[0])}


def zipped(path: pathlib.Path, content: bytes, **records: bytes) -> pathlib.Path:
    """A zip of torch's with this pickle and these storages."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", content)
        for key, storage in records.items():
            archive.writestr(f"w/data/{key}", storage)
    return path


def legacy(path: pathlib.Path, content: bytes) -> pathlib.Path:
    """A file of torch's older format with this pickle and no storages."""
    parts = [pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    path.write_bytes(b"".join([*parts, content, pickle.dumps([], 2)]))
    return path


MAKERS = (zipped, legacy)


class Calls:
    """Pickled as a call, as `__reduce__` of any object may ask for one."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None):
        self.call = (function, arguments, state) if state else (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@either_format
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_that_would_run_a_command_is_refused(protocol: int, is_zip: bool, tmp_path: pathlib.Path) -> None:
    for hostile in (
        {"a": torch.ones(2), "b": Calls(os.system, f"touch {tmp_path / 'ran'}")},
        collections.OrderedDict([("a", Calls(os.system, f"touch {tmp_path / 'ran'}"))]),
        {"a": Calls(torch._utils._rebuild_parameter, Calls(os.system, f"touch {tmp_path / 'ran'}"), True, {})},
    ):
        path = save(hostile, tmp_path / "w.bin", is_zip, pickle_protocol=protocol)
        with pytest.raises(
            ValueError, match=r"w\.bin: the file requests posix\.system, .*nothing in it was run.*trust"
        ):
            read_torch_file(path)
        assert not (tmp_path / "ran").exists()
    with pytest.raises(AttributeError):  # the last of them, by torch
        torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("program", "forbidden"),
    [
        (b"cbuiltins\neval\n(V1+1\ntR.", "builtins.eval"),
        (b"(V1+1\nibuiltins\neval\n.", "builtins.eval"),
        (b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.", "builtins.getattr"),
        (b"\x80\x04\x8c\x0ctorch._utils\x8c\x0bsys.modules\x93.", "torch._utils.sys.modules"),
        (b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93.", "collections.OrderedDict.__init__"),
        (b"cargparse\nArgumentParser\n)R.", "argparse.ArgumentParser"),
        (b"ccopyreg\n_reconstructor\n.", "copyreg._reconstructor"),
        (b"ctorch.nn.modules.linear\nLinear\n)\x81.", "torch.nn.modules.linear.Linear"),
        (b"c__torch__\nNet\n)\x81.", "__torch__.Net"),
    ],
)
def test_what_weights_do_not_need_is_refused(
    maker: Callable, program: bytes, forbidden: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"requests {forbidden}, ")):
        read_torch_file(maker(tmp_path / "w.bin", program))


@pytest.mark.parametrize("maker", MAKERS)
def test_stand_ins_cannot_be_changed_by_a_file(maker: Callable, tmp_path: pathlib.Path) -> None:
    good = save(weights(), tmp_path / "good.bin", True)
    state = pickle.dumps((None, {"__new__": 1, "__call__": 2, "storage": 3, "items": 4}), 2)[2:-1]
    for name in (b"collections\nOrderedDict", b"argparse\nNamespace", b"torch._utils\n_rebuild_tensor_v2",
                 b"torch._utils\n_rebuild_parameter", b"torch\nFloatStorage", b"torch\nfloat32"):  # fmt: skip
        for made in (b"", b")R", b"]R", b")\x81"):
            with pytest.raises(ValueError, match=r"w\.bin: "):
                read_torch_file(maker(tmp_path / "w.bin", b"\x80\x02c" + name + b"\n" + made + state + b"b."))
    assert list(read_torch_file(good)) == list(weights())


BOMBS = {
    "memo": b"\x80\x02}r\xff\xff\xff\x03.",
    "memo in letters": b"}p99999999\n.",
    "tower": b"\x80\x02})" + b"\x85" * 400_000 + b"K\x01s.",
    "tower of remembered tuples": b"\x80\x02})" + b"q\x00h\x00\x85" * 200_000 + b"K\x01s.",
    "tower from marks": b"\x80\x02}" + b"(" * 200_000 + b"t" * 200_000 + b"K\x01s.",
    "tower of pairs": b"\x80\x04})" + b"\x94)\x86" * 200_000 + b"K\x01s.",
    "extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_cannot_fill_the_memory_or_overflow_the_stack(
    maker: Callable, bomb: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match="not one that torch writes; copy or download"):
        read_torch_file(maker(tmp_path / "w.bin", BOMBS[bomb]))


@pytest.mark.parametrize("maker", MAKERS)
def test_lengths_that_are_not_there_ask_for_no_memory(maker: Callable, tmp_path: pathlib.Path) -> None:
    huge = (2**62).to_bytes(8, "little")
    for program in (b"\x8e" + huge, b"\x8d" + huge, b"\x96" + huge, b"X\xff\xff\xff\xff", b"\x95" + huge, b"B\xff\xff\xff\x7f",
                    b"T\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f", b"h\x07", b"0", b"t", b"u", b"R", b"", b"Q"):  # fmt: skip
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"w\.bin: damaged"):
            read_torch_file(maker(tmp_path / "w.bin", b"\x80\x04" + program + b"."))
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


@either_format
def test_files_cut_at_every_length_are_refused(is_zip: bool, tmp_path: pathlib.Path) -> None:
    content = save(weights(), tmp_path / "w.bin", is_zip).read_bytes()
    assert len(read_torch_file(tmp_path / "w.bin")) == 4
    tracemalloc.start()
    for length in range(len(content)):
        (tmp_path / "w.bin").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"w\.bin: .*(copy or download|unpack)"):
            read_torch_file(tmp_path / "w.bin")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


@either_format
def test_damaged_bytes_are_refused_or_harmless(is_zip: bool, tmp_path: pathlib.Path) -> None:
    content = save(weights(), tmp_path / "w.bin", is_zip).read_bytes()
    whole = {name: array.tobytes() for name, array in read_torch_file(tmp_path / "w.bin").items()}
    drawn, refused = random.Random(0), 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= drawn.choice([1, 2, 4, 8, 16, 32, 64, 128, 255])
        (tmp_path / "w.bin").write_bytes(damaged)
        try:
            found = read_torch_file(tmp_path / "w.bin")
        except ValueError as error:
            assert "w.bin: " in str(error)
            refused += 1
        else:
            assert all(isinstance(array, np.ndarray) for array in found.values())
            assert not is_zip or {name: array.tobytes() for name, array in found.items()} == whole  # checksums
    assert len(content) / 5 < refused < len(content)


def test_noise_behind_a_good_beginning_is_refused(tmp_path: pathlib.Path) -> None:
    drawn = random.Random(0)
    for beginning in (b"PK\3\4", pickle.dumps(0x1950A86A20F9469CFC6C, 2), b"\x80\x02"):
        for _ in range(300):
            (tmp_path / "w.bin").write_bytes(beginning + drawn.randbytes(drawn.randrange(1, 500)))
            with pytest.raises(ValueError, match=r"w\.bin: "):
                read_torch_file(tmp_path / "w.bin")


@either_format
def test_tensors_that_reach_outside_are_refused(is_zip: bool, tmp_path: pathlib.Path) -> None:
    storage = torch.arange(6, dtype=torch.float32)._typed_storage()

    def tensor(offset: Any, size: Any, stride: Any) -> dict[str, Any]:
        return {"x": Calls(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, {})}

    for inside in ((0, (2, 3), (3, 1)), (5, (1, 1), (9, 9)), (9, (0, 4), (4, 1)), (0, (4, 3), (1, 1))):
        assert read_torch_file(save(tensor(*inside), tmp_path / "w.bin", is_zip))["x"].shape == inside[1]
    for outside in ((1, (2, 3), (3, 1)), (0, (2, 3), (4, 1)), (6, (), ()), (-1, (2,), (1,)), (5, (2,), (-1,)), (0, (-1,), (1,)),
                    (0, (2,), (1, 1)), (0, (7,), (1,)), (0, (2**62, 2**62), (2**62, 1)), (0, (2.0,), (1,)), (None, (), ()),
                    (0, (True,), (1,))):  # fmt: skip
        with pytest.raises(
            ValueError, match=r"w\.bin: damaged: tensor x of .* reaches outside its storage of 6 elements; copy"
        ):
            read_torch_file(save(tensor(*outside), tmp_path / "w.bin", is_zip))
    for strange in ((0, (2,) * 90, (0,) * 90), (0, (2**62, 2**62, 0), (0, 0, 0)), (0, 3, 1)):
        with pytest.raises(ValueError, match=r"w\.bin: damaged or truncated \(.*; copy or download"):
            read_torch_file(save(tensor(*strange), tmp_path / "w.bin", is_zip))
    without = {"x": Calls(torch._utils._rebuild_tensor_v2, "storage", 0, (), (), False, {})}
    with pytest.raises(ValueError, match="damaged: a tensor has no storage; copy"):
        read_torch_file(save(without, tmp_path / "w.bin", is_zip))


@either_format
def test_tensors_of_the_first_torch_are_read(is_zip: bool, tmp_path: pathlib.Path) -> None:
    storage = torch.arange(6, dtype=torch.float32)._typed_storage()
    old = {"x": Calls(torch._utils._rebuild_tensor, storage, 1, (2, 2), (3, 1))}
    assert read_torch_file(save(old, tmp_path / "w.bin", is_zip))["x"].tolist() == [[1, 2], [4, 5]]


def test_storages_that_are_not_as_the_pickle_says_are_refused(tmp_path: pathlib.Path) -> None:
    write_torch_file(tmp_path / "good.bin", {"x": np.arange(6, dtype=np.float32)})
    with zipfile.ZipFile(tmp_path / "good.bin") as archive:
        content = archive.read("archive/data.pkl")
    assert read_torch_file(zipped(tmp_path / "w.bin", content, **{"0": bytes(24)}))["x"].tolist() == [0] * 6
    for size in (0, 20, 28):
        with pytest.raises(ValueError, match=f"damaged: storage 0 has {size} bytes, the pickle says 24; copy"):
            read_torch_file(zipped(tmp_path / "w.bin", content, **{"0": bytes(size)}))
    with pytest.raises(ValueError, match="damaged: storage 0 is missing; copy"):
        read_torch_file(zipped(tmp_path / "w.bin", content))
    with pytest.raises(ValueError, match=r"damaged or truncated \(KeyError|storage 0 is missing"):
        read_torch_file(legacy(tmp_path / "w.bin", content))
    for count, message in ((5, "storage 0 has 20"), (7, "storage 0 has 28"), (8, "8 elements of storage 0 are missing"),
                           (-1, "-1 elements of storage 0"), (2**62, r"[\d,]{25} elements of storage 0")):  # fmt: skip
        path = legacy(tmp_path / "w.bin", content)
        storage = count.to_bytes(8, "little", signed=True) + bytes(28)
        path.write_bytes(path.read_bytes()[: -len(pickle.dumps([], 2))] + pickle.dumps(["0"], 2) + storage)
        with pytest.raises(ValueError, match=f"damaged: {message}"):
            read_torch_file(path)
    for wrong, message in (
        (content.replace(b"storage", b"storing"), r"no storage is called \('storing', 'float32', '0', 'cpu', 6\)"),
        (content.replace(b"cpuq\x00K\6", b"cpuq\x00J\xff\xff\xff\xff"), r"no storage is called .*'cpu', -1\)"),
    ):
        assert wrong != content
        with pytest.raises(ValueError, match=f"damaged: {message}"):
            read_torch_file(zipped(tmp_path / "w.bin", wrong, **{"0": bytes(24)}))
    zipped(tmp_path / "w.bin", content, **{"0": bytes(24)})
    with zipfile.ZipFile(tmp_path / "w.bin", "a") as archive:
        archive.writestr("w/byteorder", "middle")
    with pytest.raises(ValueError, match="the byte order is b'middle', expected little or big"):
        read_torch_file(tmp_path / "w.bin")


def test_other_kinds_of_file_are_refused(tmp_path: pathlib.Path) -> None:
    array = {"a": np.ones(3, np.float32)}
    good = save(weights(), tmp_path / "good.bin", True)
    save_file(array, tmp_path / "safetensors")
    np.savez(tmp_path / "npz", a=array["a"])
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": [1.0]}))
    (tmp_path / "text").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "empty").touch()
    with tarfile.open(tmp_path / "tar", "w:gz") as archive:
        archive.add(good, "pytorch_model.bin")
    for name, compression in (("within", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(tmp_path / name, "w", compression) as outer, zipfile.ZipFile(good) as inner:
            for record in inner.namelist() if name == "deflated" else ["pytorch_model.bin"]:
                outer.writestr(record, good.read_bytes() if name == "within" else inner.read(record))
    (tmp_path / "npz.npz").rename(tmp_path / "npz")
    for name, message in (
        ("safetensors", "not a file that torch.save wrote; .*give a .safetensors file as such"),
        ("text", "not a file that torch.save wrote"),
        ("pickle", "not a file that torch.save wrote"),
        ("tar", "not a file that torch.save wrote; unpack a .tar.gz first"),
        ("empty", "the file is empty; copy or download"),
        ("npz", "0 data.pkl in this zip"),
        ("within", "0 data.pkl in this zip: .* unpack it"),
        ("deflated", "good/data.pkl is compressed or encrypted: expected a file as torch.save writes it"),
        ("none", "no such file; give the path"),
        ("", "no such file; give the path"),
    ):
        with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path / name))}: {message}"):
            read_torch_file(tmp_path / name)


def test_two_protocols_of_torch_and_parts_of_storages_are_refused(tmp_path: pathlib.Path) -> None:
    path = legacy(tmp_path / "w.bin", pickle.dumps({}, 2))
    path.write_bytes(path.read_bytes().replace(pickle.dumps(1001, 2), pickle.dumps(1002, 2)))
    with pytest.raises(ValueError, match="protocol is 1002, expected 1001; load and save it with torch"):
        read_torch_file(path)
    part = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, "1", "cpu", 6, ("2", 0, 3)) if obj == "this" else None

    Pickler(part, 2).dump({"x": "this"})
    with pytest.raises(ValueError, match="a part of another, as before torch 0.4; load and save it"):
        read_torch_file(legacy(tmp_path / "w.bin", part.getvalue()))
