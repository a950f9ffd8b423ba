"""Findings of an audit, and sentences about them.

A finding answers one question about the model's attention as a whole: its only head, or all heads
edited together. The module :mod:`hf_attnprobe.statistics.verdicts` defines the rules, thresholds and
sources, and how the verdict follows from the findings.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.statistics.estimates import (
    MIN_DISPLAYED_TEXTS,
    Estimate,
    compute_share_interval,
)
from hf_attnprobe.statistics.evidence import Evidence, build_evidence
from hf_attnprobe.statistics.grades import (
    MIN_PROMPTS,
    MIN_TEXTS,
    Answer,
    Rule,
    grade,
    join_answers,
    list_possible_answers,
)
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.rows import Rows, Texts
from hf_attnprobe.statistics.scores import (
    NumberQuality,
    Quality,
    measure_number_quality,
    measure_quality,
)
from hf_attnprobe.statistics.summary import (
    Statistic,
    select_predictions,
)
from hf_attnprobe.statistics.verdicts import (
    ANSWER_SET,
    CLASSIFIER_SET,
    DISPLAY_ADVICE,
    RULES,
    Conclusion,
    Finding,
    QuestionSet,
    choose_question_set,
    conclude,
    explain_incomplete_tests,
    explain_too_few_texts,
    grade_measurement,
    hide_unreliable_number,
    index_by_rule,
    join_words,
    make_finding,
    require_tests,
)
from hf_attnprobe.statistics.wording import CLASS_WORDING, Wording


MAIN_QUESTION = "Does attention explain these predictions?"
"""Question that every audit answers. It is the main heading of a report."""


def compute_findings(
    rows: Rows | pd.DataFrame,
    label_names: Sequence[str],
    *,
    seed: int = 0,
    words: Wording = CLASS_WORDING,
    rules: Mapping[str, Rule] = RULES,
    unsupported_tests: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Compute a finding for every question that the rows answer.

    Copies of a text count once (:meth:`~hf_attnprobe.statistics.rows.Rows.merge_duplicates`).

    Args:
        rows: the audit's rows.
        label_names: class names.
        seed: bootstrap seed for the confidence interval of R² (predicted numbers only).
        words: wording for this prediction type.
        rules: thresholds that grade the questions about attention, by question.
        unsupported_tests: names of tests that the model cannot run. A verdict does not require them.

    Returns:
        The findings in the order of the rules.
    """
    rows = Rows.coerce(rows).merge_duplicates()
    evidence = build_evidence(rows, label_names, words=words)
    predictions = select_predictions(rows)
    return compute_findings_from_evidence(
        evidence,
        predictions,
        words=words,
        seed=seed,
        rules=rules,
        unsupported_tests=unsupported_tests,
    )


