"""The hostile inputs of every command, by kind: flags, text, json, bytes, predictions, launch, environment."""

import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from spanjax.training.checkpoint_files import write_checksums
from tests.bad_inputs import DEMO, World
from tests.fuzz.hostile import ESCAPES, NUMBERS, WORDS, byte_mutations, deep_json, json_mutations, seeded, texts
from tests.fuzz.running import Expected, Fuzz, Server
from tests.fuzz.server import Job
from tests.running import ROOT, shrunk
from tests.trained import RUN_CONFIG

BEGINS, FITS = "spanjax.train.train_session", "spanjax.experiment.session.open_outputs"
"""Where a training is stopped: before it makes or reads a state, and before its first step."""
OF_NUMBERS = re.compile(r"--([\w.-]+) (?:\{None\}\|)?(INT|FLOAT)\b")
OF_WORDS = re.compile(r"--([\w.-]+) (?:\{None\}\|)?STR\b")
PLANNED = ["--config", DEMO, "--topology", "cpu:1"]
ROWS_FILES = {"show": [], "stats": ["--rows", "50"]}
CASES_PER_JSON, CASES_PER_FILE = 14, 8
ARRAYS = 2  # files with values of arrays that are changed: there are dozens alike
WRITTEN = (
    "output",
    "png",
    "json",
    "hlo",
    "workdir",
    "markdown",
)  # flags that name what is written: hostile words are paths


def train(*more: str) -> Callable[[World], list[Any]]:
    """The arguments of a tiny pretraining with these."""
    return lambda world: world.train(*more)


def resumed(world: World) -> list[Any]:
    """The arguments that the run was made with, for its copy."""
    return shrunk(str(ROOT / RUN_CONFIG), world.rows, world.here / "run", 2, "--data.feed=numpy")


def commands() -> dict[str, tuple[Callable[[World], list[Any]], str]]:
    """Command -> (good arguments, where it stops): what single flags are added to."""
    return {
        "train": (train(), BEGINS),
        "prepare rows": (lambda world: world.prepare(), ""),
        "prepare vocab": (lambda world: ["--input", world.corpus, "--size", 120, "--output", world.here / "vocab"], ""),
        "prepare show": (lambda world: [world.rows], ""),
        "prepare stats": (lambda world: [world.rows, "--rows", 40], ""),
        "plan": (lambda world: PLANNED, "spanjax.plan.plan"),
        "launch slurm": (lambda world: ["--print"], ""),
        "launch jobset": (lambda world: ["--print"], ""),
        "launch xpk": (lambda world: ["--print"], ""),
        "launch tpu-vm": (lambda world: ["--print"], ""),
        "launch skypilot": (lambda world: ["--print"], ""),
        "evaluate run": (lambda world: [world.tuned, "--data", world.tuned.parent / "train.jsonl"], ""),
        "predict fill-mask": (lambda world: [world.run, "--text", "the [MASK] clock"], ""),
        "convert to-torch": (lambda world: [world.run, world.here / "weights"], ""),
        "convert from-torch": (lambda world: [world.weights, world.here / "checkpoint"], ""),
        "convert inspect": (lambda world: [world.weights], ""),
        "report": (lambda world: [world.run, "--output", world.here / "page.html"], ""),
    }


