"""One chart on matplotlib axes, without pyplot and its global state."""

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, TwoSlopeNorm

from hf_attnprobe.charts.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.figures.figure import PaperFigure
from hf_attnprobe.figures.style import (
    COLOURS,
    COLUMN,
    HATCHES,
    LINES,
    LOOK,
    MARKERS,
    PAGE,
    PLAIN_TEXT,
    REFERENCE_COLOURS,
    REFERENCE_LINES,
)


ACROSS, UPRIGHT, LEGEND = 44, 30, 40  # characters in a line of labels and legend
MOST_LETTERS = 50  # of all categories side by side; more are written below each other
MOST_NARROW, MOST_NUMBERED = 12, 24  # heads: in one column, and with their numbers
SMALL = 0.1  # numbers below it need three
ROOM = 0.8  # of the way between two categories
LINE_HEIGHT = 0.135  # inches of a line of the legend


def draw(chart: Chart | HeatMap, ax: Axes | None = None, *, title: bool = False) -> Axes:
    """A chart on axes.

    Args:
        chart: what is drawn.
        ax: where; without, on a new figure as wide as a paper's column. It is
            ``draw(chart).figure``.
        title: whether the chart's title is written above; papers have captions.

    Returns:
        The axes.
    """
    if ax is None:
        with mpl.rc_context(LOOK):
            ax = PaperFigure(_size(chart), layout="constrained").subplots()
            return draw(chart, ax, title=title)
    with mpl.rc_context(PLAIN_TEXT):
        if isinstance(chart, HeatMap):
            _draw_map(chart, ax)
        else:
            _draw_chart(chart, ax)
        if title:
            ax.set_title(textwrap.fill(chart.title, ACROSS))
    _write_plainly(ax)
    return ax


def _write_plainly(ax: Axes) -> None:
    """No text between dollars is a formula: names come from users."""
    texts = [ax.title, ax.xaxis.label, ax.yaxis.label]
    texts += [*ax.get_xticklabels(), *ax.get_yticklabels()]
    for text in texts:
        text.set_parse_math(False)


def _size(chart: Chart | HeatMap) -> tuple[float, float]:
    """Inches: a column, or two for a map of many heads."""
    if isinstance(chart, HeatMap):
        width = COLUMN if len(chart.heads) <= MOST_NARROW else PAGE
        return width, 0.9 + 0.22 * len(chart.layers)
    return COLUMN, _height(chart)


def _height(chart: Chart) -> float:
    """Inches: the drawing, and a line for all that is in the legend."""
    names = [*(s.name for s in chart.series), *(r.name for r in chart.references)]
    n_lines = sum(len(textwrap.wrap(name, LEGEND)) for name in names)
    body = 2.0
    if chart.kind == "dots" and _is_sideways(_categories(chart)):
        body = 0.6 + 0.25 * len(_categories(chart))
    return body + LINE_HEIGHT * n_lines


def _draw_chart(chart: Chart, ax: Axes) -> None:
    sideways = chart.kind == "dots" and _is_sideways(_categories(chart))
    match chart.kind:
        case "histogram":
            _histogram(chart, ax)
        case "dots":
            _dots(chart, ax, sideways)
        case "curve":
            _curves(chart, ax)
        case "points":
            _points(chart, ax)
    for k, reference in enumerate(chart.references):
        _reference(reference, k, ax, sideways)
    _axes(chart, ax, sideways)
    _legend(chart, ax)


def _histogram(chart: Chart, ax: Axes) -> None:
    """Bars of each series over each other: outlined, and hatched unlike the others."""
    for k, series in enumerate(chart.series):
        starts = np.asarray(series.x, dtype=np.float64)
        width = chart.bin_width or (starts[1] - starts[0] if len(starts) > 1 else 1.0)
        edges = np.append(starts, starts[-1] + width)
        colour = COLOURS[k % len(COLOURS)]
        ax.stairs(
            np.nan_to_num(series.y),
            edges,
            fill=True,
            facecolor=(*mpl.colors.to_rgb(colour), 0.25),
            edgecolor=colour,
            hatch=HATCHES[k % len(HATCHES)],
            linestyle=LINES[k % 4],
            linewidth=1.0,
            label=_wrapped(series.name),
        )


