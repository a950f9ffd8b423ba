"""Answers to questions about a model, from the comparison of an estimate with thresholds.

A rule grades an estimate as "yes", "partly" or "no" by its 95% confidence interval. If the interval
contains a threshold, the answer is "cannot say". The answer is also "cannot say" for fewer than
:data:`MIN_TEXTS` texts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.rows import Texts


MIN_TEXTS = 30
"""Smallest number of texts that are needed to answer a question about a model.

With fewer texts, the confidence intervals are unreliable, so the answer is "cannot say".
"""
MIN_PROMPTS = 10
"""Smallest number of prompts that are needed to answer a question about a language model.

Other models need 30 texts. A prompt takes longer than a text, and it contains many units. With ten
prompts, the confidence intervals are still valid, because they use Student's t distribution. Intervals
for shares are exact.
"""


class Answer(StrEnum):
    """The possible answers to a question."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    CANNOT_SAY = "cannot say"

    def choose(self, yes: str, no: str, otherwise: str) -> str:
        """Choose one of three phrases: one for yes, one for no, and one for any other answer.

        Args:
            yes: phrase for yes.
            no: phrase for no.
            otherwise: phrase for "partly" and "cannot say".

        Returns:
            One of the phrases.
        """
        if self == Answer.YES:
            return yes
        if self == Answer.NO:
            return no
        return otherwise

    @property
    def opposite(self) -> "Answer":
        """Opposite answer: no for yes and yes for no; other answers stay the same."""
        return {Answer.YES: Answer.NO, Answer.NO: Answer.YES}.get(self, self)


ORDERED_ANSWERS = (Answer.NO, Answer.PARTLY, Answer.YES)
"""Answers in ascending order: the lowest numbers are graded "no", and the highest ones "yes"."""


@dataclass(frozen=True)
class Measure:
    """One number for each text, by which two audits are compared text by text.

    Attributes:
        description: description of the number.
        compute_values: function from the statistics at a site to one number per text, [texts]. It
            returns None if a statistic is missing.
        excludes_default_classes: whether texts in default classes are left out. The model
            predicts a default class if nothing in the text points to another class.
    """

    description: str
    compute_values: Callable[[Texts], np.ndarray | None]
    excludes_default_classes: bool = False

    def compute(self, texts: Texts) -> pd.Series | None:
        """Compute the number by which two audits are compared, for each text.

        Args:
            texts: statistics at one site.

        Returns:
            The numbers, indexed by text id; None if a statistic is missing.
        """
        values = self.compute_values(texts)
        if values is None:
            return None
        return pd.Series(values, index=texts.index)


def make_statistic_measure(
    description: str,
    name: str,
    transform: Callable[[np.ndarray], np.ndarray] = lambda values: values,
    *,
    excludes_default_classes: bool = False,
) -> Measure:
    """Create a measure by which two audits are compared: the value of one statistic.

    Args:
        description: description of the compared number.
        name: statistic name.
        transform: function that is applied to the values, [texts] -> [texts]. By default, the values
            are not changed.
        excludes_default_classes: whether texts in default classes are left out. The model predicts
            a default class if nothing in the text points to another class.

    Returns:
        The measure.
    """

    def compute_values(texts: Texts) -> np.ndarray | None:
        if name not in texts:
            return None
        return transform(texts.get_values(name))

    return Measure(description, compute_values, excludes_default_classes)


@dataclass(frozen=True)
class Rule:
    """A question about a model, with thresholds for its answer and phrases for reports.

    The attributes ``procedure``, ``if_yes``, ``if_partly`` and ``if_no`` are templates. Their
    placeholders are the attributes of :class:`~hf_attnprobe.statistics.wording.Wording`, and in
    the clauses also ``{little}``, which is "no" if the number is not above 0.

    Attributes:
        name: one or two words with which the answer begins.
        question: the question.
        measure: description of the number that is graded.
        partly: threshold from which the answer is at least "partly".
        yes: threshold from which the answer is "yes". If both thresholds are equal, there are
            only two answers, yes and no.
        source: publication or reason for the measure and its thresholds.
        procedure: how the number is measured, for readers who do not know the method.
        scale: short description of the number, used as a label in charts.
        if_yes: clause that states the result if the answer is "yes".
        if_partly: clause that states the result if the answer is "partly".
        if_no: clause that states the result if the answer is "no".
        if_open: clause that states what remains open otherwise.
        scale_ends: labelled reference positions on the chart's axis, such as 0 for "no change".
        yardsticks: labels for numbers that are printed for comparison, keyed by name.
        compared_measures: measures for comparing two audits text by text. If there are several,
            the first one that most audits have is used.
    """

    name: str
    question: str
    measure: str
    partly: float
    yes: float
    source: str
    procedure: str = ""
    scale: str = ""
    if_yes: str = ""
    if_partly: str = ""
    if_no: str = ""
    if_open: str = ""
    scale_ends: Mapping[str, float] = field(default_factory=dict)
    yardsticks: Mapping[str, str] = field(default_factory=dict)
    compared_measures: Sequence[Measure] = ()

    @property
    def thresholds(self) -> dict[str, float]:
        """Thresholds, keyed by a label such as "partly from".

        If both thresholds are equal, only the label for yes is used.
        """
        if self.partly == self.yes == 0:
            return {"yes above": self.yes}
        if self.partly == self.yes:
            return {"yes from": self.yes}
        return {"partly from": self.partly, "yes from": self.yes}

    @property
    def scale_label(self) -> str:
        """Chart label: the short description of the number, or the full one if it is empty."""
        return self.scale or self.measure

    @property
    def threshold_text(self) -> str:
        """Thresholds as a phrase.

        >>> Rule("", "", "", partly=0.35, yes=0.5, source="").threshold_text
        'partly from 0.35, yes from 0.50'
        """
        return ", ".join(f"{label} {value:.2f}" for label, value in self.thresholds.items())

    def get_clause(self, answer: Answer) -> str:
        """Get the clause that reports an answer.

        Args:
            answer: the answer.

        Returns:
            A template, which may contain placeholders.
        """
        clauses = {
            Answer.YES: self.if_yes,
            Answer.PARTLY: self.if_partly or self.if_open,
            Answer.NO: self.if_no,
        }
        return clauses.get(answer, self.if_open)


