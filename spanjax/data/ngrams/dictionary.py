"""The n-gram dictionary of span fine-tuning (Bao et al., 2021): definition of words, file format and look-up.

The file is text: a first line `# n-grams {settings as JSON}`, then one n-gram a line, its words with blanks between them, a
tab, its count. The most frequent come first, so that the first lines are the dictionary of a smaller size.

Shapes: W words of a sentence, N most words of an n-gram, K n-grams.
"""

import dataclasses
import functools
import json
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Annotated, Any, Literal, NamedTuple

import numpy as np

from spanjax.bounds import AtLeast0, Bounds, OrAll, raise_problems, range_problems
from spanjax.data.sources.cleaning import Normalization
from spanjax.json_files import parse_json

HEADER = "# n-grams "
LEAST_WORDS, MOST_WORDS = 2, 16
_VERSION, _SHOWN = 1, 5
_PART = re.compile(r"\S+")
Punctuation = Literal["apart", "attached"]


@dataclasses.dataclass(frozen=True)
class NgramSettings:
    """Definition of n-grams and the choice of those to keep; the defaults are the paper's."""

    most_words: Annotated[int, Bounds(LEAST_WORDS, MOST_WORDS)] = 5
    """Longest n-gram. The shortest has two words: a word on its own is a span without a dictionary."""
    more_than: AtLeast0 = 10
    """Keep n-grams that occur more often than this. The released code keeps those that occur 10 times: 9 (D25)."""
    most_ngrams: OrAll = 0
    """Most n-grams to keep, the most frequent first; 0 keeps all. The paper's best sizes on two tasks: 20,000 to 200,000."""
    lower_case: bool = True
    """Lower-case words, here and when a sentence is looked up, as the released code does."""
    punctuation: Punctuation = "apart"
    """apart: punctuation at the ends of a word is a word each; attached: words are the parts between blanks, as in the released
    code, for text whose punctuation stands apart already."""
    with_punctuation: bool = False
    """Count n-grams that hold a word of nothing but punctuation or symbols; the released code skips them."""
    normalization: Normalization = "none"
    """Unicode normalisation of the text."""


class Words(NamedTuple):
    """The words of a text and the character of the text at which each begins."""

    words: list[str]
    start_W: np.ndarray  # int32


class Ngram(NamedTuple):
    """One line of a dictionary."""

    words: tuple[str, ...]
    count: int


@functools.lru_cache(1 << 16)
def _ends_apart(part: str) -> tuple[str, ...]:
    """Words of a part between two blanks, the marks at both of its ends as words of their own; joined they are the part."""
    first, last = 0, len(part)
    while first < last and _is_mark(part[first]):
        first += 1
    while last > first and _is_mark(part[last - 1]):
        last -= 1
    return (*part[:first], *([part[first:last]] if first < last else []), *part[last:])


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def split_words(text: str, settings: NgramSettings) -> list[str]:
    """The words of a cleaned text, lower-cased where the settings say so."""
    parts = (text.lower() if settings.lower_case else text).split()
    if settings.punctuation == "attached":
        return parts
    words: list[str] = []
    for part in parts:
        if part[0].isalnum() and part[-1].isalnum():
            words.append(part)
        else:
            words.extend(_ends_apart(part))
    return words


def find_words(text: str, settings: NgramSettings) -> Words:
    """The words of a cleaned text as `split_words` gives them, and where in `text` (not lower-cased) each begins."""
    words: list[str] = []
    starts: list[int] = []
    for match in _PART.finditer(text):
        place = match.start()
        for word in _ends_apart(match.group()) if settings.punctuation == "apart" else (match.group(),):
            words.append(word.lower() if settings.lower_case else word)
            starts.append(place)
            place += len(word)
    return Words(words, np.array(starts, np.int32))


def is_punctuation(word: str) -> bool:
    """True if every character is punctuation or a symbol (Unicode categories P and S)."""
    return all(map(_is_mark, word))


def write_ngrams(
    file: IO[bytes], settings: NgramSettings, ngrams: Iterable[Ngram], about: Mapping[str, Any] | None = None
) -> None:
    """Writes a dictionary into an open file; `about` is added to the settings in its first line."""
    header = {"version": _VERSION, **dataclasses.asdict(settings), **(about or {})}
    file.write(f"{HEADER}{json.dumps(header, ensure_ascii=False)}\n".encode())
    for words, count in ngrams:
        file.write(f"{' '.join(words)}\t{count}\n".encode())


class _Level(NamedTuple):
    """The nodes of the trie at one depth."""

    keys: np.ndarray  # uint64, rising: number of the node above << 32 | number of the word
    whole: np.ndarray  # bool: an n-gram ends here


