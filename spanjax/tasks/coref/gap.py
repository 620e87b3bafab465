"""GAP (Webster et al., 2018): tables of a text, a pronoun and two names; decisions whether the pronoun refers to either.

A document of GAP brings three mentions: the pronoun, the first and the second name, in this order. Its one cluster is the pronoun
with the name that it refers to, or there is none.
"""

import pathlib
from collections.abc import Sequence

from spanjax.data.sources.tables import quoted, read_lines
from spanjax.scoring.coref.gap import GENDERS, Decision
from spanjax.tasks.base import Examples
from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention, sorted_clusters
from spanjax.tasks.coref.text import split_text

COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref")
"""Columns by their names; the tables of GAP have URL behind them."""
_LABELS = {"true": True, "false": False}


def read_gap(path: pathlib.Path, language: str = "en") -> Examples:
    """The documents of a table of GAP; a line that cannot be used is a problem. ValueError where the file cannot be read."""
    examples, header = Examples(), None
    for number, line in read_lines(path):
        cells = line.split("\t")
        if header is None:
            header = cells
            if missing := [name for name in COLUMNS if name not in header]:
                examples.problems.append(
                    f"{path}:{number}: no column {', '.join(missing)}: expected the columns of GAP"
                )
                break
            continue
        if len(cells) != len(header):
            examples.problems.append(
                f"{path}:{number}: {len(cells)} columns: expected {len(header)}, as in the first line"
            )
            continue
        document, problem = _document(dict(zip(header, cells, strict=True)), language)
        examples.take(f"{path}:{number}", document, problem)
    return examples


def _document(row: dict[str, str], language: str) -> tuple[CorefDocument | None, str]:
    text, problems = row["Text"], []
    sentences, offsets = split_text(text, language)
    mentions: list[Mention] = []
    for name in ("Pronoun", "A", "B"):
        start = row[f"{name}-offset"]
        end = int(start) + len(row[name]) if start.isdecimal() else -1
        if end < 0 or not row[name] or text[int(start) : end] != row[name]:
            problems.append(f"`{name}` is {quoted(row[name])} at {start}, which the text lacks there")
            continue
        words = [place for place, (begin, stop) in enumerate(offsets) if begin < end and stop > int(start)]
        mentions.append((words[0], words[-1]))
    if row["Pronoun"].lower() not in GENDERS:
        problems.append(f"`Pronoun` is {quoted(row['Pronoun'])}: expected one of {', '.join(GENDERS)}")
    labels = {name: _LABELS.get(row[f"{name}-coref"].lower()) for name in ("A", "B")}
    if wrong := [name for name, label in labels.items() if label is None]:
        problems.append(f"`{wrong[0]}-coref` is {quoted(row[f'{wrong[0]}-coref'])}: expected TRUE or FALSE")
    if problems:
        return None, "; ".join(problems)
    cluster = [mentions[0], *(mention for mention, name in zip(mentions[1:], labels, strict=True) if labels[name])]
    clusters = sorted_clusters([cluster] if len(cluster) > 1 else [])
    speakers = ("",) * len(offsets)
    return CorefDocument(row["ID"], 0, sentences, speakers, clusters, "", text, offsets, tuple(mentions)), ""


def decision(document: CorefDocument, clusters: Clusters) -> Decision:
    """For both names of a document of GAP: does a mention of the pronoun's cluster name it (`names`)?"""
    if document.mentions is None or len(document.mentions) != len(("pronoun", "A", "B")):
        raise ValueError(f"{document.name} has no pronoun with two names: score GAP on tables of GAP")
    pronoun, *given = document.mentions
    others = {mention for cluster in clusters if pronoun in cluster for mention in cluster} - {pronoun}
    words = document.words
    first, second = (any(names(mention, name, words) for mention in others) for name in given)
    return first, second


def names(mention: Mention, name: Mention, words: Sequence[str]) -> bool:
    """True for a mention that is the name or a part of it, or the name with further capitalised words."""
    (first, last), (begin, end) = mention, name
    if begin <= first and last <= end:
        return True
    more = [*words[first:begin], *words[end + 1 : last + 1]]
    return first <= begin and end <= last and all(word[:1].isupper() for word in more)


def write_gap(path: pathlib.Path, documents: Sequence[CorefDocument], clusters: Sequence[Clusters]) -> pathlib.Path:
    """Writes ID, A-coref and B-coref of every document, as the official scorer reads a system's output."""
    lines = [
        "\t".join([document.name, *(str(each).upper() for each in decision(document, found))])
        for document, found in zip(documents, clusters, strict=True)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
