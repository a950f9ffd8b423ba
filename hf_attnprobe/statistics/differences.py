"""Differences between two models or between two rankings, with confidence intervals.

If both were measured on the same texts, the difference is computed for each text and then averaged. This
is called a paired difference. If the texts differ, the means are subtracted, and the variances of both
means are added.

Start reading in :func:`compare_model_pairs` and :func:`compare_rankings`.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import bdtr, ndtr

from hf_attnprobe.statistics.estimates import (
    MAX_RESAMPLED_TEXTS,
    SINGLE_CRITICAL_VALUE,
    Estimate,
    Moments,
    compute_difference_interval,
    compute_interval_from_moments,
    compute_moments,
    compute_paired_share_interval,
    compute_share_difference_interval,
    estimate_critical_value,
    estimate_means,
    find_binary_columns,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.rows import VALUES_PER_CHUNK, Rows, Texts
from hf_attnprobe.statistics.summary import get_sort_key


@dataclass(frozen=True)
class Difference(Estimate):
    """Difference between two means over texts.

    Attributes:
        value: mean of ``other`` minus mean of ``first``; NaN if no text has both values.
        first: mean on the side that is subtracted.
        other: mean on the other side.
        ci95: 95% confidence interval for this difference alone. For shares, it follows Bonet &
            Price (2012), or Agresti & Caffo (2000) if the two sides have different texts.
        n: number of texts with both values; if the sides are not paired, the size of the smaller
            side.
        paired: whether both sides were measured on the same texts.
        simultaneous: interval that covers all differences of a comparison at once with 95%
            probability, so that it stays valid if a reader picks the most striking difference.
    """

    ci95: tuple[float, float] = field()
    n: int = field()
    first: float
    other: float
    paired: bool
    simultaneous: tuple[float, float]

    @property
    def has_clear_sign(self) -> bool:
        """Whether the sign is certain, because the simultaneous interval excludes 0."""
        low, high = self.simultaneous
        return self.n >= MIN_TEXTS and (low > 0 or high < 0)


def compare_paired(
    first: np.ndarray, other: np.ndarray, *, critical_value: float = SINGLE_CRITICAL_VALUE
) -> list[Difference]:
    """Compute the mean difference other − first for each column, paired by text.

    Args:
        first: values that are subtracted, [texts, columns]; NaN for a text without a value.
        other: values on the other side, for the same texts and columns.
        critical_value: half-width of the simultaneous intervals in standard errors; by default
            1.96, as for a single interval.

    Returns:
        One difference per column, over the texts that have both values.
    """
    is_share = find_binary_columns(first) & find_binary_columns(other)
    differences = other - first
    moments = compute_moments(differences)

    def compute_interval(critical_value: float) -> np.ndarray:
        ends = compute_interval_from_moments(moments, critical_value=critical_value)
        share_differences = differences[:, is_share]
        ends[:, is_share] = compute_paired_share_interval(
            share_differences, critical_value=critical_value
        )
        return ends

    is_pair = ~np.isnan(differences)
    first_moments = compute_moments(np.where(is_pair, first, np.nan))
    other_moments = compute_moments(np.where(is_pair, other, np.nan))
    side_means = _extract_means(first_moments), _extract_means(other_moments)
    intervals = compute_interval(SINGLE_CRITICAL_VALUE), compute_interval(critical_value)
    return _build_differences(
        _extract_means(moments), moments.n, side_means, intervals, is_paired=True
    )


def compare_unpaired(
    first: np.ndarray, other: np.ndarray, *, critical_value: float = SINGLE_CRITICAL_VALUE
) -> list[Difference]:
    """Compute the difference between the column means of two tables with different texts.

    Args:
        first: values of the first table, [texts, columns]; NaN for a text without a value. Its
            means are subtracted.
        other: values of the other table, with different texts but the same columns.
        critical_value: half-width of the simultaneous intervals in standard errors; by default
            1.96, as for a single interval.

    Returns:
        Difference other − first for each column.
    """
    # A mean of zeros and ones is a share, for which a more exact interval exists.
    is_share = find_binary_columns(first) & find_binary_columns(other)
    first_moments, other_moments = compute_moments(first), compute_moments(other)

    def compute_interval(critical_value: float) -> np.ndarray:
        ends = compute_difference_interval(
            other_moments, first_moments, critical_value=critical_value
        )
        ends[:, is_share] = compute_share_difference_interval(
            other[:, is_share], first[:, is_share], critical_value=critical_value
        )
        return ends

    side_means = _extract_means(first_moments), _extract_means(other_moments)
    n = np.minimum(first_moments.n, other_moments.n)
    intervals = compute_interval(SINGLE_CRITICAL_VALUE), compute_interval(critical_value)
    return _build_differences(
        side_means[1] - side_means[0], n, side_means, intervals, is_paired=False
    )


def _extract_means(moments: Moments) -> np.ndarray:
    """Return the column means; NaN replaces the 0 that is stored for columns without values."""
    return np.where(moments.n > 0, moments.mean, np.nan)


def _build_differences(
    values: np.ndarray,
    n: np.ndarray,
    side_means: Sequence[np.ndarray],
    intervals: Sequence[np.ndarray],
    *,
    is_paired: bool,
) -> list[Difference]:
    """Build a :class:`Difference` for each column.

    Args:
        values: differences, [columns].
        n: text counts, [columns].
        side_means: means on the first and on the other side, each [columns].
        intervals: single and simultaneous confidence intervals, each [2, columns].
        is_paired: whether both sides were measured on the same texts.

    Returns:
        One difference per column.
    """
    single_ends, simultaneous_ends = intervals
    single_intervals = [(low, high) for low, high in single_ends.T.tolist()]
    simultaneous_intervals = [(low, high) for low, high in simultaneous_ends.T.tolist()]
    first_means, other_means = side_means
    columns = {
        "value": values,
        "ci95": single_intervals,
        "n": n,
        "first": first_means,
        "other": other_means,
        "simultaneous": simultaneous_intervals,
    }
    records = pd.DataFrame(columns).to_dict("records")
    return [Difference(**record, paired=is_paired) for record in records]


# --- Two models -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelPair:
    """Values that were measured for two models.

    Attributes:
        first: values for the model that is subtracted, with one row per text, indexed by text
            id; NaN for a text without a value.
        other: values for the other model, with the same columns.
        paired: whether equal text ids refer to the same text.
    """

    first: pd.DataFrame
    other: pd.DataFrame
    paired: bool

    @property
    def aligned_frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Both data frames, sorted by text id.

        If the models are paired (evaluated on the same data), only texts in both frames remain.
        """
        first, other = self.first.sort_index(), self.other.sort_index()
        if not self.paired:
            return first, other
        texts = first.index.intersection(other.index)
        return first.loc[texts], other.loc[texts]