def compute_findings_from_evidence(
    evidence: Evidence | None,
    predictions: Texts,
    *,
    words: Wording = CLASS_WORDING,
    seed: int = 0,
    rules: Mapping[str, Rule] = RULES,
    unsupported_tests: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Compute the findings from evidence that was already extracted from rows.

    Args:
        evidence: statistics about the attention as a whole; None if there are none.
        predictions: result of :func:`~hf_attnprobe.statistics.summary.select_predictions`.
        words: wording for this prediction type.
        seed: bootstrap seed for the confidence interval of R² (predicted numbers only).
        rules: thresholds that grade the questions about attention, by question.
        unsupported_tests: names of tests that the model cannot run. A verdict does not require them.

    Returns:
        The findings: first about the predictions themselves, then about attention. A finding about
        fewer than ten texts has no number. The proportion of answers that a language model generates
        itself is an exception, because it only counts the audited prompts.
    """
    question_set = ANSWER_SET if words.kind == "answer" else CLASSIFIER_SET
    if question_set is ANSWER_SET:
        preconditions = [compute_own_answer_finding(evidence), compute_passage_finding(evidence)]
    else:
        preconditions = [compute_accuracy_finding(predictions, words, seed)]
    findings = [*preconditions]
    if evidence is not None:
        attention_findings = iterate_attention_findings(evidence, rules, question_set)
        required_tests = [
            test for test in question_set.required_tests if test not in unsupported_tests
        ]
        incomplete_tests = evidence.count_missing_runs(required_tests)
        findings += [
            require_tests(finding, incomplete_tests, words.texts) for finding in attention_findings
        ]
    return tuple(
        finding
        if finding.rule == "own"
        else hide_unreliable_number(finding, question_set.min_texts, words.texts)
        for finding in findings
    )


def iterate_attention_findings(
    evidence: Evidence,
    rules: Mapping[str, Rule] = RULES,
    question_set: QuestionSet = CLASSIFIER_SET,
) -> Iterator[Finding]:
    """Yield a finding for each question about attention that the evidence can answer.

    Args:
        evidence: statistics for all texts.
        rules: thresholds that grade the questions, by question.
        question_set: questions for this model type.

    Yields:
        The findings in the order of the questions; questions without measurements are skipped.
    """
    for key in question_set.questions:
        rule = rules[key]
        measurement = ALL_QUESTIONS[key].measure_function(evidence, rule)
        if measurement is not None:
            yield grade_measurement(key, rule, measurement, question_set.min_texts)


def compute_answer(findings: Sequence[Finding]) -> Answer:
    """Return the audit's main answer: whether attention explains the predictions.

    The answer is "cannot say" unless the model is certainly better than always predicting the
    majority class. Otherwise, there is nothing to explain. Accuracy has no other influence.

    Args:
        findings: the audit's findings.
    """
    return conclude(findings).answer


def format_conclusion(findings: Sequence[Finding], words: Wording = CLASS_WORDING) -> str | None:
    """Return the main question with its answer and the reason.

    Args:
        findings: the audit's findings.
        words: wording for this prediction type.

    Returns:
        A question and two sentences; None if no finding is about attention.
    """
    if not any(f.is_about_attention for f in findings):
        return None
    conclusion = conclude(findings)
    score = conclusion.score
    number = "" if score is None else f" ({score.name.lower()} {score.number})"
    answer = str(conclusion.answer).capitalize()
    return f"{MAIN_QUESTION} {answer}. {format_answer_reason(findings, words).rstrip('.')}{number}."


def describe_zero_ablation_limit(statistics: Sequence[Statistic]) -> str | None:
    """Return a caution if the effects of heads were measured by zero ablation only.

    Args:
        statistics: the audit's statistics.

    Returns:
        The caution; None if heads were not ablated, or were also replaced by their mean output.
    """
    names = {s.statistic for s in statistics if s.is_single_head}
    if "zero_tvd" not in names or "mean_tvd" in names:
        return None
    return (
        "Ablation: the heads of this type of model could only be zero-ablated. The output of a "
        "single head cannot be replaced by its mean or by its output for another text, so zero "
        "ablation may overestimate what the heads contribute."
    )


# --- preconditions for an explanation: accuracy, generated answers ---------------------

MAJORITY_DESCRIPTIONS = {
    "labels": "always predicting each label's more frequent value",
    "tags": "always predicting the most frequent tag",
    "choice": "always choosing the most frequent position",
}
"""Maps a type of prediction to a description of always giving the most frequent answer.

For all other types, the description is "always predicting the most frequent class".
"""

ACCURACY_TEMPLATES = {
    "labels": "The model predicts {share} of the labels of a text correctly",
    "tags": "The model tags {share} of the labelled words of a text correctly",
    "span": "The model finds {share} of the starts and ends of the answers",
    "words": "The model's most likely word is the masked one for {share} of the masks",
}
"""Maps a type of prediction to the sentence about its accuracy.

These types have several predictions per text. ``{share}`` is the proportion of correct predictions,
with its confidence interval.
"""

ALL_CORRECT_TEMPLATES = {
    "labels": "all of them in {share} of the texts",
    "tags": "all of them in {share} of the texts",
    "span": "both in {share} of the texts (exact match)",
}
"""Maps a type of prediction to the end of the sentence about its accuracy.

``{share}`` is the proportion of texts in which all predictions are correct.
"""


def compute_accuracy_finding(predictions: Texts, words: Wording, seed: int = 0) -> Finding:
    """Check whether the model predicts better than a constant prediction.

    Args:
        predictions: result of :func:`~hf_attnprobe.statistics.summary.select_predictions`.
        words: wording for this prediction type.
        seed: bootstrap seed for the confidence interval of R² (predicted numbers only).

    Returns:
        A finding; its answer is "cannot say" if the texts have no labels.
    """
    quality = measure_quality(predictions)
    if not words.is_number:
        return grade_class_quality(quality, words)
    number_quality = measure_number_quality(predictions, seed=seed)
    if number_quality is None:
        return make_open_accuracy_finding()
    return _grade_number_quality(number_quality, quality)


def make_open_accuracy_finding(
    reason: str = "the texts have no labels", details: str = ""
) -> Finding:
    """Make the finding "cannot say" about accuracy.

    Args:
        reason: reason why accuracy cannot be graded, as a clause.
        details: further sentences for the report.
    """
    sentence = f"{reason[0].upper()}{reason[1:]}."
    if details:
        sentence += f" {details}"
    finding = _make_accuracy_finding(Answer.CANNOT_SAY, sentence, NOT_MEASURED, {})
    return replace(finding, open_reason=reason)


def _make_accuracy_finding(
    answer: Answer,
    sentence: str,
    number: Estimate,
    yardsticks: Mapping[str, float | None],
) -> Finding:
    """Make a finding about accuracy."""
    return make_finding("accuracy", RULES["accuracy"], answer, sentence, number, yardsticks)


NOT_MEASURED = Estimate(float("nan"), None, 0)
"""Number of a finding that was measured on no text: NaN without a confidence interval."""


def compute_own_answer_finding(evidence: Evidence | None) -> Finding:
    """Check whether the model itself generates the answers that the audit explains.

    Args:
        evidence: statistics for all prompts; None if there are none.

    Returns:
        A finding. Its number is the proportion of prompts whose answer the model generates.
    """
    share = None if evidence is None else evidence.greedy_share
    rule = RULES["own"]
    if share is None:
        sentence = (
            "This audit did not check whether the model itself generates the answers. Only the "
            "test 'sources' checks this."
        )
        return make_finding("own", rule, Answer.CANNOT_SAY, sentence, NOT_MEASURED, {})
    sentence = (
        f"The model itself generates the answer in {share.interval_text} of {share.n} prompts "
        "(greedy decoding). All other results are for these prompts."
    )
    answer = grade(share, rule, MIN_PROMPTS)
    if share.value == 1 and (share.n or 0) >= MIN_PROMPTS:
        # No prompt is excluded, so the other results hold for all of them.
        answer = Answer.YES
    return make_finding("own", rule, answer, sentence, share, {})


def compute_passage_finding(evidence: Evidence | None) -> Finding:
    """Check whether a language model's answers depend on the passage.

    Without this dependence, there is nothing in the passage that attention could explain.

    Args:
        evidence: statistics for all prompts; None if there are none.

    Returns:
        A finding. Its number is the mean increase of the answer's log-probability with the passage,
        in nats.
    """
    gain = NOT_MEASURED if evidence is None else evidence.estimate_mean("contextual_gain")
    rule = RULES["passage"]
    if not gain.n:
        sentence = (
            "No measured prompt has an answer that the model itself generates (test sources)."
        )
        return make_finding("passage", rule, Answer.CANNOT_SAY, sentence, gain, {})
    answer = grade(gain, rule, MIN_PROMPTS)
    consequence = _format_consequence(
        answer, gain, "it depends on the passage", "it does not depend on it", MIN_PROMPTS
    )
    sentence = (
        "With the passage, the answer's log-probability is higher by "
        f"{gain.interval_text} nats, {consequence}."
    )
    return make_finding("passage", rule, answer, sentence, gain, {})


def _grade_number_quality(numbers: NumberQuality, sides: Quality) -> Finding:
    """Grade the accuracy of predicted numbers by R².

    Args:
        numbers: R² and mean absolute errors.
        sides: how often the predicted number is on the right side of the model's threshold; its
            accuracy is None if there is no threshold.
    """
    r_squared = numbers.r_squared
    if math.isnan(r_squared.value):
        return make_open_accuracy_finding(
            f"all {numbers.n_labelled} labels are equal, so R² is not defined"
        )
    answer = grade(r_squared, RULES["accuracy"])
    consequence = _format_consequence(
        answer, r_squared, "the model is better", "the model is not better"
    )
    sentence = (
        f"The predicted number is off by {numbers.error.interval_text} on average over "
        f"{format_count(numbers.n_labelled, 'text')}. Always predicting the labels' mean is off by "
        f"{numbers.error_of_mean.interval_text} (mean absolute error, in the labels' own unit). "
        f"R² is {r_squared.interval_text} (0 for predicting the mean), {consequence}."
    )
    yardsticks = {
        "mean_absolute_error": numbers.error.value,
        "mean_absolute_error_of_mean": numbers.error_of_mean.value,
    }
    if sides.accuracy is not None and sides.beyond_majority is not None:
        sentence += (
            f" The side of the threshold is right in {sides.accuracy.interval_text} of "
            f"{format_count(sides.n_labelled, 'text')}; always predicting the more frequent side is "
            f"right in {sides.majority:.2f}. The difference is {sides.beyond_majority.interval_text}."
        )
    return _make_accuracy_finding(answer, sentence, r_squared, yardsticks)


def grade_class_quality(quality: Quality, words: Wording) -> Finding:
    """Grade a classifier's accuracy.

    The graded number is the difference from always predicting the majority class.

    Args:
        quality: accuracy, calibration and related numbers.
        words: wording for this prediction type.
    """
    rule, top_probability = RULES["accuracy"], quality.top_probability
    certainty = f"Its mean {words.top_probability_name} is {top_probability.interval_text}"
    explanation = (
        "The closer this number is to 1, the less a small change in the model affects its output."
    )
    if quality.accuracy is None:
        return make_open_accuracy_finding(details=f"{certainty}. {explanation}")
    if quality.beyond_majority is None:
        accuracy = _format_accuracy(quality, words)
        reason = f"{accuracy[0].lower()}{accuracy[1:]}, but there is no baseline to compare with"
        return make_open_accuracy_finding(reason, f"{certainty}. {explanation}")
    difference = quality.beyond_majority
    answer = grade(difference, rule)
    consequence = _format_consequence(
        answer, difference, "the model is better", "the model is not better"
    )
    majority = MAJORITY_DESCRIPTIONS.get(words.kind, "always predicting the most frequent class")
    calibration = ""
    if quality.calibration_error is not None:
        calibration = f" Its calibration error is {quality.calibration_error:.2f}."
    sentence = (
        f"{_format_accuracy(quality, words)}; {majority} is right in {quality.majority:.2f}. The "
        f"difference is {difference.interval_text}, {consequence}.{calibration} {certainty}. "
        f"{explanation}"
    )
    accuracy_low, accuracy_high = quality.accuracy.ci95 or (None, None)
    yardsticks = {
        "accuracy": quality.accuracy.value,
        "accuracy_low": accuracy_low,
        "accuracy_high": accuracy_high,
        "majority": quality.majority,
        "top_probability": top_probability.value,
        "calibration_error": quality.calibration_error,
    }
    return _make_accuracy_finding(answer, sentence, difference, yardsticks)


def _format_consequence(
    answer: Answer, number: Estimate, if_positive: str, if_not: str, min_texts: int = MIN_TEXTS
) -> str:
    """Return a clause with the conclusion from a number.

    Args:
        answer: whether the number is above 0.
        number: the number.
        if_positive: conclusion for the answer "yes".
        if_not: conclusion for the answer "no".
        min_texts: smallest number of texts that can give such an answer.
    """
    if answer == Answer.CANNOT_SAY:
        if (number.n or 0) < min_texts:
            return f"but there are too few texts to decide ({min_texts} are needed)"
        return "which cannot be distinguished from 0"
    conclusion = if_positive if answer == Answer.YES else if_not
    return f"so {conclusion}"


def _format_accuracy(quality: Quality, words: Wording) -> str:
    """Return a sentence about the model's accuracy, without its full stop."""
    # Callers check that the texts have labels.
    assert quality.accuracy is not None
    n_texts = format_count(quality.n_labelled, "text")
    if not quality.has_parts:
        return f"The model is right in {quality.accuracy.interval_text} of {n_texts}"
    template = ACCURACY_TEMPLATES.get(words.kind, "The model is right in {share} of its parts")
    clause = template.format(share=quality.accuracy.interval_text)
    if quality.all_met is not None and words.kind in ALL_CORRECT_TEMPLATES:
        all_correct = ALL_CORRECT_TEMPLATES[words.kind].format(share=quality.all_met.interval_text)
        clause += f", {all_correct}"
    return f"{clause} (mean over {n_texts})"


# --- explanations of findings -----------------------------------------------------------


WORSE_THAN_RANDOM = "worse than a random order of the {units}"
"""Explanation of a faithfulness score whose whole confidence interval is below 0."""

OPEN_QUESTIONS = {
    "importance": "{units} with more attention matter more for the prediction",
    "erasure": "the largest attention weights decide the prediction",
    "removal": "the most attended {units} decide the prediction",
    "mass": "attention is proportional to how much the {units} matter",
    "order": "{units} with more attention cost the answer more when deleted",
    "drop": "the most attended {units} decide the answer",
    "source": "the most attended of the {units} is the one that the answer depends on",
    "path": "blocking attention to {units} costs as much as deleting them",
    "path_share": "a substantial part of the decision passes through attention",
    "effect": "it matters which of the {units} has which weight",
    "uniqueness": "very different weights would change the output",
}
"""Maps each question to the end of the sentence "cannot say whether …"."""


def describe_finding(
    finding: Finding, words: Wording = CLASS_WORDING, *, counts_missing_texts: bool = False
) -> str:
    """Return a clause that explains a finding's number in words.

    The clause uses the default thresholds (``RULES``), even if the user set other ones. For an open
    question, it names the answers that remain possible.

    Args:
        finding: the finding.
        words: wording for this prediction type.
        counts_missing_texts: return only the reason for an open answer, with the number of texts
            that should settle it; used for the main answer.
    """
    interval = finding.ci95
    finding = _grade_with_default_thresholds(finding, get_min_texts(words))
    if finding.answer == Answer.CANNOT_SAY:
        reason = explain_open_answer(finding, words, counts_missing_texts=counts_missing_texts)
        if counts_missing_texts or finding.rule not in OPEN_QUESTIONS:
            return reason
        return f"cannot say whether {words.fill(OPEN_QUESTIONS[finding.rule])}: {reason}"
    rule = RULES[finding.rule]
    if "random order" in rule.scale_ends and interval is not None and interval[1] < 0:
        return words.fill(WORSE_THAN_RANDOM)
    little = "little" if finding.value > 0 else "no"
    clause = rule.get_clause(finding.answer)
    return words.fill(clause, little=little, value=max(finding.value, 0.0))


def get_min_texts(words: Wording) -> int:
    """Return the smallest number of texts that can give an answer other than "cannot say".

    Args:
        words: wording for this prediction type.
    """
    question_set = ANSWER_SET if words.kind == "answer" else CLASSIFIER_SET
    return question_set.min_texts


def _grade_with_default_thresholds(finding: Finding, min_texts: int) -> Finding:
    """Grade a finding again with the default thresholds if the user has set other ones."""
    has_user_thresholds = finding.partly is not None
    if not has_user_thresholds:
        return finding
    answer = grade(finding.estimate, RULES[finding.rule], min_texts)
    # An upper bound can show that a value is too low, but not that it is high enough.
    is_certain = answer == Answer.NO or not finding.is_upper_bound
    if finding.role == "score" and finding.incomplete_tests:
        is_certain = False
    default_answer = answer if is_certain else Answer.CANNOT_SAY
    return replace(finding, answer=default_answer, partly=None, yes=None)


TOO_CLOSE_TO_GUESSING = (
    "the model hardly beats guessing, so it is open whether there is anything to explain; this takes "
    "more {texts} or a better trained model"
)
"""Reason for the answer "cannot say" if accuracy is above guessing, but not certainly.

``{texts}`` is replaced by the word for the audited inputs, such as "prompts".
"""


def is_close_to_guessing(gate: Finding | None) -> bool:
    """Check whether accuracy is above guessing, while its confidence interval includes guessing.

    Args:
        gate: finding that must be "yes" before there is a verdict; None if there is no such finding.
    """
    return (
        gate is not None
        and gate.rule == "accuracy"
        and gate.answer == Answer.CANNOT_SAY
        and gate.value > 0
    )


def format_answer_reason(findings: Sequence[Finding], words: Wording = CLASS_WORDING) -> str:
    """Return one sentence with the reason for the main answer.

    Args:
        findings: the audit's findings.
        words: wording for this prediction type.
    """
    return format_conclusion_reason(conclude(findings), words)


def format_conclusion_reason(
    conclusion: Conclusion, words: Wording, clauses: Mapping[Answer, str] | None = None
) -> str:
    """Return one sentence with the reason for a verdict.

    Args:
        conclusion: the verdict.
        words: wording for this prediction type.
        clauses: clause for each grade of faithfulness; None for the clauses about attention.
    """
    score, gate = conclusion.score, conclusion.gate
    if conclusion.is_closed and is_close_to_guessing(gate):
        return format_sentence(words.fill(TOO_CLOSE_TO_GUESSING))
    if conclusion.why or score is None:
        return format_sentence(words.fill(conclusion.why))
    has_user_thresholds = score.partly is not None
    if has_user_thresholds and score.answer != Answer.CANNOT_SAY:
        return f"With your own thresholds: {score.rule_with_thresholds.threshold_text}."
    if clauses is not None and score.answer in clauses:
        clause = words.fill(clauses[score.answer], value=max(score.value, 0.0))
        return format_sentence(clause)
    return format_sentence(describe_finding(score, words, counts_missing_texts=True))


def format_sentence(clause: str) -> str:
    """Convert a clause to a sentence with a capital letter and a full stop.

    An empty clause is returned unchanged.

    >>> format_sentence("it is so")
    'It is so.'

    Args:
        clause: the clause.
    """
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}." if clause else ""


