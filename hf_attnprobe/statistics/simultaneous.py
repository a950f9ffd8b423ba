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

from hf_attnprobe.statistics.bootstrap import mean_interval, moments
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

    Args:
        values: [texts, columns]; NaN where a text has no value in a column, which then
            rests on the other texts.

    Returns:
        Low and high, [2, columns]; NaN for a column of fewer than two texts.
    """
    critical = critical_value(values, seed=seed, n_draws=n_draws)
    return interval_at(values, critical)


def interval_at(values: np.ndarray, critical: float) -> np.ndarray:
    """Low and high of the means, [2, columns], by :func:`mean_interval` and shares.

    Args:
        values: [texts, columns], as in :func:`simultaneous_interval`.
    """
    sizes = (~np.isnan(values)).sum(0)
    enough = sizes >= 2
    interval = np.where(enough, mean_interval(values, critical=critical), np.nan)
    shares = enough & is_share(values)
    hits = np.nansum(values[:, shares], 0)
    level = 2 * float(ndtr(critical)) - 1
    interval[:, shares] = share_interval(hits, sizes[shares], level=level)
    return interval


def critical_value(values: np.ndarray, *, seed: int = 0, n_draws: int = N_DRAWS) -> float:
    """How many standard errors all means together stay from the truth, 95% of times.

    The 95% quantile of the largest of the columns' means over draws of the texts'
    weights, in standard errors. It lies between that of one column, 1.96, and that of
    independent ones (Šidák's inequality); the draws' own noise is cut off there.

    Args:
        values: [texts, columns], as in :func:`simultaneous_interval`.
    """
    of = moments(values)
    varying = of.low < of.high
    n_columns = int(varying.sum())
    if n_columns < 2:
        return ONE_COLUMN
    centred = np.nan_to_num((values - of.mean)[:, varying]) / np.sqrt(of.m2[varying])
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
