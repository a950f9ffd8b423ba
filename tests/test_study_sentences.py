"""What a study says of a column: only where the whole interval of enough texts allows it."""

import pytest

from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.studies.results import _against_threshold


@pytest.mark.parametrize(
    ("value", "group"),
    [
        (Estimate(0.5, (0.45, 0.55), 200), "there"),
        (Estimate(0.3, (0.25, 0.35), 200), "not"),
        (Estimate(0.42, (0.38, 0.46), 200), "cannot say"),
        (Estimate(0.5, (0.45, 0.55), 29), "cannot say"),  # a row of few long texts
        (Estimate(0.5, None, 200), "cannot say"),
        (Estimate(0.5, (0.45, 0.55), None), "cannot say"),
    ],
)
def test_a_threshold_is_passed_by_a_whole_interval_of_enough_texts(value, group):
    said = _against_threshold(0.4, "it matters", {"sst": value})
    n_there = int(group == "there")
    assert said == (f"It matters (from 0.4, the whole interval) in {n_there} of 1; {group}: sst.")
