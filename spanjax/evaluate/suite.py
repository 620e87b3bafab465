"""python -m spanjax.evaluate suite CHECKPOINT... --workdir FOLDER --data FOLDER: one protocol for any encoders.

A CHECKPOINT is a run directory, a checkpoint, a folder of Hugging Face, an installed model (spanbert-mini), or random:CHECKPOINT,
weights of its initialiser; the floor of the first one is added. `--suite quick` trains nothing but linear probes: minutes on two
cores. docs/howto/suite.md has the layout of the data folder. Results are files in --workdir: the same command resumes, and writes
suite.md, suite.html and suite.json. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import tyro

from spanjax.bounds import Bounds, flag_problems, raise_problems
from spanjax.cli import Progress, exit_code, parse_options, visible
from spanjax.training.compilation_cache import CompilationCache, use_compilation_cache

SETTINGS = "suite.json"


@dataclasses.dataclass(frozen=True)
class Suite:
    """Options of the suite."""

    checkpoints: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="CHECKPOINT [...]")]
    """Encoders; differences are from the first."""
    workdir: Annotated[str, tyro.conf.arg(metavar="FOLDER")]
    """Folder of results, which the same command resumes."""
    data: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = "."
    """Folder with the files of every part."""
    suite: Literal["quick"] = "quick"
    """quick: frozen probes, similarity, minimal pairs, fills."""
    files: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PART=FILE [...]")] = ()
    """Files of a part in place of its own, relative to --data, with * and ?: tags=my/train.conll; an empty name skips it."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the division of words, and of random weights."""
    share: Annotated[float, Bounds(0.001, 1.0)] = 1.0
    """Share of the texts of every part."""
    floor: bool = True
    """Add random weights of the first checkpoint's architecture."""
    compilation_cache: CompilationCache = True


def named_files(entries: Sequence[str], parts: Collection[str]) -> dict[str, list[str]]:
    """Returns the names of --files by part. ValueError for other parts."""
    found, problems = dict[str, list[str]](), list[str]()
    for entry in entries:
        part, sign, name = entry.partition("=")
        if not sign or part not in parts:
            problems.append(f"--files {entry}: expected PART=FILE, with one of {', '.join(parts)}")
        found.setdefault(part, []).append(name)
    raise_problems(problems)
    return found


def _settings(options: Suite, names: Mapping[str, str], files: Mapping[str, list[pathlib.Path]]) -> dict[str, Any]:
    from spanjax.storage.checksums import file_checksum

    return {
        "suite": options.suite,
        "share": options.share,
        "seeds": list(options.seeds),
        "files": {part: {file.name: file_checksum(file, "sha256") for file in some} for part, some in files.items()},
        "encoders": dict(names),
    }


def _open_folder(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Writes the settings, or compares them with those of the folder: encoders may be added, all else is the same."""
    from spanjax.json_files import read_json
    from spanjax.storage.local import write_whole

    file = folder / "settings.json"
    if file.is_file():
        before = read_json(file, dict, "remove the folder to begin anew")
        problems = [
            f"{name} was {before.get(name)}, now {value}"
            for name, value in settings.items()
            if name != "encoders" and before.get(name) != value
        ]
        own: Any = before.get("encoders", {})
        problems += [
            f"{name} was {own[name]}, now {path}"
            for name, path in settings["encoders"].items()
            if own.get(name, path) != path
        ]
        raise_problems(problems, f"{folder} holds another suite: use another --workdir, or restore")
        settings = {**settings, "encoders": {**own, **settings["encoders"]}}
    write_whole(file, json.dumps(settings, indent=1) + "\n")


def run(options: Suite) -> None:
    """Computes what is missing, and writes the table."""
    from spanjax.pages.markdown import markdown
    from spanjax.pages.page import page
    from spanjax.pages.terminal import terminal_text
    from spanjax.storage.local import write_whole
    from spanjax.suite import models, quick
    from spanjax.suite.table import build_table, suite_blocks, suite_json
    from spanjax.training.workdir import sole_run

    problems = flag_problems(options)
    if not options.seeds or len({*options.seeds}) < len(options.seeds) or min(options.seeds) < 0:
        problems.append(f"--seeds is {options.seeds}: expected different whole numbers from 0 on")
    raise_problems(problems)
    import sklearn  # noqa: F401  (a missing extra is reported before anything is computed)

    paths = list(dict.fromkeys(options.checkpoints))
    floor = f"{models.RANDOM}{paths[0]}"
    if options.floor and floor not in paths and not paths[0].startswith(models.RANDOM):
        paths.append(floor)
    names = dict(zip(models.names_of(paths), paths, strict=True))
    files = quick.files_of(pathlib.Path(options.data), named_files(options.files, quick.DEFAULT_FILES))
    raise_problems([] if files else [f"--data {options.data}: no file of any part; docs/howto/suite.md has the layout"])
    use_compilation_cache(options.compilation_cache)
    folder = pathlib.Path(options.workdir)
    suite = quick.QuickSuite(files, options.seeds, options.share)
    encoders = {name: functools.partial(models.open_encoder, path) for name, path in names.items()}
    random = {name for name, path in names.items() if path.startswith(models.RANDOM)}
    with sole_run(folder):
        settings = _settings(options, names, files)
        _open_folder(folder, settings)
        with Progress("suite", unit="results") as progress:
            quick.run_quick(suite, encoders, random, folder / "quick", progress)
        results = quick.read_results(folder / "quick", list(names), suite.parts)
        table = build_table(results, suite.parts, suite)
        blocks = suite_blocks(table, results)
        write_whole(folder / "suite.md", markdown(blocks))
        write_whole(folder / "suite.html", page(blocks))
        write_whole(folder / SETTINGS, json.dumps(suite_json(table, settings, results), indent=1) + "\n")
    print(visible(terminal_text(blocks)))
    print(f"wrote {folder}/suite.md, suite.html and suite.json")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = parse_options(
        Suite, args=arguments, prog="python -m spanjax.evaluate suite", description=__doc__, stores=("checkpoints",)
    )
    stopped = "stopped; the same command resumes"
    return exit_code("spanjax.evaluate", lambda: run(options), cannot="cannot run the suite", stopped=stopped)
