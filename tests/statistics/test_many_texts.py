"""With many texts nothing is resampled: the normal numbers are those of the resamples."""

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.statistics import differences, estimates, scores
from hf_attnprobe.statistics.rows import Texts


N = 4_000


@pytest.fixture
def many(monkeypatch):
    """Says whether ``N`` texts are many."""

    def are(are_many):
        for module in (differences, estimates, scores):
            monkeypatch.setattr(module, "MAX_RESAMPLED_TEXTS", N - 1 if are_many else N)

    return are


def both(many, function, *arguments):
    found = []
    for are_many in (False, True):
        many(are_many)
        found.append(function(*arguments))
    return found


def test_p_values_of_flipped_signs(many):
    draws = np.random.default_rng(0)
    gaps = draws.exponential(size=(N, 4)) - 1 + [0.0, 0.01, 0.03, 0.05]
    gaps[:50, 0] = np.nan
    few, normal = both(many, differences.compute_sign_flip_p_values, gaps)
    assert normal == pytest.approx(few, abs=0.02) and normal[3] < 0.01
    assert differences.compute_sign_flip_p_values(np.zeros((N, 1)))[0] == 1


def test_the_interval_of_r_squared(many):
    draws = np.random.default_rng(1)
    wanted = 40 + 3 * draws.normal(size=N)
    said = wanted + draws.normal(size=N) * draws.exponential(size=N)
    frame = pd.DataFrame({"value": said, "labelled_value": wanted})
    numbers = Texts.from_frame(frame)
    few, normal = (q.r_squared for q in both(many, scores.measure_number_quality, numbers))
    assert normal.value == pytest.approx(few.value, abs=1e-12) and normal.n == few.n == N
    assert normal.ci95 == pytest.approx(few.ci95, abs=0.15 * (few.ci95[1] - few.ci95[0]))
    equal = scores.measure_number_quality(Texts.from_frame(frame.assign(labelled_value=1.0)))
    assert np.isnan(equal.r_squared.value)


def test_intervals_of_many_heads_at_once(many):
    draws = np.random.default_rng(2)
    values = draws.normal(size=(N, 30)) + 2 * draws.normal(size=(N, 1))
    values[draws.random(values.shape) < 0.1] = np.nan
    few, normal = both(many, estimates.estimate_critical_value, values)
    assert normal == pytest.approx(few, abs=0.06) and normal > 2.1
