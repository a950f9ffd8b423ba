"""Columns that answers need beside those of the tests: what is paired by text.

A mean difference has an interval of its own, which the intervals of the two means do
not give; how many texts of each label are right says what a majority would have been.
Both are known while the texts are at hand, and merge as any other column.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from hf_attnprobe.statistics.merging.blocks import Block, Column
from hf_attnprobe.statistics.summary import PREDICTION


LESS = " − "
PAIRS = {
    "input_erasure": (
        ("comprehensiveness@attention", "comprehensiveness@random"),
        ("comprehensiveness@mean_attention", "comprehensiveness@random"),
    )
}
"""Differences that answers grade, by test."""
RIGHT, GAP = "right − label ", "right − probability "
N_GAPS = 10  # bins of the probability, as ``statistics/quality.py`` has


def is_derived(statistic: str) -> bool:
    """Whether a column is none that a test gave."""
    return LESS in statistic


def difference_of(statistic: str, other: str) -> str:
    """The name of a paired difference."""
    return f"{statistic}{LESS}{other}"


def with_derived(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks with their derived columns."""
    for block in blocks:
        of_labels = _of_labels(block) if block.test == PREDICTION else {}
        columns = {**block.columns, **_differences(block), **of_labels}
        yield replace(block, columns=columns)


def _differences(block: Block) -> dict[str, Column]:
    columns = {}
    for one, other in PAIRS.get(block.test, ()):
        if one in block.columns and other in block.columns:
            first, second = block.columns[one], block.columns[other]
            columns[difference_of(one, other)] = Column(
                first.values - second.values, first.is_missing | second.is_missing
            )
    return columns


def _of_labels(block: Block) -> dict[str, Column]:
    """By label whether its texts are right; by probability how far that is from it."""
    label, predicted = block.at("label"), block.at("predicted_class")
    labelled = label >= 0
    is_right = (label == predicted).astype(np.float64)
    columns = {
        f"{RIGHT}{int(k)}": _where(labelled & (label == k), is_right)
        for k in np.unique(label[labelled])
    }
    probability = block.at("probability")
    known = labelled & ~np.isnan(probability)
    place = np.where(known, probability, 0) * N_GAPS
    bins = np.minimum(place.astype(int), N_GAPS - 1)
    for k in np.unique(bins[known]):
        columns[f"{GAP}{k}"] = _where(known & (bins == k), is_right - probability)
    return columns


def _where(wanted: np.ndarray, values: np.ndarray) -> Column:
    column = np.where(wanted, values, np.nan)[:, None]
    return Column(column, np.isnan(column))
