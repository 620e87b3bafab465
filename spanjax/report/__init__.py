"""python -m spanjax.report RUN... [--output report.html] [--markdown report.md]: runs of `spanjax.train` in one page.

Settings and their differences, scores next to the tables of the SpanBERT paper, differences tested, curves, masking next to
its Figure 2, spans filled in. The page needs no network and no other file. Runs that differ only in their seed are grouped.
Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import dataclasses
import pathlib
import sys
from typing import Annotated

import tyro

from spanjax.bounds import AtLeast0, flag_problems, raise_problems
from spanjax.cli import Code, exit_code, parse_options
from spanjax.report.document import TITLE

PROGRAM = "python -m spanjax.report"
_TITLE_WITHIN = 4096


@dataclasses.dataclass(frozen=True)
class Report:
    """Runs to report, and the files to write."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")] = ()
    """Run directories: the --workdir of spanjax.train, of pretraining and of fine-tuning, finished or not."""
    output: str = "report.html"
    """The page; "" writes none."""
    markdown: str = ""
    """File for the same report as Markdown, with tables instead of figures."""
    rows: AtLeast0 = 500
    """Rows of every pretraining run on which masking is measured; 0 takes all."""
    examples: AtLeast0 = 3
    """Rows of every pretraining run whose spans its checkpoint fills in; 0 skips them."""
    code: Code = ()


def output_problems(options: Report) -> list[str]:
    """Problems with the output files and the numbers."""
    from spanjax.storage.outputs import output_problem

    problems = flag_problems(options)
    given = {"--output": options.output, "--markdown": options.markdown}
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


def report(options: Report) -> None:
    """Reads, measures and writes; one ValueError with everything that is wrong with the input."""
    from spanjax.report.blocks import blocks_of
    from spanjax.report.markdown import markdown
    from spanjax.report.page import page
    from spanjax.report.runs import Recorded, read_runs
    from spanjax.run_format import load_code
    from spanjax.storage.local import write_whole

    load_code(options.code)
    problems = output_problems(options)
    runs: list[Recorded] = []
    try:
        runs = read_runs(options.runs)
    except ValueError as error:
        problems = [str(error), *problems]
    raise_problems(problems)
    blocks = blocks_of(runs, options.rows, options.examples)
    for path, text in ((options.output, page), (options.markdown, markdown)):
        if path:
            write_whole(pathlib.Path(path), text(blocks).encode("utf-8", "replace"))
            print(f"wrote {path}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments

    def work() -> None:
        report(parse_options(Report, args=words, prog=PROGRAM, description=__doc__))

    return exit_code("spanjax.report", work, cannot="cannot report these runs")
