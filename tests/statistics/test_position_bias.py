"""A position bias is stated if attention prefers a position clearly more often than importance does."""

import numpy as np
import pytest
from scipy.stats import binomtest

from hf_attnprobe.statistics.evidence import build_evidence
from hf_attnprobe.statistics.position_bias import find_position_bias
from hf_attnprobe.statistics.wording import CLASS_WORDING
from tests.helpers.synthetic_rows import make_rows
from tests.statistics.test_questions import ANSWERS


def find_bias(attended, decisive, *, test="scale", prefix="", words=CLASS_WORDING):
    """Find the bias of texts in which the last unit comes first in each ranking, or does not."""
    attended, decisive = np.array(attended, float), np.array(decisive, float)
    values = {
        ("scale", "attended_position@last"): attended,
        (test, f"{prefix}decisive_position@last"): decisive,
        ("scale", "attended_position@first"): 1 - attended,
        (test, f"{prefix}decisive_position@first"): 1 - attended,
    }
    if prefix:
        values["exchange", "exchange_importance@attention"] = np.full(len(attended), 0.5)
    return find_position_bias(build_evidence(make_rows(values), words=words))


def test_a_clear_preference_has_the_p_value_of_mcnemars_test():
    attended, decisive = [1] * 12, [1] * 2 + [0] * 10
    bias = find_bias(attended, decisive)
    assert (bias.position, bias.n_attended, bias.n_decisive, bias.n) == ("last", 12, 2, 12)
    # The correction by Holm multiplies the smallest of two p-values by two.
    assert bias.p_value == pytest.approx(2 * binomtest(0, 10).pvalue)


def test_a_preference_that_importance_explains_is_no_bias():
    assert find_bias([1] * 12, [1] * 12) is None
    # 4 of 4 differences are in one direction, which happens by chance with a probability of 1/8.
    assert find_bias([1] * 12, [1] * 8 + [0] * 4) is None
    # A significant but small difference in many texts.
    assert find_bias([1] * 30 + [0] * 170, [0] * 200) is None
    # Fewer than ten texts in which both are known.
    assert find_bias([1] * 12, [0] * 9 + [np.nan] * 3) is None
    assert find_bias([1] * 12, [0] * 10 + [np.nan] * 2).n == 10


def test_exchanges_decide_which_word_is_important_if_there_are_any():
    found = find_bias([1] * 12, [0] * 12, test="exchange", prefix="exchange_")
    assert found.n_decisive == 0
    values = {("scale", "attended_position@last"): np.ones(12)}
    assert find_position_bias(build_evidence(make_rows(values))) is None


def test_a_language_models_longest_unit_can_be_preferred():
    values = {
        ("sources", "attended_position@longest"): np.ones(15),
        ("sources", "source_found@length"): np.zeros(15),
        ("sources", "attended_position@last"): np.array([1.0] * 8 + [0] * 7),
        ("sources", "source_found@last"): np.zeros(15),
        ("sources", "answer_is_greedy"): np.array([0.0] + [1.0] * 14),
    }
    bias = find_position_bias(build_evidence(make_rows(values), words=ANSWERS))
    # Only answers that the model gives itself count.
    assert (bias.position, bias.n_attended, bias.n) == ("longest", 14, 14)