class NgramDictionary:
    """N-grams by their words: a trie in sorted arrays, 9 bytes a node, and a number for every word."""

    def __init__(self, ngrams: Iterable[Sequence[str]], settings: NgramSettings):
        """`ngrams` as the settings make words of them (lower-cased, say), each of 2 to `most_words` words."""
        self.settings = settings
        self._numbers: dict[str, int] = {}
        rows = [[self._numbers.setdefault(word, len(self._numbers)) for word in words] for words in ngrams]
        self._size = len(rows)
        words_KN = np.full((len(rows), settings.most_words), -1, np.int64)
        for row, numbers in zip(words_KN, rows, strict=True):
            row[: len(numbers)] = numbers
        self._levels = list(_levels(words_KN))

    def __len__(self) -> int:
        """Number of n-grams."""
        return self._size

    def __contains__(self, words: Sequence[str]) -> bool:
        """True if these words are an n-gram of the dictionary."""
        inside = LEAST_WORDS <= len(words) <= self.settings.most_words
        return inside and bool(self.matches(words)[0, len(words) - 1])

    def matches(self, words: Sequence[str]) -> np.ndarray:
        """bool[W, N]: [w, n - 1] is True if the n words that begin at word w are in the dictionary.

        A word on its own always is. Words are lower-cased where the settings say so.
        """
        words = [word.lower() for word in words] if self.settings.lower_case else words
        matched_WN = np.zeros((len(words), self.settings.most_words), bool)
        matched_WN[:, 0] = True
        word_W = np.array([self._numbers.get(word, -1) for word in words], np.int64)
        node_W = word_W
        for depth, level in enumerate(self._levels, start=1):
            node_W, next_W = node_W[:-1], word_W[depth:]
            if not len(level.keys) or not len(next_W):
                break
            known_W = (node_W >= 0) & (next_W >= 0)
            key_W = ngram_keys(np.where(known_W, node_W, 0), np.where(known_W, next_W, 0))
            node_W = np.where(known_W, find_keys(level.keys, key_W), -1)
            matched_WN[: len(node_W), depth] = (node_W >= 0) & level.whole[node_W]
        return matched_WN


def ngram_keys(prefix: np.ndarray, word: np.ndarray) -> np.ndarray:
    """uint64 keys of n-grams: the number of all words but the last, and that of the last; none below 0."""
    return prefix.astype(np.uint64) << np.uint64(32) | word.astype(np.uint64)


def find_keys(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """int64 place of every wanted key in `keys`, which rise; -1 where it is missing."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, place, -1)


def _levels(words_KN: np.ndarray) -> Iterator[_Level]:
    """The levels of the trie from depth 2 on."""
    size_K = np.count_nonzero(words_KN >= 0, axis=1)
    node_K = words_KN[:, 0].copy()
    for depth in range(1, words_KN.shape[1]):
        through = np.flatnonzero(size_K > depth)
        keys, node = np.unique(ngram_keys(node_K[through], words_KN[through, depth]), return_inverse=True)
        node_K[through] = node
        whole = np.zeros(len(keys), bool)
        whole[node_K[size_K == depth + 1]] = True
        yield _Level(keys, whole)


def read_ngrams(path: str | pathlib.Path, most: int = 0) -> NgramDictionary:
    """The dictionary of a file, of its first `most` n-grams (0: all). ValueError lists all problems of the file."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; expected what `python -m spanjax.prepare ngrams` writes")
    problems: list[str] = []
    found: dict[tuple[str, ...], None] = {}
    with open(path, encoding="utf-8", newline="\n") as file:
        try:
            settings = _read_header(path, file.readline(), problems)
            for number, line in enumerate(file, start=2):
                if most and len(found) == most:
                    break
                words = tuple(line.rpartition("\t")[0].split(" "))
                problem = _line_problem(line, words, settings.most_words)
                if problem or words in found:
                    problems.append(f"{path}:{number}: {problem or 'this n-gram stands on an earlier line'}")
                found[words] = None
        except UnicodeDecodeError as error:
            problems.append(f"{path}: not UTF-8 ({error.reason})")
    if problems:
        more = [f"and {len(problems) - _SHOWN:,} lines more"] if len(problems) > _SHOWN else []
        raise ValueError("\n".join([*problems[:_SHOWN], *more, "make the file again, or correct these lines"]))
    return NgramDictionary(found, settings)


def is_dictionary(path: pathlib.Path) -> bool:
    """True if a file begins as `write_ngrams` writes it."""
    with open(path, "rb") as file:
        return file.read(len(HEADER)) == HEADER.encode()


def _read_header(path: pathlib.Path, line: str, problems: list[str]) -> NgramSettings:
    fields = {field.name: type(field.default) for field in dataclasses.fields(NgramSettings)}
    try:
        if not line.startswith(HEADER):
            raise ValueError(f"the line begins {line[:40]!r}")
        header = parse_json(line.removeprefix(HEADER))
        wrong = [name for name, kind in fields.items() if type(header[name]) is not kind]
        if header["version"] != _VERSION or wrong:
            raise ValueError(f"version {header['version']}, wrong values of {wrong}")
        settings = NgramSettings(**{name: header[name] for name in fields})
        raise_problems(range_problems(settings))
        return settings
    except (ValueError, KeyError, TypeError) as error:
        problems.append(f"{path}:1: expected `{HEADER}{{settings}}` of version {_VERSION} ({error})")
        return NgramSettings(most_words=MOST_WORDS)


def _line_problem(line: str, words: tuple[str, ...], most_words: int) -> str:
    count = line.rpartition("\t")[2].removesuffix("\n")
    if "\t" not in line or not (count.isascii() and count.isdigit()) or not all(words):
        return f"{line.rstrip()[:60]!r}: expected words with single blanks between them, a tab and a count"
    if not LEAST_WORDS <= len(words) <= most_words:
        return f"{len(words)} word(s), expected {LEAST_WORDS} to {most_words}"
    return ""
