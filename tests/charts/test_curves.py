"""The λ curve, against numbers written by hand."""

import pytest

from hf_attnprobe import figures
from hf_attnprobe.retraining.document import penalty_curve
from hf_attnprobe.retraining.verdict import PUBLISHED_ADVERSARY, Point, points_of
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.summary import Statistic


def statistic(name, mean, group="all"):
    interval = (mean - 0.01, mean + 0.01)
    key = "test", name, -1, -1, group
    spread = {"median": mean, "std": 0.1, "undefined": 0}
    return Statistic(*key, value=mean, ci95=interval, n=50, **spread)


STATISTICS = (
    statistic("adversary_jsd@0.01", 0.3),
    statistic("adversary_tvd@0.01", 0.1),
    statistic("adversary_jsd@0.001", 0.5),
    statistic("adversary_tvd@0.001", 0.2),
    statistic("adversary_jsd@0.001", 0.9, group="pos"),
    statistic("one_seed_jsd@1", 0.05),
    statistic("one_seed_tvd@1", 0.11),
    statistic("one_seed_jsd@2", 0.06),
    statistic("one_seed_tvd@2", 0.12),
    statistic("seed_jsd", 0.055),
    statistic("seed_tvd", 0.115),
    statistic("uniform_model_jsd", 0.2),
    statistic("uniform_model_tvd", 0.07),
    statistic("search_jsd@0.01", 0.4),
    statistic("search_tvd@0.01", 0.009),
    statistic("frontier_jsd@0.01", 0.6),
    statistic("frontier_jsd@0.1", 0.65),
    statistic("largest_jsd", 0.69),
)


PUBLISHED = Point(PUBLISHED_ADVERSARY, "", "", Estimate(0.514), Estimate(0.072))


def test_series_in_the_units_of_the_paper():
    chart = penalty_curve([*points_of(STATISTICS, {}), PUBLISHED])
    found = {s.name: (s.x, s.y) for s in chart.series}
    assert found == {
        "trained adversaries (λ 0.001 to 0.01)": ((0.5, 0.3), (0.2, 0.1)),
        "other seeds (seed 1 to 2)": ((0.05, 0.06), (0.11, 0.12)),
        "search, same states (ε 0.01)": ((0.4,), (0.009,)),
        "exact frontier, same states (ε 0.01 to 0.1)": ((0.6, 0.65), (0.01, 0.1)),
        "trained with uniform attention": ((0.2,), (0.07,)),
        "published adversary": ((0.514,), (0.072,)),
    }
    assert [s.joined for s in chart.series] == [True, False, False, False, True, False]
    assert [(r.value, r.axis) for r in chart.references] == [(0.69, "x")]
    adversary = chart.series[0]
    assert adversary.low == pytest.approx((0.19, 0.09))
    assert adversary.n == (50, 50)


def test_the_sentence_has_the_farthest_of_each_kind():
    finding = penalty_curve(points_of(STATISTICS, {})).finding
    assert "trained adversaries (λ 0.001) 0.50 [0.49, 0.51]" in finding
    assert "by 0.20 [0.19, 0.21]" in finding
    assert "moving the output by at most 0.10" in finding
    assert "no attention whatever can be farther than 0.69" in finding
    assert finding.index("without training") < finding.index("0.50")
    assert "means over 50 texts" in finding


@pytest.mark.parametrize("n_adversaries", [1, 2, 3])
def test_two_points_are_not_read_as_a_curve(n_adversaries):
    names = [f"adversary_{of}@{k}" for k in range(n_adversaries) for of in ("jsd", "tvd")]
    finding = penalty_curve(points_of([statistic(n, 0.3) for n in names], {})).finding
    assert ("rises late" in finding) == (n_adversaries == 3)
    assert "exact frontier" not in finding and "seeds is" not in finding


def test_seeds_that_are_only_known_together_are_one_point():
    some = [s for s in STATISTICS if not s.statistic.startswith("one_seed")]
    chart = penalty_curve(points_of(some, {}))
    assert {s.name: s.x for s in chart.series}["other seeds"] == (0.055,)


def test_nothing_retrained_is_no_curve():
    assert penalty_curve(points_of((), {})) is None
    assert penalty_curve(points_of(STATISTICS[-1:], {})) is None


def test_the_published_adversary_is_drawn_too():
    chart = penalty_curve([*points_of(STATISTICS, {}), PUBLISHED])
    (legend,) = figures.draw(chart).get_figure(root=True).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert "published adversary" in names
    assert names[-1] == "no attention whatever can be farther"
