"""The coreference column of CoNLL files, as the official scorer reads it: clusters by document."""

import gzip
import lzma
import pathlib
import re

BRACKETS = (re.compile(r"\((\d+)\)"), re.compile(r"\((\d+)(?!\d*\))"), re.compile(r"(?<![(\d])(\d+)\)"))
Cluster = list[tuple[int, int]]


def read_text(path: pathlib.Path) -> str:
    """A text file, as it is or compressed."""
    openers = {".gz": gzip.open, ".xz": lzma.open}
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        return str(file.read())


def column(line: str) -> str:
    """The last column: behind the last tab, where it may be empty (LitBank), or behind the last blank."""
    return line.rpartition("\t" if "\t" in line else " ")[2]


def read_clusters(cells: list[str]) -> list[Cluster]:
    """Clusters of the cells of a document's words, in the order in which they are met, mentions in that of their ends.

    Of one word the mentions of one word come first, then all that begin, then all that end, each from the left.
    """
    clusters: dict[str, Cluster] = {}
    begun: dict[str, list[int]] = {}
    for place, cell in enumerate(cells):
        single, begin, end = (pattern.findall(cell) for pattern in BRACKETS)
        for name in (*single, *begin, *end):
            clusters.setdefault(name, [])
        for name in single:
            clusters[name].append((place, place))
        for name in begin:
            begun.setdefault(name, []).append(place)
        for name in end:
            clusters[name].append((begun[name].pop(), place))
    assert not any(begun.values()), "a mention does not end"
    return list(clusters.values())


def read_documents(path: pathlib.Path) -> dict[str, list[Cluster]]:
    """Clusters of every document by what its first line says of it."""
    documents: dict[str, list[Cluster]] = {}
    cells: list[str] = []
    name = ""
    for line in read_text(path).splitlines():
        if line.startswith("#begin document"):
            name, cells = line, []
        elif line.startswith("#end document"):
            if name:
                documents[name] = read_clusters(cells)
            name = ""
        elif line.strip() and name:
            cells.append(column(line))
    return documents


def read_sentences(path: pathlib.Path) -> dict[str, list[list[str]]]:
    """Words of every sentence, the fourth column, by what a document's first line says of it."""
    documents: dict[str, list[list[str]]] = {}
    name = ""
    for line in read_text(path).splitlines():
        if line.startswith("#begin document"):
            name = line
            documents[name] = [[]]
        elif not line.strip():
            documents[name].append([])
        elif not line.startswith("#"):
            documents[name][-1].append(line.split("\t")[3])
    return {name: [sentence for sentence in sentences if sentence] for name, sentences in documents.items()}
