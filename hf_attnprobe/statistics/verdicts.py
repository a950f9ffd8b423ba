"""The verdict of an audit: rules, their answers (findings), and how they lead to a single answer.

The rules about attention are in :mod:`~hf_attnprobe.statistics.questions`. The tables in
``docs/verdicts.md`` are generated from the rules.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.grades import (
    MIN_PROMPTS,
    MIN_TEXTS,
    Answer,
    Rule,
    grade_range,
    join_answers,
    list_possible_answers,
    make_statistic_measure,
)
from hf_attnprobe.statistics.questions import (
    ALL_QUESTIONS,
    ANSWER_QUESTIONS,
    CLASSIFIER_QUESTIONS,
    Measurement,
    Question,
)


ELSEWHERE_RULE = Rule(
    "Elsewhere",
    "Can a trained model classify as well and attend to other words?",
    "distance (JSD) of an adversary's attention from the base model, minus the distance of the "
    "farthest model with another seed, paired by text; a yes also requires that no F1 is lost",
    partly=0.0,
    yes=0.0,
    source="Wiegreffe & Pinter 2019, Section 3.3: an adversary that is no farther than another seed "
    "is no counter-example",
    if_yes="a trained model classifies as well and attends to other words",
    if_no="no trained model both classifies as well and attends to other words",
    if_open="it is open whether a model that classifies as well can attend to other words",
)
"""Rule about adversaries: models that are trained to attend to other words than the base model.

