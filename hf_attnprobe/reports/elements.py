"""What pages draw: number lines, figures and maps of heads, with the tables behind them. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

from hf_attnprobe.charts.chart import Chart, HeatMap, drawable
from hf_attnprobe.markdown import MISSING, number
from hf_attnprobe.reports.head_cells import (
    cells,
    colours,
    is_coarse,
    rows_of_heads,
    scale_of_colours,
    squares,
)
from hf_attnprobe.reports.number_line import number_line
from hf_attnprobe.reports.tags import Child, Html, tag


LONG = 420
"""Letters of a finding that is too long to stand beside its drawing."""

MOST_ROWS = 400
"""Of a table behind a figure; a page with more of them is slow to read and to load."""

MOST_POINTS = 30
"""Of a series with more than twice as many, taken evenly, in the table of a cloud or line."""

NUMBERS = re.compile(r"[-+−≤]? ?\d*\.?\d+(e-?\d+)? \[.*\]|\[.*\d, .*\d\]")
"""Of a cell with an interval, which is not to be broken into lines."""

SYMBOLS = {
    "yes": "M4.5 8.5l2.5 2.5 4.5-5.5",
    "mostly yes": "M4.5 6.8l2.5 2.5 4.5-5.5M4.5 12h7",
    "partly": "M4 8h8",
    "mostly no": "M5.5 3.5l5 5M10.5 3.5l-5 5M4.5 12h7",
    "no": "M5 5l6 6M11 5l-6 6",
    "cannot say": "M6 6.2c.2-2.6 4-2.4 4 0 0 1.6-2 1.5-2 3.1M8 11.3v.6",
}


def details(summary: Child, *children: Child, open: bool = False) -> Html:
    """What is folded away until it is asked for; printed all the same.

    Args:
        summary: what is always seen.
        children: what is folded away.
        open: whether it is unfolded at first.
    """
    return tag("details", tag("summary", summary), *children, open=open)


def html_table(
    head: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    *,
    caption: str = "",
    sortable: bool = True,
) -> Html:
    """A table; numbers are aligned to the right, the first cell of a row names it.

    Where it is wider than the screen it scrolls by itself, with the keyboard too.

    Args:
        head: of the columns.
        rows: cells; numbers are written with three digits, None and NaN as a dash.
        caption: what is in it.
        sortable: whether a click on a column's head sorts by it, where scripts run.
    """
    lines = [list(row) for row in rows]
    is_number = [any(_is_number(line[k]) for line in lines) for k in range(len(head))]
    heads = [
        tag("th", h, scope="col", class_="n" if n else None)
        for h, n in zip(head, is_number, strict=True)
    ]
    inner = tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", tag("tr", *heads)),
        tag("tbody", *[_row(line) for line in lines]),
        class_="sortable" if sortable and len(lines) > 1 else None,
    )
    return _scrolling(inner, caption or f"table: {', '.join(map(str, head[:3]))}")


def scale(
    value: float,
    low: float | None = None,
    high: float | None = None,
    thresholds: Mapping[str, float] | None = None,
    yardsticks: Mapping[str, float] | None = None,
    range: tuple[float, float] | None = None,
    before: str = "",
) -> Html:
    """A number on a line, with its interval, among what it is to be compared with.

    Args:
        value: NaN where there is none.
        low: lower end of its interval; None without one.
        high: upper end.
        thresholds: where the answer changes, by what they are.
        yardsticks: such as control, chance, gradient, random, exact minimum.
        range: ends of the line; None for round numbers around all that is on it.
        before: what stands before the value, such as "at most".
    """
    drawn = number_line(value, low, high, thresholds or {}, yardsticks or {}, range, before)
    return tag("div", drawn, class_="scale-line")


def figure(chart: Chart) -> Html:
    """A drawing with its finding, its source, and a table of its numbers behind it."""
    from hf_attnprobe.reports.svg import draw  # matplotlib is slow to import

    head, rows = chart.table()
    kind = "chart long" if len(chart.finding) > LONG else "chart"
    note = None
    if chart.kind in ("points", "curve"):
        n_all = len(rows)
        rows = _thinned(chart, rows)
        if len(rows) < n_all:
            said = f"{len(rows)} of {n_all:,} values, taken evenly; all are in the report's rows."
            note = tag("p", said)
    return _figure(chart, draw(chart), head, rows, [], kind, note=note)


def head_map(heat_map: HeatMap) -> Html:
    """Layers × heads, shaded by a number; a table of all numbers, with intervals, behind.

    Of more than 4,096 heads the map is squares without numbers, and the table has those
    that are farthest from the middle.
    """
    drawn = squares(heat_map) if is_coarse(heat_map) else cells(heat_map)
    head, rows = rows_of_heads(heat_map)
    centre, _ = colours(heat_map)

    def nearness(row: list[object]) -> float:
        return -abs(row[2] - centre) if drawable(row[2]) else 1.0  # type: ignore[operator]

    if is_coarse(heat_map):
        rows = sorted(rows, key=nearness)
    else:
        rows = [row for row in rows if drawable(row[2])]
    framed = drawn if is_coarse(heat_map) else _scrolling(drawn, heat_map.title)
    legend = [scale_of_colours(heat_map)]
    most = MOST_ROWS if is_coarse(heat_map) else len(rows)
    return _figure(heat_map, framed, head, rows, legend, "heads", most=most)


def _figure(
    shown: Chart | HeatMap,
    drawing: Html,
    head: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    legend: list[Html],
    kind: str,
    most: int = MOST_ROWS,
    note: Html | None = None,
) -> Html:
    caption = [tag("h3", shown.title), tag("p", shown.finding)]
    if shown.source:
        caption.append(tag("p", f"Source: {shown.source}", class_="source"))
    caption_of = f"Numbers of “{shown.title}”"
    left_out = len(rows) - most
    if left_out > 0:
        note = tag("p", f"{most} of {len(rows):,} values; all are in the report's rows.")
    cut = _without_empty_columns(head, rows[:most])
    # The style aligns all cells of these tables, which are many, without a class each.
    numbers = Html(html_table(*cut, caption=caption_of).replace('<td class="n">', "<td>"))
    return tag(
        "figure",
        tag("figcaption", *caption),
        tag("div", drawing, *legend, class_="drawing"),
        details("The numbers as a table", note, numbers) if rows else None,
        id=shown.key,
        class_=kind,
    )


def _thinned(chart: Chart, rows: list[list[object]]) -> list[list[object]]:
    """The rows of a chart's table; of long series only some, the last among them."""
    kept, start = [], 0
    for s in chart.series:
        own = rows[start : start + len(s.y)]
        start += len(s.y)
        if len(own) > 2 * MOST_POINTS:
            step = (len(own) - 1) / (MOST_POINTS - 1)
            own = [own[round(k * step)] for k in range(MOST_POINTS)]
        kept += own
    return kept + rows[start:]


