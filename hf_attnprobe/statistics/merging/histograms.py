"""Fixed bins for any number: 1/1024 wide up to 1, 1/1024 of the size beyond.

Shares, total variation, τ and JSD are bounded by 1, so their bins have equal widths;
what is not bounded has bins that are as wide relative to it (as DDSketch, Masson et al.
2019). Bins are fixed, so counts of parts add up to those of the whole.
"""

import numpy as np
from scipy.sparse import csr_array


PER_UNIT = 1024
COARSE = 16  # fine bins in a coarse one
MOST_EXPONENT = 1024  # of a float64, as frexp counts
_LAST = PER_UNIT * 1026  # of infinity
_OFFSET = 2 * PER_UNIT * PER_UNIT  # so that no column is negative
N_BINS = 2 * _OFFSET


def bin_of(values: np.ndarray) -> np.ndarray:
    """The number of each value's bin, int64; negative for values below 0.

    >>> bin_of(np.array([0.0, 0.0009, 0.5, 1.0, 3.0, -0.0009])).tolist()
    [0, 0, 512, 1024, 2560, -1]
    """
    size = np.abs(values)
    mantissa, exponent = np.frexp(np.where(np.isfinite(size), size, 0.0))
    beyond = PER_UNIT * exponent + np.floor((2 * mantissa - 1) * PER_UNIT)
    number = np.where(size < 1, np.floor(np.minimum(size, 1) * PER_UNIT), beyond)
    number = np.where(np.isinf(size), _LAST, number).astype(np.int64)
    return np.where(values < 0, -1 - number, number)


def edges(number: int, width: int = 1) -> tuple[float, float]:
    """Lower and upper edge of ``width`` bins from ``number`` on.

    >>> edges(512), edges(-1)
    ((0.5, 0.5009765625), (-0.0009765625, 0.0))
    """
    if number < 0:
        return -_edge(-number), -_edge(-number - width) + 0.0
    return _edge(number), _edge(number + width)


def _edge(number: int) -> float:
    exponent, step = divmod(number, PER_UNIT)
    if exponent == 0:
        return step / PER_UNIT
    if exponent > MOST_EXPONENT:
        return float("inf")
    return float(np.ldexp(1 + step / PER_UNIT, exponent - 1))


def histogram(values: np.ndarray, *, coarse: bool = False) -> csr_array:
    """Counts [columns, bins], of the values that are there.

    Args:
        values: [texts, columns]; NaN where a text has none.
        coarse: whether 16 bins share a count.
    """
    text, column = np.nonzero(~np.isnan(values))
    numbers = bin_of(values[text, column])
    if coarse:
        numbers = numbers // COARSE * COARSE
    places = (column, numbers + _OFFSET)
    ones = np.ones(len(text), dtype=np.int64)
    return csr_array((ones, places), shape=(values.shape[1], N_BINS))


def coarsened(counts: csr_array, rows: np.ndarray) -> csr_array:
    """The same with coarse bins in the rows [rows] that are named."""
    if not rows.any():
        return counts
    entries = counts.tocoo()
    row, column = entries.coords
    rough = (column - _OFFSET) // COARSE * COARSE + _OFFSET
    column = np.where(rows[row], rough, column)
    return csr_array((entries.data, (row, column)), shape=counts.shape)


def to_lists(counts: csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets of the rows, and numbers and counts of their bins, in order."""
    counts = counts.copy()
    counts.sum_duplicates()
    return counts.indptr, counts.indices - _OFFSET, counts.data


def from_lists(offsets: np.ndarray, numbers: np.ndarray, counts: np.ndarray) -> csr_array:
    """The inverse of :func:`to_lists`."""
    data = counts.astype(np.int64), numbers.astype(np.int64) + _OFFSET, offsets
    return csr_array(data, shape=(len(offsets) - 1, N_BINS))


def quantile(
    numbers: np.ndarray,
    counts: np.ndarray,
    share: float,
    *,
    width: int = 1,
    n_zero: int = 0,
    n_one: int = 0,
) -> float:
    """A quantile as ``numpy.quantile`` gives it, to within its bin.

    Args:
        numbers, counts: of the bins of one column, [bins], in rising order.
        share: from 0 to 1.
        width: 1, or 16 for coarse bins.
        n_zero, n_one: how many values are exactly 0 and 1; these are met exactly.
    """
    ends = np.cumsum(counts)
    place = share * (ends[-1] - 1)
    below, above = int(np.floor(place)), int(np.ceil(place))
    exact = {0: n_zero, PER_UNIT: n_one}
    low, high = (_at(rank, numbers, ends, width, exact) for rank in (below, above))
    return low + (place - below) * (high - low)


def _at(
    rank: int, numbers: np.ndarray, ends: np.ndarray, width: int, exact: dict[int, int]
) -> float:
    """The value of a rank from 0: in the middle of its share of the bin."""
    k = int(np.searchsorted(ends, rank, side="right"))
    first = int(ends[k - 1]) if k else 0
    low, high = edges(int(numbers[k]), width)
    at_edge = exact.get(int(numbers[k]), 0)
    if rank - first < at_edge:
        return low
    between = (rank - first - at_edge + 0.5) / (int(ends[k]) - first - at_edge)
    return low + between * (high - low)
