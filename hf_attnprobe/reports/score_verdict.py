"""The verdict about user-provided scores: whether they explain the predictions.

The verdict follows from the faithfulness of the scores, which has the same thresholds as the
faithfulness of attention. The path share and the effects of edited attention are properties of attention,
so they play no role here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from hf_attnprobe.reports.verdict import format_conclusion_reason
from hf_attnprobe.statistics.estimates import Estimate, estimate_mean
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.grades import Answer, Rule, grade, list_possible_answers
from hf_attnprobe.statistics.scale import (
    ANSWER_PARTS,
    CLASSIFIER_PARTS,
    Part,
    compute_contributions,
    compute_faithfulness,
)
from hf_attnprobe.statistics.verdicts import (
    ANSWER_SET,
    CLASSIFIER_SET,
    Conclusion,
    Finding,
    QuestionSet,
    hide_unreliable_number,
    make_finding,
    require_tests,
)
from hf_attnprobe.statistics.wording import Wording


SCORES_QUESTION = "Do these scores explain the predictions?"
"""Question that an audit of user-provided scores answers. It is the main heading of its report."""

SCORES_RANKING = "given"
"""Name of the user-provided scores in the rows."""

SCORES_CLAUSES = {
    Answer.YES: "the {units} with the highest scores are mostly those that decide the prediction",
    Answer.PARTLY: "the scores point to the {units} that decide the prediction more often than not",
    Answer.NO: "the scores are only {value:.0%} of the way from a random order of the {units} to the "
    "best one",
}
"""Maps each grade of the scores' faithfulness to a clause that explains the grade."""

SCORES_PART_MEANINGS = {
    "importance": "whether {units} with higher scores matter more for the prediction",
    "erasure": "whether attention weights set to zero in the order of the scores undermine the decision",
    "removal": "whether the prediction depends on the {units} with the highest scores",
    "mass": "whether the scores are proportional to how much the {units} matter",
    "order": "whether {units} with higher scores cost the answer more when deleted",
    "drop": "whether the answer depends on the {units} with the highest scores",
    "source": "whether the highest score is on the one of the {units} that the answer depends on",
}
"""Maps each part of the scores' faithfulness to a clause that states what the part measures."""


def build_score_question_set(question_set: QuestionSet, parts: Sequence[Part]) -> QuestionSet:
    """Restrict questions about attention to those that apply to user-provided scores.

    Args:
        question_set: questions about attention for one type of model.
        parts: parts of faithfulness for this type of model.

    Returns:
        The questions about faithfulness and its parts, with the tests that measure them.
    """
    questions = {
        key: question
        for key, question in question_set.questions.items()
        if question.role in ("score", "part")
    }
    # If no word can be exchanged, a part is measured by another test.
    tests = {part.test for part in parts} | {part.fallback.test for part in parts if part.fallback}
    return replace(
        question_set,
        questions=questions,
        required_tests=tuple(test for test in question_set.required_tests if test in tests),
    )


CLASSIFIER_SCORE_SET = build_score_question_set(CLASSIFIER_SET, CLASSIFIER_PARTS)
"""Questions that decide whether user-provided scores explain the predictions of a classifier."""
ANSWER_SCORE_SET = build_score_question_set(ANSWER_SET, ANSWER_PARTS)
"""Questions that decide whether user-provided scores explain the answers of a language model."""


def choose_score_question_set(words: Wording) -> QuestionSet:
    """Choose the questions that a verdict about user-provided scores requires for a type of model.

    Args:
        words: wording for this prediction type.
    """
    return ANSWER_SCORE_SET if words.kind == "answer" else CLASSIFIER_SCORE_SET


