"""Recall of a coreference response by class of mention (pronouns, proper names, nominals) and by width.

A rule, not a parser, derives the class from the words of a mention: `pronoun` where all words are in the list of
pronouns; else, of its words that are no pronouns and have a letter, `name` where one that does not begin its sentence
is capitalised, or where all are; else `nominal`. So a capitalised noun that begins a sentence alone ("Dogs") is a name, and
so is a noun phrase with a name inside ("the mayor of Paris").
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from spanjax.scoring.checks import counted, raise_problems
from spanjax.scoring.coref.mention_chains import Chains, Clusters, Mention, chains

PRONOUNS = frozenset(
    (
        *("i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "ourselves"),
        *("you", "your", "yours", "yourself", "yourselves", "he", "him", "his", "himself"),
        *("she", "her", "hers", "herself", "it", "its", "itself", "they", "them", "their", "theirs", "themselves"),
        *("this", "that", "these", "those", "who", "whom", "whose", "which", "one", "oneself", "'s", "'em"),
        *("thou", "thee", "thy", "thine", "thyself", "ye", "themself"),
    )
)
CLASSES = ("pronoun", "name", "nominal")
WIDTHS = (1, 2, 4, 8, 16)


@dataclasses.dataclass
class Recall:
    """Counts of the key's mentions or antecedents, and of those found."""

    found: int = 0
    total: int = 0

    @property
    def percent(self) -> float:
        """0 where there are none."""
        return 100.0 * self.found / self.total if self.total else 0.0

    def add(self, found: bool) -> None:
        """Counts one more."""
        self.found += found
        self.total += 1


@dataclasses.dataclass(frozen=True)
class Classes:
    """Recall of the key's mentions, each counted once a document.

    `mentions` and `antecedents` have the classes in CLASSES, `widths` words ("1", "2", "3-4", ..., "17+"). Every mention but the
    first of its key cluster has an antecedent, which is right where the mention before it in its response cluster is of its
    key cluster.
    """

    mentions: Mapping[str, Recall]
    antecedents: Mapping[str, Recall]
    widths: Mapping[str, Recall]


def mention_class(words: Sequence[str], begins: bool, pronouns: frozenset[str] = PRONOUNS) -> str:
    """The class of a mention's words; `begins`: the first of them begins its sentence."""
    if all(word.lower() in pronouns for word in words):
        return "pronoun"
    lettered = [word.lower() not in pronouns and any(map(str.isalpha, word)) for word in words]
    capital = [word[:1].isupper() for word in words]
    inside = range(1 if begins else 0, len(words))
    all_capital = any(lettered) and all(big for big, counts in zip(capital, lettered, strict=True) if counts)
    if all_capital or any(lettered[place] and capital[place] for place in inside):
        return "name"
    return "nominal"


def _right_antecedents(document: Chains) -> set[int]:
    """Mentions whose nearest earlier mention in their response cluster is of their key cluster."""
    right = set()
    for cluster in document.response:
        ordered = sorted(set(cluster), key=document.mentions.__getitem__)
        for before, mention in itertools.pairwise(ordered):
            place = document.key_of.get(mention)
            if place is not None and document.key_of.get(before) == place:
                right.add(mention)
    return right


def _width_names(bounds: Sequence[int]) -> list[str]:
    lows = [1, *(bound + 1 for bound in bounds)]
    names = [str(low) if low == high else f"{low}-{high}" for low, high in zip(lows, bounds, strict=False)]
    return [*names, f"{lows[-1]}+"]


def _problems(sentences: Sequence[Sequence[str]], mentions: Iterable[Mention], place: int) -> list[str]:
    if any(isinstance(sentence, str) for sentence in sentences):
        return [f"document {place} (from 0) has words for sentences: expected a list of words for each sentence"]
    words = sum(map(len, sentences))
    outside = [mention for mention in mentions if mention[1] >= words]
    return counted(
        outside, f"mentions of document {place} (from 0) end behind its {words} words", "expected its clusters"
    )


def classes(
    documents: Iterable[tuple[Sequence[Sequence[str]], Clusters, Clusters]],
    *,
    pronouns: Iterable[str] = PRONOUNS,
    widths: Sequence[int] = WIDTHS,
) -> Classes:
    """Recall by class and by width over documents, given as (sentences, key, response), sentences as lists of words.

    pronouns: lower-cased words; widths: the largest number of words of each row of `widths`, rising. ValueError on
    mentions outside of the document, or words where sentences are expected.
    """
    known, names = frozenset(pronouns), _width_names(widths)
    found = Classes(*({name: Recall() for name in rows} for rows in (CLASSES, CLASSES, names)))
    for place, (sentences, key, response) in enumerate(documents):
        document = chains(key, response)
        # `chains` numbers the key's mentions first, so their indices in this slice are their numbers
        gold = document.mentions[: document.in_key]
        raise_problems("recall by class", _problems(sentences, gold, place))
        words = [word for sentence in sentences for word in sentence]
        starts = {0, *itertools.accumulate(map(len, sentences))}
        right = _right_antecedents(document)
        first = {min(cluster, key=document.mentions.__getitem__) for cluster in document.key}
        for mention, (begin, last) in enumerate(gold):
            name = mention_class(words[begin : last + 1], begin in starts, known)
            there = mention in document.response_of
            found.mentions[name].add(there)
            found.widths[names[bisect.bisect_left(widths, last - begin + 1)]].add(there)
            if mention not in first:
                found.antecedents[name].add(mention in right)
    return found
