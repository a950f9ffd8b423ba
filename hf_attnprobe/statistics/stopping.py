"""Confidence sequences: intervals that stay valid whenever an audit stops.

A bootstrap interval covers the mean of a number of texts that was fixed before. Whoever
looks after every text and stops when the interval is narrow stops too often where it
errs. A confidence sequence holds for all numbers of texts at once with 95% probability,
so it holds wherever one stops, and for whatever reason.

Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting"
(JRSS B), Section 4: a gambler bets that a mean m is wrong; where the capital ever grows
1/α-fold, m is out. Texts that are drawn from a finite set without replacement tell more as
the set is used up: then the bets are against the mean of what is left (Section 5;
Waudby-Smith & Ramdas 2020, "Confidence sequences for sampling without replacement"), and
the interval of the whole set is a point.

Rows of an audit that may stop carry a mark: how many texts there are in all, and the seed
of the fixed random order in which they are taken. Of every head those rows count that are
the first of that order without a gap, however the work was batched, killed or shared out,
so that what is there is a random sample at whatever moment one looks.

An interval is then the hull of two: the ordinary one, as a full audit would give for so
many texts; and the confidence sequence of the mean over all texts. So it covers what the
full audit would have found, and is never narrower than a full audit's of the same texts.
Once all texts are done it is the ordinary one.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import LEVEL
from hf_attnprobe.statistics.rows import Column, Rows
from hf_attnprobe.statistics.samples import random_order


# --- confidence sequences ---------------------------------------------------------------------


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
        population: size of the set that the texts are drawn from; inf with replacement.
    """

    values: np.ndarray
    real: np.ndarray
    before: np.ndarray
    total: np.ndarray
    bets: np.ndarray
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
    size = float("inf") if population is None else float(population)
    lowest, range_ = bounds[0], bounds[1] - bounds[0]
    found = []
    for start in range(0, values.shape[1], COLUMNS_AT_ONCE):
        scaled = (values[:, start : start + COLUMNS_AT_ONCE] - lowest) / range_
        found.append(_hedged(_path(scaled, size, 1 - level), 1 - level))
    if not found:
        return np.empty((2, 0))
    return lowest + range_ * np.concatenate(found, axis=1)


def _path(values: np.ndarray, population: float, alpha: float) -> _Path:
    real = ~np.isnan(values)
    filled = np.clip(np.where(real, values, 0.0), 0.0, 1.0)
    sizes = real.cumsum(0)
    before = sizes - real
    total = filled.cumsum(0) - filled
    means = (0.5 + total + filled) / (1 + sizes)
    squares = np.where(real, (filled - means) ** 2, 0.0)
    variances = (0.25 + squares.cumsum(0) - squares) / (1 + before)
    n = before + 1
    bets = np.sqrt(2 * np.log(2 / alpha) / (variances * n * np.log(n + 1)))
    return _Path(filled, real, before, total, bets, population)


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


