"""Comparison of audits: which texts, tests and units are compared, and which are no pairs."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from hf_attnprobe.reports.comparison import (
    build_difference_maps,
    compare_reports,
    describe_answer_change,
)
from hf_attnprobe.reports.paired_differences import UNCLEAR_DIFFERENCE_TEXT
from hf_attnprobe.reports.verdict import format_answer_reason
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.rows import make_empty_rows
from tests.helpers.error_messages import refused
from tests.helpers.sample_comparisons import (
    IMPORTANCE,
    N,
    by_name,
    report_of,
    rows_of,
    tidy,
    values,
)
from tests.helpers.synthetic_rows import convert_to_exchange


def with_a_default(rows):
    """The same, where nothing matters in texts that are predicted as the first class."""
    predicted = rows[rows.statistic == "predicted_class"].set_index("example_id").value
    is_default = rows.example_id.map(predicted) == 0
    is_part = rows.test == "scale"
    lost = np.where(predicted == 0, 0.02, 0.6)
    known = rows.assign(value=rows.value.where(~(is_default & is_part)))
    largest_loss = tidy("scale", "largest_loss", lost, predicted.index, head=0)
    return pd.concat([known, largest_loss], ignore_index=True)


def test_effects_are_compared_on_the_texts_that_they_are_graded_on():
    rows = with_a_default(rows_of(1)), with_a_default(rows_of(2))
    comparison = compare_reports([report_of(side) for side in rows])
    read = [side.pivot_table("value", "example_id", "statistic") for side in rows]
    for rule, statistic in (("effect", "standard_tvd"), ("path_share", "path_share")):
        (effect,) = [question for question in comparison.questions if question.rule == rule]
        explained = [texts[texts.predicted_class == 1][statistic] for texts in read]
        for own, finding, texts in zip(effect.means, effect.findings, explained, strict=True):
            assert own.value == pytest.approx(finding.value) == pytest.approx(texts.mean())
        both = pd.concat(explained, axis=1, join="inner")
        (difference,) = effect.differences
        assert difference.n == len(both) < N
        assert difference.value == pytest.approx((both.iloc[:, 1] - both.iloc[:, 0]).mean())


@pytest.fixture(scope="module")
def base():
    return report_of(rows_of(1))


def test_the_same_audit_twice_differs_in_nothing(base):
    same = compare_reports([base, dataclasses.replace(base)])
    found = [s.differences[0] for s in same.statistics]
    assert found and all(d.value == 0 and not d.has_clear_sign for d in found)
    assert len(set(same.names)) == 2
    assert not same.settings
    for question in same.questions:
        assert not question.differences[0].has_clear_sign
        assert not question.has_changed_answer(1)
    n_told = str(same).count(UNCLEAR_DIFFERENCE_TEXT)
    assert n_told >= len(same.questions)


@pytest.mark.parametrize(
    ("answers", "beginning", "n_reasons"),
    [
        ((Answer.NO, Answer.NO), "The answer is the same (", 0),
        ((Answer.YES, Answer.PARTLY), "The answer differs (", 0),
        ((Answer.YES, Answer.CANNOT_SAY), "It is open whether the answer differs (", 1),
        ((Answer.CANNOT_SAY, Answer.CANNOT_SAY), "It is open whether the answer differs (", 2),
    ],
)
def test_a_sentence_tells_whether_the_answer_differs(base, answers, beginning, n_reasons):
    same = compare_reports([base, dataclasses.replace(base)])
    changed = dataclasses.replace(same, answers=answers)
    sentence = describe_answer_change(changed, 1)
    assert sentence.startswith(beginning) and sentence in " ".join(changed.to_markdown().split())
    assert sentence.count("is cannot say for this reason: ") == n_reasons


@pytest.mark.parametrize("is_first", [False, True])
def test_a_more_faithful_model_with_the_weaker_answer_has_a_reason(base, is_first):
    """The decision bypasses the attention of this model, although its order is better."""
    faithful = report_of(rows_of(2, moved=0.4), model="models/bypassed")
    answers = {"path_share": Answer.NO}
    findings = [
        dataclasses.replace(f, answer=answers.get(f.rule, Answer.YES), incomplete_tests={})
        for f in faithful.findings
    ]
    faithful = dataclasses.replace(faithful, findings=tuple(findings))
    reports = [faithful, base] if is_first else [base, faithful]
    comparison = compare_reports(reports)
    name = comparison.names[reports.index(faithful)]
    assert comparison.answers[reports.index(faithful)] == Answer.NO

    def describe(base_answer):
        answers = [base_answer if report is base else Answer.NO for report in reports]
        return describe_answer_change(dataclasses.replace(comparison, answers=tuple(answers)), 1)

    sentence = describe(Answer.PARTLY)
    assert f"Faithfulness is higher for {name}. The answer for {name} is no for this" in sentence
    _, _, reason = sentence.partition("for this reason: ")
    assert reason and reason == format_answer_reason(faithful.findings, faithful.words)
    assert "for this reason" not in describe(Answer.NO)


def test_other_texts_are_no_pairs(base):
    rows = rows_of(2, moved=0.1, ids=range(200, 260))
    other = report_of(rows, model="models/tuned", data_fingerprint="other")
    comparison = compare_reports([base, other])
    assert comparison.n_shared == (0,)
    assert any("texts cannot be paired" in caution for caution in comparison.cautions)
    found = by_name(comparison)["attention_leave_one_out_tau"].differences[0]
    ours, theirs = (
        values(r, "attention_leave_one_out_tau").to_numpy() for r in (base.to_pandas(), rows)
    )
    assert not found.paired and found.n == 60
    assert found.value == pytest.approx(theirs.mean() - ours.mean())
    by_scipy = scipy.stats.bootstrap(
        (theirs, ours), lambda x, y, axis: x.mean(axis) - y.mean(axis), method="percentile", rng=0
    ).confidence_interval
    assert found.ci95 == pytest.approx(tuple(by_scipy), abs=0.003)


def test_the_same_ids_of_other_data_are_no_pairs(base):
    other = report_of(rows_of(2), model="b", data_fingerprint="other")
    assert not by_name(compare_reports([base, other]))["max_tvd"].differences[0].paired


def test_only_shared_texts_are_compared(base):
    rows = rows_of(2, ids=range(30, 120))
    comparison = compare_reports([base, report_of(rows, model="b")])
    assert comparison.n_shared == (50,)
    assert any("share 50 of 90 texts" in caution for caution in comparison.cautions)
    ours, theirs = values(base.to_pandas(), "median_tvd"), values(rows, "median_tvd")
    found = by_name(comparison)["median_tvd"].differences[0]
    assert found.value == pytest.approx((theirs - ours).dropna().mean())
    assert found.n == 50


def test_tests_with_other_options_are_not_compared(base):
    other = report_of(rows_of(2), model="b", options={"permutation": {"n_permutations": 10}})
    comparison = compare_reports([base, other])
    compared = {"correlation", "scale", "uniform_attention"}
    assert {s.test for s in comparison.statistics} == compared
    assert any("because the options differ: permutation" in c for c in comparison.cautions)
    questions = {q.rule: q for q in comparison.questions}
    assert questions["effect"].differences == (None,)
    assert "not compared" in str(comparison)
    setting = next(s for s in comparison.settings if "n permutations" in s.name)
    assert setting.values == ("100", "10")


def report_by_exchange(seed, **options):
    """An audit of the same kind in which words were exchanged as well as deleted."""
    rows = rows_of(seed)
    exchanged = convert_to_exchange(rows)
    exchanged = exchanged.assign(value=exchanged.value * 0.9)
    return report_of(
        pd.concat([rows, exchanged], ignore_index=True),
        model=f"m{seed}",
        options={"exchange": options},
        tests=["correlation", "scale", "exchange", "permutation", "uniform_attention"],
    )


def test_parts_by_exchange_are_compared_with_parts_by_exchange_alone(base):
    first, other = report_by_exchange(1), report_by_exchange(2)
    questions = {q.rule: q for q in compare_reports([first, other]).questions}
    name = f"exchange_{IMPORTANCE}"
    ours, theirs = (values(report.to_pandas(), name) for report in (first, other))
    difference = questions["importance"].differences[0]
    assert difference.value == pytest.approx((theirs - ours).mean())
    assert questions["faithfulness"].differences[0] is not None
    mixed = compare_reports([base, other])
    questions = {q.rule: q for q in mixed.questions}
    parts = ("faithfulness", "importance", "mass")
    assert all(questions[rule].differences == (None,) for rule in parts)
    assert questions["effect"].differences[0] is not None
    assert any("exchanged in only one of the audits" in c for c in mixed.cautions)
    assert not any("exchanged" in c for c in compare_reports([first, other]).cautions)
    unmeasured = rows_of(3)
    unmeasured = report_of(unmeasured[unmeasured.test != "scale"], model="c")
    assert not any("exchanged" in c for c in compare_reports([other, unmeasured]).cautions)


def test_parts_by_exchange_need_equal_numbers_of_donors():
    comparison = compare_reports([report_by_exchange(1), report_by_exchange(2, n_donors=9)])
    questions = {q.rule: q for q in comparison.questions}
    assert questions["importance"].differences == questions["faithfulness"].differences == (None,)
    assert any("because the options differ: exchange" in c for c in comparison.cautions)


def test_other_units_leave_only_accuracy(base):
    comparison = compare_reports([base, report_of(rows_of(2), model="b", level="word")])
    assert not comparison.statistics
    compared = [q.rule for q in comparison.questions if q.differences[0] is not None]
    assert compared == ["accuracy"]


def test_names_are_short_and_different(base):
    for models, dtypes, names in (
        (("runs/a/last", "runs/b/last"), ("x", "x"), ("a/last", "b/last")),
        (("m", "m"), ("float32", "float16"), ("m, float32", "m, float16")),
        (("m", "m"), ("x", "x"), ("m (1)", "m (2)")),
    ):
        reports = [
            report_of(base.to_pandas(), model=model, model_fingerprint="same", dtype=dtype)
            for model, dtype in zip(models, dtypes, strict=True)
        ]
        assert compare_reports(reports).names == names


def test_one_audit_or_none_with_rows_is_refused(base):
    refused("at least two audits", compare_reports, [base])
    refused(
        "read_audit", compare_reports, [base, dataclasses.replace(base, rows=make_empty_rows())]
    )


@pytest.mark.parametrize("statistic", ["path_share", "standard_tvd"])
def test_heads_have_a_map_of_differences(statistic):
    """Heads are graded by path share, or by effect if the path share was not measured."""
    rows = [rows_of(k, heads=3, moved=k / 10) for k in (1, 2)]
    if statistic != "path_share":
        rows = [frame[frame.statistic != "path_share"] for frame in rows]
    comparison = compare_reports([report_of(frame, model=f"m{k}") for k, frame in enumerate(rows)])
    assert any("Heads with the same number are compared" in c for c in comparison.cautions)
    (head_map,) = build_difference_maps(comparison)
    assert head_map.key == f"heads_{statistic}_difference_2"
    assert f'id="{head_map.key}"' in comparison.to_html()
    means = [
        frame[frame.statistic == statistic].groupby("head").value.mean().sort_index()
        for frame in rows
    ]
    np.testing.assert_allclose(head_map.values, [means[1] - means[0]])
