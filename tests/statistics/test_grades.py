"""Grades: an answer needs texts and an interval that crosses no threshold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import (
    MIN_TEXTS,
    Answer,
    grade,
    grade_range,
    list_possible_answers,
)
from hf_attnprobe.statistics.questions import EFFECT_THRESHOLD
from hf_attnprobe.statistics.verdicts import RULES
from tests.helpers.verdict_rows import found, good_model, moving, way_of


@given(st.sampled_from(sorted(RULES)), st.floats(-1, 1), st.floats(0, 0.5), st.integers(0, 200))
def test_an_answer_needs_texts_and_an_interval_that_crosses_no_threshold(key, value, half, n):
    rule = RULES[key]
    low, high = value - half, value + half
    answer = grade(Estimate(value, (low, high), n), rule)
    above = [limit for limit in (rule.partly, rule.yes) if low >= limit]
    if rule.partly == rule.yes == 0:  # exactly 0 is not more than nothing
        above = [0.0, 0.0] if low > 0 else []
        crossed = low <= 0 < high
    else:
        crossed = any(low < limit <= high for limit in (rule.partly, rule.yes))
    if n < MIN_TEXTS or crossed:
        assert answer == Answer.CANNOT_SAY
    else:
        assert answer == (Answer.NO, Answer.PARTLY, Answer.YES)[len(above)]


def test_a_number_between_bounds_is_graded_by_both_of_them():
    rule = RULES["uniqueness"]
    sure = Estimate(0.9, (0.88, 0.92), 100)
    unknown = Estimate(0.0, (0.0, 0.0), 100)
    assert grade_range(sure, sure, rule) == Answer.YES
    assert grade_range(unknown, sure, rule) == Answer.CANNOT_SAY
    assert list_possible_answers(unknown, sure, rule) == tuple(RULES_ANSWERS)
    low = Estimate(0.1, (0.05, 0.2), 100)
    assert grade_range(unknown, low, rule) == Answer.NO


RULES_ANSWERS = (Answer.NO, Answer.PARTLY, Answer.YES)


def test_a_text_in_which_no_order_gets_there_is_0_of_the_way():
    n = 100
    lost = np.arange(n) % 4 > 0.0
    statistics = way_of(np.full(n, 0.8), lost=lost.astype(float))
    for name in ("attention", "random", "best"):
        statistics["erasure"][f"fraction_to_lose_lead@{name}"][~lost] = np.nan
    (finding,) = found("erasure", good_model(n, **statistics))
    assert finding.value == pytest.approx(0.8 * 0.75) and finding.n == n
    assert "In 25% of the texts no order" in finding.sentence
    nobody = way_of(np.full(n, 0.8), lost=np.zeros(n))
    for name in ("attention", "random", "best"):
        nobody["erasure"][f"fraction_to_lose_lead@{name}"][:] = np.nan
    (finding,) = found("erasure", good_model(n, **nobody))
    assert (finding.answer, finding.value) == (Answer.NO, 0.0)


def test_the_effect_is_graded_at_the_standard_temperature():
    n = 100
    rows = good_model(n, **moving(n, 2 * EFFECT_THRESHOLD))
    (moved,) = found("effect", rows)
    assert (moved.answer, moved.value) == (Answer.YES, pytest.approx(2 * EFFECT_THRESHOLD))
    unsure = rows.assign(value=rows.value.mask(rows.statistic == "median_tvd", 0.001))
    assert found("effect", unsure)[0].answer == Answer.YES  # that of its own logits is beside
    (little,) = found("effect", good_model(n, **moving(n, 0.01, worst=0.5)))
    assert (little.answer, little.value) == (Answer.NO, pytest.approx(0.01))
    assert little.yardsticks["worst"] == pytest.approx(0.5)
    assert "by 0.01" in little.sentence and "worst shuffle by 0.50" in little.sentence


def test_the_path_share_is_graded_by_its_mean_and_not_by_shuffles():
    n = 100
    limit = RULES["path_share"].yes
    assert RULES["path_share"].partly == limit  # there is no "partly"
    for share, answer in ((limit + 0.05, Answer.YES), (limit - 0.05, Answer.NO)):
        shuffled = moving(n, 0.4)["permutation"]
        even = {"path_share": np.full(n, share), "uniform_tvd": np.full(n, 0.31)}
        rows = good_model(n, permutation=shuffled, uniform_attention=even)
        (finding,) = found("path_share", rows)
        assert (finding.answer, finding.value) == (answer, pytest.approx(share))
        assert finding.n == n and finding.yardsticks == {"output": pytest.approx(0.31)}
        assert f"{share:.0%} of the decision passes through attention" in finding.sentence
        (unchanged,) = found("effect", rows)
        assert unchanged.answer == Answer.YES
    spread = {"path_share": np.tile([0.0, 2 * limit], n // 2), "uniform_tvd": np.full(n, 0.31)}
    (unsure,) = found("path_share", good_model(n, uniform_attention=spread))
    assert unsure.answer == Answer.CANNOT_SAY and unsure.ci95[0] < limit < unsure.ci95[1]


@pytest.mark.parametrize("n_single", [0, 1, 30, 71])
def test_texts_of_one_word_have_no_path_share_and_are_counted(n_single):
    n = 100
    is_single = np.arange(n) < n_single
    even = {"path_share": np.where(is_single, np.nan, 0.5), "uniform_tvd": np.full(n, 0.2)}
    (finding,) = found("path_share", good_model(n, uniform_attention=even))
    assert (finding.value, finding.n) == (pytest.approx(0.5), n - n_single)
    noun = "1 text" if n_single == 1 else f"{n_single} texts"
    assert (f" {noun} with a single word left out" in finding.sentence) == (n_single > 0)
    assert ("left out" in finding.sentence) == (n_single > 0)
    assert finding.answer == (Answer.YES if n - n_single >= MIN_TEXTS else Answer.CANNOT_SAY)


def test_texts_that_a_test_did_not_reach_are_not_counted_as_texts_of_one_word():
    """As where time ended the test: no statistic of it is known in the other texts."""
    n = 100
    is_reached = np.arange(n) < 60
    even = {
        "path_share": np.where(is_reached & (np.arange(n) > 4), 0.5, np.nan),
        "uniform_tvd": np.where(is_reached, 0.2, np.nan),
    }
    (finding,) = found("path_share", good_model(n, uniform_attention=even, **moving_only(n)))
    assert finding.n == 55
    assert " 5 texts with a single word left out" in finding.sentence


def moving_only(n):
    """Statistics of shuffles alone, of all texts."""
    return {"permutation": moving(n, 0.3)["permutation"]}


def test_without_any_pattern_there_is_no_path_share():
    n = 100
    even = {"path_share": np.full(n, np.nan), "uniform_tvd": np.zeros(n)}
    rows = good_model(n, uniform_attention=even, **moving_only(n))
    assert found("path_share", rows) == [] and len(found("effect", rows)) == 1


def test_pinned_down_needs_an_upper_bound():
    """A lower bound of .35 of .69 was called "fairly well pinned down" once."""
    n = 100
    lower = {
        "share_of_largest@0.01": np.full(n, 0.1),
        "epsilon_max_jsd@0.01": np.full(n, 0.06),
        "largest_jsd": np.full(n, 0.6),
        "epsilon_max_jsd_exact": np.zeros(n),
    }
    (unknown,) = found("uniqueness", good_model(n, adversarial=lower))
    assert unknown.answer == Answer.CANNOT_SAY
    assert "at least 0.10" in unknown.sentence
    far = {"share_of_largest_upper@0.01": np.full(n, 0.8)}
    (open_,) = found("uniqueness", good_model(n, adversarial=lower | far))
    assert open_.answer == Answer.CANNOT_SAY
    near = {"share_of_largest_upper@0.01": np.full(n, 0.2)}
    (pinned,) = found("uniqueness", good_model(n, adversarial=lower | near))
    assert pinned.answer == Answer.YES
    exact = lower | {"epsilon_max_jsd_exact": np.ones(n)}
    assert found("uniqueness", good_model(n, adversarial=exact))[0].answer == "yes"
    free = lower | {"share_of_largest@0.01": np.full(n, 0.9)}
    assert found("uniqueness", good_model(n, adversarial=free))[0].answer == "no"
