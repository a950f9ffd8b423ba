"""What a label column holds: classes, numbers to be predicted, or several labels.

Classes become numbers from 0, -1 for none. Numbers with a fraction are a regression's,
NaN for none. Several labels at once are lists of the numbers of those that hold, None
for none known.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_attnprobe.errors import AttnProbeError


MAX_CLASSES = 100_000
"""More class numbers are taken for something else, such as ids."""
NOTHING = {"", "na", "nan", "null", "none", "n/a"}
"""Cells of a table that stand for no number."""


@dataclass(frozen=True)
class Labels:
    """The labels of a split.

    Attributes:
        kind: "classes", "numbers" or "several".
        values: int (-1 none), float (NaN none) or lists of int (None none), by kind.
        names: of the classes, if known.
    """

    kind: str
    values: list[Any]
    names: tuple[str, ...] | None = None


def read_labels(
    values: list[Any],
    everywhere: Iterable[Any],
    *,
    column: str,
    names: Sequence[str] | None = None,
    first: int = 0,
) -> Labels:
    """The labels of a column.

    Args:
        values: of the split.
        everywhere: of all splits. Numbered by one split alone, the classes would differ
            where another has one more.
        column: its name, for messages.
        names: of the classes, where the source has numbers.
        first: the source's number of the first class.

    Raises:
        AttnProbeError: values of another or of several kinds, or out of range.
    """
    everything = [_plain(value) for value in everywhere]
    values = _without_gaps([_plain(value) for value in values], everything)
    everything = _without_gaps(everything, everything)
    present = [value for value in everything if value is not None]
    if any(isinstance(value, list) for value in present):
        return _several(values, present, column, names)
    if present and all(isinstance(value, str) for value in present):
        if names is None:
            names = tuple(sorted(set(present)))
        return Labels("classes", _numbered(values, names, column), tuple(names))
    _check_numbers(values, column)
    if any(value != int(value) for value in present if isinstance(value, float)):
        if names is None:
            floats = [math.nan if value is None else float(value) for value in values]
            return Labels("numbers", floats)
        row = next(k for k, value in enumerate(values) if value not in (None, 0, 1))
        raise AttnProbeError(
            f"expected the number of one of the {len(names)} classes in column "
            f"{column!r}, row {row} has {values[row]}; convert them or name another "
            "column with --label-column"
        )
    numbers = [-1 if value is None else int(value) for value in values]
    _check_range(numbers, names, first)
    numbers = [number if number < 0 else number - first for number in numbers]
    return Labels("classes", numbers, None if names is None else tuple(names))


def join_columns(columns: Sequence[list[Any]], names: Sequence[str]) -> list[Any]:
    """One column per label, of 0 and 1, as lists of the labels that hold.

    A row with a missing cell has no labels that are known.
    """
    rows: list[Any] = []
    for row, cells in enumerate(zip(*columns, strict=True)):
        cells = tuple(_plain(cell) for cell in cells)
        for name, cell in zip(names, cells, strict=True):
            if cell not in (None, 0, 1):
                raise AttnProbeError(
                    f"expected 0 or 1 in column {name!r}, one of several labels, row "
                    f"{row} has {cell!r}; give one column of 0 and 1 per label"
                )
        rows.append(None if None in cells else [k for k, c in enumerate(cells) if c])
    return rows


def _plain(value: Any) -> Any:
    """NaN and the empty text as None, truth values as numbers, texts without blanks around.

    In lists too.
    """
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.strip() or None if isinstance(value, str) else value


def _without_gaps(values: list[Any], everything: list[Any]) -> list[Any]:
    """Numbers again, where a table's "NA" has made texts of them."""
    texts = {value for value in everything if isinstance(value, str)}
    gaps = {text for text in texts if text.strip().casefold() in NOTHING}
    if not gaps or not all(_is_number(text) for text in texts - gaps):
        return values
    return [
        (None if value in gaps else float(value)) if isinstance(value, str) else value
        for value in values
    ]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?\d+(\.\d*)?\s*", text) is not None


def _numbered(values: list[Any], names: Sequence[str], column: str) -> list[int]:
    numbers = {name: number for number, name in enumerate(names)}
    for row, value in enumerate(values):
        if value is not None and value not in numbers:
            raise AttnProbeError(
                f"expected one of the classes {', '.join(names)} in column {column!r}, "
                f"row {row} has {value!r}; rename it"
            )
    return [-1 if value is None else numbers[value] for value in values]


