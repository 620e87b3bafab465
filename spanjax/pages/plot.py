"""Lines and bars as SVG: axes with round ticks, gaps where a number is missing. The same input gives the same text.

Colours are variables of the page's style, one value for light and one for dark, with the light one where there is no style.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from spanjax.cli import escaped

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 12, 40
LETTER = 7.2  # width of a letter, at most, at the font size of the page
DOT, DOT_ALONE = 2.4, 4.0  # radius of a value, and of the only one of a curve
POINTS = 400  # most points of a line; more are thinned
LOG_FROM = 50.0  # ratio of the largest to the smallest value from which an axis is logarithmic
Scale = Literal["auto", "linear", "zero"]
"""Scale of the y-axis: logarithmic if values are positive and far apart (auto), linear, or linear from 0 (zero)."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve. Values that are not finite are gaps; steps grow."""

    label: str
    """Lines with one label have one entry in a legend; "" has none."""
    colour: str
    steps: Sequence[float]
    values: Sequence[float]
    dotted: bool = False
    """Mark every value with a dot: for few values, such as evaluations."""
    name: str = ""
    """Name of the line itself; empty takes its label."""


SERIES: Sequence[tuple[str, str]] = (
    ("#2b6cb0", "#7db4f0"),
    ("#c8354f", "#f58a9b"),
    ("#2f7d3b", "#74c983"),
    ("#8f6c00", "#dcbb4e"),
    ("#0b7f97", "#66cfe3"),
    ("#8a3aa0", "#d29be6"),
    ("#b8520a", "#f3a25f"),
    ("#626b78", "#a9b3c0"),
    ("#0a7a66", "#5cc9b3"),
    ("#8c2150", "#ea8fb4"),
)
"""Colours of curves on a light and on a dark page, easy to distinguish; all have a contrast of 3 to their page (WCAG 1.4.11)."""


