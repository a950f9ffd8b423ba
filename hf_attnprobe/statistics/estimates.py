"""Estimates over texts with confidence intervals: means, shares, and many means at once.

Many statistics are skewed. For example, the output change is 0 for most texts and large for a few texts.
Symmetric intervals and bootstrap percentiles then miss the true mean too often (see
``docs/verdicts.md``). The interval for a mean is therefore computed with a method by Hall (1992, "On the
removal of skewness by transformation"). It applies a cubic function to the t statistic, which removes most
of the skewness. The ends of the interval then follow from Student's t distribution. This method does not
need random resamples.

For a share, each text has the value 0 or 1. Its interval is exact, and has a positive width even if all
values are equal. Scores that are not means have percentile bootstrap intervals over texts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri, stdtrit

from hf_attnprobe.core import formatting as markdown


MIN_DISPLAYED_TEXTS = 10
"""Smallest number of texts for which reports display a mean, a confidence interval or a chart."""


@dataclass(frozen=True)
class StatisticKey:
    """Key that identifies one reported number: test, statistic, layer, head and text group.

    Attributes:
        test: name of the faithfulness test.
        statistic: statistic name, or ``name@key`` with a number or a ranking as the key.
        layer: layer index, from 0; a negative number stands for several layers.
        head: head index, from 0; a negative number stands for several heads. Layer −1 with head
            −1 is the model's whole attention.
        group: ``all`` texts, or the name of a predicted class.
    """

    test: str
    statistic: str
    layer: int
    head: int
    group: str

    @property
    def column(self) -> tuple[str, str, int, int]:
        """Test, statistic, layer and head, which identify a column in :class:`Rows`."""
        return self.test, self.statistic, self.layer, self.head

    @property
    def site(self) -> tuple[int, int]:
        """Layer and head as a pair."""
        return self.layer, self.head

    @property
    def is_single_head(self) -> bool:
        """Whether the site is a single head and not a group of heads."""
        return min(self.site) >= 0


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval over texts: a mean, a difference, or a score.

    Attributes:
        value: the number; NaN if no text has a value.
        ci95: 95% confidence interval over texts; None if there is none.
        n: number of texts with a value; None if unknown.
    """

    value: float
    ci95: tuple[float, float] | None = None
    n: int | None = None

    @property
    def interval_text(self) -> str:
        """Number and interval with two decimals, such as "0.80 [0.75, 0.85]"."""
        return markdown.format_interval(self.value, self.ci95, digits=2)

    @property
    def plain_estimate(self) -> "Estimate":
        """This estimate without the fields that a subclass adds."""
        return Estimate(self.value, self.ci95, self.n)


# --- Shares of texts --------------------------------------------------------------------------


CONFIDENCE_LEVEL = 0.95
"""Default probability with which a confidence interval covers the true value."""


def compute_sidak_critical_value(n: int) -> float:
    """Compute how wide n confidence intervals must be to hold simultaneously (Šidák 1967).

    If the means are independent, n intervals of this width cover all true means with 95%
    probability.

    Args:
        n: number of intervals.

    Returns:
        Half-width of each interval in standard errors, such as 1.96 for a single interval.
    """
    # Each interval must cover its mean with this probability, since level ** n is 95%.
    level = CONFIDENCE_LEVEL ** (1 / n)
    # The probability outside of the interval is split between both sides.
    return float(ndtri((1 + level) / 2))


SINGLE_CRITICAL_VALUE = compute_sidak_critical_value(1)
"""Critical value for a single 95% confidence interval: a half-width of 1.96 standard errors."""


