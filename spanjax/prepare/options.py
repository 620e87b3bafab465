"""Options of every command that reads text, those of `python -m spanjax.prepare rows`, and the checks that need no input."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import tyro

from spanjax.bounds import Bounds, OrAll, flag_problems, raise_problems
from spanjax.cli import Progress
from spanjax.data.shards.packing import MAX_LENGTH, MIN_LENGTH, MOST_BLOCKS, MOST_LAYERS
from spanjax.data.sources.annotate import annotator_problems
from spanjax.data.sources.cleaning import Normalization
from spanjax.data.sources.columns import Columns
from spanjax.data.sources.corpus import open_sources
from spanjax.data.sources.documents import MAX_DOCUMENT, Source, SourceSettings
from spanjax.data.sources.readers import TEXT
from spanjax.data.vocab.base import MOST_PIECES

Workers = Annotated[int, Bounds(1, zero="one a core")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextInput:
    """Text that a command reads."""

    input: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [...]")]
    """Files or globs, here or behind scheme:// (hf, gs, s3, ...): text (a blank line between documents), JSON-lines, CSV, TSV
    (also .gz, .xz, .bz2, .zst), Parquet or Arrow; a folder that `datasets` saved; tfds:NAME[/CONFIG][:VERSION][@SPLIT]; or the
    word installed-docs for the docstrings of installed Python packages."""
    text_field: str = "text"
    """The field of JSON-lines, column of a table or feature of a TFDS data set that holds the text."""
    columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="text=COLUMN")] = ()
    """The same, as in fine-tuning: text=COLUMN."""
    normalization: Normalization = "none"
    """Unicode normalisation of the text."""
    skip_bad: bool = False
    """Skip and count bad lines and documents instead of stopping at the first."""
    max_document: int = MAX_DOCUMENT
    """Largest document, and largest line of a file, in MiB: a larger one is refused, or skipped with --skip-bad. A process
    takes about 40 times this memory for one."""

    @property
    def text_column(self) -> str:
        """The field of the text, which --columns or --text-field names."""
        return self._table().mapping.get(TEXT, self.text_field)

    def _table(self) -> Columns:
        return Columns((TEXT,), (), "", self.columns)

    def column_problems(self) -> list[str]:
        """Returns a message for columns that are no text=COLUMN, or another one than --text-field."""
        found, column = self._table().problems(), self.text_column
        if self.text_field not in ("text", column):
            found.append(f"--text-field {self.text_field} and --columns text={column}: give one of them")
        return found

    def source(self) -> Source:
        """Opens the input. ValueError with all problems."""
        raise_problems(self.column_problems())
        return open_sources(self.input, SourceSettings(self.text_column, self.skip_bad, max_document=self.max_document))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare(TextInput):
    """Tokenizes documents and packs them into rows of fixed length, ready for training."""

    output: Annotated[str, tyro.conf.arg(metavar="FOLDER")]
    """Folder to write: DIR/train and DIR/validation."""
    vocab: Annotated[str, tyro.conf.arg(metavar="FILE|FOLDER")] = ""
    """Vocabulary: a vocab.txt (WordPiece), a .model file (SentencePiece) or a folder saved by spanjax."""
    train_vocab: Annotated[int, Bounds(100, MOST_PIECES, zero="--vocab")] = 0
    """Instead of --vocab: train a SentencePiece vocabulary of this many pieces from the input."""
    length: Annotated[int, Bounds(MIN_LENGTH, MAX_LENGTH)] = 512
    """Positions a row, [CLS] and [SEP] included."""
    validation: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [...]")] = ()
    """Files or globs of held-out documents."""
    holdout: Annotated[float, Bounds(0, 0.5)] = 0.0
    """Instead of --validation: the share of documents to hold out. A document's content decides, so that copies of it stay
    on one side and more input leaves the others where they are."""
    pack: bool = True
    """Several blocks in a row; --no-pack gives every block a row of its own."""
    max_blocks: Annotated[int, Bounds(1, MOST_BLOCKS)] = 16
    """Most blocks in a row."""
    casing: Annotated[bool | None, tyro.conf.arg(name="lower-case")] = None
    """Lower-case WordPiece text: True, False, or None to guess it from the vocabulary."""
    data_dir: str = ""
    """Folder of TFDS data sets; empty for TFDS's own default."""
    download: bool = False
    """Download and prepare missing TFDS data sets."""
    keep_joiners: bool = True
    """Keep zero-width joiners in scripts that spell with them; --no-keep-joiners removes all."""
    deduplicate: bool = False
    """Skip documents whose content occurred before; the first stays. The input and the files of --validation are
    deduplicated separately. Takes about 110 MB of memory a million documents."""
    max_repeats: Annotated[int, Bounds(2, zero="keep all")] = 0
    """Skip blocks in which an n-gram of 1 to 13 tokens occurs this many times or more in a row (OLMo 2 takes 32); 0 keeps
    all. skipped_blocks.jsonl beside the rows lists the first 100 of every shard, and the totals count all."""
    tags: tuple[str, ...] = ()
    """Layers of tagged spans to store with the tokens, for masking them: entities, noun_phrases, or layers of the
    input's own; at most 3."""
    annotator: str = ""
    """Source of tagged spans: given (the field "spans" of JSON-lines) or spacy:MODEL; empty takes given if the
    first documents have spans, else spacy:en_core_web_sm."""
    max_documents: OrAll = 0
    """Stop after this many documents of the input; 0 takes all."""
    runner: Literal["local", "beam"] = "local"
    """local: the cores of this machine. beam: Apache Beam, for Dataflow, Flink or Spark; its workers need spanjax, the
    input and a folder for the output that all of them share. The rows are the same."""
    beam_options: str = ""
    """Options for Beam's own command line, in quotes: "--runner=FlinkRunner --flink_master=HOST:PORT". Without any, Beam
    runs in this process."""
    workers: Workers = 0
    """Processes of the local runner; 0 takes one for every core. The rows are the same for every number."""
    portion: Annotated[int, Bounds(1, zero="a number by the size of the input")] = 0
    """Characters per shard; 0 derives the number from the size of the input (1 to 64 million). Every worker takes about 10
    bytes of memory a character."""
    seed: int = 0
    """Seed for sampling the sentences of --train-vocab if there are very many."""
    overwrite: bool = False
    """Replace a finished output folder, and throw away unfinished work of other settings."""


