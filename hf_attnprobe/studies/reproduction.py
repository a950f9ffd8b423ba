"""Compares a study with published numbers, and describes which numbers it has reproduced."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hf_attnprobe.core.formatting import format_number
from hf_attnprobe.documents.blocks import Block, InlineText, Strong
from hf_attnprobe.statistics.estimates import Estimate
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
        is_reproduced: whether both numbers agree.
    """

    labels: str
    our_value: float
    published_value: float
    is_reproduced: bool

    def __str__(self) -> str:
        our_value = format_number(self.our_value, digits=2)
        published_value = format_number(self.published_value, digits=2)
        return f"{self.labels} ({our_value}, published {published_value})"


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
    """Yield each number of a table that can be compared with a published number.

    Args:
        table: a table of results.
    """
    pairs = pair_columns(table.head)
    for published_index, result_index in pairs.items():
        if table.head[published_index] in UNCOUNTED_COLUMNS:
            continue
        result_title = table.head[result_index]
        for row in table.rows:
            cell = row[result_index]
            our_value, published_value = _get_value(cell), _get_value(row[published_index])
            if our_value is None or published_value is None:
                continue
            labels = [
                str(label)
                for label in row[:result_index]
                if isinstance(label, str | int) and label != ""
            ]
            if result_title in POINTS_COLUMNS:
                labels.append(result_title)
            ci95 = cell.ci95 if isinstance(cell, Estimate) else None
            is_inside = ci95 is not None and ci95[0] <= published_value <= ci95[1]
            tolerance = _get_tolerance(result_title, labels)
            is_close = abs(our_value - published_value) <= tolerance + 1e-9
            yield ComparedNumber(
                ", ".join(labels), our_value, published_value, is_inside or is_close
            )


def _get_value(cell: TableCell) -> float | None:
    """Return the number in a table cell; None if the cell has no number."""
    value = cell.value if isinstance(cell, Estimate) else cell
    is_number = isinstance(value, int | float) and not math.isnan(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _get_tolerance(result_title: str, labels: Sequence[str]) -> float:
    """Return the largest difference that counts as reproduced, for one column of a table."""
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
    n_reproduced = sum(number.is_reproduced for number in all_numbers)
    items: list[InlineText] = []
    for title, numbers in numbers_by_title.items():
        if numbers:
            items.append((Strong(title), f" {_describe_table(numbers)}"))
    total = (
        f"Reproduced: {n_reproduced} of {len(all_numbers)} published numbers. A number is reproduced "
        "if the published one lies in our 95% interval, or if both differ by at most "
        f"{MAX_DIFFERENCE:g} (F1 and accuracy: {MAX_F1_DIFFERENCE:g})."
    )
    return [total, items]


def _describe_table(numbers: Sequence[ComparedNumber]) -> str:
    """Return sentences with the reproduced numbers of a table and the largest differences."""
    reproduced_numbers = [number for number in numbers if number.is_reproduced]
    differing_numbers = [number for number in numbers if not number.is_reproduced]
    differing_numbers.sort(key=lambda number: -abs(number.our_value - number.published_value))
    sentences = []
    if reproduced_numbers:
        sentences.append(_list_numbers("Reproduced", reproduced_numbers))
    if differing_numbers:
        sentences.append(_list_numbers("Not reproduced", differing_numbers))
    return " ".join(sentences)


def _list_numbers(heading: str, numbers: Sequence[ComparedNumber]) -> str:
    """Return a sentence that lists the first numbers and counts the others."""
    items = [str(number) for number in numbers[:MAX_LISTED_NUMBERS]]
    if len(numbers) > MAX_LISTED_NUMBERS:
        items.append(f"and {len(numbers) - MAX_LISTED_NUMBERS} more")
    return f"{heading}: {'; '.join(items)}."
