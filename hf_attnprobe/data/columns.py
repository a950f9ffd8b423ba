"""Find and read the columns with texts or images in a data set.

A text is a single text or a pair, such as a premise and a hypothesis, or a question and its
context. If a data set's columns allow several choices, the user must name the columns.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


TEXT_COLUMNS = ("text", "sentence")
"""Usual names of the text column in data sets with single texts."""
PAIR_COLUMNS = (
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "context"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
)
"""Usual names of the two text columns in data sets with text pairs: first text, second text."""
PAIR_NAME_SEPARATOR = " with "
"""Separator between the two column names of a pair, as in "premise with hypothesis"."""
TOKENS_COLUMN = "tokens"
"""Usual name of the text column if each text is stored as a list of words."""
SIGNAL_COLUMNS = ("audio", "input_values", "input_features", "speech", "video", "past_values")
"""Usual names of columns with audio, video or time series."""

TEXT_COLUMN_ADVICE = (
    "Choose the column of the texts with --text-column and, for pairs, the column of the second "
    "texts with --text-pair-column. In Python, use Data(…, text_column=…, text_pair_column=…)."
)
"""Last sentences of error messages about missing or wrong text columns."""


@dataclass(frozen=True)
class TextColumns:
    """Names of the columns that contain the texts.

    Attributes:
        text: one or several columns; several are joined by a space.
        text_pair: column with the second texts; None for single texts.
    """

    text: tuple[str, ...]
    text_pair: str | None = None

    def __str__(self) -> str:
        text = " + ".join(self.text)
        return text if self.text_pair is None else f"{text}{PAIR_NAME_SEPARATOR}{self.text_pair}"


def list_columns(columns: str | Sequence[str] | None) -> list[str]:
    """Return one or several column names as a list. For None, the list is empty."""
    return [columns] if isinstance(columns, str) else [*(columns or ())]


def choose_columns(
    present: Sequence[str],
    text: str | Sequence[str] | None,
    text_pair: str | None,
) -> TextColumns:
    """Choose a data set's text columns.

    Args:
        present: all column names.
        text: text column or columns that the user or a recipe named. If both arguments are None,
            the columns are chosen by their names: a usual pair such as `premise` and
            `hypothesis`, otherwise `text` or `sentence`.
        text_pair: column with the second texts that the user or a recipe named.

    Returns:
        The chosen columns.

    Raises:
        AttnProbeError: if a named column does not exist, or the names allow no choice or several.

    >>> print(choose_columns(["premise", "hypothesis", "label"], None, None))
    premise with hypothesis
    """
    for column in list_columns(text):
        check_column_exists(present, column, "--text-column")
    for column in list_columns(text_pair):
        check_column_exists(present, column, "--text-pair-column")
    if text is not None:
        return _check_pair_columns(TextColumns(tuple(list_columns(text)), text_pair))
    if text_pair is not None:
        return TextColumns((_find_first_column(present, text_pair),), text_pair)

    candidates: list[tuple[str, ...]] = [pair for pair in PAIR_COLUMNS if set(pair) <= set(present)]
    single = next((name for name in TEXT_COLUMNS if name in present), None)
    if single is not None and not any(single in pair for pair in candidates):
        candidates.append((single,))
    if not candidates and TOKENS_COLUMN in present:
        candidates = [(TOKENS_COLUMN,)]
    if len(candidates) > 1:
        alternatives = " or ".join(PAIR_NAME_SEPARATOR.join(columns) for columns in candidates)
        raise AttnProbeError(
            f"the texts could be in {alternatives}. Choose a column with --text-column and, for "
            "pairs, --text-pair-column."
        )
    if not candidates:
        signals = [name for name in SIGNAL_COLUMNS if name in present]
        if signals:
            raise AttnProbeError(
                f"the column {signals[0]} contains audio, video or a time series, and models of these "
                "cannot be audited. Audits read texts, images, and bags of instances (columns "
                "features or items, with one vector or number for each frame)."
            )
        raise AttnProbeError(
            f"found no text column with a usual name among {', '.join(present)}. {TEXT_COLUMN_ADVICE} "
            "If the data has bags of instances instead of texts, choose their column with "
            "--instance-column."
        )
    first, *second = candidates[0]
    return TextColumns((first,), *second)


def _check_pair_columns(columns: TextColumns) -> TextColumns:
    """Return the columns unchanged, or raise AttnProbeError if they cannot form text pairs."""
    if columns.text_pair in columns.text:
        raise AttnProbeError(
            "the first and the second texts must be in different columns, got "
            f"{columns.text_pair!r} for both. {TEXT_COLUMN_ADVICE}"
        )
    if columns.text_pair is not None and len(columns.text) > 1:
        raise AttnProbeError(
            "--text-column must be a single column if --text-pair-column is set, got "
            f"{', '.join(columns.text)}. Join these columns in the data, or omit --text-pair-column."
        )
    return columns


def _find_first_column(present: Sequence[str], text_pair: str) -> str:
    """Find the column with the first texts of pairs, given the column with the second texts."""
    usual_partners = [first for first, second in PAIR_COLUMNS if second == text_pair]
    for name in (*usual_partners, *TEXT_COLUMNS):
        if name in present and name != text_pair:
            return name
    raise AttnProbeError(
        f"the second texts are in column {text_pair!r}, but the column of the first texts is unknown. "
        f"Choose one of {', '.join(present)} with --text-column."
    )


def check_column_exists(present: Sequence[str], column: str, flag: str) -> None:
    """Raise AttnProbeError if a column does not exist.

    Args:
        present: all column names.
        column: the requested column name.
        flag: command-line flag for this column, such as ``--text-column``.
    """
    if column not in present:
        raise AttnProbeError(
            f"the data has no column {column!r}. Choose one of {', '.join(present)} with {flag}."
        )


def read_column(examples: "datasets.Dataset", name: str) -> list[Any]:
    """Return a column as plain Python values, even if the data set's format is torch or NumPy."""
    return examples.with_format(None)[name][:]