def counted(sentences: Iterable[str], progress: Progress) -> Iterator[str]:
    """Yields sentences that a vocabulary learns from, and displays their number; after the last one the training begins."""
    number = 0
    for number, sentence in enumerate(sentences, start=1):  # noqa: B007
        if number % 1000 == 0:
            progress.text = f"{number:,} sentences read"
        yield sentence
    progress.text = f"learning from {number:,} sentences"


def option_problems(options: Prepare) -> list[str]:
    """Problems with the options that do not depend on the input."""
    # Message -> True if it applies: one run reports every broken rule, not the first alone.
    beam = options.runner == "beam"
    rules = {
        "--holdout and --validation are both given: keep one of them": bool(options.holdout and options.validation),
        "--vocab and --train-vocab are both given: keep one of them": bool(options.vocab and options.train_vocab),
        "no vocabulary: give --vocab FILE or --train-vocab SIZE": not options.vocab and not options.train_vocab,
        "--lower-case is for --vocab: a vocabulary from --train-vocab is cased": options.train_vocab
        and options.casing is not None,
        "--max-documents is for --runner local: Beam reads all groups at once; cut the input instead": beam
        and options.max_documents,
        "--workers is for --runner local: Beam's own options say how many": beam and options.workers,
        "--beam-options is for --runner beam: leave it out, or add --runner beam": not beam and options.beam_options,
        f"--tags {' '.join(options.tags)}: expected at most {MOST_LAYERS}, each once": len(options.tags) > MOST_LAYERS
        or len(set(options.tags)) < len(options.tags),
        "--annotator without --tags: name the layers to store": options.annotator and not options.tags,
    }
    found = (
        flag_problems(options) + options.column_problems() + [message for message, broken in rules.items() if broken]
    )
    return found + (annotator_problems(options.annotator, options.tags) if options.annotator else [])