def flags_of(server: Server, command: str, folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """(flags that take a number, flags that take a word), read from the help of a command."""
    more = ["--config", DEMO] if command in ("train", "plan") else []
    said = server.run(Job([*command.split(), *more, "--help"], str(folder))).said
    numbers, words = OF_NUMBERS.findall(said), OF_WORDS.findall(said)
    assert numbers or words, f"no flags in the help of {command}:\n{said}"
    return sorted({name for name, _ in numbers}), sorted(set(words))


def with_flag(good: Callable[[World], list[Any]], flag: str, value: str) -> Callable[[World], list[Any]]:
    """The good arguments without this flag, and the flag with this value."""

    def make(world: World) -> list[Any]:
        kept, given, skip = [], list(map(str, good(world))), False
        for word in given:
            if skip and not word.startswith("--"):
                continue
            skip = word == f"--{flag}"
            if not skip and not word.startswith(f"--{flag}="):
                kept.append(word)
        return [*kept, f"--{flag}={value}"]

    return make


def of_flags(server: Server, folder: pathlib.Path) -> Iterator[Fuzz]:
    """Every flag of every command with a value that it does not expect: each number with three, each word with one."""
    for command, (good, stop) in commands().items():
        numbers, words = flags_of(server, command, folder)
        for flag in numbers:
            for value in seeded(command, flag).sample(NUMBERS, 3):
                yield Fuzz("flags", f"--{flag}={value!r}", command, with_flag(good, flag, value), stop=stop)
            never = "nan" if command != "plan" else "inf"
            yield Fuzz("flags", f"--{flag}={never}", command, with_flag(good, flag, never), "refused", stop=stop)
        for flag in words:
            value = seeded(command, flag).choice(WORDS)
            if flag in WRITTEN and not value.startswith("gs:"):
                continue  # a path like any other
            yield Fuzz("flags", f"--{flag}={value[:30]!r}", command, with_flag(good, flag, value), stop=stop)


REFUSED_TEXTS = (
    "nothing",
    "blank lines",
    "gzip that is cut",
    "gzip that is none",
    "xz that is none",
    "parquet that is none",
)
ACCEPTED_TEXTS = ("a byte order mark", "lines of JSON", "JSON with NaN", "special tokens in the text")


def of_text(_: Server, __: pathlib.Path) -> Iterator[Fuzz]:
    """Input files of `prepare`: rows of them with a vocabulary that is there and with one of their own; a vocabulary."""
    for name, (file, content) in texts().items():
        expected: Expected = "refused" if name in REFUSED_TEXTS else "accepted" if name in ACCEPTED_TEXTS else "either"

        def given(world: World, file: str = file, content: bytes = content) -> pathlib.Path:
            return world.write(file, content)

        yield Fuzz(
            "text",
            name,
            "prepare rows",
            lambda world, given=given: world.prepare(
                f"--vocab={world.rows / 'train' / 'vocabulary'}", input=given(world), train_vocab=None
            ),
            expected,
        )
        yield Fuzz(
            "text",
            f"{name}, --skip-bad",
            "prepare rows",
            lambda world, given=given: world.prepare("--skip-bad", input=given(world), train_vocab=40),
        )
        yield Fuzz(
            "text",
            name,
            "prepare vocab",
            lambda world, given=given: ["--input", given(world), "--size", 60, "--output", world.here / "vocab"],
        )


def changed(folder: str, name: str, content: bytes, then: Callable[[World], list[Any]]) -> Callable[[World], list[Any]]:
    """Copies "rows", "run" or "weights", writes one file anew, and returns the words for it."""

    def make(world: World) -> list[Any]:
        copy = world.copy(folder)
        (copy / name).write_bytes(content)
        for step in copy.glob("checkpoints/[0-9]*"):
            if (copy / name).is_relative_to(step) and not name.endswith("checksums.json"):
                write_checksums(step)  # the content is hostile, not the disk
        return then(world)

    return make


def readers_of(folder: str) -> dict[str, tuple[Callable[[World], list[Any]], str]]:
    """Command -> (words, where it stops) for a changed copy of "rows", "run" or "weights"."""
    if folder == "rows":
        return {
            "prepare show": (lambda world: [world.here / "rows"], ""),
            "prepare stats": (lambda world: [world.here / "rows", "--rows", 50], ""),
            "train": (lambda world: world.train(rows=world.here / "rows"), BEGINS),
        }
    if folder == "run":
        return {
            "predict fill-mask": (lambda world: [world.here / "run", "--text", "the [MASK] clock"], ""),
            "convert to-torch": (lambda world: [world.here / "run", world.here / "weights"], ""),
            "report": (lambda world: [world.here / "run", "--output", world.here / "page.html"], ""),
            "train": (resumed, FITS),
        }
    return {
        "convert inspect": (lambda world: [world.here / "weights"], ""),
        "convert from-torch": (lambda world: [world.here / "weights", world.here / "checkpoint"], ""),
        "predict fill-mask": (lambda world: [world.here / "weights", "--text", "the [MASK] clock"], ""),
    }


def of_files(world: World) -> Iterator[Fuzz]:
    """Files of the folders that spanjax reads, with a value of their JSON or their bytes changed, each under one reader."""
    for folder in ("rows", "run", "weights"):
        source: pathlib.Path = getattr(world, folder)
        readers = list(readers_of(folder).items())
        files = sorted(
            path for path in source.rglob("*") if path.is_file() and path.name not in ("run.lock", "README.md")
        )
        arrays = [path for path in files if path.parent.name == "d"]
        for path in files:
            if path in arrays[ARRAYS:]:
                continue
            name, found = str(path.relative_to(source)), list[tuple[str, str, bytes]]()
            if is_json(path):
                found += [("json", *each) for each in json_mutations(path, CASES_PER_JSON)]
            found += [("bytes", *each) for each in byte_mutations(path, CASES_PER_FILE)]
            for number, (kind, what, content) in enumerate(found):
                command, (then, stop) = readers[number % len(readers)]
                yield Fuzz(kind, f"{folder}/{name}: {what}", command, changed(folder, name, content, then), stop=stop)


def is_json(path: pathlib.Path) -> bool:
    """Whether a file holds one JSON object or list."""
    try:
        return isinstance(json.loads(path.read_bytes()), dict | list)
    except (ValueError, UnicodeDecodeError):
        return False


def of_lines(_: World) -> Iterator[Fuzz]:
    """Lines of files that grow: metrics, records of `predict` and `evaluate`."""
    lines = {
        "a list": b"[1]\n",
        "a number": b"7\n",
        "not UTF-8": b'{"step": 1, "x": "\xff"}\n',
        "a huge step": b'{"step": 1' + b"0" * 400 + b', "train/mlm/loss": 1}\n',
        "a step of words": b'{"step": "x", "train/mlm/loss": 1}\n',
        "no step": b'{"train/mlm/loss": 1}\n',
        "a loss of words": b'{"step": 1, "train/mlm/loss": "x"}\n',
        "NaN": b'{"step": 1, "train/mlm/loss": NaN}\n',
        "too deep": deep_json() + b"\n",
        "escapes": json.dumps({"step": 1, ESCAPES: 1}).encode() + b"\n",
        "cut": b'{"step": 1, "tra',
        "NULs": bytes(4_096),
    }
    for name, line in lines.items():
        for command, (then, stop) in readers_of("run").items():
            if command in ("report", "train"):
                make = changed_metrics(line, then)
                expected: Expected = "accepted" if command == "train" else "either"
                yield Fuzz("lines", f"metrics.jsonl: {name}", command, make, expected, stop)
        yield Fuzz(
            "lines",
            f"data: {name}",
            "evaluate run",
            lambda world, line=line: [world.tuned, "--data", world.write("data.jsonl", line)],
        )
        yield Fuzz(
            "lines",
            f"text: {name}",
            "predict fill-mask",
            lambda world, line=line: [
                world.run,
                "--text",
                line.replace(b"\0", b"")[:2_000].decode(errors="surrogateescape"),
            ],
        )


def changed_metrics(line: bytes, then: Callable[[World], list[Any]]) -> Callable[[World], list[Any]]:
    """The run with a hostile line in the middle of its metrics."""

    def make(world: World) -> list[Any]:
        path = world.copy("run") / "metrics.jsonl"
        good = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*good[:1], line, *good[1:]]))
        return then(world)

    return make


