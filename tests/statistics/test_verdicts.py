"""Verdicts: which answers follow from findings and thresholds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.reports.verdict import format_conclusion
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import ANSWER_QUESTIONS, CLASSIFIER_QUESTIONS
from hf_attnprobe.statistics.verdicts import (
    RULES,
    Finding,
    apply_thresholds,
    conclude,
    explain_missing_questions,
    explain_too_few_texts,
    list_deciding_findings,
)
from tests.helpers.error_messages import refused


def finding_of(rule, answer, **more):
    return Finding(rule, answer, "", 0.5, (0.4, 0.6), 100, **more)


def findings_by(**answers):
    return [finding_of(rule, answer) for rule, answer in answers.items()]


BY_HAND = [  # accuracy, path share, faithfulness: the answer
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
DECIDING = {"accuracy", "faithfulness", "path_share"}
"""Questions that decide the verdict of a classifier."""


def test_shuffles_are_reported_but_decide_nothing_of_a_classifier():
    """They do of a language model, whose path share is not measured."""
    assert {"effect", "uniqueness"} <= set(BESIDE)
    assert CLASSIFIER_QUESTIONS.keys() == {*BESIDE, *DECIDING} - {"accuracy"}
    assert "path_share" not in ANSWER_QUESTIONS
    roles = {key: ANSWER_QUESTIONS[key].role for key in ("effect", "path")}
    assert roles == {"effect": "effect", "path": "effect"}
    classifier = findings_by(faithfulness=Answer.YES, path_share=Answer.YES, effect=Answer.NO)
    assert conclude(classifier).answer == Answer.YES
    answers = findings_by(
        passage=Answer.YES, faithfulness=Answer.YES, path=Answer.YES, effect=Answer.NO
    )
    assert conclude(answers).answer == Answer.NO


@given(st.sets(st.sampled_from([*DECIDING, *BESIDE])))
def test_the_deciding_findings_are_those_of_the_verdict(rules):
    findings = [finding_of(rule, Answer.YES) for rule in RULES if rule in rules]
    deciding = list_deciding_findings(findings)
    assert [finding.rule for finding in deciding] == [r for r in RULES if r in rules & DECIDING]
    own = findings_by(own=Answer.YES, passage=Answer.YES, path=Answer.YES, effect=Answer.NO)
    beside = findings_by(uniqueness=Answer.NO, source=Answer.YES)
    assert list_deciding_findings([*own, *beside]) == own


@pytest.mark.parametrize(("gate", "path", "score", "expected"), BY_HAND)
@settings(max_examples=20)
@given(beside=st.dictionaries(st.sampled_from(BESIDE), st.sampled_from([*Answer])))
def test_faithfulness_answers_where_the_decision_passes_and_what_is_beside_decides_nothing(
    gate, path, score, expected, beside
):
    asked = {"accuracy": gate, "faithfulness": score, "path_share": path}
    answers = {rule: Answer(said) for rule, said in asked.items() if said is not None}
    assert conclude(findings_by(**answers, **beside)).answer == expected


def test_a_decision_that_bypasses_attention_is_not_explained_by_it():
    """Removal says yes of any ranking that happens to be right."""
    answers = findings_by(faithfulness=Answer.YES)
    bypassed = finding_of("path_share", Answer.NO)
    assert conclude([*answers, bypassed]).answer == Answer.NO
    assert "of the decision passes through attention" in format_conclusion([*answers, bypassed])
    # Shuffles that do nothing are no reason by themselves.
    unmoved = [*findings_by(path_share=Answer.YES), finding_of("effect", Answer.NO)]
    assert conclude([*answers, *unmoved]).answer == Answer.YES
    assert "shuffl" not in format_conclusion([*answers, *unmoved])


def test_at_chance_nothing_is_concluded():
    answers = findings_by(faithfulness=Answer.YES)
    bypassed = finding_of("path_share", Answer.NO)
    for answer in (Answer.NO, Answer.CANNOT_SAY):
        at_chance = conclude([finding_of("accuracy", answer), *answers, bypassed])
        assert at_chance.answer == Answer.CANNOT_SAY and at_chance.is_closed
    no_labels = Finding("accuracy", Answer.CANNOT_SAY, "", math.nan, None, 0)
    assert conclude([no_labels, *answers, bypassed]).answer == Answer.NO


@pytest.mark.parametrize("rule", ["faithfulness", "path_share", "effect"])
def test_few_texts_are_the_reason_whatever_was_measured_of_them(rule):
    """Also if it decides nothing: to ask further questions of so few texts would not help."""
    few = Finding(rule, Answer.CANNOT_SAY, "", 0.5, None, 5)
    no_labels = Finding("accuracy", Answer.CANNOT_SAY, "", math.nan, None, 0)
    for findings in ([few], [no_labels, few]):
        conclusion = conclude(findings)
        assert conclusion.answer == Answer.CANNOT_SAY
        assert conclusion.why == explain_too_few_texts(5, 30)
    enough = Finding(rule, Answer.CANNOT_SAY, "", 0.5, None, 30)
    assert conclude([enough]).why == explain_missing_questions(
        [key for key in ("faithfulness", "path_share") if key != rule]
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("faithfulness", "is not valid. Expected one or two numbers in ascending order"),
        ("faithfulness=x", "is not valid. Expected one or two numbers in ascending order"),
        ("faithfulness=.7,.4", "is not valid. Expected one or two numbers in ascending order"),
        ("effect=.1,.2", "is not valid. Expected a single number, for example effect=.1"),
        ("effect=inf", "is not valid. Expected a single number, for example effect=.1"),
        ("path_share=.1,.2", "Expected a single number, for example path_share=.1"),
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
    assert rules["path_share"] == RULES["path_share"]
