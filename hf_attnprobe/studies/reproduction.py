"""Compares a study with published numbers, and describes which numbers it has reproduced."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hf_attnprobe.core.formatting import format_count, format_number
from hf_attnprobe.documents.blocks import Block, InlineText, Strong
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.studies.paper_tables import ResultTable, TableCell


COMPARED_COLUMNS = {
    "published τ": "τ",
    "published std": "std",
    "published significant": "significant",
    "published": "ours",
    "published mean": "mean",
    "published (searched)": "searched",
    "published median": "median share of tokens erased",
    "published trained": "F1 trained",
    "published uniform": "change, uniform",
    "published permuted": "change, permuted",
    "published F1": "F1",
}
"""Maps the title of each column with published numbers to the title of the column with our numbers."""

OTHER_RESULT_COLUMNS = ("median Δŷ",)
"""Further titles of columns with our numbers, if the column with published ones is called "published"."""

UNCOUNTED_COLUMNS = ("published std", "published significant")
"""Titles of published columns that only describe another number, so that they are not counted."""

MAX_DIFFERENCE = 0.05
"""Largest difference from a published number that still counts as reproduced.

Results of two training seeds differ by about as much. A published number also counts as reproduced if
it lies in our 95% interval.
"""

MAX_RELATIVE_DIFFERENCE = 0.2
"""Largest difference that still counts as reproduced, as a fraction of the published number.

