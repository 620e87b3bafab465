"""Draws span masking and the span boundary objective from the code that masks in training.

    python docs/figures/span_masking.py          # writes span_masking_light.svg and span_masking_dark.svg next to this file

A sentence becomes a row with a token a word; `GeometricSpans` chooses the masked tokens. The rate is 0.28 here and not 0.15, so
that the budget of a sentence this short has room for a span of four words.
"""

import html
import pathlib
from typing import NamedTuple

import numpy as np

from spanjax.data.feed.masking import GeometricSpans, TextRows
from spanjax.data.vocab.base import Specials

SENTENCE = "Every evening the old sailor mended an antique pocket watch behind the harbour library"
RATE = 0.28
TARGET = 2  # token of the span whose losses are drawn, from 0
THEMES = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "box": "#f6f8fa",
        "line": "#d1d9e0",
        "mask": "#b35900",
        "edge": "#0969da",
    },
    "dark": {
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "box": "#151b23",
        "line": "#3d444d",
        "mask": "#f0a050",
        "edge": "#4493f8",
    },
}
WIDTH, LEFT, GAP, TOKEN_Y, ENCODER_Y, HIDDEN_Y, HEIGHT = 980, 14, 6, 300, 228, 190, 380
CHARACTER, PADDING = 7.1, 9  # width of a character of the sans-serif font at 13 pixels, and of the margin in a box


class MaskedSentence(NamedTuple):
    """Words, and the first and last index of the one masked span."""

    words: list[str]
    first: int
    last: int


def masked_sentence(length: int = 4) -> MaskedSentence:
    """Masks the sentence with one key after another until the mask is one span of `length` words inside of it."""
    words: list[str] = list(SENTENCE.split())
    specials = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
    tokens = np.array([[specials.cls, *range(5, 5 + len(words)), specials.sep]], np.int32)
    starts = np.ones_like(tokens, bool)
    starts[0, [0, -1]] = False
    rows = TextRows(tokens, np.ones_like(tokens), starts, None)
    for key in range(10_000):
        places = GeometricSpans().masked_places(rows, specials, np.array([key], np.uint64), np.array([RATE])) - 1
        first, last = int(places[0]), int(places[-1])
        if len(places) == last - first + 1 == length and first > 2 and last < len(words) - 3:
            return MaskedSentence(words, first, last)
    raise RuntimeError(f"no key masks one span of {length} words")


def subscript(number: int) -> str:
    """Formats a number in subscript digits."""
    return "".join(chr(0x2080 + int(digit)) for digit in str(number))


