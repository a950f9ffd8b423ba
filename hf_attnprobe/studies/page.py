"""A study on one page, from its tables. Pure: a report in, a string out."""

from collections.abc import Iterator

from hf_attnprobe.charts.chart import Chart, Series
from hf_attnprobe.page import elements
from hf_attnprobe.page.document import document
from hf_attnprobe.page.html import Child, Html, tag
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.studies.report import StudyReport, shown, to_json
from hf_attnprobe.studies.results import Cell, ResultTable


SPLITS = ("train", "validation", "test")
MOST_SERIES = 4
MOST_PLACES = 24
"""A chart of more rows cannot be read."""
ON_ONE_AXIS = 1.5
"""Numbers up to this size share an axis: scores, shares, divergences, correlations."""


def study_page(report: StudyReport) -> str:
    """The page of a study: one self-contained HTML file."""
    tables = [_section(table, k) for k, table in enumerate(report.tables, 1)]
    notes = elements.section("How to read it", elements.bullets(report.notes), id="notes")
    return document(
        report.title,
        tag("header", tag("h1", report.title), tag("p", f"Study {report.study}.")),
        *([notes, *tables] if report.quick else [*tables, notes]),
        elements.section("How it was made", *_made(report), id="steps"),
        data=to_json(report),
    )


def _section(table: ResultTable, number: int) -> Html:
    """What the table says, its chart where it has one, and the table."""
    chart = chart_of(table, number)
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    return elements.section(
        table.title,
        elements.bullets(table.sentences) if table.sentences else None,
        elements.figure(chart) if chart is not None else None,
        elements.table(table.head, rows, caption=table.title),
        id=f"table-{number}",
    )


def _cell(cell: Cell) -> Child:
    """Numbers as numbers; estimates with their interval as text."""
    return shown(cell) if isinstance(cell, Estimate) else cell


def chart_of(table: ResultTable, number: int) -> Chart | None:
    """The estimates of a table, a series per column, a place per row.

    Returns:
        None where there are too few or too many rows, or no estimates of one size.
    """
    columns = [k for k in range(len(table.head)) if _is_drawn(table, k)]
    if not 2 <= len(table.rows) <= MOST_PLACES or not columns:
        return None
    named = [k for k in range(columns[0]) if _tells_rows_apart(table, k)]
    places = tuple(", ".join(shown(row[k]) for k in named) for row in table.rows)
    if len(set(places)) < len(places):
        places = tuple(f"{k}. {name}" for k, name in enumerate(places, 1))
    series = tuple(_series(table, k, places) for k in columns[:MOST_SERIES])
    drawn = ", ".join(s.name for s in series)
    return Chart(
        key=f"chart-{number}",
        title=f"{table.title}: {drawn}",
        finding="Bars are 95% intervals over texts, of one training each; the table has all "
        "numbers, and those of the papers.",
        source="",
        kind="dots",
        x_label=", ".join(table.head[k] for k in named) or "row",
        y_label=drawn if len(series) == 1 else "number named in the legend",
        series=series,
    )


def _is_drawn(table: ResultTable, column: int) -> bool:
    cells = [row[column] for row in table.rows]
    found = [c for c in cells if isinstance(c, Estimate) and c.value == c.value]
    others = [c for c in cells if c is not None and not isinstance(c, Estimate)]
    if len(found) < 2 or others or any(c.ci95 is None for c in found):
        return False
    sizes = [abs(value) for c in found for value in (c.value, *(c.ci95 or ()))]
    return max(sizes) <= ON_ONE_AXIS


def _tells_rows_apart(table: ResultTable, column: int) -> bool:
    """Whether a column is of names that are not all the same."""
    cells = [row[column] for row in table.rows]
    return all(isinstance(cell, str) for cell in cells) and len(set(cells)) > 1


def _series(table: ResultTable, column: int, places: tuple[str, ...]) -> Series:
    nan = float("nan")
    values, low, high, sizes = [], [], [], []
    for row in table.rows:
        cell = row[column]
        estimate = cell if isinstance(cell, Estimate) else Estimate(nan)
        ends = estimate.ci95 or (nan, nan)
        values.append(estimate.value)
        low.append(ends[0])
        high.append(ends[1])
        sizes.append(estimate.n or 0)
    name = table.head[column]
    n = tuple(sizes)
    return Series(name, places, tuple(values), tuple(low), tuple(high), n)


def _made(report: StudyReport) -> Iterator[Html]:
    """Data, steps, and the command."""
    sizes = [[d.name, *(d.sizes.get(s, 0) for s in SPLITS)] for d in report.data]
    yield elements.table(["data set", *SPLITS], sizes, caption="Texts of each data set")
    steps = [[m.name, m.seed, m.epochs] for m in report.made]
    head = ["step or model", "seed", "epochs"]
    yield elements.details(
        f"{len(steps)} steps and models",
        elements.table(head, steps, caption="Steps, and models that they trained"),
    )
    quick = " with --quick" if report.quick else ""
    yield tag("p", f"Repeated by attnprobe study{quick}, with the same file and options.")
