"""python -m spanjax.prepare vocab --input GLOB [GLOB ...] --kind KIND --size N --output FOLDER: a vocabulary from text.

KIND is wordpiece (BERT), sentencepiece (unigram) or byte-bpe (RoBERTa). FOLDER gets vocabulary.json and the standard file of
the kind (vocab.txt, sentencepiece.model, tokenizer.json), which Hugging Face reads; an --output that ends in .txt, .model or
.json is that one file. The same text gives the same files. Then it prints how well the vocabulary fits sentences that were
held back. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import collections
import dataclasses
import itertools
import logging
import pathlib
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from spanjax.bounds import AtLeast1, Bounds, OrAll, collect, flag_problems, raise_problems
from spanjax.cli import Progress, exit_code, parse_options
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.documents import Source
from spanjax.data.sources.paths import local_files
from spanjax.data.sources.sentences import sentences
from spanjax.data.vocab.base import MOST_PIECES, SETTINGS_FILE
from spanjax.data.vocab.fertility import measure
from spanjax.data.vocab.loading import (
    MODEL_FILES,
    ByteBpeVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    WordPieceVocabulary,
    load_vocabulary,
)
from spanjax.data.vocab.training import SENTENCES, train_byte_bpe, train_sentencepiece, train_wordpiece
from spanjax.prepare.options import TextInput, counted
from spanjax.storage.local import write_whole
from spanjax.storage.outputs import output_problem, place_problem
from spanjax.storage.remote_outputs import on_local_files

_EVERY, _MOST_HELD = 50, 20_000  # every 50th sentence is held back, at most this many
log = logging.getLogger("spanjax.prepare")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainVocabulary(TextInput):
    """Trains a vocabulary from a corpus and measures how well it fits."""

    kind: Literal["wordpiece", "sentencepiece", "byte-bpe"]
    """wordpiece as in BERT and SpanBERT; sentencepiece, for languages without blanks too; byte-bpe as in RoBERTa, which knows
    every character."""
    size: Annotated[int, Bounds(100, MOST_PIECES)]
    """Number of pieces, the five specials included (SpanBERT: 28,996)."""
    output: str
    """Folder to write, or one file whose ending fits the kind (.txt, .model, .json)."""
    lower_case: bool = False
    """For wordpiece: lower-case the text and strip its accents, here and whenever the vocabulary is used."""
    character_coverage: Annotated[float | None, Bounds(0.9, 1, above=True)] = None
    """For wordpiece and sentencepiece: the share of the text's characters that the vocabulary must cover; the rarest others
    become unknown. None takes 1.0 for wordpiece and 0.9995 for sentencepiece (fit for Chinese and Japanese, too)."""
    byte_fallback: bool = False
    """For sentencepiece: write characters that are not covered as bytes (256 more pieces) instead of as unknown."""
    split_by_whitespace: bool = True
    """For sentencepiece: no piece spans a blank."""
    min_frequency: AtLeast1 = 2
    """For wordpiece and byte-bpe: fewest occurrences of a pair of tokens to be merged."""
    sentences: AtLeast1 = SENTENCES
    """Most sentences to learn from, sampled at random if there are more."""
    max_documents: OrAll = 0
    """Stop after this many documents of the input; 0 takes all."""
    seed: int = 0
    """Seed for sampling sentences."""
    overwrite: bool = False
    """Replace the vocabulary in --output."""


def _problems(options: TrainVocabulary) -> list[str]:
    output = pathlib.Path(options.output)
    suffix = pathlib.Path(MODEL_FILES[options.kind]).suffix
    known = {pathlib.Path(name).suffix for name in MODEL_FILES.values()}
    rules = {
        "--character-coverage is not for byte-bpe, which covers every character": options.kind == "byte-bpe"
        and options.character_coverage is not None,
        "--lower-case is for wordpiece": options.lower_case and options.kind != "wordpiece",
        "--byte-fallback is for sentencepiece": options.byte_fallback and options.kind != "sentencepiece",
        "--no-split-by-whitespace is for sentencepiece": not options.split_by_whitespace
        and options.kind != "sentencepiece",
        "--min-frequency is for wordpiece and byte-bpe": options.min_frequency != 2 and options.kind == "sentencepiece",
        f"--output {output}: a {options.kind} file ends in {suffix}; or give a folder": output.suffix
        in known - {suffix},
        f"--output {output} exists already: choose another, or replace it with --overwrite": _taken(output)
        and not options.overwrite,
        f"--output {output} is a folder, expected a file": output.suffix == suffix and output.is_dir(),
        f"--output {output} is a file, expected a folder": output.suffix != suffix and output.is_file(),
    }
    found = flag_problems(options) + [message for message, broken in rules.items() if broken]
    problem = output_problem(output.parent)
    # `_foreign` looks the suffix of the output up, so the rules above must have accepted it.
    if not problem and not found and _taken(output):
        problem = _foreign(output, options)
    return [*found, f"--output {output}: {problem}"] if problem else found


def _taken(output: pathlib.Path) -> bool:
    """True if something exists there; a folder without any file of a vocabulary does not count."""
    if output.is_dir():
        return any((output / name).exists() for name in ("vocabulary.json", *MODEL_FILES.values()))
    return output.exists()


def _foreign(output: pathlib.Path, options: TrainVocabulary) -> str:
    """Returns the reason why --overwrite refuses the output: no vocabulary, another's folder, or an input; empty without one."""
    reads = local_files(options.input)
    if output.is_file():
        if problem := place_problem(output, reads):
            return problem
        kinds = {pathlib.Path(name).suffix: name for name in MODEL_FILES.values()}
        return "" if _is_vocabulary(output) else f"is no vocabulary ({kinds[output.suffix]}): choose another name"
    if inside := [each for each in reads if pathlib.Path(each).resolve() in _targets(output)]:
        return f"{inside[0]} is read: choose another folder"
    others = [name for name in ("manifest.json", "config.json", "run.json") if (output / name).exists()]
    if others or not (output / SETTINGS_FILE).is_file() or not _is_vocabulary(output):
        what = f"{others[0]} is in it" if others else f"its {SETTINGS_FILE} is missing or names another vocabulary"
        return f"holds files of a vocabulary that this command did not write ({what}): choose another folder"
    return ""


