"""Is one ranking better than another on the same texts? Paired, corrected tests.

What two rankings did to one text is a pair, and only pairs are compared:

- ``permutation``: the mean difference with its 95% interval over texts, and
  the two-sided p-value of the sign-flip permutation test. Under the null hypothesis
  each text's difference might as well have had the other sign. All signs are tried
  where there are at most 9,999 of them, else 9,999 draws and the observed one.
- ``mcnemar``: whether erasing the top weight flips more decisions than erasing a random
  one, by McNemar's exact test: the texts that flip with one of them only are tosses of
  a fair coin (McNemar 1947; Serrano & Smith 2019, Section 4).
- ``sign``: which of two rankings flips a text's decision with fewer removals. A ranking
  that never flips it needs more than one that flips it at last; ties, two such rankings
  among them, count for neither. The exact sign test.

Rankings by erasure have values on the same texts, those that can be flipped, where a
ranking that never flips the decision counts as all tokens.

The p-values of one test are corrected together by Holm (1979), which holds however they
depend on each other.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import bdtr

from hf_attnprobe.statistics.bootstrap import mean_interval
from hf_attnprobe.statistics.summary import position


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
