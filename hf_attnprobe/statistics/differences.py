"""Differences of means, paired by text: from a control, another model, another ranking.

Every text is a pair where both sides are of the same texts; on other texts each side has
an interval of its own. Pure: data frames in, differences out.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import bdtr

from hf_attnprobe.statistics.estimates import (
    ONE_COLUMN,
    critical_value,
    difference_interval,
    is_share,
    mean_interval,
    moments,
    paired_share_interval,
    share_difference_interval,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.summary import groups_of_texts, one_row_per_text, position


# --- a model beside its control ---------------------------------------------------------------


DRAW = "draw"
"""The column of a control's rows that numbers its draws, where there are several."""


def draws_of(control: pd.DataFrame | None) -> list[pd.DataFrame]:
    """The rows of each draw of a control; none without one."""
    if control is None:
        return []
    if DRAW not in control:
        return [control]
    return [rows.drop(columns=DRAW) for _, rows in control.groupby(DRAW)]


def mean_of_draws(control: pd.DataFrame) -> pd.DataFrame:
    """A control's rows with every value the mean over its draws."""
    if DRAW not in control:
        return control
    key = [name for name in control.columns if name not in (DRAW, "value")]
    return control.groupby(key, as_index=False, sort=False).value.mean()


@dataclass(frozen=True)
class Contrast:
    """One statistic of two audits, over the texts in which both have a value.

    Attributes:
        test: the faithfulness test it is of.
        statistic: its name, or ``name@key``.
        layer: where it was measured; negative for groups of heads and the whole model.
        head: as ``layer``.
        group: ``all`` texts, or the class that the first model predicts for them.
        mean: of the first model.
        control_mean: of the other one.
        difference: mean over texts of the first one's value minus the other's.
        ci95: 95% interval of the difference, of a difference of two shares that of
            Bonet & Price (2012).
        n: texts in which both have a value; with none, all numbers are NaN.
    """

    test: str
    statistic: str
    layer: int
    head: int
    group: str
    mean: float
    control_mean: float
    difference: float
    ci95: tuple[float, float]
    n: int


def contrast(
    rows: pd.DataFrame,
    other: pd.DataFrame,
    label_names: Sequence[str],
) -> tuple[Contrast, ...]:
    """Paired differences of every statistic that both sets of rows have.

    Args:
        rows: of the model, as :func:`~hf_attnprobe.storage.rows.read_rows` gives them; the groups are
            those of its predictions.
        other: of the other model, paired by ``example_id``; a text that only one of
            the two has is left out.
        label_names: names of the classes.

    Returns:
        In the order of test, statistic, layer and head, each for ``all`` texts and then
        for the predicted classes, except classes that are never predicted.
    """
    first, second = one_row_per_text(rows), one_row_per_text(mean_of_draws(other))
    texts = first.index.intersection(second.index)
    columns = first.columns.intersection(second.columns).sort_values()
    first, second = first.loc[texts, columns], second.loc[texts, columns]
    by_group = [
        _contrasts(members, second.loc[members.index], group)
        for group, members in groups_of_texts(rows, first, label_names).items()
        if len(members)
    ]
    return tuple(c for of_column in zip(*by_group, strict=True) for c in of_column)


def find_contrast(
    contrasts: Sequence[Contrast],
    name: str,
    *,
    group: str = "all",
    layer: int = 0,
    head: int = 0,
) -> Contrast | None:
    """The contrast of a statistic, or None where no text has both values."""
    wanted = name, group, layer, head
    for c in contrasts:
        if c.n and (c.statistic, c.group, c.layer, c.head) == wanted:
            return c
    return None