# --- advice on displaying attention -------------------------------------------------------


DISPLAY_CAUTIONS = {
    Answer.YES: "This holds on average, for texts like these and for this training run.",
    Answer.PARTLY: "In some texts, none of the highlighted {units} decides the prediction.",
    Answer.NO: "A heat map of it would mislead users about the predictions.",
    Answer.CANNOT_SAY: "An open answer does not mean that attention is wrong.",
}
"""Maps an answer to the caution that follows the advice on showing attention to users."""


def advise_on_display(findings: Sequence[Finding], words: Wording = CLASS_WORDING) -> list[str]:
    """Return at most four sentences on whether the attention may be displayed to users.

    Args:
        findings: the audit's findings.
        words: wording for this prediction type.
    """
    answer = conclude(findings).answer
    importance = index_by_rule(findings).get("importance")
    precision = [] if importance is None else _describe_precision(importance)
    sentences = [
        DISPLAY_ADVICE[answer],
        _list_answers(findings),
        *precision,
        DISPLAY_CAUTIONS[answer],
    ]
    return [words.fill(sentence) for sentence in sentences if sentence]


def _list_answers(findings: Sequence[Finding]) -> str:
    """Return a sentence that lists the questions with each answer, such as "Erasure: yes"."""
    question_set = choose_question_set(index_by_rule(findings))
    listed_rules = {*question_set.list_keys("part"), *question_set.list_keys("effect")}
    clauses = []
    for answer in (Answer.YES, Answer.PARTLY, Answer.NO, Answer.CANNOT_SAY):
        listed_findings = [f for f in findings if f.rule in listed_rules]
        names = [f.name.lower() for f in listed_findings if f.answer == answer]
        if names:
            clauses.append(f"{join_words(names)}: {answer}")
    return format_sentence("; ".join(clauses))


