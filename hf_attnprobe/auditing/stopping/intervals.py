"""The statistics of an audit that stopped, with intervals that hold all the same. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.stopping import Stopping, stopping_of, widened
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS,
    Statistic,
    groups_of_texts,
    one_row_per_text,
)


def valid_statistics(
    statistics: Sequence[Statistic], rows: pd.DataFrame, label_names: Sequence[str]
) -> tuple[Statistic, ...]:
    """The same with intervals made valid in spite of stopping, where there is a bound.

    Texts that a head was not run on are not counted as undefined.

    Args:
        statistics: as they are summarised from the rows.
        rows: with the mark; without one the statistics stay as they are.
        label_names: names of the model's classes.
    """
    stopping = stopping_of(rows)
    if stopping is None or not statistics:
        return tuple(statistics)
    wide = one_row_per_text(rows)
    undefined = rows[rows.value.isna()].groupby(COLUMN).size().to_dict()
    found: dict[tuple, Statistic] = {}
    for group, texts in groups_of_texts(rows, wide, label_names).items():
        own = [s for s in statistics if s.group == group]
        for s, ends in zip(own, _intervals(own, texts, stopping), strict=True):
            n_without = undefined.get(_column(s), 0)
            n_undefined = min(s.undefined, n_without)
            found[_key(s)] = replace(s, ci95=ends, undefined=n_undefined)
    return tuple(found.get(_key(s), s) for s in statistics)


COLUMN = ["test", "statistic", "layer", "head"]


def _column(s: Statistic) -> tuple[str, str, int, int]:
    return s.test, s.statistic, s.layer, s.head


def _key(s: Statistic) -> tuple:
    return *_column(s), s.group


def _intervals(
    own: Sequence[Statistic], texts: pd.DataFrame, stopping: Stopping
) -> list[tuple[float, float]]:
    """Of statistics of one group of texts."""
    if not own:
        return []
    values = texts[[_column(s) for s in own]]
    ordinary = np.array([s.ci95 for s in own], dtype=np.float64).T
    bounds = [stopping.bounds(s.statistic) for s in own]
    ends = widened(ordinary, values, bounds, stopping)
    return [(low, high) for low, high in ends.T.tolist()]


def without_bounds(statistics: Iterable[Statistic], stopping: Stopping) -> list[str]:
    """Names of statistics that stopped early and have no valid interval, sorted."""
    return sorted(
        {
            s.statistic.partition("@")[0]
            for s in statistics
            if s.group == ALL_TEXTS
            and s.n + s.undefined < stopping.n_texts
            and stopping.bounds(s.statistic) is None
        }
    )
