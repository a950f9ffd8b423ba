"""A number over texts with its interval.

Means have an interval from their texts' first three moments. They are skewed where the
texts are: a total variation is 0 for most of them and large for a few. A mean ± some
standard errors, and percentiles of resampled means too, then miss the truth on one side
(``docs/verdicts.md`` says how often). Hall 1992, "On the removal of skewness by
transformation", bends the t statistic by a cubic until it has no skewness to first order;
here the interval is read off Student's t. It needs no resamples, so it is the same for
rows in any order and for summaries that merge.

Shares of texts have the interval of ``shares.py``, scores that are no mean the percentile
bootstrap over texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr, stdtrit

from hf_attnprobe.statistics.shares import ONE_COLUMN, is_share, share_interval


N_RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A mean or a score over texts.

    Attributes:
        value: the number; NaN where no text has a value.
        ci95: its 95% interval over texts, if it has one.
        n: the texts that have a value, where that is known.
    """

    value: float
    ci95: tuple[float, float] | None = None
    n: int | None = None


class HasMoments(Protocol):
    """What an interval needs of columns, each [columns].

    n: texts that have a value. mean: of these; m2, m3: Σ (value − mean)², and cubed.
    low, high: the smallest and the largest value.
    """

    @property
    def n(self) -> np.ndarray: ...
    @property
    def mean(self) -> np.ndarray: ...
    @property
    def m2(self) -> np.ndarray: ...
    @property
    def m3(self) -> np.ndarray: ...
    @property
    def low(self) -> np.ndarray: ...
    @property
    def high(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Moments:
    """As :class:`HasMoments`; without texts the mean is 0."""

    n: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    low: np.ndarray
    high: np.ndarray


def moments(values: np.ndarray) -> Moments:
    """Of columns; values [texts, columns], NaN where a text has none."""
    real = ~np.isnan(values)
    n = real.sum(0)
    mean = np.where(real, values, 0.0).sum(0) / np.maximum(n, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite values
        centred = np.where(real, values - mean, 0.0)
        m2, m3 = (centred**2).sum(0), (centred**3).sum(0)
    low = np.where(real, values, np.inf).min(0, initial=np.inf)
    high = np.where(real, values, -np.inf).max(0, initial=-np.inf)
    return Moments(n, mean, m2, m3, low, high)


def mean_interval(values: np.ndarray, *, critical: float = ONE_COLUMN) -> np.ndarray:
    """95% intervals of the means of columns.

    Args:
        values: [texts, columns]; NaN where a text has no value.
        critical: standard errors of a normal mean on either side; more where several
            are read at once.

    Returns:
        Low and high, [2, columns]; NaN for a column without values.

    >>> mean_interval(np.arange(30.0)[:, None] ** 2).round(1).flatten().tolist()
    [194.4, 394.3]
    """
    return interval_of(moments(values), critical=critical)


def interval_of(of: HasMoments, *, critical: float = ONE_COLUMN) -> np.ndarray:
    """The same from moments, within the smallest and the largest value.

    The interval stays in the range of the texts, so in that of any share or correlation
    too; of texts that all say the same it is that one value.
    """
    error = np.sqrt(of.m2 / np.maximum(of.n, 1) / np.maximum(of.n - 1, 1))
    skewness = _skewness(of.m2, of.m3)
    ends = _hall(of.mean, error, skewness, np.maximum(of.n - 1, 1), critical)
    return np.where(of.n > 0, ends.clip(of.low, of.high), np.nan)


def difference_interval(
    of: HasMoments, other: HasMoments, *, critical: float = ONE_COLUMN
) -> np.ndarray:
    """Intervals of mean − mean of other texts, [2, columns]; NaN where a side has none.

    Degrees of freedom are those of Welch 1947.
    """
    sides = [(side, np.maximum(side.n, 1), np.maximum(side.n - 1, 1)) for side in (of, other)]
    first, second = (side.m2 / n / less for side, n, less in sides)
    squares = sum(part**2 / less for part, (_, _, less) in zip((first, second), sides, strict=True))
    total = first + second
    freedom = np.divide(total**2, squares, out=np.ones_like(total), where=squares > 0)
    spread = sum(side.m2 / n**2 for side, n, _ in sides)
    skew = of.m3 / sides[0][1] ** 3 - other.m3 / sides[1][1] ** 3
    ends = _hall(of.mean - other.mean, np.sqrt(total), _skewness(spread, skew), freedom, critical)
    ends = ends.clip(of.low - other.high, of.high - other.low)
    return np.where((of.n > 0) & (other.n > 0), ends, np.nan)


def _skewness(m2: np.ndarray, m3: np.ndarray) -> np.ndarray:
    """Of a mean: that of its texts divided by √n; 0 without variation."""
    with np.errstate(over="ignore"):
        scale = m2**1.5
    return np.divide(m3, scale, out=np.zeros_like(scale), where=scale > 0)


def _hall(
    mean: np.ndarray,
    error: np.ndarray,
    skewness: np.ndarray,
    freedom: np.ndarray,
    critical: float,
) -> np.ndarray:
    """Low and high [2, columns]: t + λt²/3 + λ²t³/27 + λ/6, solved for t = ± Student's.

    Far in the tails the cubic bends too much, so wider intervals are those of 95% with
    both sides stretched, as Student's quantiles are.
    """
    usual = stdtrit(freedom, ndtr(ONE_COLUMN))
    stretched = error * stdtrit(freedom, ndtr(critical)) / usual
    ends = []
    for side in (usual, -usual):
        bent = side - skewness / 6
        root = np.cbrt(1 + skewness * bent)
        # 3 (root − 1) / λ without its cancellation where λ is nearly 0.
        ends.append(mean - stretched * 3 * bent / (root**2 + root + 1))
    return np.stack(ends)


def resample_counts(n_texts: int, *, seed: int = 0, n_resamples: int = N_RESAMPLES) -> np.ndarray:
    """How often each text is drawn in each resample (Efron 1979).

    Returns:
        float64 [resamples, texts]; every row sums to ``n_texts``. Sums over a resample
        are then one matrix product for all statistics.
    """
    generator = np.random.default_rng(seed)
    shares = np.full(n_texts, 1 / n_texts)
    counts = generator.multinomial(n_texts, shares, size=n_resamples)
    return counts.astype(np.float64)


def percentile_interval(resampled: np.ndarray) -> tuple[float, float]:
    """The 95% interval of a statistic from its values on the resamples.

    Args:
        resampled: [resamples]; NaN where the statistic is undefined on a resample.

    Returns:
        (low, high); NaN where it is undefined on all of them.
    """
    defined = resampled[~np.isnan(resampled)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)


def mean_estimates(values: np.ndarray) -> list[Estimate]:
    """The means of columns with their intervals.

    Args:
        values: [texts, columns]; NaN where a text has no value.

    Returns:
        By column; without an interval where no text has a value.
    """
    of = moments(values)
    ends = interval_of(of).T.tolist()
    return [
        Estimate(mean, (low, high), n) if n else Estimate(float("nan"), None, 0)
        for mean, n, (low, high) in zip(of.mean.tolist(), of.n.tolist(), ends, strict=True)
    ]


def function_estimate(values: np.ndarray, of_means: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """A function of several means over the same texts, with its interval.

    Of Tukey's pseudo-values n·f − (n − 1)·f(without the text) as of any values: their
    mean is f without its bias to first order (Miller 1974, "The jackknife").

    Args:
        values: [texts, columns]; texts with a NaN in any column are left out.
        of_means: [..., columns] -> [...]; NaN where it is undefined.

    Returns:
        n is 0 where no text has all columns, or the number is undefined.
    """
    real = values[~np.isnan(values).any(1)]
    n = len(real)
    if not n:
        return Estimate(float("nan"), None, 0)
    mean = real.mean(0)
    value = float(of_means(mean))
    if np.isnan(value):
        return Estimate(value, None, 0)
    without = of_means((n * mean - real) / (n - 1)) if n > 1 else np.array(np.nan)
    if not np.isfinite(without).all():
        return Estimate(value, None, n)
    pseudo = n * value - (n - 1) * without
    low, high = mean_interval(pseudo[:, None])[:, 0].tolist()
    return Estimate(value, (min(low, value), max(high, value)), n)


def student_t(degrees: int, level: float = 0.95) -> float:
    """How many standard errors an interval has on either side (Student's t)."""
    return float(stdtrit(degrees, (1 + level) / 2))


def mean_estimate(values: np.ndarray, *, share: bool = False, seed: int = 0) -> Estimate:
    """The mean of the texts that have a value, with its interval and their number.

    Args:
        values: [texts]; texts with NaN are left out.
        share: whether the mean is a share of texts; where all values are 0 or 1 the
            interval is then the exact one.
        seed: without effect, since no interval of a mean is drawn.
    """
    real = np.asarray(values, dtype=np.float64)
    real = real[~np.isnan(real)]
    if not len(real):
        return Estimate(float("nan"), None, 0)
    if share and is_share(real[:, None])[0]:
        interval = share_interval(real.sum(), np.array(len(real)))
    else:
        interval = mean_interval(real[:, None])[:, 0]
    low, high = interval.tolist()
    return Estimate(float(real.mean()), (low, high), len(real))
