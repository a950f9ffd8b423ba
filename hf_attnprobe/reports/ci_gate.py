"""Conditions on which an audit fails: answers and scores. Pure."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import EVERY_QUESTION
from hf_attnprobe.statistics.verdicts import by_rule


ANSWERS = tuple(str(answer).replace(" ", "-") for answer in Answer)
"""The answers, each as one word."""
SIDES: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
}
SCORE = re.compile(r"([a-z]+)\s*([<>])\s*(-?\d*\.?\d+)")


@dataclass(frozen=True)
class Condition:
    """An answer to the whole, or a score below or above a limit.

    Attributes:
        said: as it was given.
        answer: empty of a score.
        question: key of the question whose number is compared; "accuracy" by what share is right.
        side: "<" or ">".
        limit: what the number is compared with.
    """

    said: str
    answer: str = ""
    question: str = ""
    side: str = "<"
    limit: float = 0.0

    def failed_by(self, report: AuditResult) -> str:
        """Returns why a report fails, in a line; empty where it does not."""
        if self.answer:
            given = str(report.answer)
            is_met = given.replace(" ", "-") == self.answer
            return f"the answer is {given}" if is_met else ""
        found = by_rule(report.findings).get(self.question)
        if found is None or not found.number:
            return f"{self.question} was not measured"
        # of accuracy the share that is right, where it is known
        value = found.yardsticks.get("accuracy", found.value)
        is_met = SIDES[self.side](value, self.limit)
        return f"{self.question} is {value:.3f}, which is {self.said}" if is_met else ""


QUESTIONS = ("accuracy", *EVERY_QUESTION)
"""That have a number, by key."""


def conditions(given: Sequence[str]) -> list[Condition]:
    """Returns the conditions of ``--fail-on``.

    Args:
        given: such as "no" or "faithfulness<.5".

    Raises:
        AttnProbeError: neither an answer nor a question with a limit.
    """
    found = []
    for text in given:
        score = SCORE.fullmatch(text.strip())
        if text in ANSWERS:
            found.append(Condition(text, answer=text))
        elif score is not None and score[1] in QUESTIONS:
            found.append(Condition(text, "", score[1], score[2], float(score[3])))
        else:
            raise AttnProbeError(
                f"expected {', '.join(ANSWERS)}, or a score such as 'faithfulness<.5' of "
                f"{', '.join(QUESTIONS)}, got {text!r}; change --fail-on"
            )
    return found


def failures(report: AuditResult, wanted: Sequence[Condition]) -> list[str]:
    """Returns the reasons for which a report fails, a line each."""
    return [reason for one in wanted if (reason := one.failed_by(report))]
