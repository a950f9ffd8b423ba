"""Charts drawn with matplotlib, for notebooks, papers and HTML pages.

For example::

    from hf_attnprobe.plots import matplotlib_backend

    report.plot("tau_gradient")
    matplotlib_backend.draw(report.charts()[0]).figure
    matplotlib_backend.save_charts(report.charts(), "figures")

This module does not use pyplot or its global state, and equal charts give equal files.
"""

import base64
import io
import logging
import os
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from PIL import Image

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.terminal import escape_control_characters
from hf_attnprobe.plots.chart import (
    MIN_COLOUR_SCALE_END,
    Chart,
    HeatMap,
    Series,
    is_drawable,
)
from hf_attnprobe.plots.highlighted_text import (
    NEGLIGIBLE_SCORE,
    SIGNED_RANKINGS,
    HighlightedText,
    UnitMap,
)
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS


__all__ = [
    "draw",
    "draw_by_key",
    "draw_text",
    "draw_unit_maps",
    "format_captions",
    "save_charts",
    "save_texts",
]

logger = logging.getLogger(__name__)


# --- style of figures -------------------------------------------------------------------

COLUMN_WIDTH = 3.25
"""Width, in inches, of a figure in one text column of most conference proceedings."""

PAGE_WIDTH = 6.75
"""Width, in inches, of a figure across both text columns of most conference proceedings."""

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
"""Colours of the first, second, … series in a chart.

Colour-blind readers can distinguish them (Okabe & Ito 2008).
"""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Matplotlib marker shapes of the first, second, … series in a chart."""

LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
"""Matplotlib line styles of the first, second, … series in a chart.

A tuple is a dash pattern: the offset of its start, and the lengths of its lines and gaps.
"""

HISTOGRAM_PATTERNS = ("////", "\\\\\\\\", "xxxx", "||||", "----", "++++", "//")
"""Matplotlib fill patterns of the first, second, … histogram in a chart.

The patterns contain no dots and stars, which would enlarge an SVG file from 5 kB to 150 kB.
"""

REFERENCE_LINE_STYLES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
"""Matplotlib styles of the first, second, … reference line in a chart.

A reference line marks a value such as "chance". A tuple is a dash pattern: the offset of its start,
and the lengths of its lines and gaps.
"""

REFERENCE_LINE_COLOURS = ("#555555", "#222222", "#777777")
"""Colours of the first, second, … reference line in a chart.

A reference line marks a value such as "chance".
"""

GRID_COLOUR = "#DDDDDD"
"""Colour of the grid lines in charts."""

# DejaVu Sans comes with matplotlib, so figures look the same on every machine. All texts have the
# same size, as on a page.
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.7,
    "axes.unicode_minus": True,
    "text.usetex": False,
}
"""Matplotlib settings for all figures."""

PLAIN_TEXT_STYLE: dict[Any, Any] = {"text.parse_math": False}
"""Matplotlib setting that prints ``$`` as a character.

Otherwise, class names with ``$`` would be printed as formulas.
"""

VECTOR_FILE_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
"""Matplotlib settings for SVG and PDF files. They store text as text, not as drawn outlines."""

MAX_X_LABEL_WIDTH = 44
"""Maximum number of characters in a line of a chart title or x-axis label.

Longer titles and labels are wrapped.
"""

MAX_Y_LABEL_WIDTH = 30
"""Maximum number of characters in a line of a y-axis label. Longer labels are wrapped."""

MAX_LEGEND_WIDTH = 40
"""Maximum number of characters in a line of a chart's legend. Longer entries are wrapped."""

CELL_FONT_SIZE = 5.5
"""Font size, in points, of the numbers in a heat map's cells."""

DARK_TEXT_COLOUR = "#010101"
"""Colour of the numbers in a heat map's light cells, on light and dark pages."""

LIGHT_TEXT_COLOUR = "#fefefe"
"""Colour of the numbers in a heat map's dark cells, on light and dark pages."""

MAX_HEADS_IN_COLUMN = 12
"""Largest number of heads per layer with which a heat map fits one text column of a paper."""

MAX_NUMBERED_HEADS = 24
"""Largest number of heads per layer with which a heat map prints numbers in its cells."""

CATEGORY_ROW_FILL = 0.8
"""Proportion of a category's row height over which its values are spread.

The values have different heights, so that they do not overlap.
"""

LEGEND_LINE_HEIGHT = 0.135
"""Height, in inches, of one line of text in a chart's legend."""

MARKER_SIZE = 4
"""Diameter, in points (1/72 inch), of the markers in a series with few data points."""

SMALL_MARKER_SIZE = 2.5
"""Diameter, in points (1/72 inch), of the markers in a series with many data points."""

MAX_LARGE_MARKERS = 50
"""Largest number of data points with which a series gets large markers.

A longer series gets small, pale markers.
"""


# --- figures and files ------------------------------------------------------------------

UNDATED_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""Maps each image format to metadata that leave out the creation date of a file.