An adversary's attention must differ more from the base model than the attention of models that were
trained like the base model, but with other random seeds.
"""
RULES: dict[str, Rule] = {
    "accuracy": Rule(
        "Accuracy",
        "Is the model better than guessing?",
        "the model's accuracy on these texts, minus the accuracy of always predicting the most "
        "frequent class, paired by text; R² for predicted numbers",
        partly=0.0,
        yes=0.0,
        source="a model that is no better than guessing has no predictions to explain",
        procedure="The predictions of the model are compared with the labels, and with always "
        "predicting the same answer. If the model is no better, there are no predictions that are "
        "worth explaining.",
        scale="accuracy above that of always predicting the same answer",
        if_yes="the model is better than always predicting the same answer",
        if_no="the model is not better than always predicting the same answer",
        yardsticks={
            "majority": "accuracy of always predicting the most frequent answer",
            "top_probability": "mean probability of the predicted answer",
            "calibration_error": "calibration error",
            "mean_absolute_error": "mean absolute error",
            "mean_absolute_error_of_mean": "mean absolute error of always predicting the mean",
        },
        compared_measures=(
            make_statistic_measure(
                "share of a text's labels that are predicted correctly", "right"
            ),
            make_statistic_measure("error of the predicted number (less is better)", "error"),
        ),
    ),
    "own": Rule(
        "Own answer",
        "Does the model itself generate the explained answer?",
        "share of texts in which greedy decoding generates the explained answer; all other results "
        "are about these texts",
        partly=0.5,
        yes=0.9,
        source="attention need not explain an answer that the model does not give; the two shares "
        "are our choice; if the model generates all answers itself, none is left out and the answer "
        "is yes, regardless of the interval",
        procedure="The explained answer is compared with the answer that the model generates, token "
        "by token. All other results are about the texts in which they are equal.",
        scale="share of texts in which the model generates the explained answer",
        if_yes="the explained answers are the model's own",
        if_no="the model generates other answers than the explained ones",
        compared_measures=(
            make_statistic_measure(
                "share of texts with the model's own answer", "answer_is_greedy"
            ),
        ),
    ),
    "passage": Rule(
        "Passage",
        "Does the answer depend on the passage?",
        "log-probability of the answer with the passage, minus its log-probability without the "
        "passage, in nats, mean over texts (contextual gain); it replaces accuracy for language "
        "models",
        partly=0.0,
        yes=0.0,
        source="a passage on which the answer does not depend cannot explain it",
        procedure="All units of the passage are deleted. If the answer is then no less probable, "
        "there is nothing in the passage that attention could explain.",
        scale="nats that the answer gains from the passage",
        if_yes="the answer depends on the passage",
        if_no="the answer is as probable without the passage",
        compared_measures=(
            make_statistic_measure(
                "nats that the answer gains from the passage", "contextual_gain"
            ),
        ),
    ),
    **ALL_QUESTIONS,
    "need": Rule(
        "Need",
        "Is attention needed for the score?",
        "mean F1 of models trained with attention (base model and other seeds), minus the F1 of a "
        "model trained with uniform attention; the interval is over texts and seeds",
        partly=0.02,
        yes=0.02,
        source="Wiegreffe & Pinter 2019, Section 3.2; .02 of F1 is our choice; the interval for one "
        "more training follows from the spread of the seeds (Student's t)",
        if_yes="attention is needed for the score",
        if_no="attention is not needed for the score",
        if_open="it is open whether attention is needed for the score",
    ),
    "loss": Rule(
        "Loss",
        "Does the trained model classify worse?",
        "reference model's score minus trained model's score, paired by text: F1 for an adversary, "
        "accuracy for a deceptive model",
        partly=0.02,
        yes=0.02,
        source="Wiegreffe & Pinter 2019, Section 4, and Pruthi et al. 2020 require that nothing is "
        "lost; .02 is our choice",
        if_yes="the trained model classifies worse",
        if_no="the trained model classifies as well",
        if_open="it is open whether the trained model classifies worse",
    ),
    "elsewhere": ELSEWHERE_RULE,
    "elsewhere_without_seeds": replace(
        ELSEWHERE_RULE,
        question="Can a trained model classify as well and attend to other words? (If no other seeds "
        "were trained.)",
        measure="JSD between an adversary's and the base model's attention; a yes also requires that "
        "no F1 is lost",
        partly=0.4,
        yes=0.4,
        source="Wiegreffe & Pinter 2019, Table 4",
    ),
    "transfer": Rule(
        "Transfer",
        "Do the base model's weights help a model without context more than its own weights?",
        "F1 of a model without context that uses the base model's weights, minus the F1 of a model "
        "that learns its own attention; the interval is over texts and seeds",
        partly=0.0,
        yes=0.0,
        source="Wiegreffe & Pinter 2019, Section 3.4; assumes that this model varies with its seed as "
        "much as the base model does",
        if_yes="its weights help a simpler model",
        if_no="its weights do not help a simpler model",
        if_open="it is open whether its weights help a simpler model",
    ),
    "use": Rule(
        "Use",
        "Does the model use the impermissible tokens?",
        "output change (total variation distance) when they are deleted, minus the output change "
        "when as many other tokens are deleted, per text",
        partly=0.05,
        yes=0.05,
        source="Pruthi et al. 2020 do not measure this control; .05 of probability is our choice",
        if_yes="the model uses the impermissible tokens",
        if_no="the model hardly uses the impermissible tokens",
        if_open="the model may or may not use the impermissible tokens",
    ),
    "hiding": Rule(
        "Hiding",
        "Has the attention to the impermissible tokens disappeared?",
        "half of the attention on them before the training minus the attention on them after it, per "
        "text",
        partly=0.0,
        yes=0.0,
        source="Pruthi et al. 2020; half of the attention is our choice",
        if_yes="attention does not show the impermissible tokens",
        if_no="attention still shows the impermissible tokens",
        if_open="attention may or may not show the impermissible tokens",
    ),
}
"""Maps the short name of each question that a report answers to its rule, with thresholds and phrases.

