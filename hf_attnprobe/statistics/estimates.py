"""A number over texts with its interval: means, shares of texts, many means at once.

Means have an interval from their texts' first three moments. They are skewed where the
texts are: a total variation is 0 for most of them and large for a few. A mean ± some
standard errors, and percentiles of resampled means too, then miss the truth on one side
(``docs/verdicts.md`` says how often). Hall 1992, "On the removal of skewness by
transformation", bends the t statistic by a cubic until it has no skewness to first order;
here the interval is read off Student's t. It needs no resamples, so it is the same for
rows in any order.

Shares of texts, where every text says 0 or 1, have exact intervals, which have a width
where all texts agree too. Scores that are no mean have the percentile bootstrap over texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri, stdtrit

from hf_attnprobe.core import formatting as markdown


MIN_SHOWN = 10
"""Below this many texts no mean, interval or chart is shown."""


@dataclass(frozen=True)
class Key:
    """Identifies a number of an audit: test, statistic, layer, head and group.

    Attributes:
        test: the faithfulness test.
        statistic: its name, or ``name@key`` with a number or a ranking as the key.
        layer, head: where it was measured, from 0; a negative number makes a group of
            heads of them, -1 and -1 is all attention.
        group: ``all`` texts, or the name of a predicted class.
    """

    test: str
    statistic: str
    layer: int
    head: int
    group: str

    @property
    def column(self) -> tuple[str, str, int, int]:
        """The key without its group: the column of a table with one row per text."""
        return self.test, self.statistic, self.layer, self.head

    @property
    def place(self) -> tuple[int, int]:
        """Layer and head."""
        return self.layer, self.head

    @property
    def is_of_head(self) -> bool:
        """Whether it is of a single head, and not of a group of them."""
        return min(self.place) >= 0


@dataclass(frozen=True)
class Estimate:
    """A number over texts: a mean, a difference of means, or a score.

    Attributes:
        value: the number; NaN where no text has a value.
        ci95: its 95% interval over texts, if it has one.
        n: the texts that have a value, where that is known.
    """

    value: float
    ci95: tuple[float, float] | None = None
    n: int | None = None

    @property
    def said(self) -> str:
        """The number with its interval, two digits."""
        return markdown.interval(self.value, self.ci95, digits=2)

    @property
    def bare(self) -> "Estimate":
        """The number by itself, without what it is of."""
        return Estimate(self.value, self.ci95, self.n)


# --- shares of texts --------------------------------------------------------------------------


LEVEL = 0.95


def errors_of(n: int) -> float:
    """Standard errors on either side of n intervals that hold at once, of independent means.

    Šidák 1967.
    """
    return float(ndtri((1 + LEVEL ** (1 / n)) / 2))


ONE_COLUMN = errors_of(1)
"""1.96: as many standard errors as the interval of one mean has on either side."""


def share_interval(hits: np.ndarray, n: np.ndarray, *, level: float = LEVEL) -> np.ndarray:
    """Returns exact 95% intervals of the share of texts in which an event happens.

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
    hits = np.asarray(hits, dtype=np.float64)
    n = np.asarray(n, dtype=np.float64)
    misses = n - hits
    tail = (1 - level) / 2
    low = betaincinv(hits, misses + 1, tail)
    high = betaincinv(hits + 1, misses, 1 - tail)
    # The quantiles are not defined where nothing or everything is a hit.
    low = np.where(hits > 0, low, 0.0)
    high = np.where(hits < n, high, 1.0)
    interval = np.stack([low, high])
    return np.where(n > 0, interval, np.nan)


