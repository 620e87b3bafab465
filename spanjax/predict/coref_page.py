"""Documents with their clusters in colour, as one HTML page that needs nothing else."""

from collections.abc import Iterator, Sequence

from spanjax.cli import escaped
from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.9 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
mark { color: inherit; background: hsl(var(--hue) 75% 50% / .22); border-radius: .3em; padding: .1em .15em;
  border-bottom: 2px solid hsl(var(--hue) 75% 45%); }
mark sub { font-size: .65em; opacity: .8; padding-left: .15em; }
ol { columns: 16rem; font-size: .85rem; line-height: 1.5; }
"""
GOLDEN_ANGLE = 137.508


def coref_page(documents: Sequence[CorefDocument], clusters: Sequence[Clusters]) -> str:
    """Builds the page: every document verbatim, mentions marked with the colour and number of their cluster, then a list."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Coreference</title><style>{STYLE}</style>"
    )
    body = "\n".join(
        line for number, each in enumerate(documents) for line in _document(each, clusters[number], number)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n<h1>Coreference</h1>\n{body}\n</body></html>\n'
    )


def _document(document: CorefDocument, clusters: Clusters, number: int) -> Iterator[str]:
    words = document.words
    yield f"<h2>{escaped(document.name or f'document {number + 1}')}</h2>"
    yield f'<p style="white-space: pre-wrap">{"".join(_marked(document, words, clusters))}</p>'
    yield "<ol>"
    for own, cluster in enumerate(clusters):
        mentions = ", ".join(escaped(" ".join(words[first : last + 1])) for first, last in cluster)
        yield f'<li><mark style="{_hue(own)}">{mentions}</mark></li>'
    yield "</ol>"


def _hue(cluster: int) -> str:
    return f"--hue: {cluster * GOLDEN_ANGLE % 360:.0f}"


def _marked(document: CorefDocument, words: Sequence[str], clusters: Clusters) -> Iterator[str]:
    begins: dict[int, list[tuple[Mention, int]]] = {}
    for own, cluster in enumerate(clusters):
        for mention in cluster:
            begins.setdefault(mention[0], []).append((mention, own))
    gaps = _gaps(document)
    still: list[tuple[int, int]] = []  # (last word, cluster) of the mentions that are open, the innermost at the end
    for place, word in enumerate(words):
        yield escaped(gaps[place])
        for (_, last), own in sorted(begins.get(place, ()), key=lambda each: -each[0][1]):
            # a mention that ends behind the one around it is cut there: marks cannot cross
            still.append((min(last, still[-1][0]) if still else last, own))
            yield f'<mark style="{_hue(own)}">'
        yield escaped(word)
        while still and still[-1][0] == place:
            yield f"<sub>{still.pop()[1] + 1}</sub></mark>"
    yield escaped(gaps[len(words)])


def _gaps(document: CorefDocument) -> list[str]:
    """Returns the text before each word and after the last: the document's own, else a blank, and a line between sentences."""
    if document.offsets:
        ends = [0, *(end for _, end in document.offsets)]
        starts = [*(start for start, _ in document.offsets), len(document.text)]
        given = [document.text[end:start] for end, start in zip(ends, starts, strict=True)]
        return [gap.replace("\r\n", "\n").replace("\r", "\n") for gap in given]  # HTML knows no other line end
    gaps = []
    for sentence in document.sentences:
        gaps += ["\n" if gaps else "", *[" "] * (len(sentence) - 1)]
    return [*gaps, ""]
