"""Made documents for the tests of coreference: random words, sentences, speakers and clusters."""

import random

from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention, sorted_clusters

WORDS = (
    "red",
    "Anna",
    "sat",
    ".",
    "é",
    "日本",
    "\u200b",
    "x" * 12,
    "ab-c",
    '"',
    "(3",
    "-",
    "_",
    "#end",
    "Mr.",
    "a\u00a0b",
    "|",
)
NAMES = ("nw/made/01/made_0001", "made", "a b); part 1", "", "#1")


def crosses(one: Mention, other: Mention) -> bool:
    """Whether brackets of one cluster cannot hold both: they cross, or one ends with the word at which the other begins."""
    (first, last), (begin, end) = sorted([one, other])
    return first < begin <= last < end


def made_clusters(rng: random.Random, words: int) -> Clusters:
    """Clusters of mentions, each mention in one; mentions of different clusters may cross, those of one do not."""
    clusters: list[list[Mention]] = [[] for _ in range(rng.randint(0, 6))]
    taken = set()
    for _ in range(rng.randint(0, 40) if clusters else 0):
        first = rng.randrange(words)
        mention = first, min(words - 1, first + rng.choice([0, 0, 1, 2, 5, words]))
        cluster = rng.choice(clusters)
        if mention not in taken and not any(crosses(mention, other) for other in cluster):
            taken.add(mention)
            cluster.append(mention)
    return sorted_clusters(clusters)


def made_document(seed: int, longest: int = 12, vocabulary: tuple[str, ...] = WORDS) -> CorefDocument:
    """A document of 1 to 9 sentences of 1 to `longest` words."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, longest) for _ in range(rng.randint(1, 9))]
    sentences = tuple(tuple(rng.choice(vocabulary) for _ in range(length)) for length in lengths)
    speakers = tuple(rng.choice(["", "Anna", "日本"]) for _ in range(sum(lengths)))
    name = rng.choice(NAMES).replace(" ", "_")
    genre = "nw" if name.startswith("nw/") else ""
    return CorefDocument(name, rng.choice([0, 7, 123]), sentences, speakers, made_clusters(rng, sum(lengths)), genre)
