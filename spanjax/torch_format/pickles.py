"""Reads and writes PyTorch's files of weights without torch, and runs nothing that is pickled in them.

`torch.save` pickles a dictionary in which every tensor is a view (offset, size, strides) of a storage, and puts the bytes
of the storages next to the pickle. Since torch 1.6 the file is an uncompressed zip of NAME/data.pkl and NAME/data/KEY.
Before, as in the SpanBERT weights of 2019, it is a row of pickles (magic number, protocol, platform, the dictionary, the
keys of the storages) and then for every key an int64 count and that many elements, little-endian.
"""

import math
import mmap
import os
import pathlib
import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple, cast

import numpy as np

from spanjax.storage.local import whole_file
from spanjax.torch_format.unpickling import (
    AGAIN,
    DTYPES,
    STORAGES,
    Refused,
    Storage,
    Tensor,
    not_needed,
    opaque_in,
    unpickle,
)

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ALIGNMENT, _PADDING = 64, 0x4246  # bytes; the id of an extra field of a zip that only moves what follows it


class TorchFile(NamedTuple):
    """Contents of a file that torch.save wrote."""

    tensors: dict[str, np.ndarray]
    """The weights, by name."""
    top: Any
    """The whole pickled object, with stand-ins for tensors and objects."""
    skipped: tuple[str, ...]
    """Names of the classes and functions in the pickle that were neither imported nor called."""


class _Content(NamedTuple):
    data: mmap.mmap
    top: Any
    skipped: tuple[str, ...]  # as in TorchFile
    record: Callable[[Storage], memoryview | None]  # its bytes
    swapped: bool  # in the other order than this machine's