def grade(estimate: Estimate, rule: Rule, min_texts: int = MIN_TEXTS) -> Answer:
    """Grade an estimate by comparing its confidence interval with the thresholds of a rule.

    Args:
        estimate: number with its 95% confidence interval.
        rule: rule with thresholds.
        min_texts: smallest number of texts for an answer.

    Returns:
        The answer; "cannot say" if the interval contains a threshold or there are too few texts.

    In this example, the answer is yes from 0.5 on, and partly from 0.35 on:

    >>> rule = Rule("", "", "", partly=0.35, yes=0.5, source="")
    >>> grade(Estimate(0.8, (0.77, 0.83), 200), rule).value
    'yes'
    >>> grade(Estimate(0.52, (0.47, 0.57), 200), rule).value
    'cannot say'
    """
    return grade_range(estimate, estimate, rule, min_texts)


def grade_range(
    lowest: Estimate, highest: Estimate, rule: Rule, min_texts: int = MIN_TEXTS
) -> Answer:
    """Grade a number of which only a lower and an upper bound were estimated.

    Args:
        lowest: estimate of the lower bound.
        highest: estimate of the upper bound.
        rule: rule with thresholds.
        min_texts: smallest number of texts for an answer.

    Returns:
        The answer; "cannot say" if several answers are possible.
    """
    possible_answers = list_possible_answers(lowest, highest, rule, min_texts)
    if len(possible_answers) != 1:
        return Answer.CANNOT_SAY
    return possible_answers[0]


def list_possible_answers(
    lowest: Estimate, highest: Estimate, rule: Rule, min_texts: int = MIN_TEXTS
) -> tuple[Answer, ...]:
    """List the answers that the confidence intervals do not exclude, lowest first.

    Args:
        lowest: estimate of the number, or of its lower bound.
        highest: estimate of the number, or of its upper bound.
        rule: rule with thresholds.
        min_texts: smallest number of texts for an answer.

    Returns:
        The possible answers. All answers are possible if there is no interval or too few texts.
    """
    n = min(lowest.n or 0, highest.n or 0)
    possible_answers = list(ORDERED_ANSWERS)
    if lowest.ci95 is not None and highest.ci95 is not None and n >= min_texts:
        low, _ = lowest.ci95
        _, high = highest.ci95
        lowest_grade = _get_grade_index(low, rule)
        highest_grade = _get_grade_index(high, rule)
        possible_answers = possible_answers[lowest_grade : highest_grade + 1]
    # If both thresholds are equal, the answer "partly" does not exist.
    if rule.partly == rule.yes:
        possible_answers = [answer for answer in possible_answers if answer != Answer.PARTLY]
    return tuple(possible_answers)


def join_answers(answers: Sequence[Answer]) -> str:
    """Join two or more answers into a phrase.

    Args:
        answers: two or more answers.

    Returns:
        A phrase such as "no, partly or yes".

    >>> join_answers(ORDERED_ANSWERS)
    'no, partly or yes'
    """
    *first_answers, last_answer = answers
    return f"{', '.join(first_answers)} or {last_answer}"


def _get_grade_index(value: float, rule: Rule) -> int:
    """Return the grade of a number: 0 means no, 1 means partly, 2 means yes.

    A number that equals a threshold reaches it. There is one exception: if the only threshold is 0,
    the number must be larger than 0.
    """
    if rule.partly == rule.yes == 0:
        return 2 if value > 0 else 0
    is_at_least_partly = value >= rule.partly
    is_yes = value >= rule.yes
    return int(is_at_least_partly) + int(is_yes)