def _targets(folder: pathlib.Path) -> list[pathlib.Path]:
    return [(folder / name).resolve() for name in (SETTINGS_FILE, *MODEL_FILES.values())]


def _is_vocabulary(path: pathlib.Path) -> bool:
    try:
        return bool(load_vocabulary(path).size)
    except ValueError:
        return False


@dataclasses.dataclass
class _Sentences:
    """Sentences to learn from; iteration holds every 50th back."""

    source: Source
    options: TrainVocabulary
    held: list[str] = dataclasses.field(default_factory=list)
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    last: str = ""

    def __iter__(self) -> Iterator[str]:
        cleaning = Cleaning(self.options.normalization)
        documents = itertools.islice(self.source.documents(self.skipped), self.options.max_documents or None)
        found = itertools.chain.from_iterable(sentences(cleaning(document.text)) for document in documents)
        for number, sentence in enumerate(found, start=1):
            if number % _EVERY == 0 and len(self.held) < _MOST_HELD:
                self.held.append(sentence)
            else:
                self.last = sentence
                yield sentence


def _trained(texts: Iterable[str], options: TrainVocabulary) -> Vocabulary:
    coverage, most = options.character_coverage, options.sentences
    if options.kind == "sentencepiece":
        model = train_sentencepiece(
            texts, options.size, options.seed, character_coverage=coverage or 0.9995,
            byte_fallback=options.byte_fallback, split_by_whitespace=options.split_by_whitespace, most=most,
        )  # fmt: skip
        return SentencePieceVocabulary(model)
    if options.kind == "byte-bpe":
        found = train_byte_bpe(texts, options.size, options.seed, min_frequency=options.min_frequency, most=most)
        return ByteBpeVocabulary(found)
    pieces = train_wordpiece(
        texts, options.size, options.seed, lower_case=options.lower_case, character_coverage=coverage or 1.0,
        min_frequency=options.min_frequency, most=most,
    )  # fmt: skip
    return WordPieceVocabulary(pieces, options.lower_case)


def _files(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Returns the files of the folder: the vocabulary's own, and tokenizer.json for WordPiece, too."""
    files = vocabulary.files()
    if isinstance(vocabulary, WordPieceVocabulary):
        ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
        files[MODEL_FILES["byte-bpe"]] = BertWordPieceTokenizer(ids, lowercase=vocabulary.lower_case).to_str().encode()
    return files


def _write(vocabulary: Vocabulary, output: pathlib.Path) -> None:
    """Writes the folder or the one file; every file appears when it is whole."""
    name = MODEL_FILES[vocabulary.kind]
    single = output.suffix == pathlib.Path(name).suffix
    files = {output.name: vocabulary.files()[name]} if single else _files(vocabulary)
    folder = output.parent if single else output
    folder.mkdir(parents=True, exist_ok=True)
    for name in reversed(files):  # the settings, which describe the folder, are written last
        write_whole(folder / name, files[name])
    for name in () if single else {*MODEL_FILES.values()} - {*files}:
        (folder / name).unlink(missing_ok=True)  # of a vocabulary that this one replaces


def train_vocabulary(options: TrainVocabulary) -> Vocabulary:
    """Trains, writes and prints; ValueError with everything that is wrong."""
    problems = _problems(options)
    source = collect(problems, options.source)
    raise_problems(problems, "")
    texts = _Sentences(source, options)
    log.info("training a %s vocabulary of %s pieces", options.kind, f"{options.size:,}")
    with Progress(f"training a {options.kind} vocabulary of {options.size:,} pieces") as progress:
        vocabulary = _trained(counted(texts, progress), options)
    _write(vocabulary, pathlib.Path(options.output))
    for kind, count in texts.skipped.items():
        print(f"skipped: {count:,} {kind}")
    held = texts.held or [texts.last]
    print(f"{options.output}: {vocabulary.kind}, {vocabulary.size:,} pieces, {vocabulary.casing}")
    print(
        "fit to "
        + (f"{len(held):,} sentences held back" if texts.held else "a sentence it learnt from (too few to hold back)")
    )
    figures = measure(vocabulary, held)
    print("  " + "\n  ".join(figures.lines()))
    if figures.unknown:
        print("most frequent unknown text\n" + "\n".join(figures.unknown_lines()))
    print(f"\nnext:\n  {_next(options)}")
    return vocabulary


def _next(options: TrainVocabulary) -> str:
    words = ["python", "-m", "spanjax.prepare", "rows", "--input", *options.input, "--vocab", options.output]
    words += ["--lower-case", "True"] if options.lower_case and options.output.endswith(".txt") else []
    words += ["--normalization", options.normalization] if options.normalization != "none" else []
    words += ["--text-field", options.text_column] if options.text_column != "text" else []
    return shlex.join([*words, "--output", "rows"])


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        TrainVocabulary,
        args=arguments,
        prog="python -m spanjax.prepare vocab",
        description=__doc__,
        elsewhere=("input",),
        stores=("output",),
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_code(
        "prepare vocab",
        lambda: on_local_files(train_vocabulary, options, (), ["output"]),
        cannot=f"cannot train {options.output}",
        stopped=f"stopped; {options.output} is as it was",
    )