def compute_share_interval(
    hits: np.ndarray, n: np.ndarray, *, level: float = CONFIDENCE_LEVEL
) -> np.ndarray:
    """Compute exact confidence intervals for the share of texts in which an event occurs.

    The Clopper-Pearson interval (1934) covers the true share with a probability of at least
    ``level``, even if the event occurs in none or all of the texts.

    Args:
        hits: number of texts in which the event occurs, any shape.
        n: number of texts, same shape.
        level: confidence level.

    Returns:
        Low and high ends, [2, ...]; NaN if n is 0.

    >>> compute_share_interval(np.array(0), np.array(249)).round(4).tolist()
    [0.0, 0.0147]
    """
    hits = np.asarray(hits, dtype=np.float64)
    n = np.asarray(n, dtype=np.float64)
    misses = n - hits
    # Probability outside of the interval, on each side.
    tail = (1 - level) / 2
    # Both ends are quantiles of beta distributions.
    low = betaincinv(hits, misses + 1, tail)
    high = betaincinv(hits + 1, misses, 1 - tail)
    # The quantiles are undefined for 0 hits and for 0 misses.
    low = np.where(hits > 0, low, 0.0)
    high = np.where(hits < n, high, 1.0)
    interval = np.stack([low, high])
    return np.where(n > 0, interval, np.nan)


def compute_paired_share_interval(
    differences: np.ndarray, *, critical_value: float = SINGLE_CRITICAL_VALUE
) -> np.ndarray:
    """Compute 95% confidence intervals for the difference between two shares of the same texts.

    Bonet & Price (2012) add one text in which only the first event occurs, and one in which only
    the second event occurs. The interval then has a positive width even if all pairs agree.

    Args:
        differences: first value minus second value, [texts, columns], each 1, 0 or −1; NaN for
            a text without both values.
        critical_value: half-width in standard errors. Use a larger value than 1.96 for
            simultaneous intervals.

    Returns:
        Low and high ends, [2, columns]; NaN for a column without pairs.

    >>> compute_paired_share_interval(np.zeros((249, 1))).round(3).flatten().tolist()
    [-0.011, 0.011]
    """
    is_pair = ~np.isnan(differences)
    n = is_pair.sum(0)
    n_only_first = (differences == 1).sum(0)
    n_only_second = (differences == -1).sum(0)

    n_with_added_texts = n + 2
    first_share = (n_only_first + 1) / n_with_added_texts
    second_share = (n_only_second + 1) / n_with_added_texts
    center = first_share - second_share
    variance = (first_share + second_share - center**2) / n_with_added_texts
    half_width = critical_value * np.sqrt(variance)
    interval = np.stack([center - half_width, center + half_width]).clip(-1, 1)
    return np.where(n > 0, interval, np.nan)


def compute_share_difference_interval(
    values: np.ndarray,
    other_values: np.ndarray,
    *,
    critical_value: float = SINGLE_CRITICAL_VALUE,
) -> np.ndarray:
    """Compute 95% confidence intervals for the difference between shares in two text samples.

    Agresti & Caffo (2000) add one hit and one miss to each sample. The interval then has a
    positive width even if both shares are 0 or 1.

    Args:
        values: values in the first sample, [texts, columns], each 0 or 1; NaN for a text
            without a value.
        other_values: values in the second sample, whose share is subtracted, [texts, columns].
        critical_value: half-width in standard errors. Use a larger value than 1.96 for
            simultaneous intervals.

    Returns:
        Low and high ends, [2, columns].

    >>> ones = np.ones((8, 1))
    >>> compute_share_difference_interval(ones, ones).round(2).tolist()
    [[-0.26], [0.26]]
    """
    shares, variances = [], []
    for sample in (values, other_values):
        has_value = ~np.isnan(sample)
        n = has_value.sum(0) + 2
        hits = np.nansum(sample, 0) + 1
        share = hits / n
        shares.append(share)
        variances.append(share * (1 - share) / n)
    center = shares[0] - shares[1]
    standard_error = np.sqrt(variances[0] + variances[1])
    half_width = critical_value * standard_error
    return np.stack([center - half_width, center + half_width]).clip(-1, 1)


def find_binary_columns(values: np.ndarray) -> np.ndarray:
    """Find the columns in which every defined value is 0 or 1.

    Args:
        values: [texts, columns]; NaN for a text without a value.

    Returns:
        bool [columns]; False for a column without any value.
    """
    has_value = ~np.isnan(values)
    is_binary = (values == 0) | (values == 1) | ~has_value
    return is_binary.all(0) & has_value.any(0)


# --- Means ------------------------------------------------------------------------------------