It matters for numbers below 0.25, such as output changes of 0.03 to 0.1. A difference of 0.05 would be
large for them.
"""

MAX_F1_DIFFERENCE = 0.02
"""Largest difference from a published F1 that still counts as reproduced, from 0 to 1."""

POINTS_COLUMNS = ("F1 trained", "change, uniform", "change, permuted")
"""Titles of columns whose numbers are in points of F1, from 0 to 100."""

MAX_LISTED_NUMBERS = 3
"""Maximum number of differing numbers that the beginning of a report lists for each table."""


@dataclass(frozen=True)
class ComparedNumber:
    """One of our numbers and the published number that it can be compared with.

    Attributes:
        labels: texts in the table row that describe the number, such as "sst, bilstm".
        our_value: our number.
        published_value: the published number.
        is_reproduced: whether both numbers agree; None if our number comes from too few texts, so
            that they are not compared.
    """

    labels: str
    our_value: float
    published_value: float
    is_reproduced: bool | None

    def __str__(self) -> str:
        if self.is_reproduced is None:
            return self.labels
        numbers = f"{format_number(self.our_value, digits=2)}, published "
        return f"{self.labels} ({numbers}{format_number(self.published_value, digits=2)})"


def pair_columns(head: Sequence[str]) -> dict[int, int]:
    """Find the column with our numbers for each column with published numbers.

    Args:
        head: column titles of a table.

    Returns:
        Index of our column by the index of the published column.
    """
    pairs = {}
    for index, title in enumerate(head):
        result_titles = [COMPARED_COLUMNS.get(title)]
        if title == "published":
            result_titles += OTHER_RESULT_COLUMNS
        for result_title in result_titles:
            if result_title in head:
                pairs[index] = head.index(result_title)
    return pairs


def order_columns(head: Sequence[str]) -> list[int]:
    """Order the columns of a table so that each published number follows ours.

    Args:
        head: column titles.

    Returns:
        Column indices in the new order.
    """
    pairs = pair_columns(head)
    order: list[int] = []
    for index in range(len(head)):
        if index not in pairs:
            order.append(index)
            order += [
                published_index
                for published_index, result_index in pairs.items()
                if result_index == index
            ]
    return order


def compare_with_published(table: ResultTable) -> Iterator[ComparedNumber]:
    """Yield each number of a table for which there is a published number.

    A number from fewer than ten texts is not displayed in the table. It is therefore not compared
    either, but it is yielded.

    Args:
        table: a table of results.
    """
    for published_index in pair_columns(table.head):
        if table.head[published_index] not in UNCOUNTED_COLUMNS:
            yield from filter(None, _compare_column(table, published_index))


def _compare_column(table: ResultTable, published_index: int) -> list[ComparedNumber | None]:
    """Compare a column of published numbers with ours; None for rows that lack a number."""
    result_index = pair_columns(table.head)[published_index]
    result_title = table.head[result_index]
    comparisons: list[ComparedNumber | None] = []
    for row in table.rows:
        result_cell = row[result_index]
        our_value, published_value = _get_value(result_cell), _get_value(row[published_index])
        if our_value is None or published_value is None:
            comparisons.append(None)
            continue
        labels = [
            str(cell) for cell in row[:result_index] if isinstance(cell, str | int) and cell != ""
        ]
        if result_title in POINTS_COLUMNS:
            labels.append(result_title)
        tolerance = min(
            _get_tolerance(result_title, labels), MAX_RELATIVE_DIFFERENCE * abs(published_value)
        )
        is_reproduced = _is_reproduced(result_cell, our_value, published_value, tolerance)
        comparisons.append(
            ComparedNumber(", ".join(labels), our_value, published_value, is_reproduced)
        )
    return comparisons


def arrange_for_display(table: ResultTable) -> ResultTable:
    """Move each published number next to ours, and add a column that states whether they agree.

    The new column "reproduced" contains "yes", "no" or "not compared". A table with several columns
    of published numbers has several such columns, for example "reproduced, F1 trained". A table
    without any published number has none.

    Args:
        table: a table of results.
    """
    pairs = pair_columns(table.head)
    compared_columns = {}
    for published_index in pairs:
        comparisons = _compare_column(table, published_index)
        if any(comparisons) and table.head[published_index] not in UNCOUNTED_COLUMNS:
            compared_columns[published_index] = comparisons
    head: list[str] = []
    columns: list[Sequence[TableCell]] = []
    for index in order_columns(table.head):
        head.append(table.head[index])
        columns.append([row[index] for row in table.rows])
        if index in compared_columns:
            is_only_column = len(compared_columns) == 1
            result_title = table.head[pairs[index]]
            head.append("reproduced" if is_only_column else f"reproduced, {result_title}")
            columns.append([_name_result(comparison) for comparison in compared_columns[index]])
    return replace(table, head=tuple(head), rows=tuple(zip(*columns, strict=True)))


def _name_result(comparison: ComparedNumber | None) -> str:
    """Return whether a number was reproduced, as the text of a table cell."""
    if comparison is None or comparison.is_reproduced is None:
        return "not compared"
    return "yes" if comparison.is_reproduced else "no"


def _is_reproduced(
    result_cell: TableCell, our_value: float, published_value: float, tolerance: float
) -> bool | None:
    """Check whether our number agrees with the published one; None if it has too few texts."""
    if isinstance(result_cell, Estimate):
        if result_cell.n is not None and result_cell.n < MIN_DISPLAYED_TEXTS:
            return None
        interval = result_cell.ci95
        if interval is not None and interval[0] <= published_value <= interval[1]:
            return True
    # The small constant allows for rounding errors.
    return abs(our_value - published_value) <= tolerance + 1e-9


def _get_value(cell: TableCell) -> float | None:
    """Return the number in a table cell; None if the cell has no number."""
    value = cell.value if isinstance(cell, Estimate) else cell
    is_number = isinstance(value, int | float) and not math.isnan(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _get_tolerance(result_title: str, labels: Sequence[str]) -> float:
    """Return the largest absolute difference that counts as reproduced, for a table column."""
    if result_title in POINTS_COLUMNS:
        return 100 * MAX_F1_DIFFERENCE
    is_score = result_title == "F1" or labels[-1:] in (["F1"], ["accuracy"])
    return MAX_F1_DIFFERENCE if is_score else MAX_DIFFERENCE


def describe_reproduction(tables: Sequence[ResultTable]) -> list[Block]:
    """Describe which published numbers were reproduced, for the beginning of a report.

    Args:
        tables: all tables of a study.

    Returns:
        A sentence with the total, and an item for each table; empty without published numbers.
    """
    numbers_by_title = {table.title: [*compare_with_published(table)] for table in tables}
    all_numbers = [number for numbers in numbers_by_title.values() for number in numbers]
    if not all_numbers:
        return []
    compared_numbers = [number for number in all_numbers if number.is_reproduced is not None]
    n_reproduced = sum(number.is_reproduced is True for number in compared_numbers)
    n_skipped = len(all_numbers) - len(compared_numbers)
    items: list[InlineText] = []
    for title, numbers in numbers_by_title.items():
        if numbers:
            items.append((Strong(title), f" {_describe_table(numbers)}"))
    total = (
        f"Reproduced: {n_reproduced} of {len(compared_numbers)} published numbers. A number is "
        "reproduced if the published one lies in our 95% interval, or if both differ by at most "
        f"{MAX_DIFFERENCE:g} (F1 and accuracy: {MAX_F1_DIFFERENCE:g}) and by at most "
        f'{MAX_RELATIVE_DIFFERENCE:.0%} of the published number. The column "reproduced" in the tables '
        "contains the result for each number."
    )
    if n_skipped:
        total += (
            f" Not compared: {format_count(n_skipped, 'number')}, which we measured on fewer than "
            f"{MIN_DISPLAYED_TEXTS} texts."
        )
    return [total, items]


def _describe_table(numbers: Sequence[ComparedNumber]) -> str:
    """Return sentences with a table's reproduced numbers, its differences and skipped numbers."""
    reproduced = [number for number in numbers if number.is_reproduced is True]
    differing = [number for number in numbers if number.is_reproduced is False]
    skipped = [number for number in numbers if number.is_reproduced is None]
    differing.sort(key=lambda number: -abs(number.our_value - number.published_value))
    clauses = []
    if reproduced:
        clauses.append(_list_numbers("Reproduced", reproduced))
    if differing:
        clauses.append(_list_numbers("Not reproduced", differing))
    if skipped:
        clauses.append(_list_numbers("Not compared (too few texts)", skipped))
    return " ".join(clauses)


def _list_numbers(heading: str, numbers: Sequence[ComparedNumber]) -> str:
    """Return a sentence that lists the first numbers and counts the others."""
    items = [str(number) for number in numbers[:MAX_LISTED_NUMBERS]]
    if len(numbers) > MAX_LISTED_NUMBERS:
        items.append(f"and {len(numbers) - MAX_LISTED_NUMBERS} more")
    return f"{heading}: {'; '.join(items)}."
