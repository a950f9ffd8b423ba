"""Images as data: pixels as a model takes them, or images for its processor to read."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np


if TYPE_CHECKING:
    import datasets


COLUMNS = ("pixel_values", "image", "img")
"""Columns of images, the first as the model's processor gives them."""


def image_column(columns: Sequence[str]) -> str | None:
    """The column of the images; None where there is none."""
    return next((name for name in COLUMNS if name in columns), None)


def has_images(examples: "datasets.Dataset") -> bool:
    """Whether rows of :func:`~hf_attnprobe.data.examples.load_examples` are images."""
    return image_column(examples.column_names) is not None


def digest(image: Any) -> str:
    """What tells one image from another: its shape and the hash of its numbers."""
    pixels = np.ascontiguousarray(np.asarray(image))
    content = hashlib.sha256(pixels.tobytes()).hexdigest()
    return f"{pixels.shape} {pixels.dtype} {content}"
