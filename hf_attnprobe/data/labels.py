"""Reads what a data set tells of a text: labels, answers, choices, rationales, tags.

Classes become numbers from 0, -1 for none. Numbers with a fraction are a regression's,
NaN for none. Several labels at once are lists of the numbers of those that hold, None
for none known.
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.columns import column_of
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


MAX_CLASSES = 100_000
"""More class numbers are taken for something else, such as ids."""
NOTHING = {"", "na", "nan", "null", "none", "n/a"}
"""Cells of a table that stand for no number."""
DIGITS = 18
"""Of the longest number that is a position: a table of int64 holds all of them."""


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


MOST_NAMED = 10
"""Labels in a message."""


def names_in(
    cells: Iterable[Any], names: Sequence[str] | None
) -> list[str | None]:
    """Returns the name of every label, its number where it has none, None for no label."""
    if names is None:
        return [None if cell is None else str(cell) for cell in cells]
    return [
        names[cell]
        if 0 <= (-1 if cell is None else cell) < len(names)
        else None
        for cell in cells
    ]


def renamed(
    cells: Sequence[str | None],
    pairs: Sequence[str],
    known: Sequence[str | None],
) -> list[str | None]:
    """Returns labels by other names.

    >>> renamed(["1", "3", None], ["1=neg", "3="], ["1", "3", "5"])
    ['neg', None, None]

    Args:
        cells: the labels' names.
        pairs: ``old=new``; nothing behind ``=`` is no label.
        known: all names of the data.

    Raises:
        AttnProbeError: no such label.
    """
    new = {
        old: name
        for old, equals, name in (p.partition("=") for p in pairs)
        if equals
    }
    unknown = new.keys() - set(known)
    if unknown:
        there = sorted(name for name in set(known) if name is not None)
        raise AttnProbeError(
            f"expected labels of the data before =, got {', '.join(sorted(unknown))}; it has "
            f"{', '.join(there[:MOST_NAMED])}; change --labels"
        )
    return [
        None if cell is None else new.get(cell, cell) or None for cell in cells
    ]


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
    if any(
        value != int(value) for value in present if isinstance(value, float)
    ):
        if names is None:
            floats = [
                math.nan if value is None else float(value) for value in values
            ]
            return Labels("numbers", floats)
        row = next(
            k for k, value in enumerate(values) if value not in (None, 0, 1)
        )
        raise AttnProbeError(
            f"expected the number of one of the {len(names)} classes in column "
            f"{column!r}, row {row} has {values[row]}; convert them or name another "
            "column with --label-column"
        )
    numbers = [-1 if value is None else int(value) for value in values]
    _check_range(numbers, names, first)
    numbers = [number if number < 0 else number - first for number in numbers]
    return Labels("classes", numbers, None if names is None else tuple(names))


def join_columns(
    columns: Sequence[list[Any]], names: Sequence[str]
) -> list[Any]:
    """Joins columns of 0 and 1, one per label, into lists of the labels that hold.

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
        rows.append(
            None if None in cells else [k for k, c in enumerate(cells) if c]
        )
    return rows


def _plain(value: Any) -> Any:
    """NaN and empty texts become None, truth values numbers; blanks around texts go.

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
    """Restores numbers that a table's "NA" has turned into texts."""
    texts = {value for value in everything if isinstance(value, str)}
    gaps = {text for text in texts if text.strip().casefold() in NOTHING}
    if not gaps or not all(_is_number(text) for text in texts - gaps):
        return values
    return [
        (None if value in gaps else float(value))
        if isinstance(value, str)
        else value
        for value in values
    ]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?\d+(\.\d*)?\s*", text) is not None


def _numbered(
    values: list[Any], names: Sequence[str], column: str
) -> list[int]:
    numbers = {name: number for number, name in enumerate(names)}
    for row, value in enumerate(values):
        if value is not None and value not in numbers:
            raise AttnProbeError(
                f"expected one of the classes {', '.join(names)} in column {column!r}, "
                f"row {row} has {value!r}; rename it"
            )
    return [-1 if value is None else numbers[value] for value in values]


