"""Read labels, answers, choices, rationales and word labels from a data set.

Labels have one of three types. Classes become numbers from 0, with -1 for unlabelled texts.
Regression labels become floats, with NaN for unlabelled texts. If several labels can apply at once,
each text has a list with its label numbers, or None if it is unlabelled.
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.data.columns import read_column


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

MAX_CLASSES = 100_000
"""Maximum number of classes if the labels are numbers without names.

Larger numbers are probably not classes but ids or dates, so they raise an error.
"""


@dataclass(frozen=True)
class Labels:
    """A split's labels.

    Attributes:
        label_type: "classes", "numbers" (regression) or "several" (labels per text).
        values: one value per text: an int for classes (-1: unlabelled), a float for numbers (NaN:
            unlabelled), an int list for several labels (None: unlabelled).
        names: class names; None if the data has none.
        lists_all_names: whether ``names`` contains all labels for which the texts were labelled. It
            is False if these are only the names that occur in lists of names: a label that applies
            to no text is then missing.
    """

    label_type: str
    values: list[Any]
    names: tuple[str, ...] | None = None
    lists_all_names: bool = True


MAX_LABEL_NAMES_IN_MESSAGE = 10
"""Maximum number of label names that are listed in an error message."""


def convert_to_names(cells: Iterable[Any], names: Sequence[str] | None) -> list[Any]:
    """Convert the cells of a label column to class names.

    For example, with the names ("negative", "positive"), the cells 1 and None become "positive" and
    None.

    Args:
        cells: class numbers or class names; None for unlabelled texts; lists if several labels can
            apply to a text.
        names: class names by number; None if the cells are the names themselves.

    Returns:
        One class name, or list of names, per cell; None for unlabelled texts and for numbers out of
        range.
    """
    converted: list[Any] = []
    for cell in cells:
        if isinstance(cell, list):
            converted.append(convert_to_names(cell, names))
        elif names is None:
            converted.append(_name_cell(cell))
        else:
            has_name = cell is not None and 0 <= cell < len(names)
            converted.append(names[cell] if has_name else None)
    return converted


def _name_cell(cell: Any) -> str | None:
    """Return the class name that a cell without class names contains; None if it is unlabelled.

    A column of whole numbers with an empty row is read as floats, so 1.0 is called "1".
    """
    cell = _normalize_cell(cell)
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return None if cell is None else str(cell)


def rename_labels(
    cells: Sequence[Any],
    pairs: Sequence[str],
    all_names: Sequence[Any],
) -> list[Any]:
    """Rename labels as the option ``--labels`` requests.

    Args:
        cells: one label name, or list of names, per text.
        pairs: new names as ``old=new``; ``old=`` makes texts with this label unlabelled. In a list,
            it removes the label.
        all_names: all label names in the data, or lists of them.

    Returns:
        The new name of each text's label, or the list of new names.

    Raises:
        AttnProbeError: if the data does not have an old label.

    >>> rename_labels(["1", "3", None], ["1=neg", "3="], ["1", "3", "5"])
    ['neg', None, None]
    """
    new_names = {}
    for pair in pairs:
        old_name, equals, new_name = pair.partition("=")
        if equals:
            new_names[old_name] = new_name
    present: set[str] = set()
    for cell in all_names:
        present.update(cell if isinstance(cell, list) else [] if cell is None else [cell])
    unknown = sorted(new_names.keys() - present)
    if unknown:
        raise AttnProbeError(
            f"--labels renames {', '.join(unknown)}, but the data has no such label. Its labels are "
            f"{', '.join(sorted(present)[:MAX_LABEL_NAMES_IN_MESSAGE])}."
        )

    def rename(cell: Any) -> Any:
        if isinstance(cell, list):
            return [name for name in map(rename, cell) if name is not None]
        return None if cell is None else new_names.get(cell, cell) or None

    return [rename(cell) for cell in cells]


def read_labels(
    values: list[Any],
    all_values: Iterable[Any],
    *,
    column: str,
    names: tuple[str, ...] | None = None,
    first_label: int = 0,
) -> Labels:
    """Read a label column.

    Args:
        values: one split's cells.
        all_values: all splits' cells. Classes are numbered over all splits, since one split may
            lack some of them.
        column: column name for error messages.
        names: class names, if the source has numbers.
        first_label: the first class's number in the source.

    Returns:
        The split's labels, with classes numbered from 0.

    Raises:
        AttnProbeError: if the cells have mixed types, or labels are out of range.
    """
    values = [_normalize_cell(value) for value in values]
    normalized = [_normalize_cell(value) for value in all_values]
    present = [value for value in normalized if value is not None]
    if any(isinstance(value, list) for value in present):
        return _read_label_lists(values, present, column, names)
    if present and all(isinstance(value, str) for value in present):
        if names is None:
            names = tuple(sorted(set(present)))
        return Labels("classes", _number_labels(values, names, column), names)

    _check_finite_numbers(present, column)
    fractions = [value for value in present if value != int(value)]
    if fractions and names is not None:
        raise AttnProbeError(
            f"column {column!r} must contain whole numbers, because the model predicts "
            f"{len(names)} classes, got {fractions[0]}. Choose another column with --label-column."
        )
    if fractions:
        floats = [math.nan if value is None else float(value) for value in values]
        return Labels("numbers", floats)
    numbers = [-1 if value is None else int(value) for value in values]
    labelled_rows = [(row, number) for row, number in enumerate(numbers) if number != -1]
    _check_label_range(labelled_rows, names, first_label)
    numbers = [number if number < 0 else number - first_label for number in numbers]
    return Labels("classes", numbers, names)


def join_label_columns(columns: Sequence[list[Any]], names: Sequence[str]) -> list[Any]:
    """Combine label columns of 0 and 1 into one list of label numbers for each text.

    For example, a text with 1, 0 and 1 in three columns has the labels [0, 2].

    Args:
        columns: each column's cells; one column per label.
        names: column names for error messages.

    Returns:
        The label numbers of each text; None for a text with a missing cell.

    Raises:
        AttnProbeError: if a cell is neither 0 nor 1.
    """
    rows: list[Any] = []
    for row, cells in enumerate(zip(*columns, strict=True)):
        cells = tuple(_normalize_cell(cell) for cell in cells)
        for name, cell in zip(names, cells, strict=True):
            if cell not in (None, 0, 1):
                raise AttnProbeError(
                    f"column {name!r} contains {cell!r} in row {row}. If several label columns are "
                    "used, they must contain only 0 and 1. Otherwise, choose a single column with "
                    "--label-column."
                )
        if None in cells:
            rows.append(None)
        else:
            rows.append([index for index, cell in enumerate(cells) if cell])
    return rows


def _normalize_cell(value: Any) -> Any:
    """Normalize a label cell, or every item if the cell is a list.

    NaN and empty strings become None, booleans become 0 or 1, and white space around strings is
    removed.
    """
    if isinstance(value, list | tuple):
        return [_normalize_cell(item) for item in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, str):
        return value.strip() or None
    return value


def _number_labels(values: list[Any], names: Sequence[str], column: str) -> list[int]:
    """Convert class names to class numbers, and None to -1."""
    numbers = {name: number for number, name in enumerate(names)}
    for row, value in enumerate(values):
        if value is not None and value not in numbers:
            raise AttnProbeError(
                f"column {column!r} contains {value!r} in row {row}, but the classes are "
                f"{', '.join(names)}; rename this label"
            )
    return [-1 if value is None else numbers[value] for value in values]


def _read_label_lists(
    values: list[Any],
    present: list[Any],
    column: str,
    names: tuple[str, ...] | None,
) -> Labels:
    """Read a column whose cells are lists of label numbers or of label names."""
    lists = [value for value in present if isinstance(value, list)]
    items = [item for value in lists for item in value]
    if len(lists) < len(present) or None in items:
        raise AttnProbeError(
            f"column {column!r} must contain a list of labels in every row, but some lists or labels "
            "are missing. Write [] for a text without any label."
        )
    if items and all(isinstance(item, str) for item in items):
        lists_all_names = names is not None
        names = names or tuple(sorted(set(items)))
        rows = [
            None if labels is None else sorted(set(_number_labels(labels, names, column)))
            for labels in values
        ]
        return Labels("several", rows, names, lists_all_names)
    if not all(isinstance(item, int | float) and item == int(item) for item in items):
        raise AttnProbeError(
            f"column {column!r} must contain lists of label names or of whole numbers, got other "
            "values"
        )
    numbers = [None if labels is None else [int(item) for item in labels] for labels in values]
    _check_not_masks(lists, column)
    _check_label_range(
        [(row, label) for row, labels in enumerate(numbers) for label in labels or ()],
        names,
    )
    rows = [None if labels is None else sorted(labels) for labels in numbers]
    return Labels("several", rows, names)


def _check_not_masks(lists: list[list[Any]], column: str) -> None:
    """Raise AttnProbeError if label lists seem to be masks, such as [0, 1, 0] instead of [1].

    Otherwise the numbers in a mask would be read as label numbers, without any error.
    """
    # A list of labels contains each label only once, but a mask repeats 0 or 1.
    has_repetitions = any(len(set(labels)) < len(labels) for labels in lists)
    # Lists with only the numbers 0 and 1 are ambiguous if there are exactly two labels.
    are_all_ambiguous = all(len(labels) == 2 and set(labels) == {0, 1} for labels in lists)
    is_one_hot = len({len(labels) for labels in lists}) == 1 and all(
        sorted(labels) == [0] * (len(labels) - 1) + [1] for labels in lists
    )
    if (has_repetitions or are_all_ambiguous) and is_one_hot:
        raise AttnProbeError(
            f"column {column!r} contains one-hot lists such as {lists[0]}. If each text has one class, "
            f"replace each list by its class number, for example row[{column!r}].index(1). If several "
            "labels can apply to a text, list the names of its labels, such as ['joy', 'fear']."
        )
    if has_repetitions or are_all_ambiguous:
        raise AttnProbeError(
            f"column {column!r} seems to contain masks of 0 and 1 instead of lists of labels. List the "
            "names of each text's labels, such as ['joy', 'fear']. Alternatively, store one column of "
            "0 and 1 per label, and name these columns with --label-column."
        )


def _check_finite_numbers(present: list[Any], column: str) -> None:
    """Raise AttnProbeError unless all labels are finite numbers."""
    for value in present:
        if not isinstance(value, int | float) or math.isinf(value):
            raise AttnProbeError(
                f"column {column!r} contains {value!s:.60} ({type(value).__name__}). All labels must be "
                "finite numbers, or all must be strings, or all must be lists. Convert the labels, or "
                "choose another column with --label-column."
            )


def _check_label_range(
    labels: Iterable[tuple[int, int]],
    names: Sequence[str] | None,
    first_label: int = 0,
) -> None:
    """Raise AttnProbeError if a label is out of range. The message contains its row number.

    Args:
        labels: pairs of a row number and a label.
        names: class names; None allows up to ``MAX_CLASSES`` classes.
        first_label: smallest valid label, usually 0, or 1 if the classes are numbered from 1.
    """
    n_labels = MAX_CLASSES if names is None else len(names)
    for row, label in labels:
        if not first_label <= label < first_label + n_labels:
            last_label = first_label + n_labels - 1
            raise AttnProbeError(
                f"labels must be numbers from {first_label} to {last_label}, or -1 for texts without "
                f"a label, but row {row} has {label}"
            )


def select_classes(labels: Labels, classes: tuple[str, ...] | None) -> Labels:
    """Keep only the labels of some classes, and number these classes from 0.

    Args:
        labels: a split's labels.
        classes: names of the classes to keep, in the order of their new numbers; None keeps all.

    Returns:
        The renumbered labels, with None for texts from dropped classes.

    Raises:
        AttnProbeError: if the data does not have these classes.
    """
    if classes is None:
        return labels
    names = labels.names or ()
    if not set(classes) <= set(names):
        raise AttnProbeError(
            f"the data must have the classes {', '.join(classes)}, but it has "
            f"{', '.join(names) or 'no class names'}. Choose the column with the class names with "
            "--label-column, or pass only the folder instead of NAME=FOLDER to use all classes."
        )
    new_numbers = {names.index(name): index for index, name in enumerate(classes)}
    values = [new_numbers.get(label) for label in labels.values]
    return Labels(labels.label_type, values, classes)


WORD_LABEL_COLUMNS = (
    "word_labels",
    "ner_tags",
    "pos_tags",
    "chunk_tags",
    "tags",
    "labels",
)
"""Usual names of a column with one label per word, such as a part of speech."""
IGNORED_LABEL = -100
"""Label of words that have no label, as in Transformers: its loss functions ignore -100."""


def find_word_label_column(source: "datasets.Dataset", requested_column: str | None) -> str | None:
    """Find the column with one label per word.

    Args:
        source: the split.
        requested_column: the column that the user named, which is returned unchanged; None to
            look for usual names.

    Returns:
        The column name; None if there is no such column.

    Raises:
        AttnProbeError: if several usual columns are present.
    """
    if requested_column is not None:
        return requested_column
    present = [name for name in WORD_LABEL_COLUMNS if name in source.column_names]
    # The column word_labels is the first usual name and takes precedence over the other names.
    if len(present) > 1 and present[0] != "word_labels":
        raise AttnProbeError(
            f"several columns could contain the word labels: {', '.join(present)}. Choose one with "
            "--label-column."
        )
    return present[0] if present else None


def read_word_labels(
    values: list[Any],
    names: tuple[str, ...] | None,
    texts: list[str],
    column: str,
) -> tuple[list[list[int]], tuple[str, ...] | None]:
    """Read a column with one label per word.

    Args:
        values: the column's cells, each a list of labels.
        names: label names, if the source has numbers.
        texts: the texts, whose words are separated by white space.
        column: column name for error messages.

    Returns:
        The label numbers for each text's words (-1: unlabelled), and the label names.

    Raises:
        AttnProbeError: if a text has more or fewer labels than words, or labels are neither names
            nor whole numbers.
    """
    # A row without a text has no word labels either.
    values = [
        [] if labels is None and not text.strip() else labels
        for labels, text in zip(values, texts, strict=True)
    ]
    for row, (labels, text) in enumerate(zip(values, texts, strict=True)):
        n_words = len(text.split())
        if not isinstance(labels, list) or len(labels) != n_words:
            received = (
                format_count(len(labels), "label")
                if isinstance(labels, list)
                else "no list of labels"
            )
            raise AttnProbeError(
                f"column {column!r} must contain one label per word, but row {row} has "
                f"{format_count(n_words, 'word')} and {received}"
            )
    all_labels = [
        None if label == IGNORED_LABEL else label for labels in values for label in labels
    ]
    numbered = read_labels(all_labels, all_labels, column=column, names=names)
    if numbered.label_type != "classes":
        raise AttnProbeError(
            f"column {column!r} must contain word labels as names or whole numbers, got other values"
        )
    numbers = iter(numbered.values)
    return [[next(numbers) for _ in labels] for labels in values], numbered.names


def read_answer_spans(source: "datasets.Dataset", contexts: list[str]) -> dict[str, list[int]]:
    """Read the positions of answers in their contexts, for extractive question answering.

    The data has the columns `answer_start` and `answer_end`, or `answers` in SQuAD's format. In the
    latter, only the first answer is used.

    Args:
        source: the split.
        contexts: one context per question.

    Returns:
        The columns `answer_start` (position of the answer's first character) and `answer_end`
        (position after its last character), both -1 for questions without an answer; empty if the
        data has no answers.

    Raises:
        AttnProbeError: if an answer is not at its position in the context.
    """
    present = source.column_names
    if {"answer_start", "answer_end"} <= set(present):
        starts, ends = read_column(source, "answer_start"), read_column(source, "answer_end")
        spans = [
            (-1 if start is None else start, -1 if end is None else end)
            for start, end in zip(starts, ends, strict=True)
        ]
    elif "answers" in present and _has_answer_positions(source.features["answers"]):
        cells = read_column(source, "answers")
        spans = [_find_first_answer(cell, contexts[row], row) for row, cell in enumerate(cells)]
    else:
        return {}
    for row, (start, end) in enumerate(spans):
        are_numbers = isinstance(start, int) and isinstance(end, int)
        length = len(contexts[row])
        if (start, end) != (-1, -1) and not (are_numbers and 0 <= start < end <= length):
            raise AttnProbeError(
                f"the answer in row {row} must be within the {length} characters of its context, got "
                f"{start!r} to {end!r}. Count characters from 0. If there is no answer, set "
                "answer_start and answer_end to -1."
            )
    return {
        "answer_start": [start for start, _ in spans],
        "answer_end": [end for _, end in spans],
    }


def _has_answer_positions(feature: Any) -> bool:
    """Return whether a column has SQuAD's format, with the texts and positions of answers."""
    cell = getattr(feature, "feature", feature)
    return isinstance(cell, Mapping) and {"text", "answer_start"} <= set(cell)


def _find_first_answer(cell: Any, context: str, row: int) -> tuple[int, int]:
    """Return the start and end of the first answer in a cell in SQuAD format.

    The positions are characters in the context. They are (-1, -1) if the cell has no answer.
    """
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
            f"row {row} must contain its answer {text!r} at character {start} of the context, but has "
            f"{context[start:end]!r} there; correct answer_start"
        )
    return start, end


