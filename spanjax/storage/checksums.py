"""Checksums of files and bytes as "KIND:HEX", for sha256, md5, crc32 and crc32c; whole or piece by piece."""

import base64
import hashlib
import importlib
import pathlib
from collections.abc import Callable
from typing import Protocol

from spanjax.storage.errors import StorageError

BLOCK = 2**20
"""Bytes that are read at once."""


class Hasher(Protocol):
    """A checksum that grows with its bytes."""

    def update(self, data: bytes, /) -> object:
        """Adds bytes."""
        ...

    def hexdigest(self) -> str:
        """Returns the checksum of all bytes so far as hexadecimal digits."""
        ...


class _Crc:
    def __init__(self, kind: str):
        self._extend, self._value = _crc(kind), 0

    def update(self, data: bytes, /) -> None:
        self._value = self._extend(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def hasher(kind: str) -> Hasher:
    """Returns the empty checksum of a kind."""
    return _Crc(kind) if kind.startswith("crc") else hashlib.new(kind)


def file_checksum(file: pathlib.Path, kind: str) -> str:
    """Returns "KIND:HEX" of a file's content."""
    found = hasher(kind)
    with open(file, "rb", buffering=0) as opened:
        while chunk := opened.read(BLOCK):
            found.update(chunk)
    return f"{kind}:{found.hexdigest()}"


def crc32c(data: bytes) -> str:
    """Returns the crc32c of some bytes as 8 hexadecimal digits."""
    return f"{_crc('crc32c')(data, 0):08x}"


def hex_digest(encoded: str) -> str:
    """Base64, in which stores report checksums, as hexadecimal digits."""
    return base64.b64decode(encoded).hex()


def _crc(kind: str) -> Callable[[bytes, int], int]:
    if kind == "crc32":
        return importlib.import_module("zlib").crc32
    try:
        extend = importlib.import_module("google_crc32c").extend
    except ModuleNotFoundError as error:
        raise StorageError(
            "crc32c needs the package google-crc32c: pip install 'spanjax[s3]' or 'spanjax[gs]'"
        ) from error
    return lambda data, value: extend(value, data)