def _several(
    values: list[Any],
    present: list[Any],
    column: str,
    names: Sequence[str] | None,
) -> Labels:
    """Reads lists of numbers or names, or masks of 0 and 1."""
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
            None
            if value is None
            else sorted(set(_numbered(value, names, column)))
            for value in values
        ]
        return Labels("several", rows, tuple(names))
    if not all(
        isinstance(item, int | float) and item == int(item) for item in items
    ):
        raise AttnProbeError(
            f"expected lists of whole numbers or of names in column {column!r}, one per "
            "label that holds, got others; convert them"
        )
    rows = [None if v is None else [int(item) for item in v] for v in values]
    if _are_masks(lists, column):
        rows = [
            None if r is None else [k for k, on in enumerate(r) if on]
            for r in rows
        ]
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
    kept = [
        None if numbers is None else sorted(set(numbers)) for numbers in rows
    ]
    return Labels("several", kept, None if names is None else tuple(names))


def _check_once(rows: Sequence[list[int] | None], column: str) -> None:
    """Refuses labels listed twice, which masks of different lengths look like."""
    for row, numbers in enumerate(rows):
        if numbers is not None and len(set(numbers)) < len(numbers):
            raise AttnProbeError(
                f"expected in column {column!r} the labels that hold, each once, or "
                f"masks of one length, row {row} has {numbers!s:.60}; mend it"
            )


def _are_masks(lists: list[list[Any]], column: str) -> bool:
    """Whether lists are masks, one 0 or 1 per label, not numbers of labels.

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
    expected = (
        f"from {first} to {end - 1}" if end > first else f"from {first} on"
    )
    for k, label in enumerate(labels):
        if (label != -1 or row is not None) and not first <= label < end:
            raise AttnProbeError(
                f"expected labels {expected}, or -1 for none, row "
                f"{k if row is None else row} has {label}; renumber them"
            )


def keep_classes(labels: Labels, kept: tuple[str, ...] | None) -> Labels:
    """Renumbers the classes kept; None for the others.

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
    return Labels(
        labels.kind, [new.get(label) for label in labels.values], kept
    )


WORD_LABELS = (
    "word_labels",
    "ner_tags",
    "pos_tags",
    "chunk_tags",
    "tags",
    "labels",
)
"""Columns with a list of one label per word, the first our own name."""
IGNORED = -100
"""Transformers' number of a word that is not labelled."""


def word_label_column(
    source: "datasets.Dataset", given: str | None
) -> str | None:
    """The column with the labels of words, if the words come in a list.

    Raises:
        AttnProbeError: several such columns.
    """
    if given is not None:
        return given
    present = [name for name in WORD_LABELS if name in source.column_names]
    if len(present) > 1 and present[0] != "word_labels":
        raise AttnProbeError(
            f"expected one column with labels of words, got {', '.join(present)}; "
            "choose one with --label-column"
        )
    return present[0] if present else None


def read_word_labels(
    values: list[Any],
    names: Sequence[str] | None,
    texts: list[str],
    column: str,
) -> tuple[list[list[int]], tuple[str, ...] | None]:
    """Reads one label per word of each text, -1 for none, and the names of the labels.

    Raises:
        AttnProbeError: another number of labels than of words, or labels that are
            neither names nor numbers.
    """
    for row, (labels, text) in enumerate(zip(values, texts, strict=True)):
        n_words = len(text.split())
        if not isinstance(labels, list) or len(labels) != n_words:
            got = (
                len(labels)
                if isinstance(labels, list)
                else type(labels).__name__
            )
            raise AttnProbeError(
                f"expected {n_words} labels in column {column!r}, one per word, row "
                f"{row} has {got}; give each word one label"
            )
    items = {
        label for labels in values for label in labels if label is not None
    }
    if items and all(isinstance(item, str) for item in items):
        names = names or tuple(sorted(items))
        numbers: dict[Any, int] = {name: k for k, name in enumerate(names)}
        rows = [
            [numbers.get(label, -1) for label in labels] for labels in values
        ]
        return rows, tuple(names)
    if not all(isinstance(item, int) for item in items):
        raise AttnProbeError(
            f"expected whole numbers or names as labels of words in column {column!r}, "
            "got others; convert them"
        )
    rows = [
        [-1 if label in (None, IGNORED) else label for label in labels]
        for labels in values
    ]
    return rows, None if names is None else tuple(names)


