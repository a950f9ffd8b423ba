"""How a number is graded: answers, rules and their thresholds.

A rule grades an estimate with its 95% interval. Only an interval that lies on one side
of every threshold gives an answer; one that crosses a threshold, or stems from fewer
than ``MIN_TEXTS`` texts, cannot say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.rows import Texts


MIN_TEXTS = 30
"""Below this many texts an interval of a mean covers too seldom to be read."""
MIN_PROMPTS = 10
"""The same of language models: a prompt costs seconds, its numbers are of many units, and
intervals of few prompts are those of Student's t, of shares the exact ones."""


class Answer(StrEnum):
    """The possible answers to a question."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    CANNOT_SAY = "cannot say"

    def words(self, yes: str, no: str, otherwise: str) -> str:
        """One of three, for yes, no, or anything else."""
        return {Answer.YES: yes, Answer.NO: no}.get(self, otherwise)

    @property
    def opposite(self) -> "Answer":
        """No for yes, yes for no."""
        return {Answer.YES: Answer.NO, Answer.NO: Answer.YES}.get(self, self)


GRADES = (Answer.NO, Answer.PARTLY, Answer.YES)


@dataclass(frozen=True)
class Measure:
    """A number per text, for paired differences between audits.

    Attributes:
        words: what the number is.
        values: of every text, [texts]; None where a statistic is missing. Its mean is the
            number of all texts.
        is_of_explained: whether texts whose class is said by default are left out.
    """

    words: str
    values: Callable[[Texts], np.ndarray | None]
    is_of_explained: bool = False

    def of(self, texts: Texts) -> pd.Series | None:
        """The number of every text by its id; None where a statistic is missing."""
        values = self.values(texts)
        return None if values is None else pd.Series(values, index=texts.index)


def of_statistic(
    words: str,
    name: str,
    change: Callable[[np.ndarray], np.ndarray] = lambda values: values,
    *,
    is_of_explained: bool = False,
) -> Measure:
    """Returns the measure that is one statistic.

    Args:
        words: what it is.
        name: of the statistic.
        change: of its values, [texts] -> [texts].
        is_of_explained: whether texts whose class is said by default are left out.
    """

    def values(texts: Texts) -> np.ndarray | None:
        return change(texts.values(name)) if name in texts else None

    return Measure(words, values, is_of_explained)


@dataclass(frozen=True)
class Rule:
    """A question with its measure, its thresholds and the words that report it.

    Attributes:
        name: one word, with which the sentence begins.
        question: what is asked.
        measure: the number that is graded, with its yardstick.
        partly: the answer is at least "partly" from here on.
        yes: it is "yes" from here on; a rule with two answers has the same twice.
        source: where measure and thresholds come from.
        done: what is done to the model, in plain words; has the places of
            :class:`~hf_attnprobe.statistics.wording.Words`.
        scale: what the graded number is, beneath its number line.
        if_yes, if_partly, if_no: what may be said where the answer is so, as a clause; has the
            places of :class:`~hf_attnprobe.statistics.wording.Words`, and ``{little}``, which is
            "no" where the number is not above 0.
        if_open: what is left open where it is neither.
        ends: what stands at a place of the number line, whatever was measured.
        yardsticks: what the numbers are that a finding is to be seen beside, by name.
        compared: the number behind it text by text, for differences between audits; of
            several the first that most audits have.
    """

    name: str
    question: str
    measure: str
    partly: float
    yes: float
    source: str
    done: str = ""
    scale: str = ""
    if_yes: str = ""
    if_partly: str = ""
    if_no: str = ""
    if_open: str = ""
    ends: Mapping[str, float] = field(default_factory=dict)
    yardsticks: Mapping[str, str] = field(default_factory=dict)
    compared: Sequence[Measure] = ()

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds, by the answer that begins there."""
        if self.partly == self.yes:
            return {"yes above" if self.yes == 0 else "yes from": self.yes}
        return {"partly from": self.partly, "yes from": self.yes}

    @property
    def scale_of(self) -> str:
        """A short name of the graded number, else its full measure."""
        return self.scale or self.measure

    @property
    def graded(self) -> str:
        """The thresholds in words.

        >>> Rule("", "", "", partly=0.35, yes=0.5, source="").graded
        'partly from 0.35, yes from 0.50'
        """
        return ", ".join(f"{name} {at:.2f}" for name, at in self.thresholds.items())

    def in_short(self, answer: Answer) -> str:
        """Returns what an answer says, as a clause."""
        clauses = {
            Answer.YES: self.if_yes,
            Answer.PARTLY: self.if_partly or self.if_open,
            Answer.NO: self.if_no,
        }
        return clauses.get(answer, self.if_open)


def grade(estimate: Estimate, rule: Rule, least: int = MIN_TEXTS) -> Answer:
    """Grades an estimate; "cannot say" where its interval crosses a threshold.

    Args:
        least: texts below which nothing is said.

    >>> rule = Rule("", "", "", partly=0.35, yes=0.5, source="")
    >>> grade(Estimate(0.8, (0.77, 0.83), 200), rule).value
    'yes'
    >>> grade(Estimate(0.52, (0.47, 0.57), 200), rule).value
    'cannot say'
    """
    return grade_between(estimate, estimate, rule, least)


def grade_between(
    lowest: Estimate, highest: Estimate, rule: Rule, least: int = MIN_TEXTS
) -> Answer:
    """Grades a number that is known only to lie between two estimates."""
    possible = possible_answers(lowest, highest, rule, least)
    return possible[0] if len(possible) == 1 else Answer.CANNOT_SAY


def possible_answers(
    lowest: Estimate, highest: Estimate, rule: Rule, least: int = MIN_TEXTS
) -> tuple[Answer, ...]:
    """Returns the answers that the intervals leave open, the lowest first.

    All of them where there is no interval, or where there are fewer texts than ``least``.
    """
    n = min(lowest.n or 0, highest.n or 0)
    left_open = list(GRADES)
    if lowest.ci95 is not None and highest.ci95 is not None and n >= least:
        low, _ = lowest.ci95
        _, high = highest.ci95
        first, last = _place(low, rule), _place(high, rule)
        left_open = left_open[first : last + 1]
    if rule.partly == rule.yes:
        left_open = [answer for answer in left_open if answer != Answer.PARTLY]
    return tuple(left_open)


def either(possible: Sequence[Answer]) -> str:
    """Returns the answers that are open in words; two at least.

    >>> either(GRADES)
    'no, partly or yes'
    """
    *first, last = possible
    return f"{', '.join(first)} or {last}"


def _place(value: float, rule: Rule) -> int:
    """The grade of one number, as its place in GRADES; above 0 where a threshold is 0."""
    if rule.partly == rule.yes == 0:
        return 2 if value > 0 else 0
    return (value >= rule.partly) + (value >= rule.yes)
