"""python -m spanjax.prepare --input GLOB [GLOB ...] --vocab FILE --output DIR: text to packed rows on disk.

Writes DIR/train and, if requested, DIR/validation. The rows do not depend on the runner or the number of processes. DIR
appears when everything is written; until then the work lies in .DIR.unfinished next to it, and the same command resumes a
prepare that was stopped. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import collections
import dataclasses
import importlib
import itertools
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from spanjax import __version__
from spanjax.bounds import collect, raise_problems
from spanjax.cli import Progress, exit_code, parse_options
from spanjax.data.shards.local_runner import write_portions
from spanjax.data.shards.passes import Pass, finish_pass, folders, unread_bytes, unwritten, written
from spanjax.data.shards.portions import TRAIN, VALIDATION, RowSettings, portion_characters
from spanjax.data.shards.shards import MANIFEST, Manifest, written_files
from spanjax.data.shards.staging import Unfinished, unfinished_folder
from spanjax.data.shards.totals import print_totals
from spanjax.data.sources.annotate import DEFAULT_MODEL, GIVEN, SPACY, open_annotator
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import Source, SourceSettings, held_out
from spanjax.data.sources.paths import CountedFile, local_files
from spanjax.data.sources.sentences import sentence_spans
from spanjax.data.vocab.loading import SentencePieceVocabulary, Vocabulary, load_vocabulary, save_vocabulary
from spanjax.data.vocab.training import train_sentencepiece
from spanjax.prepare.options import Prepare, counted, option_problems
from spanjax.storage.inputs import with_local_copies
from spanjax.storage.objects import is_remote
from spanjax.storage.outputs import output_problem, replace_problem
from spanjax.storage.remote_outputs import RemoteOutput, staging

_BEAM = "spanjax.data.shards.beam_runner"  # imported only if requested: it needs Apache Beam
_BEAM_OPTIONS = "--beam-options"
log = logging.getLogger("spanjax.prepare")


def _annotator(options: Prepare, source: Source) -> str:
    """Returns the annotator to use; ValueError if its model is missing or given spans lack a layer."""
    chosen = options.annotator
    if not options.tags:
        return ""
    if chosen in ("", GIVEN):
        groups = source.groups()[:1]
        first = (each for group in groups for each in group.documents(collections.Counter()))
        layers = {layer for document in itertools.islice(first, 100) for layer in document.spans}
        lacking = set(options.tags) - layers
        if lacking and (chosen or layers):
            raise ValueError(
                f"--tags {' '.join(sorted(lacking))}: the first documents have spans of {sorted(layers) or 'no layer'};"
                f" name those, or find spans with --annotator {SPACY}{DEFAULT_MODEL}"
            )
        chosen = f"{SPACY}{DEFAULT_MODEL}" if lacking else GIVEN
    open_annotator(chosen, options.tags)
    return chosen


def _sources(options: Prepare, problems: list[str]) -> list[Source]:
    """Opens the input, and the held-out files if there are any."""
    settings = SourceSettings(
        options.text_column, options.skip_bad, options.data_dir or None, options.download, options.max_document
    )
    given = filter(None, (options.input, options.validation))
    return [collect(problems, open_sources, patterns, settings) for patterns in given]


def _pass(source: Source, splits: tuple[str, ...], options: Prepare, annotator: str) -> Pass:
    settings = RowSettings(
        options.length,
        options.max_blocks if options.pack else 1,
        Cleaning(options.normalization, options.keep_joiners),
        splits,
        options.holdout,
        options.tags,
        annotator,
        options.max_repeats,
    )
    characters = options.portion or portion_characters([group.bytes for group in source.groups()])
    most = options.max_documents if TRAIN in splits else 0
    return Pass(source, settings, characters, options.deduplicate, most)


def _checked(options: Prepare) -> tuple[list[Pass], Vocabulary | None]:
    """Returns the passes and the vocabulary (None if it must be trained); one ValueError with all problems."""
    problems = option_problems(options)
    sources = _sources(options, problems)
    vocabulary = collect(problems, load_vocabulary, options.vocab, options.casing) if options.vocab else None
    output = pathlib.Path(options.output)
    if problem := output_problem(output.parent):
        problems.append(f"--output {output}: {problem}")
    elif problem := replace_problem(output, options.overwrite, _written, _reads(options)):
        problems.append(f"--output {output} {problem}")
    annotator = ""
    if not problems:  # the annotator reads sources[0], which is missing if the input has problems
        annotator = collect(problems, _annotator, options, sources[0])
    if not problems and options.runner == "beam":
        collect(problems, importlib.import_module, _BEAM)
    raise_problems(problems, "")
    splits = (TRAIN, VALIDATION) if options.holdout else (TRAIN,)
    passes = [_pass(sources[0], splits, options, annotator)]
    return passes + [_pass(each, (VALIDATION,), options, annotator) for each in sources[1:]], vocabulary


def _written(folder: pathlib.Path) -> set[str]:
    """The files of prepared rows, see `spanjax.storage.outputs.Written`."""
    splits = [split for split in (TRAIN, VALIDATION) if (folder / split / MANIFEST).is_file()]
    return {f"{split}/{name}" for split in splits for name in written_files(folder / split)}


def _reads(options: Prepare) -> list[str]:
    given = [each for each in (options.vocab, options.data_dir) if each]
    return [*local_files((*options.input, *options.validation)), *given]


def _text_settings(options: Prepare, passes: list[Pass]) -> dict[str, Any]:
    """Settings of text processing, for the manifests."""
    named = ("normalization", "keep_joiners", "holdout", "deduplicate", "max_documents", "pack", "max_repeats")
    rest = {"annotator": passes[0].settings.annotator, "portion": [one.characters for one in passes]}
    return {"text_field": options.text_column} | {name: getattr(options, name) for name in named} | rest


def _plan(options: Prepare, passes: list[Pass], vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Settings that a resumed prepare must share with the one that was stopped."""
    trained = {"trained": options.train_vocab, "seed": options.seed}
    return {
        "code_version": __version__,
        "settings": {
            **_text_settings(options, passes),
            **{name: getattr(options, name) for name in ("length", "max_blocks", "tags")},
        },
        "vocabulary": vocabulary.fingerprint if vocabulary else trained,
        "input": {one.name: one.source.identity() for one in passes},
    }