def of_configs(_: World) -> Iterator[Fuzz]:
    """Config files that are none, or whose own code is wrong."""
    contents = {
        "config.json": b"{}",
        "empty.py": b"",
        "syntax.py": b"def",
        "raises.py": b"raise RuntimeError('no')",
        "interrupts.py": b"raise KeyboardInterrupt",
        "leaves.py": b"raise SystemExit(7)",
        "number.py": b"run = 7",
        "none.py": b"from spanjax.run import Run\nrun = Run(encoder=None)",
        "binary.py": bytes(range(256)),
        "circle.py": b"import circle",
        "deep.py": b"run = " + b"(" * 5_000 + b")" * 5_000,
    }
    for name, content in contents.items():
        for command in ("train", "plan", "prepare stats"):

            def make(world: World, name: str = name, content: bytes = content, command: str = command) -> list[Any]:
                config = f"--config={world.write(name, content)}"
                if command == "train":
                    return [config, f"--data.rows={world.rows}", f"--workdir={world.here / 'work'}"]
                return [world.rows, config] if command == "prepare stats" else [config, *PLANNED[2:]]

            stop = {"train": BEGINS, "plan": "spanjax.plan.plan"}.get(command, "")
            yield Fuzz("configs", name, command, make, "refused", stop)


def every_case(server: Server, world: World, folder: pathlib.Path) -> list[Fuzz]:
    """All of them, always the same ones in the same order."""
    made = [*of_flags(server, folder), *of_text(server, folder), *of_files(world), *of_lines(world), *of_configs(world)]
    seeded("order").shuffle(made)
    return made


def sample(cases: list[Fuzz], count: int) -> list[Fuzz]:
    """So many, each kind by its share and at least two of it."""
    kinds = sorted({case.kind for case in cases})
    found = list[Fuzz]()
    for kind in kinds:
        of_kind = [case for case in cases if case.kind == kind]
        found += of_kind[: max(2, round(count * len(of_kind) / len(cases)))]
    return found
