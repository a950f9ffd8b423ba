"""Is one ranking better than another on the same texts? Paired tests, corrected for their number. Pure.

What two rankings did to one text is a pair, and only pairs are compared:

- ``permutation``: the mean difference with its bootstrap interval over texts (95%, percentile), and the two-sided
  p-value of the sign-flip permutation test: under the null hypothesis each text's difference might as well have had the
  other sign (all signs where there are at most 9,999 of them, else 9,999 draws and the observed one).
- ``mcnemar``: whether erasing the top weight flips more decisions than erasing a random one, by McNemar's exact test:
  the texts that flip with one of them only are tosses of a fair coin (McNemar 1947; Serrano & Smith 2019, Section 4).
- ``sign``: which of two rankings flips a text's decision with fewer removals, never being more than all; ties count for
  neither, and the exact sign test decides.

The p-values of one test are corrected together by Holm (1979), which holds however they depend on each other.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from hf_attnprobe.statistics.bootstrap import bootstrap_interval
from hf_attnprobe.statistics.summary import position


N_PERMUTATIONS = 9_999
MORE_THAN_ALL = 1.001
MEANS = {
    "erasure": ("fraction_to_flip", "regret"),
    "input_erasure": ("comprehensiveness", "sufficiency"),
}
"""By test, the statistics whose means are compared between rankings."""


@dataclass(frozen=True)
class Comparison:
    """Two rankings, or two erasures, on the texts where both have a value.

    difference: mean of first − second, with ci95; n: texts compared; dropped: texts where one side is undefined.
    n_first, n_second: texts where first alone flipped (``mcnemar``), or with fewer removals (``sign``), and the reverse;
    None for ``permutation``. p_value is two-sided; adjusted_p_value has Holm's correction over all of the same test.
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