Reports list the rules in this order. Rules for retrained and deceptive models are at the end.
"""


@dataclass(frozen=True)
class Finding:
    """Answer to one question about a model, with the number on which it is based.

    Attributes:
        rule: rule key.
        answer: yes, partly, no or cannot say.
        sentence: the answer in words, with the number, its interval and the yardsticks.
        value: the graded number.
        ci95: 95% confidence interval for the number.
        n: number of texts.
        yardsticks: numbers that are printed for comparison, by name.
        is_upper_bound: whether ``value`` is only an upper bound.
        open_reason: reason why even more texts would not settle an answer "cannot say".
        partly: user-defined threshold for "partly"; None if the rule's own threshold was used.
        yes: user-defined threshold for "yes"; None if the rule's own threshold was used.
        averaged_parts: rules whose numbers were averaged; only for faithfulness.
        incomplete_tests: tests that a verdict requires, but that did not run on enough texts. Each is
            mapped to the number of texts on which it ran, which is 0 if it did not run. Only for
            findings that decide the verdict.

    Raises:
        AttnProbeError: the rule does not exist.
    """

    rule: str
    answer: Answer
    sentence: str
    value: float
    ci95: tuple[float, float] | None
    n: int
    yardsticks: dict[str, float] = field(default_factory=dict)
    is_upper_bound: bool = False
    open_reason: str = field(default="", metadata={"plain_name": "open_because"})
    partly: float | None = None
    yes: float | None = None
    averaged_parts: tuple[str, ...] = ()
    incomplete_tests: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise AttnProbeError(f"unknown rule {self.rule!r}. Choose one of {', '.join(RULES)}.")

    @property
    def rule_with_thresholds(self) -> Rule:
        """The rule with the thresholds that were used for this finding."""
        rule = RULES[self.rule]
        if self.partly is None or self.yes is None:
            return rule
        return replace(rule, partly=self.partly, yes=self.yes)

    @property
    def name(self) -> str:
        """Name of the rule."""
        return RULES[self.rule].name

    @property
    def explanation(self) -> str:
        """The sentence without its beginning, which names the rule and the answer."""
        return self.sentence.partition(". ")[2]

    @property
    def role(self) -> str:
        """Role in the verdict, such as "score"; "gate" if the rule is not about attention."""
        question = ALL_QUESTIONS.get(self.rule)
        return "gate" if question is None else question.role

    @property
    def is_about_attention(self) -> bool:
        """Whether the rule is about attention, and not about the quality of the predictions."""
        return self.rule in ALL_QUESTIONS

    @property
    def estimate(self) -> Estimate:
        """The graded number with its interval."""
        return Estimate(self.value, self.ci95, self.n)

    @property
    def number(self) -> str:
        """Graded number and interval with two decimals; empty if there is no number."""
        if math.isnan(self.value):
            return ""
        return markdown.format_interval(self.value, self.ci95, digits=2)


def apply_thresholds(texts: Sequence[str]) -> dict[str, Rule]:
    """Parse the option ``--thresholds`` and apply the thresholds to the rules.

    Thresholds for faithfulness also apply to its parts, unless a part has its own thresholds.

    Args:
        texts: thresholds such as "faithfulness=.4,.65" (partly from, yes from) or "effect=.1".

    Returns:
        All rules by key.

    Raises:
        AttnProbeError: a question does not exist, or its thresholds are not valid.
    """
    rules = dict(RULES)
    # Faithfulness comes first, so that the thresholds of a part overwrite it.
    for text in sorted(texts, key=lambda text: not text.startswith("faithfulness=")):
        key, _, numbers = text.partition("=")
        question = ALL_QUESTIONS.get(key)
        if question is None:
            raise AttnProbeError(
                f"--thresholds {text!r} does not begin with a question. Choose one of "
                f"{', '.join(ALL_QUESTIONS)}, for example faithfulness=.4,.65."
            )
        try:
            thresholds = [float(number) for number in numbers.split(",")]
        except ValueError:
            thresholds = []
        max_thresholds = 1 if question.partly == question.yes else 2
        is_finite = all(map(math.isfinite, thresholds))
        is_ascending = thresholds == sorted(thresholds)
        is_valid = 1 <= len(thresholds) <= max_thresholds and is_finite and is_ascending
        if not is_valid and max_thresholds == 1:
            raise AttnProbeError(
                f"--thresholds {text!r} is not valid. Expected a single number, for example "
                f"{key}=.1 (yes from .1)."
            )
        if not is_valid:
            raise AttnProbeError(
                f"--thresholds {text!r} is not valid. Expected one or two numbers in ascending "
                f"order, for example {key}=.4,.65 (partly from .4, yes from .65)."
            )
        keys = [key]
        if question.role == "score":
            keys += [name for name, part in ALL_QUESTIONS.items() if part.role == "part"]
        for rule_key in keys:
            rules[rule_key] = replace(rules[rule_key], partly=thresholds[0], yes=thresholds[-1])
    return rules


def grade_measurement(
    key: str, rule: Rule, measurement: Measurement, min_texts: int = MIN_TEXTS
) -> Finding:
    """Grade a measured number by a rule.

    Args:
        key: rule key.
        rule: the rule, possibly with user-defined thresholds.
        measurement: the measured number.
        min_texts: smallest number of texts for an answer.

    Returns:
        A finding with the answer.
    """
    estimate = measurement.estimate
    lowest = estimate
    if measurement.lower_estimate is not None:
        lowest = measurement.lower_estimate
    answer = grade_range(lowest, estimate, rule, min_texts)
    possible_answers = list_possible_answers(lowest, estimate, rule, min_texts)
    finding = make_finding(
        key,
        rule,
        answer,
        measurement.sentences,
        estimate,
        measurement.yardsticks,
        possible_answers,
    )
    return replace(
        finding,
        is_upper_bound=measurement.is_upper_bound,
        averaged_parts=tuple(measurement.averaged_parts),
        open_reason=measurement.open_reason if answer == Answer.CANNOT_SAY else "",
    )


def require_tests(finding: Finding, incomplete_tests: Mapping[str, int], texts: str) -> Finding:
    """Leave a question open if tests that a verdict requires did not run on enough texts.

    Otherwise, an audit with fewer tests could be more confident than an audit with all tests. For
    example, the mean of three parts can be certainly below a threshold, while the mean of four parts is
    not.

    Args:
        finding: answer to a question.
        incomplete_tests: number of texts on which each of these tests ran, by test name.
        texts: word for the audited inputs, such as "texts" or "prompts".

    Returns:
        The finding with a record of these tests, if it decides the verdict; other findings are
        unchanged. The answer about faithfulness becomes "cannot say", because its number lacks the
        results of these tests.
    """
    if not incomplete_tests or finding.role not in ("score", "effect"):
        return finding
    finding = replace(finding, incomplete_tests=dict(incomplete_tests))
    if finding.role != "score":
        return finding
    reason = explain_incomplete_tests(incomplete_tests).format(texts=texts)
    return replace(
        finding,
        answer=Answer.CANNOT_SAY,
        sentence=(
            f"{finding.name}: {Answer.CANNOT_SAY}. {finding.explanation} This is no answer yet, "
            f"because {reason}."
        ),
    )


def hide_unreliable_number(finding: Finding, min_texts: int, texts: str) -> Finding:
    """Remove the number of a finding that was measured on fewer than ten different texts.

    All outputs of an audit, such as the JSON and a model card, then show no number.

    Args:
        finding: answer to a question.
        min_texts: smallest number of texts for an answer.
        texts: word for the audited inputs, such as "texts" or "prompts".

    Returns:
        The finding without number, interval and yardsticks. It is unchanged if there are enough
        texts or none.
    """
    if not 0 < finding.n < MIN_DISPLAYED_TEXTS:
        return finding
    reason = explain_too_few_texts(finding.n, min_texts).format(texts=texts)
    return replace(
        finding,
        answer=Answer.CANNOT_SAY,
        sentence=f"{finding.name}: {Answer.CANNOT_SAY}. {reason[0].upper()}{reason[1:]}.",
        value=math.nan,
        ci95=None,
        yardsticks={},
        averaged_parts=(),
    )


def make_finding(
    key: str,
    rule: Rule,
    answer: Answer,
    explanation: str,
    estimate: Estimate,
    yardsticks: Mapping[str, float | None],
    possible_answers: Sequence[Answer] = (),
) -> Finding:
    """Make a finding whose sentence begins with its answer.

    Args:
        key: rule key.
        rule: the rule, possibly with user-defined thresholds.
        answer: the answer.
        explanation: description of the result in sentences.
        estimate: the graded number.
        yardsticks: numbers that are printed for comparison; None and NaN are dropped.
        possible_answers: answers that are not excluded.

    Returns:
        A finding with a sentence such as "Erasure: cannot say (partly or yes). On the scale …".
    """
    has_alternatives = answer == Answer.CANNOT_SAY and len(possible_answers) > 1
    alternatives = f" ({join_answers(possible_answers)})" if has_alternatives else ""
    has_user_thresholds = rule != RULES[key]
    known_yardsticks: dict[str, float] = {}
    for name, value in yardsticks.items():
        if value is not None and not math.isnan(value):
            known_yardsticks[name] = value
    return Finding(
        rule=key,
        answer=answer,
        sentence=f"{rule.name}: {answer}{alternatives}. {explanation}",
        value=estimate.value,
        ci95=estimate.ci95,
        n=estimate.n or 0,
        yardsticks=known_yardsticks,
        partly=rule.partly if has_user_thresholds else None,
        yes=rule.yes if has_user_thresholds else None,
    )


# --- The verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuestionSet:
    """Questions for one type of model, with their precondition, which is called the gate.

    Attributes:
        questions: questions by key.
        gate: key of the rule that must be answered yes. Otherwise there is no verdict.
        closed_texts: two clauses for reports if the gate is not answered yes: the situation, and
            why there is no verdict.
        required_tests: tests without which there is no verdict, in the order in which reports list
            them. A test that the model cannot run is not required.
        min_texts: smallest number of texts for an answer.
    """

    questions: Mapping[str, Question]
    gate: str
    closed_texts: tuple[str, str]
    required_tests: tuple[str, ...]
    min_texts: int = MIN_TEXTS

    def list_keys(self, role: str) -> list[str]:
        """List the questions that have a given role in the verdict.

        Args:
            role: a role; see :class:`~hf_attnprobe.statistics.questions.Question`.

        Returns:
            Question keys.
        """
        return [key for key, question in self.questions.items() if question.role == role]


CLASSIFIER_SET = QuestionSet(
    questions=CLASSIFIER_QUESTIONS,
    gate="accuracy",
    closed_texts=(
        "the model is not shown to be better than guessing",
        "there are no predictions that are worth explaining",
    ),
    # The test scale finds the classes that are predicted by default, also if words are exchanged.
    required_tests=("scale", "erasure", "exchange", "uniform_attention"),
)
"""Questions about classifiers.