CHOICE_TEXT_COLUMNS = (
    "text",
    "sent1",
    "startphrase",
    "ctx",
    "question",
    "premise",
    "sentence",
)
"""Usual names of the text column in multiple-choice data sets.

The column contains a question, or the beginning of a text that the choices complete.
"""


def read_choices(
    source: "datasets.Dataset",
) -> tuple[str, list[list[str]]] | None:
    """Read the choices for multiple-choice questions.

    These columns are recognised: `choices` (a list of texts, or a dict with `text` and `label` as in
    ARC), `endings` (HellaSwag), `ending0`, `ending1`, … (SWAG; each ending is appended to `sent2`),
    and `choice1`, `choice2`, … (COPA).

    Args:
        source: the split.

    Returns:
        The name of the question column, and a list of choices per row; None if the data has no
        choices.

    Raises:
        AttnProbeError: if a row has fewer than two choices, or choices that are not texts.
    """
    present = source.column_names
    numbered_columns = sorted(name for name in present if re.fullmatch(r"(ending|choice)\d", name))
    list_names = [name for name in ("choices", "endings") if name in present]
    if list_names:
        cells = read_column(source, list_names[0])
        rows = [cell["text"] if isinstance(cell, Mapping) else cell for cell in cells]
    elif len(numbered_columns) > 1:
        columns = [read_column(source, name) for name in numbered_columns]
        rows = [list(row) for row in zip(*columns, strict=True)]
        if "sent2" in present:
            beginnings = read_column(source, "sent2")
            rows = [
                [f"{beginning} {ending}" for ending in row]
                for row, beginning in zip(rows, beginnings, strict=True)
            ]
    else:
        return None
    _check_choices(rows)
    question_columns = [name for name in CHOICE_TEXT_COLUMNS if name in present]
    return question_columns[0] if question_columns else "text", rows