def _several(
    values: list[Any], present: list[Any], column: str, names: Sequence[str] | None
) -> Labels:
    """Lists of numbers, of names, or masks of 0 and 1."""
    lists = [value for value in present if isinstance(value, list)]
    items = [item for value in lists for item in value]
    if len(lists) < len(present) or None in items:
        raise AttnProbeError(
            f"expected a list of labels in every row of column {column!r}, some have "
            "none or hold a missing one; give [] where no label holds"
        )
    if items and all(isinstance(item, str) for item in items):
        names = names or tuple(sorted(set(items)))
        rows = [
            None if value is None else sorted(set(_numbered(value, names, column)))
            for value in values
        ]
        return Labels("several", rows, tuple(names))
    if not all(isinstance(item, int | float) and item == int(item) for item in items):
        raise AttnProbeError(
            f"expected lists of whole numbers or of names in column {column!r}, one per "
            "label that holds, got others; convert them"
        )
    rows = [None if v is None else [int(item) for item in v] for v in values]
    if _are_masks(lists, column):
        rows = [None if r is None else [k for k, on in enumerate(r) if on] for r in rows]
        n_labels = len(lists[0])
        names = names or [f"LABEL_{k}" for k in range(n_labels)]
    else:
        _check_once(rows, column)
        n_labels = int(max(items, default=-1)) + 1
    if names is not None and n_labels > len(names):
        raise AttnProbeError(
            f"expected labels of the {len(names)} names of column {column!r}, got "
            f"{n_labels} labels; check the column"
        )
    for row, numbers in enumerate(rows):
        _check_range(numbers or [], names, 0, row=row)
    kept = [None if numbers is None else sorted(set(numbers)) for numbers in rows]
    return Labels("several", kept, None if names is None else tuple(names))


def _check_once(rows: Sequence[list[int] | None], column: str) -> None:
    """No label is listed twice, as in masks of different lengths."""
    for row, numbers in enumerate(rows):
        if numbers is not None and len(set(numbers)) < len(numbers):
            raise AttnProbeError(
                f"expected in column {column!r} the labels that hold, each once, or "
                f"masks of one length, row {row} has {numbers!s:.60}; mend it"
            )


def _are_masks(lists: list[list[Any]], column: str) -> bool:
    """Whether lists have one 0 or 1 per label, and do not number those that hold.

    No label holds twice, so three zeros and ones are always a mask.
    """
    are_binary = all(set(values) <= {0, 1} for values in lists)
    if not are_binary or len({len(values) for values in lists}) > 1:
        return False
    if any(len(set(values)) < len(values) for values in lists):
        return True
    if len(lists[0]) == 2:
        raise AttnProbeError(
            f"column {column!r} may be two labels that always hold or a mask of two; "
            "give the names of the labels that hold"
        )
    return False


def _check_numbers(values: list[Any], column: str) -> None:
    for row, value in enumerate(values):
        if not isinstance(value, int | float | None):
            raise AttnProbeError(
                f"column {column!r} must hold integers, strings, numbers or lists of "
                f"them as labels, all of one kind, row {row} is {type(value).__name__}; "
                "convert them or name another column with --label-column"
            )
        if isinstance(value, float) and math.isinf(value):
            raise AttnProbeError(
                f"expected finite labels in column {column!r}, row {row} has {value}; "
                "mend or drop it"
            )


def _check_range(
    labels: list[int],
    names: Sequence[str] | None,
    first: int,
    *,
    row: int | None = None,
) -> None:
    end = min(max(labels, default=-1) + 1, MAX_CLASSES)
    if names is not None:
        end = first + len(names)
    expected = f"from {first} to {end - 1}" if end > first else f"from {first} on"
    for k, label in enumerate(labels):
        if (label != -1 or row is not None) and not first <= label < end:
            raise AttnProbeError(
                f"expected labels {expected}, or -1 for none, row "
                f"{k if row is None else row} has {label}; renumber them"
            )


def keep_classes(labels: Labels, kept: tuple[str, ...] | None) -> Labels:
    """The classes renumbered, None where the class is not kept.

    Raises:
        AttnProbeError: the data does not have these classes.
    """
    if kept is None:
        return labels
    names = labels.names or ()
    if not set(kept) <= set(names):
        existing = ", ".join(names) or "none with a name"
        raise AttnProbeError(
            f"expected the classes {', '.join(kept)}, got {existing}; choose a data "
            "set that has them, name the column with their names with --label-column, "
            "or give the data by its folder alone, which keeps all classes"
        )
    new = {names.index(name): index for index, name in enumerate(kept)}
    return Labels(labels.kind, [new.get(label) for label in labels.values], kept)
