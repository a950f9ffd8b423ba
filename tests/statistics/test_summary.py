import dataclasses
import math
import re

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.report import Report, parse_report
from hf_attnprobe.reports.result import convert_extras_to_json, convert_report_to_json
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import (
    Statistic,
    describe_statistic,
    find_statistic,
    get_sort_key,
    parse_key,
    summarize,
)
from tests.helpers.synthetic_rows import make_rows


DATA = DatasetName("d", "test")
READINGS = load_readings()
TOLD = {"asked_for": {"model": "m", "dataset": "d"}}


def rows(n=200, n_undefined=7):
    rng = np.random.default_rng(0)
    predicted = {("prediction", "predicted_class"): rng.integers(0, 2, n)}
    values = {
        ("permutation", "median_tvd"): rng.random(n),
        ("permutation", "max_attention"): rng.random(n),
        ("correlation", "attention_gradient_tau"): np.where(
            np.arange(n) < n_undefined, np.nan, rng.random(n)
        ),
        ("adversarial", "epsilon_max_jsd@0.05"): rng.random(n) / 2,
        ("adversarial", "epsilon_max_jsd@0.5"): rng.random(n) / 2,
    }
    return pd.concat([make_rows(predicted, layer=-1, head=-1), make_rows(values)])


def test_groups_are_the_predicted_classes():
    data = rows()
    statistics = summarize(data, ["neg", "pos", "never predicted"], READINGS)
    assert {s.group for s in statistics} == {"all", "neg", "pos"}
    predicted = data[data.statistic == "predicted_class"].set_index("example_id").value
    values = data[data.statistic == "median_tvd"].set_index("example_id").value
    of_pos = find_statistic(statistics, "median_tvd", group="pos").mean
    assert of_pos == pytest.approx(values[predicted == 1].mean())
    assert find_statistic(statistics, "median_tvd", group="never predicted") is None
    shuffled = data.sample(frac=1, random_state=0)
    assert summarize(shuffled, ["neg", "pos", "never predicted"], READINGS) == statistics


def test_undefined_everywhere():
    statistics = summarize(rows(20, 20), ["a", "b"], READINGS)
    named = {(s.statistic, s.group): s for s in statistics}
    found = named["attention_gradient_tau", "all"]
    assert (found.n, found.undefined) == (0, 20)
    assert math.isnan(found.mean) and math.isnan(found.ci95[0])


def report_of(rows, statistics=None, **more):
    if statistics is None:
        statistics = summarize(rows, ["neg", "pos"], READINGS)
    n = rows.example_id.nunique()
    return Report("m", DATA, n, 0, statistics, TOLD, rows=Rows.coerce(rows), **more)


def test_readings_name_the_numbers():
    statistics = summarize(rows(), ["a", "b"], READINGS)
    assert describe_statistic(
        find_statistic(statistics, "epsilon_max_jsd@0.05"), READINGS
    ).startswith("the most distant attention found that changes the output by at most 0.05")
    assert f"{find_statistic(statistics, 'median_tvd').mean:.2f}" in describe_statistic(
        find_statistic(statistics, "median_tvd"), READINGS
    )


def test_report_survives_json_and_renders():
    report = report_of(rows(20, 20))
    again = parse_report(convert_report_to_json(report) | convert_extras_to_json(report))
    assert convert_report_to_json(again) == convert_report_to_json(report)
    text, markdown = report.to_text(verbose=True), report.to_markdown()
    assert "undefined" in text and "nan" not in text
    assert "whose largest weight is in [0.75, 1.00]" in markdown and "[0.75, 1.00)" not in markdown
    assert "| – | – | – | 0 | 20 |" in markdown and "nan |" not in markdown


def test_a_test_without_any_value_says_so():
    nan = math.nan
    place = ("plausibility", "auprc@attention", 0, 0, "all")
    nothing = Statistic(*place, value=nan, ci95=(nan, nan), n=0, median=nan, std=nan, undefined=7)
    report = Report("m", DATA, 7, 0, (nothing,), TOLD)
    (line,) = re.findall(r"^ *auprc@attention .*", report.to_text(verbose=True), re.MULTILINE)
    assert line.split() == ["auprc@attention", "all", "–", "–", "–", "0", "7"]


# --- rankings -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(audited):
    return Report.load(audited("classifier"))


def test_keys_are_numbers_or_words_and_each_kind_has_its_order():
    names = ("median_tvd", "a@0.05", "a@1e-3", "a@random")
    assert [parse_key(name) for name in names] == [None, 0.05, 0.001, "random"]
    names = ["f@zebra", "f@product", "f@0.5", "f@random", "f@aardvark", "f@0.05", "f@attention"]
    ordered = ["f@0.05", "f@0.5", "f@random", "f@attention", "f@product", "f@aardvark", "f@zebra"]
    assert sorted(names, key=get_sort_key) == ordered


def test_every_comparison_of_rankings_is_a_line_of_its_test(report):
    markdown = report.to_markdown()
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines()]
    compared = {tuple(line[:3]): line[3:] for line in lines if len(line) == 9}
    assert len(report.comparisons) > 10
    for c in report.comparisons:
        difference, *_, p = compared[c.statistic, c.first, c.second]
        assert difference.startswith(f"{c.value:+z.3f} [")
        assert float(p.lstrip("< ")) == pytest.approx(c.adjusted_p_value, abs=1e-3)
    n_tests = len({c.test for c in report.comparisons})
    assert markdown.count("Holm-corrected for the") == n_tests == 2
    again = parse_report(convert_report_to_json(report) | convert_extras_to_json(report))
    assert again.comparisons == report.comparisons
    again = dataclasses.replace(again, rows=report.rows, examples=report.examples)
    assert again.to_text(verbose=True) == report.to_text(verbose=True)


def test_the_report_says_what_erasure_is_over(report):
    text, rows = report.to_markdown(), report.to_pandas()
    erasure = {k: v.to_numpy() for k, v in rows[rows.test == "erasure"].groupby("statistic").value}
    n_flippable = int((erasure["no_set_flips"] == 0).sum())
    never = np.nanmean(erasure["never_flips@attention"])
    assert f"over the {n_flippable} of {report.n} texts that some set flips" in text
    assert f"In {never:.0%} of these texts, attention's order never flips" in text
    assert "| fraction_to_flip@random | all |" in text
    assert not any(
        f"| fraction_to_flip@random | {name} |" in text for name in report.provenance["classes"]
    )


def test_heads_that_could_only_be_zero_ablated_are_said_to_be():
    def said(*names, heads):
        values = {("head_ablation", name): np.linspace(0, 1, 10) for name in names}
        predicted = {("prediction", "predicted_class"): np.zeros(10)}
        parts = [make_rows(values, layer=0, head=head) for head in heads]
        both = pd.concat([make_rows(predicted, layer=-1, head=-1), *parts])
        statistics = summarize(both, ["a", "b"], READINGS)
        return Report("m", DATA, 10, 0, statistics, TOLD).to_markdown()

    for heads in ((0,), (0, 1)):
        assert said("zero_tvd", heads=heads).count("could only be zero-ablated") == 1
        assert "could only be zero-ablated" not in said("zero_tvd", "mean_tvd", heads=heads)