def _check_choices(rows: list[Any]) -> None:
    """Raise AttnProbeError unless every row is a list of at least two texts."""
    for row, choices in enumerate(rows):
        is_list = isinstance(choices, list) and len(choices) > 1
        if not is_list or not all(isinstance(choice, str) for choice in choices):
            raise AttnProbeError(
                f"choices must be a list of at least two texts, but row {row} has {choices!r:.60}; "
                "correct or drop this row"
            )


def index_correct_choices(values: list[Any], cells: list[Any] | None) -> list[Any]:
    """Convert labels for multiple-choice questions into choice indices.

    Args:
        values: one label per question: the correct choice's name (such as "B"), text or number.
        cells: cells from the column `choices`, each a list of texts, or a dict with the choices'
            names under `label`; None if there is no such column.

    Returns:
        One index per question; None for unlabelled questions.

    Raises:
        AttnProbeError: if a label is neither a name nor a text nor a number.
    """
    indices: list[Any] = []
    for row, label in enumerate(values):
        cell = cells[row] if cells else []
        choices = cell["label"] if isinstance(cell, Mapping) else cell
        if label in choices:
            indices.append(choices.index(label))
        elif label == "":
            indices.append(None)
        elif not isinstance(label, str):
            indices.append(label)
        elif label.isdigit():
            indices.append(int(label))
        else:
            raise AttnProbeError(
                f"the label {label!r} in row {row} is not one of the choices. Use the name, the text "
                "or the number (from 0) of the correct choice."
            )
    return indices


POSITION_DTYPE_PREFIXES = ("int", "uint", "null")
"""Word positions must have a dtype with one of these prefixes, such as "int64".

The dtype is "null" if all lists of positions are empty.
"""


def read_rationales(source: "datasets.Dataset", suffix: str = "") -> list[list[int]] | None:
    """Read rationales: positions of the words that people marked as the reason for a label.

    Rationales are lists of whole numbers in the column `rationale`. A column with other content,
    such as sentences, is ignored with a warning.

    Args:
        source: the split.
        suffix: column name suffix; "_pair" for the second texts.

    Returns:
        The positions for each text, empty for texts without a rationale; None if the data has no
        rationales.
    """
    column = f"rationale{suffix}"
    if column not in source.column_names:
        return None
    positions = getattr(source.features[column], "feature", None)
    if not str(getattr(positions, "dtype", "")).startswith(POSITION_DTYPE_PREFIXES):
        logger.warning(
            "column %s is ignored, since it does not hold rationales as lists of word positions",
            column,
        )
        return None
    return [cell or [] for cell in read_column(source, column)]