def read_answers(
    source: "datasets.Dataset", contexts: list[str]
) -> dict[str, list[int]]:
    """Start and end of the answer in the context, -1 if there is none.

    Read from columns `answer_start` and `answer_end`, or from SQuAD's `answers`, of
    which the first is taken. Empty where the data has neither.

    Raises:
        AttnProbeError: an answer that is not where it is said to be.
    """
    present = source.column_names
    if {"answer_start", "answer_end"} <= set(present):
        starts = [
            -1 if k is None else k for k in column_of(source, "answer_start")
        ]
        ends = [-1 if k is None else k for k in column_of(source, "answer_end")]
        for row, place in enumerate(zip(starts, ends, strict=True)):
            if not all(isinstance(k, int) for k in place):
                raise AttnProbeError(
                    "expected whole numbers in columns 'answer_start' and 'answer_end', "
                    f"row {row} has {place[0]!r} and {place[1]!r}; count characters of "
                    "the context from 0"
                )
    elif "answers" in present:
        cells = column_of(source, "answers")
        if not all(_are_answers(cell) for cell in cells):
            return {}
        spans = [_first_answer(cell) for cell in cells]
        starts = [-1 if span is None else span[1] for span in spans]
        ends = [
            -1 if span is None else span[1] + len(span[0]) for span in spans
        ]
        for row, span in enumerate(spans):
            if (
                span is not None
                and contexts[row][starts[row] : ends[row]] != span[0]
            ):
                raise AttnProbeError(
                    f"expected the answer {span[0]!r} at character {starts[row]} of "
                    f"the context of row {row}, found "
                    f"{contexts[row][starts[row] : ends[row]]!r}; mend answer_start"
                )
    else:
        return {}
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if (start, end) != (-1, -1) and not 0 <= start < end <= len(
            contexts[row]
        ):
            raise AttnProbeError(
                f"expected an answer within the {len(contexts[row])} characters of the "
                f"context of row {row}, got {start} to {end}; give -1 and -1 for none"
            )
    return {"answer_start": starts, "answer_end": ends}


def _are_answers(cell: Any) -> bool:
    """Whether a cell locates answers or is empty."""
    if isinstance(cell, list):
        return all(_are_answers(item) for item in cell)
    return cell is None or (
        isinstance(cell, Mapping) and {"text", "answer_start"} <= cell.keys()
    )


def _first_answer(cell: Any) -> tuple[str, int] | None:
    """Text and start of SQuAD's first answer, from lists in a dict or dicts in a list."""
    if isinstance(cell, list):
        cell = cell[0] if cell else None
        return None if cell is None else (cell["text"], cell["answer_start"])
    if not isinstance(cell, Mapping) or not cell.get("text"):
        return None
    texts, starts = cell["text"], cell["answer_start"]
    if isinstance(texts, str):
        return texts, starts
    return texts[0], starts[0]


def read_choices(
    source: "datasets.Dataset",
) -> tuple[str, list[list[str]]] | None:
    """The column of the text and the choices beside it; None if there are none.

    The columns are `choices` (texts, or `text` and `label` as in ARC), `endings`
    (HellaSwag), or `ending0`, `ending1`, … (SWAG, of which `sent2` begins each) and
    `choice1`, `choice2`, … (COPA).
    """
    present = source.column_names
    numbered = sorted(
        (name for name in present if re.fullmatch(r"(ending|choice)\d", name)),
    )
    if "choices" in present or "endings" in present:
        name = "choices" if "choices" in present else "endings"
        cells = column_of(source, name)
        rows = [
            cell["text"] if isinstance(cell, Mapping) else cell
            for cell in cells
        ]
    elif len(numbered) > 1:
        columns = [column_of(source, name) for name in numbered]
        rows = [list(row) for row in zip(*columns, strict=True)]
        if "sent2" in present:
            begins = column_of(source, "sent2")
            rows = [
                [f"{begin} {ending}" for ending in row]
                for begin, row in zip(begins, rows, strict=True)
            ]
    else:
        return None
    _check_choices(rows)
    known = (
        "text",
        "sent1",
        "startphrase",
        "ctx",
        "question",
        "premise",
        "sentence",
    )
    return next((name for name in known if name in present), "text"), rows


