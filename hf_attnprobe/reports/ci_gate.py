"""Conditions for the option ``--fail-on``, which makes an audit fail in continuous integration."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_attnprobe.core.errors import UsageError
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.verdicts import (
    Finding,
    explain_incomplete_tests,
    index_by_rule,
)


ANSWER_NAMES = tuple(str(answer).replace(" ", "-") for answer in Answer)
"""Answers as single words for the command line, such as "mostly-yes"."""

COMPARISON_FUNCTIONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
}
"""Maps the sign in a condition, such as "faithfulness<.5", to its comparison function."""

SCORE_CONDITION = re.compile(r"([a-z_ ]+?)\s*([<>])\s*(-?\d*\.?\d+)(?:\s+(surely|possibly))?")
"""Pattern for a condition on a score, such as "faithfulness<.5" or "path share<.5 surely"."""


@dataclass(frozen=True)
class FailureCondition:
    """A condition that makes an audit fail: a certain main answer, or a score below or above a limit.

    Attributes:
        text: the condition as the user wrote it, such as "no" or "faithfulness<.5 surely".
        answer: the failing answer; empty for a condition on a score.
        question: key of the question whose number is compared; "accuracy" compares the proportion
            of correct predictions.
        sign: "<" or ">".
        limit: the number to compare with.
        certainty: "surely" if the whole confidence interval must be below (or above) the limit,
            "possibly" if one end of it is enough, or empty to compare the number itself.
    """

    text: str
    answer: str = ""
    question: str = ""
    sign: str = "<"
    limit: float = 0.0
    certainty: str = ""

    def explain_failure(self, report: AuditResult) -> str:
        """Check whether a report meets this condition, and return the reason why it then fails.

        Args:
            report: the audit's result.

        Returns:
            A reason such as "the answer is no"; empty if the report passes. A score that was not
            measured fails, for example because there are fewer than ten different texts.
        """
        if self.answer:
            report_answer = str(report.answer)
            # On the command line, "cannot say" is written as "cannot-say".
            fails = report_answer.replace(" ", "-") == self.answer
            return f"the answer is {report_answer}" if fails else ""
        finding = index_by_rule(report.answer_findings).get(self.question)
        obstacle = self._explain_missing_score(report, finding)
        if finding is None or obstacle:
            return f"{self.question} was {obstacle}"
        return self.explain_score_failure(*_select_score(finding))

    def explain_score_failure(
        self, value: float, interval: tuple[float, float] = (math.nan, math.nan)
    ) -> str:
        """Compare a score with the limit, and return the reason why it then fails.

        Args:
            value: the score; NaN if it was not measured.
            interval: both ends of its confidence interval; NaN if there is none.

        Returns:
            A reason such as "used is 0.500, which is below the limit 0.8"; empty if the score passes.
        """
        if math.isnan(value):
            return f"{self.question} was not measured"
        low, high = interval
        compared_value, described_value = value, f"{value:.3f}"
        if self.certainty:
            if math.isnan(low) or math.isnan(high):
                return f"{self.question} was measured without a confidence interval"
            # "<.5 surely" holds if even the upper end of the interval is below .5.
            is_upper_end = (self.sign == "<") == (self.certainty == "surely")
            compared_value = high if is_upper_end else low
            described_value += f" [{low:.3f}, {high:.3f}]"
        fails = COMPARISON_FUNCTIONS[self.sign](compared_value, self.limit)
        relation = "below" if self.sign == "<" else "above"
        comparison = f"{self.certainty} {relation}" if self.certainty else relation
        limit = f"{comparison} the limit {self.limit:g}"
        return f"{self.question} is {described_value}, which is {limit}" if fails else ""

    def _explain_missing_score(self, report: AuditResult, finding: Finding | None) -> str:
        """Explain why a score cannot be compared, such as "not measured"; empty if it can be."""
        if finding is None:
            return "not measured"
        if 0 < finding.n < MIN_DISPLAYED_TEXTS:
            return f"not measured: {finding.n} of {MIN_DISPLAYED_TEXTS} {report.words.texts}"
        if finding.incomplete_tests and finding.role == "score":
            reason = report.words.fill(explain_incomplete_tests(finding.incomplete_tests))
            return f"not completely measured: {reason}"
        if not finding.number:
            return "not measured"
        return ""


def _select_score(finding: Finding) -> tuple[float, tuple[float, float]]:
    """Select the number that a condition compares, with both ends of its confidence interval.

    The ends are NaN if there is no interval.
    """
    # The value of the finding "accuracy" is the difference from a model that always predicts the most
    # frequent class. The accuracy itself is stored as a yardstick.
    if "accuracy" in finding.yardsticks:
        low = finding.yardsticks.get("accuracy_low", math.nan)
        high = finding.yardsticks.get("accuracy_high", math.nan)
        return finding.yardsticks["accuracy"], (low, high)
    return finding.value, finding.ci95 or (math.nan, math.nan)


COMPARABLE_SCORES = ("accuracy", *ALL_QUESTIONS)
"""Names of the scores that ``--fail-on`` can compare with a limit, as in "faithfulness<.5"."""

COMPARABLE_USER_SCORES = (
    "accuracy",
    *(key for key, question in ALL_QUESTIONS.items() if question.role in ("score", "part")),
)
"""Names of the scores that ``attnprobe evaluate-scores --fail-on`` can compare with a limit.

They are the model's accuracy, and the faithfulness of the user-provided scores with its parts.
"""


def parse_conditions(
    texts: Sequence[str],
    *,
    answers: Sequence[str] = ANSWER_NAMES,
    scores: Sequence[str] = COMPARABLE_SCORES,
) -> list[FailureCondition]:
    """Parse the conditions under which the command should fail, from the option ``--fail-on``.

    Args:
        texts: conditions such as "no", "faithfulness<.5" or "faithfulness<.5 surely".
        answers: the answers that the command can give; empty if it only computes scores.
        scores: names of the scores that the command computes.

    Raises:
        UsageError: If a text is neither an answer nor a score with a limit.
    """
    conditions = []
    for text in texts:
        match = SCORE_CONDITION.fullmatch(text.strip())
        # A report prints "path share", and the JSON has the key "path_share".
        question = "" if match is None else match[1].replace(" ", "_")
        if text in answers:
            conditions.append(FailureCondition(text, answer=text))
        elif match is not None and question in scores:
            sign, limit, certainty = match[2], float(match[3]), match[4] or ""
            conditions.append(FailureCondition(text, "", question, sign, limit, certainty))
        else:
            example_score = "faithfulness" if "faithfulness" in scores else scores[-1]
            example = f"a score with a limit such as '{example_score}<.5'"
            expected = f"an answer or {example}" if answers else example
            answer_list = f"The answers are {', '.join(answers)}. " if answers else ""
            raise UsageError(
                f"--fail-on got {text!r}, expected {expected}, optionally followed by 'surely' or "
                f"'possibly'. {answer_list}The scores are {', '.join(scores)}."
            )
    return conditions


def list_failures(report: AuditResult, conditions: Sequence[FailureCondition]) -> list[str]:
    """Check a report against failure conditions, and return the reasons why it fails.

    Args:
        report: the audit's result.
        conditions: conditions that make a report fail.

    Returns:
        One reason per condition that is met; empty if the report passes.
    """
    reasons = [condition.explain_failure(report) for condition in conditions]
    return [reason for reason in reasons if reason]
