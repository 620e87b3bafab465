"""What the files of a checkpoint hold: written beside them when a save is complete, compared whenever it is read."""

import json
import os
import pathlib
import zlib

from spanjax.json_files import parse_json
from spanjax.storage.local import write_whole

CHECKSUMS = "checksums.json"
UNCHECKED = f"without {CHECKSUMS}: the save was killed before its end, or the file was removed"
EVALUATION = "evaluation.json"  # results of an evaluation, stored after the checksums and not covered by them


def damage(folder: pathlib.Path) -> str | None:
    """What is wrong with a step's files compared with its checksums; None when they agree or none were written."""
    path = folder / CHECKSUMS
    if not path.exists():
        return None
    try:
        expected = parse_json(path.read_bytes(), dict)
    except (OSError, ValueError) as error:
        return f"{CHECKSUMS} is no list of files with their checksums: {error}"
    actual = _contents(folder)
    missing = sorted(expected.keys() - actual.keys())
    changed = sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name])
    return f"missing files {missing[:3]}, changed files {changed[:3]}" if missing or changed else None


def incomplete(folder: pathlib.Path) -> str | None:
    """Which parts a step's folder lacks, in words; None when it has them."""
    missing = [name for name in ("state", "meta/metadata") if not (folder / name).exists()]
    return f"without {' and '.join(missing)}" if missing else None


def write_checksums(folder: pathlib.Path) -> None:
    """Brings every file of a step to the disk, writes what they hold, and reads them back. OSError where they differ."""
    write_whole(folder / CHECKSUMS, json.dumps(_contents(folder, to_disk=True)))
    if reason := damage(folder) or incomplete(folder):
        raise OSError(f"what was read back is not what was written ({reason})")


def _contents(folder: pathlib.Path, to_disk: bool = False) -> dict[str, list[int]]:
    """Relative name -> [bytes, crc32] of every file of a step."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith((CHECKSUMS, EVALUATION)))
    return {str(p.relative_to(folder)): [p.stat().st_size, _crc(p, to_disk)] for p in files}


def _crc(path: pathlib.Path, to_disk: bool) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            value = zlib.crc32(chunk, value)
        if to_disk:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):  # so that the next read comes from the disk and not from memory
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return value
