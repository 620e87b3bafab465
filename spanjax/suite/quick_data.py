"""Data of the quick suite, built so that words alone do not tell the answers.

A random encoder passes on which words it read, so an ordinary linear probe on it is far above the majority. Here items of tags,
entities and relations are divided by their words: no word of training is a word of the report. Of sentences, those count on
which a bag of words is right as often as wrong. What is left needs a representation that relates words to each other.
"""

import collections
import hashlib
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from spanjax.bounds import raise_problems
from spanjax.data.sources.tables import kind_of, read_lines, read_records
from spanjax.scoring.entities import spans as spans_of_tags
from spanjax.tasks.glue import Glue
from spanjax.tasks.ner import Ner
from spanjax.tasks.relation import Relation

TRAINED, CHOSEN = 0.5, 0.4
"""Share of the words that training may have; share of the items with none of these on which the penalty is chosen."""
LONGEST = 60  # words of a sentence: within the positions of small encoders
OF_A_WORD = 2  # occurrences of a word among the tags: frequent ones would be most items
_LETTERS = re.compile(r"[^\W\d_]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
CharacterSpan = tuple[int, int]


class Item(NamedTuple):
    """One decision of a probe."""

    text: int
    """Index of its text."""
    spans: tuple[CharacterSpan, ...]
    """Characters whose vectors the probe reads, one after the other; none: the vector of the text."""
    label: str
    words: tuple[str, ...]
    """Words that decide its part, in lower case; none: the text itself does."""


class ProbeData(NamedTuple):
    """A probe's texts and items, the same for every encoder and seed."""

    texts: list[str]
    items: list[Item]
    first_piece: bool = False
    """Read the first piece of a span, which says less of its ending than all of them."""

    def reads_as(self, other: "ProbeData") -> bool:
        """True if its vectors are those of the other: only labels differ."""
        mine, theirs = ([item[:2] for item in data.items] for data in (self, other))
        return self.texts == other.texts and self.first_piece == other.first_piece and mine == theirs


class Pairs(NamedTuple):
    """Sentence pairs with a similarity, or a good and a bad sentence."""

    first: list[str]
    second: list[str]
    scores: list[float]


class Passage(NamedTuple):
    """Words of held-out text, of which some are hidden."""

    words: tuple[str, ...]
    first: int
    """First hidden word."""
    hidden: int
    """Number of hidden words."""
    band: str
    """Frequency of the rarest hidden word."""


def share_of(seed: int | str, key: str) -> float:
    """Maps a key to a number in [0, 1), uniform over keys and other for every seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}\x00{key}".encode("utf-8", "surrogatepass")).digest()[:7]) / 2**56


def part_of(seed: int, words: Iterable[str], place: int) -> str | None:
    """Returns `train` where all words are of training, `choose` or `report` where none is, by the item's place; None between."""
    found = {share_of(seed, word) < TRAINED for word in words}
    if len(found) > 1:
        return None
    return "train" if found.pop() else "choose" if share_of(seed, f"place {place}") < CHOSEN else "report"


def sampled(values: Sequence[Any], most: int) -> list[Any]:
    """Takes at most so many values, evenly chosen by a hash of their place, in their order."""
    chosen = sorted(range(len(values)), key=lambda place: share_of("sample", str(place)))[:most]
    return [values[place] for place in sorted(chosen)]


def _examples(task: Any, files: Sequence[pathlib.Path]) -> list[Any]:
    found, problems = [], []
    for file in files:
        read = task.read(file)
        # a bad line costs its sentence, not the suite; a file of another kind has nothing else
        found += read
        problems += read.problems[:1] if not read else []
    raise_problems(problems or ([] if found else [f"{', '.join(map(str, files))}: no examples"]))
    return [each for each in found if task.is_labelled(each)]


def _joined(words: Sequence[str]) -> tuple[str, list[CharacterSpan]]:
    """Returns words as a text, and the characters of each."""
    ends = list(itertools.accumulate(len(word) + 1 for word in words))
    return " ".join(words), [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]


def _columns(file: pathlib.Path, column: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yields words and the values of a column, sentence by sentence."""
    words, values = list[str](), list[str]()
    for _, line in read_lines(file):
        columns = line.split()
        if len(columns) > max(column, -column - 1) and not line.startswith("-DOCSTART-"):
            words.append(columns[0])
            values.append(columns[column])
        elif words:
            yield words, values
            words, values = [], []
    if words:
        yield words, values


def tags(files: Sequence[pathlib.Path], most: int, column: int = 1) -> ProbeData:
    """Tags of words: part of speech in the second column of CoNLL-2003, chunks in the third. At most two occurrences of each word
    count."""
    sentences = [each for file in files for each in _columns(file, column) if len(each[0]) <= LONGEST]
    texts, items, seen = list[str](), list[Item](), collections.Counter[str]()
    for words, values in sampled(sentences, most):
        text, places = _joined(words)
        texts.append(text)
        for word, value, place in zip(words, values, places, strict=True):
            key = word.lower()
            # the place of the first word alone tells much of its tag
            if _LETTERS.fullmatch(word) and place[0] and seen[key] < OF_A_WORD:
                seen[key] += 1
                items.append(Item(len(texts) - 1, (place,), value, (key,)))
    raise_problems([] if items else [f"{', '.join(map(str, files))}: no words with tags in column {column + 1}"])
    return ProbeData(texts, items, first_piece=True)


def entities(files: Sequence[pathlib.Path], most: int) -> ProbeData:
    """Types of given entities; all words of an entity decide its part."""
    texts, items, seen = list[str](), list[Item](), collections.Counter[str]()
    examples = [each for each in _examples(Ner(), files) if len(each.words) <= LONGEST]
    for example in sampled(examples, most):
        text, places = _joined(example.words)
        found = spans_of_tags(example.tags or ())
        for kind, first, behind in found:
            words = tuple(word.lower() for word in example.words[first:behind] if _LETTERS.search(word))
            name = " ".join(words)
            seen[name] += 1
            if words and seen[name] <= OF_A_WORD:
                span = (places[first][0], places[behind - 1][1])
                items.append(Item(len(texts), (span,), kind, words))
        texts.append(text)
    return ProbeData(texts, items)


def relations(files: Sequence[pathlib.Path], most: int) -> ProbeData:
    """Relations of two marked entities; the last words of both decide the part."""
    texts, items = list[str](), list[Item]()
    examples = [each for each in _examples(Relation(marking="markers"), files) if len(each.words) <= LONGEST]
    for example in sampled(examples, most):
        text, places = _joined(example.words)
        spans = tuple((places[first][0], places[behind - 1][1]) for first, behind in example.spans)
        heads = tuple(example.words[behind - 1].lower() for _, behind in example.spans)
        items.append(Item(len(texts), spans, str(example.label), heads))
        texts.append(text)
    return ProbeData(texts, items)


def sentences(files: Sequence[pathlib.Path], most: int) -> ProbeData:
    """Labelled sentences: CoLA where a folder of that name holds the file, else a user's own or SST-2."""
    cola = any(parent.name == "CoLA" for file in files for parent in file.parents)
    found = _examples(Glue(task="CoLA" if cola else "own"), files)
    chosen = sampled([each for each in found if len(each.first.split()) <= LONGEST and each.second is None], most)
    raise_problems([] if chosen else [f"{files[0]}: no single sentences; expected `sentence` and `label`"])
    return ProbeData([each.first for each in chosen], [Item(n, (), str(e.label), ()) for n, e in enumerate(chosen)])


def orders(files: Sequence[pathlib.Path], most: int) -> ProbeData:
    """Sentences of held-out text, in half of which two neighbours are exchanged: is one as it was written?

    The bigram shift of Conneau et al., 2018. The same words are in either order, so no bag of words tells it. Only words of
    small letters are exchanged, and not the first or the last one.
    """
    texts, items = list[str](), list[Item]()
    for number, words in enumerate(sampled(_sentences_of(_texts_of(files), 8, 25), most)):
        movable = [_LETTERS.fullmatch(word) is not None and word == word.lower() for word in words]
        places = [
            place
            for place in range(1, len(words) - 2)
            if movable[place] and movable[place + 1] and words[place] != words[place + 1]
        ]
        if not places:
            continue
        place = places[int(share_of("exchanged", str(number)) * len(places))]
        exchanged = share_of("exchange", str(number)) < 0.5
        if exchanged:
            words = [*words[:place], words[place + 1], words[place], *words[place + 2 :]]
        items.append(Item(len(texts), (), "exchanged" if exchanged else "written", ()))
        texts.append(" ".join(words))
    raise_problems([] if items else [f"{', '.join(map(str, files))}: no sentences of 8 to 25 words in `text`"])
    return ProbeData(texts, items)


def _texts_of(files: Sequence[pathlib.Path]) -> list[str]:
    """The `text` of every record."""
    return [str(record.get("text", "")) for file in files for _, record, _ in read_records(file) if record]


def _sentences_of(texts: Sequence[str], least: int, most: int) -> list[list[str]]:
    """Words of the sentences of so many words."""
    found = [part.split() for text in texts for line in text.split("\n") for part in _SENTENCE.split(line)]
    return [words for words in found if least <= len(words) <= most]


def similarity(files: Sequence[pathlib.Path], most: int) -> Pairs:
    """Pairs of sentences with a similarity, as STS-B has them."""
    found = sampled(_examples(Glue(task="STS-B"), files), most)
    return Pairs([e.first for e in found], [str(e.second) for e in found], [float(str(e.label)) for e in found])


def minimal_pairs(files: Sequence[pathlib.Path], most: int) -> dict[str, Pairs]:
    """Good and bad sentences by phenomenon: BLiMP's lines with `sentence_good` and `sentence_bad`, by their `UID` or the file."""
    found: dict[str, Pairs] = {}
    for file in files:
        for place, record, problem in read_records(file):
            good, bad = ((record or {}).get(f"sentence_{name}") for name in ("good", "bad"))
            if not isinstance(good, str) or not isinstance(bad, str) or good == bad:
                raise ValueError(f"{place}: {problem or 'expected two different `sentence_good` and `sentence_bad`'}")
            name = str((record or {}).get("UID") or file.name.removesuffix(kind_of(file)))
            pairs = found.setdefault(name, Pairs([], [], []))
            if len(pairs.first) < most:
                pairs.first.append(good)
                pairs.second.append(bad)
    raise_problems([] if found else [f"{', '.join(map(str, files))}: no pairs of sentences"])
    return found


BANDS = ((100, "top 100"), (1000, "top 1,000"))
RARER = "rarer"


def passages(files: Sequence[pathlib.Path], most: int, words_around: int = 40) -> list[Passage]:
    """Passages of held-out text with one word hidden, or two or three, as many of each; bands are ranks of words in the files.

    Hidden words are of letters alone; the rarest one gives the band.
    """
    texts = _texts_of(files)
    counts = collections.Counter(word.lower() for text in texts for word in text.split() if _LETTERS.fullmatch(word))
    ranks = {word: rank for rank, (word, _) in enumerate(sorted(counts.items(), key=lambda each: (-each[1], each[0])))}
    found = list[Passage]()
    for number, words in enumerate(sampled(_sentences_of(texts, 12, words_around), 2 * most)):
        hidden = 1 if number % 2 == 0 else 2 + number // 2 % 2
        # the first and last words of a sentence are predicted from one side alone
        places = [
            place
            for place in range(1, len(words) - hidden)
            if all(_LETTERS.fullmatch(word) for word in words[place : place + hidden])
        ]
        if not places:
            continue
        first = places[int(share_of("hidden", str(number)) * len(places))]
        rank = max(ranks[word.lower()] for word in words[first : first + hidden])
        band = next((name for end, name in BANDS if rank < end), RARER)
        found.append(Passage(tuple(words), first, hidden, band))
    raise_problems(
        [] if found else [f"{', '.join(map(str, files))}: no sentences of 12 to {words_around} words in `text`"]
    )
    return found[:most]
