"""Finds the columns with the texts or images of a data set.

A text is one segment, or two: a premise and a hypothesis, a question and its context.
Nothing is guessed where a data set has columns for both readings.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


SINGLE = ("text", "sentence")
KNOWN_PAIRS = (
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "context"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
)
"""The columns of usual data sets of pairs, first and second text."""
PAIRED = " with "
"""Stands between the columns of a pair's texts, in words."""
TOKENS = "tokens"
"""A column with the words of a text in a list."""
BOTH = (
    "name the column of the texts with --text-column, and that of the second texts of pairs "
    "with --text-pair-column (in Python: Data(…, text_column=…, text_pair_column=…))"
)


@dataclass(frozen=True)
class TextColumns:
    """The columns read as texts.

    Attributes:
        text: of the text; several are joined by a space.
        text_pair: of the second text; None where texts are single.
    """

    text: tuple[str, ...]
    text_pair: str | None = None

    def __str__(self) -> str:
        text = " + ".join(self.text)
        return text if self.text_pair is None else f"{text}{PAIRED}{self.text_pair}"


def each(given: str | Sequence[str] | None) -> list[str]:
    """Columns that may be given as one, as several or not at all."""
    return [given] if isinstance(given, str) else [*(given or ())]


def choose_columns(
    present: Sequence[str],
    text: str | Sequence[str] | None,
    text_pair: str | None,
) -> TextColumns:
    """Chooses the text columns among those that are ``present``.

    Args:
        text, text_pair: what the user or a recipe names. Without either a known pair is
            looked for, then `text` or `sentence`.

    Raises:
        AttnProbeError: no such column, none that is known, or more than one reading.

    >>> print(choose_columns(["premise", "hypothesis", "label"], None, None))
    premise with hypothesis
    """
    for name, flag in (
        (text, "--text-column"),
        (text_pair, "--text-pair-column"),
    ):
        for column in each(name):
            check_present(present, column, flag)
    if text is not None:
        return _check_pair(TextColumns(tuple(each(text)), text_pair))
    if text_pair is not None:
        return TextColumns((_first_of(present, text_pair),), text_pair)
    readings = [pair for pair in KNOWN_PAIRS if set(pair) <= set(present)]
    single = next((name for name in SINGLE if name in present), None)
    alone = [] if single is None or single in sum(readings, ()) else [(single,)]
    found: list[tuple[str, ...]] = [*readings, *alone]
    if not found and TOKENS in present:
        found = [(TOKENS,)]
    if len(found) > 1:
        names = " or ".join(PAIRED.join(reading) for reading in found)
        raise AttnProbeError(
            f"expected one way to read the texts, the columns allow several: {names}; "
            "say which with --text-column and, for pairs, --text-pair-column"
        )
    if not found:
        raise AttnProbeError(
            "no column 'text' or 'sentence' among the columns "
            f"{', '.join(present)}, and no known pair such as premise with hypothesis; "
            f"{BOTH}"
        )
    first, *second = found[0]
    return TextColumns((first,), *second)


def _check_pair(columns: TextColumns) -> TextColumns:
    if columns.text_pair in columns.text:
        raise AttnProbeError(
            f"expected two different columns for text and second text, got "
            f"{columns.text_pair!r} for both; {BOTH}"
        )
    if columns.text_pair is not None and len(columns.text) > 1:
        raise AttnProbeError(
            f"expected one column with the texts beside the second texts, got "
            f"{', '.join(columns.text)}; join them before, or leave --text-pair-column "
            "out"
        )
    return columns


def _first_of(present: Sequence[str], text_pair: str) -> str:
    """The column of the first texts, if only that of the second texts was named."""
    known = [first for first, second in KNOWN_PAIRS if second == text_pair]
    for name in (*known, *SINGLE):
        if name in present and name != text_pair:
            return name
    raise AttnProbeError(
        f"no column with the first texts is known beside {text_pair!r} among the "
        f"columns {', '.join(present)}; name it with --text-column"
    )


def check_present(present: Sequence[str], column: str, flag: str) -> None:
    """Raises AttnProbeError if the column does not exist."""
    if column not in present:
        raise AttnProbeError(
            f"no column {column!r} among the columns {', '.join(present)}; name one with {flag}"
        )


