import dataclasses
import math
import re

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.audit_reports.report import Report, from_json
from hf_attnprobe.audit_reports.result import extras_to_json, to_json
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.statistics.differences import compare_rankings
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import (
    Statistic,
    find_statistic,
    key_of,
    position,
    sentence,
    summarize,
)
from made_up_rows import rows_of_texts


DATA = DatasetName("d", "test")
READINGS = readings()
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
    return pd.concat([rows_of_texts(predicted, layer=-1, head=-1), rows_of_texts(values)])


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
    return Report("m", DATA, n, 0, statistics, TOLD, rows=Rows.of(rows), **more)


def test_readings_name_the_numbers():
    statistics = summarize(rows(), ["a", "b"], READINGS)
    assert sentence(find_statistic(statistics, "epsilon_max_jsd@0.05"), READINGS).startswith(
        "the farthest attention found that keeps the output within 0.05"
    )
    assert f"{find_statistic(statistics, 'median_tvd').mean:.2f}" in sentence(
        find_statistic(statistics, "median_tvd"), READINGS
    )


def test_report_survives_json_and_renders():
    report = report_of(rows(20, 20))
    again = from_json(to_json(report) | extras_to_json(report))
    assert to_json(again) == to_json(report)
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

RANKINGS = ("random", "attention", "gradient", "product", "leave_one_out", "margin")
NEEDS = dict(
    zip(RANKINGS, (0.9, 0.6, 0.4, 0.2, 0.5, 0.1), strict=True)
)  # fractions that a ranking removes, at most


def erasure_rows(n=200, product_margin_tau=0.97, layer=0, head=0):
    """Rows as the tests ``erasure``, ``input_erasure`` and ``plausibility`` give them."""
    rng = np.random.default_rng(0)
    top, other = rng.random(n) < 0.3, rng.random(n) < 0.1
    erasure = {
        "top_flips": top,
        "random_flips": other,
        "both_flip": top & other,
        "neither_flips": ~top & ~other,
        "only_top_flips": top & ~other,
        "only_random_flips": other & ~top,
        "minimal_fraction": rng.random(n) * 0.1,
        "minimal_size": rng.integers(1, 4, n),
        "no_set_flips": rng.random(n) < 0.05,
        "product_margin_tau": np.full(n, product_margin_tau),
    }
    for name, needs in NEEDS.items():
        never = rng.random(n) < needs / 4
        fraction = np.where(never, 1.0, 0.1 + rng.random(n) * needs)
        erasure |= {
            f"fraction_to_flip@{name}": fraction,
            f"never_flips@{name}": never,
            f"regret@{name}": fraction - 0.01,
            f"way_to_best@{name}": 1 - fraction,
            f"probability_mass_removed@{name}": np.full(n, 0.97),
        }
    of_rankings = [name for name in erasure if "@" in name or name.startswith("mini")]
    for name in of_rankings:  # no set flips these
        erasure[name] = np.where(erasure["no_set_flips"], np.nan, erasure[name])
    shift = {"attention": 0.2, "random": 0.0, "product": 0.3}
    erased = {f"comprehensiveness@{k}": rng.random(n) / 10 + v for k, v in shift.items()}
    tests = {
        "erasure": erasure,
        "input_erasure": erased,
        "plausibility": {
            f"{name}@{k}": rng.random(n)
            for name in ("auprc", "iou_f1")
            for k in ("random", "attention")
        },
        "prediction": {"predicted_class": rng.integers(0, 2, n)},
    }
    parts = [
        pd.DataFrame(
            {
                "test": test,
                "statistic": name,
                "example_id": range(n),
                "layer": layer,
                "head": head,
                "value": v,
            }
        )
        for test, values in tests.items()
        for name, v in values.items()
    ]
    return pd.concat(parts).astype({"value": float})


@pytest.fixture
def readings(monkeypatch):
    """Readings of the tests whose rows these are, whether or not they are all registered."""
    for test, names in erasure_rows(3).groupby("test").statistic:
        if test != "prediction":
            known = READINGS.get(test, {})
            families = {name.split("@")[0] for name in names}
            monkeypatch.setitem(
                READINGS, test, {f: known.get(f, "{key} {mean:.2f}") for f in families} | known
            )


@pytest.fixture
def report(readings):
    rows = erasure_rows()
    return report_of(rows, comparisons=compare_rankings(rows))


