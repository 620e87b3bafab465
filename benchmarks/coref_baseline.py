"""python -m benchmarks.coref_baseline FILE...: scores of a head-match baseline on documents with known clusters.

Mentions are pronouns, runs of capitalised words, and a determiner with the word behind it and the capitalised ones that follow;
mentions whose last words are equal, letter case aside, are one cluster; a pronoun that is new joins the
nearest other mention before it. It knows nothing but the words.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from spanjax.scoring.coref import percents
from spanjax.scoring.coref.classes import PRONOUNS
from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention, sorted_clusters
from spanjax.tasks.coref.files import read_documents

DETERMINERS = frozenset(
    [
        "a",
        "an",
        "the",
        "this",
        "that",
        "these",
        "those",
        "my",
        "your",
        "his",
        "her",
        "its",
        "our",
        "their",
        "some",
        "any",
        "no",
        "every",
        "each",
    ]
)
LONGEST = 5


def mentions_of(sentence: Sequence[str], start: int) -> list[tuple[Mention, str]]:
    """(mention, its last word in lower case; of a pronoun the word itself) of a sentence whose first word is `start`."""
    found, place = [], 0
    while place < len(sentence):
        word = sentence[place]
        lower = word.lower()
        end = place
        if lower in DETERMINERS and place + 1 < len(sentence) and sentence[place + 1].isalpha():
            end = place + 1
            while end + 1 < len(sentence) and sentence[end + 1][:1].isupper() and end - place < LONGEST:
                end += 1
        elif word[:1].isupper() and word.isalpha() and lower not in PRONOUNS and place:
            while end + 1 < len(sentence) and sentence[end + 1][:1].isupper() and end - place < LONGEST:
                end += 1
        elif lower not in PRONOUNS:
            place += 1
            continue
        found.append(((start + place, start + end), sentence[end].lower()))
        place = end + 1
    return found


def clusters_of(document: CorefDocument) -> Clusters:
    """The baseline's clusters, without singletons."""
    start, all_mentions = 0, []
    for sentence in document.sentences:
        all_mentions += mentions_of(sentence, start)
        start += len(sentence)
    by_head: dict[str, list[Mention]] = {}
    latest = ""
    for mention, head in all_mentions:
        if head in PRONOUNS and head not in by_head and latest:
            by_head[head] = by_head[latest]
        by_head.setdefault(head, []).append(mention)
        latest = head if head not in PRONOUNS else latest
    distinct = {id(cluster): cluster for cluster in by_head.values()}
    return sorted_clusters(cluster for cluster in distinct.values() if len(cluster) > 1)


def main() -> int:
    """Prints the scores over all files; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    documents = [each for path in parser.parse_args().files for each in read_documents(path)]
    gold = [tuple(c for c in each.clusters or () if len(c) > 1) for each in documents]
    found = percents(list(zip(gold, map(clusters_of, documents), strict=True)))
    print(f"{len(documents)} documents, singletons dropped")
    for name, value in found.items():
        print(f"{name:20s}{value:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
