"""Maps of heads, against plain pandas."""

import math

import numpy as np
import pytest
import scipy.stats

from hf_attnprobe.reports import head_tables as drawn
from hf_attnprobe.statistics.heads import evaluate_heads
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
    path_share = maps["heads_path_share"]
    for chart in (effect, faithful, path_share):
        assert (chart.layers, chart.heads) == ((0, 1, 2), (0, 1, 2, 3))
    for k in effect.layers:
        for h in effect.heads:
            moved = mean_of(rows_of_heads, "standard_tvd", k, h)
            place = place_of(rows_of_heads, k, h)
            assert path_share.values[k][h] == pytest.approx(
                mean_of(rows_of_heads, "path_share", k, h)
            )
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
    # A single head needs a third of the path share that all attention needs.
    assert maps["heads_path_share"].threshold == pytest.approx(0.05)


def test_heads_that_were_not_tested_are_empty_cells():
    rows = make_many_head_rows(40)
    top = (rows.layer == rows.layer.max()) & (rows.statistic == "standard_tvd")
    some = rows[~(top | (rows.layer == 1) & (rows["head"] == 2))]
    faithfulness, path_share, effect = head_maps(some)
    assert np.shape(path_share.values) == (3, 4) and math.isnan(path_share.values[1][2])
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
