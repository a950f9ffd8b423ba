"""From numbers to answers: every rule, its thresholds and where they come from.

A rule grades an estimate with its 95% interval. Only an interval that lies on one side
of every threshold gives an answer; one that crosses a threshold, or stems from fewer
than ``MIN_TEXTS`` texts, cannot say. The documentation prints this table.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from hf_attnprobe.statistics.bootstrap import Estimate


MIN_TEXTS = 30
"""Below this many texts a bootstrap interval of a mean covers too seldom to be read."""


class Answer(StrEnum):
    """What can be said to a question."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    CANNOT_SAY = "cannot say"


GRADES = (Answer.NO, Answer.PARTLY, Answer.YES)


@dataclass(frozen=True)
class Rule:
    """How a question is answered.

    Attributes:
        name: one word, with which the sentence begins.
        question: what is asked.
        measure: the number that is graded, with its yardstick.
        partly: the answer is at least "partly" from here on.
        yes: it is "yes" from here on; a rule with two answers has the same twice.
        source: where measure and thresholds come from.
    """

    name: str
    question: str
    measure: str
    partly: float
    yes: float
    source: str


RULES = {
    "accuracy": Rule(
        "Accuracy",
        "Is the model better than always saying the most frequent class, or the mean?",
        "its accuracy on these texts minus the majority's, paired by text; of numbers R²",
        partly=0.0,
        yes=0.0,
        source="a model at chance has no predictions to explain",
    ),
    "importance": Rule(
        "Importance",
        "Does attention rank the tokens as leaving them out does, beyond what the "
        "architecture gives?",
        "τ-b of attention with leave-one-out minus that of the control, paired by text",
        partly=0.1,
        yes=0.3,
        source="Jain & Wallace 2019, Section 4.1; control: Adebayo et al. 2018; a small "
        "and a medium difference of correlations (Cohen 1988)",
    ),
    "assignment": Rule(
        "Assignment",
        "Does it matter which token got which weight?",
        "median change of the output over shuffles (total variation, 0 to 1; of numbers "
        "in standard deviations of the labels), minus the control's where there is one",
        partly=0.1,
        yes=0.1,
        source="Jain & Wallace 2019, Section 4.2.1; a tenth of the range is our choice",
    ),
    "uniqueness": Rule(
        "Uniqueness",
        "Is this attention the only one that gives this output?",
        "1 − the farthest attention within ε = .01 as a share of the farthest of all, "
        "per text; a yes needs an upper bound of that distance",
        partly=0.42,
        yes=0.75,
        source="Jain & Wallace 2019, Section 4.2.2 (ε); .42 = 1 − .40 / ln 2, the "
        "distance of trained adversaries (Wiegreffe & Pinter 2019, Table 4); .75 is our "
        "choice",
    ),
    "erasure": Rule(
        "Erasure",
        "Does attention rank the tokens by what the decision rests on?",
        "(random order − attention's order) / (random order − smallest set), in numbers "
        "of tokens erased until the decision flips, per text that some set flips; an "
        "order that never flips it counts as all tokens",
        partly=0.25,
        yes=0.75,
        source="Serrano & Smith 2019, Section 5; a quarter and three quarters of the way "
        "are our choice",
    ),
    "removal": Rule(
        "Removal",
        "Does the prediction fall without the tokens of most attention?",
        "comprehensiveness of attention's ranking minus a random one's, per text",
        partly=0.05,
        yes=0.05,
        source="DeYoung et al. 2020; .05 of probability, or of a number's unit, is our choice",
    ),
    "head_effect": Rule(
        "One head: effect",
        "Does the output move when this head alone is edited?",
        "change of the output (total variation, or a number's unit), or what is lost "
        "beyond random tokens, with simultaneous intervals over all heads",
        partly=0.05,
        yes=0.05,
        source="half of what all attention must move; our choice",
    ),
    "head_importance": Rule(
        "One head: importance",
        "Does this head rank the tokens as leaving them out does?",
        "τ-b of its attention with leave-one-out",
        partly=0.3,
        yes=0.3,
        source="Jain & Wallace 2019, Section 4.1; a medium correlation (Cohen 1988)",
    ),
    "head_uniqueness": Rule(
        "One head: elsewhere",
        "Can this head look elsewhere with the same output?",
        "the farthest attention found within ε = .01 as a share of the farthest of all",
        partly=0.58,
        yes=0.58,
        source="as for all attention: .40 of ln 2 (Wiegreffe & Pinter 2019, Table 4)",
    ),
    "head_erasure": Rule(
        "One head: erasure",
        "Does this head rank the tokens by what the decision rests on?",
        "its attention's way from a random order to the best order tried",
        partly=0.25,
        yes=0.25,
        source="as for all attention; our choice",
    ),
    "need": Rule(
        "Need",
        "Is attention needed for the score?",
        "mean F1 of the trainings with attention (base and other seeds) minus that of "
        "one with uniform attention; the interval covers texts and seeds",
        partly=0.02,
        yes=0.02,
        source="Wiegreffe & Pinter 2019, Section 3.2; .02 of F1 is our choice; the "
        "interval of one more training from the spread of the seeds (Student's t)",
    ),
    "loss": Rule(
        "Loss",
        "Does the trained model classify worse?",
        "score of the reference minus that of the trained model, paired by text: F1 of "
        "an adversary, accuracy of a deceiving model",
        partly=0.02,
        yes=0.02,
        source="Wiegreffe & Pinter 2019, Section 4, and Pruthi et al. 2020 ask for no "
        "loss; .02 is our choice",
    ),
    "elsewhere": Rule(
        "Elsewhere",
        "Can a model be trained that classifies as well and attends elsewhere?",
        "JSD of an adversary's attention to the base's minus that of the farthest other "
        "seed, paired by text; a yes needs that no F1 is lost",
        partly=0.0,
        yes=0.0,
        source="Wiegreffe & Pinter 2019, Section 3.3: what is no farther than another "
        "seed is no counter-example",
    ),
    "elsewhere_without_seeds": Rule(
        "Elsewhere",
        "The same, where no other seeds were trained.",
        "JSD of an adversary's attention to the base's; a yes needs that no F1 is lost",
        partly=0.4,
        yes=0.4,
        source="Wiegreffe & Pinter 2019, Table 4",
    ),
    "transfer": Rule(
        "Transfer",
        "Do the base's weights serve a model without context better than its own?",
        "F1 of a model without context guided by the base's weights minus that of one "
        "with attention of its own; the interval covers texts and seeds",
        partly=0.0,
        yes=0.0,
        source="Wiegreffe & Pinter 2019, Section 3.4; as if that model varied with its "
        "seed as the base does",
    ),
    "use": Rule(
        "Use",
        "Does the model use the impermissible tokens?",
        "total variation of the output when they are deleted minus that when as many "
        "other tokens are, per text",
        partly=0.05,
        yes=0.05,
        source="the control is ours, Pruthi et al. 2020 have none; .05 of probability "
        "is our choice",
    ),
    "hiding": Rule(
        "Hiding",
        "Has attention to the impermissible tokens gone?",
        "half of the attention mass on them before minus the mass after, per text",
        partly=0.0,
        yes=0.0,
        source="Pruthi et al. 2020; half of the mass is our choice",
    ),
}
"""By key, in the order in which they are reported."""


