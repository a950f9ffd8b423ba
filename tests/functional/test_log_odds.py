"""Log-odds and the share of their range, against the logistic function."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from hf_attnprobe.functional.divergence import log_odds, share_of_log_odds


ODDS = st.floats(-36, 36)


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
def test_a_share_is_of_the_larger_log_odds_or_of_4(before, after):
    """A quarter of the change where nothing is saturated, and what is lost of a sure output."""
    both = torch.tensor([before, after], dtype=torch.float64)
    expected = min(1, abs(after - before) / max(abs(before), abs(after), 4))
    assert share_of_log_odds(*both).item() == pytest.approx(expected, rel=1e-12, abs=1e-300)
