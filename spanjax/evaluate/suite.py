"""python -m spanjax.evaluate suite CHECKPOINT... --workdir FOLDER --data FOLDER: one protocol for any encoders.

A CHECKPOINT is a run directory, a checkpoint, a folder of Hugging Face, an installed model (spanbert-mini), the work directory of
a sweep, whose runs are compared by arm, or random:CHECKPOINT, weights of its initialiser; the floor of the first one is added.
`--suite quick` trains nothing but linear probes: minutes on two cores. glue, spans and full fine-tune by a grid, chosen on one
half of the dev examples and reported on the other. docs/howto/suite.md has the layout of the data folder. Results are files in
--workdir: the same command resumes, and writes suite.md, suite.html and suite.json. Exit codes: 0 done, 2 wrong input, 4 some
runs failed, 130 stopped by Ctrl-C.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from spanjax.bounds import Bounds, flag_problems, raise_problems
from spanjax.cli import Progress, exit_code, parse_options, visible
from spanjax.storage.checksums import file_checksum
from spanjax.training.compilation_cache import CompilationCache, use_compilation_cache

if TYPE_CHECKING:
    from spanjax.suite.arms import Member

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
    suite: Literal["quick", "glue", "spans", "full"] = "quick"
    """quick: frozen probes, similarity, minimal pairs, fills; glue: GLUE and AX; spans: questions, entities, relations,
    coreference; full: glue and spans."""
    tasks: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """TOML file with the tasks and the grid of glue, spans and full, in place of their own."""
    files: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PART=FILE [...]")] = ()
    """Files of a part in place of its own, relative to --data, with * and ?: tags=my/train.conll; an empty name skips it."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the division of words, and of random weights."""
    share: Annotated[float, Bounds(0.001, 1.0)] = 1.0
    """Share of the texts of every part."""
    every_checkpoint: bool = False
    """Evaluate every kept checkpoint of a run directory or a sweep, not the last one alone."""
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


class Encoders(NamedTuple):
    """Encoders of a suite."""

    names: Mapping[str, str]
    """Name -> path."""
    members: "Mapping[str, Member]"
    """Name -> its place in a sweep."""


def _encoders(options: Suite) -> Encoders:
    """Returns the checkpoints by their names, sweeps replaced by their runs, and with the floor."""
    from spanjax.suite.arms import expand
    from spanjax.suite.models import RANDOM, names_of

    paths, members = expand(options.checkpoints, options.every_checkpoint)
    floor = f"{RANDOM}{paths[0]}"
    if options.floor and floor not in paths and not paths[0].startswith(RANDOM):
        paths.append(floor)
    names = dict(zip(names_of(paths), paths, strict=True))
    return Encoders(names, {name: members[path] for name, path in names.items() if path in members})