There is only a verdict if the model is better than always predicting the most frequent class.
"""
ANSWER_SET = QuestionSet(
    questions=ANSWER_QUESTIONS,
    gate="passage",
    closed_texts=(
        "the answer is not shown to depend on the passage",
        "a passage on which the answer does not depend cannot explain it",
    ),
    required_tests=("sources", "permutation", "knockout"),
    min_texts=MIN_PROMPTS,
)
"""Questions about language models that answer from a passage.

There is only a verdict if the answer depends on the passage.
"""


def index_by_rule(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Index findings by rule.

    Args:
        findings: findings with different rules.

    Returns:
        Findings keyed by rule key.
    """
    return {finding.rule: finding for finding in findings}


def choose_question_set(rules: Iterable[str]) -> QuestionSet:
    """Choose between the questions about classifiers and about language models.

    Args:
        rules: rule keys that occur in the findings.

    Returns:
        :data:`ANSWER_SET` if any rule only applies to language models, otherwise
        :data:`CLASSIFIER_SET`.
    """
    answer_only_rules = {ANSWER_SET.gate, *ANSWER_QUESTIONS} - CLASSIFIER_QUESTIONS.keys()
    has_answer_rule = any(rule in answer_only_rules for rule in rules)
    return ANSWER_SET if has_answer_rule else CLASSIFIER_SET