def drawn(found: MaskedSentence, theme: str) -> str:
    """Returns the figure as an SVG text."""
    colour = THEMES[theme]
    labels = ["[MASK]" if found.first <= index <= found.last else word for index, word in enumerate(found.words)]
    widths = [2 * PADDING + CHARACTER * len(label) for label in labels]
    scale = (WIDTH - 2 * LEFT - GAP * (len(labels) - 1)) / sum(widths)
    parts: list[str] = []

    def text(
        x: float, y: float, content: str, size: int = 13, fill: str = "ink", anchor: str = "middle", style: str = ""
    ) -> None:
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour[fill]}" text-anchor="{anchor}"{style}>'
            f"{content}</text>"
        )

    def arrow(path: str, fill: str) -> None:
        parts.append(
            f'<path d="{path}" fill="none" stroke="{colour[fill]}" stroke-width="1.6" marker-end="url(#{fill})"/>'
        )

    centres, x = [], float(LEFT)
    for index, (label, width) in enumerate(zip(labels, widths, strict=True)):
        width *= scale
        inside, edge = found.first <= index <= found.last, index in (found.first - 1, found.last + 1)
        stroke = colour["mask" if inside else "edge" if edge else "line"]
        parts.append(
            f'<rect x="{x:.1f}" y="{TOKEN_Y - 20}" width="{width:.1f}" height="30" rx="5" fill="{colour["box"]}"'
            f' stroke="{stroke}" stroke-width="{1.8 if inside or edge else 1}"/>'
        )
        centre = x + width / 2
        text(centre, TOKEN_Y, html.escape(label), 12, "mask" if inside else "ink")
        if inside:
            text(centre, TOKEN_Y + 28, html.escape(found.words[index]), 12, "soft", style=' font-style="italic"')
        centres.append(centre)
        arrow(f"M{centre:.1f} {TOKEN_Y - 22} V{ENCODER_Y + 26}", "soft")
        x += width + GAP
    parts.append(
        f'<rect x="{LEFT}" y="{ENCODER_Y - 12}" width="{WIDTH - 2 * LEFT}" height="34" rx="6" fill="{colour["box"]}"'
        f' stroke="{colour["line"]}"/>'
    )
    text(WIDTH / 2, ENCODER_Y + 10, "Transformer encoder, one segment, no next sentence prediction", 13, "soft")
    target = found.first + TARGET
    left, right, middle, top = centres[found.first - 1], centres[found.last + 1], centres[target], 92
    # the hidden states that the two losses of one token read: its own for MLM, the two neighbours of the span for the SBO
    arrow(f"M{middle:.1f} {ENCODER_Y - 13} V{top + 24}", "mask")
    for edge, side in ((left, -1), (right, 1)):
        arrow(f"M{edge:.1f} {ENCODER_Y - 13} V{HIDDEN_Y - 20} Q{edge:.1f} {top} {middle + side * 62:.1f} {top}", "edge")
    text(left - 8, HIDDEN_Y, f"h{subscript(found.first)}", 13, "edge", "end")
    text(right + 8, HIDDEN_Y, f"h{subscript(found.last + 2)}", 13, "edge", "start")
    text(middle + 8, HIDDEN_Y, f"h{subscript(target + 1)}", 13, "mask", "start")
    parts.append(
        f'<rect x="{middle - 56:.1f}" y="{top - 17}" width="112" height="34" rx="17" fill="{colour["box"]}"'
        f' stroke="{colour["ink"]}" stroke-width="1.4"/>'
    )
    word = html.escape(found.words[target])
    text(middle, top + 5, word, 14, "ink", style=' font-weight="600"')
    text(left - 30, top - 22, "span boundary objective:", 12, "edge", "end")
    text(left - 30, top - 6, "both neighbours of the span", 12, "edge", "end")
    text(left - 30, top + 10, f"and position {TARGET + 1} in it", 12, "edge", "end")
    text(right + 24, top - 22, "masked language model:", 12, "mask", "start")
    text(right + 24, top - 6, "the hidden state of the", 12, "mask", "start")
    text(right + 24, top + 10, "masked token itself", 12, "mask", "start")
    text(
        WIDTH / 2,
        36,
        f"loss({word}) = −log p({word} | <tspan fill='{colour['mask']}'>h{subscript(target + 1)}</tspan>)"
        f" − log p({word} | <tspan fill='{colour['edge']}'>h{subscript(found.first)}, h{subscript(found.last + 2)},"
        f" position {TARGET + 1}</tspan>)",
        15,
    )
    text(
        WIDTH / 2,
        HEIGHT - 12,
        "span lengths from a geometric distribution (p = 0.2, at most 10 words); whole words; 15 % of all tokens masked",
        12,
        "soft",
    )
    markers = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{colour[name]}"/></marker>'
        for name in ("soft", "mask", "edge")
    )
    description = (
        f"The sentence {SENTENCE!r} with {found.last - found.first + 1} consecutive words masked. The masked word {word!r} is "
        "predicted from its own hidden state and from those of the two words next to the span with its position in the span."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
        f' font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif"><title>Span masking and the span boundary'
        f" objective</title><desc>{html.escape(description)}</desc><defs>{markers}</defs>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    for name in THEMES:
        pathlib.Path(__file__).with_name(f"span_masking_{name}.svg").write_text(drawn(masked_sentence(), name))
