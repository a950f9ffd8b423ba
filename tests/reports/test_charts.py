"""Every number of the charts again, by plain pandas and numpy from the rows."""

import math
import time

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.reports.charts import build_audit_charts
from hf_attnprobe.statistics.questions import CLASSIFIER_QUESTIONS
from hf_attnprobe.statistics.wording import build_wording
from tests.helpers.synthetic_rows import make_audit_rows, make_test_rows


CLASSES = ("neg", "pos")
SITE = (0, 0)
CHARTS = [*(key for q in CLASSIFIER_QUESTIONS.values() for key in q.charts), "plausibility"]


def by_key(rows, **options):
    options = {"site": SITE} | options
    return {c.key: c for c in build_audit_charts(rows, CLASSES, **options)}


def values_of(rows, statistic):
    own = rows[(rows.statistic == statistic) & (rows["head"] >= 0)]
    return own.set_index("example_id").value.sort_index()


@pytest.fixture(scope="module")
def rows():
    return make_audit_rows()


@pytest.fixture(scope="module")
def drawn(rows):
    return by_key(rows)


@pytest.fixture(scope="module")
def predicted(rows):
    own = rows[rows.statistic == "predicted_class"]
    return own.set_index("example_id").value.sort_index()


def test_all_charts_in_the_order_of_the_questions(drawn):
    assert list(drawn) == CHARTS


@pytest.mark.parametrize("measure", ["leave_one_out", "gradient"])
def test_tau_is_counted_by_class(rows, drawn, predicted, measure):
    chart = drawn[f"tau_{measure}"]
    tau = values_of(rows, f"attention_{measure}_tau")
    assert [s.name for s in chart.series] == ["predicted neg", "predicted pos"]
    for k, series in enumerate(chart.series):
        own = tau[predicted == k].dropna()
        assert sum(series.n) == len(own)
        assert sum(series.y) == pytest.approx(1)
        for low, n, share in zip(series.x, series.n, series.y, strict=True):
            last = low == pytest.approx(0.9)
            inside = (own >= low) & ((own <= 1) if last else (own < round(low + 0.1, 1)))
            assert n == inside.sum()
            assert share == pytest.approx(inside.mean())
        assert f"{own.mean():z.2f} [" in chart.finding
        significant = (tau > 0.5)[predicted == k]
        assert f"{significant.mean():.0%} of them significant" in chart.finding
    assert "1 text has no τ, because the test has not reached the text, or because" in chart.finding
    assert "2.5% of texts" in chart.finding


def test_the_mean_of_a_finding_has_the_interval_of_resampled_texts(rows, drawn):
    """Against a plain loop over resamples, to within what another draw changes."""
    values = values_of(rows, "comprehensiveness@attention").to_numpy()
    draw = np.random.default_rng(1)
    means = [values[draw.integers(0, len(values), len(values))].mean() for _ in range(4000)]
    low, high = np.percentile(means, [2.5, 97.5])
    series = drawn["comprehensiveness"].series[0]
    k = series.x.index("attention")
    assert series.y[k] == pytest.approx(values.mean())
    assert (series.low[k], series.high[k]) == pytest.approx((low, high), abs=0.004)
    assert series.n[k] == 400


def test_shuffles_in_four_bins(rows, drawn, predicted):
    chart = drawn["permutation_by_max_attention"]
    largest, moved = values_of(rows, "max_attention"), values_of(rows, "median_tvd")
    edges = [0, 0.25, 0.5, 0.75, 1 + 1e-9]
    for k, series in enumerate(chart.series):
        for b in range(4):
            inside = (largest >= edges[b]) & (largest < edges[b + 1]) & (predicted == k)
            quartiles = moved[inside].quantile([0.25, 0.5, 0.75]).tolist()
            assert [series.low[b], series.y[b], series.high[b]] == pytest.approx(quartiles)
            assert series.n[b] == inside.sum()
    low = moved[largest < 0.25]
    said = f"{low.median():.2f} in the {len(low)} texts whose largest weight is in [0.00"
    assert said in chart.finding
    assert sum(sum(s.n) for s in chart.series) == 400  # a weight of exactly 1 too


def test_an_empty_bin_has_no_value_and_no_share_of_the_finding():
    values = {"max_attention": [0.1] * 11 + [0.9], "median_tvd": [0.2] * 11 + [0.4]}
    chart = by_key(make_test_rows(values, "permutation"))["permutation_by_max_attention"]
    (series,) = chart.series
    assert series.name == "all texts"  # no predictions are known
    assert series.n == (11, 0, 0, 1)
    assert math.isnan(series.y[1])
    assert "the one text" in chart.finding


def test_share_of_texts_moved_so_far(rows, drawn):
    chart = drawn["adversarial_distance"]
    columns = ["epsilon_max_jsd@0.01", "epsilon_max_jsd@0.05", "largest_jsd"]
    names = [series.name for series in chart.series]
    assert names == ["ε = 0.01, exact", "ε = 0.05, exact", "any output (ceiling)"]
    for column, series in zip(columns, chart.series, strict=True):
        jsd = values_of(rows, column)
        shares = [(jsd >= x - 1e-9).mean() for x in series.x]
        assert series.y == pytest.approx(shares)
        assert series.y[0] == 1
        assert f"{jsd.median():.2f}" in chart.finding
    assert "exact maxima" in chart.finding


def test_what_is_found_is_called_a_lower_bound_and_the_upper_one_is_drawn(rows):
    exact = rows.statistic == "epsilon_max_jsd_exact"
    upper = rows[rows.statistic == "epsilon_max_jsd@0.01"].assign(
        statistic="epsilon_max_jsd_upper@0.01", value=0.65
    )
    found = pd.concat([rows.assign(value=rows.value.where(~exact, 0.0)), upper])
    chart = by_key(found)["adversarial_distance"]
    names = [s.name for s in chart.series]
    assert names[:2] == ["ε = 0.01, found by a search", "ε = 0.01, at most"]
    assert "at least" in chart.finding
    assert "lower bound" in chart.finding


