"""Human rationales: positions of words, from lists, masks or cells of a table."""

import logging
import re
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.columns import column_of


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

# Columns that may hold a human rationale; the second is ERASER's name for it.
RATIONALE_COLUMNS = ("rationale", "evidence")


def read_rationales(
    source: "datasets.Dataset", texts: list[str], ending: str = ""
) -> list[list[int]] | None:
    """The rationale of each text as positions of its words; None without a column.

    A mask of 0 and 1, one per word, is taken for one where the whole column is masks:
    as positions some of its rows would name a word twice or one that is not there.

    Args:
        source: the split.
        texts: those that the positions are of.
        ending: of the column's name, "_pair" for second texts.
    """
    for name in RATIONALE_COLUMNS:
        column = name + ending
        if column not in source.column_names:
            continue
        rows = _positions(column_of(source, column), column)
        if rows is not None:
            return _of_masks(rows, [len(text.split()) for text in texts])
    return None


def _positions(cells: list[Any], column: str) -> list[list[int]] | None:
    """Lists of integers; None where the column holds something else, such as quotes."""
    rows = [_parse(cell) for cell in cells]
    n_read = sum(row is not None for row in rows)
    if n_read == len(rows):
        return [row or [] for row in rows]
    if any(rows):
        first = next(k for k, row in enumerate(rows) if row is None)
        logger.warning(
            "the column %s is not read as rationales: row %d holds no positions",
            column,
            first,
        )
    return None


def _parse(cell: Any) -> list[int] | None:
    """Positions of a list, of a text such as "0 3 4" or "[0, 3]", or of one number."""
    if cell is None or cell != cell:  # NaN is not itself
        return []
    if isinstance(cell, str):
        if not re.fullmatch(r"\s*\[?[\s,\d]*\]?\s*", cell):
            return None
        return [int(number) for number in re.findall(r"\d+", cell)]
    items = cell if isinstance(cell, list) else [cell]
    if not all(isinstance(item, int | float) and item == int(item) for item in items):
        return None
    return [int(item) for item in items]


def _of_masks(rows: list[list[int]], n_words: list[int]) -> list[list[int]]:
    """The positions of the ones, where all rows are masks; else the rows."""
    pairs = [pair for pair in zip(rows, n_words, strict=True) if pair[0]]
    may_be_masks = all(len(r) == n and set(r) <= {0, 1} for r, n in pairs)
    are_positions = all(len(set(r)) == len(r) and max(r) < n for r, n in pairs)
    if not may_be_masks or are_positions:
        return rows
    return [[k for k, marked in enumerate(row) if marked] for row in rows]
