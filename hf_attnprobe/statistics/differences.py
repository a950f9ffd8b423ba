"""Differences of means, paired by text: from another model, another ranking.

Every text is a pair where both sides are of the same texts; on other texts each side has
an interval of its own. Pure: data frames in, differences out.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import bdtr, ndtr

from hf_attnprobe.statistics.estimates import (
    MANY_TEXTS,
    ONE_COLUMN,
    Estimate,
    Moments,
    critical_value,
    difference_interval,
    interval_of,
    is_share,
    mean_estimates,
    moments,
    paired_share_interval,
    share_difference_interval,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.rows import AT_ONCE, Rows, Texts
from hf_attnprobe.statistics.summary import position


@dataclass(frozen=True)
class Difference(Estimate):
    """The mean of one column of values minus that of another.

    Attributes:
        value: other − first; NaN where no text has both values.
        first: mean of the side that is subtracted, over the texts that count here.
        other: mean of the other side.
        ci95: its own 95% interval: over texts, of shares of texts that of Bonet & Price
            (2012), or of Agresti & Caffo (2000) on other texts.
        n: texts that both have; without pairs those of the smaller side.
        paired: whether both sides are of the same texts.
        simultaneous: an interval that holds for all differences that were made together
            with 95% probability, so that the most striking one may be picked; that of
            one alone is ``ci95``.
    """

    ci95: tuple[float, float] = field()
    n: int = field()
    first: float
    other: float
    paired: bool
    simultaneous: tuple[float, float]

    @property
    def can_be_told(self) -> bool:
        """Whether the sign can be told: the simultaneous interval excludes 0."""
        low, high = self.simultaneous
        return self.n >= MIN_TEXTS and (low > 0 or high < 0)


def paired(
    first: np.ndarray, other: np.ndarray, *, critical: float = ONE_COLUMN
) -> list[Difference]:
    """Other − first of every column, over the texts that have both values.

    Args:
        first: values that are subtracted, [texts, columns]; NaN where a text has none.
        other: the other side, the same texts and columns.
        critical: of the simultaneous intervals, standard errors of a normal mean on either
            side; by default those of one column.
    """
    shares = is_share(first) & is_share(other)
    gaps = other - first
    of = moments(gaps)

    def interval(errors: float) -> np.ndarray:
        ends = interval_of(of, critical=errors)
        own = gaps[:, shares]
        ends[:, shares] = paired_share_interval(own, critical=errors)
        return ends

    is_pair = ~np.isnan(gaps)
    before, after = (_means(moments(np.where(is_pair, side, np.nan))) for side in (first, other))
    intervals = interval(ONE_COLUMN), interval(critical)
    return _by_column(_means(of), of.n, (before, after), intervals, is_paired=True)


def unpaired(
    first: np.ndarray, other: np.ndarray, *, critical: float = ONE_COLUMN
) -> list[Difference]:
    """Other − first of every column, each side over texts of its own; see :func:`paired`."""
    shares = is_share(first) & is_share(other)
    before, after = moments(first), moments(other)

    def interval(errors: float) -> np.ndarray:
        ends = difference_interval(after, before, critical=errors)
        ends[:, shares] = share_difference_interval(
            other[:, shares], first[:, shares], critical=errors
        )
        return ends

    sides = _means(before), _means(after)
    n = np.minimum(before.n, after.n)
    intervals = interval(ONE_COLUMN), interval(critical)
    return _by_column(sides[1] - sides[0], n, sides, intervals, is_paired=False)


def _means(of: Moments) -> np.ndarray:
    """Of columns; NaN for one without values."""
    return np.where(of.n > 0, of.mean, np.nan)


def _by_column(
    values: np.ndarray,
    n: np.ndarray,
    sides: Sequence[np.ndarray],
    intervals: Sequence[np.ndarray],
    *,
    is_paired: bool,
) -> list[Difference]:
    """The differences of columns; intervals of each alone and of all, each [2, columns]."""
    own, together = ([*map(tuple, ends.T.tolist())] for ends in intervals)
    first, other = sides
    columns = {
        "value": values,
        "ci95": own,
        "n": n,
        "first": first,
        "other": other,
        "simultaneous": together,
    }
    found = pd.DataFrame(columns).to_dict("records")
    return [Difference(**each, paired=is_paired) for each in found]


# --- two models -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sides:
    """Numbers of two models.

    Attributes:
        first: of the one that is subtracted, [texts, columns], by id of the text; NaN
            where a text has no value.
        other: of the other one, the same columns.
        paired: whether equal ids are the same texts.
    """

    first: pd.DataFrame
    other: pd.DataFrame
    paired: bool

    @property
    def aligned(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Both sides in the order of their ids; where they are paired, the texts of both."""
        first, other = self.first.sort_index(), self.other.sort_index()
        if not self.paired:
            return first, other
        texts = first.index.intersection(other.index)
        return first.loc[texts], other.loc[texts]


