"""Files by path or glob, local or behind scheme:// (gs, s3, memory, ...): their names, sizes and bytes.

Other schemes go through fsspec; the package of a scheme (gcsfs for gs) is needed only where one is used.
"""

import bz2
import contextlib
import glob
import gzip
import io
import lzma
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

from spanjax.json_files import read_json

_SCHEME = "://"
_STAMPS = ("etag", "ETag", "generation", "mtime", "LastModified", "last_modified", "updated", "created")
_BUFFER = 1 << 20  # bytes
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


class File(NamedTuple):
    """An existing file: its path, its size (None: unknown) and a stamp that changes when it is written again."""

    path: str
    size: int | None = None
    stamp: int | str | None = None

    @property
    def name(self) -> str:
        """The path's last part."""
        return self.path.rstrip("/").rpartition("/")[2]


def find(patterns: Sequence[str]) -> tuple[tuple[File, ...], list[str]]:
    """Files that paths or globs name, each once, sorted within a pattern; and the problems of the patterns."""
    found: dict[str, File] = {}
    problems: dict[str, None] = {}
    for pattern in patterns:
        try:
            matches, folder = _remote(pattern) if _SCHEME in pattern else _local(pattern)
        except ValueError as error:
            problems[str(error)] = None
            continue
        if folder and not matches and is_dataset(pathlib.Path(pattern)):
            matches, problem = _saved_files(pattern)
            problems |= {problem: None} if problem else {}
        elif not matches:
            hint = f"a folder, expected files; write {pattern.rstrip('/')}/* for the files in it"
            problems[f"{pattern}: {hint if folder else 'no such file'}"] = None
        problems |= {f"{file.path}: the file is empty": None for file in matches if file.size == 0}
        found |= {file.path: file for file in matches}
    return tuple(found.values()), list(problems)


def local_files(patterns: Sequence[str]) -> list[str]:
    """The files of this machine that paths or globs name; others are skipped."""
    return [file.path for pattern in patterns if _SCHEME not in pattern for file in _local(pattern)[0]]


def _local(pattern: str) -> tuple[list[File], bool]:
    """The files, sorted, and whether a folder matched."""
    paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    found, folder = [], False
    for path in dict.fromkeys(str(pathlib.Path(path)) for path in paths):
        if os.path.isfile(path):
            status = os.stat(path)
            found.append(File(path, status.st_size, status.st_mtime_ns))
        folder = folder or os.path.isdir(path)
    return found, folder


DATASET_STATE, DATASET_SPLITS = "state.json", "dataset_dict.json"


def is_dataset(folder: pathlib.Path) -> bool:
    """True for a folder that the `datasets` library wrote by `save_to_disk`: a data set, or one with several splits."""
    return (folder / DATASET_STATE).is_file() or (folder / DATASET_SPLITS).is_file()