@dataclass(frozen=True)
class Finding:
    """One question with its answer.

    Attributes:
        rule: key of the rule.
        group: "all" texts, or the predicted class whose texts it is about.
        answer: yes, partly, no or cannot say.
        sentence: the answer in words, with number, interval and yardsticks.
        value: the number that was graded.
        ci95: its 95% interval.
        n: texts.
        yardsticks: the numbers it is to be seen beside, by name.
        is_upper_bound: whether the number is only known not to be larger.
    """

    rule: str
    group: str
    answer: Answer
    sentence: str
    value: float
    ci95: tuple[float, float] | None
    n: int
    yardsticks: dict[str, float] = field(default_factory=dict)
    is_upper_bound: bool = False


def grade(estimate: Estimate, rule: Rule) -> Answer:
    """The answer that an estimate gives; "cannot say" where its interval crosses one.

    >>> grade(Estimate(0.8, (0.77, 0.83), 200), RULES["erasure"]).value
    'yes'
    >>> grade(Estimate(0.74, (0.71, 0.77), 200), RULES["erasure"]).value
    'cannot say'
    """
    return grade_between(estimate, estimate, rule)


def grade_between(lowest: Estimate, highest: Estimate, rule: Rule) -> Answer:
    """As :func:`grade` of a number known only to lie between two estimates."""
    possible = possible_answers(lowest, highest, rule)
    return possible[0] if len(possible) == 1 else Answer.CANNOT_SAY


def possible_answers(
    lowest: Estimate, highest: Estimate, rule: Rule
) -> tuple[Answer, ...]:
    """The answers that the intervals leave open, the lowest first.

    All of them where there is no interval, or where there are too few texts.
    """
    n = min(lowest.n or 0, highest.n or 0)
    if lowest.ci95 is None or highest.ci95 is None or n < MIN_TEXTS:
        return tuple(answer for answer in GRADES if _has(rule, answer))
    first = _place(lowest.ci95[0], rule)
    last = _place(highest.ci95[1], rule)
    return tuple(a for a in GRADES[first : last + 1] if _has(rule, a))


def _place(value: float, rule: Rule) -> int:
    """The grade of one number, as its place in GRADES; above 0 where a threshold is 0."""
    if rule.partly == rule.yes == 0:
        return 2 if value > 0 else 0
    return (value >= rule.partly) + (value >= rule.yes)


def _has(rule: Rule, answer: Answer) -> bool:
    return answer != Answer.PARTLY or rule.partly != rule.yes


def overall(answers: Iterable[Answer]) -> Answer:
    """One answer from several.

    Yes or no where every one says so, partly where they part or one says partly, and
    cannot say where those that cannot might turn it.

    >>> overall([Answer.YES, Answer.NO, Answer.CANNOT_SAY]).value
    'partly'
    >>> overall([Answer.YES, Answer.CANNOT_SAY]).value
    'cannot say'
    """
    given = list(answers)
    said = set(given) - {Answer.CANNOT_SAY}
    if len(said) > 1 or Answer.PARTLY in said:
        return Answer.PARTLY
    if not said or Answer.CANNOT_SAY in given:
        return Answer.CANNOT_SAY
    return said.pop()