Matplotlib omits an entry that is None. Without the date, drawing a chart twice gives identical
files.
"""


class PaperFigure(Figure):
    """A figure that notebooks display as SVG."""

    def _repr_svg_(self) -> str:
        return render_figure(self, "svg").decode()


class PaperAxes(Axes):
    """Axes that notebooks display as their figure."""

    def savefig(self, file: Any, **options: Any) -> None:
        """Save the whole figure of these axes.

        Args:
            file: file name or file object, as in :meth:`matplotlib.figure.Figure.savefig`.
            options: further arguments of that method, such as ``dpi``.
        """
        figure = self.get_figure(root=True)
        # These axes are always created on a figure.
        assert figure is not None
        figure.savefig(file, **options)

    def _repr_svg_(self) -> str:
        figure = self.get_figure(root=True)
        # These axes are always created on a figure.
        assert figure is not None
        return render_figure(figure, "svg").decode()


def render_figure(figure: Figure, kind: str, *, salt: str = "attnprobe") -> bytes:
    """Render a figure to the content of an image file.

    Args:
        figure: a matplotlib figure.
        kind: file format, ``svg``, ``pdf`` or ``png``.
        salt: text from which the ids of elements in an SVG are computed. Use different texts for
            charts on the same page, because they need different ids.

    Returns:
        The file's content.
    """
    stream = io.BytesIO()
    # A figure can only be saved with a canvas. The new canvas attaches itself to the figure.
    FigureCanvasAgg(figure)
    with mpl.rc_context(STYLE | VECTOR_FILE_STYLE | {"svg.hashsalt": salt}):
        figure.savefig(stream, format=kind, metadata=UNDATED_METADATA[kind], dpi=300)
    return stream.getvalue()


# --- one chart --------------------------------------------------------------------------

Handle = Artist | ErrorbarContainer
"""Type for a matplotlib object that represents a series in a legend."""


def draw(chart: Chart | HeatMap, ax: Axes | None = None, *, title: bool = False) -> Axes:
    """Draw a chart with matplotlib.

    Args:
        chart: the chart.
        ax: axes to draw on. By default, a new figure with the width of a paper's column is created;
            notebooks display it, and ``draw(chart).figure`` returns it.
        title: print the chart's title above it; papers use captions instead.

    Returns:
        The axes.
    """
    if ax is None:
        # Create axes, and call this function again with them.
        with mpl.rc_context(STYLE):
            figure = PaperFigure(_compute_size(chart, title), layout="constrained")
            return draw(chart, figure.add_subplot(axes_class=PaperAxes), title=title)
    printed_title = _wrap(chart.title, MAX_X_LABEL_WIDTH) if title else ""
    with mpl.rc_context(PLAIN_TEXT_STYLE):
        if isinstance(chart, HeatMap):
            _draw_map(chart, ax)
            ax.set_title(printed_title)
        else:
            _draw_chart(chart, ax, printed_title)
    _disable_math(ax)
    return ax


def draw_by_key(
    charts: Sequence[Chart | HeatMap],
    kind: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw one of several charts with its title.

    Args:
        charts: the available charts.
        kind: key of the chart to draw; by default the first chart.
        ax: axes to draw on; by default, a new figure is created.

    Returns:
        The axes.

    Raises:
        AttnProbeError: If there are no charts, or none has this key.
    """
    charts_by_key = {chart.key: chart for chart in charts}
    if not charts_by_key:
        raise AttnProbeError(
            "this report has no figures, because it has no rows or fewer than "
            f"{MIN_DISPLAYED_TEXTS} texts. Audit more texts, or read the report from its folder to "
            "include its rows."
        )
    if kind is not None and kind not in charts_by_key:
        has_head_maps = any(isinstance(chart, HeatMap) for chart in charts)
        hint = " For figures of one head, pass site=(layer, head)." if has_head_maps else ""
        raise AttnProbeError(
            f"this report has no figure {kind!r}. Choose one of {', '.join(charts_by_key)}.{hint}"
        )
    first_key = next(iter(charts_by_key))
    return draw(charts_by_key[kind or first_key], ax, title=True)


def _disable_math(ax: Axes) -> None:
    """Print dollar signs in labels as characters.

    Matplotlib would otherwise print class names with dollar signs as formulas.
    """
    texts = [ax.title, ax.xaxis.label, ax.yaxis.label]
    texts += [*ax.get_xticklabels(), *ax.get_yticklabels()]
    for text in texts:
        text.set_parse_math(False)


