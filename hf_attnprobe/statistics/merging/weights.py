"""How often each text is drawn in each resample, from the text's id alone.

The Poisson bootstrap (Hanley & MacGibbon 2006; for sharded data Chamandy et al. 2012):
every text is drawn Poisson(1) times, independently of all others, so that nobody needs
to know how many there are. The numbers come from a hash of seed, id and resample: any
sharing out of the texts draws the same.
"""

import numpy as np
from scipy.special import pdtr


N_REPLICATES = 200
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_UP_TO = pdtr(np.arange(20), 1.0)  # a larger draw has probability 1e-19


def poisson_weights(
    example_ids: np.ndarray, *, seed: int = 0, n_replicates: int = N_REPLICATES
) -> np.ndarray:
    """Poisson(1) draws, [texts, replicates], as float64 for matrix products.

    SplitMix64 (Steele, Lea and Flood 2014) used as a counter-based generator.

    Args:
        example_ids: [texts].
        seed: of the audit.
    """
    ids = np.asarray(example_ids, dtype=np.int64).astype(np.uint64)
    start = _mixed(np.full(1, seed % 2**64, dtype=np.uint64) + _GAMMA)
    stream = _mixed(start + ids * _GAMMA)
    counter = np.arange(1, n_replicates + 1, dtype=np.uint64) * _GAMMA
    bits = _mixed(stream[:, None] + counter)
    uniform = (bits >> np.uint64(11)) * 2.0**-53
    return np.searchsorted(_UP_TO, uniform, side="right").astype(np.float64)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits; every bit changes every other with probability 1/2."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits


def weighted_sums(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ weight × value of every resample and column, to the same bits on any machine.

    Values are first rounded to a grid so coarse that no sum is rounded: about 1e-11 of
    the largest. Then the order of summing, which differs between matrix kernels and
    numbers of threads, has no effect.

    Args:
        weights: whole numbers [texts, replicates].
        values: [texts, columns], without NaN.

    Returns:
        [columns, replicates]; NaN for a column with infinite values.
    """
    largest = np.abs(values).max(0, initial=0.0)
    finite = np.isfinite(largest)
    _, exponent = np.frexp(np.where(finite, largest, 0.0))
    heaviest = weights.sum(0).max(initial=1.0)
    grid = np.ldexp(1.0, exponent + int(np.ceil(np.log2(heaviest))) - 52)
    steps = np.rint(np.where(finite, values, 0.0) / grid)
    sums = (steps.T @ weights) * grid[:, None]
    return np.where(finite[:, None], sums, np.nan)
