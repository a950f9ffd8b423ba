"""Conditions for the option ``--fail-on``, which makes an audit fail in continuous integration."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.verdicts import index_by_rule


ANSWER_NAMES = tuple(str(answer).replace(" ", "-") for answer in Answer)
"""Answers as single words for the command line, such as "mostly-yes"."""

COMPARISON_FUNCTIONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
}
"""Maps the sign in a condition, such as "faithfulness<.5", to its comparison function."""

SCORE_CONDITION = re.compile(r"([a-z]+)\s*([<>])\s*(-?\d*\.?\d+)")
"""Pattern for a condition on a score, such as "faithfulness<.5"."""


@dataclass(frozen=True)
class FailureCondition:
    """A condition that makes an audit fail: a certain main answer, or a score below or above a limit.

    Attributes:
        text: the condition as the user wrote it, such as "no" or "faithfulness<.5".
        answer: the failing answer; empty for a condition on a score.
        question: key of the question whose number is compared; "accuracy" compares the proportion
            of correct predictions.
        sign: "<" or ">".
        limit: the number to compare with.
    """

    text: str
    answer: str = ""
    question: str = ""
    sign: str = "<"
    limit: float = 0.0

    def explain_failure(self, report: AuditResult) -> str:
        """Check whether a report meets this condition, and return the reason why it then fails.

        Args:
            report: the audit's result.

        Returns:
            A reason such as "the answer is no"; empty if the report passes.
        """
        if self.answer:
            report_answer = str(report.answer)
            # On the command line, "cannot say" is written as "cannot-say".
            fails = report_answer.replace(" ", "-") == self.answer
            return f"the answer is {report_answer}" if fails else ""
        finding = index_by_rule(report.findings).get(self.question)
        if finding is None or not finding.number:
            return f"{self.question} was not measured"
        # The value of the finding "accuracy" is the difference from a model that always predicts
        # the most frequent class. The accuracy itself is stored as a yardstick.
        value = finding.yardsticks.get("accuracy", finding.value)
        return self.explain_score_failure(value)

    def explain_score_failure(self, value: float) -> str:
        """Compare a score with the limit, and return the reason why it then fails.

        Args:
            value: the score; NaN if it was not measured.

        Returns:
            A reason such as "used is 0.500, which is used<.8"; empty if the score passes.
        """
        if math.isnan(value):
            return f"{self.question} was not measured"
        fails = COMPARISON_FUNCTIONS[self.sign](value, self.limit)
        return f"{self.question} is {value:.3f}, which is {self.text}" if fails else ""


COMPARABLE_SCORES = ("accuracy", *ALL_QUESTIONS)
"""Names of the scores that ``--fail-on`` can compare with a limit, as in "faithfulness<.5"."""


def parse_conditions(
    texts: Sequence[str],
    *,
    answers: Sequence[str] = ANSWER_NAMES,
    scores: Sequence[str] = COMPARABLE_SCORES,
) -> list[FailureCondition]:
    """Parse the conditions under which the command should fail, from the option ``--fail-on``.

    Args:
        texts: conditions such as "no" or "faithfulness<.5".
        answers: the answers that the command can give; empty if it only computes scores.
        scores: names of the scores that the command computes.

    Raises:
        AttnProbeError: If a text is neither an answer nor a question with a limit.
    """
    conditions = []
    for text in texts:
        match = SCORE_CONDITION.fullmatch(text.strip())
        if text in answers:
            conditions.append(FailureCondition(text, answer=text))
        elif match is not None and match[1] in scores:
            question, sign, limit = match[1], match[2], float(match[3])
            conditions.append(FailureCondition(text, "", question, sign, limit))
        else:
            example = f"a score with a limit such as '{scores[-1]}<.5'"
            expected = f"an answer or {example}" if answers else example
            answer_list = f"The answers are {', '.join(answers)}. " if answers else ""
            raise AttnProbeError(
                f"--fail-on got {text!r}, expected {expected}. {answer_list}The scores are "
                f"{', '.join(scores)}."
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