def _check_choices(rows: list[Any]) -> None:
    for row, choices in enumerate(rows):
        is_list = isinstance(choices, list) and len(choices) > 1
        if not is_list or not all(
            isinstance(choice, str) for choice in choices
        ):
            raise AttnProbeError(
                f"expected a list of at least two texts as choices, row {row} has "
                f"{choices!r:.60}; mend or drop it"
            )


def right_choices(values: list[Any], cells: list[Any] | None) -> list[Any]:
    """Labels as indices of choices, from numbers, names of choices or their texts.

    Args:
        values: of the label column.
        cells: of the column `choices`, whose `label` names each choice; None: no names.

    Raises:
        AttnProbeError: a label that is none of these.
    """
    numbers = []
    for row, value in enumerate(values):
        names = (
            cells[row].get("label")
            if cells and isinstance(cells[row], Mapping)
            else None
        )
        if names and value in names:
            value = list(names).index(value)
        elif isinstance(value, str) and value.isdigit():
            value = int(value)
        elif isinstance(value, str) and cells and value in cells[row]:
            value = list(cells[row]).index(value)
        elif isinstance(value, str) and value:
            raise AttnProbeError(
                "expected as label the number, from 0, of the right choice, its name "
                f"or its text, row {row} has {value!r}; renumber it"
            )
        numbers.append(None if value == "" else value)
    return numbers


logger = logging.getLogger(__name__)

# Columns that may hold a human rationale; the second is ERASER's name for it.
RATIONALE_COLUMNS = ("rationale", "evidence")


def read_rationales(
    source: "datasets.Dataset", texts: list[str], ending: str = ""
) -> list[list[int]] | None:
    """Rationale of each text as positions of its words; None without a column.

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
        rows = [_parse(cell) for cell in column_of(source, column)]
        read = [row for row in rows if row is not None]
        if len(read) == len(rows):
            return _of_masks(read, [len(text.split()) for text in texts])
        if any(read):
            logger.warning(
                "the column %s is not read as rationales: row %d holds no positions",
                column,
                rows.index(None),
            )
    return None


def _parse(cell: Any) -> list[int] | None:
    """Positions from a list, a text such as "0 3 4" or "[0, 3]", or one number."""
    if cell is None or cell != cell:  # NaN is not itself
        return []
    if isinstance(cell, str):
        if not re.fullmatch(r"\s*\[?[\s,\d]*\]?\s*", cell):
            return None
        cell = [
            int(number[: DIGITS + 1]) for number in re.findall(r"\d+", cell)
        ]
    items = cell if isinstance(cell, list) else [cell]
    return (
        [int(item) for item in items] if all(map(_is_position, items)) else None
    )


def _is_position(item: Any) -> bool:
    """Whether it is a whole number that a table holds."""
    return (
        isinstance(item, int | float)
        and abs(item) < 10**DIGITS
        and item == int(item)
    )


def _of_masks(rows: list[list[int]], n_words: list[int]) -> list[list[int]]:
    """Positions of the ones if all rows are masks; else the rows themselves."""
    pairs = [pair for pair in zip(rows, n_words, strict=True) if pair[0]]
    may_be_masks = all(len(r) == n and set(r) <= {0, 1} for r, n in pairs)
    are_positions = all(len(set(r)) == len(r) and max(r) < n for r, n in pairs)
    if not may_be_masks or are_positions:
        return rows
    return [[k for k, marked in enumerate(row) if marked] for row in rows]
