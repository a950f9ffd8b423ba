"""Charts drawn with matplotlib, for notebooks and papers; a page shows the same drawings.

>>> from hf_attnprobe import figures  # doctest: +SKIP
>>> report.plot("tau_gradient")  # doctest: +SKIP
>>> figures.draw(report.charts()[0]).figure  # doctest: +SKIP
>>> figures.save(report.charts(), "figures")  # doctest: +SKIP

Neither pyplot nor its global state is used, and the bytes of files are the same every time.
"""

import io
import logging
import os
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.terminal import visible
from hf_attnprobe.plots.chart import (
    LEAST_FULL,
    Chart,
    HeatMap,
    Series,
    drawable,
)
from hf_attnprobe.statistics.estimates import MIN_SHOWN


__all__ = ["captions", "draw", "draw_one", "save"]

logger = logging.getLogger(__name__)


# --- how figures look -------------------------------------------------------------------

COLUMN, PAGE = 3.25, 6.75  # inches, a column of most proceedings, and two
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
"""Okabe & Ito 2008: told apart with every kind of colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("////", "\\\\\\\\", "xxxx", "||||", "----", "++++", "//")
"""No dots or stars, which make an SVG of 5 kB one of 150."""
REFERENCE_LINES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
REFERENCE_COLOURS = ("#555555", "#222222", "#777777")
GRID = "#DDDDDD"

LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 7,  # and all texts alike, as on a page
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
PLAIN_TEXT: dict[Any, Any] = {"text.parse_math": False}
"""Names of classes may hold dollar signs."""
REPRODUCIBLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}

ACROSS, UPRIGHT, LEGEND = (
    44,
    30,
    40,
)  # characters in a line of labels and legend
IN_CELLS = 5.5
"""Points of the type in cells of a map."""
DARK, LIGHT = "#010101", "#fefefe"
"""Of numbers in cells, whose shades are the same on light and dark pages."""
MOST_NARROW, MOST_NUMBERED = (
    12,
    24,
)  # heads: in one column, and with their numbers
ROOM = 0.8  # of the way between two categories
LINE_HEIGHT = 0.135  # inches of a line of the legend
MARK, SMALL_MARK = 4, 2.5  # points across
MOST_MARKS = 50  # of a series; more are small and pale


# --- figures without a window -----------------------------------------------------------

UNDATED: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""By format, the metadata that leaves the time out."""


class PaperFigure(Figure):
    """A figure that a notebook shows as SVG."""

    def _repr_svg_(self) -> str:
        return written(self, "svg").decode()


class PaperAxes(Axes):
    """The axes of such a figure, which a notebook shows as the figure."""

    def _repr_svg_(self) -> str:
        figure = self.get_figure(root=True)
        assert figure is not None  # they were made for it
        return written(figure, "svg").decode()


def written(figure: Figure, kind: str, *, salt: str = "attnprobe") -> bytes:
    """A figure as the bytes of a file.

    Args:
        figure: any figure of matplotlib.
        kind: ``svg``, ``pdf`` or ``png``.
        salt: of the ids in an SVG, so that those of two on one page differ.
    """
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    with mpl.rc_context(LOOK | REPRODUCIBLE | {"svg.hashsalt": salt}):
        figure.savefig(stream, format=kind, metadata=UNDATED[kind], dpi=300)
    return stream.getvalue()


# --- one chart --------------------------------------------------------------------------

Handle = Artist | ErrorbarContainer
"""What a legend shows of a series."""


def draw(chart: Chart | HeatMap, ax: Axes | None = None, *, title: bool = False) -> Axes:
    """A chart on axes.

    Args:
        chart: what is drawn.
        ax: where; without, on a new figure as wide as a paper's column, which a notebook
            shows as the last line of a cell. It is ``draw(chart).figure``.
        title: whether the chart's title is written above; papers have captions.

    Returns:
        The axes.
    """
    if ax is None:
        with mpl.rc_context(LOOK):
            figure = PaperFigure(_size(chart, title), layout="constrained")
            return draw(chart, figure.add_subplot(axes_class=PaperAxes), title=title)
    above = _wrapped(chart.title, ACROSS) if title else ""
    with mpl.rc_context(PLAIN_TEXT):
        if isinstance(chart, HeatMap):
            _draw_map(chart, ax)
            ax.set_title(above)
        else:
            _draw_chart(chart, ax, above)
    _write_plainly(ax)
    return ax


