"""Detection limits: the smallest effect that a rule surely sees, against normal means."""

import numpy as np
import pytest
from scipy.stats import norm, sem

from hf_attnprobe.statistics import detection
from tests.helpers import tiny_models


def normal(n_texts: int = 4000) -> np.ndarray:
    """A statistic of unit variance whose mean is .1 per dose, [doses, texts]."""
    noise = np.random.default_rng(0).normal(size=n_texts)
    return noise + 0.1 * np.arange(11)[:, None]


RULE = detection.DetectionRule(0.2)
LIMITS = [(72, 100), (72, 400), (1, 400), (1, 100)]  # heads and texts


@pytest.mark.parametrize("of", tiny_models.daily(LIMITS, ()))
def test_the_limit_is_that_of_a_normal_mean_that_surely_reaches_the_threshold(of):
    heads, n = of
    rule = detection.DetectionRule(0.2, heads)
    place, low, high = detection.estimate_detection_limit(normal(), n, 3, rule)
    expected = rule.threshold + (rule.critical_value + norm.ppf(detection.DETECTION_POWER)) / n**0.5
    assert 0.1 * place == pytest.approx(expected, rel=0.1)
    assert low <= place <= high


def test_the_rule_says_yes_where_the_interval_of_a_draw_does():
    values, draws = normal()[3], detection.draw_text_counts(4000, 200, 1)
    each = [np.repeat(values, counts) for counts in draws.astype(int)]
    lows = np.array([own.mean() - RULE.critical_value * sem(own) for own in each])
    share = (lows >= RULE.threshold).mean()
    assert detection.compute_detection_rate(values, draws, RULE) == share and 0.1 < share < 0.9


def test_a_dose_that_is_too_small_has_no_limit():
    values = 0.001 * normal()[:2]
    assert (
        detection.find_detectable_dose(values, detection.draw_text_counts(4000, 50, 0), RULE)
        == np.inf
    )


def test_what_moves_the_output_at_dose_0_has_no_smallest_effect():
    values = 1 + 0.001 * normal()
    assert (
        detection.find_detectable_dose(values, detection.draw_text_counts(4000, 50, 0), RULE) == 0
    )
