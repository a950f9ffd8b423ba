import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from hf_attnprobe.report import Report, from_json, to_json, to_markdown, to_text
from hf_attnprobe.summary import bootstrap_interval, find, reading, summarize, verdict


def rows(n=200, n_undefined=7):
    rng = np.random.default_rng(0)
    parts = []
    for test, statistic, layer, values in (
        ("prediction", "predicted_class", -1, rng.integers(0, 2, n)),
        ("permutation", "median_tvd", 0, rng.random(n)),
        ("permutation", "max_attention", 0, rng.random(n)),
        ("correlation", "attention_gradient_tau", 0, np.where(np.arange(n) < n_undefined, np.nan, rng.random(n))),
        ("adversarial", "epsilon_max_jsd@0.05", 0, rng.random(n) / 2),
        ("adversarial", "epsilon_max_jsd@0.5", 0, rng.random(n) / 2),
    ):
        parts.append(
            pd.DataFrame(
                {
                    "test": test,
                    "statistic": statistic,
                    "example_id": range(n),
                    "layer": layer,
                    "head": layer,
                    "value": values,
                }
            )
        )
    return pd.concat(parts)


def test_statistics_equal_numpy():
    data = rows()
    found = find(summarize(data, ["neg", "pos"]), "attention_gradient_tau")
    values = data[data.statistic == "attention_gradient_tau"].value.dropna()
    assert (found.n, found.undefined) == (193, 7)
    assert found.mean == pytest.approx(values.mean())
    assert found.median == pytest.approx(values.median())
    assert found.std == pytest.approx(values.std(ddof=0))


def test_groups_are_the_predicted_classes():
    data = rows()
    statistics = summarize(data, ["neg", "pos", "never predicted"])
    assert {s.group for s in statistics} == {"all", "neg", "pos"}
    predicted = data[data.statistic == "predicted_class"].set_index("example_id").value
    values = data[data.statistic == "median_tvd"].set_index("example_id").value
    assert find(statistics, "median_tvd", group="pos").mean == pytest.approx(values[predicted == 1].mean())
    assert find(statistics, "median_tvd", group="never predicted") is None


def test_interval_equals_scipys_bootstrap():
    values = np.random.default_rng(1).normal(size=(300, 1))
    ours = bootstrap_interval(values, n_resamples=20_000)[:, 0]
    theirs = scipy.stats.bootstrap((values[:, 0],), np.mean, method="percentile", n_resamples=20_000, rng=0)
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=5e-3)


def test_order_of_rows_does_not_matter():
    data = rows()
    shuffled = data.sample(frac=1, random_state=0)
    for a, b in zip(summarize(data, ["a", "b"]), summarize(shuffled, ["a", "b"]), strict=True):
        assert a == b


def test_undefined_everywhere():
    data = rows(20, 20)
    found = next(
        s for s in summarize(data, ["a", "b"]) if s.statistic == "attention_gradient_tau" and s.group == "all"
    )
    assert found.n == 0 and found.undefined == 20 and math.isnan(found.mean) and math.isnan(found.ci95[0])
    assert reading(found) == "undefined for all 20 texts"


def test_readings_and_verdict_name_the_numbers():
    statistics = summarize(rows(), ["a", "b"])
    assert reading(find(statistics, "epsilon_max_jsd@0.05")).startswith("with the output within 0.05")
    assert f"{find(statistics, 'median_tvd').mean:.2f}" in reading(find(statistics, "median_tvd"))
    assert len(verdict(statistics)) == 2  # no leave-one-out among the rows


def test_report_survives_json_and_renders():
    data = rows(20, 20)
    report = Report("m", "d", 20, 0, summarize(data, ["a", "b"]), {"versions": {}}, rows=data)
    again = from_json(to_json(report))
    assert to_json(again) == to_json(report)
    assert "undefined" in to_text(report) and "nan" not in to_text(report)
    assert "| [0.25, 0.50) |" in to_markdown(report)
