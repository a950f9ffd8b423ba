"""Maps of heads and the λ curve, against plain pandas."""

import math
from itertools import starmap

import numpy as np
import pytest
import scipy.stats

from hf_attnprobe.reports import head_tables as drawn
from hf_attnprobe.retraining.report import make_penalty_curve
from hf_attnprobe.retraining.verdict import compute_points
from hf_attnprobe.statistics.heads import evaluate_heads
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import apply_thresholds
from tests.helpers.synthetic_rows import make_head_rows, make_many_head_rows


RULES = apply_thresholds(["effect=.1", "faithfulness=.4,.7"])


def head_maps(rows):
    return drawn.build_head_maps(evaluate_heads(rows, RULES), RULES)


@pytest.fixture(scope="module")
def rows_of_heads():
    return make_many_head_rows()


@pytest.fixture(scope="module")
def maps(rows_of_heads):
    return {m.key: m for m in head_maps(rows_of_heads)}


def mean_of(rows, statistic, layer, head):
    own = (rows.statistic == statistic) & (rows.layer == layer) & (rows["head"] == head)
    return rows[own].value.mean()


def place_of(rows, layer, head):
    """Faithfulness from the means: of importance, removal and mass."""
    mean = lambda name: mean_of(rows, name, layer, head)  # noqa: E731
    random, best = mean("removal@random"), mean("removal@best")
    chance = mean("mass_by_chance@attention")
    removal = (mean("removal@attention") - random) / (best - random)
    mass = (mean("mass@attention") - chance) / (1 - chance)
    return (mean("importance@attention") + removal + mass) / 3


def test_every_cell_is_a_number_within_its_interval(rows_of_heads, maps):
    effect, faithful = maps["heads_standard_tvd"], maps["heads_faithfulness"]
    for chart in (effect, faithful):
        assert (chart.layers, chart.heads) == ((0, 1, 2), (0, 1, 2, 3))
    for k in effect.layers:
        for h in effect.heads:
            moved = mean_of(rows_of_heads, "standard_tvd", k, h)
            place = place_of(rows_of_heads, k, h)
            assert effect.values[k][h] == pytest.approx(moved)
            assert effect.low[k][h] < moved < effect.high[k][h]
            assert faithful.values[k][h] == pytest.approx(place)
            assert faithful.low[k][h] <= place + 1e-12 and place < faithful.high[k][h]


def test_intervals_hold_for_all_heads_at_once(rows_of_heads, maps):
    """Wider than those of one head, and no wider than Bonferroni's."""
    chart = maps["heads_standard_tvd"]
    own = rows_of_heads[(rows_of_heads.statistic == "standard_tvd") & (rows_of_heads["head"] >= 0)]
    wide = own.pivot_table(index="example_id", columns=["layer", "head"], values="value")
    error = (wide.std(ddof=1) / np.sqrt(len(wide))).to_numpy().reshape(3, 4)
    half = (np.array(chart.high) - np.array(chart.low)) / 2
    assert (half > 1.97 * error).all()
    bonferroni = scipy.stats.t.ppf(1 - 0.05 / 24, len(wide) - 1)
    assert (half < 1.02 * bonferroni * error).all()  # and a little for skewness


@pytest.mark.parametrize("key", ["heads_standard_tvd", "heads_faithfulness"])
def test_the_sentence_names_the_foremost_head(maps, key):
    chart = maps[key]
    values = np.array(chart.values)
    layer, head = np.unravel_index(values.argmax(), values.shape)
    assert f"for head {layer}.{head} (layer.head" in chart.finding
    assert f"The largest value is {values.max():.2f} [" in chart.finding
    assert "hold for all heads simultaneously" in chart.finding


def test_only_faithfulness_has_a_middle(maps):
    assert maps["heads_standard_tvd"].centre is None
    assert maps["heads_faithfulness"].centre == 0


def test_what_is_marked_is_sure(maps):
    chart = maps["heads_faithfulness"]
    marked = [
        (k, h)
        for k in chart.layers
        for h in chart.heads
        if chart.is_marked(chart.low[k][h], chart.high[k][h])
    ]
    assert marked == [(0, 1), (1, 1), (2, 1)]
    assert chart.mark_description == "the interval lies at 0.40 or more"


def test_heads_that_were_not_tested_are_empty_cells():
    rows = make_many_head_rows(40)
    top = (rows.layer == rows.layer.max()) & (rows.statistic == "standard_tvd")
    some = rows[~(top | (rows.layer == 1) & (rows["head"] == 2))]
    faithfulness, effect = head_maps(some)
    assert np.shape(effect.values) == np.shape(faithfulness.values)
    assert math.isnan(effect.low[1][2]) and np.isnan(effect.values[-1]).all()


def test_few_texts_have_no_intervals():
    for chart in head_maps(make_many_head_rows(20)):
        assert chart.low == chart.high == ()
        assert "too few texts for intervals" in chart.finding


def test_heads_of_few_texts_are_not_among_those_that_are_sure():
    rows = make_many_head_rows(40)
    few = (rows["head"] == 1) & (rows.example_id >= 120)
    chart = head_maps(rows[~few])[0]
    assert np.isnan(np.array(chart.low)[:, 1]).all() and np.isfinite(np.array(chart.low)).any()
    low = np.array(chart.low)
    assert not (low >= chart.threshold).any()  # what is marked


def test_one_head_is_no_map():
    rows = make_head_rows((0, 0), 0.3, 0.8, n=50)
    assert head_maps(rows) == ()
    assert head_maps(rows[:0]) == ()


def test_groups_are_no_cells(rows_of_heads):
    assert head_maps(rows_of_heads[rows_of_heads["head"] < 0]) == ()


def test_the_order_of_rows_does_not_matter(rows_of_heads, maps):
    shuffled = rows_of_heads.sample(frac=1, random_state=2)
    assert {m.key: m for m in head_maps(shuffled)} == maps


# The λ curve, against numbers written by hand


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
