"""Wrong inputs of `spanjax.prepare`: options, text, vocabularies, folders of rows."""

import bz2
import functools
import gzip
import json
import lzma
from collections.abc import Callable
from typing import Any

from tests.bad_inputs import Case, World

rows = functools.partial(Case, "prepare rows")
vocab = functools.partial(Case, "prepare vocab")
check = functools.partial(Case, "prepare check-vocab")
show = functools.partial(Case, "prepare show")
stats = functools.partial(Case, "prepare stats")
ngrams = functools.partial(Case, "prepare ngrams")

TEXT = "One sentence stands here. Another one follows it.\n\n" * 40
WHOLE = bytes(range(256)) * 300


def text(name: str, content: str | bytes, *more: str) -> Callable[[World], list[Any]]:
    """Preparing rows from a file of this content."""
    return lambda world: world.prepare(*more, input=world.write(name, content))


def options(*more: str, **changed: Any) -> Callable[[World], list[Any]]:
    """Preparing rows with other options."""
    return lambda world: world.prepare(*more, **changed)


def vocabulary(name: str, content: str | bytes) -> Callable[[World], list[Any]]:
    """Preparing rows with a vocabulary file of this content."""
    return lambda world: world.prepare(train_vocab=None, vocab=world.write(name, content))


def taken(name: str, output: str) -> Callable[[World], list[Any]]:
    """Preparing rows where a file of the user lies."""

    def made(world: World) -> list[Any]:
        world.write(name, "mine")
        return world.prepare(output=world.here / output)

    return made


def trained(*more: str, output: str = "pieces") -> Callable[[World], list[Any]]:
    """Training a vocabulary."""
    return lambda world: ["--input", world.corpus, "--output", world.here / output, *more]


def gzip_cut(world: World) -> list[Any]:
    """A .gz file without its end."""
    return world.prepare(input=world.write("text.txt.gz", gzip.compress(TEXT.encode(), mtime=0)[:-20]))


def xz_changed(world: World) -> list[Any]:
    """An .xz file with bytes of another."""
    content = lzma.compress(TEXT.encode())
    return world.prepare(input=world.write("text.txt.xz", content[:40] + b"\0\0\0\0" + content[44:]))


ROW = '{"text": "One sentence stands here."}\n'
UNIGRAM = json.dumps({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}})