def test_keys_are_numbers_or_words_and_each_kind_has_its_order():
    names = ("median_tvd", "a@0.05", "a@1e-3", "a@random")
    assert [key_of(name) for name in names] == [None, 0.05, 0.001, "random"]
    names = ["f@zebra", "f@product", "f@0.5", "f@random", "f@aardvark", "f@0.05", "f@attention"]
    ordered = ["f@0.05", "f@0.5", "f@random", "f@attention", "f@product", "f@aardvark", "f@zebra"]
    assert sorted(names, key=position) == ordered


def test_statistics_of_rankings_stand_in_the_order_of_rankings(report):
    found = [
        s.statistic
        for s in report.statistics
        if s.group == "all" and s.statistic.startswith("fraction_to_flip")
    ]
    assert found == [f"fraction_to_flip@{name}" for name in RANKINGS]


def test_the_text_has_a_table_of_rankings_and_what_was_compared(report):
    text = re.sub(r"\s+", " ", report.to_text(verbose=True))
    mean = find_statistic(report.statistics, "fraction_to_flip@product").mean
    assert f"fraction_to_flip@product all {mean:.3f} [" in text
    lines = [line.strip("| ").split(" | ") for line in report.to_markdown().splitlines()]
    compared = {tuple(line[:3]): line[3:] for line in lines if len(line) == 9}
    for name in ("gradient", "product", "margin"):
        difference, *_, p = compared["fraction_to_flip", "attention", name]
        assert difference.startswith("+0.") and float(p.lstrip("< ")) <= 0.001
    difference, *_, p = compared["fraction_to_flip", "attention", "random"]
    assert difference.startswith("-0.") and float(p.lstrip("< ")) <= 0.001
    assert float(compared["fraction_to_flip", "attention", "leave_one_out"][-1]) > 0.05
    assert ("flips", "top", "random") in compared and "nan" not in text
    assert ("fewer_removals", "attention", "random") in compared


def test_the_report_has_the_tables_of_erasure(report):
    text = report.to_markdown()
    rows = report.to_pandas()
    values = {
        name: v.to_numpy() for name, v in rows[rows.test == "erasure"].groupby("statistic").value
    }
    for name in ("top_flips", "both_flip", "only_top_flips"):
        assert f"| {name} | all | {values[name].mean():.3f} [" in text
    fractions = values["fraction_to_flip@attention"]
    assert f"| fraction_to_flip@attention | all | {np.nanmean(fractions):.3f} [" in text
    assert f"| {np.nanmedian(fractions):.3f} | {np.nanstd(fractions):.3f} |" in text
    n_flippable = int((values["no_set_flips"] == 0).sum())
    never = np.nanmean(values["never_flips@attention"])
    assert f"over the {n_flippable} of 200 texts that some set flips" in text
    assert f"Attention's order never flips {never:.0%} of them" in text
    assert "restates the read-out's algebra" in text
    assert text.count("corrected by Holm over the") == 2  # erasure and input erasure
    assert "It says nothing about faithfulness" in text
    assert "| fraction_to_flip@random | all |" in text
    assert "| fraction_to_flip@random | neg |" not in text


def test_comparisons_survive_json(report):
    again = from_json(to_json(report) | extras_to_json(report))
    assert again.comparisons == report.comparisons and len(again.comparisons) == 1 + 5 + 5 + 5 + 2
    again = dataclasses.replace(again, rows=report.rows)
    assert again.to_text(verbose=True) == report.to_text(verbose=True)


def test_heads_that_could_only_be_zero_ablated_are_said_to_be():
    rows = erasure_rows(10)[:10].assign(test="head_ablation", statistic="zero_tvd")
    replaced = rows.assign(statistic="mean_tvd")
    predicted = erasure_rows(10)[lambda x: x.test == "prediction"]
    for sites in ((0,), (0, 1)):
        both = pd.concat([predicted, *(rows.assign(head=head) for head in sites)])
        statistics = summarize(both, ["a", "b"], READINGS)
        said = Report("m", DATA, 10, 0, statistics, TOLD).to_markdown()
        assert said.count("only be zero-ablated, not replaced") == 1
        statistics = summarize(
            pd.concat([both, *(replaced.assign(head=head) for head in sites)]), ["a", "b"], READINGS
        )
        said = Report("m", DATA, 10, 0, statistics, TOLD).to_markdown()
        assert "only be zero-ablated" not in said