def _compute_size(chart: Chart | HeatMap, title: bool) -> tuple[float, float]:
    """Compute the width and height of a new figure for a chart, in inches.

    The height grows with the number of rows in the chart, and of lines in its title and legend.
    """
    n_text_lines = len(textwrap.wrap(chart.title, MAX_X_LABEL_WIDTH)) if title else 0
    if isinstance(chart, HeatMap):
        width = COLUMN_WIDTH if len(chart.heads) <= MAX_HEADS_IN_COLUMN else PAGE_WIDTH
        n_text_lines += len(textwrap.wrap(chart.value_label, MAX_X_LABEL_WIDTH))
        return width, 1.1 + 0.22 * len(chart.layers) + LEGEND_LINE_HEIGHT * n_text_lines
    legend_entries = [
        *(series.name for series in chart.series),
        *(reference.name for reference in chart.references),
    ]
    n_text_lines += sum(len(textwrap.wrap(entry, MAX_LEGEND_WIDTH)) for entry in legend_entries)
    height = 2.0
    if chart.kind == "dots":
        row_height = 0.15 + 0.1 * len(chart.series)
        height = 0.6 + row_height * len(list_categories(chart))
    return COLUMN_WIDTH, height + LEGEND_LINE_HEIGHT * n_text_lines


def _draw_chart(chart: Chart, ax: Axes, title: str) -> None:
    """Draw the series, reference values, axes and legend of a chart."""
    draw_series = {
        "histogram": _draw_histogram,
        "dots": _draw_dots,
        "curve": _draw_curves,
        "points": _draw_points,
    }[chart.kind]
    handles = list(draw_series(chart, ax))
    handles += [_draw_reference(chart, k, ax) for k in range(len(chart.references))]
    _format_axes(chart, ax)
    _add_legend(chart, ax, handles, title)
    values = [y for series in chart.series for y in series.y]
    if not any(is_drawable(value) for value in values):
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center")


def _draw_histogram(chart: Chart, ax: Axes) -> Iterator[Handle]:
    """Draw a histogram for each series.

    The histograms are outlines with different fill patterns, so that they can overlap.
    """
    for k, series in enumerate(chart.series):
        # The series contains the lower edges of the bins, so the upper edge of the last bin is added.
        last_lower_edge = float(series.x[-1]) if series.x else 0.0
        last_upper_edge = last_lower_edge + (chart.bin_width or 1.0)
        yield ax.stairs(
            np.nan_to_num(_make_array(series.y)),
            [*_make_array(series.x), last_upper_edge],  # type: ignore[arg-type]
            fill=True,
            facecolor="none",
            edgecolor=COLOURS[k % len(COLOURS)],
            hatch=HISTOGRAM_PATTERNS[k % len(HISTOGRAM_PATTERNS)],
            linewidth=0.8,
            label=_wrap(series.name),
        )


def _draw_dots(chart: Chart, ax: Axes) -> Iterator[Handle]:
    """Draw values with horizontal error bars, one row per category."""
    names = list_categories(chart)
    for k, series in enumerate(chart.series):
        # Each series has another offset from the centre of the row, so that values do not overlap.
        offset = ((k + 0.5) / len(chart.series) - 0.5) * CATEGORY_ROW_FILL
        positions = [names.index(str(x)) + offset for x in series.x]
        yield ax.errorbar(
            _make_array(series.y),
            positions,
            xerr=_compute_error_bars(series),
            fmt=MARKERS[k % len(MARKERS)],
            color=COLOURS[k % len(COLOURS)],
            elinewidth=1.2,
            label=_wrap(series.name),
        )
    ax.set_yticks(range(len(names)), [_wrap(name, 24) for name in names])
    # The first category is at the top.
    ax.set_ylim(len(names) - 0.5, -0.5)


def _compute_error_bars(series: Series) -> np.ndarray | None:
    """Compute the lengths of the error bars below and above the values.

    Returns:
        Lengths [2, values], with 0 for missing error bars; None if the series has no error bars.
    """
    if not series.low:
        return None
    y, low, high = _make_array(series.y), _make_array(series.low), _make_array(series.high)
    lengths = np.stack([y - low, high - y])
    return np.where(np.isnan(lengths), 0, lengths).clip(0)


def _make_array(values: Sequence[float]) -> np.ndarray:
    """Convert values to an array, with NaN for values that cannot be drawn."""
    return np.array([value if is_drawable(value) else np.nan for value in values], np.float64)


def _draw_curves(chart: Chart, ax: Axes) -> Iterator[Handle]:
    """Draw each series as a line, with a shaded band between its lower and upper values."""
    for k, series in enumerate(chart.series):
        x = _make_array(series.x)  # type: ignore[arg-type]
        colour = COLOURS[k % len(COLOURS)]
        (line,) = ax.plot(
            x,
            _make_array(series.y),
            color=colour,
            linestyle=LINE_STYLES[k % len(LINE_STYLES)],
            marker=MARKERS[k % len(MARKERS)],
            markevery=select_marker_positions(chart, k),
            label=_wrap(series.name),
        )
        if series.low:
            low, high = _make_array(series.low), _make_array(series.high)
            ax.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
        yield line


