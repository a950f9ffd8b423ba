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

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import column_of


if TYPE_CHECKING:
    import datasets


MAX_CLASSES = 100_000
"""More class numbers are taken for something else, such as ids."""


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


def names_in(cells: Iterable[Any], names: Sequence[str] | None) -> list[str | None]:
    """Returns the name of every label, its number where it has none, None for no label."""
    if names is None:
        return [None if cell is None else str(cell) for cell in cells]
    return [names[cell] if cell is not None and 0 <= cell < len(names) else None for cell in cells]


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
    new = {old: name for old, equals, name in (p.partition("=") for p in pairs) if equals}
    unknown = new.keys() - set(known)
    if unknown:
        there = sorted(name for name in set(known) if name is not None)
        raise AttnProbeError(
            f"expected labels of the data before =, got {', '.join(sorted(unknown))}; it has "
            f"{', '.join(there[:MOST_NAMED])}; change --labels"
        )
    return [None if cell is None else new.get(cell, cell) or None for cell in cells]


def read_labels(
    values: list[Any],
    everywhere: Iterable[Any],
    *,
    column: str,
    names: tuple[str, ...] | None = None,
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
    values = [_plain(value) for value in values]
    everything = [_plain(value) for value in everywhere]
    present = [value for value in everything if value is not None]
    if any(isinstance(value, list) for value in present):
        return _several(values, present, column, names)
    if present and all(isinstance(value, str) for value in present):
        if names is None:
            names = tuple(sorted(set(present)))
        return Labels("classes", _numbered(values, names, column), names)
    _check_numbers(present, column)
    fractions = [value for value in present if value != int(value)]
    if fractions and names is not None:
        raise AttnProbeError(
            f"expected the numbers of the {len(names)} classes in column {column!r}, got "
            f"{fractions[0]}; convert them or name another column with --label-column"
        )
    if fractions:
        floats = [math.nan if value is None else value for value in values]
        return Labels("numbers", [*map(float, floats)])
    numbers = [-1 if value is None else int(value) for value in values]
    known = [place for place in enumerate(numbers) if place[1] != -1]
    _check_range(known, names, first)
    numbers = [number if number < 0 else number - first for number in numbers]
    return Labels("classes", numbers, names)


def join_columns(columns: Sequence[list[Any]], names: Sequence[str]) -> list[Any]:
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
        rows.append(None if None in cells else [k for k, c in enumerate(cells) if c])
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
    values: list[Any],
    present: list[Any],
    column: str,
    names: tuple[str, ...] | None,
) -> Labels:
    """Reads lists of the numbers or names of the labels that hold."""
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
            None if labels is None else sorted(set(_numbered(labels, names, column)))
            for labels in values
        ]
        return Labels("several", rows, names)
    if not all(isinstance(item, int | float) and item == int(item) for item in items):
        raise AttnProbeError(
            f"expected lists of whole numbers or of names in column {column!r}, one per "
            "label that holds, got others; convert them"
        )
    rows = [None if labels is None else [int(item) for item in labels] for labels in values]
    _check_no_masks(lists, column)
    _check_range(
        [(row, k) for row, labels in enumerate(rows) for k in labels or ()],
        names,
    )
    kept = [None if labels is None else sorted(labels) for labels in rows]
    return Labels("several", kept, names)


def _check_no_masks(lists: list[list[Any]], column: str) -> None:
    """Refuses masks, one 0 or 1 per label: they would be taken for numbers of labels."""
    is_twice = any(len(set(labels)) < len(labels) for labels in lists)
    has_two = all(len(labels) == 2 and set(labels) == {0, 1} for labels in lists)
    if is_twice or has_two:
        raise AttnProbeError(
            f"expected in column {column!r} the numbers or names of the labels that hold, "
            "each once, got what may be a mask of 0 and 1; give the names of those that "
            "hold, or a column of 0 and 1 per label (--label-column)"
        )


def _check_numbers(present: list[Any], column: str) -> None:
    for value in present:
        if not isinstance(value, int | float) or math.isinf(value):
            raise AttnProbeError(
                f"column {column!r} must hold finite numbers, texts or lists of them as "
                f"labels, all of one kind, got {type(value).__name__} {value!s:.60}; "
                "convert them or name another column with --label-column"
            )