N_RESAMPLES = 1000
"""Default number of bootstrap resamples for a confidence interval."""
MAX_RESAMPLED_TEXTS = 20_000
"""Largest number of texts from which random resamples are drawn.

With more texts, confidence intervals and p-values are computed from a normal distribution instead.
"""


@dataclass(frozen=True)
class Moments:
    """Moments of each column, from which confidence intervals are computed; arrays [columns].

    Attributes:
        n: number of texts with a value.
        mean: mean over these texts; 0 if there are none.
        m2: Σ (value − mean)².
        m3: Σ (value − mean)³.
        low: smallest value.
        high: largest value.
    """

    n: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    low: np.ndarray
    high: np.ndarray


def compute_moments(values: np.ndarray) -> Moments:
    """Compute the mean and range of each column, and the sums from which intervals are computed.

    These are the sums of the squared and of the cubed deviations from the mean. The values are
    read in two passes: the first gives the means, the second gives the deviations.

    Args:
        values: [texts, columns]; NaN for a text without a value.

    Returns:
        The moments, each [columns].
    """
    n_columns = values.shape[1]
    n, total, m2, m3 = np.zeros((4, n_columns))
    low = np.full(n_columns, np.inf)
    high = np.full(n_columns, -np.inf)
    # Infinite values are allowed and would cause warnings.
    with np.errstate(invalid="ignore", over="ignore"):
        for chunk in _iterate_chunks(values):
            # The functions nansum and fmin ignore NaN.
            has_value = ~np.isnan(chunk)
            n += has_value.sum(0)
            total += np.nansum(chunk, axis=0)
            low = np.fmin(low, np.fmin.reduce(chunk))
            high = np.fmax(high, np.fmax.reduce(chunk))
        mean = total / np.maximum(n, 1)
        for chunk in _iterate_chunks(values):
            centred = np.where(np.isnan(chunk), 0.0, chunk - mean)
            squares = centred**2
            m2 = m2 + squares.sum(0)
            m3 = m3 + (squares * centred).sum(0)
    return Moments(n.astype(int), mean, m2, m3, low, high)


TEXTS_PER_CHUNK = 2**14
"""Number of texts per chunk. Sums over many texts are computed in chunks, to limit the memory."""


def _iterate_chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    """Split an array [texts, ...] into chunks with at most :data:`TEXTS_PER_CHUNK` texts."""
    for start in range(0, len(values), TEXTS_PER_CHUNK):
        yield values[start : start + TEXTS_PER_CHUNK]


def compute_mean_interval(
    values: np.ndarray, *, critical_value: float = SINGLE_CRITICAL_VALUE
) -> np.ndarray:
    """Compute a 95% confidence interval for the mean of each column.

    Args:
        values: [texts, columns]; NaN for a text without a value.
        critical_value: half-width of the interval in standard errors, for a normally distributed
            mean. Use a larger value than 1.96 for simultaneous intervals.

    Returns:
        Low and high ends, [2, columns]; NaN for a column without values.

    >>> compute_mean_interval(np.arange(30.0)[:, None] ** 2).round(1).flatten().tolist()
    [194.4, 394.3]
    """
    return compute_interval_from_moments(compute_moments(values), critical_value=critical_value)


def compute_interval_from_moments(
    moments: Moments, *, critical_value: float = SINGLE_CRITICAL_VALUE
) -> np.ndarray:
    """Compute a 95% confidence interval for the mean of each column.

    Each interval is clipped to the smallest and largest observed value. Intervals for shares and
    correlations therefore stay within their possible range. If all texts have the same value, the
    interval is this single value.

    Args:
        moments: mean, range and moments of the columns, from :func:`compute_moments`.
        critical_value: half-width of the interval in standard errors, for a normally distributed
            mean. Use a larger value than 1.96 for simultaneous intervals.

    Returns:
        Low and high ends, [2, columns]; NaN for a column without values.
    """
    standard_error = np.sqrt(_compute_variance_of_mean(moments))
    skewness = _compute_skewness(moments.m2, moments.m3)
    degrees_of_freedom = _clamp_to_one(moments.n - 1)
    ends = _compute_hall_interval(
        moments.mean, standard_error, skewness, degrees_of_freedom, critical_value
    )
    return np.where(moments.n > 0, ends.clip(moments.low, moments.high), np.nan)


