"""What changes from one model to another: differences of means with intervals.

On the same texts every text is a pair; on other texts each side is resampled by itself.
Pure: data frames in, differences out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.bootstrap import (
    difference_interval,
    mean_interval,
    moments,
)
from hf_attnprobe.statistics.contrasts import paired_intervals
from hf_attnprobe.statistics.shares import (
    ONE_COLUMN,
    is_share,
    paired_share_interval,
    share_difference_interval,
)
from hf_attnprobe.statistics.simultaneous import critical_value
from hf_attnprobe.statistics.verdicts import MIN_TEXTS


@dataclass(frozen=True)
class Difference:
    """A mean of one model minus that of another.

    Attributes:
        value: the difference; NaN where no text has both values.
        first: mean of the one that is subtracted, over the texts that count here.
        other: mean of the other one.
        ci95: its own 95% interval: over texts, of shares of texts that of Bonet & Price (2012), or of Agresti & Caffo (2000) on other
            texts.
        simultaneous: an interval that holds for all differences that were made together
            with 95% probability, so that the most striking one may be picked.
        n: texts that both have; without pairs those of the smaller side.
        paired: whether both models were tested on the same texts.
    """

    value: float
    first: float
    other: float
    ci95: tuple[float, float]
    simultaneous: tuple[float, float]
    n: int
    paired: bool

    @property
    def can_be_told(self) -> bool:
        """Whether the sign can be told: the simultaneous interval excludes 0."""
        low, high = self.simultaneous
        return self.n >= MIN_TEXTS and (low > 0 or high < 0)


@dataclass(frozen=True, eq=False)
class Sides:
    """Numbers of two models.

    Attributes:
        first: of the one that is subtracted, [texts, columns], by id of the text; NaN
            where a text has no value.
        other: of the other one, the same columns.
        paired: whether equal ids are the same texts.
    """

    first: pd.DataFrame
    other: pd.DataFrame
    paired: bool


@dataclass(frozen=True, eq=False)
class _Measured:
    """Differences of columns before it is known how many are read at once.

    ``errors`` [units, columns] has what every text adds to the error of each difference,
    ``at`` gives the intervals [2, columns] so many standard errors away.
    """

    first: np.ndarray
    other: np.ndarray
    ci95: np.ndarray
    n: np.ndarray
    errors: pd.DataFrame
    at: Callable[[float], np.ndarray]


def changes(sides: Sequence[Sides], *, seed: int = 0) -> list[list[Difference]]:
    """Other − first of every column, of every pair of models.

    The simultaneous intervals are over all columns of all pairs.

    Args:
        sides: pairs with the same first model.
        seed: of the resamples.

    Returns:
        By pair, in the order of its columns.
    """
    measured: dict[int, _Measured] = {}
    for number, both in enumerate(sides):
        if both.first.shape[1]:
            measure = _on_same_texts if both.paired else _on_other_texts
            measured[number] = measure(both, number + 1)
    if not measured:
        return [[] for _ in sides]
    errors = pd.concat([m.errors for m in measured.values()], axis=1)
    critical = critical_value(errors.to_numpy(dtype=np.float64), seed=seed)
    return [
        _differences(measured[number], critical, both.paired) if number in measured else []
        for number, both in enumerate(sides)
    ]


def _differences(measured: _Measured, critical: float, paired: bool) -> list[Difference]:
    """One difference per column."""
    ends = zip(measured.ci95.T.tolist(), measured.at(critical).T.tolist(), strict=True)
    return [
        Difference(
            value=float(measured.other[k] - measured.first[k]),
            first=float(measured.first[k]),
            other=float(measured.other[k]),
            ci95=(own[0], own[1]),
            simultaneous=(both[0], both[1]),
            n=int(measured.n[k]),
            paired=paired,
        )
        for k, (own, both) in enumerate(ends)
    ]


def _on_same_texts(both: Sides, number: int) -> _Measured:
    texts = both.first.index.intersection(both.other.index).sort_values()
    first = both.first.loc[texts].to_numpy(dtype=np.float64)
    other = both.other.loc[texts].to_numpy(dtype=np.float64)
    differences = other - first
    n, means, errors = _centred(differences)
    counted = np.where(np.isnan(differences), np.nan, first)
    mean_first = _centred(counted)[1]
    shares = is_share(first) & is_share(other)

    def at(critical: float) -> np.ndarray:
        interval = mean_interval(differences, critical=critical)
        interval[:, shares] = paired_share_interval(differences[:, shares], critical=critical)
        return interval

    return _Measured(
        mean_first,
        mean_first + means,
        paired_intervals(other, first),
        n,
        _of_units(errors, texts, side=0),
        at,
    )


def _on_other_texts(both: Sides, number: int) -> _Measured:
    first = both.first.sort_index()
    other = both.other.sort_index()
    values, others = (side.to_numpy(dtype=np.float64) for side in (other, first))
    n, means, errors = _centred(values)
    n_first, means_first, errors_first = _centred(others)
    shares = is_share(values) & is_share(others)

    def at(critical: float) -> np.ndarray:
        interval = difference_interval(moments(values), moments(others), critical=critical)
        interval[:, shares] = share_difference_interval(
            values[:, shares], others[:, shares], critical=critical
        )
        return interval

    # A mean's error is the sum of its texts' errors divided by their number.
    units = [
        _of_units(-errors_first / np.maximum(n_first, 1), first.index, side=0),
        _of_units(errors / np.maximum(n, 1), other.index, side=number),
    ]
    return _Measured(
        means_first, means, at(ONE_COLUMN), np.minimum(n, n_first), pd.concat(units), at
    )


def _centred(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes and means [columns], and what is left of the values without the means."""
    real = ~np.isnan(values)
    n = real.sum(0)
    sums = np.where(real, values, 0).sum(0)
    means = np.where(n > 0, sums / np.maximum(n, 1), np.nan)
    return n, means, values - means


def _of_units(errors: np.ndarray, texts: pd.Index, *, side: int) -> pd.DataFrame:
    """With an index that tells texts of different data apart."""
    units = pd.MultiIndex.from_product([[side], texts])
    return pd.DataFrame(errors, index=units)