def _describe_precision(importance: Finding) -> list[str]:
    """Return a sentence on how many important units are also among the most attended ones.

    The list is empty if this was not measured.
    """
    share = importance.yardsticks.get("precision")
    if share is None or importance.n < MIN_DISPLAYED_TEXTS:
        return []
    return [
        f"Among the {{units}} that make up half of the importance in a text, {share:.0%} are "
        "among the most attended."
    ]


# --- open answers -------------------------------------------------------------------------


MAX_SUGGESTED_TEXTS = 10_000
"""Maximum number of additional texts that a report suggests in order to settle an open answer.

If more texts are needed, the report states that the mean is too close to a threshold.
"""


def compute_texts_needed(
    value: float, ci95: tuple[float, float], n_texts: int, threshold: float
) -> float:
    """Estimate how many texts shrink a confidence interval until it just reaches a threshold.

    The width of an interval is proportional to 1 / √n. The result is therefore
    n · (half-width / distance)². The distance is from the mean to the threshold, and the half-width
    is measured on the same side of the mean.

    >>> compute_texts_needed(0.5, (0.3, 0.7), 100, 0.4)
    400.0

    Args:
        value: the mean, assumed to stay the same.
        ci95: 95% confidence interval for the mean.
        n_texts: current number of texts.
        threshold: the threshold.

    Returns:
        The total number of texts; infinite if the mean equals the threshold.
    """
    distance = abs(value - threshold)
    half_width = value - ci95[0] if threshold < value else ci95[1] - value
    if not distance:
        return math.inf
    return round(n_texts * (half_width / distance) ** 2, 6)