def _without_empty_columns(
    head: Sequence[Child], rows: Sequence[Sequence[Child]]
) -> tuple[list[Child], list[list[Child]]]:
    kept = [
        k
        for k in range(len(head))
        if k < 2 or any(row[k] is not None and row[k] == row[k] for row in rows)
    ]
    return [head[k] for k in kept], [[row[k] for k in kept] for row in rows]


def _scrolling(inner: Html, label: str) -> Html:
    return tag("div", inner, class_="scroll", role="group", aria_label=label, tabindex=0)


def _row(cells: Sequence[Child]) -> Html:
    first, *others = cells
    is_name = not _is_number(first) and first not in (None, "")
    start = tag("th", first, scope="row") if is_name else _cell(first)
    return tag("tr", start, *map(_cell, others))


def _cell(value: Child) -> Html:
    if value is None:
        return tag("td", MISSING)
    if not _is_number(value):
        is_interval = isinstance(value, str) and NUMBERS.fullmatch(value)
        return tag("td", value, class_="n" if is_interval else None)
    shown = value if isinstance(value, Integral) else _written(float(value))  # type: ignore
    return tag("td", shown, class_="n")


def _written(value: float) -> str:
    """Three digits behind the point; more of them where a small number needs them."""
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def symbol(answer: str) -> Html | None:
    """The sign of an answer, beside its word; None of any other word."""
    if answer not in SYMBOLS:
        return None
    ring = tag("circle", cx=8, cy=8, r=7)
    mark = tag("path", d=SYMBOLS[answer])
    return tag("svg", ring, mark, viewBox="0 0 16 16", class_="symbol", aria_hidden="true")