def _settings(options: Suite, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the results depend on; of a run directory with its newest step, as its weights change."""
    from spanjax.training.checkpoint_files import steps_of

    def described(path: str) -> str:
        steps = steps_of(pathlib.Path(path)) if (pathlib.Path(path) / "checkpoints").is_dir() else []
        return f"{path}, step {max(steps)}" if steps else path

    encoders = {name: described(path) for name, path in names.items()}
    return {"suite": options.suite, "seeds": list(options.seeds), "encoders": encoders}


def _open_folder(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Writes the settings, or compares them with those of the folder: encoders may be added, all else is the same."""
    from spanjax.json_files import read_json
    from spanjax.storage.local import write_whole

    file = folder / "settings.json"
    if file.is_file():
        before = read_json(file, dict, "remove the folder to begin anew")
        before = {"protocol": 1, **before}  # folders before version 2 do not name it
        problems = [
            f"{name} was {before.get(name)}, now {value}"
            + (": the rules have changed, and scores of both cannot be compared" if name == "protocol" else "")
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


def run(options: Suite) -> int:
    """Computes what is missing, and writes the table; returns the exit code."""
    from spanjax.pages.terminal import terminal_text

    problems = flag_problems(options)
    if not options.seeds or len({*options.seeds}) < len(options.seeds) or min(options.seeds) < 0:
        problems.append(f"--seeds is {options.seeds}: expected different whole numbers from 0 on")
    raise_problems(problems)
    encoders = _encoders(options)
    folder = pathlib.Path(options.workdir)
    use_compilation_cache(options.compilation_cache)
    code, blocks = (_quick if options.suite == "quick" else _tuned)(options, encoders, folder)
    print(visible(terminal_text(blocks)))
    print(f"wrote {folder}/suite.md, suite.html and suite.json")
    return code


def _write(folder: pathlib.Path, blocks: list[Any], content: dict[str, Any]) -> None:
    from spanjax.pages.markdown import markdown
    from spanjax.pages.page import page
    from spanjax.storage.local import write_whole

    write_whole(folder / "suite.md", markdown(blocks))
    write_whole(folder / "suite.html", page(blocks))
    write_whole(folder / SETTINGS, json.dumps(content, indent=1) + "\n")


def _quick(options: Suite, given: Encoders, folder: pathlib.Path) -> tuple[int, list[Any]]:
    """Computes and writes the quick suite."""
    import sklearn  # noqa: F401  (a missing extra is reported before anything is computed)

    from spanjax.suite import arms, models, quick
    from spanjax.suite.table import build_table, suite_blocks, suite_json
    from spanjax.training.workdir import sole_run

    names = given.names
    files = quick.files_of(pathlib.Path(options.data), named_files(options.files, quick.DEFAULT_FILES))
    raise_problems([] if files else [f"--data {options.data}: no file of any part; docs/howto/suite.md has the layout"])
    suite = quick.QuickSuite(files, options.seeds, options.share)
    encoders = {name: functools.partial(models.open_encoder, path) for name, path in names.items()}
    random = {name for name, path in names.items() if path.startswith(models.RANDOM)}
    with sole_run(folder):
        digests = {part: {f.name: file_checksum(f, "sha256") for f in some} for part, some in files.items()}
        settings = _settings(options, names) | {
            "protocol": quick.PROTOCOL,
            "share": options.share,
            "files": digests,
        }
        _open_folder(folder, settings)
        with Progress("suite", unit="results") as progress:
            quick.run_quick(suite, encoders, random, folder / "quick", progress)
        results = quick.read_results(folder / "quick", list(names), suite.parts)
        table = build_table(results, suite.parts, suite, folder / "quick")
        scores = {
            name: {part: each.mean for part, each in by_part.items() if each.mean is not None}
            for name, by_part in table.measures.items()
        }
        found = arms.arm_scores(given.members, scores)
        blocks = suite_blocks(table, results, arms.arm_blocks(found))
        _write(folder, blocks, suite_json(table, settings, results) | {"arms": arms.arm_json(found)})
    return 0, blocks


def _tuned(options: Suite, given: Encoders, folder: pathlib.Path) -> tuple[int, list[Any]]:
    """Trains and writes a fine-tuning suite; 4 where a run failed."""
    from spanjax.suite import arms, tuned
    from spanjax.suite.tuned_table import tuned_blocks, tuned_json
    from spanjax.training.workdir import sole_run

    names = given.names
    tasks, grid = (
        tuned.read_tasks(options.tasks) if options.tasks else (tuned.SUITES[options.suite], tuned.DEFAULT_GRID)
    )
    found, missing = tuned.existing(tasks, pathlib.Path(options.data))
    raise_problems([] if found else [f"--data {options.data}: no files of any task ({', '.join(missing)})"])
    code = 0
    with sole_run(folder):
        settings = _settings(options, names) | {"grid": dict(grid), "tasks": {n: vars(t) for n, t in found.items()}}
        _open_folder(folder, json.loads(json.dumps(settings)))
        for name, task in found.items():
            code = max(code, tuned.run_task(task, names, grid, options.seeds, folder / "tuned" / tuned.slug(name)))
        scores = tuned.tuned_scores(folder / "tuned", found, list(names), list(grid), options.seeds)
        means = {name: {column: each.mean for column, each in own.items()} for name, own in scores.items()}
        # arms pair the seeds of pretraining, the table above them those of fine-tuning
        of_arms = arms.arm_scores(given.members, means)
        blocks = [*tuned_blocks(scores, found, missing), *arms.arm_blocks(of_arms)]
        _write(folder, blocks, tuned_json(scores, settings, missing) | {"arms": arms.arm_json(of_arms)})
    return code, blocks


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = parse_options(
        Suite, args=arguments, prog="python -m spanjax.evaluate suite", description=__doc__, elsewhere=("checkpoints",)
    )
    stopped = "stopped; the same command resumes"
    return exit_code("spanjax.evaluate", lambda: run(options), cannot="cannot run the suite", stopped=stopped)
