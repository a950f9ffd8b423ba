"""A number over texts with its interval.

Means and scores have the percentile bootstrap over texts. Shares of texts, where every
text says 0 or 1, have an exact interval: resamples of texts that all say the same
would have no width.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import beta


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


def bootstrap_interval(
    values: np.ndarray, *, seed: int = 0, n_resamples: int = N_RESAMPLES
) -> np.ndarray:
    """95% intervals of the means of columns, all on the same resamples.

    Args:
        values: [texts, columns]; NaN where a text has no value.

    Returns:
        Low and high, [2, columns]; NaN for a column without values.
    """
    counts = resample_counts(len(values), seed=seed, n_resamples=n_resamples)
    real = ~np.isnan(values)
    totals = counts @ np.where(real, values, 0)
    sizes = counts @ real.astype(np.float64)
    means = np.full_like(totals, np.nan)
    np.divide(totals, sizes, out=means, where=sizes > 0)
    interval = np.full((2, values.shape[1]), np.nan)
    defined = real.any(0)
    if defined.any():
        interval[:, defined] = np.nanpercentile(means[:, defined], [2.5, 97.5], axis=0)
    return interval


def share_interval(hits: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Exact 95% intervals of the share of texts that an event happens in.

    Clopper & Pearson (1934): covers the true share in at least 95% of samples, also
    where none or all of the texts are hits.

    Args:
        hits, n: how many of how many, any shape.

    Returns:
        Low and high, [2, ...]; NaN where n is 0.

    >>> share_interval(np.array(0), np.array(249)).round(4).tolist()
    [0.0, 0.0147]
    """
    hits, n = np.asarray(hits, dtype=np.float64), np.asarray(n, dtype=np.float64)
    low = np.where(hits > 0, beta.ppf(0.025, hits, n - hits + 1), 0.0)
    high = np.where(hits < n, beta.ppf(0.975, hits + 1, n - hits), 1.0)
    return np.where(n > 0, np.stack([low, high]), np.nan)


def is_share(values: np.ndarray) -> np.ndarray:
    """Columns in which every text that has a value says 0 or 1.

    Shape: values [texts, columns] -> bool [columns]; False for a column without values.
    """
    real = ~np.isnan(values)
    return ((values == 0) | (values == 1) | ~real).all(0) & real.any(0)


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
