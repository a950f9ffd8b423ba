"""What is asked besides one label: labels of words, an answer's place, choices."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.columns import column_of
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


WORD_LABELS = ("word_labels", "ner_tags", "pos_tags", "chunk_tags", "tags", "labels")
"""Columns with a list of one label per word, the first our own name."""
IGNORED = -100
"""Transformers' number of a word that is not labelled."""


def word_label_column(source: "datasets.Dataset", given: str | None) -> str | None:
    """The column with the labels of the words, where the words come in a list.

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
    values: list[Any], names: Sequence[str] | None, texts: list[str], column: str
) -> tuple[list[list[int]], tuple[str, ...] | None]:
    """One label per word of each text, -1 for none, and the names of the labels.

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
    items = {label for labels in values for label in labels if label is not None}
    if items and all(isinstance(item, str) for item in items):
        names = names or tuple(sorted(items))
        numbers: dict[Any, int] = {name: k for k, name in enumerate(names)}
        rows = [[numbers.get(label, -1) for label in labels] for labels in values]
        return rows, tuple(names)
    if not all(isinstance(item, int) for item in items):
        raise AttnProbeError(
            f"expected whole numbers or names as labels of words in column {column!r}, "
            "got others; convert them"
        )
    rows = [[-1 if label in (None, IGNORED) else label for label in labels] for labels in values]
    return rows, None if names is None else tuple(names)


def read_answers(source: "datasets.Dataset", contexts: list[str]) -> dict[str, list[int]]:
    """Where the answer begins and ends in the context, -1 where there is none.

    Read from columns `answer_start` and `answer_end`, or from SQuAD's `answers`, of
    which the first is taken. Empty where the data has neither.

    Raises:
        AttnProbeError: an answer that is not where it is said to be.
    """
    present = source.column_names
    if {"answer_start", "answer_end"} <= set(present):
        starts = [-1 if k is None else k for k in column_of(source, "answer_start")]
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
        ends = [-1 if span is None else span[1] + len(span[0]) for span in spans]
        for row, span in enumerate(spans):
            if span is not None and contexts[row][starts[row] : ends[row]] != span[0]:
                raise AttnProbeError(
                    f"expected the answer {span[0]!r} at character {starts[row]} of "
                    f"the context of row {row}, found "
                    f"{contexts[row][starts[row] : ends[row]]!r}; mend answer_start"
                )
    else:
        return {}
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if (start, end) != (-1, -1) and not 0 <= start < end <= len(contexts[row]):
            raise AttnProbeError(
                f"expected an answer within the {len(contexts[row])} characters of the "
                f"context of row {row}, got {start} to {end}; give -1 and -1 for none"
            )
    return {"answer_start": starts, "answer_end": ends}


def _are_answers(cell: Any) -> bool:
    """Whether a cell tells where answers are, or has none."""
    if isinstance(cell, list):
        return all(_are_answers(item) for item in cell)
    return cell is None or (isinstance(cell, Mapping) and {"text", "answer_start"} <= cell.keys())


def _first_answer(cell: Any) -> tuple[str, int] | None:
    """Text and start of the first of SQuAD's answers, lists in a dict or the reverse."""
    if isinstance(cell, list):
        cell = cell[0] if cell else None
        return None if cell is None else (cell["text"], cell["answer_start"])
    if not isinstance(cell, Mapping) or not cell.get("text"):
        return None
    texts, starts = cell["text"], cell["answer_start"]
    if isinstance(texts, str):
        return texts, starts
    return texts[0], starts[0]


def read_choices(source: "datasets.Dataset") -> tuple[str, list[list[str]]] | None:
    """The column of the text and the choices beside it; None where there are none.

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
        rows = [cell["text"] if isinstance(cell, Mapping) else cell for cell in cells]
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
    known = ("text", "sent1", "startphrase", "ctx", "question", "premise", "sentence")
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
    """Labels as numbers of choices, from numbers, digits, letters (A is 0) or texts.

    Args:
        values: of the label column.
        cells: of the column `choices`, whose `label` names each choice; None: no names.

    Raises:
        AttnProbeError: a label that is none of these.
    """
    numbers = []
    for row, value in enumerate(values):
        names = cells[row].get("label") if cells and isinstance(cells[row], Mapping) else None
        if names and value in names:
            value = list(names).index(value)
        elif isinstance(value, str) and value.isdigit():
            value = int(value)
        elif isinstance(value, str) and cells and value in cells[row]:
            value = list(cells[row]).index(value)
        elif isinstance(value, str) and re.fullmatch("[A-Z]", value):
            value = ord(value) - ord("A")
        elif isinstance(value, str) and value:
            raise AttnProbeError(
                "expected as label the number, from 0, of the right choice, its letter "
                f"or its text, row {row} has {value!r}; renumber it"
            )
        numbers.append(None if value == "" else value)
    return numbers
