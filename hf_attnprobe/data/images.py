"""Images as data: pixels as a model takes them, or images for its processor to read."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_attnprobe.data.columns import column_of
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


COLUMNS = ("pixel_values", "image", "img")
"""Columns of images, the first as the model's processor gives them."""


def image_column(columns: Sequence[str]) -> str | None:
    """The column of the images; None where there is none."""
    return next((name for name in COLUMNS if name in columns), None)


def read_images(source: "datasets.Dataset", texts: bool) -> dict[str, list[Any]]:
    """The images of a split by the name of their column; nothing where it has none.

    Args:
        source: the split.
        texts: whether it has a column of texts too. Then a column that is only called
            as one of images, such as a number, is none.

    Raises:
        AttnProbeError: the column holds no images, or one that cannot be read.
    """
    name = image_column(source.column_names)
    if name is None:
        return {}
    try:
        cells = column_of(source, name)
    except Exception as reason:  # of Pillow and the file system
        raise not_images(name, reason) from reason
    row = next((k for k, cell in enumerate(cells) if not _is_image(cell, name)), None)
    if row is None:
        return {name: cells}
    if texts:
        return {}
    raise not_images(name, f"row {row} is {type(cells[row]).__name__}")


def not_images(name: str, reason: object) -> AttnProbeError:
    """The error for a column of images that holds none."""
    return AttnProbeError(
        f"column {name!r} must hold images: {' '.join(str(reason).split())[:160]}; "
        "mend it, or name a column with texts with --text-column"
    )


def _is_image(cell: Any, name: str) -> bool:
    """Whether a value may be an image; of pixels also whether they have three axes."""
    if name == COLUMNS[0]:
        try:
            pixels = np.asarray(cell, dtype=np.float32)
        except (TypeError, ValueError):
            return False
        return pixels.ndim == 3 and pixels.size > 0
    if isinstance(cell, dict):
        return bool({"bytes", "path"} & set(cell))
    if isinstance(cell, str):  # where it lies
        return "://" in cell or Path(cell).is_file()
    is_read = hasattr(cell, "convert") or isinstance(cell, bytes)
    return is_read or (isinstance(cell, list | np.ndarray) and len(cell) > 0)


def has_images(examples: "datasets.Dataset") -> bool:
    """Whether rows of :func:`~hf_attnprobe.data.examples.load_examples` are images."""
    return image_column(examples.column_names) is not None


def digest(image: Any) -> str:
    """What tells one image from another: its shape and the hash of its numbers."""
    pixels = np.ascontiguousarray(np.asarray(image))
    content = hashlib.sha256(pixels.tobytes()).hexdigest()
    return f"{pixels.shape} {pixels.dtype} {content}"
