"""Documents with clusters as files: the columns of CoNLL-2012, for the official scorer, and the lines of e2e-coref."""

import json
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from spanjax.bounds import raise_problems
from spanjax.tasks.coref.conll import genre_of
from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention, sorted_clusters

GivenClusters = Iterable[Iterable[Mention]]
_BLANKS = re.compile(r"\s", re.ASCII)


def write_conll(
    path: pathlib.Path, documents: Sequence[CorefDocument], clusters_of_each: Sequence[GivenClusters | None]
) -> None:
    """Writes twelve columns as the official scorer (v8.01) reads them, with these clusters instead of the documents' own.

    Each blank of a word, name or speaker becomes `_`. The scorer counts only the last of equally named documents, so the second
    one of a name and part is written as NAME_2, etc. A mention that is twice in a cluster is written twice. ValueError,
    before anything is written, where a mention lies outside of its document, or where two mentions of a cluster cross or
    share only their end and beginning: brackets cannot tell them apart.
    """
    both = list(zip(documents, clusters_of_each, strict=True))
    problems = [
        f"document {document.name!r}, part {document.part}: {problem}"
        for document, clusters in both
        for problem in _unwritable(sorted_clusters(clusters or ()), len(document.speakers))
    ]
    raise_problems(problems, f"{path}: not written:")
    with open(path, "w", encoding="utf-8", errors="replace", newline="\n") as file:
        for (document, clusters), name in zip(both, _names(documents), strict=True):
            file.writelines(f"{line}\n" for line in _lines(document, name, sorted_clusters(clusters or ())))


def _names(documents: Iterable[CorefDocument]) -> Iterator[str]:
    """The names to write, no two of one part alike."""
    given = [(_BLANKS.sub("_", document.name), document.part) for document in documents]
    taken, written = {*given}, set()
    for name, part in given:
        own, number = name, 2
        while (own, part) in written or (own != name and (own, part) in taken):
            own, number = f"{name}_{number}", number + 1
        written.add((own, part))
        yield own


def writable(clusters: Clusters, fewest: int = 1) -> Clusters:
    """Drops mentions that brackets cannot tell from others of their cluster: of two that cross, or where one begins with the
    last word of the other, the later one; then drops clusters of less than `fewest` mentions."""
    kept = (_nested(cluster)[0] for cluster in clusters)
    return sorted_clusters(cluster for cluster in kept if len(cluster) >= fewest)


def write_writable(
    path: pathlib.Path, documents: Sequence[CorefDocument], clusters_of_each: Sequence[Clusters], fewest: int
) -> int:
    """Writes the `writable` part of the clusters by `write_conll`; returns the number of mentions dropped."""
    kept = [writable(clusters, fewest) for clusters in clusters_of_each]
    write_conll(path, documents, kept)
    return sum(len(cluster) for clusters in clusters_of_each for cluster in clusters) - sum(
        len(cluster) for clusters in kept for cluster in clusters
    )


def _nested(cluster: Iterable[Mention]) -> tuple[list[Mention], list[tuple[Mention, Mention]]]:
    """(mentions that brackets can hold together, pairs of a mention and a dropped one that crosses it)."""
    kept: list[Mention] = []
    crossing: list[tuple[Mention, Mention]] = []
    open_: list[Mention] = []  # mentions around the next one, the outer ones first
    for first, last in sorted(cluster, key=lambda each: (each[0], -each[1])):
        while open_ and open_[-1][1] < first:
            open_.pop()
        if open_ and open_[-1][0] < first and open_[-1][1] < last:
            crossing.append((open_[-1], (first, last)))
            continue
        open_.append((first, last))
        kept.append((first, last))
    return kept, crossing


def _unwritable(clusters: Clusters, words: int) -> Iterator[str]:
    for cluster in clusters:
        outside = {mention for mention in cluster if not 0 <= mention[0] <= mention[1] < words}
        for mention in sorted(outside):
            yield f"mention {mention}: expected words from 0 to {words - 1}"
        for around, mention in _nested([mention for mention in cluster if mention not in outside])[1]:
            yield (
                f"mentions {around} and {mention} of a cluster cross: expected one inside of the other or"
                " apart; write JSON lines, which can hold them"
            )


def _lines(document: CorefDocument, name: str, clusters: Clusters) -> Iterator[str]:
    yield f"#begin document ({name}); part {document.part:03d}"
    coreference = _coreference(clusters, len(document.speakers))
    place = 0
    for sentence in document.sentences:
        for number, word in enumerate(sentence):
            speaker = _BLANKS.sub("_", document.speakers[place]) or "-"
            written = _BLANKS.sub("_", word) or "_"
            columns = [name or "-", str(document.part), str(number), written, *("-", "*", "-", "-", "-"), speaker, "*"]
            yield "\t".join([*columns, coreference[place]])
            place += 1
        yield ""
    yield "#end document"


def _coreference(clusters: Clusters, words: int) -> list[str]:
    """The last column of every word."""
    return ["|".join([*ends, *single, *begins]) or "-" for ends, single, begins in brackets(clusters, words)]


def brackets(
    clusters: Clusters,
    words: int,
    name: Callable[[int, Mention], tuple[str, str]] = lambda own, _: (str(own), str(own)),
) -> list[tuple[list[str], list[str], list[str]]]:
    """(ends, mentions of one word, beginnings) at every word; inner mentions end first and begin last. `name` has the texts
    behind an opening and before a closing bracket, of a cluster's number and a mention."""
    begins: list[list[tuple[int, str]]] = [[] for _ in range(words)]
    single: list[list[str]] = [[] for _ in range(words)]
    ends: list[list[tuple[int, str]]] = [[] for _ in range(words)]
    for number, cluster in enumerate(clusters):
        for first, last in cluster:
            opening, closing = name(number, (first, last))
            if first == last:
                single[first].append(f"({opening})")
            else:
                begins[first].append((-last, f"({opening}"))
                ends[last].append((-first, f"{closing})"))
    both = zip(ends, single, begins, strict=True)
    return [([t for _, t in sorted(end)], sorted(one), [t for _, t in sorted(begin)]) for end, one, begin in both]


def write_jsonl(
    path: pathlib.Path, documents: Sequence[CorefDocument], clusters_of_each: Sequence[GivenClusters | None]
) -> None:
    """Writes the lines of e2e-coref: `doc_key` (NAME_PART), `sentences`, `speakers` and these `clusters` of words instead of
    the documents' own (no such field for None), and `genre` where the name does not imply it."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for document, clusters in zip(documents, clusters_of_each, strict=True):
            speakers = iter(document.speakers)
            record: dict[str, Any] = {
                "doc_key": f"{document.name}_{document.part}",
                "sentences": document.sentences,
                "speakers": [[next(speakers) or "-" for _ in sentence] for sentence in document.sentences],
            }
            if clusters is not None:
                record["clusters"] = sorted_clusters(clusters)
            if document.genre != genre_of(document.name):
                record["genre"] = document.genre
            file.write(json.dumps(record) + "\n")


def write_json(path: pathlib.Path, content: Any) -> pathlib.Path:
    """Writes an object and returns the file."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
