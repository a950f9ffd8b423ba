"""Tables of papers: significance and thresholds are counted as the papers count them."""

import math

import numpy as np
import pandas as pd
from scipy.stats import binom

from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.studies import paper_tables as results
from hf_attnprobe.studies.steps import Job


def cells(table) -> list[dict]:
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def test_significance_is_counted_as_jain_and_wallace_count_it():
    """With either sign of τ, so that the published column says the same."""
    columns = {"tau": [-0.9, 0.8, 0.1, math.nan], "p_value": [0.01, 0.02, 0.6, math.nan]}
    columns["significant"] = [0.0, 1.0, 0.0, 0.0]
    rows = pd.DataFrame(columns).add_prefix("attention_gradient_")
    job = Job("audit", "audit", {"dataset": "sst"}, {}, "audit")
    table = results._make_table(
        "correlation", results._make_correlation_rows([results._TextGroup(job, 0, rows)])
    )
    (row,) = cells(table)
    assert row["significant"] == 0.5 and row["published significant"] == 0.59
    assert "either sign" in table.sentences[0]


def test_a_median_has_an_interval_that_covers_the_true_median():
    """The interval is the narrowest pair of order statistics with a binomial coverage of 95%."""
    values = np.random.default_rng(0).exponential(size=40)
    below = binom(40, 0.5).cdf
    # The low end is the largest order statistic that exceeds the median with at most 2.5%.
    position = max(k for k in range(20) if below(k) <= 0.025)
    ordered = np.sort(values)
    estimate = results.compute_median(pd.Series([*values, math.nan]))
    assert estimate == Estimate(np.median(values), (ordered[position], ordered[-1 - position]), 40)
    for few in ([], [0.5], [0.1] * 5):
        assert results.compute_median(pd.Series(few, dtype=float)).ci95 is None


def test_f1_has_an_interval_over_the_texts():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    predicted = np.where(rng.random(300) < 0.8, labels, 1 - labels)
    frame = pd.DataFrame({"label": [*labels, -1], "predicted_class": [*predicted, 1]})
    name, estimate = results._compute_performance(frame)
    hits = ((labels == 1) & (predicted == 1)).sum()
    assert (name, estimate.n) == ("F1", 300)
    assert math.isclose(estimate.value, 2 * hits / (labels.sum() + predicted.sum()))
    low, high = estimate.ci95
    # F1 is about .8, so its standard error is about .03.
    assert 0.08 < high - low < 0.14 and low < estimate.value < high
    assert results._compute_performance(frame[frame.label < 0]) == ("accuracy", None)


def test_a_threshold_is_passed_by_a_whole_interval_of_enough_texts():
    for value, group in (
        (Estimate(0.5, (0.45, 0.55), 200), "yes"),
        (Estimate(0.3, (0.25, 0.35), 200), "no"),
        (Estimate(0.42, (0.38, 0.46), 200), "cannot say"),
        (Estimate(0.5, (0.45, 0.55), 29), "cannot say"),  # a row of few long texts
        (Estimate(0.5, None, 200), "cannot say"),
        (Estimate(0.5, (0.45, 0.55), None), "cannot say"),
    ):
        said = results._compare_with_threshold(0.4, "it matters", {"sst": value})
        there = int(group == "yes")
        assert (
            said == f"It matters (whole interval from 0.4 upwards) in {there} of 1; {group}: sst."
        )
