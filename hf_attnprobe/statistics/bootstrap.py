"""Percentile bootstrap over texts, and a value with its interval. Pure."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A mean or score over the texts and its 95% percentile interval over resamples of them."""

    value: float
    ci95: tuple[float, float]


N_BOOTSTRAP = 1000


def bootstrap_interval(
    values: np.ndarray, *, seed: int = 0, n_resamples: int = N_BOOTSTRAP
) -> np.ndarray:
    """95% percentile interval of the mean of every column, [2, columns]; NaNs are texts without a value.

    Resampling texts is drawing how often each counts: one matrix of counts serves all columns (Efron 1979).
    """
    real = ~np.isnan(values)
    n = len(values)
    counts = (
        np.random.default_rng(seed)
        .multinomial(n, np.full(n, 1 / n), size=n_resamples)
        .astype(np.float64)
    )
    totals, sizes = counts @ np.where(real, values, 0), counts @ real.astype(np.float64)
    means = np.divide(totals, sizes, out=np.full_like(totals, np.nan), where=sizes > 0)
    interval = np.full((2, values.shape[1]), np.nan)
    defined = real.any(0)
    if defined.any():
        interval[:, defined] = np.nanpercentile(means[:, defined], [2.5, 97.5], axis=0)
    return interval