def dataset_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The Arrow files of a folder that the `datasets` library saved, in its order.

    ValueError for another folder, one of several splits, or one that lacks its files.
    """
    if not is_dataset(folder):
        raise ValueError(
            f"{folder}: a folder, expected a file, or a folder that `datasets` saved (save_to_disk: {DATASET_STATE})"
        )
    if (folder / DATASET_SPLITS).is_file():
        splits = sorted(each.parent.name for each in folder.glob(f"*/{DATASET_STATE}"))
        first = folder / (splits[0] if splits else "train")
        raise ValueError(
            f"{folder}: a data set of the splits {', '.join(splits) or '(none)'}; name one of them: {first}"
        )
    stored = read_json(folder / DATASET_STATE, dict, "save the data set again").get("_data_files")
    names = [each.get("filename") for each in stored or () if isinstance(each, dict)]
    # a name with folders in it would lead out of this one
    files = [folder / str(name) for name in names if pathlib.Path(str(name)).name == name]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ValueError(f"{folder}: {', '.join(missing)} is missing; copy the folder again")
    if not files:
        raise ValueError(f"{folder}: {DATASET_STATE} names no files; save the data set again")
    return files


def _saved_files(folder: str) -> tuple[list[File], str]:
    """(the files of a saved data set, ""), or ([], its problem)."""
    try:
        found = [(str(path), path.stat()) for path in dataset_files(pathlib.Path(folder))]
    except ValueError as error:
        return [], str(error)
    return [File(path, status.st_size, status.st_mtime_ns) for path, status in found], ""


def _filesystem(path: str) -> tuple[Any, str]:
    """fsspec's filesystem for a path and the path in it; ValueError with what to install where there is none."""
    import fsspec
    from fsspec.registry import known_implementations

    scheme = path.partition(_SCHEME)[0]
    try:
        return fsspec.url_to_fs(path)
    except ImportError as error:
        package = str(known_implementations.get(scheme, {}).get("class", "")).partition(".")[0]
        wanted = f"'fsspec[{scheme}]'" if package in ("fsspec", "") else package
        raise ValueError(f"{scheme}:// paths need a package: pip install {wanted} ({error})") from None
    except ValueError as error:
        if scheme in known_implementations:
            raise
        raise ValueError(
            f"{path}: no filesystem is known for {scheme}:// ({error}); expected a path here, or gs://, s3://, hdfs:// or"
            " another scheme of fsspec"
        ) from None


def _remote(pattern: str) -> tuple[list[File], bool]:
    if "::" in pattern:
        raise ValueError(f"{pattern}: paths inside of other files (::) cannot be read; unpack the file first")
    system, path = _filesystem(pattern)
    try:
        try:
            infos = [system.info(path)]
        except FileNotFoundError:
            infos = list(system.glob(path, detail=True).values()) if glob.has_magic(path) else []
    except Exception as error:  # a filesystem of another package: no permission, no network, no credentials
        raise ValueError(f"{pattern}: {type(error).__name__}: {error}; check the path and your access to it") from error
    files = [info for info in infos if info["type"] == "file" and not info["name"].endswith("/")]
    found = [
        File(system.unstrip_protocol(info["name"]), info.get("size"), _stamp(info))
        for info in sorted(files, key=lambda info: info["name"])
    ]
    return found, len(files) < len(infos)


def _stamp(info: dict[str, Any]) -> str | None:
    return next((f"{name} {info[name]}" for name in _STAMPS if info.get(name) is not None), None)


class CountedFile(io.FileIO):
    """A local file that adds to the number of bytes read by this process, which progress bars display."""

    read_bytes = 0

    def readinto(self, buffer: Any, /) -> int | None:
        """Reads into a buffer; called once for a whole buffer of the reader around it."""
        count = super().readinto(buffer)
        CountedFile.read_bytes += count or 0
        return count


def is_local(path: str) -> bool:
    """True for a path of this machine, whose bytes `CountedFile` counts."""
    return _SCHEME not in path


def open_bytes(path: str) -> IO[bytes]:
    """The bytes of a file, from its beginning; seekable."""
    if is_local(path):
        return io.BufferedReader(CountedFile(path), _BUFFER)
    system, inside = _filesystem(path)
    return cast(IO[bytes], system.open(inside, "rb"))


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[io.BufferedReader]:
    """The content of a file, decompressed when its name ends in .gz, .xz, .bz2 or .zst."""
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(contextlib.closing(open_bytes(path)))
        kind = compression(path)
        if kind:
            file = opened.enter_context(contextlib.closing(_decompressed(file, kind)))
        yield opened.enter_context(io.BufferedReader(cast(Any, file), _BUFFER))


def compression(path: str) -> str:
    """The suffix of a compressed file, ".gz", ".xz", ".bz2" or ".zst"; else empty."""
    return next((suffix for suffix in (*_OPENERS, ".zst") if path.lower().endswith(suffix)), "")


def _decompressed(file: IO[bytes], suffix: str) -> Any:
    if suffix in _OPENERS:
        return _OPENERS[suffix](file)
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
