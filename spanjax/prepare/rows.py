"""python -m spanjax.prepare --input GLOB [GLOB ...] --vocab FILE --output DIR: text to packed rows on disk.

Writes DIR/train and, where asked for, DIR/validation. The rows do not depend on the number of worker processes.
DIR appears when everything is written and not before. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import collections
import dataclasses
import itertools
import logging
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated

import tyro

from spanjax.data.corpus import INSTALLED_DOCS, Document, Files, InstalledDocs, Source, find_files
from spanjax.data.packing import MAX_LENGTH, MIN_LENGTH, MOST_BLOCKS, Packer
from spanjax.data.progress import Progress, totals_table
from spanjax.data.rows import Manifest, RowsWriter
from spanjax.data.sentences import clean, sentences
from spanjax.data.staging import finished_folder
from spanjax.data.tokenize_pool import tokenized
from spanjax.data.vocab import SentencePieceVocabulary, Vocabulary, load_vocabulary, train_sentencepiece

log = logging.getLogger("spanjax.prepare")


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Tokenizes documents and packs them into rows of fixed length, ready for training."""

    input: tuple[str, ...]
    """Files or globs: text (a blank line between documents) or JSON-lines with a field "text", plain, .gz or .xz; or
    the word installed-docs for the docstrings of installed Python packages."""
    output: str
    """Folder to write: DIR/train and DIR/validation."""
    vocab: str = ""
    """Vocabulary: a vocab.txt (WordPiece), a .model file (SentencePiece) or a folder saved by spanjax."""
    train_vocab: int = 0
    """Instead of --vocab: train a SentencePiece vocabulary of this many pieces from the input."""
    length: int = 512
    """Positions a row, [CLS] and [SEP] included."""
    validation: tuple[str, ...] = ()
    """Files or globs of held-out documents."""
    holdout: float = 0.0
    """Instead of --validation: the share of the input's documents to hold out (0.02: every 50th)."""
    pack: bool = True
    """Several blocks in a row; --no-pack gives every block a row of its own."""
    max_blocks: int = 16
    """Most blocks in a row."""
    casing: Annotated[bool | None, tyro.conf.arg(name="lower-case")] = None
    """Lower-case WordPiece text: True, False, or None to guess it from the vocabulary."""
    max_documents: int = 0
    """Stop after this many documents of the input; 0 takes all."""
    skip_bad: bool = False
    """Skip and count bad lines and documents instead of stopping at the first."""
    workers: int = 0
    """Processes that tokenize; 0 takes one for every CPU. The rows are the same for every number."""
    seed: int = 0
    """Draws the sentences that --train-vocab learns from where there are very many."""
    overwrite: bool = False
    """Replace a finished output folder."""


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of the output: its name and a source of its documents."""

    name: str
    source: Source
    keep: int = 0  # of every `every` documents, 0 takes all
    every: int = 0
    most: int = 0

    def documents(self, skipped: collections.Counter[str]) -> Iterator[Document]:
        """The documents of this split, in the source's order."""
        found = self.source.documents(skipped)
        found = itertools.islice(found, self.most) if self.most else found
        for number, document in enumerate(found):
            if not self.every or (number % self.every == self.every - 1) == (self.name == "validation"):
                yield document


def _option_problems(options: Prepare) -> list[str]:
    rules = {
        f"--length {options.length}: expected {MIN_LENGTH} to {MAX_LENGTH:,}": not MIN_LENGTH
        <= options.length
        <= MAX_LENGTH,
        f"--max-blocks {options.max_blocks}: expected 1 to {MOST_BLOCKS}": not 1 <= options.max_blocks <= MOST_BLOCKS,
        f"--workers {options.workers}: expected 1 or more, or 0 for one a CPU": options.workers < 0,
        f"--max-documents {options.max_documents}: expected 1 or more, or 0 for all": options.max_documents < 0,
        f"--holdout {options.holdout}: expected 0 or more and at most 0.5": not 0 <= options.holdout <= 0.5,
        "--holdout and --validation are both given: keep one of them": bool(options.holdout and options.validation),
        "--vocab and --train-vocab are both given: keep one of them": bool(options.vocab and options.train_vocab),
        "no vocabulary: give --vocab FILE or --train-vocab SIZE": not options.vocab and not options.train_vocab,
        f"--train-vocab {options.train_vocab}: expected 100 or more pieces": options.train_vocab
        and options.train_vocab < 100,
        "--lower-case is for --vocab: a vocabulary from --train-vocab is cased": options.train_vocab
        and options.casing is not None,
    }
    return [message for message, broken in rules.items() if broken]


