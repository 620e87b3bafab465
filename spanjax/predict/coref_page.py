"""Documents with their clusters in colour, as one HTML page that needs nothing else: light or dark, by the reader's system."""

from collections.abc import Iterator, Sequence

from spanjax.cli import escaped
from spanjax.tasks.coref.documents import Clusters, CorefDocument, Mention

STYLE = """
:root { color-scheme: light; --page: #ffffff; --text: #1c2128; --muted: #59636e; --line: #d9dee4;
  --fill: 62% .15; --alpha: .2; --edge: 58% .15; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --page: #14171b; --text: #e3e7ec; --muted: #9ba6b2; --line: #343b44;
    --fill: 70% .13; --alpha: .2; --edge: 74% .12; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 50rem; padding: 2.5rem 1.5rem 5rem; background: var(--page); color: var(--text);
  font: 1.06rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere; }
header { margin-bottom: 3rem; }
h1 { margin: 0 0 1.25rem; font-size: .95rem; font-weight: 600; color: var(--muted); }
h2 { margin: 0; font-size: 1.15rem; font-weight: 650; line-height: 1.35; }
h3 { margin: 0 0 .6rem; font-size: .86rem; font-weight: 600; color: var(--muted); }
section { margin-top: 2.5rem; padding-top: 1.75rem; border-top: 1px solid var(--line); }
.headline { margin: 0; font-size: 1.75rem; line-height: 1.25; letter-spacing: -.015em; text-wrap: balance; }
.small { margin: .35rem 0 0; font-size: .86rem; color: var(--muted); }
.text { margin: 1.1rem 0 1.75rem; line-height: 1.95; white-space: pre-wrap; }
mark { padding: .12em .18em; border-radius: .25em; color: inherit; border-bottom: 2px solid oklch(var(--edge) var(--hue));
  background: oklch(var(--fill) var(--hue) / var(--alpha)); -webkit-box-decoration-break: clone; box-decoration-break: clone; }
mark sub { padding-left: .18em; font-size: .68em; line-height: 0; font-variant-numeric: tabular-nums; }
ol { columns: 18rem; column-gap: 2.5rem; margin: 0; padding-left: 1.9em; font-size: .9rem; line-height: 1.7; }
li { break-inside: avoid; margin-bottom: .35rem; }
li::marker { color: var(--muted); font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 4rem; }
  .headline { font-size: 1.4rem; }
}
@media print { body { max-width: none; padding: 0; font-size: 10pt; } mark { print-color-adjust: exact; } }
"""
GOLDEN_ANGLE = 137.508
TITLE = "Coreference"


def coref_page(documents: Sequence[CorefDocument], clusters: Sequence[Clusters]) -> str:
    """Builds the page: every document verbatim, mentions marked with the colour and number of their cluster, then a list."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style>"
    )
    chains = [cluster for each in clusters for cluster in each]
    total = f"{_counted(len(chains), 'chain')} with {_counted(sum(map(len, chains)), 'mention')}"
    body = "\n".join(
        line for number, each in enumerate(documents) for line in _document(each, clusters[number], number)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n<header><h1>{TITLE}</h1>\n'
        f'<p class="headline"><strong>{total}</strong> in {_counted(len(documents), "document")}</p>\n'
        '<p class="small">Mentions of one colour and number refer to the same entity.</p></header>\n'
        f"<main>\n{body}\n</main>\n</body></html>\n"
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _document(document: CorefDocument, clusters: Clusters, number: int) -> Iterator[str]:
    words = document.words
    mentions = sum(map(len, clusters))
    counts = f"{_counted(len(clusters), 'chain')}, {_counted(mentions, 'mention')}" if clusters else "No chains"
    yield f"<section><h2>{escaped(document.name or f'Document {number + 1}')}</h2>"
    yield f'<p class="small">{counts}, {_counted(len(words), "word")}</p>'
    yield f'<p class="text">{"".join(_marked(document, words, clusters))}</p>'
    if clusters:
        yield "<h3>Chains</h3><ol>"
        for own, cluster in enumerate(clusters):
            texts = (escaped(" ".join(words[first : last + 1])) for first, last in cluster)
            marks = " · ".join(f'<mark style="{_hue(own)}">{text}</mark>' for text in texts)
            yield f"<li>{marks}</li>"
        yield "</ol>"
    yield "</section>"


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