def join_rule_names(rules: Iterable[str]) -> str:
    """Join rule names into a list for a sentence.

    Args:
        rules: rule keys.

    Returns:
        A phrase such as "erasure, removal".
    """
    return ", ".join(RULES[rule].name.lower() for rule in rules)


def list_verdict_steps(question_set: QuestionSet) -> tuple[tuple[str, str, str], ...]:
    """List the steps by which findings lead to a verdict. The first step that applies decides.

    Args:
        question_set: questions for one type of model.

    Returns:
        A tuple (condition, verdict, reason) for each step.
    """
    closed_condition, closed_reason = question_set.closed_texts
    effects = " or ".join(join_rule_names([key]) for key in question_set.list_keys("effect"))
    score = "faithfulness"
    return (
        (closed_condition, Answer.CANNOT_SAY, closed_reason),
        (
            f"one of the tests {join_words(question_set.required_tests)} did not run on at least "
            f"{question_set.min_texts} texts, although the model can run it",
            Answer.CANNOT_SAY,
            "an audit with fewer tests must not be more confident than an audit with all tests",
        ),
        (
            f"the answer to {effects} is no",
            Answer.NO,
            "attention may rank the tokens well, but it does not decide the output",
        ),
        (
            f"the answer to {score} is no",
            Answer.NO,
            "attention is less than two fifths of the way from a random order to the best one",
        ),
        (
            f"{score} or an effect has no number, or an effect is open",
            Answer.CANNOT_SAY,
            "a verdict needs both",
        ),
        (
            "otherwise",
            f"the answer to {score}: yes, partly or cannot say",
            "its interval and thresholds",
        ),
    )


