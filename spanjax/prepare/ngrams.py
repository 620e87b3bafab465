"""Counts the n-grams of a corpus and writes those that occur often: the dictionary of span fine-tuning (Bao et al., 2021).

The same text gives the same file, whatever the memory and the number of processes. The defaults are the paper's: up to five
words, more than ten occurrences.
"""

import collections
import dataclasses
import itertools
import logging
import os
import pathlib
import sys
import tempfile

import numpy as np

from spanjax.bounds import AtLeast1, OrAll, collect, flag_problems, raise_problems
from spanjax.cli import exit_code, parse_options
from spanjax.data.ngrams.counting import Counted, CountingLimits, count_ngrams
from spanjax.data.ngrams.dictionary import NgramSettings, is_dictionary, write_ngrams
from spanjax.data.sources.documents import Source
from spanjax.data.sources.paths import local_files
from spanjax.prepare.options import TextInput, Workers
from spanjax.storage.local import whole_file
from spanjax.storage.outputs import is_taken, output_problem, place_problem
from spanjax.storage.remote_outputs import on_local_files

_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountNgrams(TextInput, NgramSettings):
    """Counts n-grams and writes the frequent ones, the most frequent first."""

    output: str
    """File to write: a line of settings, then one n-gram a line with its count."""
    max_documents: OrAll = 0
    """Stop after this many documents of the input; 0 takes all."""
    memory_mb: AtLeast1 = 1024
    """Megabytes of working memory, about, besides the program and the n-grams that are kept; the rest lies on the disk of
    --output."""
    workers: Workers = 1
    """Processes that read text; 0 takes one a core."""
    overwrite: bool = False
    """Replace the file --output."""

    @property
    def settings(self) -> NgramSettings:
        """The options that define an n-gram."""
        names = [field.name for field in dataclasses.fields(NgramSettings)]
        return NgramSettings(**{name: getattr(self, name) for name in names})


def _checked(options: CountNgrams) -> Source:
    """Returns the source; ValueError with all problems."""
    output, problems = pathlib.Path(options.output), flag_problems(options)
    if output.is_dir():
        problems.append(f"--output {output} is a folder, expected a file")
    if output.is_file() and not options.overwrite:
        problems.append(f"--output {output} exists already: choose another, or replace it with --overwrite")
    problem = output_problem(output.parent) or (
        place_problem(output, local_files(options.input)) if is_taken(output) else ""
    )
    # --overwrite with a mistyped name must not destroy a file of another kind.
    if output.is_file() and not problem and not is_dictionary(output):
        problem = "is no file of n-grams: choose another name"
    problems += [f"--output {output}: {problem}"] if problem else []
    source = collect(problems, options.source)
    raise_problems(problems, "")
    return source


def count_and_write(options: CountNgrams) -> Counted:
    """Counts, writes and prints; ValueError with everything that is wrong."""
    source, output = _checked(options), pathlib.Path(options.output)
    skipped: collections.Counter[str] = collections.Counter()
    documents = itertools.islice(source.documents(skipped), options.max_documents or None)
    output.parent.mkdir(parents=True, exist_ok=True)
    room = CountingLimits(options.memory_mb << 20, options.workers or os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.counting-", dir=output.parent) as work:
        counted = count_ngrams(documents, options.settings, room, pathlib.Path(work))
    with whole_file(output) as file:
        about = {"ngrams": len(counted.count_K), "corpus_words": counted.corpus_words, "corpus": source.description}
        write_ngrams(file, options.settings, counted.ngrams(), about)
    for kind, count in skipped.items():
        print(f"skipped: {count:,} {kind}")
    _print(options, counted)
    return counted


def _print(options: CountNgrams, counted: Counted) -> None:
    words_K = np.count_nonzero(counted.words_KN >= 0, axis=1)
    print(
        f"{options.output}: {len(words_K):,} n-grams that occur more than {options.more_than} times in"
        f" {counted.corpus_words:,} words"
    )
    for n in range(2, options.most_words + 1):
        first = [place for place, _ in zip(np.flatnonzero(words_K == n), range(_SHOWN), strict=False)]
        some = ", ".join(" ".join(counted.words[number] for number in counted.words_KN[place, :n]) for place in first)
        print(f"  {n} words: {np.count_nonzero(words_K == n):,}" + (f" ({some}, ...)" if some else ""))
    if not len(words_K):
        print("no n-gram is frequent enough: give more text, or a lower --more-than")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        CountNgrams,
        args=arguments,
        prog="python -m spanjax.prepare ngrams",
        description=__doc__,
        elsewhere=("input",),
        stores=("output",),
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_code(
        "ngrams",
        lambda: on_local_files(count_and_write, options, (), ["output"]),
        cannot=f"cannot write {options.output}",
        stopped=f"stopped; {options.output} is as it was",
    )