def read_text_columns(
    source: "datasets.Dataset", columns: TextColumns
) -> tuple[list[str], list[str] | None]:
    """Read the texts of a split, and the second texts if they are pairs.

    A missing text, such as None, is read as an empty text. All formats thus treat rows without a
    text alike.

    Args:
        source: the split.
        columns: the text columns.

    Returns:
        The texts, and the second texts or None for single texts.

    Raises:
        AttnProbeError: if a text is not a string.
    """
    column_texts = [_read_strings(source, name, "--text-column") for name in columns.text]
    texts = []
    for row_texts in zip(*column_texts, strict=True):
        nonempty_texts = [text for text in row_texts if text]
        texts.append(" ".join(nonempty_texts))
    if columns.text_pair is None:
        return texts, None
    return texts, _read_strings(source, columns.text_pair, "--text-pair-column")


def _read_strings(source: "datasets.Dataset", column: str, flag: str) -> list[str]:
    """Read a column as strings, and join lists of words by spaces. A missing value becomes ""."""
    cells = read_column(source, column)
    texts = [_join_words(cell, column, row) for row, cell in enumerate(cells)]
    for row, text in enumerate(texts):
        if text is not None and not isinstance(text, str):
            if isinstance(text, list) and column in TEXT_COLUMNS:
                advice = f"Rename the column to {TOKENS_COLUMN!r} if it contains lists of words"
            elif isinstance(text, Mapping):
                names = ", ".join(f"{column}.{name}" for name in text)
                advice = f"The cell contains other columns; choose one of {names} with {flag}"
            else:
                advice = "Correct or drop this row"
            raise AttnProbeError(
                f"column {column!r} must contain strings, but row {row} has a cell of type "
                f"{type(text).__name__}. {advice}, or choose another column with {flag}."
            )
    return [text or "" for text in texts]


def _join_words(cell: Any, column: str, row: int) -> Any:
    """Join a cell's words by spaces if it is a list of words; otherwise return it unchanged.

    White space inside a word is removed, so that splitting the text restores the words.
    """
    if column in TEXT_COLUMNS or not isinstance(cell, list):
        return cell
    if not all(isinstance(word, str) for word in cell):
        return cell
    words = ["".join(word.split()) for word in cell]
    if "" in words:
        raise AttnProbeError(
            f"column {column!r} contains an empty word in row {row}. Remove this word and its label."
        )
    return " ".join(words)


# --- Images: pixel arrays, or images that the model's processor reads ----------------------------

IMAGE_COLUMNS = ("pixel_values", "image", "img")
"""Usual names of the image column.

`pixel_values` contains preprocessed images as numeric arrays. `image` and `img` contain images.
"""


def find_image_column(columns: Sequence[str]) -> str | None:
    """Return the name of the image column, or None if there is none."""
    return next((name for name in IMAGE_COLUMNS if name in columns), None)


def read_images(source: "datasets.Dataset", has_texts: bool) -> dict[str, list[Any]]:
    """Read a split's images.

    Args:
        source: the split.
        has_texts: whether the split also has texts. The image column is then used only if its type
            is ``datasets.Image``.

    Returns:
        The images by their column name; empty if the split has no images.

    Raises:
        AttnProbeError: if a cell is empty or cannot be read as an image.
    """
    name = find_image_column(source.column_names)
    if name is None:
        return {}
    if has_texts and type(source.features[name]).__name__ != "Image":
        return {}
    cells = read_image_column(source, name)
    if any(cell is None for cell in cells):
        raise make_image_error(name, "one row has an empty cell")
    return {name: cells}


def read_image_column(examples: "datasets.Dataset", name: str) -> list[Any]:
    """Read a column with images. If an image is damaged, the error contains the column name.

    Args:
        examples: the split.
        name: the column name.

    Returns:
        One image per row.

    Raises:
        AttnProbeError: if an image cannot be read.
    """
    try:
        return read_column(examples, name)
    # Pillow and the file system raise many types of exceptions for a damaged image.
    except Exception as error:
        raise make_image_error(name, error) from error


def make_image_error(name: str, reason: object) -> AttnProbeError:
    """Return the error for an image column with an empty or damaged cell."""
    short_reason = " ".join(str(reason).split())[:160]
    return AttnProbeError(
        f"cannot read the images in column {name!r} ({short_reason}). Correct the column, or choose a "
        "text column with --text-column."
    )


def has_images(examples: "datasets.Dataset") -> bool:
    """Return whether a split that ``load_examples`` returned contains images."""
    return find_image_column(examples.column_names) is not None


def compute_image_digest(image: Any) -> str:
    """Return a string that identifies an image: its shape, data type and hash of all pixels."""
    import numpy as np

    pixels = np.ascontiguousarray(np.asarray(image))
    content = hashlib.sha256(pixels.tobytes()).hexdigest()
    return f"{pixels.shape} {pixels.dtype} {content}"
