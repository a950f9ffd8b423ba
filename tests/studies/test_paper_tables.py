"""Tables of papers: significance and thresholds are counted as the papers count them."""

import math

import pandas as pd

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