def compare(
    rows: pd.DataFrame,
    *,
    against: str | None = "attention",
    site: tuple[int, int] | None = None,
    never_as_all: bool = False,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """All comparisons that the rows of ``erasure`` and ``input_erasure`` allow at one site.

    Args:
        rows: as :func:`hf_attnprobe.read_rows` gives them.
        against: the ranking that every other one is compared with; ``None`` for every pair of rankings.
        site: (layer, head); without one, the only site of the rows, and no comparison where there are several.
        never_as_all: a ranking that never flips a decision counts as fraction 1 in mean fractions; otherwise such
            texts are dropped from them, and counted. (Random orders are several draws: without this, the mean of those
            that flip.)
        seed: of the bootstrap and the permutation test.
    """
    found: list[Comparison] = []
    for test in MEANS:
        wide = _wide(rows[rows.test == test], site)
        if wide is not None:
            found += _measured(test, _pairs_of(test, wide, against, never_as_all), seed)
    return tuple(found)


class _Pair(NamedTuple):
    """differences [texts], NaN where a side is undefined. In a toss of coins ``sides`` is 1, −1 or 0 for each text."""

    statistic: str
    method: str
    first: str
    second: str
    differences: np.ndarray
    sides: np.ndarray | None = None


def _pairs_of(
    test: str, wide: pd.DataFrame, against: str | None, never_as_all: bool
) -> list[_Pair]:
    found = []
    if {"top_flips", "random_flips"} <= set(wide):
        sides = (wide["top_flips"] - wide["random_flips"]).to_numpy()
        found.append(_Pair("flips", "mcnemar", "top", "random", sides, sides))
    never = _by_ranking(wide, "never_flips")
    for family in MEANS[test]:
        columns = _by_ranking(wide, family)
        pairs = _names(list(columns), against)
        if family == "fraction_to_flip":
            removals = {
                r: _counted(values, never.get(r), MORE_THAN_ALL)
                for r, values in columns.items()
            }
            for a, b in pairs:
                sides = np.sign(removals[b] - removals[a])
                found.append(_Pair("fewer_removals", "sign", a, b, sides, sides))
            columns = (
                {r: _counted(columns[r], never.get(r), 1.0) for r in columns}
                if never_as_all
                else columns
            )
        found += [
            _Pair(family, "permutation", a, b, columns[a] - columns[b])
            for a, b in pairs
        ]
    return [pair for pair in found if not np.isnan(pair.differences).all()]


def _measured(test: str, pairs: Sequence[_Pair], seed: int) -> list[Comparison]:
    """Resampled together: to draw the texts costs more than to use what is drawn."""
    if not pairs:
        return []
    differences = np.stack([pair.differences for pair in pairs], axis=1)
    intervals = bootstrap_interval(differences, seed=seed).T.tolist()
    means, counts = (
        np.nanmean(differences, axis=0).tolist(),
        (~np.isnan(differences)).sum(0).tolist(),
    )
    of_means = [k for k, pair in enumerate(pairs) if pair.sides is None]
    p_values = dict(
        zip(
            of_means,
            sign_flip_p_values(differences[:, of_means], seed=seed).tolist(),
            strict=True,
        )
    )
    found = []
    for k, pair in enumerate(pairs):
        kind = pair.statistic, pair.method, pair.first, pair.second
        *sides, p_value = (
            (None, None, p_values[k]) if pair.sides is None else _toss(pair.sides)
        )
        dropped = len(differences) - counts[k]
        found.append(
            Comparison(
                test,
                *kind,
                means[k],
                tuple(intervals[k]),
                counts[k],
                dropped,
                *sides,
                p_value,
            )
        )
    adjusted = holm([c.p_value for c in found])
    return [
        replace(c, adjusted_p_value=p) for c, p in zip(found, adjusted, strict=True)
    ]


def _toss(sides: np.ndarray) -> tuple[int, int, float]:
    """Texts for the first, texts for the second, and how likely a fair coin is as uneven."""
    n_first, n_second = int((sides == 1).sum()), int((sides == -1).sum())
    return (
        n_first,
        n_second,
        float(binomtest(n_first, n_first + n_second).pvalue)
        if n_first + n_second
        else 1.0,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's step-down procedure, in [0, 1] and in the order given.

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
    """Two-sided p-values that the mean of each column is 0, with the signs of the rows as the null distribution.

    Shape: differences [texts, columns], NaN where a text has none -> [columns]. One draw of signs serves all columns.
    """
    values = np.nan_to_num(differences)
    observed, rounding = np.abs(values.sum(0)), 1e-12 * np.abs(values).sum(0)
    exact = len(values) <= np.log2(n_permutations)
    extreme, n_drawn = np.zeros(values.shape[1]), 0
    for flips in (
        _all_flips(len(values))
        if exact
        else _drawn_flips(len(values), n_permutations, seed)
    ):
        extreme += (
            np.abs(values.sum(0) - 2 * (flips @ values)) >= observed - rounding
        ).sum(0)
        n_drawn += len(flips)
    return extreme / n_drawn if exact else (extreme + 1) / (n_drawn + 1)


def _all_flips(n: int) -> Iterator[np.ndarray]:
    yield np.array(list(itertools.product((0.0, 1.0), repeat=n))).reshape(-1, n)


def _drawn_flips(n: int, n_permutations: int, seed: int) -> Iterator[np.ndarray]:
    """1 where a text's sign is flipped, in parts that stay small: [permutations, texts]."""
    draws, at_once = np.random.default_rng(seed), max(1, 2**20 // n)
    for start in range(0, n_permutations, at_once):
        shape = min(at_once, n_permutations - start), n
        yield draws.integers(0, 2, shape, dtype=np.int8).astype(np.float64)


def _wide(rows: pd.DataFrame, site: tuple[int, int] | None) -> pd.DataFrame | None:
    """Texts by statistics at the site; None where there is no such site or no single one."""
    if site is not None:
        rows = rows[(rows.layer == site[0]) & (rows["head"] == site[1])]
    if not len(rows) or len(rows[["layer", "head"]].drop_duplicates()) > 1:
        return None
    return rows.drop_duplicates(["example_id", "statistic"]).pivot(
        index="example_id", columns="statistic", values="value"
    )


def _by_ranking(wide: pd.DataFrame, family: str) -> dict[str, np.ndarray]:
    found = (name.partition("@") for name in sorted(wide.columns, key=position))
    return {
        ranking: wide[f"{family}@{ranking}"].to_numpy()
        for name, _, ranking in found
        if name == family
    }


def _names(rankings: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    if against is None:
        return list(itertools.combinations(rankings, 2))
    return [
        (against, other)
        for other in rankings
        if against in rankings and other != against
    ]


def _counted(
    fractions: np.ndarray, never: np.ndarray | None, value: float
) -> np.ndarray:
    """Fractions in which never counts as ``value``; of random orders, in the share of draws that never flip."""
    if never is None:
        return fractions
    return np.where(never == 1, value, (1 - never) * fractions + never * value)
