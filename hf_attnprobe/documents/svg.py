"""Charts as inline SVG: matplotlib's drawing with the page's fonts and colours.

Text stays text instead of outlines. Colours are CSS variables, so drawings follow the light and the
dark theme. Ids contain the chart's key, so charts on one page do not collide.
"""

import re
import warnings
from html import escape

import numpy as np
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hf_attnprobe.documents.token_shading import MAP_TITLES, describe_unit_maps, escape_invisible
from hf_attnprobe.plots import matplotlib_backend
from hf_attnprobe.plots.chart import Chart, HeatMap, format_label, is_drawable
from hf_attnprobe.plots.highlighted_text import HighlightedText


CSS_COLOURS = {
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
"""Maps the hex code of a colour in matplotlib's SVG to the CSS variable that replaces it."""

FONT_SETTINGS = re.compile(r"font(?:-size|-family)?: [^;\"]*;? ?")
"""Pattern for font settings in SVG tags. They are removed, so that the page's font applies."""

CELL_FONT_SIZE_CSS = f"{matplotlib_backend.CELL_FONT_SIZE:g}px"
"""Font size of the numbers in a heat map's cells, as in the CSS of an SVG tag.

Tags with this font size keep their font settings. All other text gets the font of the page.
"""

REDUNDANT_SVG_PARTS = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|(?<=>)\s+(?=<)", re.DOTALL)
"""Pattern for parts of an SVG file that are removed because they have no visible effect.

These parts are the lines before the ``svg`` element, the metadata, and white space between tags.
"""

REDUNDANT_SVG_ATTRIBUTES = re.compile(
    r"""(?<=<g)\ id="[^"]*"
    | (?<=\ )xlink:(?=href)
    | font-family:[^;"]*;\ ?
    | \ transform="rotate\(-0\ [^"]*\)" """,
    re.VERBOSE,
)
"""Pattern for SVG attributes that are removed because they have no visible effect.

They are ids of groups, the xlink namespace, font families, and rotations by 0 degrees.
"""

EXCESS_DIGITS = re.compile(r"(?<=\d\.\d)\d{3,}")
"""Pattern for the digits after the first decimal of an SVG coordinate. They are removed."""

MAX_VECTOR_POINTS = 1_000
"""Largest number of points in a series that is drawn with vector graphics.

A larger series is drawn as a bitmap, which keeps the page small.
"""

REPLACED_COLOUR = re.compile("|".join(CSS_COLOURS))
"""Pattern for the hex codes of colours that CSS variables replace."""

SVG_TAG = re.compile("<[^>]*>")
"""Pattern for an SVG tag, such as ``<path d="…"/>``."""

CHART_KIND_NAMES = {
    "histogram": "Histogram",
    "dots": "Values with bars",
    "curve": "Lines",
    "points": "Points",
}
"""Maps each kind of chart to the first words of its description for screen readers."""

ROOT_ATTRIBUTES = re.compile(r'(?<=<svg)[^>]*?(viewBox="[^"]*")[^>]*>')
"""Pattern for the attributes of the root element ``svg``. Only the view box is preserved."""


def render_svg(chart: Chart | HeatMap) -> str:
    """Render a chart as an SVG element for a page.

    Values that are NaN or infinite are not drawn; the description counts them.

    Args:
        chart: the chart.
    """
    key = re.sub(r"[^\w-]", "-", chart.key)
    kind = chart.kind if isinstance(chart, Chart) else "map"
    # Matplotlib warns about characters that its font lacks, but browsers can display them.
    with warnings.catch_warnings(action="ignore"):
        ax = matplotlib_backend.draw(chart)
        figure = ax.get_figure(root=True)
        # The axes were created on a new figure.
        assert figure is not None
        figure.patch.set_visible(False)
        ax.patch.set_visible(False)
        # A series with many points becomes a bitmap, which keeps the page small.
        artists: list[Line2D | Collection] = [*ax.lines, *ax.collections]
        for artist in artists:
            artist.set_rasterized(_count_marks(artist) > MAX_VECTOR_POINTS)
        return _convert_figure(figure, key, kind, chart.title, _describe_chart(chart))


def render_unit_maps(text: HighlightedText) -> str:
    """Render the maps of an image's patches, or of a bag's instances, as an SVG element for a page.

    Args:
        text: an image or a bag with positions.
    """
    key = text.name.lower().replace(" ", "-")
    with warnings.catch_warnings(action="ignore"):
        figure = matplotlib_backend.draw_unit_maps(text, MAP_TITLES)
        figure.patch.set_visible(False)
        return _convert_figure(figure, key, "unit-map", text.name, describe_unit_maps(text))


def _convert_figure(figure: Figure, key: str, kind: str, title: str, description: str) -> str:
    """Convert a figure to an SVG element with the fonts and colours of the page.

    Args:
        figure: the figure.
        key: name of the figure, which is unique on the page.
        kind: CSS class of the figure.
        title: title for screen readers.
        description: description for screen readers.
    """
    svg = matplotlib_backend.render_figure(figure, "svg", salt=key).decode()
    svg = SVG_TAG.sub(_adapt_tag, REDUNDANT_SVG_PARTS.sub("", svg))
    # Screen readers read the title and the description, which the attributes refer to by id.
    attributes = f' class="chart {kind}" \\1 role="img" aria-labelledby="{key}-title {key}-desc">'
    hidden_text = (
        f'<title id="{key}-title">{escape(title)}</title>'
        f'<desc id="{key}-desc">{escape(description)}</desc>'
    )
    svg = ROOT_ATTRIBUTES.sub(attributes, svg, count=1)
    opening_tag, _, body = svg.partition(">")
    return escape_invisible(f"{opening_tag}>{hidden_text}{body}")


def _adapt_tag(match: re.Match[str]) -> str:
    """Adapt an SVG tag from matplotlib to the page.

    Fonts are removed, colours are replaced by CSS variables, and the tag is shortened.

    Args:
        match: match of a regular expression for one tag.
    """
    tag = EXCESS_DIGITS.sub("", match[0])
    if CELL_FONT_SIZE_CSS not in tag:
        tag = FONT_SETTINGS.sub("", tag)
    tag = REDUNDANT_SVG_ATTRIBUTES.sub("", tag)
    return REPLACED_COLOUR.sub(lambda colour: f"var(--{CSS_COLOURS[colour[0]]})", tag)


def _count_marks(artist: Line2D | Collection) -> int:
    """Count the points of a series that matplotlib has drawn."""
    if isinstance(artist, Line2D):
        return int(np.size(artist.get_xdata()))
    return int(np.shape(artist.get_offsets())[0])


def _describe_chart(chart: Chart | HeatMap) -> str:
    """Describe a chart for screen readers: its type, axes, series and reference lines."""
    if isinstance(chart, HeatMap):
        return f"Map: {chart.value_label}, with layers as rows and heads as columns."
    names = ", ".join(series.name for series in chart.series if series.name)
    description = f"{CHART_KIND_NAMES[chart.kind]}: {chart.y_label} by {chart.x_label}"
    description += f", for {names}." if names else "."
    if chart.references:
        lines = [
            f"{reference.name} {format_label(reference.value)}" for reference in chart.references
        ]
        description += f" Reference lines: {', '.join(lines)}."
    values = [y for series in chart.series for y in series.y]
    n_missing = sum(not is_drawable(value) for value in values)
    if n_missing:
        description += f" {n_missing} values are missing or infinite and not drawn."
    return description