def suggest_total_texts(finding: Finding, min_texts: int = MIN_TEXTS) -> int | None:
    """Estimate the total number of texts that should settle an open question.

    Args:
        finding: the open finding.
        min_texts: smallest number of texts that can give an answer.

    Returns:
        The number of texts, or None if more texts would not settle the question.
    """
    is_incomplete = finding.role == "score" and finding.incomplete_tests
    if finding.open_reason or is_incomplete or not finding.n:
        return None
    additional = None
    if finding.n >= MIN_DISPLAYED_TEXTS:
        additional = compute_additional_texts(finding)
    # More texts cannot decide, but below the minimum there is no answer at all.
    if additional is None or additional > MAX_SUGGESTED_TEXTS:
        return min_texts if finding.n < min_texts else None
    return max(min_texts, finding.n + _round_up(additional))


def explain_open_answer(
    finding: Finding, words: Wording = CLASS_WORDING, *, counts_missing_texts: bool = True
) -> str:
    """Return a clause on why a question is open and whether more texts would settle it.

    Args:
        finding: the open finding.
        words: wording for this prediction type.
        counts_missing_texts: mention how many more texts should settle the question.
    """
    min_texts, texts = get_min_texts(words), words.texts
    if 0 < finding.n < min_texts:
        return words.fill(explain_too_few_texts(finding.n, min_texts))
    if finding.incomplete_tests and finding.role == "score":
        return words.fill(explain_incomplete_tests(finding.incomplete_tests))
    if finding.open_reason:
        return f"{finding.open_reason.rstrip('.')}; more {texts} will not settle this"
    n_suggested = suggest_total_texts(finding, min_texts)
    if finding.ci95 is None:
        return "there are no labels, or there is nothing to compare with"
    possible_answers = list_possible_answers(
        finding.estimate, finding.estimate, finding.rule_with_thresholds, min_texts
    )
    if len(possible_answers) < 2:
        return "the known bounds do not settle this question"
    alternatives = f"either {join_answers(possible_answers)}"
    if len(possible_answers) > 2:
        alternatives = "anything from no to yes"
    if not counts_missing_texts:
        return f"{alternatives}, because {_explain_range(finding, n_suggested, texts)}"
    if n_suggested is None:
        return f"{alternatives}: too close to a threshold for more {texts} to decide"
    count = format_count(n_suggested - finding.n, f"more {texts.removesuffix('s')}")
    return f"{alternatives}: about {count} should settle it"