def compute_difference_interval(
    moments: Moments, other: Moments, *, critical_value: float = SINGLE_CRITICAL_VALUE
) -> np.ndarray:
    """Compute 95% confidence intervals for the difference between two sample means.

    The degrees of freedom follow Welch (1947).

    Args:
        moments: moments of the first sample, each [columns].
        other: moments of the second sample, whose mean is subtracted.
        critical_value: half-width of the interval in standard errors, for a normally distributed
            mean. Use a larger value than 1.96 for simultaneous intervals.

    Returns:
        Low and high ends, [2, columns]; NaN if one sample has no values.
    """
    variance = _compute_variance_of_mean(moments)
    other_variance = _compute_variance_of_mean(other)
    total_variance = variance + other_variance
    # If neither sample varies, there is one degree of freedom.
    welch_divisor = variance**2 / _clamp_to_one(moments.n - 1)
    welch_divisor += other_variance**2 / _clamp_to_one(other.n - 1)
    degrees_of_freedom = np.ones_like(total_variance)
    np.divide(total_variance**2, welch_divisor, out=degrees_of_freedom, where=welch_divisor > 0)

    # The moments of a difference are sums of the moments of both means. The third moment of the
    # subtracted mean has a negative sign.
    n = _clamp_to_one(moments.n)
    other_n = _clamp_to_one(other.n)
    m2 = moments.m2 / n**2
    m2 = m2 + other.m2 / other_n**2
    m3 = moments.m3 / n**3
    m3 = m3 - other.m3 / other_n**3
    skewness = _compute_skewness(m2, m3)

    difference = moments.mean - other.mean
    ends = _compute_hall_interval(
        difference, np.sqrt(total_variance), skewness, degrees_of_freedom, critical_value
    )
    ends = ends.clip(moments.low - other.high, moments.high - other.low)
    has_values = (moments.n > 0) & (other.n > 0)
    return np.where(has_values, ends, np.nan)


def _compute_variance_of_mean(moments: Moments) -> np.ndarray:
    """Compute the squared standard error of each mean, [columns]."""
    return moments.m2 / _clamp_to_one(moments.n) / _clamp_to_one(moments.n - 1)


def _clamp_to_one(n: np.ndarray) -> np.ndarray:
    """Replace text counts below 1 by 1, to avoid a division by 0.

    The callers replace the results for columns without texts by NaN.
    """
    return np.maximum(n, 1)


def _compute_skewness(m2: np.ndarray, m3: np.ndarray) -> np.ndarray:
    """Compute how asymmetric the sampling distribution of each column's mean is (its skewness).

    The skewness of n values is (m3 / n) / (m2 / n)^1.5, which equals √n · m3 / m2^1.5. The skewness
    of their mean is smaller by the factor √n, so it equals m3 / m2^1.5.

    Args:
        m2: sum of the squared deviations from the mean, [columns].
        m3: sum of the cubed deviations from the mean, [columns].

    Returns:
        Skewness, [columns]; 0 for a column whose values are all equal.
    """
    with np.errstate(over="ignore"):
        divisor = m2**1.5
    # If all values are equal, the divisor is 0 and the result stays 0.
    return np.divide(m3, divisor, out=np.zeros_like(divisor), where=divisor > 0)


