"""Reports of retraining: series in the paper's units, sentences and curves."""

from itertools import starmap

import pytest

from hf_attnprobe.retraining.report import make_penalty_curve
from hf_attnprobe.retraining.verdict import compute_points
from hf_attnprobe.statistics.summary import Statistic


def statistic(name, mean, group="all"):
    interval = (mean - 0.01, mean + 0.01)
    key = "test", name, -1, -1, group
    spread = {"median": mean, "std": 0.1, "undefined": 0}
    return Statistic(*key, value=mean, ci95=interval, n=50, **spread)


VALUES = {"adversary_jsd@0.01": 0.3, "adversary_tvd@0.01": 0.1, "adversary_jsd@0.001": 0.5}
VALUES |= {"adversary_tvd@0.001": 0.2, "one_seed_jsd@1": 0.05, "one_seed_tvd@1": 0.11}
VALUES |= {"one_seed_jsd@2": 0.06, "one_seed_tvd@2": 0.12, "seed_jsd": 0.055, "seed_tvd": 0.115}
VALUES |= {"uniform_model_jsd": 0.2, "uniform_model_tvd": 0.07, "search_jsd@0.01": 0.4}
VALUES |= {"search_tvd@0.01": 0.009, "frontier_jsd@0.01": 0.6, "frontier_jsd@0.1": 0.65}


OF_A_GROUP = statistic("adversary_jsd@0.001", 0.9, group="pos")
LAST = statistic("largest_jsd", 0.69)
STATISTICS = (OF_A_GROUP, *starmap(statistic, VALUES.items()), LAST)


def test_series_in_the_units_of_the_paper():
    chart = make_penalty_curve(compute_points(STATISTICS, {}))
    found = {s.name: (s.x, s.y) for s in chart.series}
    assert found == {
        "trained adversaries (λ 0.001 to 0.01)": ((0.5, 0.3), (0.2, 0.1)),
        "other seeds (seed 1 to 2)": ((0.05, 0.06), (0.11, 0.12)),
        "search, same states (ε 0.01)": ((0.4,), (0.009,)),
        "exact frontier, same states (ε 0.01 to 0.1)": ((0.6, 0.65), (0.01, 0.1)),
        "trained with uniform attention": ((0.2,), (0.07,)),
    }
    assert [s.is_connected for s in chart.series] == [True, False, False, False, True]
    assert [(r.value, r.axis) for r in chart.references] == [(0.69, "x")]
    adversary = chart.series[0]
    assert adversary.low == pytest.approx((0.19, 0.09))
    assert adversary.n == (50, 50)


def test_the_sentence_has_the_farthest_of_each_kind():
    finding = make_penalty_curve(compute_points(STATISTICS, {})).finding
    assert "trained adversaries (λ 0.001) 0.50 [0.49, 0.51]" in finding
    assert "with an output change of 0.20 [0.19, 0.21]" in finding
    assert "with an output change of at most 0.10" in finding
    assert "largest possible JSD 0.69" in finding
    assert "without training" in finding
    assert "means over 50 texts" in finding


@pytest.mark.parametrize("n_adversaries", [1, 3])
def test_what_is_not_drawn_is_not_spoken_of(n_adversaries):
    names = [f"adversary_{of}@{k}" for k in range(n_adversaries) for of in ("jsd", "tvd")]
    finding = make_penalty_curve(compute_points([statistic(n, 0.3) for n in names], {})).finding
    assert "rises" not in finding
    assert "exact frontier" not in finding and "seeds is" not in finding


def test_seeds_that_are_only_known_together_are_one_point():
    some = [s for s in STATISTICS if not s.statistic.startswith("one_seed")]
    chart = make_penalty_curve(compute_points(some, {}))
    assert {s.name: s.x for s in chart.series}["other seeds"] == (0.055,)


def test_nothing_retrained_is_no_curve():
    assert make_penalty_curve(compute_points((), {})) is None
    assert make_penalty_curve(compute_points(STATISTICS[-1:], {})) is None