def compare_model_pairs(pairs: Sequence[ModelPair], *, seed: int = 0) -> list[list[Difference]]:
    """Compare the statistics of one model with those of several other models.

    The simultaneous confidence intervals hold for all statistics and all models at once.

    Args:
        pairs: model pairs, all with the same first model.
        seed: seed for estimating the width of the simultaneous intervals.

    Returns:
        For each pair, a list with one difference other − first per column.
    """
    if not pairs:
        return []
    text_errors = [_compute_text_errors(pair, number) for number, pair in enumerate(pairs, 1)]
    all_text_errors = pd.concat(text_errors, axis=1).to_numpy(dtype=np.float64)
    critical_value = estimate_critical_value(all_text_errors, seed=seed)
    differences = []
    for pair in pairs:
        compare = compare_paired if pair.paired else compare_unpaired
        first_frame, other_frame = pair.aligned_frames
        first = first_frame.to_numpy(dtype=np.float64)
        other = other_frame.to_numpy(dtype=np.float64)
        differences.append(compare(first, other, critical_value=critical_value))
    return differences


def _compute_text_errors(pair: ModelPair, pair_number: int) -> pd.DataFrame:
    """Compute how much each text contributes to the sampling error of each difference.

    If both models have the same texts, the contribution is the text's difference. Otherwise, it is
    the text's deviation from the mean of its model, divided by the number of texts.

    Args:
        pair: two models.
        pair_number: number of the pair, from 1.

    Returns:
        One row per text and one column per difference. The index contains a data set number and the
        text id, because different data sets may use the same ids. The first model's data set has
        number 0, and another data set has the number of the pair.
    """
    first, other = pair.aligned_frames
    # The keys of the dictionaries become the data set numbers in the index.
    if pair.paired:
        return pd.concat({0: other - first})
    errors = {
        0: -(first - first.mean()) / first.count(),
        pair_number: (other - other.mean()) / other.count(),
    }
    return pd.concat(errors)


# --- Two rankings -------------------------------------------------------------------------------