DISPLAY_QUESTION = "May I show this to users?"
"""Question that reports answer for people who want to display attention to their users."""
DISPLAY_ADVICE = {
    Answer.YES: "Yes, but with a note that a single text may differ.",
    Answer.PARTLY: "Only with a warning: the highlighted words are some of those that decide.",
    Answer.CANNOT_SAY: "Not yet: the answer is still open.",
    Answer.NO: "No.",
}
"""Maps each verdict of an audit to the answer to the question "May I show this to users?".

The verdict states whether attention explains the model's predictions.
"""


@dataclass(frozen=True)
class Conclusion:
    """The verdict with its reasons.

    Attributes:
        answer: the verdict, which answers whether attention explains the predictions.
        why: reason for the verdict; empty if it follows from faithfulness alone.
        score: finding about faithfulness; None if it was not measured.
        question_set: questions for this type of model.
        gate: finding that shows whether there is anything to explain; None if it was not
            measured.
        missing: keys of questions that a verdict requires but that were not measured.
        incomplete_tests: tests that a verdict requires, but that did not run on enough texts, with the
            number of texts on which each ran.
        n: number of different texts on which the answer is based.
    """

    answer: Answer
    why: str = ""
    score: Finding | None = None
    question_set: QuestionSet = CLASSIFIER_SET
    gate: Finding | None = None
    missing: Sequence[str] = ()
    incomplete_tests: Mapping[str, int] = field(default_factory=dict)
    n: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether there is no verdict because the precondition (the gate) is not met."""
        return self.why == self.question_set.closed_texts[0]


def conclude(findings: Sequence[Finding], question_set: QuestionSet | None = None) -> Conclusion:
    """Combine the findings of an audit into a verdict.

    The steps are those in :func:`list_verdict_steps`.

    Args:
        findings: all findings of the audit.
        question_set: questions that the verdict requires; None for those about attention, for the
            type of model that the findings are about.

    Returns:
        The verdict with its reasons.
    """
    indexed_findings = index_by_rule(findings)
    if question_set is None:
        question_set = choose_question_set(indexed_findings)
    score = next((finding for finding in findings if finding.role == "score"), None)
    effects = [
        indexed_findings[key] for key in question_set.list_keys("effect") if key in indexed_findings
    ]
    gate = indexed_findings.get(question_set.gate)
    needed_keys = (*question_set.list_keys("score"), *question_set.list_keys("effect"))
    missing_keys = [key for key in needed_keys if key not in indexed_findings]
    incomplete_tests: dict[str, int] = {}
    for finding in findings:
        incomplete_tests |= finding.incomplete_tests
    n_texts = _count_texts(findings, gate, effects, score)
    answer, why = _determine_verdict(
        question_set, n_texts, gate, effects, score, missing_keys, incomplete_tests
    )
    return Conclusion(
        answer, why, score, question_set, gate, missing_keys, incomplete_tests, n_texts
    )


def list_deciding_findings(findings: Sequence[Finding]) -> list[Finding]:
    """List the findings that decide the verdict: faithfulness, effects and the gate.

    Args:
        findings: all findings of the audit.

    Returns:
        The deciding findings, in the order of ``findings``.
    """
    question_set = choose_question_set(index_by_rule(findings))
    keys = {question_set.gate, "own"}
    for role in ("score", "effect"):
        keys.update(question_set.list_keys(role))
    return [finding for finding in findings if finding.rule in keys]


def explain_too_few_texts(n: int, min_texts: int) -> str:
    """Explain in a clause that there are too few texts for an answer.

    Args:
        n: number of texts.
        min_texts: required number of texts.

    Returns:
        A clause with the placeholder ``{texts}``, which stands for "texts" or "prompts".
    """
    verb = "is" if n == 1 else "are"
    return f"there {verb} only {n} of the {min_texts} required {{texts}}"


def explain_incomplete_tests(incomplete_tests: Mapping[str, int]) -> str:
    """Explain in a clause which tests a verdict still requires.

    Args:
        incomplete_tests: number of texts on which each of these tests ran, by test name.

    Returns:
        A clause with the placeholder ``{texts}`` if a test ran on too few texts.

    >>> explain_incomplete_tests({"erasure": 0, "exchange": 10})
    'a verdict also needs the test erasure, and the test exchange ran on only 10 {texts}'
    >>> explain_incomplete_tests({"exchange": 1})
    'the test exchange ran on only 1 of the {texts}'
    """
    absent_tests = [test for test, n in incomplete_tests.items() if not n]
    clauses = []
    if absent_tests:
        noun = "test" if len(absent_tests) == 1 else "tests"
        clauses.append(f"a verdict also needs the {noun} {join_words(absent_tests)}")
    short_tests = {test: n for test, n in incomplete_tests.items() if n}
    for n in sorted(set(short_tests.values())):
        tests = [test for test, n_texts in short_tests.items() if n_texts == n]
        noun = "test" if len(tests) == 1 else "tests"
        count = "1 of the" if n == 1 else n
        clauses.append(f"the {noun} {join_words(tests)} ran on only {count} {{texts}}")
    return ", and ".join(clauses)


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and a final "and".

    Args:
        words: one or more words or phrases.

    >>> join_words(["erasure", "removal", "mass"])
    'erasure, removal and mass'
    """
    *first_words, last_word = words
    return f"{', '.join(first_words)} and {last_word}" if first_words else last_word


