"""python -m spanjax.report RUN... [--output report.html] [--markdown report.md]: runs of `spanjax.train` in one page.

Settings and their differences, scores next to the tables of the SpanBERT paper, differences tested, curves, masking next to
its Figure 2, spans filled in. The page needs no network and no other file. Runs that differ only in their seed are grouped. Of
the work directory of a sweep it compares the arms with the base arm, and prints that.
Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from spanjax.bounds import AtLeast0, flag_problems, raise_problems
from spanjax.cli import Code, exit_code, parse_options, visible
from spanjax.pages.document import TITLE, Heading
from spanjax.storage.remote_outputs import on_local_files

PROGRAM = "python -m spanjax.report"
_TITLE_WITHIN = 4096


@dataclasses.dataclass(frozen=True)
class Report:
    """Runs to report, and the files to write."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")] = ()
    """Run directories: the --workdir of spanjax.train, of pretraining, fine-tuning and sweeps, finished or not."""
    output: str = "report.html"
    """The page; "" writes none."""
    markdown: str = ""
    """File for the same report as Markdown, with tables instead of figures."""
    json: str = ""
    """File for the comparisons of sweeps as JSON, by their folders."""
    rows: AtLeast0 = 500
    """Rows of every pretraining run on which masking is measured; 0 takes all."""
    examples: AtLeast0 = 3
    """Rows of every pretraining run whose spans its checkpoint fills in; 0 skips them."""
    code: Code = ()


def output_problems(options: Report) -> list[str]:
    """Problems with the output files and the numbers."""
    from spanjax.storage.outputs import output_problem

    problems = flag_problems(options)
    given = {"--output": options.output, "--markdown": options.markdown, "--json": options.json}
    for name, value in given.items():
        path = pathlib.Path(value)
        if value and not (folder := path.absolute().parent).is_dir():
            missing = output_problem(folder) or f"there is no folder {folder}: make it, or correct the name"
            problems.append(f"{name} {value}: {missing}")
        elif value and path.is_file() and not _is_report(path):
            problems.append(f"{name} {value} is there and no report of spanjax: choose another name")
        elif value and path.is_dir():
            problems.append(f"{name} {value} is a folder: expected the name of a file")
    if not any(given.values()):
        problems.append("--output and --markdown are both empty: name a file to write")
    elif options.markdown and pathlib.Path(options.output).absolute() == pathlib.Path(options.markdown).absolute():
        problems.append(f"--output and --markdown are both {options.output}: give two files")
    return [f"  - {problem}" for problem in problems]


def _is_report(path: pathlib.Path) -> bool:
    """True if a file is empty or holds a report: every report has the title in its first lines."""
    with open(path, "rb") as file:
        start = file.read(_TITLE_WITHIN)
    return not start or TITLE.encode() in start


def report(options: Report, given: Sequence[str] = ()) -> None:
    """Reads, measures and writes; one ValueError with everything that is wrong with the input.

    `given` names the runs of `options` as the user did, where those are copies.
    """
    from spanjax.pages.markdown import markdown
    from spanjax.pages.page import page
    from spanjax.pages.terminal import terminal_text
    from spanjax.report.blocks import blocks_of
    from spanjax.report.runs import Recorded, read_runs
    from spanjax.report.sweep import ReadSweep, is_sweep, read_sweep, sweep_blocks, sweep_json
    from spanjax.run_format import load_code
    from spanjax.storage.local import write_whole

    load_code(options.code)
    problems = output_problems(options)
    runs, sweeps = list[Recorded](), list[ReadSweep]()
    folders = [name for name in options.runs if not is_sweep(pathlib.Path(name))]
    try:
        sweeps = [read_sweep(pathlib.Path(name)) for name in dict.fromkeys(options.runs) if name not in folders]
        runs = read_runs(folders) if folders or not sweeps else []
    except ValueError as error:
        problems = [str(error), *problems]
    if options.json and not sweeps:
        problems.append("--json holds comparisons of sweeps, and no sweep is given: leave it away")
    raise_problems(problems)
    blocks = [block for sweep in sweeps for block in sweep_blocks(sweep)]
    if sweeps:
        print(visible(terminal_text(blocks)))
    # a report of runs begins with the title, by which it is known as one
    blocks = [*(blocks_of(runs, options.rows, options.examples) if runs else [Heading(1, TITLE)]), *blocks]
    if options.json:
        names = dict(zip(map(pathlib.Path, options.runs), given or options.runs, strict=True))
        content = {"title": TITLE, "sweeps": {names[sweep.path]: sweep_json(sweep) for sweep in sweeps}}
        write_whole(pathlib.Path(options.json), json.dumps(content, indent=1) + "\n")
        print(f"wrote {options.json}")
    for path, text in ((options.output, page), (options.markdown, markdown)):
        if path:
            write_whole(pathlib.Path(path), text(blocks).encode("utf-8", "replace"))
            print(f"wrote {path}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments

    def work() -> None:
        outputs = ("output", "markdown", "json")
        options = parse_options(Report, args=words, prog=PROGRAM, description=__doc__, stores=("runs", *outputs))
        on_local_files(lambda local: report(local, options.runs), options, ["runs"], outputs)

    return exit_code("spanjax.report", work, cannot="cannot report these runs")