def paired_share_interval(differences: np.ndarray, *, critical: float = ONE_COLUMN) -> np.ndarray:
    """Returns 95% intervals of the difference of two shares of the same texts.

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
    is_pair = ~np.isnan(differences)
    n = is_pair.sum(0)
    only_first = (differences == 1).sum(0)
    only_second = (differences == -1).sum(0)

    n_and_added = n + 2
    first = (only_first + 1) / n_and_added
    second = (only_second + 1) / n_and_added
    middle = first - second
    variance = (first + second - middle**2) / n_and_added
    half = critical * np.sqrt(variance)
    interval = np.stack([middle - half, middle + half]).clip(-1, 1)
    return np.where(n > 0, interval, np.nan)


def share_difference_interval(
    values: np.ndarray, others: np.ndarray, *, critical: float = ONE_COLUMN
) -> np.ndarray:
    """Returns intervals of the difference of two shares, each of texts of its own.

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
        is_there = ~np.isnan(side)
        n = is_there.sum(0) + 2
        hits = np.nansum(side, 0) + 1
        share = hits / n
        shares.append(share)
        variances.append(share * (1 - share) / n)
    middle = shares[0] - shares[1]
    half = critical * np.sqrt(variances[0] + variances[1])
    return np.stack([middle - half, middle + half]).clip(-1, 1)


def is_share(values: np.ndarray) -> np.ndarray:
    """Whether every defined value of a column is 0 or 1, bool [columns].

    Shape: values [texts, columns] -> bool [columns]; False for a column without values.
    """
    real = ~np.isnan(values)
    return ((values == 0) | (values == 1) | ~real).all(0) & real.any(0)


# --- means ------------------------------------------------------------------------------------


N_RESAMPLES = 1000
MANY_TEXTS = 20_000
"""From here on a mean is normal to more digits than a report has (central limit theorem), so
that nothing is resampled: as exact, and its time grows no faster than the texts."""


@dataclass(frozen=True)
class Moments:
    """From which the intervals of means are computed, each [columns].

    Attributes:
        n: texts that have a value.
        mean: of these; 0 without any.
        m2, m3: Σ (value − mean)², and cubed.
        low, high: the smallest and the largest value.
    """

    n: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    low: np.ndarray
    high: np.ndarray


def moments(values: np.ndarray) -> Moments:
    """Returns the moments of columns [texts, columns], NaN where a text has no value."""
    n_columns = values.shape[1]
    n, total, m2, m3 = np.zeros((4, n_columns))
    low = np.full(n_columns, np.inf)
    high = np.full(n_columns, -np.inf)
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite values
        for some in _in_parts(values):
            is_there = ~np.isnan(some)
            n += is_there.sum(0)
            total += np.nansum(some, axis=0)
            low = np.fmin(low, np.fmin.reduce(some))
            high = np.fmax(high, np.fmax.reduce(some))
        mean = total / np.maximum(n, 1)
        for some in _in_parts(values):
            centred = np.where(np.isnan(some), 0.0, some - mean)
            squares = centred**2
            m2 = m2 + squares.sum(0)
            m3 = m3 + (squares * centred).sum(0)
    return Moments(n.astype(int), mean, m2, m3, low, high)


AT_ONCE = 2**14
"""Texts that are summed together, so that a sum over many holds no copy of them all."""


def _in_parts(values: np.ndarray) -> Iterator[np.ndarray]:
    """The texts of [texts, ...], some at a time."""
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


def mean_interval(values: np.ndarray, *, critical: float = ONE_COLUMN) -> np.ndarray:
    """95% intervals of the means of columns.

    Args:
        values: [texts, columns]; NaN where a text has no value.
        critical: standard errors of a normal mean on either side; more where several
            are read at once.

    Returns:
        Low and high, [2, columns]; NaN for a column without values.

    >>> mean_interval(np.arange(30.0)[:, None] ** 2).round(1).flatten().tolist()
    [194.4, 394.3]
    """
    return interval_of(moments(values), critical=critical)


def interval_of(of: Moments, *, critical: float = ONE_COLUMN) -> np.ndarray:
    """As :func:`mean_interval`, from moments; clipped to the smallest and largest value.

    The interval stays in the range of the texts, so in that of any share or correlation
    too; of texts that all say the same it is that one value.
    """
    error = np.sqrt(_variance_of_mean(of))
    skewness = _skewness(of.m2, of.m3)
    ends = _hall(of.mean, error, skewness, _at_least_one(of.n - 1), critical)
    return np.where(of.n > 0, ends.clip(of.low, of.high), np.nan)