def draw_one(
    charts: Sequence[Chart | HeatMap],
    kind: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws one of several charts with its title, by its key; by default the first.

    Raises:
        AttnProbeError: nothing to draw, or no such chart.
    """
    known = {chart.key: chart for chart in charts}
    if not known:
        raise AttnProbeError(
            f"expected a report with figures, this one has none: texts are fewer than {MIN_SHOWN}, "
            "or its rows are missing; give more texts, or read it from its folder"
        )
    if kind is not None and kind not in known:
        of_heads = any(isinstance(chart, HeatMap) for chart in charts)
        raise AttnProbeError(
            f"expected a figure of this report, got {kind}; there are "
            f"{', '.join(known)}"
            f"{' (others of one head: pass site=(layer, head))' if of_heads else ''}"
        )
    return draw(known[kind or next(iter(known))], ax, title=True)


def _write_plainly(ax: Axes) -> None:
    """No text between dollars is a formula: names come from users."""
    texts = [ax.title, ax.xaxis.label, ax.yaxis.label]
    texts += [*ax.get_xticklabels(), *ax.get_yticklabels()]
    for text in texts:
        text.set_parse_math(False)


def _size(chart: Chart | HeatMap, title: bool) -> tuple[float, float]:
    """Inches: a column, or two for a map of many heads."""
    n_lines = len(textwrap.wrap(chart.title, ACROSS)) if title else 0
    if isinstance(chart, HeatMap):
        width = COLUMN if len(chart.heads) <= MOST_NARROW else PAGE
        return width, 0.9 + 0.22 * len(chart.layers) + LINE_HEIGHT * n_lines
    names = [
        *(s.name for s in chart.series),
        *(r.name for r in chart.references),
    ]
    n_lines += sum(len(textwrap.wrap(name, LEGEND)) for name in names)
    body = 2.0
    if chart.kind == "dots":
        row = 0.15 + 0.1 * len(chart.series)
        body = 0.6 + row * len(categories(chart))
    return COLUMN, body + LINE_HEIGHT * n_lines


def _draw_chart(chart: Chart, ax: Axes, title: str) -> None:
    draw_series = {
        "histogram": _histogram,
        "dots": _dots,
        "curve": _curves,
        "points": _points,
    }[chart.kind]
    handles = list(draw_series(chart, ax))
    handles += [_reference(chart, k, ax) for k in range(len(chart.references))]
    _axes(chart, ax)
    _legend(chart, ax, handles, title)
    if not any(drawable(y) for s in chart.series for y in s.y):
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center")


def _histogram(chart: Chart, ax: Axes) -> Iterator[Handle]:
    """Outlines over each other, each hatched unlike the others."""
    for k, series in enumerate(chart.series):
        last = float((0.0, *series.x)[-1])
        yield ax.stairs(
            np.nan_to_num(_known(series.y)),
            [*_known(series.x), last + (chart.bin_width or 1.0)],  # type: ignore[arg-type]
            fill=True,
            facecolor="none",
            edgecolor=COLOURS[k % len(COLOURS)],
            hatch=HATCHES[k % len(HATCHES)],
            linewidth=0.8,
            label=_wrapped(series.name),
        )


def _dots(chart: Chart, ax: Axes) -> Iterator[Handle]:
    """Values to the right with their bars, categories below each other, series side by side."""
    names = categories(chart)
    for k, series in enumerate(chart.series):
        lane = ((k + 0.5) / len(chart.series) - 0.5) * ROOM
        places = [names.index(str(x)) + lane for x in series.x]
        yield ax.errorbar(
            _known(series.y),
            places,
            xerr=_bars(series),
            fmt=MARKERS[k % len(MARKERS)],
            color=COLOURS[k % len(COLOURS)],
            elinewidth=1.2,
            label=_wrapped(series.name),
        )
    ax.set_yticks(range(len(names)), [_wrapped(name, 24) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)


def _bars(series: Series) -> np.ndarray | None:
    """How far the bars reach below and above, [2, values]; None without any."""
    if not series.low:
        return None
    y, low, high = map(_known, (series.y, series.low, series.high))
    reach = np.stack([y - low, high - y])
    return np.where(np.isnan(reach), 0, reach).clip(0)


def _known(values: Sequence[float]) -> np.ndarray:
    """Values as an array; NaN where there is none that can be drawn."""
    return np.array([value if drawable(value) else np.nan for value in values], np.float64)


def _curves(chart: Chart, ax: Axes) -> Iterator[Handle]:
    for k, series in enumerate(chart.series):
        x = _known(series.x)  # type: ignore[arg-type]
        colour = COLOURS[k % len(COLOURS)]
        (line,) = ax.plot(
            x,
            _known(series.y),
            color=colour,
            linestyle=LINES[k % len(LINES)],
            marker=MARKERS[k % len(MARKERS)],
            markevery=marked(chart, k),
            label=_wrapped(series.name),
        )
        if series.low:
            low, high = _known(series.low), _known(series.high)
            ax.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
        yield line


def marked(chart: Chart, k: int) -> slice:
    """Which values of the k-th line have a mark: some six, not those of its neighbours."""
    every = max(1, len(chart.series[k].x) // 6)
    return slice(k * every // len(chart.series), None, every)


def _points(chart: Chart, ax: Axes) -> Iterator[Handle]:
    """Single points, pale where they are many; those that are joined in front."""
    for k, series in enumerate(chart.series):
        many = len(series.x) > MOST_MARKS
        yield ax.errorbar(
            _known(series.x),  # type: ignore[arg-type]
            _known(series.y),
            yerr=_bars(series),
            fmt="o" if many else MARKERS[k % len(MARKERS)],
            linestyle=LINES[k % len(LINES)] if series.joined else "none",
            color=COLOURS[k % len(COLOURS)],
            alpha=0.5 if many else 1.0,
            markersize=SMALL_MARK if many else MARK,
            markeredgewidth=0 if many else None,
            elinewidth=1.0,
            zorder=3 if series.joined else 2,
            label=_wrapped(series.name),
        )


def _reference(chart: Chart, number: int, ax: Axes) -> Handle:
    """A line across; upright where values run to the right."""
    reference = chart.references[number]
    upright = (reference.axis == "x") != (chart.kind == "dots")
    line = ax.axvline if upright else ax.axhline
    return line(
        reference.value if drawable(reference.value) else np.nan,
        color=REFERENCE_COLOURS[number % len(REFERENCE_COLOURS)],
        linestyle=REFERENCE_LINES[number % len(REFERENCE_LINES)],
        linewidth=0.9,
        zorder=1.5,
        label=_wrapped(reference.name),
    )


def _axes(chart: Chart, ax: Axes) -> None:
    across, upright = chart.x_label, chart.y_label
    x_range, y_range = chart.x_range, chart.y_range
    is_dots = chart.kind == "dots"
    if is_dots:
        across, upright = upright, across
        x_range, y_range = chart.y_range, None
    ax.set_xlabel(_wrapped(across, ACROSS))
    ax.set_ylabel(_wrapped(upright, UPRIGHT))
    if _is_range(x_range):
        ax.set_xlim(*_with_room(x_range))
    if _is_range(y_range):
        ax.set_ylim(*_with_room(y_range))
    if chart.kind == "histogram":
        ax.locator_params(axis="x", nbins=5)
        if y_range is None:
            ax.set_ylim(bottom=0)
    if isinstance(ax, PaperAxes):
        ax.grid(
            axis="x" if is_dots else "y",
            color=GRID,
            linewidth=0.5,
            clip_on=False,
        )
        ax.set_axisbelow(True)


def _is_range(
    span: tuple[float, float] | None,
) -> TypeGuard[tuple[float, float]]:
    return span is not None and all(map(drawable, span)) and span[0] < span[1]


def _with_room(span: tuple[float, float]) -> tuple[float, float]:
    room = 0.02 * (span[1] - span[0])
    return span[0] - room, span[1] + room


def _legend(chart: Chart, ax: Axes, handles: Sequence[Handle], title: str) -> None:
    """Above the axes, so that it never lies on what is drawn, and begun by the title.

    On a figure of its own it has the whole width. One series alone needs no name.
    """
    named = [
        *(s.name for s in chart.series),
        *(r.name for r in chart.references),
    ]
    if len(named) < 2:
        named = []
    names = [name for name in named if name]
    handles = [handle for handle, name in zip(handles, named, strict=False) if name]
    if not names and not title:
        return
    on: Any = ax
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
    if isinstance(ax, PaperAxes):
        on, place = ax.get_figure(), {"loc": "outside upper left"}
    legend = on.legend(
        handles=handles,
        labels=names,
        title=title or None,
        alignment="left",
        frameon=False,
        borderaxespad=0.2,
        labelspacing=0.25,
        handlelength=2.6,
        **place,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(_wrapped(name))


def _draw_map(chart: HeatMap, ax: Axes) -> None:
    """Layers down, heads across; every cell has its number where there is room."""
    values = np.asarray(chart.values, dtype=np.float64)
    norm, colours = _scale(chart, values)
    image = ax.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="none")
    shown = range(0, len(chart.heads), 1 + (len(chart.heads) - 1) // MOST_NUMBERED)
    ax.set_xticks(shown, [str(chart.heads[k]) for k in shown])
    ax.set_yticks(range(len(chart.layers)), [str(k) for k in chart.layers])
    is_written = len(chart.heads) <= MOST_NUMBERED
    mark = f" (bold: {chart.mark})" if chart.low and is_written else ""
    ax.set_xlabel(f"head{mark}")
    ax.set_ylabel("layer")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    figure = ax.figure
    assert figure is not None  # axes are on a figure
    bar = figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label(_wrapped(chart.value_label, 34))
    bar.outline.set_visible(False)
    if is_written:
        _numbers(chart, image, ax)


def _scale(chart: HeatMap, values: np.ndarray) -> tuple[Normalize, str]:
    """Two colours around the centre, or one from 0 up."""
    known = values[~np.isnan(values)]
    if chart.centre is None:
        top = float(known.max(initial=LEAST_FULL))
        return Normalize(min(0.0, float(known.min(initial=0.0))), top), "Blues"
    reach = float(np.abs(known - chart.centre).max(initial=LEAST_FULL))
    low, high = chart.centre - reach, chart.centre + reach
    return TwoSlopeNorm(chart.centre, low, high), "PuOr_r"


def _numbers(chart: HeatMap, image: mpl.image.AxesImage, ax: Axes) -> None:
    """The sign is written, so colour is never alone; dark cells have light numbers."""
    values = np.asarray(chart.values, dtype=np.float64)
    reach = float(np.nanmax(np.abs(values), initial=0.0))
    n_digits = 3 if reach < LEAST_FULL else 2
    for (row, column), value in np.ndenumerate(values):
        text, colour, weight = "–", DARK, "normal"
        if value == value:
            shade = image.cmap(image.norm(np.asarray(value)))[:3]
            light = float(np.dot(shade, (0.299, 0.587, 0.114))) > 0.5
            text, colour = (
                _short(float(value), n_digits),
                DARK if light else LIGHT,
            )
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
            fontsize=IN_CELLS,
        )


def _short(value: float, n_digits: int) -> str:
    """
    >>> _short(0.034, 2), _short(-0.2, 2), _short(1.5, 2), _short(-0.001, 2)
    ('.03', '−.20', '1.50', '.00')
    """
    digits = f"{abs(value):.{n_digits}f}".removeprefix("0")
    return f"−{digits}" if value < 0 and digits.strip(".0") else digits


def categories(chart: Chart) -> list[str]:
    """Names of all series' places, in the order in which they first occur."""
    return list(dict.fromkeys(str(x) for s in chart.series for x in s.x))


def _wrapped(text: str, width: int = LEGEND) -> str:
    return textwrap.fill(visible(text), width)


# --- files ------------------------------------------------------------------------------

CAPTIONS = "captions.md"


def save(
    charts: Iterable[Chart | HeatMap],
    folder: str | os.PathLike,
    formats: Sequence[str] = ("svg", "pdf"),
) -> list[Path]:
    """Writes each chart in each format, and their captions.

    Args:
        charts: to draw; the files are named by their keys.
        folder: made where there is none. Files of the same names are replaced.
        formats: of ``svg``, ``pdf`` and ``png``.

    Returns:
        The files, ``captions.md`` last.

    Raises:
        AttnProbeError: an unknown format, or nothing to draw.
    """
    unknown = [kind for kind in formats if kind not in UNDATED]
    if unknown:
        raise AttnProbeError(f"expected formats of {', '.join(UNDATED)}, got {unknown[0]!r}")
    charts = list(charts)
    if not charts:
        raise AttnProbeError(
            "expected a report with numbers to draw, got one of which nothing can be drawn"
        )
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnProbeError(
            f"expected a folder for figures, got {folder} ({error.strerror})"
        ) from error
    paths = []
    with warnings.catch_warnings(record=True, action="always") as caught:
        for chart in charts:
            figure = draw(chart).get_figure(root=True)
            assert figure is not None  # it was made for these axes
            for kind in formats:
                content = written(figure, kind)
                paths.append(_write(folder / f"{chart.key}.{kind}", content))
    _report(caught)
    paths.append(_write(folder / CAPTIONS, captions(charts).encode()))
    return paths


def _report(caught: Sequence[warnings.WarningMessage]) -> None:
    """Characters that the font lacks, in one line; other warnings as they are."""
    missing = [w for w in caught if "missing from font" in str(w.message)]
    if missing:
        logger.warning(
            "the font of the figures lacks characters of some names: SVG files keep "
            "them as text, other files show boxes in their place"
        )
    for one in caught:
        if one not in missing:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def captions(charts: Iterable[Chart | HeatMap]) -> str:
    """What belongs below each figure, as Markdown."""
    parts = ["# Captions"]
    for chart in charts:
        said = [f"**{chart.title}.**", chart.finding]
        if isinstance(chart, Chart) and any(s.low for s in chart.series):
            said.append(f"Bars: {chart.bars}.")
        if chart.source:
            said.append(f"(After {chart.source}.)")
        parts.append(f"## {chart.key}\n\n{' '.join(filter(None, said))}")
    return "\n\n".join(parts) + "\n"


def _write(path: Path, content: bytes) -> Path:
    """A reader never sees half of a file."""
    hidden = path.with_name(f".{path.name}")
    try:
        hidden.write_bytes(content)
        os.replace(hidden, path)
    except OSError as error:
        raise AttnProbeError(f"cannot write {path}: {error.strerror}") from error
    return path
