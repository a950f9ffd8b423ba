"""Which columns have the largest means, while the texts still come in.

All columns have bands that hold at once and at every look: each column's confidence
sequence at a level that is shared out over the columns (Bonferroni). A column whose band
is above those of all but k − 1 others is among the first k, one whose band is below those
of k others is not; both are decided and need no more texts. With the probability of the
bands everything that is ever decided is right, whenever one stops.
"""

from dataclasses import dataclass

import numpy as np

from hf_attnprobe.statistics.confidence_sequences import LEVEL, confidence_sequence


@dataclass(frozen=True)
class Standing:
    """What is known of a race.

    Attributes:
        means: so far, [columns]; NaN without a text.
        bands: low and high, which hold for all columns at once, [2, columns].
        inside: columns that are surely among the first k, bool [columns].
        outside: columns that surely are not, bool [columns].
        n_first: the k that is asked for.
    """

    means: np.ndarray
    bands: np.ndarray
    inside: np.ndarray
    outside: np.ndarray
    n_first: int

    @property
    def undecided(self) -> np.ndarray:
        """Columns that need more texts, bool [columns]."""
        return ~(self.inside | self.outside)

    def first(self) -> list[int]:
        """The k columns, the largest first: those decided, then those with the largest
        means of the undecided; equal ones in their order."""
        means = np.where(np.isnan(self.means), -np.inf, self.means)
        surely = np.where(self.inside, 0, np.where(self.outside, 2, 1))
        places = np.lexsort((np.arange(len(means)), -means, surely))[: self.n_first]
        return sorted(map(int, places), key=lambda place: (-means[place], place))


def standing(
    values: np.ndarray,
    n_first: int,
    population: int | None = None,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    level: float = LEVEL,
) -> Standing:
    """Who is among the first k, who is not, and who may be either.

    Args:
        values: [texts, columns] in the order in which the texts were drawn; NaN where a
            column was not looked at any more.
        n_first: k.
        population: texts that are drawn from, see :func:`confidence_sequence`.
        bounds: the least and the largest possible value.
        level: of all bands together.
    """
    n_columns = values.shape[1]
    share = 1 - (1 - level) / max(n_columns, 1)
    bands = confidence_sequence(values, population, bounds=bounds, level=share)
    low, high = bands
    n = (~np.isnan(values)).sum(0)
    means = np.where(n > 0, np.nansum(values, 0) / np.maximum(n, 1), np.nan)
    above = (low[:, None] > high[None, :]).sum(0)  # columns surely above each
    below = (high[:, None] < low[None, :]).sum(0)  # columns surely below each
    inside, outside = below >= n_columns - n_first, above >= n_first
    return Standing(means, bands, inside, outside, n_first)
