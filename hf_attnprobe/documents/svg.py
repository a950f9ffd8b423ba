"""Charts as inline SVG: matplotlib's drawing in the page's colours. Pure.

Text stays text; colours are the page's, so that a drawing follows light and dark; ids are
the chart's own.
"""

import re
import warnings
from html import escape

import numpy as np
from matplotlib.collections import Collection
from matplotlib.lines import Line2D

from hf_attnprobe.documents.highlighted_text import legible
from hf_attnprobe.plots import matplotlib_backend as figures
from hf_attnprobe.plots.chart import Chart, HeatMap, drawable, short


COLOURS = {
    "#0072b2": "blue",
    "#d55e00": "orange",
    "#009e73": "green",
    "#cc79a7": "rose",
    "#e69f00": "ochre",
    "#56b4e9": "violet",
    "#000000": "ink",
    "#222222": "ink",
    "#555555": "quiet",
    "#777777": "quiet",
    "#dddddd": "rule",
    "#ffffff": "ground",
}
"""By colour on paper that of the page, a variable of its style."""

FONT = re.compile(r"font(?:-size|-family)?: [^;\"]*;? ?")
"""Type is the page's, but for numbers in cells, which have their own size and weight."""
OF_A_CELL = f"{figures.IN_CELLS:g}px"
IDLE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|(?<=>)\s+(?=<)", re.DOTALL)
"""A prologue, facts of the file, and lines between tags: a page does without."""
OURS_NOT = re.compile(
    r"""(?<=<g)\ id="[^"]*"
    | (?<=\ )xlink:(?=href)
    | font-family:[^;"]*;\ ?
    | \ transform="rotate\(-0\ [^"]*\)" """,
    re.VERBOSE,
)
"""Names of groups, to which nobody refers, a namespace, letters and turns by nothing."""
LONG = re.compile(r"(?<=\d\.\d)\d{3,}")
"""Digits of coordinates past a tenth of a point."""
MOST_MARKS = 1_000
"""More of a series are one picture."""
COLOUR = re.compile("|".join(COLOURS))
TAG = re.compile("<[^>]*>")
KINDS = {
    "histogram": "Histogram",
    "dots": "Values with bars",
    "curve": "Lines",
    "points": "Points",
}
"""Of charts, in words."""
SIZE = re.compile(r'(?<=<svg)[^>]*?(viewBox="[^"]*")[^>]*>')


def draw(chart: Chart | HeatMap) -> str:
    """A chart as an SVG element; what is not a finite number is left out, and counted."""
    key = re.sub(r"[^\w-]", "-", chart.key)
    with warnings.catch_warnings(action="ignore"):  # a browser has glyphs that our font lacks
        ax = figures.draw(chart)
        figure = ax.get_figure(root=True)
        assert figure is not None  # it was made for these axes
        figure.patch.set_visible(False)
        ax.patch.set_visible(False)
        drawn: list[Line2D | Collection] = [*ax.lines, *ax.collections]
        for marks in drawn:
            marks.set_rasterized(_n_marks(marks) > MOST_MARKS)
        svg = figures.written(figure, "svg", salt=key).decode()
    svg = TAG.sub(_as_on_the_page, IDLE.sub("", svg))
    kind = chart.kind if isinstance(chart, Chart) else "map"
    opening = f' class="chart {kind}" \\1 role="img" aria-labelledby="{key}-title {key}-desc">'
    said = (
        f'<title id="{key}-title">{escape(chart.title)}</title>'
        f'<desc id="{key}-desc">{escape(_described(chart))}</desc>'
    )
    svg = SIZE.sub(opening, svg, count=1)
    head, _, body = svg.partition(">")
    return legible(f"{head}>{said}{body}")


def _as_on_the_page(found: re.Match[str]) -> str:
    """A tag in the page's type and colours; what stands between tags are names and numbers."""
    tag = LONG.sub("", found[0])
    tag = OURS_NOT.sub("", tag if OF_A_CELL in tag else FONT.sub("", tag))
    return COLOUR.sub(lambda colour: f"var(--{COLOURS[colour[0]]})", tag)


def _n_marks(marks: Line2D | Collection) -> int:
    if isinstance(marks, Line2D):
        return int(np.size(marks.get_xdata()))
    return int(np.shape(marks.get_offsets())[0])


def _described(chart: Chart | HeatMap) -> str:
    """The drawing in words, for those who do not see it."""
    if isinstance(chart, HeatMap):
        return f"Map: {chart.value_label}, layers down and heads across."
    names = ", ".join(s.name for s in chart.series if s.name)
    said = f"{KINDS[chart.kind]}: {chart.y_label} by {chart.x_label}"
    said += f", for {names}." if names else "."
    if chart.references:
        lines = [f"{r.name} {short(r.value)}" for r in chart.references]
        said += f" Lines for comparison: {', '.join(lines)}."
    missing = sum(not drawable(y) for s in chart.series for y in s.y)
    if missing:
        said += f" {missing} values are missing or infinite and not drawn."
    return said