def explain_missing_questions(missing_keys: Sequence[str]) -> str:
    """Explain in a clause which further questions a verdict requires.

    Args:
        missing_keys: keys of questions that were not measured.

    Returns:
        A clause such as "a verdict also needs path share".
    """
    return f"a verdict also needs {join_rule_names(missing_keys)}"


def _count_texts(
    findings: Sequence[Finding],
    gate: Finding | None,
    effects: Sequence[Finding],
    score: Finding | None,
) -> int:
    """Count the texts on which a verdict is based.

    If no deciding finding about attention exists, the texts of all findings about attention count,
    and if there are none, then those of the gate.

    Args:
        findings: all findings of the audit.
        gate: finding that shows whether there is anything to explain; None if not measured.
        effects: findings about the effect of attention on the output.
        score: finding about faithfulness; None if not measured.

    Returns:
        The largest number of texts of these findings; 0 if there are none.
    """
    counted = [finding for finding in (*effects, score) if finding is not None]
    if not counted:
        counted = [finding for finding in findings if finding.is_about_attention]
    if not counted and gate is not None:
        counted = [gate]
    return max((finding.n for finding in counted), default=0)


def _determine_verdict(
    question_set: QuestionSet,
    n_texts: int,
    gate: Finding | None,
    effects: Sequence[Finding],
    score: Finding | None,
    missing_keys: Sequence[str],
    incomplete_tests: Mapping[str, int],
) -> tuple[Answer, str]:
    """Determine the verdict and its reason, by the steps in :func:`list_verdict_steps`.

    Args:
        question_set: questions for this type of model.
        n_texts: number of texts on which the verdict is based.
        gate: finding that shows whether there is anything to explain; None if not measured.
        effects: findings about the effect of attention on the output.
        score: finding about faithfulness; None if not measured.
        missing_keys: keys of required questions that were not measured.
        incomplete_tests: required tests that did not run on enough texts, with their numbers of
            texts.

    Returns:
        The verdict, and its reason, which is empty if faithfulness alone decides.
    """
    if 0 < n_texts < question_set.min_texts:
        return Answer.CANNOT_SAY, explain_too_few_texts(n_texts, question_set.min_texts)
    if gate is not None and gate.n and gate.answer != Answer.YES:
        return Answer.CANNOT_SAY, question_set.closed_texts[0]
    if incomplete_tests:
        return Answer.CANNOT_SAY, explain_incomplete_tests(incomplete_tests)
    negative_effects = [effect.rule for effect in effects if effect.answer == Answer.NO]
    if negative_effects:
        return Answer.NO, RULES[negative_effects[0]].if_no
    if score is not None and score.answer == Answer.NO:
        return Answer.NO, ""
    if score is None or missing_keys:
        return Answer.CANNOT_SAY, explain_missing_questions(missing_keys)
    open_effects = [effect.rule for effect in effects if effect.answer == Answer.CANNOT_SAY]
    if open_effects:
        return Answer.CANNOT_SAY, f"the answer to {join_rule_names(open_effects)} is open"
    return score.answer, ""
