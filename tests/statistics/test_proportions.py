"""Intervals of shares of texts: exact, and as wide as they must be."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from hf_attnprobe import retraining
from hf_attnprobe.core.readings import Reading, is_declared_share, make_share_reading
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.statistics.differences import compare_paired
from hf_attnprobe.statistics.estimates import (
    compute_paired_share_interval,
    compute_share_interval,
    estimate_mean,
)
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scores import measure_quality
from hf_attnprobe.statistics.summary import find_statistic, summarize
from tests.helpers.synthetic_rows import make_rows


READINGS = {
    "erasure": {
        "only_random_flips": make_share_reading("in {mean:.1%} of texts"),
        "regret": "{mean:.2f} weights more than needed",
        "comprehensiveness": "falls by {mean:.2f}",
        "way_to_best": "saves {mean:.0%}",
    }
}


def summary_of(name, values):
    return find_statistic(summarize(make_rows({("erasure", name): values}), [], READINGS), name)


def test_shares_have_the_interval_of_scipy():
    for hits in (0, 1, 2, 120, 248, 249):
        values = np.zeros(252)
        values[:hits], values[-3:] = 1, np.nan
        exact = binomtest(hits, 249).proportion_ci(method="exact")
        for name in ("only_random_flips", "only_random_flips@attention"):
            found = summary_of(name, values)
            assert found.n == 249
            assert found.ci95 == pytest.approx((exact.low, exact.high), abs=1e-12)
        assert estimate_mean(values, share=True).ci95 == found.ci95


def test_other_statistics_have_the_interval_of_means():
    """What is no share: not declared as one, or not only 0 and 1."""
    assert summary_of("regret", np.zeros(50)).ci95 == (0, 0)
    assert summary_of("regret@gradient", np.ones(50)).ci95 == (1, 1)
    halves = np.tile([0, 0.5, 1, 0.5], 50)
    low, high = summary_of("only_random_flips", halves).ci95
    expected = 1.96 * halves.std() / len(halves) ** 0.5
    assert (high - low) / 2 == pytest.approx(expected, rel=0.15)
    assert summary_of("way_to_best", np.zeros(50)).ci95 == (0, 0)  # may be below 0
    assert np.isnan(compute_share_interval(np.array(0), np.array(0))).all()
    assert summary_of("only_random_flips", np.full(4, np.nan)) is None


# --- two shares of the same texts ---------------------------------------------------


def test_pairs_that_all_agree_still_leave_a_doubt():
    """The difference of two shares was [0.000, 0.000] and [1.000, 1.000]."""
    none, all_ = (np.full((249, 1), value) for value in (0.0, 1.0))
    for first, other, middle in ((none, none, 0), (none, all_, 1), (all_, all_, 0)):
        (found,) = compare_paired(first, other)
        low, high = found.ci95
        assert found.value == middle
        assert low < middle <= high and 0.005 < high - low < 0.03


def test_differences_of_shares_stay_between_minus_one_and_one():
    """Of two texts the interval would reach 1.35."""
    low, high = compute_paired_share_interval(np.array([[1.0, -1.0]] * 2))
    assert (low[1], high[0]) == (-1, 1)


def test_a_model_that_is_always_right_may_still_be_wrong_once_in_28():
    """Its accuracy was 1.00 [1.00, 1.00]; of one that says the majority +0 [0, 0]."""
    n = 100
    labels = np.arange(n) % 4 == 0
    frame = pd.DataFrame({"label": labels * 1, "probability": 0.9})
    right = measure_quality(Texts.from_frame(frame.assign(predicted_class=frame.label)))
    assert right.accuracy.ci95 == pytest.approx((1 - 0.0362, 1), abs=5e-5)
    majority = measure_quality(Texts.from_frame(frame.assign(predicted_class=0))).beyond_majority
    low, high = majority.ci95
    assert low < majority.value == 0 < high


def test_texts_without_a_pair_do_not_count():
    differences = np.array([1, 0, -1, 1, 0, 0, 0, 1.0])
    padded = np.append(differences, [np.nan] * 5)
    np.testing.assert_array_equal(
        compute_paired_share_interval(padded[:, None]),
        compute_paired_share_interval(differences[:, None]),
    )
    assert np.isnan(compute_paired_share_interval(np.full((3, 1), np.nan))).all()


# --- what is a share is declared, not worded ----------------------------------------


def test_rewording_a_reading_changes_no_interval():
    for known in (load_readings(), retraining.get_retraining_readings()):
        named = [(test, name) for test, names in known.items() for name in names]
        rows = make_rows(dict.fromkeys(named, np.arange(40.0) % 3 == 0))
        statistics = summarize(rows, [], known)
        reworded = {test: {} for test in known}
        exact = tuple(compute_share_interval(np.array(14), np.array(40)).tolist())
        for s in statistics:
            is_share = is_declared_share(s.test, s.statistic, known)
            said = "{mean:.2f}" if is_share else "in {mean:.0%} of texts"
            reworded[s.test][s.statistic] = Reading(said, is_share)
            assert (s.ci95 == exact) == is_share
        assert statistics == summarize(rows, [], reworded)
