"""Intervals of many means at once: what they must cover, and where they must agree with the textbook."""

import numpy as np
import pytest
import scipy.stats

from hf_attnprobe.statistics.estimates import (
    SINGLE_CRITICAL_VALUE,
    compute_mean_interval,
    compute_simultaneous_interval,
    estimate_critical_value,
)


@pytest.mark.parametrize("n_columns", [1, 2, 30])
def test_they_contain_each_ones_own(n_columns):
    rng = np.random.default_rng(n_columns)
    values = rng.lognormal(size=(50, n_columns))
    low, high = compute_simultaneous_interval(values)
    alone = compute_mean_interval(values)
    assert (low <= alone[0]).all() and (high >= alone[1]).all()
    if n_columns == 1:
        np.testing.assert_allclose(np.stack([low, high]), alone)


def test_the_critical_value_lies_between_one_column_and_independent_ones():
    rng = np.random.default_rng(0)
    n = 2000
    alone = rng.standard_normal((n, 1))
    same = estimate_critical_value(np.repeat(alone, 20, axis=1))
    apart = estimate_critical_value(rng.standard_normal((n, 20)))
    shared = alone + rng.standard_normal((n, 20))
    some = estimate_critical_value(shared)
    assert estimate_critical_value(5 + 3 * shared) == pytest.approx(some)  # of no place and no unit
    sidak = scipy.stats.norm.ppf((1 + 0.95 ** (1 / 20)) / 2)
    assert same == pytest.approx(1.96, abs=0.15) and apart == pytest.approx(sidak, abs=0.1)
    assert same < some < apart <= sidak


def test_texts_without_a_value_are_left_out_of_their_column_alone():
    rng = np.random.default_rng(3)
    values = rng.standard_normal((80, 3))
    values[::2, 1] = np.nan
    values[:, 2] = np.nan
    values[0, 2] = 1.0
    critical = estimate_critical_value(values)
    low, high = compute_simultaneous_interval(values)
    for k, kept in ((0, values[:, 0]), (1, values[1::2, 1])):
        expected = compute_mean_interval(kept[:, None], critical_value=critical)[:, 0]
        assert (low[k], high[k]) == pytest.approx(tuple(expected))
    assert np.isnan([low[2], high[2]]).all()  # one text has no interval


def test_columns_without_variation():
    rng = np.random.default_rng(4)
    varying = rng.standard_normal((100, 5))
    constant = np.column_stack([np.full(100, 0.1), np.zeros(100), np.ones(100)])
    values = np.hstack([varying, constant])
    low, high = compute_simultaneous_interval(values)
    np.testing.assert_array_equal(
        np.stack([low, high])[:, :5], compute_simultaneous_interval(varying)
    )
    assert low[5] == high[5] == pytest.approx(0.1)
    # All texts agree: a share is still not known to a point.
    assert low[6] == 0 and high[6] > 0.03 and high[7] == 1 and low[7] < 0.97
    assert compute_simultaneous_interval(constant[:, :1]).shape == (2, 1)
    assert np.isnan(compute_simultaneous_interval(np.full((5, 2), np.nan))).all()
    assert np.isnan(compute_simultaneous_interval(np.empty((0, 2)))).all()
    assert compute_simultaneous_interval(np.empty((5, 0))).shape == (2, 0)


@pytest.mark.parametrize(("hits", "n"), [(0, 249), (1, 249), (100, 200), (30, 30)])
def test_a_share_has_the_interval_of_scipy(hits, n):
    """Alone at 95%; beside other columns at the level that holds for all of them."""
    column = (np.arange(n) < hits).astype(float)[:, None]
    others = np.random.default_rng(6).standard_normal((n, 20))
    for columns, critical in (
        (column, SINGLE_CRITICAL_VALUE),
        (np.hstack([column, others]), estimate_critical_value(np.hstack([column, others]))),
    ):
        level = 2 * scipy.stats.norm.cdf(critical) - 1
        expected = scipy.stats.binomtest(hits, n).proportion_ci(level, method="exact")
        assert compute_simultaneous_interval(columns)[:, 0] == pytest.approx(
            (expected.low, expected.high), abs=1e-6
        )


def test_the_same_seed_gives_the_same_interval_and_the_order_of_heads_no_other():
    values = np.random.default_rng(5).lognormal(size=(60, 12))
    found = compute_simultaneous_interval(values, seed=3)
    np.testing.assert_array_equal(found, compute_simultaneous_interval(values, seed=3))
    np.testing.assert_allclose(
        found[:, ::-1], compute_simultaneous_interval(values[:, ::-1], seed=3), rtol=1e-9
    )