def _explain_range(finding: Finding, n_suggested: int | None, texts: str) -> str:
    """Explain in a clause why several answers remain possible.

    Args:
        finding: the open finding, which has an interval.
        n_suggested: number of texts that should settle the question; None if more texts would not.
        texts: word for the audited inputs, such as "texts" or "prompts".
    """
    assert finding.ci95 is not None
    low, high = finding.ci95
    thresholds = sorted({*finding.rule_with_thresholds.thresholds.values()})
    crossed_thresholds = [f"{value:.2f}" for value in thresholds if low <= value <= high]
    noun = "the threshold" if len(crossed_thresholds) == 1 else "the thresholds"
    reason = f"the interval from {low:.2f} to {high:.2f} contains {noun} {join_words(crossed_thresholds)}"
    if n_suggested is None:
        return f"{reason}, which is too close for more {texts} to decide"
    return f"{reason}; with more {texts}, it gets narrower"


def compute_additional_texts(finding: Finding) -> float | None:
    """Estimate how many more texts would shrink the interval until it contains no threshold.

    The estimate assumes that the mean stays the same and that the interval narrows with √n.

    Args:
        finding: the open finding.

    Returns:
        The number of additional texts; infinite if the mean equals a threshold; None if there is no
        interval or it already contains no threshold.
    """
    if finding.ci95 is None:
        return None
    low, high = finding.ci95
    thresholds = set(finding.rule_with_thresholds.thresholds.values())
    crossed_thresholds = [t for t in thresholds if low <= t <= high]
    if not crossed_thresholds:
        return None
    n_needed = max(
        compute_texts_needed(finding.value, finding.ci95, finding.n, threshold)
        for threshold in crossed_thresholds
    )
    if math.isinf(n_needed):
        return n_needed
    # With exactly `n_needed` texts, one end of the interval would equal the threshold.
    return max(math.floor(n_needed) + 1 - finding.n, 1)


def warn_about_precision(n_texts: int, are_prompts: bool) -> str:
    """Describe how precise the answers can be with a planned number of texts.

    Args:
        n_texts: number of texts to be audited.
        are_prompts: whether the texts are prompts for a language model.

    Returns:
        A warning if there are too few texts, otherwise an empty string. Prompts always get a note
        on precision.
    """
    if not are_prompts:
        warning = explain_too_few_texts(n_texts, MIN_TEXTS) if n_texts < MIN_TEXTS else ""
        return CLASS_WORDING.fill(warning)
    if n_texts < MIN_PROMPTS:
        return (
            f"fewer than {MIN_PROMPTS} prompts cannot answer any question. The page and "
            "report.examples show what each answer depends on"
        )
    low, high = compute_share_interval(np.array(n_texts / 2), np.array(n_texts))
    return (
        f"{n_texts} prompts measure a proportion to within ±{(high - low) / 2:.2f} or better. "
        "A question whose value is closer to a threshold stays open (±0.10 takes about 100 prompts)"
    )


def _round_up(count: float) -> int:
    """Round a count up to two significant digits, such as 1234 to 1300."""
    step = 10 ** max(len(str(math.ceil(count))) - 2, 0)
    return math.ceil(count / step) * step
