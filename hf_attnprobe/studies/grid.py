"""The tables of a grid: a row for each cell, a sentence for each column."""

from collections.abc import Mapping, Sequence

import numpy as np

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.bootstrap import Estimate
from hf_attnprobe.studies.plan import Column
from hf_attnprobe.studies.results import Results, ResultTable


# --- the tables of a grid ---------------------------------------------------------------------------------------------
def grid_tables(results: Results) -> list[ResultTable]:
    """Every table that the study file asks for: a row for each cell of the grid."""
    return [_grid_table(results, table) for table in results.plan.tables]


def _grid_table(results: Results, table) -> ResultTable:
    jobs = max(
        (results.jobs(c.step) for c in table.columns),
        key=lambda jobs: len(jobs[0].cell),
    )
    variables = tuple(jobs[0].cell)
    strange = [
        c.step
        for c in table.columns
        if not set(results.jobs(c.step)[0].cell) <= set(variables)
    ]
    if strange:
        raise AttnProbeError(
            f"table {table.title!r}: no step is done for every cell that {strange[0]} and the others are; split it"
        )
    rows, names = [], []
    for job in jobs:
        for part, low, high in _parts(table.lengths):
            values = [
                _cell(results, column, job.cell, low, high) for column in table.columns
            ]
            if part is None or any(v is not None and v.n for v in values):
                rows.append((*job.cell.values(), *([part] if part else []), *values))
                names.append(_named(job.cell) + (f" {part} tokens" if part else ""))
    head = (
        *variables,
        *(["tokens"] if table.lengths else []),
        *(c.name for c in table.columns),
    )
    first = len(head) - len(table.columns)
    columns = [
        [(name, row[first + k]) for name, row in zip(names, rows, strict=True)]
        for k in range(len(table.columns))
    ]
    sentences = [
        _sentence(column, values)
        for column, values in zip(table.columns, columns, strict=True)
    ]
    return ResultTable(table.title, head, tuple(rows), tuple(filter(None, sentences)))


def _named(cell: Mapping) -> str:
    """A cell of the grid in words; only some of its values speak for themselves.

    >>> _named({"dataset": "sst", "encoder_size": 8})
    'sst encoder_size 8'
    """
    return " ".join(
        str(v) if name in ("dataset", "encoder", "attention") else f"{name} {v}"
        for name, v in cell.items()
    )


def _parts(lengths: Sequence[int]) -> list[tuple[str | None, float, float]]:
    """Name and bounds of every range of lengths; a single one without a name where there are no bounds."""
    if not lengths:
        return [(None, -np.inf, np.inf)]
    bounds = [1, *lengths]
    inner = [
        (f"{a}–{b - 1}", a, b) for a, b in zip(bounds, lengths, strict=False) if b > a
    ]
    return [*inner, (f"from {lengths[-1]}", lengths[-1], np.inf)]


def _cell(
    results: Results, column: Column, cell: Mapping, low: float, high: float
) -> Estimate | None:
    job = results.at(column.step, cell)
    if (low, high) == (-np.inf, np.inf):
        return results.value(column, job)
    lengths = results.rows(job.folder)["n_tokens"]
    return results.value(
        column, job, lengths.index[(lengths >= low) & (lengths < high)]
    )


def _sentence(
    column: Column, values: Sequence[tuple[str, Estimate | None]]
) -> str | None:
    """Lowest and highest cell, and where the threshold is reached, missed or undecided."""
    real = [(name, v) for name, v in values if v is not None and v.value == v.value]
    if not real:
        return None
    (low_name, low), (high_name, high) = (
        f(real, key=lambda x: x[1].value) for f in (min, max)
    )
    said = f"{column.name}: from {low.value:.3f} ({low_name}) to {high.value:.3f} ({high_name})."
    said = said if len(real) > 1 else f"{column.name}: {low.value:.3f} ({low_name})."
    return said if column.threshold is None else f"{said} {_against(column, real)}"


def _against(column: Column, values: Sequence[tuple[str, Estimate]]) -> str:
    found: dict[str, list[str]] = {"yes": [], "no": [], "open": []}
    for name, v in values:
        low, high = v.ci95 or (v.value, v.value)
        found[
            "yes"
            if low >= column.threshold
            else "no"
            if high < column.threshold
            else "open"
        ].append(name)
    means = column.means[:1].upper() + column.means[1:]
    said = [
        f"{means} (from {column.threshold:g}, the whole interval) in {len(found['yes'])} of {len(values)}"
    ]
    said += [f"there: {', '.join(found['yes'])}"] if found["yes"] else []
    said += [f"not: {', '.join(found['no'])}"] if found["no"] else []
    said += [f"undecided: {', '.join(found['open'])}"] if found["open"] else []
    return "; ".join(said) + "."