def compute_score_findings(
    findings: Sequence[Finding],
    evidence: Evidence | None,
    words: Wording,
    *,
    rules: Mapping[str, Rule],
    unsupported_tests: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Compute the findings that lead to the verdict about user-provided scores.

    Args:
        findings: the audit's findings; those about the predictions themselves are reused.
        evidence: statistics for all texts; None if there are none.
        words: wording for this prediction type.
        rules: thresholds that grade faithfulness and its parts, by question.
        unsupported_tests: names of tests that the model cannot run. The verdict does not require them.

    Returns:
        The findings about the predictions, followed by those about the scores.
    """
    preconditions = [finding for finding in findings if not finding.is_about_attention]
    if evidence is None:
        return tuple(preconditions)
    question_set = choose_score_question_set(words)
    required_tests = [test for test in question_set.required_tests if test not in unsupported_tests]
    incomplete_tests = evidence.count_missing_runs(required_tests)
    score_findings = [
        hide_unreliable_number(
            require_tests(finding, incomplete_tests, words.texts),
            question_set.min_texts,
            words.texts,
        )
        for finding in _iterate_graded_numbers(evidence, rules, question_set.min_texts)
    ]
    return (*preconditions, *score_findings)


def _iterate_graded_numbers(
    evidence: Evidence, rules: Mapping[str, Rule], min_texts: int
) -> Iterator[Finding]:
    """Yield findings about the faithfulness of the scores and about its parts."""
    explained = evidence.explained_evidence
    faithfulness = compute_faithfulness(explained.texts, SCORES_RANKING, explained.parts)
    score = faithfulness.score
    if score.n:
        part_values = ", ".join(
            f"{name} {part.value:.2f}" for name, part in faithfulness.parts.items()
        )
        rule = rules["faithfulness"]
        sentence = (
            "On the scale from a random order, 0, to the best order, 1, the user-provided scores are "
            f"at {score.interval_text} ({rule.threshold_text}): {part_values}."
        )
        finding = _grade_number("faithfulness", rule, score, sentence, min_texts)
        yield replace(finding, averaged_parts=tuple(faithfulness.parts))
    for key, estimate in faithfulness.parts.items():
        sentence = (
            "On the scale from a random order, 0, to the best order, 1, the user-provided scores are "
            f"at {estimate.interval_text}."
        )
        yield _grade_number(key, rules[key], estimate, sentence, min_texts)


def _grade_number(
    key: str, rule: Rule, estimate: Estimate, sentence: str, min_texts: int
) -> Finding:
    """Grade the faithfulness of the scores or one of its parts."""
    return make_finding(
        key,
        rule,
        grade(estimate, rule, min_texts),
        sentence,
        estimate,
        {},
        list_possible_answers(estimate, estimate, rule, min_texts),
    )


def format_scores_conclusion(conclusion: Conclusion, words: Wording) -> str:
    """Return the question about the scores with its answer and the reason.

    Args:
        conclusion: the verdict about the scores.
        words: wording for this prediction type.
    """
    reason = format_conclusion_reason(conclusion, words, SCORES_CLAUSES).rstrip(".")
    score = conclusion.score
    number = f" (faithfulness {score.number})" if score is not None and score.number else ""
    return f"{SCORES_QUESTION} {str(conclusion.answer).capitalize()}. {reason}{number}."


def estimate_score_advantage(evidence: Evidence, ranking: str) -> Estimate | None:
    """Estimate by how much the scores are more faithful than another ranking, paired by text.

    Args:
        evidence: statistics for all texts.
        ranking: name of the other ranking in the rows, such as "attention".

    Returns:
        The difference with its confidence interval. None if one of them was not measured, or if other
        parts were measured for the scores than for the ranking.
    """
    explained = evidence.explained_evidence
    names = (SCORES_RANKING, ranking)
    scores, other = (compute_faithfulness(explained.texts, name, explained.parts) for name in names)
    if scores.parts.keys() != other.parts.keys():
        return None
    contributions = [
        compute_contributions(explained.texts, name, explained.parts) for name in names
    ]
    if contributions[0] is None or contributions[1] is None:
        return None
    return estimate_mean(contributions[0] - contributions[1])
