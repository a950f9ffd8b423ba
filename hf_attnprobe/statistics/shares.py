"""Intervals of shares of texts, where every text says 0 or 1.

Resamples of texts that all say the same have no width; these intervals have one.
"""

import numpy as np
from scipy.special import betaincinv, ndtri  # scipy.stats takes a second to import


LEVEL = 0.95
ONE_COLUMN = float(ndtri((1 + LEVEL) / 2))
"""1.96: as many standard errors as the interval of one mean has on either side."""


def share_interval(hits: np.ndarray, n: np.ndarray, *, level: float = LEVEL) -> np.ndarray:
    """Exact intervals of the share of texts that an event happens in.

    Clopper & Pearson (1934): covers the true share in at least 95% of samples, also
    where none or all of the texts are hits.

    Args:
        hits, n: how many of how many, any shape.
        level: how often the interval covers, at least.

    Returns:
        Low and high, [2, ...]; NaN where n is 0.

    >>> share_interval(np.array(0), np.array(249)).round(4).tolist()
    [0.0, 0.0147]
    """
    hits, n = np.asarray(hits, dtype=np.float64), np.asarray(n, dtype=np.float64)
    tail = (1 - level) / 2
    low = np.where(hits > 0, betaincinv(hits, n - hits + 1, tail), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, n - hits, 1 - tail), 1.0)
    return np.where(n > 0, np.stack([low, high]), np.nan)


def paired_share_interval(differences: np.ndarray, *, critical: float = ONE_COLUMN) -> np.ndarray:
    """95% intervals of the difference of two shares of the same texts.

    Bonet & Price (2012): one text is added to those where only the first is a hit, and
    one to those where only the second is. So pairs that all agree still have a width.

    Args:
        differences: [texts, columns] of 1, 0 and -1; NaN where a text has no pair.
        critical: standard errors on either side; more where several are read at once.

    Returns:
        Low and high, [2, columns]; NaN for a column without pairs.

    >>> paired_share_interval(np.zeros((249, 1))).round(3).flatten().tolist()
    [-0.011, 0.011]
    """
    n = (~np.isnan(differences)).sum(0)
    first, second = (((differences == side).sum(0) + 1) / (n + 2) for side in (1, -1))
    middle = first - second
    half = critical * np.sqrt((first + second - middle**2) / (n + 2))
    interval = np.stack([middle - half, middle + half]).clip(-1, 1)
    return np.where(n > 0, interval, np.nan)


def share_difference_interval(
    values: np.ndarray, others: np.ndarray, *, critical: float = ONE_COLUMN
) -> np.ndarray:
    """Intervals of the difference of two shares, each of texts of its own.

    Agresti & Caffo (2000): one hit and one miss are added to either side, so that shares
    of 0 or 1 have a width too.

    Args:
        values: [texts, columns] of 0 and 1; NaN where a text has none.
        others: the same of other texts, whose share is subtracted.
        critical: standard errors on either side; more where several are read at once.

    Returns:
        Low and high, [2, columns].

    >>> share_difference_interval(np.ones((8, 1)), np.ones((8, 1))).round(2).tolist()
    [[-0.26], [0.26]]
    """
    shares, variances = [], []
    for side in (values, others):
        n = (~np.isnan(side)).sum(0) + 2
        share = (np.nansum(side, 0) + 1) / n
        shares.append(share)
        variances.append(share * (1 - share) / n)
    middle = shares[0] - shares[1]
    half = critical * np.sqrt(variances[0] + variances[1])
    return np.stack([middle - half, middle + half]).clip(-1, 1)


def is_share(values: np.ndarray) -> np.ndarray:
    """Columns in which every text that has a value says 0 or 1.

    Shape: values [texts, columns] -> bool [columns]; False for a column without values.
    """
    real = ~np.isnan(values)
    return ((values == 0) | (values == 1) | ~real).all(0) & real.any(0)
