"""Intervals of means that hold at every look, so that one may stop when sure.

A bootstrap interval covers the mean of a number of texts that was fixed before. Whoever
looks after every text and stops when the interval is narrow stops too often where it
errs. A confidence sequence holds for all numbers of texts at once with 95% probability,
so it holds wherever one stops, and for whatever reason.

Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting"
(JRSS B): a gambler bets that a mean m is wrong; where the capital ever grows 1/α-fold, m
is out. Two methods of theirs: the hedged capital process (Section 4), and the empirical
Bernstein sequence in closed form (Section 3), which is wider. Texts that are drawn from a
finite set without replacement tell more as the set is used up: then the bets are against
the mean of what is left (Section 5; Waudby-Smith & Ramdas 2020, "Confidence sequences for
sampling without replacement"), and the interval of the whole set is a point.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


LEVEL = 0.95
MOST_BET = 0.75
"""Of what can be lost in one bet, so that one surprise does not ruin a gambler."""
N_HALVINGS = 24  # of the range, which leaves 6e-8 of it
COLUMNS_AT_ONCE = 64


@dataclass(frozen=True)
class _Path:
    """Columns of values in [0, 1], with what is known before each of them.

    Attributes:
        values: [texts, columns]; 0 where there is none.
        real: [texts, columns], where there is one.
        before: how many there are before, [texts, columns].
        total: their sum before, [texts, columns].
        bets: how much is bet, before any limit, [texts, columns].
        expected: the mean before, with half a text of mean ½ added, [texts, columns].
        population: size of the set that the texts are drawn from; inf with replacement.
    """

    values: np.ndarray
    real: np.ndarray
    before: np.ndarray
    total: np.ndarray
    bets: np.ndarray
    expected: np.ndarray
    population: float

    @property
    def left(self) -> np.ndarray:
        """How many texts are not drawn yet, [texts, columns]."""
        return self.population - self.before


def confidence_sequence(
    values: np.ndarray,
    population: int | None = None,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    level: float = LEVEL,
) -> np.ndarray:
    """Intervals of the means of columns, after all looks so far, by betting.

    Each is the intersection over all its looks, one after every text, so with
    probability ``level`` no look had an interval without the mean.

    Args:
        values: [texts, columns] in the order in which the texts were drawn, which is
            random; NaN where a text has no value.
        population: number of texts that are drawn from, without replacement; the mean is
            then that of all of them. None: of a population without end. Where some texts
            have no value it is larger than the number of values, which makes intervals
            wider.
        bounds: the least and the largest possible value.
        level: of each column.

    Returns:
        Low and high, [2, columns]; the bounds where there is no value.
    """
    return _by_columns(_hedged, values, population, bounds, 1 - level)


def empirical_bernstein(
    values: np.ndarray,
    population: int | None = None,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    level: float = LEVEL,
) -> np.ndarray:
    """As :func:`confidence_sequence`, in closed form and wider.

    The predictable plug-in empirical Bernstein sequence; with its λ at most ¾.
    """
    return _by_columns(_bernstein, values, population, bounds, 1 - level)


def _by_columns(
    method: Callable[[_Path, float], np.ndarray],
    values: np.ndarray,
    population: int | None,
    bounds: tuple[float, float],
    alpha: float,
) -> np.ndarray:
    """A method on some columns at a time, with the values moved to [0, 1]."""
    size = float("inf") if population is None else float(population)
    lowest, range_ = bounds[0], bounds[1] - bounds[0]
    found = [
        method(
            _path((values[:, k : k + COLUMNS_AT_ONCE] - lowest) / range_, size, alpha),
            alpha,
        )
        for k in range(0, values.shape[1], COLUMNS_AT_ONCE)
    ]
    if not found:
        return np.empty((2, 0))
    return lowest + range_ * np.concatenate(found, axis=1)


def _path(values: np.ndarray, population: float, alpha: float) -> _Path:
    real = ~np.isnan(values)
    filled = np.clip(np.where(real, values, 0.0), 0.0, 1.0)
    sizes = real.cumsum(0)
    before = sizes - real
    total = filled.cumsum(0) - filled
    expected = (0.5 + total) / (1 + before)
    means = (0.5 + total + filled) / (1 + sizes)
    squares = np.where(real, (filled - means) ** 2, 0.0)
    variances = (0.25 + squares.cumsum(0) - squares) / (1 + before)
    n = before + 1
    bets = np.sqrt(2 * np.log(2 / alpha) / (variances * n * np.log(n + 1)))
    return _Path(filled, real, before, total, bets, expected, population)


def _ends(path: _Path) -> np.ndarray:
    """The least and the largest mean of all texts, whatever the others are."""
    n, total = path.real.sum(0), path.values.sum(0)
    if np.isinf(path.population):
        return np.stack([np.zeros(len(n)), np.ones(len(n))])
    return np.stack([total, total + np.maximum(path.population - n, 0)]) / np.maximum(
        path.population, n
    )


def _hedged(path: _Path, alpha: float) -> np.ndarray:
    """Both ends by halving: capital against a mean falls the nearer the mean is."""
    ends, needed = _ends(path), np.log(2 / alpha)
    middle = np.clip(_mean(path), *ends)

    def end(outer: np.ndarray, side: int) -> np.ndarray:
        """The value between ``outer`` and the middle that is only just out."""
        out, kept = outer.copy(), middle.copy()
        is_out = _capital(path, outer, side) >= needed
        for _ in range(N_HALVINGS):
            half = (out + kept) / 2
            loses = _capital(path, half, side) >= needed
            out, kept = np.where(loses, half, out), np.where(loses, kept, half)
        return np.where(is_out, out, outer)

    return np.stack([end(ends[0], 1), end(ends[1], -1)])


def _mean(path: _Path) -> np.ndarray:
    n = path.real.sum(0)
    return np.where(n > 0, path.values.sum(0) / np.maximum(n, 1), 0.5)


def _capital(path: _Path, means: np.ndarray, side: int) -> np.ndarray:
    """The largest logarithm so far of the capital that was bet against each mean.

    Args:
        means: [columns].
        side: 1 where the bets are that values are larger, -1 where smaller.
    """
    left = _mean_of_rest(path, means)
    risk = left if side > 0 else 1 - left
    with np.errstate(divide="ignore", over="ignore"):  # next to no risk bounds no bet
        bets = np.minimum(path.bets, MOST_BET / np.maximum(risk, 0))
    gains = np.where(path.real, side * bets * (path.values - left), 0.0)
    return np.log1p(gains).cumsum(0).max(0, initial=0.0)


def _mean_of_rest(path: _Path, means: np.ndarray) -> np.ndarray:
    """What the next text is on average, were these the means of all texts."""
    if np.isinf(path.population):
        return np.broadcast_to(means, path.values.shape)
    left = np.maximum(path.left, 1)
    return np.clip((path.population * means - path.total) / left, 0.0, 1.0)


def _bernstein(path: _Path, alpha: float) -> np.ndarray:
    bets = np.where(path.real, np.minimum(path.bets, MOST_BET), 0.0)
    used = 1.0 / np.maximum(path.left, 1)  # 0 with replacement
    weights = (bets * (1 + path.before * used)).cumsum(0)
    sums = (bets * (path.values + path.total * used)).cumsum(0)
    spread = (path.values - path.expected) ** 2 * (-np.log1p(-bets) - bets)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = sums / weights
        half = (np.log(2 / alpha) + spread.cumsum(0)) / weights
    low, high = _ends(path)
    middle = np.clip(_mean(path), low, high)
    low = np.fmax(low, np.fmax.reduce(centre - half, axis=0, initial=0.0))
    high = np.fmin(high, np.fmin.reduce(centre + half, axis=0, initial=1.0))
    return np.stack([np.minimum(low, middle), np.maximum(high, middle)])