def test_other_epsilons_are_drawn_where_the_papers_were_not_tried():
    values = {f"epsilon_max_jsd@{e}": [0.1, 0.2] * 5 for e in (0.1, 0.5, 0.2, 0.02)}
    chart = by_key(make_test_rows(values, "adversarial"))["adversarial_distance"]
    names = [f"ε = {epsilon}, found by a search" for epsilon in (0.02, 0.1, 0.2)]
    assert [series.name for series in chart.series] == names


def test_single_texts_are_a_sample_and_the_median_is_of_all(rows, drawn):
    chart = drawn["js_against_attention"]
    gap, js = values_of(rows, "delta_attention"), values_of(rows, "delta_js")
    points, medians = chart.series
    assert len(points.x) == 300
    assert set(zip(points.x, points.y, strict=True)) <= set(zip(gap, js, strict=True))
    assert medians.is_connected
    tenth = np.floor(gap * 10)
    assert medians.x == pytest.approx(((tenth.drop_duplicates().sort_values()) + 0.5) / 10)
    assert medians.y == pytest.approx(js.groupby(tenth).median())
    assert medians.n == tuple(js.groupby(tenth).size())
    assert f"{js.median():.3f} nats" in chart.finding
    assert f"In {(js < 0).mean():.0%} of these texts" in chart.finding


def test_the_sample_of_texts_does_not_depend_on_the_order_of_rows(rows, drawn):
    again = by_key(rows.sample(frac=1, random_state=5))
    assert again["js_against_attention"] == drawn["js_against_attention"]


def test_fraction_to_flip_beside_the_smallest_set(rows, drawn):
    chart = drawn["fraction_to_flip"]
    orders, least = chart.series
    assert orders.x == ("random order", "attention", "attention × gradient")
    assert least.x == ("smallest set",)
    for name, k in (("random", 0), ("attention", 1), ("product", 2)):
        values = values_of(rows, f"fraction_to_flip@{name}").dropna()
        quartiles = values.quantile([0.25, 0.5, 0.75]).tolist()
        assert [orders.low[k], orders.y[k], orders.high[k]] == pytest.approx(quartiles)
        assert orders.n[k] == len(values)
    smallest = values_of(rows, "minimal_fraction").dropna()
    assert least.y[0] == smallest.median()
    assert f"the {len(smallest)} of 400 texts that some set flips" in chart.finding
    never = values_of(rows, "never_flips@attention").dropna()
    assert f"In {never.mean():.0%} of these texts, attention's order never flips" in chart.finding


def test_without_an_exact_minimum_the_best_ranking_stands_for_it(rows):
    known = rows[~rows.statistic.isin(["minimal_fraction", "fraction_to_flip@margin"])]
    chart = by_key(known)["fraction_to_flip"]
    attention, product = (
        values_of(rows, f"fraction_to_flip@{name}").dropna() for name in ("attention", "product")
    )
    assert chart.series[1].x == ("best ranking of each text",)
    assert chart.series[1].y[0] == np.minimum(attention, product).median()
    assert "some tested order" in chart.finding


@pytest.mark.parametrize(
    ("key", "family"),
    [
        ("comprehensiveness", "comprehensiveness"),
        ("sufficiency", "sufficiency"),
        ("plausibility", "auprc"),
    ],
)
def test_rankings_beside_a_random_one(rows, drawn, key, family):
    chart = drawn[key]
    own, random = (values_of(rows, f"{family}@{r}") for r in ("attention", "random"))
    assert chart.series[0].x[:2] == ("random order", "attention")
    assert chart.series[0].y[:2] == pytest.approx((random.mean(), own.mean()))
    assert [r.value for r in chart.references] == pytest.approx([random.mean()])
    assert f"a difference of {(own - random).mean():.2f} [" in chart.finding


def test_many_classes_are_not_divided():
    rows = make_audit_rows(60, n_classes=5)
    charts = build_audit_charts(rows, list("abcde"), site=SITE)
    assert [s.name for s in charts[0].series] == ["all texts"]


def test_only_what_there_are_rows_of_is_drawn(rows):
    for test, keys in (
        ("correlation", ["tau_leave_one_out", "tau_gradient"]),
        ("plausibility", ["plausibility"]),
        ("no such test", []),
    ):
        assert list(by_key(rows[rows.test.isin([test, "prediction"])])) == keys
    assert by_key(rows, site=(3, 1)) == {}
    assert by_key(rows[:0]) == {}


def test_nothing_but_undefined_values_is_no_chart(rows):
    undefined = rows.value.where(rows.test == "prediction")
    assert by_key(rows.assign(value=undefined)) == {}


def test_one_text_is_enough(rows):
    one = rows[rows.example_id == 101]
    for chart in by_key(one).values():
        assert "nan" not in chart.finding.lower()


def test_sentences_speak_of_what_is_predicted(rows):
    number = {"kind": "number", "name": "a number", "scale": 2.0, "origin": 0.0}
    words = build_wording(number | {"n_parts": 1, "decides": False})
    drawn = by_key(rows, words=words)
    assert "number" in drawn["comprehensiveness"].finding
    assert drawn["permutation_by_max_attention"].y_range is None
    assert "total variation" not in drawn["permutation_by_max_attention"].y_label


def test_many_rows_take_seconds():
    """Aggregation is of whole columns; a loop over rows would take minutes."""
    rows = make_audit_rows(10_000)
    start = time.process_time()
    assert len(by_key(rows)) == len(CHARTS)
    assert time.process_time() - start < 10