def _check_range(
    labels: Iterable[tuple[int, int]],
    names: Sequence[str] | None,
    first: int = 0,
) -> None:
    """Raises AttnProbeError for the number of a label, with its row, that is none."""
    n_labels = MAX_CLASSES if names is None else len(names)
    for row, label in labels:
        if not first <= label < first + n_labels:
            end = "on" if names is None else f"to {first + n_labels - 1}"
            raise AttnProbeError(
                f"expected labels from {first} {end}, or -1 for none, row {row} has "
                f"{label}; renumber them"
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
    return Labels(labels.kind, [new.get(label) for label in labels.values], kept)


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


def word_label_column(source: "datasets.Dataset", given: str | None) -> str | None:
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
    names: tuple[str, ...] | None,
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
            got = len(labels) if isinstance(labels, list) else type(labels).__name__
            raise AttnProbeError(
                f"expected {n_words} labels in column {column!r}, one per word, row "
                f"{row} has {got}; give each word one label"
            )
    flat = [None if label == IGNORED else label for labels in values for label in labels]
    read = read_labels(flat, flat, column=column, names=names)
    if read.kind != "classes":
        raise AttnProbeError(
            f"expected whole numbers or names as labels of words in column {column!r}, "
            "got others; convert them"
        )
    numbers = iter(read.values)
    return [[next(numbers) for _ in labels] for labels in values], read.names


def read_answers(source: "datasets.Dataset", contexts: list[str]) -> dict[str, list[int]]:
    """Start and end of the answer in the context, -1 if there is none.

    Read from columns `answer_start` and `answer_end`, or from SQuAD's `answers`, of
    which the first is taken. Empty where the data has neither.

    Raises:
        AttnProbeError: an answer that is not where it is said to be.
    """
    present = source.column_names
    if {"answer_start", "answer_end"} <= set(present):
        columns = [column_of(source, f"answer_{end}") for end in ("start", "end")]
        places = [
            tuple(-1 if k is None else k for k in place) for place in zip(*columns, strict=True)
        ]
    elif "answers" in present and _are_located(source.features["answers"]):
        cells = column_of(source, "answers")
        places = [_place_of_first(cell, contexts[row], row) for row, cell in enumerate(cells)]
    else:
        return {}
    for row, (start, end) in enumerate(places):
        are_numbers = isinstance(start, int) and isinstance(end, int)
        n = len(contexts[row])
        if (start, end) != (-1, -1) and not (are_numbers and 0 <= start < end <= n):
            raise AttnProbeError(
                f"expected an answer within the {n} characters of the context of row "
                f"{row}, got {start!r} to {end!r}; count characters from 0, the end "
                "behind the last, and give -1 and -1 for none"
            )
    starts, ends = zip(*places, strict=True)
    return {"answer_start": [*starts], "answer_end": [*ends]}


def _are_located(feature: Any) -> bool:
    """Whether cells hold SQuAD's answers: lists in a dict, or dicts in a list."""
    cell = getattr(feature, "feature", feature)
    return isinstance(cell, Mapping) and {"text", "answer_start"} <= set(cell)


def _place_of_first(cell: Any, context: str, row: int) -> tuple[int, int]:
    """Start and end of the first of SQuAD's answers; -1 and -1 where there is none."""
    if isinstance(cell, list):
        cell = cell[0] if cell else None
    if not cell or not cell["text"]:
        return -1, -1
    text, start = cell["text"], cell["answer_start"]
    if isinstance(text, list):
        text, start = text[0], start[0]
    end = start + len(text)
    if context[start:end] != text:
        raise AttnProbeError(
            f"expected the answer {text!r} at character {start} of the context of row "
            f"{row}, found {context[start:end]!r}; mend answer_start"
        )
    return start, end


def read_choices(
    source: "datasets.Dataset",
) -> tuple[str, list[list[str]]] | None:
    """The column of the text and the choices beside it; None if there are none.

    The columns are `choices` (texts, or `text` and `label` as in ARC), `endings`
    (HellaSwag), or `ending0`, `ending1`, … (SWAG, of which `sent2` begins each) and
    `choice1`, `choice2`, … (COPA).
    """
    present = source.column_names
    numbered = sorted(name for name in present if re.fullmatch(r"(ending|choice)\d", name))
    lists = [name for name in ("choices", "endings") if name in present]
    if lists:
        cells = column_of(source, lists[0])
        rows = [cell["text"] if isinstance(cell, Mapping) else cell for cell in cells]
    elif len(numbered) > 1:
        columns = [column_of(source, name) for name in numbered]
        rows = [list(row) for row in zip(*columns, strict=True)]
        begins = column_of(source, "sent2") if "sent2" in present else []
        for row, begin in zip(rows, begins, strict=False):
            row[:] = [f"{begin} {ending}" for ending in row]
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
        if not is_list or not all(isinstance(choice, str) for choice in choices):
            raise AttnProbeError(
                f"expected a list of at least two texts as choices, row {row} has "
                f"{choices!r:.60}; mend or drop it"
            )


def right_choices(values: list[Any], cells: list[Any] | None) -> list[Any]:
    """Labels as indices of choices, from the names of choices, their texts or numbers.

    Args:
        values: of the label column.
        cells: of the column `choices`, whose `label` names each choice; None: no names.

    Raises:
        AttnProbeError: a label that is none of these.
    """
    numbers = []
    for row, value in enumerate(values):
        cell = cells[row] if cells else []
        names = cell["label"] if isinstance(cell, Mapping) else cell
        if value in names:
            value = names.index(value)
        elif isinstance(value, str) and value.isdigit():
            value = int(value)
        elif isinstance(value, str) and value:
            raise AttnProbeError(
                "expected as label the number, from 0, of the right choice, its name "
                f"or its text, row {row} has {value!r}; renumber it"
            )
        numbers.append(None if value == "" else value)
    return numbers


logger = logging.getLogger(__name__)

POSITIONS = ("int", "uint", "null")
"""How the types of positions begin; null where no text has any."""


def read_rationales(source: "datasets.Dataset", ending: str = "") -> list[list[int]] | None:
    """Rationale of each text as positions of its words; None where there are none.

    They are lists of whole numbers in the column `rationale`. A column of that name that
    holds something else, such as sentences, is left alone.

    Args:
        source: the split.
        ending: of the column's name, "_pair" for second texts.
    """
    column = f"rationale{ending}"
    if column not in source.column_names:
        return None
    positions = getattr(source.features[column], "feature", None)
    if not str(getattr(positions, "dtype", "")).startswith(POSITIONS):
        logger.warning(
            "the column %s is not read as rationales: it holds no lists of positions",
            column,
        )
        return None
    return [cell or [] for cell in column_of(source, column)]