def _compute_hall_interval(
    mean: np.ndarray,
    standard_error: np.ndarray,
    skewness: np.ndarray,
    degrees_of_freedom: np.ndarray,
    critical_value: float,
) -> np.ndarray:
    """Compute confidence intervals for means of skewed values by Hall's method (1992).

    The usual interval is mean ± s · standard error, with the quantile s of Student's t
    distribution. Hall replaces ± s by the solutions t of t + λt²/3 + λ²t³/27 + λ/6 = ± s, with the
    skewness λ. If λ is 0, the solutions are ± s.

    The method is only accurate for 95% intervals. A wider interval is therefore computed in two
    steps: first the 95% interval, and then both of its sides are stretched by the same factor.

    Args:
        mean: means, [columns].
        standard_error: standard errors of the means, [columns].
        skewness: skewness of the means, [columns].
        degrees_of_freedom: number of texts minus 1, [columns].
        critical_value: half-width of the interval in standard errors; 1.96 gives 95% intervals.

    Returns:
        Low and high ends, [2, columns].
    """
    quantile = stdtrit(degrees_of_freedom, ndtr(SINGLE_CRITICAL_VALUE))
    requested_quantile = stdtrit(degrees_of_freedom, ndtr(critical_value))
    # For 95% intervals, both quantiles are equal.
    stretched_error = standard_error * requested_quantile / quantile
    ends = []
    for signed_quantile in (quantile, -quantile):
        shifted_quantile = signed_quantile - skewness / 6
        root = np.cbrt(1 + skewness * shifted_quantile)
        # The solution is t = 3 (root − 1) / λ, in a form that loses no digits for small λ.
        offset = stretched_error * 3 * shifted_quantile / (root**2 + root + 1)
        ends.append(mean - offset)
    return np.stack(ends)


def draw_resample_counts(
    n_texts: int,
    *,
    n: int | None = None,
    seed: int | Sequence[int] = 0,
    n_resamples: int = N_RESAMPLES,
) -> np.ndarray:
    """Draw bootstrap resamples: texts are drawn at random with replacement (Efron 1979).

    A resample is represented by counts, which state how often each text is drawn. A matrix product
    of counts and values gives the sum over each resample.

    Args:
        n_texts: number of texts to draw from.
        n: resample size; by default ``n_texts``.
        seed: random seed.
        n_resamples: number of resamples.

    Returns:
        float64 [resamples, texts]; every row sums to ``n``.
    """
    generator = np.random.default_rng(seed)
    probabilities = np.full(n_texts, 1 / n_texts)
    counts = generator.multinomial(n or n_texts, probabilities, size=n_resamples)
    return counts.astype(np.float64)


def compute_percentile_interval(resampled_values: np.ndarray) -> tuple[float, float]:
    """Compute the 95% percentile bootstrap interval for a statistic.

    Args:
        resampled_values: value of the statistic on each resample, [resamples]; NaN if undefined.

    Returns:
        Low and high end; NaN if the statistic is undefined on all resamples.
    """
    defined_values = resampled_values[~np.isnan(resampled_values)]
    if not len(defined_values):
        return float("nan"), float("nan")
    low, high = np.percentile(defined_values, [2.5, 97.5])
    return float(low), float(high)


def compute_means_and_intervals(
    values: np.ndarray, is_share: np.ndarray
) -> tuple[Moments, np.ndarray]:
    """Compute the moments of each column and a 95% confidence interval for its mean.

    Args:
        values: [texts, columns]; NaN for a text without a value.
        is_share: whether a column's mean is a share, bool [columns]. If all values in such a
            column are 0 or 1, its interval is exact.

    Returns:
        Moments, and low and high interval ends, [2, columns].
    """
    moments = compute_moments(values)
    ends = compute_interval_from_moments(moments)
    # The intervals for shares are replaced by exact intervals.
    is_exact = find_binary_columns(values) & is_share
    # The mean of zeros and ones, times their number, is the number of ones.
    hits = (moments.n * moments.mean)[is_exact].round()
    ends[:, is_exact] = compute_share_interval(hits, moments.n[is_exact])
    return moments, ends


def estimate_means(values: np.ndarray, *, share: bool = False) -> list[Estimate]:
    """Estimate the mean of each column, with a 95% confidence interval.

    Args:
        values: [texts, columns]; NaN for a text without a value.
        share: whether the means are shares. Columns that only contain 0 and 1 then get exact
            intervals.

    Returns:
        One estimate per column, without an interval if no text has a value.
    """
    moments, ends = compute_means_and_intervals(values, np.full(values.shape[1], share))
    estimates = []
    for mean, n, (low, high) in zip(
        moments.mean.tolist(), moments.n.tolist(), ends.T.tolist(), strict=True
    ):
        if n:
            estimates.append(Estimate(mean, (low, high), n))
        else:
            estimates.append(Estimate(float("nan"), None, 0))
    return estimates


