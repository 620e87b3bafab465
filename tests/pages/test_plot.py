"""Drawings: round ticks, gaps, thinning that keeps spikes, logarithmic axes, the same text every time."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from spanjax.pages.plot import (
    BOTTOM,
    DOT_ALONE,
    HEIGHT,
    LETTER,
    POINTS,
    SERIES,
    WIDTH,
    Line,
    bar_plot,
    colours,
    line_plot,
    log_ticks,
    thinned,
    tick_text,
    ticks,
)
from spanjax.pages.style import STYLE

pytestmark = pytest.mark.unit


def points_of(svg: str) -> list[list[tuple[float, float]]]:
    """The stretches of every curve of a drawing."""
    found = []
    for path in re.findall(r'<path fill="none" stroke="#[^"]*"[^>]* d="([^"]*)"', svg):
        for part in filter(None, path.split("M")):
            numbers = [tuple(map(float, each.split())) for each in part.split("L")]
            found.append(numbers)
    return found


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3.2, 3.9), (0, 2_400_000), (-5, 17), (1e-9, 4e-9)])
def test_ticks_are_round_inside_and_few(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert low <= found[0] + 1e-9 * abs(low) and found[-1] <= high * (1 + 1e-9)
    step = found[1] - found[0]
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - each) for each in (1, 2, 5)) < 1e-6


@pytest.mark.parametrize("last", [7, 1400, 20_000, 35_000, 2_400_000])
def test_no_label_is_cut_at_the_edge(last: int) -> None:
    svg = line_plot("loss", [Line("a", "#000000", range(0, last + 1, last), [1.0, 2.0])])
    row = HEIGHT - BOTTOM + 16
    labels = re.findall(rf'<text x="([\d.]+)" y="{row}" text-anchor="middle">([^<]*)<', svg)
    assert labels[-1][1] == tick_text(ticks(0, last)[-1])
    for centre, name in labels:
        assert float(centre) + LETTER / 2 * len(name) <= WIDTH, (centre, name)  # letters of 12 px are narrower than 7.2


def test_tick_text() -> None:
    assert [tick_text(value) for value in (0, 0.30000000000000004, 1500, 20_000, 2_400_000, 2e-6)] == [
        "0", "0.3", "1500", "20k", "2.4M", "2e-06",
    ]  # fmt: skip
    assert log_ticks(1, 1e12)[:2] == [1, 100]


def test_thinning_keeps_spikes_gaps_and_order() -> None:
    values = np.sin(np.arange(7000) / 500)
    values[4321], values[100] = 99.0, np.nan
    found = thinned(range(7000), values.tolist())
    assert len(found) <= POINTS
    assert (4321.0, 99.0) in found
    assert sum(math.isnan(value) for _, value in found) == 1
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(found))
    assert thinned([1, 2], [3.0, math.nan])[0] == (1.0, 3.0)


def test_gaps_where_values_are_missing() -> None:
    svg = line_plot("t", [Line("a", "#000000", range(5), [1.0, 2.0, math.nan, 2.0, math.inf])])
    assert [len(part) for part in points_of(svg)] == [2, 1]
    assert "nan" not in svg.casefold() and "inf" not in svg.casefold()
    assert line_plot("t", [Line("a", "#000000", [1], [math.nan])]) == "" == line_plot("t", [])


def test_scales() -> None:
    wide = [Line("a", "#000000", range(4), [1e-3, 1e-2, 1.0, 10.0])]
    assert "y logarithmic" in line_plot("t", wide)
    assert "y logarithmic" not in line_plot("t", wide, scale="zero")
    assert "y logarithmic" not in line_plot("t", [Line("a", "#000000", range(3), [0.0, 1.0, 1000.0])])
    heights = [y for _, y in points_of(line_plot("t", wide))[0]]
    assert heights[0] - heights[1] == pytest.approx(heights[2] - heights[3], abs=0.2)  # both a factor of ten
    flat = points_of(line_plot("t", [Line("a", "#000000", [7], [3.0])]))
    assert 0 < flat[0][0][1] < HEIGHT


def test_drawings_are_well_formed_and_escaped_and_the_same() -> None:
    lines = [Line("<b>&\"x'", colour, range(3), [n, n + 1, n]) for n, colour in enumerate(colours(13))]
    svg = line_plot("<script>", lines)
    ElementTree.fromstring(svg)
    assert svg == line_plot("<script>", lines)
    assert "<script>" not in svg and "<b>" not in svg
    assert len(set(colours(40))) == 40
    bars = bar_plot("bars", ["1", "2"], [("<i>", [1.0, 3.0]), ("b", [0.0, 2.0])], "x")
    ElementTree.fromstring(bars)
    heights = [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', bars)]
    assert heights[1] / heights[0] == pytest.approx(3, rel=0.01) and heights[2] == 0


def test_a_curve_of_one_point_is_a_dot_at_its_step() -> None:
    for dotted in (False, True):
        svg = line_plot("t", [Line("a", "#000000", [1400], [3.0], dotted)])
        assert svg.count("<circle") == 1 and f'r="{DOT_ALONE}"' in svg
        assert re.findall(r'y="\d+" text-anchor="middle">([\d.]+)<', svg) == ["1400"]
    two = line_plot("t", [Line("a", "#000000", range(3), [1.0, 2.0, 1.0])])
    assert "<circle" not in two
    gap = line_plot("t", [Line("a", "#000000", range(4), [1.0, math.nan, 2.0, 1.0])])
    assert gap.count("<circle") == 1  # the value that a line cannot show


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_curves_stand_out_from_the_light_and_the_dark_page() -> None:
    pages = re.findall(r"--card: (#[0-9a-f]{6})", STYLE)
    assert len(pages) == 2 and len({*SERIES}) == 10
    for dark, page in enumerate(pages):
        for pair in SERIES:
            low, high = sorted((luminance(page), luminance(pair[dark])))
            assert (high + 0.05) / (low + 0.05) >= 3, (pair[dark], page)