# --- races ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """The state of a race between heads.

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
    """Divides columns into those surely among the first k, surely not, and undecided.

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


# --- rows of an audit that may stop -----------------------------------------------------------


MARK = "stopping"
Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
CORRELATION: Bounds = (-1.0, 1.0)
JSD: Bounds = (0.0, float(np.log(2)))
OF_OUTPUT = {
    "median_tvd": SHARE,
    "median_tvd_of": SHARE,
    "max_tvd": SHARE,
    "largest_change": SHARE,
    "largest_drawn_change": SHARE,
    "uniform_tvd": SHARE,
    "uniform_tvd_of": SHARE,
    "zero_tvd": SHARE,
    "mean_tvd": SHARE,
    "resample_tvd": SHARE,
    "comprehensiveness": CORRELATION,
    "sufficiency": CORRELATION,
}
"""Changes of the output; of a predicted number they have no bound."""
BY_NAME = {
    **OF_OUTPUT,
    "max_attention": SHARE,
    "special_attention": SHARE,
    "median_share_of_log_odds": SHARE,
    "attention_leave_one_out_agreement": CORRELATION,
    "attention_leave_one_out_precision": SHARE,
    "flip_possible": SHARE,
    "share_of_largest": SHARE,
    "share_of_largest_upper": SHARE,
    "significant_by_chance": SHARE,
    "top_overlap_by_chance": SHARE,
    "fraction_to_flip": SHARE,
    "fraction_to_lose_lead": SHARE,
    "never_flips": SHARE,
    "minimal_fraction": SHARE,
    "probability_mass_removed": SHARE,
    "no_set_flips": SHARE,
    "no_order_flips": SHARE,
    "auprc": SHARE,
    "average_precision": SHARE,
    "token_f1": SHARE,
    "iou_f1": SHARE,
    "attention_on_rationale": SHARE,
    "attention_share": SHARE,
    "epsilon_max_jsd": JSD,
    "epsilon_max_jsd_upper": JSD,
    "largest_jsd": JSD,
}
BY_ENDING = {
    "_tau": CORRELATION,
    "_pearson": CORRELATION,
    "_flip": SHARE,
    "_significant": SHARE,
    "_p_value": SHARE,
    "_top_overlap": SHARE,
}
WATCHED = (
    "attention_leave_one_out_tau",
    "median_tvd",
    "uniform_tvd",
    "zero_tvd",
    "mean_tvd",
    "resample_tvd",
    "share_of_largest@0.01",
    "fraction_to_flip@attention",
    "fraction_to_flip@random",
    "comprehensiveness@attention",
    "comprehensiveness@random",
    "auprc",
)
"""What the verdict and the tables of heads rest on, as far as it is bounded."""


@dataclass(frozen=True)
class Stopping:
    """What intervals need to know of an audit that may stop early.

    Attributes:
        n_texts: all texts of the audit.
        seed: of their order.
        n_heads: single heads that it may look at, which share out the doubt.
        is_number: whether a number is predicted, so that changes of it have no bound.
        looked: whether what was found had a say in when to stop; a clock looks at nothing,
            so that ordinary intervals hold.
    """

    n_texts: int
    seed: int
    n_heads: int = 1
    is_number: bool = False
    looked: bool = True

    def bounds(self, statistic: str) -> Bounds | None:
        """The least and the largest value; None where there is no bound that is known."""
        name = statistic.partition("@")[0]
        if self.is_number and name in OF_OUTPUT:
            return None
        endings = (b for ending, b in BY_ENDING.items() if name.endswith(ending))
        return BY_NAME.get(name) or next(endings, None)


def marked(rows: Rows | pd.DataFrame, stopping: Stopping) -> Rows:
    """The same rows with the mark, which their selections keep."""
    rows = Rows.of(rows)
    return replace(rows, attrs={**rows.attrs, MARK: asdict(stopping)})


def stopping_of(rows: Rows | pd.DataFrame) -> Stopping | None:
    """The mark of rows; None of those of an ordinary audit."""
    mark = rows.attrs.get(MARK)
    return None if mark is None else Stopping(**mark)


def without_gaps(rows: Rows | pd.DataFrame, order: Sequence[int]) -> Rows:
    """For every test and head, keeps the rows of the order's first texts, up to a gap.

    Args:
        rows: of an audit.
        order: all ids, as :func:`random_order` gives them.
    """
    rows = Rows.of(rows).of_texts(order)
    ranks = pd.Series(range(len(order)), index=order).reindex(rows.index).to_numpy()

    @functools.cache
    def counts(test: str, layer: int, head: int) -> np.ndarray:
        """Which texts count at a place, bool [texts]."""
        measured = np.zeros(len(rows), dtype=bool)
        for column in rows.columns:
            if (column[0], *column[2:]) == (test, layer, head) and not measured.all():
                measured |= rows.is_there(column)
        n_first = (np.sort(ranks[measured]) == np.arange(measured.sum())).sum()
        return measured & (ranks < n_first)

    def known(column: Column) -> np.ndarray:
        return rows.is_there(column) & counts(column[0], *column[2:])

    found = replace(
        rows,
        read=lambda column: np.where(known(column), rows.read(column), np.nan),
        is_there=known,
    )
    return found.select(
        lambda test, _, layer, head: bool(counts(test, layer, head).any())
    ).measured()


def rows_that_count(rows: Rows, facts: Mapping[str, Any] | None, ids: Iterable[int]) -> Rows:
    """Of an audit that may have stopped the rows without gaps, marked.

    Args:
        facts: "stopping" of a report's provenance; None of an ordinary audit.
        ids: of all its texts.
    """
    if facts is None or not len(rows):
        return rows
    stopping = Stopping(**facts["order"])
    return marked(without_gaps(rows, random_order(ids, stopping.seed)), stopping)


def widened(
    ordinary: np.ndarray,
    values: pd.DataFrame,
    bounds: Sequence[Bounds | None],
    stopping: Stopping | None,
    *,
    together: int = 1,
) -> np.ndarray:
    """Widens ordinary intervals of columns so that they stay valid under early stopping.

    Args:
        ordinary: low and high, [2, columns].
        values: [texts, columns], by example id; NaN where a text has none.
        bounds: of each column; one without keeps its ordinary interval.
        stopping: None, and one that looked at nothing, leaves everything as it is.
        together: so many intervals are to hold at once.

    Returns:
        The hulls, [2, columns].
    """
    if stopping is None or not stopping.looked or not len(values):
        return ordinary
    order = random_order(values.index, stopping.seed)
    drawn = values.reindex(order).to_numpy(dtype=np.float64)
    unfinished = (~np.isnan(drawn)).sum(0) < stopping.n_texts
    low, high = np.array(ordinary, dtype=np.float64)
    level = 1 - (1 - LEVEL) / together
    for kind in {b for b in bounds if b is not None}:
        these = np.array([b == kind for b in bounds]) & unfinished
        ends = confidence_sequence(drawn[:, these], stopping.n_texts, bounds=kind, level=level)
        low[these] = np.fmin(low[these], ends[0])
        high[these] = np.fmax(high[these], ends[1])
    return np.stack([low, high])


def difference(one: Bounds | None, other: Bounds | None) -> Bounds | None:
    """The bounds of a value minus another.

    >>> difference((0.0, 1.0), (-1.0, 1.0))
    (-1.0, 2.0)
    """
    if one is None or other is None:
        return None
    return one[0] - other[1], one[1] - other[0]


def watched(statistics: Iterable[str], stopping: Stopping) -> list[str]:
    """The statistics of a test whose interval widths decide when to stop.

    What the verdict rests on; of a test that has none of these all that have bounds.
    """
    bounded = [name for name in statistics if stopping.bounds(name) is not None]
    return [name for name in bounded if name in WATCHED] or bounded