# Two rankings are compared on the texts that have a value for both. There are three methods:
#
# - ``permutation``: mean difference with its 95% confidence interval, and the two-sided p-value of a
#   sign-flip permutation test. Under the null hypothesis, each difference could as well have the
#   opposite sign. All combinations of signs are tried if there are at most 9,999. Otherwise, 9,999
#   random combinations are tried, and the observed one is added.
# - ``mcnemar``: whether erasing the largest weight flips more decisions than erasing a random weight
#   (Serrano & Smith 2019, Section 4), by McNemar's exact test (1947). It compares the numbers of texts
#   that flip in only one of the two cases.
# - ``sign``: which ranking flips more decisions with fewer removals, by the exact sign test. A ranking
#   that never flips a decision loses against a ranking that flips it with the last token. If both
#   rankings need equally many removals, or both never flip the decision, the text does not count.
#
# In erasure, all rankings have values for the same texts: the texts whose decision at least one ranking
# flips. In the mean number of removals, a ranking that does not flip a decision counts as removing all
# tokens.
#
# All p-values of a faithfulness test are corrected together by Holm's method (1979). This is valid even
# if the p-values depend on each other.


N_PERMUTATIONS = 9_999
"""Number of random permutations that a permutation test draws.

A permutation changes the sign of randomly chosen differences.
"""
COMPARED_STATISTICS = {
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
"""Maps each faithfulness test to the statistics by which rankings are compared.

For example, attention and gradients are compared by their regret, text by text.
"""


@dataclass(frozen=True, kw_only=True)
class Comparison(Estimate):
    """Comparison between two rankings, or between two erasures, over texts with both values.

    Attributes:
        test: faithfulness test that measured the values.
        statistic: name of the compared statistic, without a key.
        method: ``permutation``, ``mcnemar`` or ``sign``.
        first: first ranking; ``top`` for ``mcnemar``.
        second: second ranking; ``random`` for ``mcnemar``.
        difference: mean of first − second.
        ci95: 95% confidence interval for the difference.
        n: number of compared texts.
        dropped: number of texts without both values, for example because nothing flips the
            decision.
        n_first: number of texts that only the first erasure flips (``mcnemar``), or that the
            first ranking flips with fewer removals (``sign``); None for ``permutation``.
        n_second: the same count for the second erasure or ranking.
        p_value: two-sided p-value.
        adjusted_p_value: p-value after Holm's correction over all comparisons in the same test.
    """

    value: float = field(metadata={"plain_name": "difference"})
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
    """Compare rankings with each other, such as attention with gradients, text by text.

    All statistics in :data:`COMPARED_STATISTICS` that the rows contain are compared. Copies of a text
    count once (:meth:`~hf_attnprobe.statistics.rows.Rows.merge_duplicates`).

    Args:
        rows: audit rows, or a data frame in long form from
            :func:`~hf_attnprobe.storage.rows.read_rows`.
        against: ranking with which every other ranking is compared; None compares all pairs.
        site: layer and head. By default, the only site in the rows; if there are several sites,
            nothing is compared.
        seed: seed for the permutation test.

    Returns:
        One comparison for each statistic and ranking pair.
    """
    comparisons: list[Comparison] = []
    rows = Rows.coerce(rows).merge_duplicates()
    for test in COMPARED_STATISTICS:
        test_rows = rows.select(lambda name, *_, test=test: name == test)
        sites = test_rows.sites if site is None else test_rows.sites & {site}
        if len(sites) == 1:
            texts = Texts.from_site(test_rows, *sites)
            pairs = _iterate_ranking_pairs(test, texts, against)
            comparisons += _compare_ranking_pairs(test, pairs, len(texts), seed)
    return tuple(comparisons)


class _RankingPair(NamedTuple):
    """Two rankings with their difference for each text.

    Attributes:
        statistic: name of the compared statistic, without a key.
        method: ``permutation``, ``mcnemar`` or ``sign``.
        first: name of the first ranking.
        second: name of the second ranking.
        differences: first value minus second value, [texts]. For ``mcnemar`` and ``sign``, it is
            positive if the first ranking wins, negative if the second ranking wins, and 0 for a tie.
    """

    statistic: str
    method: str
    first: str
    second: str
    differences: np.ndarray


def _iterate_ranking_pairs(test: str, texts: Texts, against: str | None) -> Iterator[_RankingPair]:
    """Iterate over all ranking pairs of a test, with the difference of their values for each text.

    Args:
        test: faithfulness test.
        texts: statistics of the test at one site.
        against: ranking that occurs in every pair; None for all pairs.

    Yields:
        For each compared statistic, all ranking pairs that have values.
    """

    def subtract(name: str, subtracted_name: str) -> np.ndarray:
        return texts.get_values(name) - texts.get_values(subtracted_name)

    def compare_removals(first: str, second: str) -> np.ndarray:
        """Find the ranking that flips each text's decision with fewer removals.

        Returns:
            [texts]: 1 for the first ranking, −1 for the second ranking, 0 for a tie.
        """
        # The sign is positive if the second ranking needs more removals.
        by_removals = np.sign(subtract(f"fraction_to_flip@{second}", f"fraction_to_flip@{first}"))
        # A ranking that never flips the decision counts as removing all tokens. It loses against a
        # ranking that flips the decision with the last token.
        by_flip = np.sign(subtract(f"never_flips@{second}", f"never_flips@{first}"))
        return np.where(by_removals == 0, by_flip, by_removals)

    # McNemar's test compares erasing the largest weight with erasing a random one.
    if {"top_flips", "random_flips"} <= {*texts.statistic_names}:
        yield _RankingPair(
            "flips", "mcnemar", "top", "random", subtract("top_flips", "random_flips")
        )
    for family in COMPARED_STATISTICS[test]:
        statistics = _map_rankings_to_statistics(texts, family)
        pairs = _pair_rankings(list(statistics), against)
        if family == "fraction_to_flip":
            for first, second in pairs:
                yield _RankingPair(
                    "fewer_removals", "sign", first, second, compare_removals(first, second)
                )
        for first, second in pairs:
            differences = subtract(statistics[first], statistics[second])
            yield _RankingPair(family, "permutation", first, second, differences)


def _compare_ranking_pairs(
    test: str, pairs: Iterator[_RankingPair], n_texts: int, seed: int
) -> list[Comparison]:
    """Compare all ranking pairs of a test, and correct their p-values by Holm's method.

    Pairs are processed in chunks, to limit the memory.

    Args:
        test: faithfulness test.
        pairs: ranking pairs with their difference for each text.
        n_texts: number of texts.
        seed: seed for the permutation test. All chunks use the same random signs.

    Returns:
        One comparison for each pair that has a value.
    """
    comparisons: list[Comparison] = []
    chunk_size = max(1, VALUES_PER_CHUNK // max(1, n_texts))
    while chunk := list(itertools.islice(pairs, chunk_size)):
        measured_pairs = [pair for pair in chunk if not np.isnan(pair.differences).all()]
        if measured_pairs:
            comparisons += _compare_chunk(test, measured_pairs, seed)
        # The memory is released before the next chunk is read.
        del chunk, measured_pairs
    adjusted_p_values = correct_by_holm([comparison.p_value for comparison in comparisons])
    return [
        replace(comparison, adjusted_p_value=p_value)
        for comparison, p_value in zip(comparisons, adjusted_p_values, strict=True)
    ]


def _compare_chunk(test: str, pairs: Sequence[_RankingPair], seed: int) -> list[Comparison]:
    """Compute the mean difference, its confidence interval and a p-value for each ranking pair.

    The p-value comes from a permutation test or from an exact sign test, depending on the method of
    the pair. It is not yet corrected for multiple comparisons.
    """
    differences = np.stack([pair.differences for pair in pairs], axis=1)
    estimates = estimate_means(differences)
    permutation_columns = [
        column for column, pair in enumerate(pairs) if pair.method == "permutation"
    ]
    sign_flip_p_values = compute_sign_flip_p_values(
        differences[:, permutation_columns], seed=seed
    ).tolist()
    p_values = dict(zip(permutation_columns, sign_flip_p_values, strict=True))
    comparisons = []
    for column, (pair, estimate) in enumerate(zip(pairs, estimates, strict=True)):
        n_first = n_second = None
        if column not in p_values:
            # If copies of a text were merged, a difference can be between −1 and 1.
            n_first = int((pair.differences > 0).sum())
            n_second = int((pair.differences < 0).sum())
            p_values[column] = compute_sign_test_p_value(n_first, n_second)
        comparison = Comparison(
            **vars(estimate),
            test=test,
            statistic=pair.statistic,
            method=pair.method,
            first=pair.first,
            second=pair.second,
            dropped=len(differences) - (estimate.n or 0),
            n_first=n_first,
            n_second=n_second,
            p_value=p_values[column],
        )
        comparisons.append(comparison)
    return comparisons


def compute_sign_test_p_value(n_first: int, n_second: int) -> float:
    """Compute the two-sided p-value of the exact sign test.

    The null hypothesis is that each of two rankings wins a text with a probability of one half.
    For example, if one ranking wins 9 of 10 texts, the p-value is 0.02.

    Args:
        n_first: number of texts that the first ranking wins.
        n_second: number of texts that the second ranking wins.
    """
    n_texts = n_first + n_second
    # Probability of at most this many wins under the null hypothesis (binomial distribution).
    one_sided_p_value = bdtr(min(n_first, n_second), n_texts, 0.5)
    return min(1.0, 2 * float(one_sided_p_value))


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons by Holm's step-down procedure.

    Args:
        p_values: p-values of all comparisons.

    Returns:
        Corrected p-values in [0, 1], in the same order.

    >>> [round(p, 3) for p in correct_by_holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    # The smallest of m p-values is multiplied by m, the next one by m − 1, and so on. The running
    # maximum keeps the corrected values in the same order.
    order = np.argsort(p, kind="stable")
    n_remaining = np.arange(len(p), 0, -1)
    sorted_corrected = np.maximum.accumulate(p[order] * n_remaining)
    corrected = np.empty_like(p)
    corrected[order] = sorted_corrected.clip(max=1)
    return corrected.tolist()


def compute_sign_flip_p_values(
    differences: np.ndarray,
    *,
    seed: int = 0,
    n_permutations: int = N_PERMUTATIONS,
) -> np.ndarray:
    """Test for each column whether its mean is 0, with a sign-flip permutation test.

    For more than ``MAX_RESAMPLED_TEXTS`` texts, no signs are drawn. The sum with random signs is then
    nearly normally distributed, with mean 0 and variance Σ value².

    Args:
        differences: [texts, columns]; NaN for a text without a value.
        seed: seed for the random signs; all columns use the same signs.
        n_permutations: number of random sign combinations. If there are no more combinations
            than this, all of them are tried.

    Returns:
        Two-sided p-values, [columns].
    """
    n_texts = len(differences)
    if n_texts > MAX_RESAMPLED_TEXTS:
        moments = compute_moments(differences)
        sums = moments.n * moments.mean
        standard_deviation = np.sqrt(moments.m2 + moments.n * moments.mean**2)
        z_scores = np.divide(sums, standard_deviation, out=0 * sums, where=standard_deviation > 0)
        return 2 * ndtr(-np.abs(z_scores))

    values = np.nan_to_num(differences)
    sums = values.sum(0)
    # A flipped sum that equals the observed one up to rounding counts as extreme.
    rounding = 1e-12 * np.abs(values).sum(0)
    threshold = np.abs(sums) - rounding
    is_exact = n_texts <= np.log2(n_permutations)
    chunks = _draw_sign_flips(n_texts, n_permutations, seed)
    if is_exact:
        all_flips = [*itertools.product((0.0, 1.0), repeat=n_texts)]
        chunks = iter([np.array(all_flips).reshape(-1, n_texts)])
    n_extreme = np.zeros(values.shape[1])
    n_tried = 0
    for flips in chunks:
        flipped_sums = np.abs(sums - 2 * (flips @ values))
        n_extreme += (flipped_sums >= threshold).sum(0)
        n_tried += len(flips)
    return n_extreme / n_tried if is_exact else (n_extreme + 1) / (n_tried + 1)


def _draw_sign_flips(n: int, n_permutations: int, seed: int) -> Iterator[np.ndarray]:
    """Draw at random which texts change their sign in each permutation of a permutation test.

    The draws are returned in chunks, to limit the memory.

    Args:
        n: number of texts.
        n_permutations: number of permutations, each with random signs for all texts.
        seed: random seed.

    Yields:
        Chunks, [permutations, texts]: 1 if the sign of a text is flipped, otherwise 0.
    """
    generator = np.random.default_rng(seed)
    max_chunk_size = max(1, VALUES_PER_CHUNK // n)
    for start in range(0, n_permutations, max_chunk_size):
        chunk_size = min(max_chunk_size, n_permutations - start)
        flips = generator.integers(0, 2, (chunk_size, n), dtype=np.int8)
        yield flips.astype(np.float64)


def _map_rankings_to_statistics(texts: Texts, family: str) -> dict[str, str]:
    """Find the rankings for which a statistic was measured, sorted as in report tables.

    Single random orders are left out, because the ranking ``random`` is their mean.

    Args:
        texts: statistics at one site.
        family: statistic name without a key, such as ``regret``.

    Returns:
        Full statistic names such as ``regret@attention``, keyed by ranking.
    """
    statistics = {}
    for name in sorted(texts.statistic_names, key=get_sort_key):
        statistic_family, _, ranking = name.partition("@")
        if statistic_family == family and not ranking.startswith("random_"):
            statistics[ranking] = name
    return statistics


def _pair_rankings(rankings: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    """List the pairs of rankings to compare.

    Args:
        rankings: names of the rankings.
        against: ranking that is paired with every other ranking. None lists all pairs.

    Returns:
        Pairs of names; empty if ``against`` is not in ``rankings``.
    """
    if against is None:
        return list(itertools.combinations(rankings, 2))
    if against not in rankings:
        return []
    return [(against, ranking) for ranking in rankings if ranking != against]
