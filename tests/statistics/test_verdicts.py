"""Verdicts: which answers follow from findings and thresholds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.reports.verdict import format_conclusion
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import CLASSIFIER_QUESTIONS
from hf_attnprobe.statistics.verdicts import RULES, Finding, apply_thresholds, conclude
from tests.helpers.error_messages import refused


def finding_of(rule, answer, **more):
    return Finding(rule, answer, "", 0.5, (0.4, 0.6), 100, **more)


def findings_by(**answers):
    return [finding_of(rule, answer) for rule, answer in answers.items()]


BY_HAND = [  # accuracy, effect, faithfulness: the answer
    ("yes", "yes", "yes", "yes"),
    ("yes", "yes", "partly", "partly"),
    ("yes", "yes", "no", "no"),
    ("yes", "yes", "cannot say", "cannot say"),
    ("yes", "no", "yes", "no"),
    ("yes", "no", "cannot say", "no"),
    ("yes", "cannot say", "yes", "cannot say"),
    ("yes", "cannot say", "no", "no"),
    ("yes", None, "yes", "cannot say"),
    ("yes", None, "no", "no"),
    ("yes", "yes", None, "cannot say"),
    ("yes", "no", None, "no"),
    ("no", "yes", "yes", "cannot say"),
    ("cannot say", "yes", "no", "cannot say"),
    (None, "yes", "yes", "yes"),
]


BESIDE = [
    key for key, asked in CLASSIFIER_QUESTIONS.items() if asked.role in ("part", "additional")
]


@pytest.mark.parametrize(("gate", "effect", "score", "expected"), BY_HAND)
@settings(max_examples=20)
@given(beside=st.dictionaries(st.sampled_from(BESIDE), st.sampled_from([*Answer])))
def test_faithfulness_answers_where_attention_has_an_effect_and_what_is_beside_decides_nothing(
    gate, effect, score, expected, beside
):
    asked = {"accuracy": gate, "faithfulness": score, "effect": effect}
    answers = {rule: Answer(said) for rule, said in asked.items() if said is not None}
    assert conclude(findings_by(**answers, **beside)).answer == expected


def test_what_surely_does_nothing_explains_nothing():
    """Removal says yes of any ranking that happens to be right."""
    answers = findings_by(faithfulness=Answer.YES)
    nothing = finding_of("effect", Answer.NO, has_no_effect=True)
    assert conclude([*answers, nothing]).answer == Answer.NO
    assert "Even the worst shuffle" in format_conclusion([*answers, nothing])
    little = finding_of("effect", Answer.NO)
    assert "hardly changes" in format_conclusion([*answers, little])


def test_at_chance_nothing_is_concluded():
    answers = findings_by(faithfulness=Answer.YES)
    nothing = finding_of("effect", Answer.NO, has_no_effect=True)
    for answer in (Answer.NO, Answer.CANNOT_SAY):
        at_chance = conclude([finding_of("accuracy", answer), *answers, nothing])
        assert at_chance.answer == Answer.CANNOT_SAY and at_chance.is_closed
    no_labels = Finding("accuracy", Answer.CANNOT_SAY, "", math.nan, None, 0)
    assert conclude([no_labels, *answers, nothing]).answer == Answer.NO


@pytest.mark.parametrize(
    "text, message",
    [
        ("faithfulness", "is not valid. Expected one or two numbers in ascending order"),
        ("faithfulness=x", "is not valid. Expected one or two numbers in ascending order"),
        ("faithfulness=.7,.4", "is not valid. Expected one or two numbers in ascending order"),
        ("effect=.1,.2", "is not valid. Expected a single number, for example effect=.1"),
        ("effect=inf", "is not valid. Expected a single number, for example effect=.1"),
        ("luck=.1", "does not begin with a question. Choose one of faithfulness"),
    ],
)
def test_invalid_thresholds_are_refused(text, message):
    refused(message, apply_thresholds, [text])


def test_thresholds_of_faithfulness_are_those_of_its_parts():
    rules = apply_thresholds(["mass=.3,.5", "faithfulness=.5,.8"])
    assert (rules["faithfulness"].partly, rules["faithfulness"].yes) == (0.5, 0.8)
    assert (rules["erasure"].partly, rules["erasure"].yes) == (0.5, 0.8)
    assert (rules["mass"].partly, rules["mass"].yes) == (0.3, 0.5)
    assert rules["effect"] == RULES["effect"]