def difference_interval(of: Moments, other: Moments, *, critical: float = ONE_COLUMN) -> np.ndarray:
    """Returns intervals of mean − mean of other texts, [2, columns]; NaN where a side has none.

    Degrees of freedom are those of Welch 1947.
    """
    # Variance of the difference, and its degrees of freedom: 1 where neither side varies.
    variance_of = _variance_of_mean(of)
    variance_other = _variance_of_mean(other)
    variance = variance_of + variance_other
    freedom_of = _at_least_one(of.n - 1)
    freedom_other = _at_least_one(other.n - 1)
    squares = variance_of**2 / freedom_of
    squares += variance_other**2 / freedom_other
    freedom = np.ones_like(variance)
    np.divide(variance**2, squares, out=freedom, where=squares > 0)

    # Skewness of the difference, from the moments of the two means.
    n_of = _at_least_one(of.n)
    n_other = _at_least_one(other.n)
    m2 = of.m2 / n_of**2
    m2 = m2 + other.m2 / n_other**2
    m3 = of.m3 / n_of**3
    m3 = m3 - other.m3 / n_other**3
    skewness = _skewness(m2, m3)

    difference = of.mean - other.mean
    ends = _hall(difference, np.sqrt(variance), skewness, freedom, critical)
    ends = ends.clip(of.low - other.high, of.high - other.low)
    are_known = (of.n > 0) & (other.n > 0)
    return np.where(are_known, ends, np.nan)


def _variance_of_mean(side: Moments) -> np.ndarray:
    return side.m2 / _at_least_one(side.n) / _at_least_one(side.n - 1)


def _at_least_one(n: np.ndarray) -> np.ndarray:
    """Returns a divisor for sides without texts, whose values are left out later."""
    return np.maximum(n, 1)


def _skewness(m2: np.ndarray, m3: np.ndarray) -> np.ndarray:
    """Skewness of the mean: that of the texts divided by √n; 0 without variation."""
    with np.errstate(over="ignore"):
        scale = m2**1.5
    return np.divide(m3, scale, out=np.zeros_like(scale), where=scale > 0)


def _hall(
    mean: np.ndarray,
    error: np.ndarray,
    skewness: np.ndarray,
    freedom: np.ndarray,
    critical: float,
) -> np.ndarray:
    """Solves t + λt²/3 + λ²t³/27 + λ/6 for t = ± Student's: low and high, [2, columns].

    Far in the tails the cubic bends too much, so wider intervals are those of 95% with
    both sides stretched, as Student's quantiles are.
    """
    usual = stdtrit(freedom, ndtr(ONE_COLUMN))
    stretched = error * stdtrit(freedom, ndtr(critical)) / usual
    ends = []
    for side in (usual, -usual):
        bent = side - skewness / 6
        root = np.cbrt(1 + skewness * bent)
        # 3 (root − 1) / λ without its cancellation where λ is nearly 0.
        moved = stretched * 3 * bent / (root**2 + root + 1)
        ends.append(mean - moved)
    return np.stack(ends)


def resample_counts(
    n_texts: int,
    *,
    n: int | None = None,
    seed: int | Sequence[int] = 0,
    n_resamples: int = N_RESAMPLES,
) -> np.ndarray:
    """How often each text is drawn in each resample (Efron 1979).

    Args:
        n: texts of a resample; as many as there are by default.

    Returns:
        float64 [resamples, texts]; every row sums to ``n``. Sums over a resample
        are then one matrix product for all statistics.
    """
    generator = np.random.default_rng(seed)
    shares = np.full(n_texts, 1 / n_texts)
    counts = generator.multinomial(n or n_texts, shares, size=n_resamples)
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


def means(values: np.ndarray, shares: np.ndarray) -> tuple[Moments, np.ndarray]:
    """Returns the moments of columns, and the 95% intervals of their means.

    Args:
        values: [texts, columns]; NaN where a text has no value.
        shares: which means are shares of texts, bool [columns]; where all values are 0 or 1
            the interval is then the exact one.

    Returns:
        Moments, and low and high, [2, columns].
    """
    of = moments(values)
    ends = interval_of(of)
    exact = is_share(values) & shares
    hits = (of.n * of.mean)[exact].round()
    ends[:, exact] = share_interval(hits, of.n[exact])
    return of, ends


