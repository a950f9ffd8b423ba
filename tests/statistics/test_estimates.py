"""Intervals of means against SciPy's, and against Hall's cubic written out."""

import numpy as np
import pytest
import scipy.stats

from hf_attnprobe.statistics.estimates import (
    compute_difference_interval,
    compute_interval_from_moments,
    compute_mean_interval,
    compute_moments,
    estimate_mean,
    estimate_means,
)


def symmetric(n, seed=0):
    half = np.random.default_rng(seed).standard_normal((n // 2, 1))
    return np.concatenate([half, -half]) + 3


def test_without_skewness_it_is_students_t():
    values = symmetric(40)
    expected = scipy.stats.ttest_1samp(values[:, 0], 0).confidence_interval()
    assert compute_mean_interval(values)[:, 0] == pytest.approx(tuple(expected))
    other = symmetric(90, seed=1) * 2
    found = compute_difference_interval(compute_moments(values), compute_moments(other))[:, 0]
    of_scipy = scipy.stats.ttest_ind(values[:, 0], other[:, 0], equal_var=False)
    assert found == pytest.approx(tuple(of_scipy.confidence_interval()))


def test_the_ends_solve_halls_cubic():
    values = np.random.default_rng(0).lognormal(size=60)
    skewness = scipy.stats.skew(values) / np.sqrt(60)
    error = scipy.stats.sem(values)
    for end, step in zip(compute_mean_interval(values[:, None])[:, 0], (1, -1), strict=True):
        t = (values.mean() - end) / error
        bent = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6
        assert bent == pytest.approx(step * scipy.stats.t.ppf(0.975, 59))


def test_it_stays_within_the_texts():
    values = np.zeros((30, 1))
    values[0] = 1
    (low,), (high,) = compute_mean_interval(values)
    assert low == 0 and 0.1 < high < 1
    for n in (1, 2, 3):
        few = np.arange(n, dtype=float)[:, None]
        assert compute_mean_interval(few)[:, 0].tolist() == [0, n - 1]
    assert compute_mean_interval(np.full((9, 1), 0.1))[:, 0].tolist() == [0.1, 0.1]
    assert np.isnan(compute_mean_interval(np.full((4, 2), np.nan))).all()


def test_texts_without_a_value_and_the_order_of_texts_do_not_matter():
    rng = np.random.default_rng(2)
    values = rng.exponential(size=(40, 3))
    padded = np.concatenate([values, np.full((5, 3), np.nan)])
    expected = compute_mean_interval(values)
    np.testing.assert_allclose(compute_mean_interval(padded), expected, rtol=1e-12)
    shuffled = rng.permutation(padded)
    np.testing.assert_allclose(compute_mean_interval(shuffled), expected, rtol=1e-12)
    alone = estimate_mean(values[:, 1])
    assert estimate_means(values)[1].ci95 == pytest.approx(alone.ci95, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-90, 1e-9, 1e9, 1e99])
def test_the_unit_does_not_matter(scale):
    values = np.random.default_rng(3).exponential(size=(40, 1))
    np.testing.assert_allclose(
        compute_mean_interval(values * scale), compute_mean_interval(values) * scale, rtol=1e-9
    )


def test_more_at_once_are_wider():
    of = compute_moments(np.random.default_rng(4).exponential(size=(40, 2)))
    low, high = compute_interval_from_moments(of)
    wider = compute_interval_from_moments(of, critical_value=3.0)
    assert (wider[0] < low).all() and (wider[1] > high).all()