def _dots(chart: Chart, ax: Axes, sideways: bool) -> None:
    """Values with their bars at categories, the series side by side."""
    names = _categories(chart)
    places = {name: k for k, name in enumerate(names)}
    lanes = _lanes(chart.series)
    n_lanes = max(lanes) + 1
    for k, series in enumerate(chart.series):
        shift = ((lanes[k] + 0.5) / n_lanes - 0.5) * ROOM if n_lanes > 1 else 0.0
        at = [places[str(x)] + shift for x in series.x]
        bars = _bars(series)
        x, y = (series.y, at) if sideways else (at, series.y)
        ax.errorbar(
            x,
            y,
            xerr=bars if sideways else None,
            yerr=None if sideways else bars,
            fmt=MARKERS[k % len(MARKERS)],
            color=COLOURS[k % len(COLOURS)],
            markerfacecolor="white" if series.name.startswith("published") else None,
            capsize=2,
            elinewidth=0.8,
            label=_wrapped(series.name),
        )
    axis = ax.yaxis if sideways else ax.xaxis
    axis.set_ticks(range(len(names)), [_wrapped(name, 24) for name in names])
    if sideways:
        ax.set_ylim(len(names) - 0.5, -0.5)
    else:
        ax.set_xlim(-0.5, len(names) - 0.5)


def _lanes(series: Sequence[Series]) -> list[int]:
    """Which lane of a category each series is drawn in; those that never meet share."""
    taken: list[set[str]] = []
    lanes = []
    for one in series:
        names = {str(x) for x in one.x}
        free = [k for k, used in enumerate(taken) if not used & names]
        lane = free[0] if free else len(taken)
        if lane == len(taken):
            taken.append(set())
        taken[lane] |= names
        lanes.append(lane)
    return lanes


def _bars(series: Series) -> np.ndarray | None:
    """How far the bars reach below and above, [2, values]; None without any."""
    if not series.low:
        return None
    y, low, high = (np.asarray(v, np.float64) for v in (series.y, series.low, series.high))
    reach = np.stack([y - low, high - y])
    return np.where(np.isnan(reach), 0, reach).clip(0)