def changes(sides: Sequence[Sides], *, seed: int = 0) -> list[list[Difference]]:
    """Other − first of every column, of every pair of models.

    The simultaneous intervals are over all columns of all pairs.

    Args:
        sides: pairs with the same first model.
        seed: of the resamples.

    Returns:
        By pair, in the order of its columns.
    """
    if not sides:
        return []
    errors = pd.concat([_errors(both, number) for number, both in enumerate(sides, 1)], axis=1)
    critical = critical_value(errors.to_numpy(dtype=np.float64), seed=seed)
    found = []
    for both in sides:
        measure = paired if both.paired else unpaired
        first, other = (side.to_numpy(dtype=np.float64) for side in both.aligned)
        found.append(measure(first, other, critical=critical))
    return found


def _errors(both: Sides, number: int) -> pd.DataFrame:
    """What every text adds to the error of each difference, [texts, columns].

    Texts are known by data set and id: other texts of the same id are other texts. A mean's
    error is the sum of its texts' errors divided by their number.
    """
    first, other = both.aligned
    if both.paired:
        return pd.concat({0: other - first})
    parts = {
        0: -(first - first.mean()) / first.count(),
        number: (other - other.mean()) / other.count(),
    }
    return pd.concat(parts)


# --- two rankings -------------------------------------------------------------------------------

# What two rankings did to one text is a pair, and only pairs are compared:
#
# - ``permutation``: the mean difference with its 95% interval over texts, and
#   the two-sided p-value of the sign-flip permutation test. Under the null hypothesis
#   each text's difference might as well have had the other sign. All signs are tried
#   where there are at most 9,999 of them, else 9,999 draws and the observed one.
# - ``mcnemar``: whether erasing the top weight flips more decisions than erasing a random
#   one, by McNemar's exact test: the texts that flip with one of them only are tosses of
#   a fair coin (McNemar 1947; Serrano & Smith 2019, Section 4).
# - ``sign``: which of two rankings flips a text's decision with fewer removals. A ranking
#   that never flips it needs more than one that flips it at last; ties, two such rankings
#   among them, count for neither. The exact sign test.
#
# Rankings by erasure have values on the same texts, those that can be flipped, where a
# ranking that never flips the decision counts as all tokens.
#
# The p-values of one test are corrected together by Holm (1979), which holds however they
# depend on each other.