def paired_intervals(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """95% intervals of the mean differences of columns, [2, columns].

    Args:
        values: [texts, columns]; NaN where a text has no value.
        others: of the other model, the same texts and columns.
    """
    differences = values - others
    bounds = mean_interval(differences)
    shares = is_share(values) & is_share(others)
    bounds[:, shares] = paired_share_interval(differences[:, shares])
    return bounds


def _contrasts(first: pd.DataFrame, second: pd.DataFrame, group: str) -> list[Contrast]:
    """One contrast per column."""
    values = first.to_numpy(dtype=np.float64)
    others = second.to_numpy(dtype=np.float64)
    differences = values - others
    intervals = paired_intervals(values, others).T.tolist()
    found = []
    for k, (test, statistic, layer, head) in enumerate(first.columns):
        paired = ~np.isnan(differences[:, k])
        mean, control_mean, difference = (
            float(x[paired, k].mean()) if paired.any() else float("nan")
            for x in (values, others, differences)
        )
        low, high = intervals[k]
        found.append(
            Contrast(
                test=test,
                statistic=statistic,
                layer=int(layer),
                head=int(head),
                group=group,
                mean=mean,
                control_mean=control_mean,
                difference=difference,
                ci95=(low, high),
                n=int(paired.sum()),
            )
        )
    return found


# --- two models -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A mean of one model minus that of another.

    Attributes:
        value: the difference; NaN where no text has both values.
        first: mean of the one that is subtracted, over the texts that count here.
        other: mean of the other one.
        ci95: its own 95% interval: over texts, of shares of texts that of Bonet & Price (2012), or of Agresti & Caffo (2000) on other
            texts.
        simultaneous: an interval that holds for all differences that were made together
            with 95% probability, so that the most striking one may be picked.
        n: texts that both have; without pairs those of the smaller side.
        paired: whether both models were tested on the same texts.
    """

    value: float
    first: float
    other: float
    ci95: tuple[float, float]
    simultaneous: tuple[float, float]
    n: int
    paired: bool

    @property
    def can_be_told(self) -> bool:
        """Whether the sign can be told: the simultaneous interval excludes 0."""
        low, high = self.simultaneous
        return self.n >= MIN_TEXTS and (low > 0 or high < 0)


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


@dataclass(frozen=True, eq=False)
class _Measured:
    """Differences of columns before it is known how many are read at once.

    ``errors`` [units, columns] has what every text adds to the error of each difference,
    ``at`` gives the intervals [2, columns] so many standard errors away.
    """

    first: np.ndarray
    other: np.ndarray
    ci95: np.ndarray
    n: np.ndarray
    errors: pd.DataFrame
    at: Callable[[float], np.ndarray]


def changes(sides: Sequence[Sides], *, seed: int = 0) -> list[list[Difference]]:
    """Other − first of every column, of every pair of models.

    The simultaneous intervals are over all columns of all pairs.

    Args:
        sides: pairs with the same first model.
        seed: of the resamples.

    Returns:
        By pair, in the order of its columns.
    """
    measured: dict[int, _Measured] = {}
    for number, both in enumerate(sides):
        if both.first.shape[1]:
            measure = _on_same_texts if both.paired else _on_other_texts
            measured[number] = measure(both, number + 1)
    if not measured:
        return [[] for _ in sides]
    errors = pd.concat([m.errors for m in measured.values()], axis=1)
    critical = critical_value(errors.to_numpy(dtype=np.float64), seed=seed)
    return [
        _differences(measured[number], critical, both.paired) if number in measured else []
        for number, both in enumerate(sides)
    ]


def _differences(measured: _Measured, critical: float, paired: bool) -> list[Difference]:
    """One difference per column."""
    ends = zip(measured.ci95.T.tolist(), measured.at(critical).T.tolist(), strict=True)
    return [
        Difference(
            value=float(measured.other[k] - measured.first[k]),
            first=float(measured.first[k]),
            other=float(measured.other[k]),
            ci95=(own[0], own[1]),
            simultaneous=(both[0], both[1]),
            n=int(measured.n[k]),
            paired=paired,
        )
        for k, (own, both) in enumerate(ends)
    ]


def _on_same_texts(both: Sides, number: int) -> _Measured:
    texts = both.first.index.intersection(both.other.index).sort_values()
    first = both.first.loc[texts].to_numpy(dtype=np.float64)
    other = both.other.loc[texts].to_numpy(dtype=np.float64)
    differences = other - first
    n, means, errors = _centred(differences)
    counted = np.where(np.isnan(differences), np.nan, first)
    mean_first = _centred(counted)[1]
    shares = is_share(first) & is_share(other)

    def at(critical: float) -> np.ndarray:
        interval = mean_interval(differences, critical=critical)
        interval[:, shares] = paired_share_interval(differences[:, shares], critical=critical)
        return interval

    return _Measured(
        mean_first,
        mean_first + means,
        paired_intervals(other, first),
        n,
        _of_units(errors, texts, side=0),
        at,
    )


def _on_other_texts(both: Sides, number: int) -> _Measured:
    first = both.first.sort_index()
    other = both.other.sort_index()
    values, others = (side.to_numpy(dtype=np.float64) for side in (other, first))
    n, means, errors = _centred(values)
    n_first, means_first, errors_first = _centred(others)
    shares = is_share(values) & is_share(others)

    def at(critical: float) -> np.ndarray:
        interval = difference_interval(moments(values), moments(others), critical=critical)
        interval[:, shares] = share_difference_interval(
            values[:, shares], others[:, shares], critical=critical
        )
        return interval

    # A mean's error is the sum of its texts' errors divided by their number.
    units = [
        _of_units(-errors_first / np.maximum(n_first, 1), first.index, side=0),
        _of_units(errors / np.maximum(n, 1), other.index, side=number),
    ]
    return _Measured(
        means_first, means, at(ONE_COLUMN), np.minimum(n, n_first), pd.concat(units), at
    )


def _centred(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes and means [columns], and what is left of the values without the means."""
    real = ~np.isnan(values)
    n = real.sum(0)
    sums = np.where(real, values, 0).sum(0)
    means = np.where(n > 0, sums / np.maximum(n, 1), np.nan)
    return n, means, values - means


def _of_units(errors: np.ndarray, texts: pd.Index, *, side: int) -> pd.DataFrame:
    """With an index that tells texts of different data apart."""
    units = pd.MultiIndex.from_product([[side], texts])
    return pd.DataFrame(errors, index=units)


# --- two rankings -----------------------------------------------------------------------------


N_PERMUTATIONS = 9_999
MEANS = {
    "erasure": ("fraction_to_flip", "regret"),
    "input_erasure": ("comprehensiveness", "sufficiency", "tokens_to_flip"),
}
"""By test, the statistics whose means are compared between rankings."""


@dataclass(frozen=True)
class Comparison:
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

    test: str
    statistic: str
    method: str
    first: str
    second: str
    difference: float
    ci95: tuple[float, float]
    n: int
    dropped: int
    n_first: int | None
    n_second: int | None
    p_value: float
    adjusted_p_value: float = float("nan")


def compare_rankings(
    rows: pd.DataFrame,
    *,
    against: str | None = "attention",
    site: tuple[int, int] | None = None,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """All comparisons that rows of ``erasure`` and ``input_erasure`` allow at a site.

    Args:
        rows: as :func:`~hf_attnprobe.storage.rows.read_rows` gives them.
        against: the ranking that every other one is compared with; ``None`` for every
            pair of rankings.
        site: (layer, head); without one, the only site of the rows, and no comparison
            where there are several.
        seed: of the permutation test.
    """
    comparisons: list[Comparison] = []
    for test in MEANS:
        wide = _wide(rows[rows.test == test], site)
        if wide is not None:
            pairs = _pairs_of(test, wide, against)
            comparisons += _measured(test, pairs, seed)
    return tuple(comparisons)


class _Pair(NamedTuple):
    """Two rankings before they are compared.

    ``differences`` [texts] are NaN where a side is undefined. ``sides`` [texts], where
    coins are tossed, are 1, −1 or 0: which side the text speaks for.
    """

    statistic: str
    method: str
    first: str
    second: str
    differences: np.ndarray
    sides: np.ndarray | None = None


def _pairs_of(test: str, wide: pd.DataFrame, against: str | None) -> list[_Pair]:
    """Every pair of one test in which some text has both values."""
    pairs = _single_erasures(wide)
    never = _by_ranking(wide, "never_flips")
    for family in MEANS[test]:
        values = _by_ranking(wide, family)
        names = _names(list(values), against)
        if family == "fraction_to_flip":
            for first, second in names:
                sides = np.sign(values[second] - values[first])
                later = np.sign(never[second] - never[first])
                sides = np.where(sides == 0, later, sides)
                pairs.append(_Pair("fewer_removals", "sign", first, second, sides, sides))
        for first, second in names:
            difference = values[first] - values[second]
            pairs.append(_Pair(family, "permutation", first, second, difference))
    return [pair for pair in pairs if not np.isnan(pair.differences).all()]


def _single_erasures(wide: pd.DataFrame) -> list[_Pair]:
    """The largest weight against a random one."""
    if not {"top_flips", "random_flips"} <= set(wide):
        return []
    sides = (wide["top_flips"] - wide["random_flips"]).to_numpy()
    return [_Pair("flips", "mcnemar", "top", "random", sides, sides)]


def _measured(test: str, pairs: Sequence[_Pair], seed: int) -> list[Comparison]:
    """The comparisons of one test, all on the same draws of signs."""
    if not pairs:
        return []
    differences = np.stack([pair.differences for pair in pairs], axis=1)
    intervals = mean_interval(differences).T.tolist()
    means = np.nanmean(differences, axis=0).tolist()
    counts = (~np.isnan(differences)).sum(0).tolist()
    p_values = _permutation_p_values(pairs, differences, seed)
    comparisons = []
    for k, pair in enumerate(pairs):
        n_first = n_second = None
        p_value = p_values.get(k, 1.0)
        if pair.sides is not None:
            n_first = int((pair.sides == 1).sum())
            n_second = int((pair.sides == -1).sum())
            p_value = _coin_p_value(n_first, n_second)
        comparisons.append(
            Comparison(
                test=test,
                statistic=pair.statistic,
                method=pair.method,
                first=pair.first,
                second=pair.second,
                difference=means[k],
                ci95=tuple(intervals[k]),
                n=counts[k],
                dropped=len(differences) - counts[k],
                n_first=n_first,
                n_second=n_second,
                p_value=p_value,
            )
        )
    adjusted = holm([c.p_value for c in comparisons])
    return [replace(c, adjusted_p_value=p) for c, p in zip(comparisons, adjusted, strict=True)]


def _permutation_p_values(
    pairs: Sequence[_Pair], differences: np.ndarray, seed: int
) -> dict[int, float]:
    """By number of the pair, of those whose means are compared."""
    of_means = [k for k, pair in enumerate(pairs) if pair.sides is None]
    p_values = sign_flip_p_values(differences[:, of_means], seed=seed)
    return dict(zip(of_means, p_values.tolist(), strict=True))


def _coin_p_value(n_first: int, n_second: int) -> float:
    """How likely a fair coin falls as unevenly, to either side."""
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
    differences: np.ndarray, *, seed: int = 0, n_permutations: int = N_PERMUTATIONS
) -> np.ndarray:
    """Two-sided p-values that the mean of each column is 0, by flipping signs of rows.

    Args:
        differences: [texts, columns], NaN where a text has none.
        seed: of the draws of signs; one draw serves all columns.
        n_permutations: draws, where there are more ways to flip signs than that.

    Returns:
        [columns].
    """
    values = np.nan_to_num(differences)
    n_texts = len(values)
    sums = values.sum(0)
    threshold = np.abs(sums) - 1e-12 * np.abs(values).sum(0)  # as far, up to rounding
    exact = n_texts <= np.log2(n_permutations)
    parts = _all_flips(n_texts) if exact else _drawn_flips(n_texts, n_permutations, seed)
    extreme = np.zeros(values.shape[1])
    n_drawn = 0
    for flips in parts:
        flipped = np.abs(sums - 2 * (flips @ values))
        extreme += (flipped >= threshold).sum(0)
        n_drawn += len(flips)
    return extreme / n_drawn if exact else (extreme + 1) / (n_drawn + 1)


def _all_flips(n: int) -> Iterator[np.ndarray]:
    yield np.array(list(itertools.product((0.0, 1.0), repeat=n))).reshape(-1, n)


def _drawn_flips(n: int, n_permutations: int, seed: int) -> Iterator[np.ndarray]:
    """1 where a text's sign is flipped, in small parts: [permutations, texts]."""
    generator = np.random.default_rng(seed)
    at_once = max(1, 2**20 // n)
    for start in range(0, n_permutations, at_once):
        shape = min(at_once, n_permutations - start), n
        yield generator.integers(0, 2, shape, dtype=np.int8).astype(np.float64)


def _wide(rows: pd.DataFrame, site: tuple[int, int] | None) -> pd.DataFrame | None:
    """Texts by statistics at the site; None without such a site or a single one."""
    if site is not None:
        rows = rows[(rows.layer == site[0]) & (rows["head"] == site[1])]
    if not len(rows) or len(rows[["layer", "head"]].drop_duplicates()) > 1:
        return None
    rows = rows.drop_duplicates(["example_id", "statistic"])
    return rows.pivot(index="example_id", columns="statistic", values="value")


def _by_ranking(wide: pd.DataFrame, family: str) -> dict[str, np.ndarray]:
    """The values [texts] of ``family@ranking`` by ranking, in table order.

    Single random orders are left out, their mean ``random`` stands for them.
    """
    values = {}
    for statistic in sorted(wide.columns, key=position):
        name, _, ranking = statistic.partition("@")
        if name == family and not ranking.startswith("random_"):
            values[ranking] = wide[statistic].to_numpy()
    return values


def _names(rankings: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    """The pairs of rankings to compare."""
    if against is None:
        return list(itertools.combinations(rankings, 2))
    if against not in rankings:
        return []
    return [(against, other) for other in rankings if other != against]