def colours(count: int) -> list[str]:
    """Returns `count` colours: those of SERIES, then hues in steps of the golden angle."""
    known = [f"var(--series-{number}, {light})" for number, (light, _) in enumerate(SERIES, start=1)]
    hues = (number * 137.508 % 360 for number in range(len(known), count))
    return [*known, *(f"hsl({hue:.1f} 55% var(--series-light, 38%))" for hue in hues)][:count]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high], at most `most`."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * times for times in (1, 2, 5, 10, 20, 50) if (high - low) / (power * times) < most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside [low, high], every k-th if there are many; 2 and 5 times them if there are few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    apart = max(1, (last - first) // 5)
    times = (1, 2, 5) if last - first <= 2 else (1,)
    found = [each * 10.0**power for power in range(first, last + 1, apart) for each in times]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def tick_text(value: float) -> str:
    """A short name of a tick: 20k, 1.5M, 0.001, 2e-06."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            return f"{value / min(unit, 1e3 if name == 'k' else unit):.6g}{name}"
    return f"{value:.6g}" if size >= 1e-4 or not size else f"{value:.3g}"


def _height(point: tuple[float, float]) -> float:
    return point[1]


def thinned(steps: Sequence[float], values: Sequence[float], most: int = POINTS) -> list[tuple[float, float]]:
    """Thins a curve to at most `most` points: the lowest and highest of every stretch, so that spikes stay. A stretch with
    missing values keeps one gap (NaN)."""
    points = list(zip(map(float, steps), map(float, values), strict=True))
    if len(points) <= most:
        return points
    stretches = most // 3
    found: list[tuple[float, float]] = []
    for number in range(stretches):
        part = points[number * len(points) // stretches : (number + 1) * len(points) // stretches]
        known = [point for point in part if math.isfinite(point[1])]
        chosen = {min(known, key=_height), max(known, key=_height)} if known else set[tuple[float, float]]()
        gap = [(step, math.nan) for step, value in part if not math.isfinite(value)][:1]
        found.extend(sorted([*chosen, *gap], key=lambda point: point[0]))
    return found


class _Axes:
    """Maps values to coordinates of the drawing."""

    def __init__(self, x: tuple[float, float], y: Sequence[float], scale: Scale):
        self.low_x, self.high_x = x if x[1] > x[0] else (x[0] - 0.5, x[0] + 0.5)
        low, high = min(y), max(y)
        self.log = scale == "auto" and low > 0 and high / low >= LOG_FROM
        if scale == "zero":
            low = min(0.0, low)
        if high <= low:
            margin = abs(low) * 0.1 or 1.0
            low, high = low - (margin if scale != "zero" or low < 0 else 0.0), high + margin
        room = 0.0 if self.log else 0.04 * (high - low)
        self.low_y, self.high_y = (low if scale == "zero" else low - room), high + room

    @property
    def bottom(self) -> float:
        """Vertical coordinate of the x-axis."""
        return HEIGHT - BOTTOM

    def at_x(self, value: float) -> float:
        return LEFT + (value - self.low_x) / (self.high_x - self.low_x) * (WIDTH - LEFT - RIGHT)

    def at_y(self, value: float) -> float:
        low, high = self.low_y, self.high_y
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.bottom - (value - low) / (high - low) * (self.bottom - TOP)

    def drawn(self, title: str, x_title: str, x_ticks: Sequence[tuple[float, str]]) -> list[str]:
        parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(title)}">']
        for value in log_ticks(self.low_y, self.high_y) if self.log else ticks(self.low_y, self.high_y):
            y = self.at_y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick_text(value)}</text>')
        for value, name in x_ticks:
            x = self.at_x(value)
            parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom}" y2="{self.bottom + 4}"/>')
            centre = min(x, WIDTH - LETTER * len(name) / 2)  # the last label would be cut at the edge
            parts.append(f'<text x="{centre:.1f}" y="{self.bottom + 16}" text-anchor="middle">{escaped(name)}</text>')
        parts.append(f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{self.bottom}H{WIDTH - RIGHT}"/>')
        note = f"{x_title}; y logarithmic" if self.log else x_title
        parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escaped(note)}</text>')
        return parts


def _stretches(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Splits a curve at its gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            found[-1].append(point)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def line_plot(title: str, lines: Sequence[Line], x_title: str = "step", scale: Scale = "auto") -> str:
    """Draws curves over steps as one <svg>; "" if no value is finite."""
    drawn = [(line, thinned(line.steps, line.values)) for line in lines]
    known = [point for _, points in drawn for point in points if math.isfinite(point[1])]
    if not known:
        return ""
    steps = [step for step, _ in known]
    axes = _Axes((min(steps), max(steps)), [value for _, value in known], scale)
    # one step alone has half a step of margin at both sides, where a tick would name a step that does not exist
    marks = ticks(axes.low_x, axes.high_x) if min(steps) < max(steps) else [steps[0]]
    parts = axes.drawn(title, x_title, [(value, tick_text(value)) for value in marks])
    for line, points in drawn:
        dash = ' stroke-dasharray="2 3"' if line.dotted else ""
        paths = []
        for stretch in _stretches(points):
            places = [(f"{axes.at_x(step):.1f}", f"{axes.at_y(value):.1f}") for step, value in stretch]
            paths.append("M" + "L".join(f"{x} {y}" for x, y in places))
            if line.dotted or len(places) == 1:  # a path of a single point would draw nothing
                size = DOT if len(points) > 1 else DOT_ALONE
                parts += [f'<circle cx="{x}" cy="{y}" r="{size}" fill="{line.colour}"/>' for x, y in places]
        named = f"<title>{escaped(line.name or line.label)}</title>"
        parts.append(
            f'<path fill="none" stroke="{line.colour}" stroke-width="1.5"{dash} d="{"".join(paths)}">{named}</path>'
        )
    return "".join([*parts, "</svg>"])


def bar_plot(title: str, names: Sequence[str], columns: Sequence[tuple[str, Sequence[float]]], x_title: str) -> str:
    """Draws the bars of several columns next to each other, grouped by name, as one <svg>; values are 0 or more."""
    palette = colours(len(columns))
    top = max((value for _, values in columns for value in values), default=0.0)
    axes = _Axes((-0.5, len(names) - 0.5), [0.0, top or 1.0], "zero")
    parts = axes.drawn(title, x_title, list(enumerate(names)))
    width = 0.8 * (axes.at_x(1) - axes.at_x(0)) / max(1, len(columns))
    for number, (label, values) in enumerate(columns):
        for place, value in enumerate(values):
            x, y = axes.at_x(place) + (number - len(columns) / 2) * width, axes.at_y(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{axes.bottom - y:.1f}"'
                f' fill="{palette[number]}"><title>{escaped(f"{label}, {names[place]}: {value:.4g}")}</title></rect>'
            )
    return "".join([*parts, "</svg>"])