DATA_CASES = (
    Case("prepare", "a command that is none", ("no command 'rowz'", "expected one of rows"), lambda world: ["rowz"]),
    rows("a misspelt option", ("--lenght", "--length"), options("--lenght", "64")),
    rows("no output", ("--output",), options(output=None)),
    rows("a word where a number belongs", ("--length", "long", "int"), options(length="long")),
    rows("five options out of range at once",
         ("--length is 3: expected", "--max-blocks is 0: expected", "--workers is -1: expected", "--holdout is 0.9: expected",
          "--train-vocab is 5: expected at least 100"),
         options(length=3, max_blocks=0, workers=-1, holdout=0.9, train_vocab=5)),
    rows("input, vocabulary and a length wrong at once", ("nowhere.txt: no such file", "none.txt: no such file",
         "--length is 3"), options(input="nowhere.txt", train_vocab=None, vocab="none.txt", length=3)),
    rows("two vocabularies", ("--vocab and --train-vocab", "keep one"), options(vocab="x.txt")),
    rows("no vocabulary", ("no vocabulary", "--vocab FILE or --train-vocab SIZE"), options(train_vocab=None)),
    rows("a folder as input", ("a folder, expected files", "/*"),
         lambda world: world.prepare(input=world.write("texts/a.txt", TEXT).parent)),
    rows("an empty file", ("empty.txt", "the file is empty"), text("empty.txt", b"")),
    rows("a file without text", ("blank.txt", "holds no text", "remove it"), text("blank.txt", "\n \n\n")),
    rows("text that is not UTF-8", ("old.txt:3", "not UTF-8", "iconv", "--skip-bad"),
         text("old.txt", b"One.\n\nCaf\xe9 is here.\n")),
    rows("a line that is too long", ("long.txt:1", "more than 1 MiB", "--max-document", "--skip-bad"),
         text("long.txt", "x" * (2 << 20), "--max-document", "1")),
    rows("JSON lines with a bad line", ("bad.jsonl:2", "not JSON", "--skip-bad"), text("bad.jsonl", ROW + '{"text": \n'),
         library=r"(?<=not JSON \().*?(?=\); )"),
    rows("JSON lines without the field", ("other.jsonl:1", "['body']", "--columns text=body"),
         text("other.jsonl", '{"body": "One."}\n')),
    rows("JSON lines with spans outside of the text", ("spans.jsonl:1", "[2, 99]", "END <= 4", "--skip-bad"),
         text("spans.jsonl", '{"text": "One.", "spans": {"entities": [[2, 99]]}}\n')),
    rows("a .gz file cut short", ("text.txt.gz", "damaged", "get it again"), gzip_cut, library=r"(?<=damaged \().*?(?=\); )"),
    rows("an .xz file that is damaged", ("text.txt.xz", "damaged", "get it again"), xz_changed,
         library=r"(?<=damaged \().*?(?=\); )"),
    rows("a .bz2 file that is none", ("text.txt.bz2", "damaged", "get it again"),
         text("text.txt.bz2", bz2.compress(WHOLE)[:50] + b"x" * 50), library=r"(?<=damaged \().*?(?=\); )"),
    rows("a .zst file that is none", ("text.txt.zst", "damaged", "get it again"), text("text.txt.zst", b"x" * 99),
         library=r"(?<=damaged \().*?(?=\); )"),
    rows("a Parquet file that is none", ("table.parquet", "damaged", "get it again"), text("table.parquet", b"x" * 99),
         library=r"(?<=damaged \().*?(?=\); )"),
    rows("an archive as input", ("texts.tar.gz", "unpack the archive"), text("texts.tar.gz", b"x")),
    rows("a scheme that is none", ("nowhere://a.txt", "no filesystem", "gs://"), options(input="nowhere://a.txt"),
         library=r"(?<=nowhere:// \().*?(?=\); )"),
    rows("a data set that does not exist", ("tfds:nowhere", "--data-dir"),
         lambda world: world.prepare(input="tfds:nowhere@train", data_dir=world.here),
         library=r"(?<=expected ).*"),
    rows("a vocab.txt without specials", ("vocab.txt", "[MASK]"), vocabulary("vocab.txt", "a\nb\n")),
    rows("an empty .model file", ("pieces.model: a SentencePiece model without pieces", "give the .model file"),
         vocabulary("pieces.model", b"")),
    rows("a tokenizer.json of many brackets", ("tokenizer.json", "more than 100 deep", "expected a tokenizer.json"),
         vocabulary("tokenizer.json", "[" * 100_000)),
    rows("a vocabulary.json of many brackets", ("vocabulary.json: damaged", "more than 100 deep", "save the vocabulary again"),
         lambda world: world.prepare(train_vocab=None, vocab=world.write("saved/vocabulary.json", "[" * 100_000).parent)),
    rows("a vocab.txt that is not UTF-8", ("vocab.txt", "UTF-8"), vocabulary("vocab.txt", b"[PAD]\n\xff\n")),
    rows("a damaged SentencePiece model", ("pieces.model", "SentencePiece"), vocabulary("pieces.model", b"x" * 300),
         library=r"(?<=\.model: ).*?(?=; )"),
    rows("a tokenizer.json without an unknown piece", ("tokenizer.json", "unk_id is null", "set it to"),
         vocabulary("tokenizer.json", UNIGRAM)),
    rows("a fairseq model of an unknown family", ("bpe.model", "tokenizer_class XLMRobertaTokenizer", "found neither"),
         vocabulary("sentencepiece.bpe.model", b"")),
    rows("a tokenizer.json that is not JSON", ("tokenizer.json", "JSON"), vocabulary("tokenizer.json", "{"),
         library=r"(?<=not JSON \().*?(?=\); )"),
    rows("a vocabulary with an ending that is not known", ("pieces.vocab", "give the .model file"),
         vocabulary("pieces.vocab", "a\n")),
    rows("more pieces than the text has", ("100000 pieces", "fewer", "more text"), options(train_vocab=100_000),
         library=r"(?<=sentences: ).*?(?= Ask)"),
    rows("an output that is there", ("out exists already", "--overwrite"), taken("out/mine", "out")),
    rows("an output that is a file", ("out exists already", "--overwrite"), taken("out", "out")),
    rows("an output below a file", ("file/out", "file is a file, expected a folder"), taken("file", "file/out")),
    rows("tags that the input does not have", ("--tags nouns", "['entities']", "--annotator"),
         text("tags.jsonl", '{"text": "One.", "spans": {"entities": [[0, 3]]}}\n', "--tags", "nouns")),
    rows("an annotator that is none", ("magic", "spacy:MODEL"), options(tags="entities", annotator="magic")),
    vocab("options out of range at once",
          ("--size is 5: expected at least 100", "--sentences is 0", "--character-coverage is 2.0", "--min-frequency is 0"),
          trained("--kind", "wordpiece", "--size", "5", "--sentences", "0", "--character-coverage", "2",
                  "--min-frequency", "0")),
    vocab("more pieces than memory holds",
          ("--size is 1000000000: expected at least 100 and at most 2,000,000", "--sentences is a number of 31 digits"),
          trained("--kind", "wordpiece", "--size", "1000000000", "--sentences", str(10**30))),
    vocab("a kind that is none", ("--kind", "wordpeace", "wordpiece"), trained("--kind", "wordpeace", "--size", "200")),
    vocab("an ending of another kind", ("pieces.model", "wordpiece", ".txt"),
          trained("--kind", "wordpiece", "--size", "200", output="pieces.model")),
    vocab("more pieces than the text has", ("100000 pieces", "fewer", "more text"),
          trained("--kind", "sentencepiece", "--size", "100000"), library=r"(?<=sentences: ).*?(?= Ask)"),
    vocab("an output below a file", ("file/pieces", "file is a file, expected a folder"),
          lambda world: [world.write("file", "mine"), *trained("--kind", "wordpiece", "--size", "200",
                                                               output="file/pieces")(world)][1:]),
    check("a vocabulary and input that do not exist", ("none.txt", "nowhere.txt", "--documents is -1"),
          lambda world: ["--input", "nowhere.txt", "--vocab", "none.txt", "--documents", "-1"]),
    show("rows that do not exist", ("nowhere", "no such folder", "spanjax.prepare"), lambda world: ["nowhere"]),
    show("a row beyond the last", ("--first 999999", "expected 0 to"), lambda world: [world.rows, "--first", "999999"],
         library=r"(?<=expected 0 to )\d+|(?<=there are )\d+"),
    show("a masking that is none", ("--masking", "'spans'", "geometric"), lambda world: [world.rows, "--masking", "spans"]),
    stats("files and numbers wrong at once", ("--png figure.txt", ".png", "--rows -1", "--epoch is -1"),
          lambda world: [world.rows, "--png", "figure.txt", "--rows", "-1", "--epoch", "-1"]),
    stats("a config that does not exist", ("none.py: no such file", "--list"),
          lambda world: [world.rows, "--config", "none.py"]),
    ngrams("settings out of range and input that is not there",
           ("--most-words is 1", "--more-than is -1", "--memory-mb is 0", "--workers is -2", "nowhere.txt: no such file"),
           lambda world: ["--input", "nowhere.txt", "--output", world.here / "ngrams.txt", "--most-words", "1",
                          "--more-than", "-1", "--memory-mb", "0", "--workers", "-2"]),
    ngrams("text without words", ("the input has no words",),
           lambda world: ["--input", world.write("marks.txt", "... !"), "--output", world.here / "ngrams.txt"]),
)  # fmt: skip
