"""Rows as :func:`~hf_attnprobe.data.examples.load_examples` makes them: what they hold."""

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.images import digest as image_digest
from hf_attnprobe.data.images import image_column


if TYPE_CHECKING:
    import datasets


FURTHER = (
    "rationale",
    "text_pair",
    "rationale_pair",
    "word_labels",
    "answer_start",
    "answer_end",
    "choices",
    "word_tags",
)
"""Columns that only some data has, in the order of the fingerprint."""
READ_FROM = "texts read from "


def label_kind(examples: "datasets.Dataset") -> str:
    """ "classes", "numbers" (a regression's) or "several" (labels at once)."""
    feature = examples.features["label"]
    if hasattr(feature, "feature"):
        return "several"
    return "numbers" if str(feature.dtype).startswith("float") else "classes"


def has_labels(examples: "datasets.Dataset") -> bool:
    """Whether any row has a label, an answer or labelled words."""
    if {"word_labels", "answer_start"} & set(examples.column_names):
        return True
    kind, labels = label_kind(examples), column_of(examples, "label")
    if kind == "classes":
        return max(labels, default=-1) >= 0
    if kind == "numbers":
        return not all(math.isnan(label) for label in labels)
    return any(label is not None for label in labels)


def label_names(examples: "datasets.Dataset") -> list[str]:
    """Names of the classes or labels; none of numbers.

    `LABEL_0`, `LABEL_1`, … as in Transformers where they have none.
    """
    kind, names = label_kind(examples), names_of(examples.features["label"])
    if names is not None:
        return list(names)
    if kind == "numbers":
        return []
    labels = column_of(examples, "label")
    if kind == "several":
        labels = [number for row in labels for number in row or []]
    n_labels = max(labels, default=-1) + 1
    return [f"LABEL_{label}" for label in range(n_labels)]


def columns_read(examples: "datasets.Dataset") -> str:
    """The columns of the source that :func:`load_examples` read as texts, in words."""
    return examples.info.description.removeprefix(READ_FROM)


def names_of(feature: Any) -> tuple[str, ...] | None:
    """The names of a ClassLabel, or of the ClassLabels in a list."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return None if names is None else tuple(names)


def dataset_fingerprint(examples: "datasets.Dataset") -> str:
    """16 hex digits (SHA-256) of ids, texts, labels and what else the rows have.

    Equal for equal examples, in any order and from any source.
    """
    names = ["example_id", "text", "label"]
    names += [name for name in FURTHER if name in examples.column_names]
    columns = [column_of(examples, name) for name in names]
    image = image_column(examples.column_names)
    if image is not None:
        columns.append([image_digest(pixels) for pixels in column_of(examples, image)])
    digest = hashlib.sha256()
    rows = [json.dumps(row) for row in zip(*columns, strict=True)]
    order = zip(columns[0], columns[1], rows, strict=True)
    for _, _, row in sorted(order):
        digest.update(row.encode() + b"\n")
    return digest.hexdigest()[:16]
