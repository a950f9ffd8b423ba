"""Log-odds and the share of their range, against the logistic function."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from hf_attnprobe.functional.divergence import log_odds, share_of_log_odds


ODDS = st.floats(-36, 36)


def share(before, after):
    both = torch.tensor([before, after], dtype=torch.float64)
    return share_of_log_odds(both[0], both[1]).item()


@given(st.floats(-30, 30), st.integers(2, 5))
def test_log_odds_are_those_of_a_class_against_all_others(odds, n_classes):
    own = expit(odds)
    rest = [expit(-odds) / (n_classes - 1)] * (n_classes - 1)
    probs = torch.tensor([*rest, own], dtype=torch.float64)
    found = log_odds(probs, torch.tensor(n_classes - 1)).item()
    assert found == pytest.approx(odds, abs=1e-6)
    if abs(odds) < 8:
        assert found == pytest.approx(logit(own), abs=1e-9)


def test_log_odds_end_at_the_rounding_of_1():
    probs = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = log_odds(probs, torch.tensor([0, 0]))
    end = -math.log(torch.finfo(torch.float64).eps)
    assert found.tolist() == pytest.approx([end, -end])


@given(ODDS, ODDS)
def test_a_share_is_one_of_the_whole_and_the_same_both_ways(before, after):
    assert 0 <= share(before, after) <= 1
    assert share(before, after) == share(after, before)
    assert share(-before, -after) == share(before, after)
    assert (share(before, after) == 0) == (abs(after - before) / 4 == 0)  # 5e-324 has no quarter


@given(st.floats(-4, 4), st.floats(-4, 4))
def test_where_nothing_is_saturated_it_is_a_quarter_of_the_change(before, after):
    moved = abs(after - before) / 4
    assert share(before, after) == pytest.approx(min(moved, 1), abs=1e-12)


@given(ODDS, ODDS)
def test_no_probability_moves_more_than_a_quarter_of_the_change(before, after):
    """The logistic function is nowhere steeper than 1/4."""
    tvd = abs(expit(after) - expit(before))
    assert tvd <= abs(after - before) / 4 + 1e-12


@given(st.floats(-4, 4), st.floats(-4, 4))
def test_an_unsure_output_has_at_least_its_total_variation(before, after):
    assert share(before, after) >= abs(expit(after) - expit(before)) - 1e-12


@given(st.floats(4, 36), st.floats(0, 1))
def test_of_a_sure_output_it_is_the_part_that_is_lost(before, kept):
    assert share(before, kept * before) == pytest.approx(1 - kept, abs=1e-12)


def test_no_output_that_turns_round_keeps_its_share():
    assert share(10.0, -10.0) == 1
    assert share(10.0, -0.5) == 1
