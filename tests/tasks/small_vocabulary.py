"""Small vocabularies for the tests of tasks, and the arguments of a run that fits a few examples in seconds."""

import pathlib
import string

from spanjax.data.vocab.base import SPECIAL_PIECES
from spanjax.data.vocab.loading import WordPieceVocabulary, save_vocabulary
from tests.running import TINY

WORDS = (
    "red",
    "blue",
    "cat",
    "dog",
    "sat",
    "Anna",
    "Bonn",
    "IBM",
    "works",
    "for",
    "lives",
    "in",
    "born",
    "the",
    "at",
    ".",
)


def small_wordpiece(unused: int = 40) -> WordPieceVocabulary:
    """Letters, digits, some words and `unused` pieces of that name."""
    letters = string.ascii_letters + string.digits
    pieces = [*SPECIAL_PIECES, *(f"[unused{n}]" for n in range(1, unused + 1)), *WORDS, *"-,()'"]
    return WordPieceVocabulary([*pieces, *letters, *(f"##{letter}" for letter in letters)], lower_case=False)


def fit_arguments(config: str, file: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """A run of the config that learns the examples of `file` by heart and is scored on them; `folder` is for the vocabulary
    and the work directory. An epoch has the file a hundred times, as every epoch is scored and saved."""
    save_vocabulary(small_wordpiece(), folder / "vocabulary")
    learn = [
        "--optimizer.learning-rate=0.003",
        "--encoder.initializer-std=0.1",
        "--encoder.dropout=0",
        "--encoder.attention-dropout=0",
    ]
    sizes = ["--encoder.hidden-size=32", "--encoder.layers=1", "--encoder.intermediate-size=64", "--batch-size=16"]
    return [
        f"--config={config}",
        *(word for word in TINY if word.split("=")[0] not in {each.split("=")[0] for each in sizes}),
        *sizes,
        *learn,
        f"--objective.vocabulary={folder / 'vocabulary'}",
        "--train",
        *([str(file)] * 100),
        f"--dev={file}",
        f"--workdir={folder / 'run'}",
        "--objective.length=32",
        "--objective.epochs=1",
    ]
