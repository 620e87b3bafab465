"""Unpickles PyTorch's files without running anything in them: stand-ins replace all names.

A pickle is a program that calls what it names. This module first scans it without running it, for opcodes that cost memory
out of proportion, and then unpickles it with stand-ins for the names that weights need. Every other name becomes an opaque
class: it is never imported, and its objects accept everything and do nothing. `opaque_in` finds them, so that weights that
contain one can be refused.
"""

import io
import mmap
import pickle
import pickletools
from collections.abc import Iterator
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
_MOST_OPCODES, _DEEPEST, _MOST_CLASSES = 10_000_000, 1_000, 1_000


class Refused(ValueError):
    """A message for the user, complete but for the file's name."""


class _Inert:
    """Stand-in for a harmless class: keeps all arguments for later inspection. The opcode BUILD would set any attribute of an
    object that has no `__setstate__` of its own; on a class it fails, as `self` is missing."""

    __slots__ = ()
    given: list[Any]

    def __new__(cls, *arguments: Any) -> Any:
        self = super().__new__(cls)
        self.given = [arguments]
        return self

    def __setstate__(self, state: Any) -> None:
        self.given.append(state)


class _Names(_Inert, dict):
    """OrderedDict."""

    __slots__ = ("given",)


class _Object(_Inert):
    """An object that weights may name, whose content they do not need."""

    __slots__ = ("given",)


class Namespace(_Object):
    """argparse.Namespace: an object of attributes."""

    __slots__ = ()

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes that the pickle sets; {} without any."""
        return next((state for state in self.given[1:] if type(state) is dict), {})


class Opaque(Namespace):
    """An object of a class that weights do not need. `Opaque` has one subclass for each unknown name in a file."""

    __slots__ = ()
    asked = ""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return super().__new__(cls)

    def __call__(self, *_: Any, **__: Any) -> "Opaque":
        """The result of a function that is not called."""
        return self

    def __setitem__(self, _: Any, __: Any) -> None:
        """The opcodes SETITEM and SETITEMS."""

    def extend(self, _: Any) -> None:
        """The opcodes APPENDS and, of a set, ADDITEMS."""

    append = add = extend


class Storage(NamedTuple):
    """A storage as the pickle describes it; its bytes are elsewhere."""

    dtype: str
    key: str | int
    count: int  # elements


class Tensor(_Inert):
    """_rebuild_tensor and _rebuild_tensor_v2: a view of a storage as the pickle describes it, in elements and unchecked."""

    __slots__ = ("storage", "offset", "size", "stride", "dtype", "given")

    def __new__(
        cls, storage: Any, offset: Any, size: Any, stride: Any, grad: Any = 0, hooks: Any = 0, flags: Any = None
    ) -> Any:
        if flags:
            raise Refused("a tensor is a lazy negative or conjugate; save tensor.resolve_neg().resolve_conj()")
        if not isinstance(storage, Storage):
            raise Refused(f"damaged: a tensor has no storage; {AGAIN}")
        self = super().__new__(cls, grad, hooks)
        self.storage, self.offset, self.size, self.stride, self.dtype = storage, offset, size, stride, storage.dtype
        return self


class _UntypedTensor(_Inert):
    """_rebuild_tensor_v3."""

    __slots__ = ()

    def __new__(
        cls, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, flags: Any = 0
    ) -> Any:
        if not isinstance(dtype, str):
            name = opaque_in(dtype)
            raise Refused(not_needed(name) if name else f"damaged: a tensor has no type; {AGAIN}")
        tensor = Tensor(storage, offset, size, stride, grad, hooks, flags)
        tensor.dtype = dtype
        return tensor


class _Parameter(_Inert):
    """_rebuild_parameter and _rebuild_parameter_with_state."""

    __slots__ = ()

    def __new__(cls, tensor: Any, *rest: Any) -> Any:
        return _with_rest(tensor, rest)


class _Attributed(_Inert):
    """_rebuild_from_type_v2: a tensor with attributes of Python's."""

    __slots__ = ()

    def __new__(cls, rebuild: Any, kind: Any, arguments: Any, state: Any) -> Any:
        return _with_rest(rebuild(*arguments), (kind, state))


def _with_rest(tensor: Any, rest: tuple[Any, ...]) -> Any:
    """Returns the tensor, with the other arguments kept for inspection."""
    if isinstance(tensor, Tensor):
        tensor.given.append(rest)
    return tensor


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
    ("argparse", "Namespace"): Namespace,
    **dict.fromkeys([("torch", "Size"), ("torch", "device"), ("torch", "Tensor")], _Object),
}


def held(*things: Any) -> Iterator[Any]:
    """Yields these values and all their contents, each once: keys and values, items, attributes, arguments of stand-ins."""
    waiting, seen = [*reversed(things)], set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue  # a few bytes may name the same list any number of times
        seen.add(id(thing))
        yield thing
        if isinstance(thing, dict):
            waiting += [*thing, *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset):
            waiting += thing
        if isinstance(thing, _Inert):
            waiting += thing.given


def opaque_in(*things: Any) -> str:
    """Name of a class that weights do not need, among these values and all their contents; "" without one."""
    kinds = (thing if isinstance(thing, type) else type(thing) for thing in held(*things))
    return next((kind.asked for kind in kinds if issubclass(kind, Opaque)), "")


def not_needed(name: str) -> str:
    """Message about a file whose weights contain an object of this class."""
    return (
        f"the file requests {name}, which weights do not need; nothing in it was run. Take the "
        "file from a source you trust, or, if you trust this one, load it with torch and save its tensors alone: "
        "torch.save(model.state_dict(), path)"
    )


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self.storages: dict[str | int, Storage] = {}
        self.opaque: dict[tuple[str, str], type[Opaque]] = {}

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the opaque classes and functions."""
        return tuple(kind.asked for kind in self.opaque.values())

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Returns the stand-in of a global: one that weights need, or an opaque class; imports nothing."""
        asked = (module_name, global_name)
        if asked in _KNOWN:
            return _KNOWN[asked]
        if asked not in self.opaque:
            if len(self.opaque) == _MOST_CLASSES:  # a class takes a hundred times the memory of its name
                raise Refused(f"a pickle in it names over {_MOST_CLASSES:,} classes, which torch would not; {AGAIN}")
            name = ascii(".".join(asked))[1:-1][:100]  # it is printed: no letter of it may steer a terminal
            self.opaque[asked] = type("Opaque", (Opaque,), {"__slots__": (), "asked": name})
        return self.opaque[asked]

    def persistent_load(self, pid: Any) -> Storage:
        """Returns the storage that `pid` describes."""
        match pid:
            case ("storage", str(dtype), str() | int() as key, _, int(count), *view) if dtype in DTYPES and count >= 0:
                if any(view):
                    raise Refused("a storage is a part of another, as before torch 0.4; load and save it with torch")
                storage = Storage(dtype, key, count)
                self.storages.setdefault(key, storage)
                return storage
        if name := opaque_in(pid):
            raise Refused(not_needed(name))
        raise Refused(f"damaged: no storage is called {str(pid)[:80]}; {AGAIN}")


def _look_through(data: mmap.mmap) -> None:
    """Scans one pickle without running it and refuses contents that a few bytes blow up: memos, and towers of tuples, whose
    hash overflows the stack of the interpreter."""
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
    """Returns the unpickler and the object of the pickle that begins at this byte, and the offset of its end."""
    data.seek(start)
    _look_through(data)
    end = data.tell()
    unpickler = _Unpickler(data[start:end])
    return unpickler, unpickler.load(), end