def _source(patterns: tuple[str, ...], skip_bad: bool, problems: list[str]) -> Source | None:
    if INSTALLED_DOCS in patterns:
        if len(patterns) == 1:
            return InstalledDocs()
        problems.append(f"{INSTALLED_DOCS} stands beside files: give either")
        return None
    try:
        return Files(find_files(patterns), skip_bad)
    except ValueError as error:
        problems.extend(str(error).splitlines())
        return None


def _checked(options: Prepare) -> tuple[list[Split], Vocabulary | None]:
    """The splits and the vocabulary (None where it is to be trained); one ValueError with everything that is wrong."""
    problems = _option_problems(options)
    source = _source(options.input, options.skip_bad, problems)
    held_out = _source(options.validation, options.skip_bad, problems) if options.validation else None
    vocabulary = None
    if options.vocab:
        try:
            vocabulary = load_vocabulary(options.vocab, options.casing)
        except ValueError as error:
            problems.append(str(error))
    output = pathlib.Path(options.output)
    if output.exists() and not options.overwrite and not (output.is_dir() and not any(output.iterdir())):
        problems.append(f"--output {output} exists already: choose another folder, or replace it with --overwrite")
    if problems or source is None:
        raise ValueError("\n".join(f"  - {line}" if not line.startswith("  ") else line for line in problems))
    every = round(1 / options.holdout) if options.holdout else 0
    splits = [Split("train", source, every=every, most=options.max_documents)]
    if every or held_out:
        splits.append(
            Split("validation", held_out or source, every=every, most=0 if held_out else options.max_documents)
        )
    return splits, vocabulary


def _trained(split: Split, options: Prepare) -> Vocabulary:
    log.info("training a vocabulary of %s pieces", f"{options.train_vocab:,}")
    ignored: collections.Counter[str] = collections.Counter()
    texts = (sentence for document in split.documents(ignored) for sentence in sentences(clean(document.text)))
    return SentencePieceVocabulary(train_sentencepiece(texts, options.train_vocab, options.seed))


def _write(split: Split, folder: pathlib.Path, vocabulary: Vocabulary, options: Prepare) -> Manifest:
    """Tokenizes, packs and writes one split."""
    skipped: collections.Counter[str] = collections.Counter()
    most_blocks = options.max_blocks if options.pack else 1
    packer = Packer(options.length, most_blocks)
    workers = options.workers or os.cpu_count() or 1
    writer = RowsWriter(folder / split.name, vocabulary, options.length, most_blocks, split.source.description)
    with writer, Progress(split.name) as progress:
        for document in tokenized(split.documents(skipped), vocabulary, options.length - 2, workers):
            writer.documents += 1
            writer.sentences += document.sentences
            for block in document.blocks:
                for row in packer.add(block):
                    writer.add(row)
            progress.update(writer.documents, writer.text_tokens, document.characters)
        for row in packer.finish():
            writer.add(row)
        writer.skipped = dict(skipped)
        if not writer.rows:
            raise ValueError(
                f"the {split.name} split holds no text; give more documents"
                + (" or a larger --holdout" * bool(split.every))
            )
    return writer.manifest


def prepare(options: Prepare) -> dict[str, Manifest]:
    """Writes the rows of every split and returns their manifests; ValueError with everything that is wrong."""
    splits, vocabulary = _checked(options)
    with finished_folder(pathlib.Path(options.output), options.overwrite) as folder:
        vocabulary = vocabulary or _trained(splits[0], options)
        return {split.name: _write(split, folder, vocabulary, options) for split in splits}


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = tyro.cli(Prepare, args=arguments, prog="python -m spanjax.prepare rows", description=__doc__)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        manifests = prepare(options)
    except ValueError as error:
        print(f"prepare: cannot prepare {options.output}:\n{error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"prepare: {error.strerror or error}{where}; nothing is left in {options.output}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"prepare: stopped; nothing is left in {options.output}", file=sys.stderr)
        return 130
    totals_table(manifests)
    return 0