def mean_estimates(values: np.ndarray, *, share: bool = False) -> list[Estimate]:
    """The means of columns with their intervals.

    Args:
        values: [texts, columns]; NaN where a text has no value.
        share: whether all are shares of texts, see :func:`means`.

    Returns:
        By column; without an interval where no text has a value.
    """
    of, ends = means(values, np.full(values.shape[1], share))
    columns = zip(of.mean.tolist(), of.n.tolist(), ends.T.tolist(), strict=True)
    return [
        Estimate(mean, (low, high), n) if n else Estimate(float("nan"), None, 0)
        for mean, n, (low, high) in columns
    ]


def function_estimate(
    columns: Sequence[np.ndarray], of_means: Callable[[np.ndarray], np.ndarray]
) -> Estimate:
    """A function of several means over the same texts, with its interval.

    That of the mean of :func:`pseudo_values`, as of any values.

    Args:
        columns: each [texts]; texts with a NaN in any of them are left out.
        of_means: [..., columns] -> [...]; NaN where it is undefined.

    Returns:
        n is 0 where no text has all columns, or the number is undefined.
    """
    value, pseudo = pseudo_values(columns, of_means)
    n = len(pseudo)
    if not n or np.isnan(value):
        return Estimate(value, None, 0)
    if not np.isfinite(pseudo).all():
        return Estimate(value, None, n)
    low, high = mean_interval(pseudo[:, None])[:, 0].tolist()
    return Estimate(value, (min(low, value), max(high, value)), n)


def pseudo_values(
    columns: Sequence[np.ndarray], of_means: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, np.ndarray]:
    """Returns a function of means, and what each text adds to it.

    Tukey's pseudo-values n·f − (n − 1)·f(without the text): their mean is f without its bias
    to first order (Miller 1974, "The jackknife").

    Args:
        columns, of_means: as in :func:`function_estimate`.

    Returns:
        The value, NaN where it is undefined, and [texts that have all columns].
    """
    n = 0
    total = np.zeros(len(columns))
    for some in _with_all(columns):
        n += len(some)
        total = total + some.sum(0)
    if not n:
        return float("nan"), np.empty(0)

    mean = total / n
    value = float(of_means(mean))
    pseudo = np.full(n, np.nan)
    done = 0
    for some in _with_all(columns) if n > 1 else ():
        without = of_means((n * mean - some) / (n - 1))
        end = done + len(some)
        pseudo[done:end] = n * value - (n - 1) * without
        done = end
    return value, pseudo


def _with_all(columns: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """The texts that have a value in all columns, some at a time: [texts, columns]."""
    for some in zip(*map(_in_parts, columns), strict=True):
        texts = np.stack(some, axis=1)
        yield texts[~np.isnan(texts).any(1)]


def mean_estimate(values: np.ndarray, *, share: bool = False) -> Estimate:
    """Returns the mean of the texts that have a value, with its interval and their number.

    Args:
        values: [texts]; texts with NaN are left out.
        share: whether the mean is a share of texts; where all values are 0 or 1 the
            interval is then the exact one.
    """
    column = np.asarray(values, dtype=np.float64)[:, None]
    return mean_estimates(column, share=share)[0]


# --- many means at once -----------------------------------------------------------------------


N_DRAWS = 2000
DRAWS_AT_ONCE = 250


def simultaneous_interval(
    values: np.ndarray, *, seed: int = 0, n_draws: int = N_DRAWS
) -> np.ndarray:
    """Simultaneous 95% intervals of the means of columns.

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
    """Half-width of simultaneous 95% intervals in standard errors.

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
    if len(values) > MANY_TEXTS:  # draws of the same means, by how the columns vary together
        sizes, directions = np.linalg.eigh(centred.T @ centred)
        centred = (directions * np.sqrt(sizes.clip(0))).T
    largest = []
    for start in range(0, n_draws, DRAWS_AT_ONCE):
        n_now = min(DRAWS_AT_ONCE, n_draws - start)
        weights = generator.standard_normal((n_now, len(centred)))
        largest.append(np.abs(weights @ centred).max(1))
    found = np.quantile(np.concatenate(largest), LEVEL)
    return float(np.clip(found, ONE_COLUMN, errors_of(n_columns)))
