"""The gate for continuous integration: conditions are read as they are written, and fail what meets them."""

import dataclasses
import re

import pytest

from hf_attnprobe.cli.commands import ANSWER_CONDITIONS
from hf_attnprobe.reports import ci_gate as gate
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import Finding, hide_unreliable_number, require_tests
from tests.helpers.error_messages import refused


def make_report(*findings):
    return AuditResult("model", "data", 40, 0, (), {}, findings=findings)


SHARES = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.87}
ACCURACY = Finding("accuracy", Answer.YES, "", 0.3, (0.2, 0.4), 40, SHARES)
FAITHFULNESS = Finding("faithfulness", Answer.PARTLY, "", 0.5, (0.4, 0.6), 40)


def test_the_answers_of_fail_on_are_those_of_the_verdict():
    assert (
        tuple(str(answer).replace(" ", "-") for answer in Answer)
        == gate.ANSWER_NAMES
        == ANSWER_CONDITIONS
    )


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("faithfulness<.5", False),
        ("faithfulness<0.51", True),
        ("faithfulness > 0.49", True),
        ("faithfulness>.5", False),
        ("faithfulness>-1", True),
        ("accuracy<0.7", False),  # of the accuracy, not of what it is above guessing
        ("accuracy<0.81", True),
        ("path_share<.15", True),
        ("path share < .15", True),
        ("path share<.05 surely", False),
        # The interval of faithfulness is from .4 to .6, that of the accuracy from .7 to .87.
        ("faithfulness<.59 surely", False),
        ("faithfulness<.61 surely", True),
        ("faithfulness<.41 possibly", True),
        ("faithfulness<.39 possibly", False),
        ("faithfulness>.41 surely", False),
        ("faithfulness>.39 surely", True),
        ("faithfulness>.59 possibly", True),
        ("faithfulness>.61  possibly", False),
        ("accuracy<.88 surely", True),
        ("accuracy<.86 surely", False),
        ("accuracy<.71 possibly", True),
        ("accuracy<.69 possibly", False),
    ],
)
def test_a_score_fails_below_or_above_its_limit(text, fails):
    conditions = gate.parse_conditions([text])
    path_share = Finding("path_share", Answer.NO, "", 0.1, (0.05, 0.14), 40)
    reasons = gate.list_failures(make_report(ACCURACY, FAITHFULNESS, path_share), conditions)
    assert len(reasons) == fails
    sign, limit, certainty = re.fullmatch(r"[a-z_ ]+ ?([<>]) ?(\S+) *(\w*)", text).groups()
    relation = "below" if sign == "<" else "above"
    ending = (
        f", which is {certainty + ' ' if certainty else ''}{relation} the limit {float(limit):g}"
    )
    assert all(reason.endswith(ending) for reason in reasons)


def test_a_report_fails_by_its_own_answer_alone():
    report = make_report(ACCURACY, FAITHFULNESS)
    own = str(report.answer).replace(" ", "-")
    failing = {
        name
        for name in gate.ANSWER_NAMES
        if gate.list_failures(report, gate.parse_conditions([name]))
    }
    assert failing == {own}


def test_what_was_not_measured_fails():
    (reason,) = gate.list_failures(
        make_report(ACCURACY), gate.parse_conditions(["faithfulness<.5"])
    )
    assert reason == "faithfulness was not measured"
    assert gate.list_failures(make_report(), []) == []


@pytest.mark.parametrize("n", [1, 9])
def test_a_number_of_fewer_than_ten_texts_was_not_measured(n):
    """Also if the number of the texts would pass."""
    few = hide_unreliable_number(dataclasses.replace(FAITHFULNESS, n=n), 30, "texts")
    assert not few.number and few.ci95 is None
    conditions = gate.parse_conditions(["faithfulness<.2"])
    assert gate.list_failures(make_report(few), conditions) == [
        f"faithfulness was not measured: {n} of 10 texts"
    ]
    enough = hide_unreliable_number(dataclasses.replace(FAITHFULNESS, n=10), 30, "texts")
    assert enough.value == 0.5 and not gate.list_failures(make_report(enough), conditions)


def test_faithfulness_without_a_required_test_was_not_measured():
    partial = require_tests(FAITHFULNESS, {"erasure": 0}, "texts")
    (reason,) = gate.list_failures(
        make_report(partial), gate.parse_conditions(["faithfulness<.2 surely"])
    )
    assert reason == (
        "faithfulness was not completely measured: a verdict also needs the test erasure"
    )


def test_certainty_needs_an_interval():
    no_interval = dataclasses.replace(FAITHFULNESS, ci95=None)
    for certainty in ("surely", "possibly"):
        conditions = gate.parse_conditions([f"faithfulness<.2 {certainty}"])
        (reason,) = gate.list_failures(make_report(no_interval), conditions)
        assert reason == "faithfulness was measured without a confidence interval"


@pytest.mark.parametrize(
    "text",
    [
        "faithfulness<.5 maybe",
        "no surely",
        "maybe",
        "beauty<1",
        "faithfulness",
        "faithfulness=.5",
        "accuracy<",
        "",
    ],
)
def test_other_conditions_are_refused(text):
    refused(f"--fail-on got {text!r}", gate.parse_conditions, ["no", text])
