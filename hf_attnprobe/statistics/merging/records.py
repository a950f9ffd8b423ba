"""From a merged summary to the statistics of a report."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hf_attnprobe.readings import Readings, is_declared_share
from hf_attnprobe.statistics.bootstrap import Estimate, interval_of
from hf_attnprobe.statistics.merging.derived import is_derived
from hf_attnprobe.statistics.merging.histograms import COARSE, quantile, to_lists
from hf_attnprobe.statistics.merging.partial import EVERY, Partial, of_cell
from hf_attnprobe.statistics.shares import share_interval
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS,
    PREDICTION,
    Statistic,
    group_names,
    in_order,
)


def merged_statistics(
    partial: Partial, label_names: Sequence[str], readings: Readings
) -> tuple[Statistic, ...]:
    """The statistics that ``summarize`` gives of the rows, from their merged summary.

    Means, deviations, counts and intervals are the same to rounding. Medians are within
    their bin of 1/1024 (1/64 of single heads where a test has more than 64 sites).

    Args:
        partial: of all texts.
        label_names: names of the model's classes.
        readings: of the tests; their order is that of the result.
    """
    named = dict(enumerate(group_names(label_names)))
    cells = {ALL_TEXTS: EVERY} | {name: k for k, name in named.items()}
    groups = {name: of_cell(partial, cell) for name, cell in cells.items()}
    groups = {name: group for name, group in groups.items() if n_texts(group)}
    if not groups:
        return ()
    wanted = in_order(columns_of(groups[ALL_TEXTS]), readings)
    described = [_described(group, name, wanted, readings) for name, group in groups.items()]
    return tuple(s for of_column in zip(*described, strict=True) for s in of_column)


def n_texts(partial: Partial) -> int:
    """The number of tested texts."""
    return sum(partial.texts.values())


def columns_of(partial: Partial, *, derived: bool = False) -> list[tuple]:
    """Test, statistic, layer and head of what tests measured.

    Args:
        derived: with what is derived from it.
    """
    columns = partial.keys.droplevel("cell").unique()
    own = [c for c in columns if c[0] != PREDICTION]
    return own if derived else [c for c in own if not is_derived(c[1])]


def _described(
    group: Partial, name: str, columns: Sequence[tuple], readings: Readings
) -> list[Statistic]:
    """A statistic for each column, also for those that no text of the group has."""
    place = group.keys.get_indexer(
        pd.MultiIndex.from_tuples([(EVERY, *c) for c in columns], names=group.keys.names)
    )
    total = n_texts(group)
    declared = np.zeros(len(group.keys), dtype=bool)
    for k, (test, statistic, *_) in zip(place, columns, strict=True):
        declared[k] |= k >= 0 and is_declared_share(test, statistic, readings)
    ends = intervals(group, declared)
    medians = medians_of(group)
    found = []
    for k, (test, statistic, layer, head) in zip(place, columns, strict=True):
        n = int(group.n[k]) if k >= 0 else 0
        numbers = [group.mean[k], medians[k], np.sqrt(group.m2[k] / n)] if n else []
        mean, median, std = map(float, numbers or [np.nan] * 3)
        low, high = map(float, ends[:, k]) if n else (np.nan, np.nan)
        place_of = int(layer), int(head), name
        found.append(
            Statistic(test, statistic, *place_of, mean, median, std, (low, high), n, total - n)
        )
    return found


def medians_of(partial: Partial) -> np.ndarray:
    """The median of each row, to within its bin; NaN without values."""
    offsets, numbers, counts = to_lists(partial.bins)
    medians = np.full(len(partial.n), np.nan)
    for k in np.flatnonzero(partial.n):
        own = slice(offsets[k], offsets[k + 1])
        found = quantile(
            numbers[own],
            counts[own],
            0.5,
            width=COARSE if partial.is_brief[k] else 1,
            n_zero=int(partial.n_zero[k]),
            n_one=int(partial.n_one[k]),
        )
        medians[k] = np.clip(found, partial.low[k], partial.high[k])
    return medians


def intervals(partial: Partial, is_declared_share: np.ndarray) -> np.ndarray:
    """95% intervals of the means, low and high [2, rows]; NaN without values.

    Args:
        is_declared_share: of rows whose values, where all are 0 or 1, are a share of
            texts, bool [rows].
    """
    found = interval_of(partial)
    shares = is_declared_share & is_share_of_texts(partial)
    found[:, shares] = share_interval(partial.n_one[shares], partial.n[shares])
    return found


def is_share_of_texts(partial: Partial) -> np.ndarray:
    """Rows whose values are all 0 or 1, bool [rows]."""
    return (partial.n > 0) & (partial.n_zero + partial.n_one == partial.n)


def estimate_of(partial: Partial, key: tuple, *, share: bool = False) -> Estimate:
    """One row as an estimate; without a value where no text has one.

    Args:
        key: test, statistic, layer and head.
        share: whether the mean is a share of texts where all values are 0 or 1.
    """
    places = partial.keys.get_indexer([(EVERY, *key)])
    if places[0] < 0 or not partial.n[places[0]]:
        return Estimate(float("nan"), None, 0)
    row = partial.rows(places)
    low, high = intervals(row, np.array([share]))[:, 0].tolist()
    return Estimate(float(row.mean[0]), (low, high), int(row.n[0]))