N_PERMUTATIONS = 9_999
MEANS = {
    "erasure": ("fraction_to_flip", "regret"),
    "input_erasure": ("comprehensiveness", "sufficiency", "tokens_to_flip"),
    "shapley": ("shapley_agreement", "comprehensiveness", "sufficiency"),
    "sources": (
        "source_found",
        "source_agreement",
        "drop_of_top_1",
        "drop_of_top_3",
    ),
}
"""By test, the statistics whose means are compared between rankings."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Estimate):
    """Two rankings, or two erasures, on the texts where both have a value.

    Attributes:
        test: whose rows are compared.
        statistic: what is compared, without a key.
        method: ``permutation``, ``mcnemar`` or ``sign``.
        first: a ranking; ``top`` for ``mcnemar``.
        second: another one; ``random`` for ``mcnemar``.
        difference: mean of first − second.
        ci95: its 95% interval.
        n: texts compared.
        dropped: texts where one side is undefined, as where nothing flips the decision.
        n_first: texts where the first alone flipped (``mcnemar``), or flipped with
            fewer removals (``sign``); None for ``permutation``.
        n_second: the reverse.
        p_value: two-sided.
        adjusted_p_value: with Holm's correction over all of the same test.
    """

    value: float = field(metadata={"written_as": "difference"})
    ci95: tuple[float, float] = field()
    n: int = field()
    test: str
    statistic: str
    method: str
    first: str
    second: str
    dropped: int
    n_first: int | None
    n_second: int | None
    p_value: float
    adjusted_p_value: float = float("nan")


def compare_rankings(
    rows: Rows | pd.DataFrame,
    *,
    against: str | None = "attention",
    site: tuple[int, int] | None = None,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """All comparisons that rows of the tests of :data:`MEANS` allow at a site.

    Args:
        rows: as :func:`~hf_attnprobe.storage.rows.read_rows` gives them.
        against: the ranking that every other one is compared with; ``None`` for every
            pair of rankings.
        site: (layer, head); without one, the only site of the rows, and no comparison
            where there are several.
        seed: of the permutation test.
    """
    comparisons: list[Comparison] = []
    rows = Rows.of(rows)
    for test in MEANS:
        own = rows.select(lambda name, *_, test=test: name == test)
        sites = own.sites if site is None else own.sites & {site}
        if len(sites) == 1:
            texts = Texts.at(own, *sites)
            pairs = _pairs_of(test, texts, against)
            comparisons += _measured(test, pairs, texts.index, seed)
    return tuple(comparisons)


class _Pair(NamedTuple):
    """Two rankings, and the first's value minus the second's in every text [texts].

    Where coins are tossed that is 1, −1 or 0: which of them the text speaks for.
    """

    statistic: str
    method: str
    first: str
    second: str
    gaps: np.ndarray


def _pairs_of(test: str, texts: Texts, against: str | None) -> Iterator[_Pair]:
    """Every pair of one test in which some text has both values."""

    def less(name: str, other: str) -> np.ndarray:
        return texts.values(name) - texts.values(other)

    def by_removals(first: str, second: str) -> np.ndarray:
        """1 where the first flips a decision with fewer removals, −1 where the second."""
        sides = np.sign(less(f"fraction_to_flip@{second}", f"fraction_to_flip@{first}"))
        never = np.sign(less(f"never_flips@{second}", f"never_flips@{first}"))
        return np.where(sides == 0, never, sides)

    if {"top_flips", "random_flips"} <= {*texts.names}:  # the largest weight, a random one
        yield _Pair(
            "flips",
            "mcnemar",
            "top",
            "random",
            less("top_flips", "random_flips"),
        )
    for family in MEANS[test]:
        known = _by_ranking(texts, family)
        names = _names(list(known), against)
        for pair in names if family == "fraction_to_flip" else ():
            yield _Pair("fewer_removals", "sign", *pair, by_removals(*pair))
        for pair in names:
            yield _Pair(
                family,
                "permutation",
                *pair,
                less(*(known[side] for side in pair)),
            )


def _measured(test: str, pairs: Iterator[_Pair], texts: pd.Index, seed: int) -> list[Comparison]:
    """Returns the comparisons of one test, all on the same draws of signs."""
    found: list[Comparison] = []
    n_at_once = max(1, AT_ONCE // max(1, len(texts)))
    while some := [*itertools.islice(pairs, n_at_once)]:
        some = [pair for pair in some if not np.isnan(pair.gaps).all()]
        if some:
            found += _measured_together(test, some, seed)
        del some  # before the next are read
    adjusted = holm([c.p_value for c in found])
    return [replace(c, adjusted_p_value=p) for c, p in zip(found, adjusted, strict=True)]


def _measured_together(test: str, pairs: Sequence[_Pair], seed: int) -> list[Comparison]:
    gaps = np.stack([pair.gaps for pair in pairs], axis=1)
    found = mean_estimates(gaps)
    of_means = [k for k, pair in enumerate(pairs) if pair.method == "permutation"]
    flipped = sign_flip_p_values(gaps[:, of_means], seed=seed).tolist()
    p_values = dict(zip(of_means, flipped, strict=True))
    comparisons = []
    for k, (pair, mean) in enumerate(zip(pairs, found, strict=True)):
        n_first = n_second = None
        if k not in p_values:
            n_first, n_second = (int((pair.gaps == side).sum()) for side in (1, -1))
            p_values[k] = _coin_p_value(n_first, n_second)
        comparison = Comparison(
            **vars(mean),
            test=test,
            statistic=pair.statistic,
            method=pair.method,
            first=pair.first,
            second=pair.second,
            dropped=len(gaps) - (mean.n or 0),
            n_first=n_first,
            n_second=n_second,
            p_value=p_values[k],
        )
        comparisons.append(comparison)
    return comparisons


def _coin_p_value(n_first: int, n_second: int) -> float:
    """Two-sided p-value of the exact sign test."""
    n_tosses = n_first + n_second
    one_side = bdtr(min(n_first, n_second), n_tosses, 0.5)
    return min(1.0, 2 * float(one_side))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's step-down procedure.

    Returns:
        In [0, 1] and in the order given.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = steps.clip(max=1)
    return adjusted.tolist()


def sign_flip_p_values(
    differences: np.ndarray,
    *,
    seed: int = 0,
    n_permutations: int = N_PERMUTATIONS,
) -> np.ndarray:
    """Returns two-sided p-values that the mean of each column is 0, by flipping signs of rows.

    Of more than ``MANY_TEXTS`` the sum of flipped values is normal, with variance Σ value².

    Args:
        differences: [texts, columns], NaN where a text has none.
        seed: of the draws of signs; one draw serves all columns.
        n_permutations: draws, where there are more ways to flip signs than that.

    Returns:
        [columns].
    """
    n_texts = len(differences)
    if n_texts > MANY_TEXTS:
        of = moments(differences)
        sums = of.n * of.mean
        spread = np.sqrt(of.m2 + of.n * of.mean**2)
        scores = np.divide(sums, spread, out=0 * sums, where=spread > 0)
        return 2 * ndtr(-np.abs(scores))

    values = np.nan_to_num(differences)
    sums = values.sum(0)
    rounding = 1e-12 * np.abs(values).sum(0)
    threshold = np.abs(sums) - rounding  # at least as far as found
    exact = n_texts <= np.log2(n_permutations)
    parts = _drawn_flips(n_texts, n_permutations, seed)
    if exact:
        ways = [*itertools.product((0.0, 1.0), repeat=n_texts)]
        parts = iter([np.array(ways).reshape(-1, n_texts)])
    extreme = np.zeros(values.shape[1])
    n_drawn = 0
    for flips in parts:
        flipped = np.abs(sums - 2 * (flips @ values))
        extreme += (flipped >= threshold).sum(0)
        n_drawn += len(flips)
    return extreme / n_drawn if exact else (extreme + 1) / (n_drawn + 1)


def _drawn_flips(n: int, n_permutations: int, seed: int) -> Iterator[np.ndarray]:
    """Draws whose signs are flipped, 1 or 0, in small parts: [permutations, texts]."""
    generator = np.random.default_rng(seed)
    at_once = max(1, 2**20 // n)
    for start in range(0, n_permutations, at_once):
        n_drawn = min(at_once, n_permutations - start)
        flips = generator.integers(0, 2, (n_drawn, n), dtype=np.int8)
        yield flips.astype(np.float64)


def _by_ranking(texts: Texts, family: str) -> dict[str, str]:
    """The statistics ``family@ranking`` by ranking, in table order.

    Single random orders are left out, their mean ``random`` stands for them.
    """
    split = [(name, *name.partition("@")) for name in sorted(texts.names, key=position)]
    return {
        ranking: name
        for name, own, _, ranking in split
        if own == family and not ranking.startswith("random_")
    }


def _names(rankings: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    """The pairs of rankings to compare."""
    if against is None:
        return list(itertools.combinations(rankings, 2))
    if against not in rankings:
        return []
    return [(against, other) for other in rankings if other != against]