def estimate_function_of_means(
    columns: Sequence[np.ndarray], function: Callable[[np.ndarray], np.ndarray]
) -> Estimate:
    """Estimate a function of several means, such as a ratio, with a confidence interval.

    The jackknife computes one pseudo-value per text, which shows how much the result depends on
    this text. Their mean has a confidence interval; see :func:`compute_pseudo_values`.

    Args:
        columns: values of each statistic, [texts]. Texts with NaN in any column are ignored.
        function: function that computes numbers, [...], from means, [..., columns]. It returns
            NaN if the number is undefined.

    Returns:
        The estimate. Its n is 0 if no text has all values, or if the function is undefined.
    """
    value, pseudo_values = compute_pseudo_values(columns, function)
    n = len(pseudo_values)
    if not n or np.isnan(value):
        return Estimate(value, None, 0)
    if not np.isfinite(pseudo_values).all():
        return Estimate(value, None, n)
    # The pseudo-values are the only column, so the result has a single interval.
    low, high = compute_mean_interval(pseudo_values[:, None])[:, 0].tolist()
    # The interval must contain the estimate.
    return Estimate(value, (min(low, value), max(high, value)), n)


def compute_pseudo_values(
    columns: Sequence[np.ndarray], function: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, np.ndarray]:
    """Compute a function of several means, and how much each text contributes to its value.

    The contributions are jackknife pseudo-values (Miller 1974, "The jackknife"). With n texts and
    the value f, the pseudo-value of a text is n·f − (n − 1)·f(without the text). The mean of all
    pseudo-values is f with a correction for bias.

    Args:
        columns: values of each statistic, [texts]. Texts with NaN in any column are ignored.
        function: function that computes numbers, [...], from means, [..., columns]. It returns
            NaN if the number is undefined.

    Returns:
        The function value, and one pseudo-value for each text that has all values.
    """
    n = 0
    total = np.zeros(len(columns))
    for chunk in _iterate_complete_texts(columns):
        n += len(chunk)
        total = total + chunk.sum(0)
    if not n:
        return float("nan"), np.empty(0)

    mean = total / n
    value = float(function(mean))
    pseudo_values = np.full(n, np.nan)
    if n == 1:
        return value, pseudo_values
    start = 0
    for chunk in _iterate_complete_texts(columns):
        values_without_text = function((n * mean - chunk) / (n - 1))
        end = start + len(chunk)
        pseudo_values[start:end] = n * value - (n - 1) * values_without_text
        start = end
    return value, pseudo_values


