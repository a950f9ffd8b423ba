"""Intervals of many means at once, so that the largest may be picked afterwards.

The largest of 72 means is large partly by chance, and its own 95% interval covers the
truth too seldom. Intervals that hold for all 72 at once hold for whichever is picked.

The multiplier bootstrap of Chernozhukov, Chetverikov & Kato 2013, "Gaussian
approximations and multiplier bootstrap for maxima of sums of high-dimensional random
vectors": texts get random weights, the same for all columns, so columns that move
together count as the few that they really are.
"""

import numpy as np
from scipy.special import ndtr, ndtri

from hf_attnprobe.statistics.shares import LEVEL, ONE_COLUMN, is_share, share_interval


N_DRAWS = 2000
DRAWS_AT_ONCE = 250


def simultaneous_interval(
    values: np.ndarray, *, seed: int = 0, n_draws: int = N_DRAWS
) -> np.ndarray:
    """Intervals of the means of columns that all hold at once with 95% probability.

    A column of nothing but 0 and 1 is a share: its interval is the exact one of that
    level, which does not shrink to a point where all texts agree. Any other column
    without variation has its mean as both ends.

    The intervals are symmetric. Of a skewed column whose rare large values a sample may
    miss, the high end is therefore too low more often than the level says, the low end
    too high less often.

    Args:
        values: [texts, columns]; NaN where a text has no value in a column, which then
            rests on the other texts.

    Returns:
        Low and high, [2, columns]; NaN for a column of fewer than two texts.
    """
    critical = critical_value(values, seed=seed, n_draws=n_draws)
    return interval_at(values, critical)


def interval_at(values: np.ndarray, critical: float) -> np.ndarray:
    """Low and high of the means, [2, columns], ``critical`` standard errors away.

    Args:
        values: [texts, columns], as in :func:`simultaneous_interval`.
    """
    _, sizes, means, deviations = _describe(values)
    enough = sizes >= 2
    half = np.full(values.shape[1], np.nan)
    # The deviation divides by n; the standard error of a mean by n − 1.
    half[enough] = critical * deviations[enough] / np.sqrt(sizes[enough] - 1)
    interval = np.stack([means - half, means + half])
    shares = enough & is_share(values)
    hits = np.nansum(values[:, shares], 0)
    level = 2 * float(ndtr(critical)) - 1
    interval[:, shares] = share_interval(hits, sizes[shares], level=level)
    return interval


def critical_value(
    values: np.ndarray, *, seed: int = 0, n_draws: int = N_DRAWS
) -> float:
    """How many standard errors all means together stay from the truth, 95% of times.

    The 95% quantile of the largest of the columns' means over draws of the texts'
    weights, in standard errors. It lies between that of one column, 1.96, and that of
    independent ones (Šidák's inequality); the draws' own noise is cut off there.

    Args:
        values: [texts, columns], as in :func:`simultaneous_interval`.
    """
    real, sizes, means, deviations = _describe(values)
    varying = (sizes >= 2) & (deviations > 0)
    n_columns = int(varying.sum())
    if n_columns < 2:
        return ONE_COLUMN
    scale = deviations[varying] * np.sqrt(sizes[varying])
    centred = np.where(real, values - means, 0)[:, varying] / scale
    generator = np.random.default_rng(seed)
    largest = []
    for start in range(0, n_draws, DRAWS_AT_ONCE):
        n_now = min(DRAWS_AT_ONCE, n_draws - start)
        weights = generator.standard_normal((n_now, len(values)))
        largest.append(np.abs(weights @ centred).max(1))
    found = np.quantile(np.concatenate(largest), LEVEL)
    independent = ndtri((1 + LEVEL ** (1 / n_columns)) / 2)
    return float(np.clip(found, ONE_COLUMN, independent))


def effective_columns(critical: float) -> float:
    """The number of independent columns that would have this critical value.

    >>> round(effective_columns(ONE_COLUMN), 2), round(effective_columns(3.0), 1)
    (1.0, 19.0)
    """
    return float(np.log(LEVEL) / np.log(2 * ndtr(critical) - 1))


def _describe(
    values: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where there are values [texts, columns]; sizes, means, deviations [columns].

    The deviation of a column whose values are all equal is exactly 0.
    """
    real = ~np.isnan(values)
    sizes = real.sum(0)
    divisor = np.maximum(sizes, 1)
    filled = np.where(real, values, 0)
    means = np.where(sizes > 0, filled.sum(0) / divisor, np.nan)
    centred = np.where(real, values - means, 0)
    deviations = np.sqrt((centred**2).sum(0) / divisor)
    lowest = np.where(real, values, np.inf).min(0, initial=np.inf)
    highest = np.where(real, values, -np.inf).max(0, initial=-np.inf)
    deviations[lowest >= highest] = 0
    return real, sizes, means, deviations
