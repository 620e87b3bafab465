"""What hostile files and values are made of. Everything is drawn from a seed, so that a failed case can be made again."""

import gzip
import json
import pathlib
import random
import zlib
from collections.abc import Iterator
from typing import Any

ESCAPES = "x\x1b]0;owned\x07\x1b[31m"  # sets the title of a terminal, and its colour
DEEP = 100_000  # levels of JSON, more than Python's recursion limit
NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e308", str(10**30), "", "x", "0x10", "٣", "1_0", " 1 ")
"""Values of a flag that takes a number."""
WORDS = ("", "x\ny", ESCAPES, "../../etc/passwd", "a" * 5_000, "$(id)", "gs://bucket/x", "\udcff", "'\"`")
"""Values of a flag that takes a word or a path."""
VALUES: tuple[Any, ...] = (None, -1, 0, 10**12, float("inf"), float("nan"), ESCAPES, [], {}, True, "10", [[]], 1e-320)
"""What replaces a value inside a JSON file."""


def seeded(*parts: object) -> random.Random:
    """Random numbers that belong to this name."""
    return random.Random(zlib.crc32("/".join(map(str, parts)).encode(errors="surrogateescape")))


def deep_json(inside: str = "1") -> bytes:
    """Lists in lists."""
    return b"[" * DEEP + inside.encode() + b"]" * DEEP


def paths_in(value: Any, depth: int = 0) -> Iterator[tuple[Any, ...]]:
    """Places inside a JSON value, at most four levels deep and eight entries wide."""
    if depth == 4:
        return
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries)[:8] if isinstance(value, list) else entries:
        yield (key,)
        yield from ((key, *rest) for rest in paths_in(inner, depth + 1))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of a JSON value with another one at a place; `...` takes the key away."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return copy


def json_mutations(path: pathlib.Path, count: int) -> list[tuple[str, bytes]]:
    """(name, content) of so many files that are this JSON file with one thing changed, and some that are no JSON."""
    value, dice = json.loads(path.read_text()), seeded("json", path.name)
    places = list(paths_in(value)) or [()]
    made = [
        ("too deep", deep_json()),
        ("a list", b"[]"),
        ("not UTF-8", b'{"a": "\xff"}'),
        ("cut", path.read_bytes()[:-20]),
    ]
    for _ in range(count - len(made)):
        place = dice.choice(places)
        new = dice.choice((*VALUES, ..., {"deep": json.loads("[" * 200 + "]" * 200)}))
        shown = "left out" if new is ... else repr(new)[:20]
        content = replaced(value, place, new) if place else new
        made.append((f"{'.'.join(map(str, place))} = {shown}"[:80], json.dumps(content).encode()))
    return made[:count]


def byte_mutations(path: pathlib.Path, count: int) -> list[tuple[str, bytes]]:
    """(name, content) of so many files that are this one with bytes changed."""
    good, dice = path.read_bytes(), seeded("bytes", path.name)
    place = dice.randrange(max(1, len(good)))
    turned = bytearray(good)
    if turned:
        turned[place] ^= 1 << dice.randrange(8)
    made = [
        ("empty", b""),
        ("half", good[: len(good) // 2]),
        ("ones", b"\xff" * len(good)),
        ("zeros", bytes(len(good))),
        ("random", dice.randbytes(len(good))),
        (f"bit of byte {place}", bytes(turned)),
        ("twice", good + good),
        ("head changed", dice.randbytes(16) + good[16:]),
    ]
    return made[:count]


def record(value: Any) -> bytes:
    """Forty lines of JSON."""
    return (json.dumps(value) + "\n").encode() * 40


def texts() -> dict[str, tuple[str, bytes]]:
    """What it is -> (file name, content): input files of `prepare`."""
    line = "the old sailor mended the broken clock in the harbour. " * 3
    many = ((line + "\n\n") * 60).encode()
    bomb = gzip.compress(bytes(64 * 2**20))
    return {
        "nothing": ("in.txt", b""),
        "blank lines": ("in.txt", b"\n" * 5_000),
        "one character": ("in.txt", b"a"),
        "NULs": ("in.txt", bytes(200_000)),
        "not UTF-8": ("in.txt", many + b"\xff\xfe\xfa\n\n" + many),
        "UTF-16": ("in.txt", many.decode().encode("utf-16")),
        "a byte order mark": ("in.txt", b"\xef\xbb\xbf" + many),
        "old line ends": ("in.txt", many.replace(b"\n", b"\r")),
        "control characters": ("in.txt", (ESCAPES + "\n\n").encode() * 300),
        "special tokens in the text": ("in.txt", b"[CLS] [MASK] [SEP] <s> </s> [PAD]\n\n" * 300),
        "private use and surrogate halves": ("in.txt", "\ue000\U0010ffff\u200d\u202e x\n\n".encode() * 300),
        "one long word": ("in.txt", b"a" * 3_000_000),
        "one long line": ("in.txt", line.encode() * 40_000),
        "lone combining marks": ("in.txt", "\u0301\u0489 a\n\n".encode() * 400),
        "gzip that is cut": ("in.txt.gz", gzip.compress(many)[:-20]),
        "gzip that is none": ("in.txt.gz", many),
        "gzip of NULs": ("in.txt.gz", bomb),
        "xz that is none": ("in.txt.xz", many),
        "parquet that is none": ("in.parquet", b"PAR1" + many + b"PAR1"),
        "lines of JSON": ("in.jsonl", record({"text": line})),
        "JSON without text": ("in.jsonl", record({"txt": line})),
        "JSON with text of numbers": ("in.jsonl", record({"text": 7})),
        "JSON with null": ("in.jsonl", record({"text": None})),
        "JSON lists": ("in.jsonl", record([line])),
        "JSON too deep": ("in.jsonl", b'{"text": ' + deep_json() + b"}\n"),
        "JSON with a huge number": ("in.jsonl", b'{"text": "a b", "id": ' + b"9" * 10_000 + b"}\n"),
        "JSON with half a surrogate": ("in.jsonl", b'{"text": "a \\ud800 b"}\n' * 100),
        "JSON of several values a line": ("in.jsonl", b'{"text": "a"} {"text": "b"}\n' * 50),
        "JSON with NaN": ("in.jsonl", b'{"text": "a b c", "x": NaN}\n' * 100),
        "a name that is odd": ("in \x1b[31m\n.txt", many),
    }
