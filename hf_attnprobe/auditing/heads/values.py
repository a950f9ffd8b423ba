"""The numbers of single heads, with intervals that hold for all heads at once.

Whoever reads a table looks for its largest number; see
:mod:`hf_attnprobe.statistics.estimates`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import simultaneous_interval
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.stopping import Bounds, Stopping, stopping_of, widened
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import RULES


MATTERS = RULES["head_effect"].yes
AGREES = RULES["head_importance"].yes
ELSEWHERE = RULES["head_uniqueness"].yes
ON_THE_WAY = RULES["head_erasure"].yes

HeadKey = tuple[int, int]
ByHead = Mapping[HeadKey, float]


@dataclass(frozen=True)
class Heads:
    """One number of every head.

    Attributes:
        means: over the texts, by (layer, head).
        intervals: of the means; 95%, simultaneous over all heads that have one.
    """

    means: ByHead
    intervals: Mapping[HeadKey, tuple[float, float]] = field(default_factory=dict)

    def surely(self, threshold: float) -> set[HeadKey]:
        """Heads whose interval lies at the threshold or above; above it, if it is 0."""
        return {
            site
            for site, (low, _) in self.intervals.items()
            if (low > 0 if threshold == 0 else low >= threshold)
        }


def by_head(statistics: Sequence[Statistic], name: str) -> dict[HeadKey, float]:
    """The mean of a statistic over all texts, by (layer, head); no groups of heads."""
    return {
        (s.layer, s.head): s.mean
        for s in statistics
        if s.statistic == name and s.group == "all" and s.n and is_head(s)
    }


def has_heads(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has more than one head."""
    return len({(s.layer, s.head) for s in statistics if is_head(s)}) > 1


def has_several(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has several heads, tested one by one or as groups."""
    groups = any(s.head < 0 and s.n for s in statistics)
    return groups or has_heads(statistics)


def is_head(s: Statistic) -> bool:
    """Whether this is of a single head."""
    return s.layer >= 0 and s.head >= 0


def values_by_head(rows: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """The values of a statistic [texts × heads]; NaN where a text has none.

    Args:
        rows: of an audit; may be empty.

    Returns:
        The index has example ids, the columns (layer, head) without groups of heads.
    """
    if not len(rows):
        return pd.DataFrame()
    wanted = (rows.statistic == statistic) & (rows.layer >= 0) & (rows["head"] >= 0)
    return rows[wanted].pivot_table(index="example_id", columns=["layer", "head"], values="value")


def head_intervals(rows: pd.DataFrame, statistic: str) -> dict[HeadKey, tuple[float, float]]:
    """95% intervals of a statistic's means that hold for all heads at once.

    Heads with a value for fewer than ``MIN_TEXTS`` texts have none.
    """
    stopping = stopping_of(rows)
    bounds = None if stopping is None else stopping.bounds(statistic)
    return intervals_of_means(values_by_head(rows, statistic), bounds, stopping)


def intervals_of_means(
    values: pd.DataFrame, bounds: Bounds | None, stopping: Stopping | None
) -> dict[HeadKey, tuple[float, float]]:
    """As :func:`head_intervals`, of values [texts × heads].

    Args:
        values: as of :func:`values_by_head`.
        bounds: of a value, where it has some.
        stopping: of an audit that stopped early.
    """
    if values.empty:
        return {}
    values = values.loc[:, values.notna().sum() >= MIN_TEXTS]
    n_heads = values.shape[1]
    low, high = widened(
        simultaneous_interval(values.to_numpy(dtype=np.float64)),
        values,
        [bounds] * n_heads,
        stopping,
        together=n_heads if stopping is None else max(n_heads, stopping.n_heads),
    )
    return {
        (int(layer), int(head)): (float(low[k]), float(high[k]))
        for k, (layer, head) in enumerate(values.columns)
    }


def heads_of(statistics: Sequence[Statistic], rows: pd.DataFrame, name: str) -> Heads:
    """The means of a statistic with their intervals, by head."""
    return Heads(by_head(statistics, name), head_intervals(rows, name))