def _iterate_complete_texts(columns: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the values of all texts that have a value in every column.

    Args:
        columns: values of each statistic, [texts].

    Yields:
        Chunks with the values of these texts, [texts, columns].
    """
    chunk_iterators = [_iterate_chunks(column) for column in columns]
    for column_chunks in zip(*chunk_iterators, strict=True):
        values = np.stack(column_chunks, axis=1)
        is_complete = ~np.isnan(values).any(1)
        yield values[is_complete]


def estimate_mean(values: np.ndarray, *, share: bool = False) -> Estimate:
    """Estimate a mean over texts, with a 95% confidence interval.

    Args:
        values: [texts]; texts with NaN are ignored.
        share: whether the mean is a share. If all values are 0 or 1, the interval is then exact.

    Returns:
        The mean, its interval, and the number of texts with a value.
    """
    column = np.asarray(values, dtype=np.float64)[:, None]
    return estimate_means(column, share=share)[0]


# --- Many means at once -----------------------------------------------------------------------


N_BOOTSTRAP_DRAWS = 2000
"""Default number of bootstrap draws for simultaneous confidence intervals.

The draws determine how wide the intervals must be to cover all true means at once.
"""
BOOTSTRAP_DRAWS_PER_CHUNK = 250
"""Number of bootstrap draws per chunk. The draws are computed in chunks, to limit the memory."""


def compute_simultaneous_interval(
    values: np.ndarray,
    *,
    seed: int = 0,
    n_draws: int = N_BOOTSTRAP_DRAWS,
    detect_shares: bool = True,
) -> np.ndarray:
    """Compute simultaneous 95% confidence intervals for the means of all columns.

    With 95% probability, all intervals cover their true means at once.

    Args:
        values: [texts, columns]; NaN for a text without a value.
        seed: random seed.
        n_draws: number of random draws; see :func:`estimate_critical_value`.
        detect_shares: whether a column that only contains 0 and 1 is treated as a share of texts,
            which gets an exact interval.

    Returns:
        Low and high ends, [2, columns]; NaN for a column with fewer than two texts.
    """
    critical_value = estimate_critical_value(values, seed=seed, n_draws=n_draws)
    return compute_interval_at_critical_value(values, critical_value, detect_shares=detect_shares)


def compute_interval_at_critical_value(
    values: np.ndarray, critical_value: float, *, detect_shares: bool = True
) -> np.ndarray:
    """Compute a confidence interval for each column's mean, with a given width.

    Args:
        values: [texts, columns]; NaN for a text without a value.
        critical_value: half-width of the interval in standard errors, for a normally distributed
            mean.
        detect_shares: whether a column that only contains 0 and 1 is treated as a share of texts,
            which gets an exact interval.

    Returns:
        Low and high ends, [2, columns]; NaN for a column with fewer than two texts.
    """
    n = (~np.isnan(values)).sum(0)
    has_two_texts = n >= 2
    intervals = compute_mean_interval(values, critical_value=critical_value)
    intervals = np.where(has_two_texts, intervals, np.nan)
    is_share = has_two_texts & find_binary_columns(values) & detect_shares
    hits = np.nansum(values[:, is_share], 0)
    # Confidence level of an interval with this half-width, such as 0.95 for 1.96.
    level = 2 * float(ndtr(critical_value)) - 1
    intervals[:, is_share] = compute_share_interval(hits, n[is_share], level=level)
    return intervals


def estimate_critical_value(
    values: np.ndarray, *, seed: int = 0, n_draws: int = N_BOOTSTRAP_DRAWS
) -> float:
    """Estimate the critical value for simultaneous 95% confidence intervals.

    A multiplier bootstrap draws random weights for the texts. In each draw, the largest deviation
    of any column mean is recorded in standard errors. The critical value is the 95% quantile of
    these deviations. It must lie between 1.96, the value for a single column, and the value for
    independent columns (Šidák's inequality), so the estimate is clipped to this range.

    Args:
        values: [texts, columns]; NaN for a text without a value.
        seed: random seed.
        n_draws: number of draws.

    Returns:
        Half-width of the simultaneous intervals, in standard errors.
    """
    moments = compute_moments(values)
    is_varying = moments.low < moments.high
    n_columns = int(is_varying.sum())
    if n_columns < 2:
        return SINGLE_CRITICAL_VALUE
    centred = np.nan_to_num((values - moments.mean)[:, is_varying])
    centred = centred / np.sqrt(moments.m2[is_varying])
    generator = np.random.default_rng(seed)
    if len(values) > MAX_RESAMPLED_TEXTS:
        # The distribution of the means only depends on their covariance matrix, so its square
        # root replaces the rows for the texts.
        eigenvalues, eigenvectors = np.linalg.eigh(centred.T @ centred)
        centred = (eigenvectors * np.sqrt(eigenvalues.clip(0))).T
    largest_deviations = []
    for start in range(0, n_draws, BOOTSTRAP_DRAWS_PER_CHUNK):
        chunk_size = min(BOOTSTRAP_DRAWS_PER_CHUNK, n_draws - start)
        weights = generator.standard_normal((chunk_size, len(centred)))
        largest_deviations.append(np.abs(weights @ centred).max(1))
    quantile = np.quantile(np.concatenate(largest_deviations), CONFIDENCE_LEVEL)
    upper_bound = compute_sidak_critical_value(n_columns)
    return float(np.clip(quantile, SINGLE_CRITICAL_VALUE, upper_bound))
