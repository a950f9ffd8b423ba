"""The gate for continuous integration: conditions are read as they are written, and fail what meets them."""

import re

import pytest

from hf_attnprobe.cli.commands import ANSWER_CONDITIONS
from hf_attnprobe.reports import ci_gate as gate
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import Finding
from tests.helpers.error_messages import refused


def make_report(*findings):
    return AuditResult("model", "data", 40, 0, (), {}, findings=findings)


ACCURACY = Finding("accuracy", Answer.YES, "", 0.3, (0.2, 0.4), 40, {"accuracy": 0.8})
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
    ],
)
def test_a_score_fails_below_or_above_its_limit(text, fails):
    conditions = gate.parse_conditions([text])
    reasons = gate.list_failures(make_report(ACCURACY, FAITHFULNESS), conditions)
    assert len(reasons) == fails
    sign, limit = re.fullmatch(r"[a-z]+ ?([<>]) ?(.*)", text).groups()
    relation = "below" if sign == "<" else "above"
    ending = f", which is {relation} the limit {float(limit):g}"
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


@pytest.mark.parametrize(
    "text", ["maybe", "beauty<1", "faithfulness", "faithfulness=.5", "accuracy<", ""]
)
def test_other_conditions_are_refused(text):
    refused(f"--fail-on got {text!r}", gate.parse_conditions, ["no", text])