def select_marker_positions(chart: Chart, k: int) -> slice:
    """Select about six points of a line that get a marker.

    Each line starts at another point, so that the markers of overlapping lines remain visible.

    Args:
        chart: a chart with lines.
        k: index of the line's series.

    Returns:
        Slice of point indices, as matplotlib's ``markevery`` expects.
    """
    step = max(1, len(chart.series[k].x) // 6)
    first_point = k * step // len(chart.series)
    return slice(first_point, None, step)


def _draw_points(chart: Chart, ax: Axes) -> Iterator[Handle]:
    """Draw each series as single points, or as points that are connected by a line.

    In a series with many points, the markers are small and pale.
    """
    for k, series in enumerate(chart.series):
        has_many_points = len(series.x) > MAX_LARGE_MARKERS
        yield ax.errorbar(
            _make_array(series.x),  # type: ignore[arg-type]
            _make_array(series.y),
            yerr=_compute_error_bars(series),
            fmt="o" if has_many_points else MARKERS[k % len(MARKERS)],
            linestyle=LINE_STYLES[k % len(LINE_STYLES)] if series.is_connected else "none",
            color=COLOURS[k % len(COLOURS)],
            alpha=0.5 if has_many_points else 1.0,
            markersize=SMALL_MARKER_SIZE if has_many_points else MARKER_SIZE,
            markeredgewidth=0 if has_many_points else None,
            elinewidth=1.0,
            zorder=3 if series.is_connected else 2,
            label=_wrap(series.name),
        )


def _draw_reference(chart: Chart, number: int, ax: Axes) -> Handle:
    """Draw one of the chart's reference values as a line across the chart.

    Args:
        chart: the chart.
        number: index of the reference value.
        ax: axes to draw on.

    Returns:
        The line, for the legend.
    """
    reference = chart.references[number]
    # Charts of dots have exchanged axes: their values are on the x axis.
    is_vertical = (reference.axis == "x") != (chart.kind == "dots")
    draw_line = ax.axvline if is_vertical else ax.axhline
    return draw_line(
        reference.value if is_drawable(reference.value) else np.nan,
        color=REFERENCE_LINE_COLOURS[number % len(REFERENCE_LINE_COLOURS)],
        linestyle=REFERENCE_LINE_STYLES[number % len(REFERENCE_LINE_STYLES)],
        linewidth=0.9,
        zorder=1.5,
        label=_wrap(reference.name),
    )


def _format_axes(chart: Chart, ax: Axes) -> None:
    """Set the axes' labels, ranges, ticks and grid lines."""
    x_label, y_label = chart.x_label, chart.y_label
    x_range, y_range = chart.x_range, chart.y_range
    is_dots = chart.kind == "dots"
    # Charts of dots have exchanged axes: their values are on the x axis.
    if is_dots:
        x_label, y_label = y_label, x_label
        x_range, y_range = chart.y_range, None
    ax.set_xlabel(_wrap(x_label, MAX_X_LABEL_WIDTH))
    ax.set_ylabel(_wrap(y_label, MAX_Y_LABEL_WIDTH))
    if _is_range(x_range):
        ax.set_xlim(*_add_margin(x_range))
    if _is_range(y_range):
        ax.set_ylim(*_add_margin(y_range))
    if chart.kind == "histogram":
        ax.locator_params(axis="x", nbins=5)
        if y_range is None:
            ax.set_ylim(bottom=0)
    if isinstance(ax, PaperAxes):
        ax.grid(
            axis="x" if is_dots else "y",
            color=GRID_COLOUR,
            linewidth=0.5,
            clip_on=False,
        )
        ax.set_axisbelow(True)


def _is_range(
    span: tuple[float, float] | None,
) -> TypeGuard[tuple[float, float]]:
    """Check whether two axis ends can be drawn and are in ascending order."""
    return span is not None and all(map(is_drawable, span)) and span[0] < span[1]


def _add_margin(span: tuple[float, float]) -> tuple[float, float]:
    """Extend the range of an axis by 2% on both sides."""
    margin = 0.02 * (span[1] - span[0])
    return span[0] - margin, span[1] + margin


def _add_legend(chart: Chart, ax: Axes, handles: Sequence[Handle], title: str) -> None:
    """Add a legend above the axes, with the chart's title as its first line.

    A legend inside the axes could hide data. A chart with a single series has no legend entries.
    """
    names = [
        *(series.name for series in chart.series),
        *(reference.name for reference in chart.references),
    ]
    if len(names) < 2:
        names = []
    entries = [(handle, name) for handle, name in zip(handles, names, strict=False) if name]
    if not entries and not title:
        return
    parent: Any = ax
    location: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
    if isinstance(ax, PaperAxes):
        parent, location = ax.get_figure(), {"loc": "outside upper left"}
    legend = parent.legend(
        handles=[handle for handle, _ in entries],
        labels=[name for _, name in entries],
        title=title or None,
        alignment="left",
        frameon=False,
        borderaxespad=0.2,
        labelspacing=0.25,
        handlelength=2.6,
        **location,
    )
    for text, (_, name) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(_wrap(name))


def _draw_map(chart: HeatMap, ax: Axes) -> None:
    """Draw a heat map of heads, and print numbers in its cells if there are few heads."""
    values = np.asarray(chart.values, dtype=np.float64)
    norm, colour_map = _choose_colours(chart, values)
    image = ax.imshow(values, cmap=colour_map, norm=norm, aspect="auto", interpolation="none")
    tick_step = 1 + (len(chart.heads) - 1) // MAX_NUMBERED_HEADS
    ticks = range(0, len(chart.heads), tick_step)
    ax.set_xticks(ticks, [str(chart.heads[k]) for k in ticks])
    ax.set_yticks(range(len(chart.layers)), [str(k) for k in chart.layers])
    has_numbers = len(chart.heads) <= MAX_NUMBERED_HEADS
    explanation = f" (bold: {chart.mark_description})" if chart.low and has_numbers else ""
    ax.set_xlabel(f"head{explanation}")
    ax.set_ylabel("layer")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    figure = ax.figure
    # Axes always belong to a figure.
    assert figure is not None
    # A colour bar below the map leaves the whole width to the cells and to its own label.
    colour_bar = figure.colorbar(image, ax=ax, location="bottom", aspect=40)
    colour_bar.set_label(_wrap(chart.value_label, MAX_X_LABEL_WIDTH))
    colour_bar.ax.tick_params(length=2)
    colour_bar.outline.set_visible(False)
    if has_numbers:
        _print_cell_numbers(chart, image, ax)


def _choose_colours(chart: HeatMap, values: np.ndarray) -> tuple[Normalize, str]:
    """Choose the colour scale of a heat map.

    A map with a centre has two colours, for numbers below and above the centre. Other maps have one
    colour.

    Args:
        chart: the heat map.
        values: its numbers, ``[layers, heads]``; NaN is ignored.

    Returns:
        The scale from values to positions in the colour map, and the name of the colour map.
    """
    measured_values = values[~np.isnan(values)]
    if chart.centre is None:
        low = float(measured_values.min(initial=0.0))
        high = float(measured_values.max(initial=MIN_COLOUR_SCALE_END))
        return Normalize(low, high), "Blues"
    half_range = float(np.abs(measured_values - chart.centre).max(initial=MIN_COLOUR_SCALE_END))
    low, high = chart.centre - half_range, chart.centre + half_range
    return TwoSlopeNorm(chart.centre, low, high), "PuOr_r"


def _print_cell_numbers(chart: HeatMap, image: mpl.image.AxesImage, ax: Axes) -> None:
    """Print numbers in the map's cells, in a colour that contrasts with the cell.

    Negative numbers have a sign, so that readers need not distinguish colours.
    """
    values = np.asarray(chart.values, dtype=np.float64)
    largest_value = float(np.nanmax(np.abs(values), initial=0.0))
    n_digits = 3 if largest_value < MIN_COLOUR_SCALE_END else 2
    for (row, column), value in np.ndenumerate(values):
        text, colour, weight = "–", DARK_TEXT_COLOUR, "normal"
        if not np.isnan(value):
            cell_colour = image.cmap(image.norm(np.asarray(value)))[:3]
            # Perceived brightness is a weighted sum of red, green and blue (ITU-R BT.601).
            is_light = float(np.dot(cell_colour, (0.299, 0.587, 0.114))) > 0.5
            text = _format_cell_number(float(value), n_digits)
            colour = DARK_TEXT_COLOUR if is_light else LIGHT_TEXT_COLOUR
        if chart.low and chart.is_marked(chart.low[row][column], chart.high[row][column]):
            weight = "bold"
        ax.text(
            column,
            row,
            text,
            ha="center",
            va="center",
            color=colour,
            weight=weight,
            fontsize=CELL_FONT_SIZE,
        )


def _format_cell_number(value: float, n_digits: int) -> str:
    """Format a number without the zero before the decimal point.

    >>> [_format_cell_number(value, 2) for value in (0.034, -0.2, 1.5, -0.001)]
    ['.03', '−.20', '1.50', '.00']
    """
    digits = f"{abs(value):.{n_digits}f}".removeprefix("0")
    return f"−{digits}" if value < 0 and digits.strip(".0") else digits


# --- texts with shaded words ---------------------------------------------------------------

ATTENTION_COLOUR = "#D68A00"
"""Background colour of words with attention, as on a page."""

SIGN_COLOURS = ("#C83228", "#286EDC")
"""Background colours of words that oppose and that support the prediction, as on a page."""

MAX_SHADE_OPACITY = 0.6
"""Opacity of the background of the word with the largest score."""

MAX_DRAWN_WORDS = 400
"""Maximum number of words of a text that a figure contains."""

TEXT_LINE_HEIGHT = 13.0
"""Height of a line in a figure of a text, in points."""


def draw_text(text: HighlightedText, titles: Mapping[str, str]) -> Figure:
    """Draw a text with shaded words, once for each ranking.

    Args:
        text: the text with its scores.
        titles: titles of the rankings to draw, by their names in the scores. Rankings that the text
            does not have are omitted.

    Returns:
        A figure with the width of a page.
    """
    with mpl.rc_context(STYLE | PLAIN_TEXT_STYLE):
        # With 72 dots per inch, one dot is one point.
        figure = PaperFigure((PAGE_WIDTH, 1.0), dpi=72)
        renderer = FigureCanvasAgg(figure).get_renderer()
        width, y = 72 * PAGE_WIDTH, 0.0
        placed_texts = []

        def add(words: str, x: float, **style: Any) -> float:
            """Add words in the current line, and return their width in points."""
            artist = figure.text(0, 0, escape_control_characters(words), va="baseline", **style)
            artist.set_parse_math(False)
            placed_texts.append((artist, x, y))
            return float(artist.get_window_extent(renderer).width)

        y += TEXT_LINE_HEIGHT
        add(textwrap.shorten(f"{text.name}: {text.predicted}", 90), 2.0, weight="bold")
        for ranking, title in titles.items():
            if ranking not in text.scores:
                continue
            y += 1.3 * TEXT_LINE_HEIGHT
            add(title, 2.0, style="italic")
            y += TEXT_LINE_HEIGHT
            x = 2.0
            for word, is_glued, style in _list_shaded_words(text, ranking):
                x += 0.0 if is_glued else 4.0
                word_width = add(word, x, **style)
                if x > 5.0 and x + word_width > width:
                    # The word does not fit, so it begins the next line.
                    artist, *_ = placed_texts.pop()
                    y += TEXT_LINE_HEIGHT
                    x = 5.0
                    placed_texts.append((artist, x, y))
                x += word_width
        height = y + 0.6 * TEXT_LINE_HEIGHT
        figure.set_size_inches(PAGE_WIDTH, height / 72)
        for artist, x, line_y in placed_texts:
            artist.set_position((x / width, 1 - line_y / height))
    return figure


def _list_shaded_words(
    text: HighlightedText, ranking: str
) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """Yield each word of a text, whether it follows the previous one without a space, and its style."""
    scores = text.scores[ranking]
    largest_score = max((abs(score) for score in scores if is_drawable(score)), default=0.0)
    n_words = 0
    for k, (unit, score) in enumerate(zip(text.tokens, scores, strict=True)):
        style: dict[str, Any] = {}
        if is_drawable(score) and largest_score > NEGLIGIBLE_SCORE and score:
            colour = ATTENTION_COLOUR
            if ranking in SIGNED_RANKINGS:
                colour = SIGN_COLOURS[int(score > 0)]
            opacity = MAX_SHADE_OPACITY * abs(score) / largest_score
            style["bbox"] = {"facecolor": colour, "alpha": opacity, "linewidth": 0, "pad": 1.0}
        # A unit of a prompt is a sentence, which may need several lines.
        for position, word in enumerate(unit.split() or [unit]):
            if n_words == MAX_DRAWN_WORDS:
                yield "…", False, {}
                return
            n_words += 1
            yield word, position == 0 and k in text.glued, style


# --- maps of patches and instances --------------------------------------------------------

MAX_MAP_OPACITY = 0.8
"""Opacity of the patch or instance with the largest score in a map."""

MAP_BACKGROUND_OPACITY = 0.55
"""Opacity of the greyscale image below a map of its patches."""

MAX_VECTOR_INSTANCES = 1000
"""Largest number of instances in a map that is drawn with vector graphics.

A map with more instances is drawn as a bitmap, which keeps its file small.
"""

INSTANCE_COLOUR = (0.47, 0.47, 0.47, 0.35)
"""Colour of the outline of an instance, as red, green, blue and opacity."""


MAP_TITLE_SIZE = 9.5
"""Font size of the titles of maps in points. A page on a phone reduces it to about 7 points."""


def draw_unit_maps(text: HighlightedText, titles: Mapping[str, str]) -> Figure:
    """Draw the scores of an image's patches, or of a bag's instances, at their positions.

    For an image, the first panel is the image itself, and the scores are drawn over a grey copy.

    Args:
        text: the image or bag with its scores and positions.
        titles: titles of the rankings to draw, by their names in the scores. Rankings that the text
            does not have are omitted.

    Returns:
        A figure with one panel for each ranking, side by side.
    """
    unit_map = text.unit_map
    if unit_map is None:
        raise TypeError(f"{text.name} has no positions. Draw it with draw_text.")
    rankings = [name for name in titles if name in text.scores]
    picture = _decode_picture(unit_map.picture)
    n_panels = len(rankings) + (picture is not None)
    with mpl.rc_context(STYLE | PLAIN_TEXT_STYLE):
        figure = PaperFigure((PAGE_WIDTH, 1.0), layout="constrained")
        panels = list(np.atleast_1d(figure.subplots(1, n_panels)))
        height = _set_limits(unit_map, panels, picture)
        # Titles of three lines need about 0.7 inches above the panels.
        figure.set_size_inches(PAGE_WIDTH, 0.7 + height * PAGE_WIDTH / max(n_panels, 2))
        if picture is not None:
            first_panel = panels.pop(0)
            first_panel.imshow(picture, interpolation="none")
            first_panel.set_title(unit_map.input_name, fontsize=MAP_TITLE_SIZE)
            grey_picture = np.asarray(Image.fromarray(picture).convert("L"))
        for ranking, panel in zip(rankings, panels, strict=True):
            colours = _colour_scores(text.scores[ranking], is_signed=ranking in SIGNED_RANKINGS)
            if picture is not None:
                panel.imshow(
                    grey_picture, cmap="gray", vmin=0, vmax=255, alpha=MAP_BACKGROUND_OPACITY
                ).set_interpolation("none")
            _draw_units(unit_map, colours, panel)
            title = f"{titles[ranking]}\n{_describe_largest_score(text, ranking)}"
            panel.set_title(title, fontsize=MAP_TITLE_SIZE)
    return figure


def _decode_picture(picture: str) -> np.ndarray | None:
    """Decode an image in base64 to an array ``[height, width, 3]``; None if it is empty."""
    if not picture:
        return None
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        return np.asarray(image.convert("RGB"))


def _set_limits(unit_map: UnitMap, panels: Sequence[Axes], picture: np.ndarray | None) -> float:
    """Set equal limits and hide the axes of all panels; return height divided by width."""
    positions = np.asarray(unit_map.positions, dtype=np.float64)
    if picture is not None:
        # Matplotlib draws the first pixel around the position 0.
        low, high = np.array([-0.5, -0.5]), np.array(picture.shape[1::-1]) - 0.5
    else:
        low, high = positions.min(0), positions.max(0)
        margin = max(0.05 * float((high - low).max()), 1e-9)
        low, high = low - margin, high + margin
    for panel in panels:
        panel.set_axis_off()
        panel.set_aspect("equal")
        panel.set_xlim(low[0], high[0])
        panel.set_ylim(high[1], low[1])
    width, height = high - low
    return float(np.clip(height / width, 0.2, 2.0))


def _colour_scores(scores: Sequence[float], *, is_signed: bool) -> np.ndarray:
    """Return a colour for each score, ``[units, 4]``; the opacity is proportional to its size."""
    values = np.array([score if is_drawable(score) else 0.0 for score in scores])
    largest_score = np.abs(values).max(initial=0.0)
    colours = np.zeros((len(values), 4))
    colours[:, :3] = mpl.colors.to_rgb(ATTENTION_COLOUR)
    if is_signed:
        opposing_colour, supporting_colour = map(mpl.colors.to_rgb, SIGN_COLOURS)
        colours[:, :3] = np.where(values[:, None] < 0, opposing_colour, supporting_colour)
    if largest_score > NEGLIGIBLE_SCORE:
        colours[:, 3] = MAX_MAP_OPACITY * np.abs(values) / largest_score
    return colours


def _draw_units(unit_map: UnitMap, colours: np.ndarray, panel: Axes) -> None:
    """Draw patches as coloured rectangles, and instances without a size as circles."""
    positions = np.asarray(unit_map.positions, dtype=np.float64)
    if not unit_map.cells:
        # The area, in square points, shrinks with the number of instances.
        area = float(np.clip(9000 / len(positions), 2, 60))
        circles = panel.scatter(
            positions[:, 0],
            positions[:, 1],
            s=area,
            c=colours,
            edgecolors=[INSTANCE_COLOUR],
            linewidths=0.4,
        )
        circles.set_rasterized(len(positions) > MAX_VECTOR_INSTANCES)
        return
    # Matplotlib draws the first pixel around the position 0.
    corners = positions - np.array(unit_map.cells) / 2 - 0.5
    rectangles = [
        mpl.patches.Rectangle(tuple(corner), *cell)
        for corner, cell in zip(corners, unit_map.cells, strict=True)
    ]
    # Without anti-aliasing, neighbouring rectangles have no visible gap.
    collection = PatchCollection(rectangles, facecolors=colours, linewidths=0, antialiaseds=False)
    collection.set_rasterized(len(rectangles) > MAX_VECTOR_INSTANCES)
    panel.add_collection(collection, autolim=False)


def _describe_largest_score(text: HighlightedText, ranking: str) -> str:
    """Describe the colours of a map: its largest score and, on a second line, their meaning."""
    drawable_scores = [score for score in text.scores[ranking] if is_drawable(score)]
    largest_score = max(drawable_scores, key=abs, default=0.0)
    if abs(largest_score) <= NEGLIGIBLE_SCORE:
        return "all below 1e-6"
    if ranking not in SIGNED_RANKINGS:
        return f"strongest colour: {largest_score:.2g}"
    meaning = "blue supports, red opposes" if min(drawable_scores) < 0 else "blue supports"
    return f"strongest colour: {largest_score:+.2g}\n{meaning}".replace("-", "−")


# --- saved texts --------------------------------------------------------------------------


def save_texts(
    texts: Iterable[HighlightedText],
    folder: str | os.PathLike,
    titles: Mapping[str, str],
    formats: Sequence[str] = ("svg", "pdf"),
) -> list[Path]:
    """Save texts with shaded words as image files, such as ``text_18.svg``.

    Images and bags with coordinates are drawn as maps, such as ``image_18.svg``.

    Args:
        texts: the texts.
        folder: an existing folder for the files.
        titles: titles of the rankings to draw, by their names in the scores.
        formats: file formats, from ``svg``, ``pdf`` and ``png``.

    Returns:
        Paths of the written files.

    Raises:
        AttnProbeError: If a file cannot be written.
    """
    paths = []
    with warnings.catch_warnings(record=True, action="always") as caught_warnings:
        for text in texts:
            draw_scores = draw_text if text.unit_map is None else draw_unit_maps
            figure = draw_scores(text, titles)
            name = text.name.lower().replace(" ", "_")
            for kind in formats:
                content = render_figure(figure, kind, salt=name)
                paths.append(_write_file(Path(folder) / f"{name}.{kind}", content))
    _report_warnings(caught_warnings)
    return paths


def list_categories(chart: Chart) -> list[str]:
    """List the category names in a chart, in the order of first occurrence.

    Args:
        chart: a chart whose x values are category names.
    """
    names = [str(x) for series in chart.series for x in series.x]
    # The keys of a dictionary contain each name once.
    return list(dict.fromkeys(names))


def _wrap(text: str, width: int = MAX_LEGEND_WIDTH) -> str:
    """Wrap a label into lines of at most ``width`` characters."""
    return textwrap.fill(escape_control_characters(text), width)


# --- saved figures ----------------------------------------------------------------------

CAPTIONS_FILE = "captions.md"
"""Name of the Markdown file with the captions of saved figures, in the folder of the figures."""


def save_charts(
    charts: Iterable[Chart | HeatMap],
    folder: str | os.PathLike,
    formats: Sequence[str] = ("svg", "pdf"),
) -> list[Path]:
    """Save charts as image files, together with a file that contains their captions.

    Args:
        charts: the charts; their keys are used as file names.
        folder: folder for the files, created if needed. Existing files are replaced.
        formats: file formats, from ``svg``, ``pdf`` and ``png``.

    Returns:
        Paths of the written files; ``captions.md`` is the last.

    Raises:
        AttnProbeError: If a format is unknown, there are no charts, or a file cannot be written.
    """
    unknown_formats = [name for name in formats if name not in UNDATED_METADATA]
    if unknown_formats:
        raise AttnProbeError(
            f"unknown figure format {unknown_formats[0]!r}. Choose one of "
            f"{', '.join(UNDATED_METADATA)}."
        )
    charts = list(charts)
    if not charts:
        raise AttnProbeError(
            "this report has no figures to save, because it has no rows or fewer than "
            f"{MIN_DISPLAYED_TEXTS} texts. Audit more texts."
        )
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnProbeError(
            f"cannot create the folder {folder} for figures: {error.strerror}. Choose another folder."
        ) from error
    paths = []
    with warnings.catch_warnings(record=True, action="always") as caught_warnings:
        for chart in charts:
            figure = draw(chart).get_figure(root=True)
            # The axes were created on a new figure.
            assert figure is not None
            for name in formats:
                content = render_figure(figure, name)
                paths.append(_write_file(folder / f"{chart.key}.{name}", content))
    _report_warnings(caught_warnings)
    paths.append(_write_file(folder / CAPTIONS_FILE, format_captions(charts).encode()))
    return paths


def _report_warnings(caught_warnings: Sequence[warnings.WarningMessage]) -> None:
    """Show warnings that were recorded while charts were drawn.

    Warnings about characters that the font lacks are replaced by a single message.
    """
    font_warnings = [
        warning for warning in caught_warnings if "missing from font" in str(warning.message)
    ]
    if font_warnings:
        logger.warning(
            "the figures' font lacks some characters of these names. SVG files contain them as "
            "text, but other files show boxes instead"
        )
    for warning in caught_warnings:
        if warning not in font_warnings:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def format_captions(charts: Iterable[Chart | HeatMap]) -> str:
    """Format the captions of charts as Markdown.

    Args:
        charts: the charts.
    """
    parts = ["# Captions"]
    for chart in charts:
        sentences = [f"**{chart.title}.**", chart.finding]
        if isinstance(chart, Chart) and any(series.low for series in chart.series):
            sentences.append(f"Bars: {chart.bars}.")
        if chart.source:
            sentences.append(f"(After {chart.source}.)")
        parts.append(f"## {chart.key}\n\n{' '.join(filter(None, sentences))}")
    return "\n\n".join(parts) + "\n"


def _write_file(path: Path, content: bytes) -> Path:
    """Write a file through a temporary one, so that no reader sees an incomplete file."""
    temporary_path = path.with_name(f".{path.name}")
    try:
        temporary_path.write_bytes(content)
        os.replace(temporary_path, path)
    except OSError as error:
        raise AttnProbeError(
            f"cannot write {path}: {error.strerror}. Choose another folder."
        ) from error
    return path
