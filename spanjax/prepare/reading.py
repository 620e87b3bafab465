"""Rows that `show` and `stats` read, and their masking, boundaries and pairing, by name or from a config."""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import rich.console
import tyro

from spanjax.bounds import AtLeast0
from spanjax.cli import exit_code, parse_options
from spanjax.data.feed.batch import FeedSpec
from spanjax.data.feed.host_slice import HostShare
from spanjax.data.feed.masking import Boundaries, GeometricSpans, MaskingPolicy, Ngrams, TaggedSpans, Tokens, WholeWords
from spanjax.data.feed.pairing import FullSentences, NextSentence, Pairing, SentenceOrder, Single
from spanjax.data.feed.rows import Rows, open_rows
from spanjax.data.shards.remote import local_rows
from spanjax.data.shards.shards import MANIFEST

MASKINGS: dict[str, tuple[MaskingPolicy, Boundaries]] = {
    "geometric": (GeometricSpans(), Boundaries()),
    "tokens": (Tokens(), Boundaries()),
    "whole-words": (WholeWords(), Boundaries()),
    "ngrams": (Ngrams(), Boundaries()),
    "tagged": (TaggedSpans(), Boundaries()),
    "as-released": (GeometricSpans.as_released(), Boundaries(specials=False)),
}
PAIRINGS: dict[str, Pairing] = {
    "single": Single(),
    "next-sentence": NextSentence(),
    "sentence-order": SentenceOrder(),
    "full-sentences": FullSentences(),
}
SPLITS = ("train", "validation")
Color = Literal["auto", "always", "never"]
Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class Reading:
    """Choices of a training run that determine its batches."""

    config: str = ""
    """Take masking, boundaries, pairing and seed from the RUN of this config file of a training run."""
    masking_name: Annotated[
        Literal["geometric", "tokens", "whole-words", "ngrams", "tagged", "as-released"] | None,
        tyro.conf.arg(name="masking"),
    ] = None
    """geometric: SpanBERT's spans; tokens: BERT; ngrams: ALBERT; tagged: entities and noun phrases; as-released: SpanBERT's
    code, with its boundaries. None takes the config's, or geometric. `--masking NAME --help` shows the settings of NAME."""
    pairing_name: Annotated[
        Literal["single", "next-sentence", "sentence-order", "full-sentences"] | None, tyro.conf.arg(name="pairing")
    ] = None
    """single: SpanBERT; next-sentence: BERT; sentence-order: ALBERT; full-sentences: RoBERTa. None takes the config's, or
    single."""
    seed: int = 0
    """The seed of the run."""
    epoch: AtLeast0 = 0
    """Epoch of the run, whose masks and pairs are shown; held-out rows are read as in epoch 0."""
    step: AtLeast0 = 0
    """Training step of the masking rate, for a masking with a schedule."""
    masking: MaskingPolicy = GeometricSpans()
    """Settings of the masking."""
    boundaries: Boundaries = Boundaries()
    """Rule for the masked tokens that have span boundaries."""
    pairing: Pairing = Single()
    """Settings of the pairing."""


def chosen_reading(arguments: Sequence[str]) -> Reading:
    """Returns the defaults that --config, --masking and --pairing set for the other options; ValueError on a bad config."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "masking", "pairing"):
        parser.add_argument(f"--{name}", nargs="?", default="")
    words = parser.parse_known_args(arguments)[0]
    reading = Reading()
    if words.config:
        from spanjax.run import load  # imports jax, so only if requested

        run: Any = load(words.config)
        spec = run.objective.feed_spec(seed=run.seed, batch_size=run.batch_size, order=run.data.order)
        reading = Reading(
            seed=run.seed, masking=spec.masking, boundaries=spec.boundaries, pairing=spec.pairing, config=words.config
        )
    if words.masking in MASKINGS:
        masking, boundaries = MASKINGS[words.masking]
        reading = dataclasses.replace(reading, masking=masking, boundaries=boundaries)
    if words.pairing in PAIRINGS:
        reading = dataclasses.replace(reading, pairing=PAIRINGS[words.pairing])
    return reading


def split_folders(folder: str) -> dict[str, pathlib.Path]:
    """Folders of rows in a prepared folder by the name of their split; a folder of rows itself has its own name."""
    path = local_rows(folder)
    found = {name: path / name for name in SPLITS if (path / name / MANIFEST).is_file()}
    return found if found and not (path / MANIFEST).is_file() else {path.resolve().name: path}


def opened(folder: str) -> Rows:
    """Opens the rows of a folder: those of its train/ if it holds several splits."""
    return open_rows(next(iter(split_folders(folder).values())))


def sharer(rows: Rows, reading: Reading) -> HostShare:
    """Returns the feed's view of rows; ValueError if the masking does not fit them."""
    spec = FeedSpec(
        seed=reading.seed,
        batch_size=1,
        masking=reading.masking,
        boundaries=reading.boundaries,
        pairing=reading.pairing,
    )
    return HostShare(rows, spec)


def coloured_console(color: Color) -> rich.console.Console:
    """Opens standard output with colours always, never, or on a terminal (unless NO_COLOR is set)."""
    width = None if sys.stdout.isatty() else 100
    if color == "auto":
        return rich.console.Console(highlight=False, width=width)
    system = "standard" if color == "always" else None
    return rich.console.Console(force_terminal=color == "always", color_system=system, highlight=False, width=width)


def run_command(
    name: str,
    options: Callable[..., Options],
    work: Callable[[Options], None],
    description: str | None,
    arguments: Sequence[str] | None,
    other_names: Mapping[str, str],
) -> int:
    """Parses the options (a dataclass with `rows` and `reading`), does the work and returns the exit code.

    `other_names` as in `parse_options`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)

    def parsed_work() -> None:
        # the masking and the pairing that the command line names decide which options there are
        default: Any = options(rows=tyro.MISSING, reading=chosen_reading(words))
        program, marks = f"python -m spanjax.prepare {name}", (tyro.conf.AvoidSubcommands,)
        parsed: Any = parse_options(
            options,
            default=default,
            args=words,
            prog=program,
            description=description,
            config=marks,
            other_names=other_names,
            stores=("rows",),
        )
        work(parsed)

    return exit_code(name, parsed_work, cannot="cannot read these rows")