def _curves(chart: Chart, ax: Axes) -> None:
    n_series = len(chart.series)
    for k, series in enumerate(chart.series):
        x = np.asarray(series.x, dtype=np.float64)
        every = max(1, len(x) // 6)
        ax.plot(
            x,
            series.y,
            color=COLOURS[k % len(COLOURS)],
            linestyle=LINES[k % len(LINES)],
            marker=MARKERS[k % len(MARKERS)],
            markevery=(k * every // max(1, n_series), every),
            label=_wrapped(series.name),
        )
        if series.low:
            colour = COLOURS[k % len(COLOURS)]
            ax.fill_between(x, series.low, series.high, color=colour, alpha=0.2, lw=0)


def _points(chart: Chart, ax: Axes) -> None:
    """Single points, pale where they are many; those that are joined in front."""
    for k, series in enumerate(chart.series):
        many = len(series.x) > 50
        ax.errorbar(
            np.asarray(series.x, dtype=np.float64),
            series.y,
            yerr=_bars(series),
            fmt=MARKERS[k % len(MARKERS)],
            linestyle=LINES[k % len(LINES)] if series.joined else "none",
            color=COLOURS[k % len(COLOURS)],
            alpha=0.35 if many else 1.0,
            markersize=2.5 if many else 4,
            markeredgewidth=0 if many else None,
            capsize=2,
            elinewidth=0.8,
            zorder=3 if series.joined else 2,
            label=_wrapped(series.name),
        )


def _reference(reference: Reference, number: int, ax: Axes, sideways: bool) -> None:
    """A line across; on the other axis where categories are written sideways."""
    upright = (reference.axis == "x") != sideways
    line = ax.axvline if upright else ax.axhline
    line(
        reference.value,
        color=REFERENCE_COLOURS[number % len(REFERENCE_COLOURS)],
        linestyle=REFERENCE_LINES[number % len(REFERENCE_LINES)],
        linewidth=0.9,
        zorder=1,
        label=_wrapped(reference.name),
    )


def _axes(chart: Chart, ax: Axes, sideways: bool) -> None:
    across, upright = chart.x_label, chart.y_label
    x_range, y_range = chart.x_range, chart.y_range
    if sideways:
        across, upright = chart.y_label, ""  # the categories say what they are
        x_range, y_range = chart.y_range, None
    ax.set_xlabel(_wrapped(across, ACROSS))
    ax.set_ylabel(_wrapped(upright, UPRIGHT))
    if x_range is not None:
        ax.set_xlim(*_with_room(x_range))
    if y_range is not None:
        ax.set_ylim(*_with_room(y_range))
    if chart.kind == "histogram":
        ax.locator_params(axis="x", nbins=5)
        if y_range is None:
            ax.set_ylim(bottom=0)


def _with_room(span: tuple[float, float]) -> tuple[float, float]:
    room = 0.02 * (span[1] - span[0])
    return span[0] - room, span[1] + room


def _legend(chart: Chart, ax: Axes) -> None:
    """Above the axes, so that it never lies on what is drawn; none for one series."""
    if len(chart.series) + len(chart.references) < 2:
        return
    drawn = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    names = [s.name for s in chart.series] + [r.name for r in chart.references]
    handles = [drawn[name] for name in dict.fromkeys(map(_wrapped, names))]
    legend = ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=1,
        frameon=False,
        borderaxespad=0.2,
        labelspacing=0.25,
        handlelength=2.6,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_map(chart: HeatMap, ax: Axes) -> None:
    """Layers down, heads across; every cell has its number where there is room."""
    values = np.asarray(chart.values, dtype=np.float64)
    norm, colours = _scale(chart, values)
    image = ax.imshow(values, cmap=colours, norm=norm, aspect="auto")
    shown = range(0, len(chart.heads), 1 + (len(chart.heads) - 1) // MOST_NUMBERED)
    ax.set_xticks(shown, [str(chart.heads[k]) for k in shown])
    ax.set_yticks(range(len(chart.layers)), [str(k) for k in chart.layers])
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    figure = ax.figure
    assert figure is not None  # axes are on a figure
    bar = figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label(_wrapped(chart.value_label, 34))
    bar.outline.set_visible(False)
    if len(chart.heads) <= MOST_NUMBERED:
        _numbers(values, image, ax)
    elif chart.centre is not None:
        for row, column in np.argwhere(values < chart.centre):
            ax.text(column, row, "−", ha="center", va="center", fontsize=5.5)


def _scale(chart: HeatMap, values: np.ndarray) -> tuple[Normalize, str]:
    """Two colours around the centre, or one from 0 up."""
    known = values[~np.isnan(values)]
    if chart.centre is None:
        top = float(known.max(initial=0.0))
        return Normalize(min(0.0, float(known.min(initial=0.0))), top or 1.0), "Blues"
    reach = float(np.abs(known - chart.centre).max(initial=0.0)) or 1.0
    low, high = chart.centre - reach, chart.centre + reach
    return TwoSlopeNorm(chart.centre, low, high), "PuOr_r"


def _numbers(values: np.ndarray, image: mpl.image.AxesImage, ax: Axes) -> None:
    """The sign is written, so colour is never alone; dark cells have light numbers."""
    reach = float(np.nanmax(np.abs(values), initial=0.0))
    n_digits = 3 if reach < SMALL else 2
    for (row, column), value in np.ndenumerate(values):
        if value != value:
            text, colour = "–", "black"
        else:
            shade = image.cmap(image.norm(value))[:3]
            light = float(np.dot(shade, (0.299, 0.587, 0.114))) > 0.5
            text, colour = _short(float(value), n_digits), "black" if light else "white"
        ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=5.5)


def _short(value: float, n_digits: int) -> str:
    """
    >>> _short(0.034, 2), _short(-0.2, 2), _short(1.5, 2), _short(-0.001, 2)
    ('.03', '−.20', '1.50', '.00')
    """
    digits = f"{abs(value):.{n_digits}f}".removeprefix("0")
    return f"−{digits}" if value < 0 and digits.strip(".0") else digits


def _categories(chart: Chart) -> list[str]:
    """Names of all series' places, in the order in which they first occur."""
    return list(dict.fromkeys(str(x) for s in chart.series for x in s.x))


def _is_sideways(names: Sequence[str]) -> bool:
    return sum(map(len, names)) > MOST_LETTERS


def _wrapped(text: str, width: int = LEGEND) -> str:
    return textwrap.fill(text, width)
