"""Unpickling that runs nothing: the pickles of PyTorch's files, read with stand-ins for what they name.

A pickle is a program that calls what it names. It is first looked through without being run, for what costs memory out
of proportion, and then unpickled with stand-ins for the names that weights need; any other name is refused.
"""

import io
import mmap
import pickle
import pickletools
from typing import IO, Any, NamedTuple, cast

import ml_dtypes
import numpy as np

STORAGES = {
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}
DTYPES = {name: np.dtype(name) for name in (*STORAGES, "uint16", "uint32", "uint64") if name != "bfloat16"}
DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
AGAIN = "copy or download the file again"
_MOST_OPCODES, _DEEPEST = 10_000_000, 1_000


class Refused(ValueError):
    """A message for the user, complete but for the file's name."""


class _Inert:
    """Stands for a harmless class: takes what it is given and keeps nothing. The opcode BUILD would set any attribute
    of an object, or of a class, that has no `__setstate__` of its own."""

    __slots__ = ()

    def __new__(cls, *_: Any) -> Any:
        return super().__new__(cls)

    @staticmethod
    def __setstate__(_: Any) -> None:
        return None


class _Names(_Inert, dict):
    """OrderedDict."""

    __slots__ = ()


class Storage(NamedTuple):
    """What a pickle says of a storage; its bytes are elsewhere."""

    dtype: str
    key: str | int
    count: int  # elements


class Tensor(_Inert):
    """_rebuild_tensor and _rebuild_tensor_v2: a view of a storage, as the pickle says it, in elements and unchecked."""

    __slots__ = ("storage", "offset", "size", "stride", "dtype")

    def __new__(
        cls, storage: Any, offset: Any, size: Any, stride: Any, _: Any = 0, __: Any = 0, flags: Any = None
    ) -> Any:
        if flags:
            raise Refused("a tensor is a lazy negative or conjugate; save tensor.resolve_neg().resolve_conj()")
        if not isinstance(storage, Storage):
            raise Refused(f"damaged: a tensor has no storage; {AGAIN}")
        self = super().__new__(cls)
        self.storage, self.offset, self.size, self.stride, self.dtype = storage, offset, size, stride, storage.dtype
        return self


class _UntypedTensor(_Inert):
    """_rebuild_tensor_v3."""

    __slots__ = ()

    def __new__(
        cls, storage: Any, offset: Any, size: Any, stride: Any, _: Any, __: Any, dtype: Any, flags: Any = 0
    ) -> Any:
        tensor = Tensor(storage, offset, size, stride, None, None, flags)
        tensor.dtype = dtype
        return tensor


class _Parameter(_Inert):
    """_rebuild_parameter and _rebuild_parameter_with_state."""

    __slots__ = ()

    def __new__(cls, tensor: Any, *_: Any) -> Any:
        return tensor


class _Attributed(_Inert):
    """_rebuild_from_type_v2: a tensor with attributes of Python's."""

    __slots__ = ()

    def __new__(cls, rebuild: Any, _: Any, arguments: Any, __: Any) -> Any:
        return rebuild(*arguments)


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Names,
    ("torch._utils", "_rebuild_tensor"): Tensor,
    ("torch._utils", "_rebuild_tensor_v2"): Tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _UntypedTensor,
    ("torch._utils", "_rebuild_parameter"): _Parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _Parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _Attributed,
    ("torch.storage", "UntypedStorage"): "uint8",
    **{("torch", storage): name for name, storage in STORAGES.items()},
    **{("torch", name): name for name in DTYPES},
    **dict.fromkeys([("argparse", "Namespace"), ("torch", "Size"), ("torch", "device"), ("torch", "Tensor")], _Inert),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self.storages: dict[str | int, Storage] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """The stand-in of a global that weights need."""
        if (module_name, global_name) in _KNOWN:
            return _KNOWN[module_name, global_name]
        raise Refused(
            f"the file asks for {module_name}.{global_name}, which weights do not need; nothing in it was run. Take the "
            "file from a source you trust, or, if you trust this one, load it with torch and save its tensors alone: "
            "torch.save(model.state_dict(), path)"
        )

    def persistent_load(self, pid: Any) -> Storage:
        """The storage that is meant."""
        match pid:
            case ("storage", str(dtype), str() | int() as key, _, int(count), *view) if dtype in DTYPES and count >= 0:
                if any(view):
                    raise Refused("a storage is a part of another, as before torch 0.4; load and save it with torch")
                storage = Storage(dtype, key, count)
                self.storages.setdefault(key, storage)
                return storage
        raise Refused(f"damaged: no storage is called {str(pid)[:80]}; {AGAIN}")


def _look_through(data: mmap.mmap) -> None:
    """Reads one pickle without running it; what a few bytes blow up is refused: memos, and towers of tuples, whose hash
    overflows the stack of the interpreter."""
    stack: list[int | None] = []  # how deep tuples are nested in each thing; None is a mark
    memo: dict[Any, int | None] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], data))):
        name, before, depth = opcode.name, opcode.stack_before, 0
        if pickletools.markobject in before:
            before = before[: before.index(pickletools.markobject)]
            while (top := stack.pop()) is not None:
                depth = max(depth, top)
        for _ in before:
            depth = max(depth, stack.pop() or 0)
        if name.endswith("PUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = depth
        elif name.endswith("GET"):
            depth = memo[argument] or 0
        depth += name.startswith("TUPLE")
        stack += [None if each is pickletools.markobject else depth for each in opcode.stack_after]
        far = name.endswith("PUT") and int(argument or 0) > number
        if far or number > _MOST_OPCODES or depth > _DEEPEST or name.startswith("EXT"):
            raise Refused(f"a pickle in it is not one that torch writes; {AGAIN}")


def unpickle(data: mmap.mmap, start: int) -> tuple[_Unpickler, Any, int]:
    """The object of the pickle that begins at this byte, what read it, and where the pickle ends."""
    data.seek(start)
    _look_through(data)
    end = data.tell()
    unpickler = _Unpickler(data[start:end])
    return unpickler, unpickler.load(), end
