"""The tables of a grid: a row for each cell, a sentence for each column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.verdicts import MIN_TEXTS
from hf_attnprobe.studies.plan import Column, Job, Scalar, Table
from hf_attnprobe.studies.results import Cell, Results, ResultTable


SPEAKING = ("dataset", "encoder", "attention")  # lists whose values need no name beside


@dataclass(frozen=True)
class _Lengths:
    """A range of numbers of tokens, ``low`` included and ``high`` not."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class _Row:
    name: str  # in the sentences
    labels: tuple[Cell, ...]
    values: list[Estimate | None]


def grid_tables(results: Results) -> list[ResultTable]:
    """Every table that the study file asks for: a row for each cell of the grid."""
    return [_grid_table(results, table) for table in results.plan.tables]


def _grid_table(results: Results, table: Table) -> ResultTable:
    jobs = _jobs_of_rows(results, table)
    labels = list(jobs[0].cell)
    if table.lengths:
        rows = _rows_by_length(results, table, jobs)
        labels.append("tokens")
    else:
        rows = [_row(results, table, job.cell) for job in jobs]
    sentences = []
    for number, column in enumerate(table.columns):
        values = [(row.name, row.values[number]) for row in rows]
        sentences += _sentence(column, values)
    return ResultTable(
        title=table.title,
        head=(*labels, *(column.name for column in table.columns)),
        rows=tuple((*row.labels, *row.values) for row in rows),
        sentences=tuple(sentences),
    )


def _jobs_of_rows(results: Results, table: Table) -> list[Job]:
    """The jobs of the step that uses most of the grid's lists: each is a row.

    Raises:
        AttnProbeError: another step of the table uses a list that this one does not.
    """
    by_step = {column.step: results.jobs(column.step) for column in table.columns}
    rows = max(by_step.values(), key=lambda jobs: len(jobs[0].cell))
    for step, jobs in by_step.items():
        if not jobs[0].cell.keys() <= rows[0].cell.keys():
            raise AttnProbeError(
                f"table {table.title!r}: no step is done for every cell that {step} "
                "and the others are; split it"
            )
    return rows


def _row(
    results: Results,
    table: Table,
    cell: Mapping[str, Scalar],
    lengths: _Lengths | None = None,
) -> _Row:
    """The row of a cell, for all of its texts or those within a range of lengths."""
    name, labels = _cell_name(cell), tuple(cell.values())
    if lengths is not None:
        name = f"{name} {lengths.name} tokens"
        labels = (*labels, lengths.name)
    values = [_value_of(results, column, cell, lengths) for column in table.columns]
    return _Row(name, labels, values)


def _rows_by_length(results: Results, table: Table, jobs: Sequence[Job]) -> list[_Row]:
    """Rows of each cell for the ranges of lengths that have texts."""
    rows = []
    for job in jobs:
        for lengths in _ranges(table.lengths):
            row = _row(results, table, job.cell, lengths)
            if any(value is not None and value.n for value in row.values):
                rows.append(row)
    return rows


def _ranges(bounds: Sequence[int]) -> list[_Lengths]:
    """The ranges between bounds.

    >>> [lengths.name for lengths in _ranges([10, 20])]
    ['1–9', '10–19', 'from 20']
    """
    ranges = []
    low = 1
    for high in bounds:
        if high > low:
            ranges.append(_Lengths(f"{low}–{high - 1}", low, high))
        low = high
    return [*ranges, _Lengths(f"from {low}", low, np.inf)]


def _value_of(
    results: Results,
    column: Column,
    cell: Mapping[str, Scalar],
    lengths: _Lengths | None,
) -> Estimate | None:
    """A column's value over all texts, or over those within a range of lengths."""
    job = results.at(column.step, cell)
    if lengths is None:
        return results.value(column, job)
    n_tokens = results.rows(job.folder)["n_tokens"]
    inside = (n_tokens >= lengths.low) & (n_tokens < lengths.high)
    return results.value(column, job, n_tokens.index[inside])


def _cell_name(cell: Mapping[str, Scalar]) -> str:
    """A cell of the grid in words.

    >>> _cell_name({"dataset": "sst", "encoder_size": 8})
    'sst encoder_size 8'
    """
    words = []
    for name, value in cell.items():
        words.append(str(value) if name in SPEAKING else f"{name} {value}")
    return " ".join(words)


def _sentence(column: Column, values: Sequence[tuple[str, Estimate | None]]) -> list[str]:
    """Lowest and highest cell, and what the threshold says; none without a value."""
    defined = {}
    for name, value in values:
        if value is not None and not np.isnan(value.value):
            defined[name] = value
    if not defined:
        return []
    low = min(defined, key=lambda name: defined[name].value)
    high = max(defined, key=lambda name: defined[name].value)
    sentence = f"{defined[low].value:.3f} ({low})"
    if len(defined) > 1:
        sentence = f"from {sentence} to {defined[high].value:.3f} ({high})"
    sentence = f"{column.name}: {sentence}."
    if column.threshold is not None and column.means is not None:
        reached = _against_threshold(column.threshold, column.means, defined)
        sentence = f"{sentence} {reached}"
    return [sentence]


def _against_threshold(threshold: float, means: str, values: Mapping[str, Estimate]) -> str:
    """Where the whole interval is above the threshold, where below, where neither.

    Without an interval, or of too few texts, nothing can be said.
    """
    groups: dict[str, list[str]] = {"there": [], "not": [], "cannot say": []}
    for name, value in values.items():
        group = "cannot say"
        if value.ci95 is not None and (value.n or 0) >= MIN_TEXTS:
            low, high = value.ci95
            if low >= threshold:
                group = "there"
            elif high < threshold:
                group = "not"
        groups[group].append(name)
    parts = [
        f"{means[:1].upper()}{means[1:]} (from {threshold:g}, the whole interval) "
        f"in {len(groups['there'])} of {len(values)}"
    ]
    for group, names in groups.items():
        if names:
            parts.append(f"{group}: {', '.join(names)}")
    return f"{'; '.join(parts)}."