def column_of(examples: "datasets.Dataset", name: str) -> list[Any]:
    """A column as plain Python values, whatever the format of the data set."""
    return examples.with_format(None)[name][:]


def read_texts(
    source: "datasets.Dataset", columns: TextColumns
) -> tuple[list[str], list[str] | None]:
    """Reads the texts, and the second texts if there are any.

    Raises:
        AttnProbeError: a text that is missing or no string.
    """
    are_several = len(columns.text) > 1
    parts = [_strings(source, name, "--text-column", may_lack=are_several) for name in columns.text]
    texts = [" ".join(filter(None, row)) for row in zip(*parts, strict=True)]
    if columns.text_pair is None:
        return texts, None
    return texts, _strings(source, columns.text_pair, "--text-pair-column")


def _strings(
    source: "datasets.Dataset",
    column: str,
    flag: str,
    *,
    may_lack: bool = False,
) -> list[str]:
    """A column as strings; "" for missing values where they are allowed.

    Lists of words are joined by a space.
    """
    texts = [_joined(cell, column, row) for row, cell in enumerate(column_of(source, column))]
    for row, text in enumerate(texts):
        if not isinstance(text, str) and not (may_lack and text is None):
            raise AttnProbeError(
                f"column {column!r} must hold strings, row {row} is "
                f"{type(text).__name__}; mend or drop it, or name another column with "
                f"{flag}"
            )
    return [text or "" for text in texts]


def _joined(cell: Any, column: str, row: int) -> Any:
    """Joins a list of words so that white space separates exactly these."""
    if column in SINGLE or not isinstance(cell, list):
        return cell
    if not all(isinstance(word, str) for word in cell):
        return cell
    words = ["".join(word.split()) for word in cell]
    if "" in words:
        raise AttnProbeError(
            f"expected words in the lists of column {column!r}, row {row} has an empty "
            "one; drop it, and its label"
        )
    return " ".join(words)


# --- Images as data: pixels as a model takes them, or images for its processor to read -----------

IMAGE_COLUMNS = ("pixel_values", "image", "img")
"""Columns of images, the first as the model's processor gives them."""


def image_column(columns: Sequence[str]) -> str | None:
    """The column with the images; None if there is none."""
    return next((name for name in IMAGE_COLUMNS if name in columns), None)


def read_images(source: "datasets.Dataset", texts: bool) -> dict[str, list[Any]]:
    """Reads the images of a split, by the name of their column; nothing if there are none.

    Args:
        source: the split.
        texts: whether it has a column of texts too. Then only a column of the type
            ``Image`` is one of images.

    Raises:
        AttnProbeError: the column holds no images, or one that cannot be read.
    """
    name = image_column(source.column_names)
    if name is None:
        return {}
    if texts and type(source.features[name]).__name__ != "Image":
        return {}
    cells = images_of(source, name)
    if any(cell is None for cell in cells):
        raise not_images(name, "a row has none")
    return {name: cells}


def images_of(examples: "datasets.Dataset", name: str) -> list[Any]:
    """The cells of a column of images.

    Raises:
        AttnProbeError: one cannot be read.
    """
    try:
        return column_of(examples, name)
    except Exception as reason:  # of Pillow and the file system
        raise not_images(name, reason) from reason


def not_images(name: str, reason: object) -> AttnProbeError:
    """The error for a column of images that holds none."""
    return AttnProbeError(
        f"column {name!r} must hold images: {' '.join(str(reason).split())[:160]}; "
        "mend it, or name a column with texts with --text-column"
    )


def has_images(examples: "datasets.Dataset") -> bool:
    """Whether rows of :func:`~hf_attnprobe.data.examples.load_examples` are images."""
    return image_column(examples.column_names) is not None


def image_digest(image: Any) -> str:
    """Identifies an image: its shape and the hash of its numbers."""
    import numpy as np

    pixels = np.ascontiguousarray(np.asarray(image))
    content = hashlib.sha256(pixels.tobytes()).hexdigest()
    return f"{pixels.shape} {pixels.dtype} {content}"