def _trained(one: Pass, options: Prepare, work: Unfinished) -> Vocabulary:
    """Trains a vocabulary on the documents of a pass that are not held out, and keeps it with the work."""
    folder = work.folder / "vocabulary"
    if not folder.is_dir():
        log.info("training a vocabulary of %s pieces", f"{options.train_vocab:,}")
        with Progress(f"training a vocabulary of {options.train_vocab:,} pieces") as progress:
            model = train_sentencepiece(counted(_sentences(one), progress), options.train_vocab, options.seed)
        save_vocabulary(SentencePieceVocabulary(model), work.subfolder("vocabulary-to-be"))
        (work.folder / "vocabulary-to-be").rename(folder)
        work.worthless = False
    return load_vocabulary(folder)


def _sentences(one: Pass) -> Iterator[str]:
    ignored: collections.Counter[str] = collections.Counter()
    found = (document for group in one.source.groups() for document in group.documents(ignored))
    for document in itertools.islice(found, one.most or None):
        if len(one.settings.splits) == 1 or not held_out(document.text, one.settings.holdout):
            text = one.settings.cleaning(document.text)
            yield from (text[start:end] for start, end in sentence_spans(text))


def _write(one: Pass, work: Unfinished, vocabulary: Vocabulary, options: Prepare) -> None:
    """Writes the missing shards of a pass."""
    if before := written(work, one):
        log.info("%s: %s portions are written already; this continues", one.name, f"{before:,}")
    try:
        if options.runner == "beam":
            importlib.import_module(_BEAM).write_with_beam(one, work, vocabulary, options.beam_options)
        else:
            _write_here(one, work, vocabulary, options.workers or len(os.sched_getaffinity(0)))
    finally:
        work.worthless &= not written(work, one)


def _write_here(one: Pass, work: Unfinished, vocabulary: Vocabulary, workers: int) -> None:
    places, total = folders(work, one.settings.splits), unread_bytes(work, one)
    began, documents, rows = CountedFile.read_bytes, 0, 0
    with Progress(f"preparing {one.name}", total, "" if total is None else "MB") as progress:
        for each in write_portions(unwritten(work, one), one.settings, vocabulary, places, workers):
            documents, rows = documents + each.documents, rows + each.rows
            progress.done = CountedFile.read_bytes - began
            progress.text = f"{documents:,} documents, {rows:,} rows"


def prepare(options: Prepare) -> dict[str, Manifest]:
    """Writes the rows of every split and returns their manifests; ValueError with all problems.

    Rows for an address are written on this machine, where a stopped prepare resumes, and uploaded at the end.
    """
    options = with_local_copies(options, "vocab")
    if not is_remote(options.output):
        return _prepare(options, lambda _: None)
    remote = RemoteOutput(options.output, staging(options.output))
    shutil.rmtree(remote.local, ignore_errors=True)  # an earlier prepare was killed behind its upload
    remote.look(options.overwrite)
    try:
        with remote.named_in_errors():
            return _prepare(dataclasses.replace(options, output=str(remote.local)), remote.upload)
    finally:
        shutil.rmtree(remote.local, ignore_errors=True)


def _prepare(options: Prepare, upload: Callable[[pathlib.Path], None]) -> dict[str, Manifest]:
    passes, vocabulary = _checked(options)
    plan = _plan(options, passes, vocabulary)
    output, reads = pathlib.Path(options.output), _reads(options)
    with unfinished_folder(output, plan, options.overwrite, _written, reads) as work:
        vocabulary = vocabulary or _trained(passes[0], options, work)
        for one in passes:
            _write(one, work, vocabulary, options)
        settings = _text_settings(options, passes)
        finished = [finish_pass(work, one, vocabulary, settings) for one in passes]
        upload(work.result)  # if it fails, the work stays
        return {name: manifest for manifests in finished for name, manifest in manifests.items()}


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    words = _with_beam_options(sys.argv[1:] if arguments is None else arguments)
    options = parse_options(
        Prepare,
        args=words,
        prog="python -m spanjax.prepare rows",
        description=__doc__,
        elsewhere=("input", "validation", "data_dir", "beam_options"),
        stores=("vocab", "output"),
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_code("prepare", lambda: print_totals(prepare(options)), cannot=f"cannot prepare {options.output}")


def _with_beam_options(words: list[str]) -> list[str]:
    """Joins --beam-options and the word after it, which looks like an option itself."""
    if _BEAM_OPTIONS not in words[:-1]:
        return words
    place = words.index(_BEAM_OPTIONS)
    return [*words[:place], "=".join(words[place : place + 2]), *words[place + 2 :]]
