"""python -m spanjax.prepare stats ROWS: statistics of rows, and of a masking and a pairing on them.

Totals of the manifest, lengths of documents, blocks and rows, and over some rows: spans next to the requested distribution
and the paper's Figure 2, replacement, boundaries, tags, pairs. --png draws it, --json writes the figures. Exit codes: 0
done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import dataclasses
import json
import pathlib
from typing import Annotated, Any

import numpy as np
import tyro

from spanjax.bounds import collect, flag_problems, raise_problems
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.rows import Rows, open_rows
from spanjax.data.inspect.masking_figures import MaskingCounts, MaskingFigures
from spanjax.data.inspect.pair_figures import PairCounts, PairFigures, foreign_pairs
from spanjax.data.inspect.row_figures import (
    Lengths,
    block_lengths,
    document_lengths,
    doublings,
    eighths,
    parts,
    some_of,
)
from spanjax.data.shards.record_file import CHECK_SECONDS, whole_rows
from spanjax.data.shards.totals import totals as totals_of
from spanjax.prepare.reading import (
    Color,
    Reading,
    coloured_console,
    run_command,
    sharer,
    split_folders,
)
from spanjax.prepare.stats_tables import Figures, print_figures


@dataclasses.dataclass(frozen=True)
class Stats:
    """Prints statistics of rows and of their masking."""

    rows: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ROWS")]
    """Folder that `prepare` wrote, or its train/ or validation/. Of a folder with both, train/ is measured."""
    reading: Annotated[Reading, tyro.conf.arg(name="")]
    sample: Annotated[int, tyro.conf.arg(name="rows")] = 2000
    """Number of rows, sampled at random, and of documents to measure; 0 takes all."""
    png: str = ""
    """File to draw the figures into."""
    json: str = ""
    """File to write the figures into."""
    color: Color = "auto"
    """auto: on a terminal."""


def _settings(reading: Reading) -> dict[str, Any]:
    parts = {"masking": reading.masking, "boundaries": reading.boundaries, "pairing": reading.pairing}
    described = {name: {"class": type(part).__name__, **dataclasses.asdict(part)} for name, part in parts.items()}
    return described | {name: getattr(reading, name) for name in ("seed", "epoch", "step")}


def measure(
    rows: Rows, share: HostShare, reading: Reading, index_B: np.ndarray
) -> tuple[MaskingFigures, PairFigures | None]:
    """Masks these rows as in training and measures the result."""
    masking = MaskingCounts(share.spec, share.facts.specials, rows.manifest.tags)
    pairs = PairCounts(reading.pairing.label)
    for part_B in parts(index_B):
        found = share.masked(part_B, reading.epoch, reading.step)
        masking.add(found.examples, found.batch, found.keys)
        if pairs.label:
            blocks, foreign_M = foreign_pairs(rows, reading.pairing, part_B, found.keys.epoch_B, reading.seed)
            pairs.add(found.examples, blocks, foreign_M, share.facts.specials)
    return masking.figures(), pairs.figures() if pairs.label else None


def measured_figures(options: Stats) -> Figures:
    """Measures all figures; one ValueError with all problems."""
    # The output files are checked first: measuring all rows takes long.
    reading = options.reading
    problems = flag_problems(reading)
    if options.sample < 0:
        problems.append(f"--rows {options.sample}: expected 1 or more, or 0 for all")
    for name, value, ending in (("png", options.png, ".png"), ("json", options.json, ".json")):
        if value and not value.endswith(ending):
            problems.append(f"--{name} {value}: expected a file that ends in {ending}")
        if value and not pathlib.Path(value).absolute().parent.is_dir():
            problems.append(f"--{name} {value}: no such folder; make it first")
    splits = {name: open_rows(path) for name, path in split_folders(options.rows).items()}
    name, rows = next(iter(splits.items()))
    share = collect(problems, sharer, rows, reading)
    raise_problems(problems, "")
    index_B = some_of(len(rows), options.sample, reading.seed)
    with whole_rows(rows.checks, wait=CHECK_SECONDS):
        masking, pairs = measure(rows, share, reading, index_B)
        documents = document_lengths(rows, options.sample, reading.seed)
        lengths = {
            "documents": Lengths.of(documents, doublings(int(documents.max()))),
            "blocks": Lengths.of(block_lengths(rows, index_B), eighths(rows.length)),
            "rows": Lengths.of(rows.lengths_N, eighths(rows.length)),
        }
    totals = {split: totals_of(each.manifest) for split, each in splits.items()}
    return Figures(options.rows, name, _settings(reading), totals, lengths, masking, pairs)


def stats(options: Stats) -> None:
    """Measures, prints and writes; ValueError with everything that is wrong."""
    figures = measured_figures(options)
    print_figures(coloured_console(options.color), figures)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(dataclasses.asdict(figures), indent=1) + "\n", "utf-8")
    if options.png:
        from spanjax.prepare.stats_figure import draw  # matplotlib, only if requested

        draw(figures, options.png)
    for file in filter(None, (options.json, options.png)):
        print(f"wrote {file}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return run_command("stats", Stats, stats, __doc__, arguments, {"--count": "--rows"})
