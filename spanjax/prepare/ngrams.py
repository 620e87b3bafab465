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

from spanjax.cli import exit_code, parse_options
from spanjax.data.ngrams.counting import Counted, Room, count_ngrams
from spanjax.data.ngrams.dictionary import NgramSettings, Punctuation, is_dictionary, write_ngrams
from spanjax.data.sources.cleaning import Normalization
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import MAX_DOCUMENT, Source, SourceSettings
from spanjax.data.sources.paths import local_files
from spanjax.prepare.row_options import MaxDocument
from spanjax.storage.local import whole_file
from spanjax.storage.outputs import is_taken, output_problem, place_problem

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class CountNgrams:
    """Counts n-grams and writes the frequent ones, the most frequent first."""

    input: tuple[str, ...]
    """Files or globs, tfds:NAME or installed-docs, as for rows."""
    output: str
    """File to write: a line of settings, then one n-gram a line with its count."""
    most_words: int = NgramSettings.most_words
    """Words of the longest n-gram; the shortest has two."""
    more_than: int = NgramSettings.more_than
    """Keep n-grams that occur more often than this. The released code keeps those that occur 10 times: 9."""
    most_ngrams: int = NgramSettings.most_ngrams
    """Most n-grams to keep, the most frequent ones; 0 keeps all."""
    lower_case: bool = NgramSettings.lower_case
    """Lower-case words, here and when sentences are looked up; --no-lower-case keeps them as they are."""
    punctuation: Punctuation = NgramSettings.punctuation
    """apart: punctuation at the ends of a word is no part of it; attached: words lie between blanks, for text whose
    punctuation stands apart already (WikiText)."""
    with_punctuation: bool = NgramSettings.with_punctuation
    """Count n-grams with words of nothing but punctuation, too."""
    normalization: Normalization = NgramSettings.normalization
    """Unicode normalisation of the text."""
    max_documents: int = 0
    """Stop after this many documents of the input; 0 takes all."""
    text_field: str = "text"
    """The field of JSON lines, or column, that holds the text."""
    skip_bad: bool = False
    """Skip and count bad lines and documents instead of stopping at the first."""
    max_document: MaxDocument = MAX_DOCUMENT
    memory_mb: int = 1024
    """Megabytes of working memory, about, besides the program and the n-grams that are kept; the rest lies on the disk of
    --output."""
    workers: int = 1
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
    output, source = pathlib.Path(options.output), None
    rules = {
        f"--memory-mb {options.memory_mb}: expected 1 or more": options.memory_mb < 1,
        f"--workers {options.workers}: expected 1 or more, or 0 for one a core": options.workers < 0,
        f"--max-documents {options.max_documents}: expected 1 or more, or 0 for all": options.max_documents < 0,
        f"--output {output} is a folder, expected a file": output.is_dir(),
        f"--output {output} exists already: choose another, or replace it with --overwrite": output.is_file()
        and not options.overwrite,
    }
    problems = options.settings.problems() + [message for message, broken in rules.items() if broken]
    problem = output_problem(output.parent) or (
        place_problem(output, local_files(options.input)) if is_taken(output) else ""
    )
    # --overwrite with a mistyped name must not destroy a file of another kind.
    if output.is_file() and not problem and not is_dictionary(output):
        problem = "is no file of n-grams: choose another name"
    problems += [f"--output {output}: {problem}"] if problem else []
    try:
        source = open_sources(
            options.input, SourceSettings(options.text_field, options.skip_bad, max_document=options.max_document)
        )
    except ValueError as error:
        problems += str(error).splitlines()
    if problems or source is None:
        raise ValueError("\n".join(f"  - {line}" for line in problems))
    return source


def count_and_write(options: CountNgrams) -> Counted:
    """Counts, writes and prints; ValueError with everything that is wrong."""
    source, output = _checked(options), pathlib.Path(options.output)
    skipped: collections.Counter[str] = collections.Counter()
    documents = itertools.islice(source.documents(skipped), options.max_documents or None)
    output.parent.mkdir(parents=True, exist_ok=True)
    room = Room(options.memory_mb << 20, options.workers or os.cpu_count() or 1)
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
        CountNgrams, args=arguments, prog="python -m spanjax.prepare ngrams", description=__doc__, elsewhere=("input",)
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_code(
        "ngrams",
        lambda: count_and_write(options),
        cannot=f"cannot write {options.output}",
        stopped=f"stopped; {options.output} is as it was",
    )
