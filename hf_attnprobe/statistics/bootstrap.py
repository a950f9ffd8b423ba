"""A number over texts with its interval.

Means and scores have the percentile bootstrap over texts; shares of texts have the
interval of ``shares.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from hf_attnprobe.statistics.shares import is_share, share_interval


N_RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A mean or a score over texts.

    Attributes:
        value: the number; NaN where no text has a value.
        ci95: its 95% percentile interval over resamples of the texts, if it has one.
        n: the texts that have a value, where that is known.
    """

    value: float
    ci95: tuple[float, float] | None = None
    n: int | None = None


def resample_counts(
    n_texts: int, *, seed: int = 0, n_resamples: int = N_RESAMPLES
) -> np.ndarray:
    """How often each text is drawn in each resample (Efron 1979).

    Returns:
        float64 [resamples, texts]; every row sums to ``n_texts``. Sums over a resample
        are then one matrix product for all statistics.
    """
    if n_texts <= FEW_TEXTS:
        return _few_counts(n_texts, seed, n_resamples)
    return _counts(n_texts, seed, n_resamples)


def _counts(n_texts: int, seed: int, n_resamples: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    shares = np.full(n_texts, 1 / n_texts)
    counts = generator.multinomial(n_texts, shares, size=n_resamples)
    return counts.astype(np.float64)


FEW_TEXTS = 1000
"""Up to so many the draws are kept: many numbers of one report have the same."""
_few_counts = lru_cache(maxsize=8)(_counts)


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


def bootstrap_interval(
    values: np.ndarray, *, seed: int = 0, n_resamples: int = N_RESAMPLES
) -> np.ndarray:
    """95% intervals of the means of columns, all on the same resamples.

    Args:
        values: [texts, columns]; NaN where a text has no value.

    Returns:
        Low and high, [2, columns]; NaN for a column without values.
    """
    means = resampled_means(values, seed=seed, n_resamples=n_resamples)
    return percentile_intervals(means)


def resampled_means(
    values: np.ndarray, *, seed: int = 0, n_resamples: int = N_RESAMPLES
) -> np.ndarray:
    """Means of columns over resamples of the texts, [resamples, columns].

    Args:
        values: [texts, columns]; NaN where a text has no value.
    """
    counts = resample_counts(len(values), seed=seed, n_resamples=n_resamples)
    real = ~np.isnan(values)
    totals = counts @ np.where(real, values, 0)
    sizes = counts @ real.astype(np.float64)
    means = np.full_like(totals, np.nan)
    np.divide(totals, sizes, out=means, where=sizes > 0)
    return means


def percentile_intervals(resampled: np.ndarray) -> np.ndarray:
    """As :func:`percentile_interval` of every column, [2, columns]."""
    interval = np.full((2, resampled.shape[1]), np.nan)
    defined = ~np.isnan(resampled).all(0)
    if defined.any():
        interval[:, defined] = np.nanpercentile(
            resampled[:, defined], [2.5, 97.5], axis=0
        )
    return interval


def mean_estimates(values: np.ndarray, *, seed: int = 0) -> list[Estimate]:
    """The means of columns with bootstrap intervals, all on the same resamples.

    Args:
        values: [texts, columns]; NaN where a text has no value.

    Returns:
        By column; without an interval where no text has a value.
    """
    ends = bootstrap_interval(values, seed=seed).T.tolist()
    sizes = (~np.isnan(values)).sum(0).tolist()
    totals = np.nansum(values, 0).tolist()
    return [
        Estimate(total / n, (low, high), n) if n else Estimate(float("nan"), None, 0)
        for total, n, (low, high) in zip(totals, sizes, ends, strict=True)
    ]


def function_estimate(
    values: np.ndarray, of_means: Callable[[np.ndarray], np.ndarray], *, seed: int = 0
) -> Estimate:
    """A function of several means over the same texts, with its percentile interval.

    Args:
        values: [texts, columns]; texts with a NaN in any column are left out.
        of_means: [..., columns] -> [...]; NaN where it is undefined.
        seed: of the resamples.

    Returns:
        n is 0 where no text has all columns, or the number is undefined.
    """
    real = values[~np.isnan(values).any(1)]
    value = float(of_means(real.mean(0))) if len(real) else float("nan")
    if np.isnan(value):
        return Estimate(value, None, 0)
    means = resample_counts(len(real), seed=seed) @ real / len(real)
    low, high = percentile_interval(of_means(means))
    return Estimate(value, (low, high) if low == low else None, len(real))


def student_t(degrees: int, level: float = 0.95) -> float:
    """How many standard errors an interval has on either side (Student's t)."""
    return float(stdtrit(degrees, (1 + level) / 2))


def mean_estimate(
    values: np.ndarray, *, share: bool = False, seed: int = 0
) -> Estimate:
    """The mean of the texts that have a value, with its interval and their number.

    Args:
        values: [texts]; texts with NaN are left out, of the resamples too.
        share: whether the mean is a share of texts; where all values are 0 or 1 the
            interval is then the exact one.
    """
    real = np.asarray(values, dtype=np.float64)
    real = real[~np.isnan(real)]
    if not len(real):
        return Estimate(float("nan"), None, 0)
    if share and is_share(real[:, None])[0]:
        interval = share_interval(real.sum(), np.array(len(real)))
    else:
        interval = bootstrap_interval(real[:, None], seed=seed)[:, 0]
    low, high = interval.tolist()
    return Estimate(float(real.mean()), (low, high), len(real))