def _zip_record(data: mmap.mmap, info: zipfile.ZipInfo) -> tuple[int, memoryview]:
    """Returns the offset of a record in the file, and its bytes."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise Refused(f"{info.filename} is compressed or encrypted: expected a file as torch.save writes it")
    mark, name, extra = struct.unpack_from("<4s22xHH", data, info.header_offset)
    start = info.header_offset + 30 + name + extra
    content = memoryview(data)[start : start + info.file_size]
    whole = mark == b"PK\3\4" and len(content) == info.file_size
    if not whole or info.CRC not in (0, zlib.crc32(content)):  # 0: torch.serialization.set_crc32_options(False)
        raise Refused(f"damaged: {info.filename} is not what was written; {AGAIN}")
    return start, content


def _open_zip(data: mmap.mmap) -> _Content:
    with zipfile.ZipFile(cast(IO[bytes], data)) as archive:
        records = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in records if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise Refused(f"{len(pickles)} data.pkl in this zip: expected one; if a file of torch.save is in it, unpack it")
    unpickler, top, _ = unpickle(data, _zip_record(data, records[pickles[0]])[0])
    folder = pickles[0].removesuffix("data.pkl")
    order = records.get(f"{folder}byteorder")
    written = _zip_record(data, order)[1].tobytes() if order else b"little"
    if written not in (b"little", b"big"):
        raise Refused(f"damaged: the byte order is {written[:20]}, expected little or big; {AGAIN}")

    def record(storage: Storage) -> memoryview | None:
        info = records.get(f"{folder}data/{storage.key}")
        return _zip_record(data, info)[1] if info else None

    return _Content(data, top, unpickler.skipped, record, written.decode() != sys.byteorder)


def _plain_pickle(data: mmap.mmap, start: int) -> tuple[Any, int]:
    """Returns one of the small pickles around the content, and the offset of its end."""
    unpickler, found, end = unpickle(data, start)
    if unpickler.skipped:
        raise Refused(not_needed(unpickler.skipped[0]))
    return found, end


def _open_legacy(data: mmap.mmap, end: int) -> _Content:
    protocol, end = _plain_pickle(data, end)
    if protocol != _PROTOCOL:
        raise Refused(f"the protocol is {str(protocol)[:20]}, expected {_PROTOCOL}; load and save it with torch")
    _, end = _plain_pickle(data, end)
    unpickler, top, end = unpickle(data, end)
    keys, end = _plain_pickle(data, end)
    records: dict[str | int, memoryview] = {}
    for key in keys:
        (count,) = struct.unpack_from("<q", data, end)
        begin, size = end + 8, count * DTYPES[unpickler.storages[key].dtype].itemsize
        end = begin + size
        if count < 0 or end > len(data):
            raise Refused(f"truncated or damaged: {count:,} elements of storage {key} are missing; {AGAIN}")
        records[key] = memoryview(data)[begin:end]
    swapped = sys.byteorder != "little"
    return _Content(data, top, unpickler.skipped, lambda storage: records.get(storage.key), swapped)


def _open(data: mmap.mmap) -> _Content:
    if data[:4] == b"PK\3\4":
        return _open_zip(data)
    for magic in (pickle.dumps(_MAGIC, protocol) for protocol in range(2, 6)):
        if data[: len(magic)] == magic:
            return _open_legacy(data, len(magic))
    raise Refused("not a file that torch.save wrote; unpack a .tar.gz first, and give a .safetensors file as such")


def _tensors(top: Any) -> dict[str, Tensor]:
    """Returns the tensors of a state dict, or of the one inside a checkpoint. Refuses a state dict that holds an opaque object;
    elsewhere in a checkpoint such objects are skipped."""
    inside = [top, *(top[key] for key in ("model", "state_dict") if key in top)] if isinstance(top, dict) else [top]
    found = [
        (names, {name: value for name, value in names.items() if isinstance(value, Tensor)})
        for names in inside
        if isinstance(names, dict)
    ]
    full = [each for each in found if each[1]]
    # Without a state dict the weights may lie in an object: it is named, first the one in place of the weights.
    places = [full[0][0]] if full else [*inside[1:], top]
    if strange := next(filter(None, map(opaque_in, places)), ""):
        raise Refused(not_needed(strange))
    if not full or (len(full) > 1 and not found[0][1]):
        what = (
            f"a dictionary of {[str(key)[:40] for key in list(top)[:8]]}" if isinstance(top, dict) else "no dictionary"
        )
        raise Refused(
            f"{len(full)} state dicts in it: expected a dictionary of named tensors, alone or as one of 'model' and "
            f"'state_dict', but it is {what}; save one with torch.save(model.state_dict(), path)"
        )
    if numbered := [name for name in full[0][1] if not isinstance(name, str)]:
        raise Refused(f"tensors called {numbered[:8]}: expected names; give the file of weights, not of an optimizer")
    return full[0][1]


def _elements(content: _Content, storage: Storage, dtype: np.dtype) -> np.ndarray:
    """Returns a storage as a vector of this dtype: memory-mapped, or a copy if its alignment or byte order does not fit."""
    record, size = content.record(storage), storage.count * DTYPES[storage.dtype].itemsize
    if record is None or len(record) != size:
        has = "is missing" if record is None else f"has {len(record):,} bytes, the pickle says {size:,}"
        raise Refused(f"damaged: storage {storage.key} {has}; {AGAIN}")
    line = np.frombuffer(record, np.uint8)[: size - size % dtype.itemsize]
    if content.swapped:
        line = line.view(f"u{dtype.itemsize}").byteswap().view(dtype)
    elif not (line := line.view(dtype)).flags.aligned:
        line = line.copy()
        content.data.madvise(mmap.MADV_DONTNEED)  # or the file would be resident beside the copies
    line.flags.writeable = False
    return line


def _view(name: str, tensor: Tensor, line: np.ndarray) -> np.ndarray:
    size, stride, offset, item = tensor.size, tensor.stride, tensor.offset, line.itemsize
    whole = all(type(number) is int and number >= 0 for number in (*size, *stride, offset)) and len(size) == len(stride)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) if whole else 0
    if not whole or (math.prod(size) and last >= len(line)):
        raise Refused(
            f"damaged: tensor {name} of (size, strides, offset) {str((size, stride, offset))[:200]} reaches outside its "
            f"storage of {len(line):,} elements; {AGAIN}"
        )
    if not math.prod(size):
        return line[:0].reshape(size)
    steps = [step * item if length > 1 else item for length, step in zip(size, stride, strict=True)]
    return np.ndarray(size, line.dtype, line, offset * item, steps)


def open_torch_file(path: str | pathlib.Path) -> TorchFile:
    """Reads a file that `torch.save` wrote: a state dict, or a checkpoint that has one under "model" or "state_dict", its
    tensors in the order of the file. It skips everything but tensors and executes nothing in the file.

    The arrays are read-only. Except for the older format they are views of the memory-mapped file, which must stay
    unchanged; tensors that share a storage share memory. ValueError for a file that is missing, damaged, truncated, none of
    torch's or without tensors, and for one whose state dict names anything that weights do not need.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give the path of a file that torch.save wrote, say pytorch_model.bin")
    found: dict[str, np.ndarray] = {}
    lines: dict[tuple[str | int, np.dtype], np.ndarray] = {}
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise Refused(f"the file is empty; {AGAIN}")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        content = _open(data)
        for name, tensor in _tensors(content.top).items():
            storage, dtype = tensor.storage, DTYPES[tensor.dtype]
            if (storage.key, dtype) not in lines:
                lines[storage.key, dtype] = _elements(content, storage, dtype)
            found[name] = _view(name, tensor, lines[storage.key, dtype])
    except Refused as error:
        raise ValueError(f"{path}: {error}") from None
    except OSError:
        raise
    except Exception as error:  # whatever bytes that nobody wrote make of zipfile, pickle and numpy
        raise ValueError(
            f"{path}: damaged or truncated ({type(error).__name__}: {str(error)[:200]}); {AGAIN}"
        ) from error
    return TorchFile(found, content.top, content.skipped)


