"""python -m tests.plan.extracts TARGET FILE ...: packs compiled programs (`plan --hlo`) into an archive for tests.

An extract keeps all instructions, without what the cost model does not read: names are numbers, metadata is left out.
"""

import io
import pathlib
import re
import sys
import tarfile
from collections.abc import Iterator

PROGRAMS = pathlib.Path(__file__).parent / "programs.tar.xz"


def programs() -> dict[str, str]:
    """Name -> text of the programs in the archive beside this file."""
    with tarfile.open(PROGRAMS) as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {pathlib.Path(name).stem: file.read().decode() for name, file in members.items() if file}


def extract(text: str) -> str:
    """Returns a program with short names and without metadata."""
    return "".join(f"{line}\n" for line in _lines(text))


def _lines(text: str) -> Iterator[str]:
    computations: dict[str, str] = {}
    values: dict[str, str] = {}

    def short(found: re.Match[str]) -> str:
        """Names of computations are those of the program, names of values those of the computation."""
        if found[1]:
            return f"{found[1]}=%" + computations.setdefault(found[2], f"c{len(computations)}")
        return "%" + values.setdefault(found[2], f"v{len(values)}")

    yield "HloModule step"
    for whole in text.splitlines()[1:]:
        header = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", whole)
        if header:
            values.clear()
            yield f"{header[1] or ''}%{computations.setdefault(header[2], f'c{len(computations)}')} () -> () {{"
        elif whole.startswith(" ") or whole == "}":
            line = re.sub(r", (?:metadata|frontend_attributes)=\{[^{}]*(\{[^{}]*\}[^{}]*)*\}", "", whole)
            line = re.sub(r", control-predecessors=\{[^{}]*\}|/\*index=\d+\*/", "", line)
            line, _, settings = line.partition(", backend_config=")
            trips = re.search(r'"known_trip_count":\{"n":"\d+"\}', settings)
            line = re.sub(r"(?:\b(calls|to_apply|body|condition)=)?%([\w.\-]+)", short, line)
            yield line + (f", backend_config={{{trips[0]}}}" if trips else "")


def pack(target: pathlib.Path, files: list[pathlib.Path]) -> None:
    """Writes extracts of all programs into one archive, the same bytes for the same programs."""
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for file in files:
            data = extract(file.read_text()).encode()
            member = tarfile.TarInfo(file.name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    pack(pathlib.Path(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]])