def write_torch_file(path: str | pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes an OrderedDict of CPU tensors that `torch.load(path, weights_only=True)` of torch 1.6 and later reads.

    The file appears whole or not at all, and its bytes depend on the tensors alone. Arrays of any strides and byte order
    become contiguous tensors, one at a time; names of the same array object share a storage. ValueError for values that
    are not arrays, or arrays of a dtype that has no storage type in torch.
    """
    path, items = pathlib.Path(path), list(tensors.items())
    if problems := [
        f"  - {name!r}: {getattr(tensor, 'dtype', type(tensor).__name__)}"
        for name, tensor in items
        if not (isinstance(name, str) and isinstance(tensor, np.ndarray | np.generic) and tensor.dtype.name in STORAGES)
    ]:
        raise ValueError(
            f"{path} cannot hold these; expected names with NumPy arrays of {', '.join(STORAGES)}; convert them:\n"
            + "\n".join(problems)
        )
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
    storages = {id(tensor): tensor for _, tensor in items}
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        _put(archive, file, "data.pkl", _pickled(items, {key: str(at) for at, key in enumerate(storages)}))
        _put(archive, file, "byteorder", sys.byteorder.encode())
        for at, tensor in enumerate(storages.values()):
            # dtype.name ignores the byte order, so this converts to the machine's, which `byteorder` records
            line = np.ascontiguousarray(tensor, DTYPES[tensor.dtype.name]).reshape(-1)
            _put(archive, file, f"data/{at}", line.view(np.uint8).data)
        _put(archive, file, "version", b"3\n")


def _put(archive: zipfile.ZipFile, file: IO[bytes], name: str, content: bytes | memoryview) -> None:
    """Adds a record whose bytes begin at a multiple of 64, so that they can be mapped."""
    info = zipfile.ZipInfo(f"archive/{name}")
    info.file_size, large = len(content), len(content) > 2**30
    header = file.tell() + 30 + len(info.filename) + (20 if large else 0)
    padding = -(header + 4) % _ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=large) as record:
        record.write(content)


def _pickled(items: list[tuple[str, np.ndarray]], keys: Mapping[int, str]) -> bytes:
    """Builds the pickle (protocol 2) of an OrderedDict in which each array is a view of the storage with its key."""
    empty = _named("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    parts = [pickle.PROTO, b"\2", empty, pickle.MARK]
    for name, tensor in items:
        steps = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim)]
        storage = [_plain("storage"), _named("torch", STORAGES[tensor.dtype.name]), _plain(keys[id(tensor)])]
        parts += [_plain(name), _named("torch._utils", "_rebuild_tensor_v2"), pickle.MARK, pickle.MARK, *storage]
        parts += [_plain("cpu"), _plain(tensor.size), pickle.TUPLE, pickle.BINPERSID]
        parts += [_plain(0), _plain(tensor.shape), _plain(tuple(steps)), _plain(False), empty, pickle.TUPLE]
        parts += [pickle.REDUCE]
    return b"".join([*parts, pickle.SETITEMS, pickle.STOP])


def _named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _plain(value: Any) -> bytes:
    """Returns the opcodes that push a plain value: its own pickle without the leading protocol and the final stop."""
    return pickle.dumps(value, 2)[2:-1]
