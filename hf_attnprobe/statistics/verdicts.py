"""From numbers to answers: every rule, its thresholds and where they come from.

A rule grades an estimate with its 95% interval. Only an interval that lies on one side
of every threshold gives an answer; one that crosses a threshold, or stems from fewer
than ``MIN_TEXTS`` texts, cannot say. The documentation prints this table. What is said
of a rule anywhere (its question, measure, scale and yardsticks) stands in its record.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.estimates import Estimate


MIN_TEXTS = 30
"""Below this many texts an interval of a mean covers too seldom to be read."""


class Answer(StrEnum):
    """What can be said to a question. Only the verdict can be "mostly" something."""

    YES = "yes"
    MOSTLY_YES = "mostly yes"
    PARTLY = "partly"
    MOSTLY_NO = "mostly no"
    NO = "no"
    CANNOT_SAY = "cannot say"


GRADES = (Answer.NO, Answer.PARTLY, Answer.YES)


@dataclass(frozen=True)
class Rule:
    """How a question is answered, and what is said of it.

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
        if_yes, if_no: what may be said where the answer is yes, or no.
        ends: what stands at a place of the number line, whatever was measured.
        yardsticks: what the numbers are that a finding is to be seen beside, by name.
        asks: the question in at most thirty letters, for a line of a terminal.
        line: how that line says the graded number, with a place for it.
        labels: by name of a yardstick, a word for it where there is little room; the
            most telling first, others are left out there.
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
    if_no: str = ""
    ends: Mapping[str, float] = field(default_factory=dict)
    yardsticks: Mapping[str, str] = field(default_factory=dict)
    asks: str = ""
    line: str = "{}"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def thresholds(self) -> dict[str, float]:
        """Where the answer changes, by what it then is."""
        return thresholds_between(self.partly, self.yes)


def thresholds_between(partly: float, yes: float) -> dict[str, float]:
    """Where an answer changes, by what it then is."""
    if partly == yes:
        return {"yes above" if yes == 0 else "yes from": yes}
    return {"partly from": partly, "yes from": yes}


BY_CALIBRATION = (
    "the first threshold is the least multiple of .05 that at most 1 in 20 models of any "
    "kind exceed of which the truth is no (constructed models, 500 texts)"
)
"""The constructed models are those of ``docs/calibration.md``; a yes of two grades begins
half of the way, which none of these models exceeds."""


RULES = {
    "accuracy": Rule(
        "Accuracy",
        "Is the model better than guessing?",
        "its accuracy on these texts minus that of always saying the most frequent "
        "class, paired by text; of numbers R²",
        partly=0.0,
        yes=0.0,
        source="a model at chance has no predictions to explain",
        done="What the model says of these texts is compared with their labels, and "
        "with always giving the same answer. Attention of a model that is no better "
        "explains nothing that is worth an explanation.",
        scale="accuracy above that of always saying the same",
        if_yes="the model is better than always saying the same",
        if_no="the model is not better than always saying the same",
        yardsticks={
            "majority": "always saying the most frequent answer is right in",
            "top_probability": "mean probability of what is predicted",
            "calibration_error": "calibration error",
            "mean_absolute_error": "mean absolute error",
            "mean_absolute_error_of_mean": "the same of always saying the mean",
        },
        asks="Is the model any good?",
        line="more by {}",
        labels={
            "accuracy": "right",
            "majority": "most frequent",
            "mean_absolute_error": "error",
            "mean_absolute_error_of_mean": "of always the mean",
        },
    ),
    "importance": Rule(
        "Importance",
        "Do tokens with more attention matter more when they are left out?",
        "Gini correlation of attention with leave-one-out importance, as a share of the "
        "way from the control's to 1: (own − control) / (1 − control), of the means over "
        "texts",
        partly=0.35,
        yes=0.5,
        source="Jain & Wallace 2019, Section 4.1, weighted by importance (Schechtman & "
        "Yitzhaki 1987) and corrected for chance as Cohen's κ is; " + BY_CALIBRATION,
        done="Each token is left out in turn, and how far {said} then falls says how "
        "much the token matters (leave-one-out). The Gini correlation says how well "
        "attention puts the tokens that matter first: 1 is the best order, 0 chance. "
        "Sharp attention agrees with leave-one-out by itself, so the same weights are "
        "given to other tokens of the text at random (the control), and what they reach "
        "is where the scale begins.",
        scale="way from the same weights at random tokens to the best order",
        if_yes="the tokens with most attention are those that matter when left out",
        if_no="the same weights at random other tokens name what matters about as well",
        ends={"the control": 0.0, "the best order": 1.0},
        yardsticks={
            "agreement": "Gini correlation of attention with leave-one-out",
            "control": "Gini correlation of the control's attention",
            "precision": "precision of the tokens that hold half of the importance",
            "tau": "Kendall's τ of attention with leave-one-out, all pairs alike",
            "gradient": "Kendall's τ of gradients with leave-one-out",
        },
        asks="Do weights name what matters?",
        line="way {}",
        labels={"agreement": "own", "control": "control", "tau": "τ"},
    ),
    "assignment": Rule(
        "Assignment",
        "Does it matter which token got which weight?",
        "median change of the output over shuffles of the weights, the larger of total "
        "variation (0 to 1; of numbers in standard deviations of the labels) and share "
        "of the log-odds' range",
        partly=0.1,
        yes=0.1,
        source="Jain & Wallace 2019, Section 4.2.1; " + BY_CALIBRATION,
        done="The weights of a text are shuffled among its tokens again and again. If it "
        "matters which token has which weight, the output moves ({measured}). Of a model "
        "that is very sure the log-odds are looked at too, since its probability hardly "
        "shows what happens.",
        scale="how far the median shuffle moves the output",
        if_yes="the output depends on which token has which weight",
        if_no="giving the same weights to other tokens hardly changes the output",
        ends={"nothing moves": 0.0},
        yardsticks={
            "total variation": "the median shuffle moves the output by",
            "log-odds": "and the log-odds by this share of their range",
            "worst shuffle": "the worst of the shuffles moves one of the two by",
        },
        asks="Do shuffled weights matter?",
        line="moves {}",
        labels={
            "total variation": "output",
            "log-odds": "log-odds",
            "worst shuffle": "worst",
        },
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
        "choice. It does not decide the verdict: another attention with the same output "
        "does not make this one false (Wiegreffe & Pinter 2019, Section 2)",
        done="All other attention that moves the output by at most ε = {within} is "
        "searched for the one that is farthest from the model's. How far two are apart "
        "is their Jensen-Shannon divergence (JSD: 0 is the same attention, .69 = ln 2 "
        "attention to other tokens only). Graded is how tightly the output pins the "
        "weights down: 0 not at all, 1 completely.",
        scale="how tightly the output pins the weights down",
        if_yes="very different attention gives another output",
        if_no="the attention can be replaced by very different attention with almost "
        "the same output",
        ends={"any attention does": 0.0, "only this one does": 1.0},
        yardsticks={
            "largest_jsd": "JSD of the farthest attention of all",
            "epsilon_max_jsd": "JSD of the farthest that keeps the output",
            "upper_bound": "share of the way that none can exceed",
            "control": "share of the way that the control's can go",
        },
        asks="Do only these weights do it?",
        line="pinned down {}",
        labels={"epsilon_max_jsd": "others at JSD", "largest_jsd": "of at most"},
    ),
    "erasure": Rule(
        "Erasure",
        "Does the decision rest on the largest weights?",
        "1 − (tokens erased in attention's order beyond the smallest set) / (those of a "
        "random order), until nine tenths of the decision's lead are gone, as a share of "
        "the way from the control's to 1; of the means over texts that some order gets "
        "there",
        partly=0.35,
        yes=0.5,
        source="Serrano & Smith 2019, Section 5; nine tenths of the lead in place of the "
        "flip, which the noise behind the deciding tokens makes; " + BY_CALIBRATION,
        done="Attention weights are set to 0 one after the other, the largest first, "
        "until nine tenths of the decision's lead are gone. The same is done with the "
        "smallest set that does it, with random orders, and with the same weights at "
        "other tokens (the control).",
        scale="way from the same weights at random tokens to the smallest set",
        if_yes="the largest weights are what the decision rests on",
        if_no="the decision rests on the largest weights no more than it would if they "
        "were at other tokens",
        ends={"the control": 0.0, "the smallest set": 1.0},
        yardsticks={
            "attention": "share of tokens erased in attention's order",
            "smallest": "share of tokens in the smallest set",
            "random": "share of tokens erased in a random order",
            "way": "way of attention from a random order to the smallest set",
            "control": "way of the control's attention",
            "flip way": "the same way until the decision flips (Serrano & Smith)",
        },
        asks="Do the top weights decide?",
        line="way {}",
        labels={"way": "own", "control": "control", "attention": "erased"},
    ),
    "removal": Rule(
        "Removal",
        "Does the prediction fall without the tokens of most attention?",
        "comprehensiveness of attention's ranking minus a random one's, minus the same "
        "of the control, per text",
        partly=0.1,
        yes=0.1,
        source="DeYoung et al. 2020; " + BY_CALIBRATION,
        done="The tokens of most attention are taken out of the text itself, and the "
        "loss is compared with taking out as many random ones, and with what the same "
        "weights at other tokens cost (the control).",
        scale="what is lost beyond random tokens, less the control's",
        if_yes="the prediction loses more without the tokens of most attention than "
        "without random ones",
        if_no="the prediction loses no more without the tokens of most attention than "
        "it does without others",
        ends={"the control": 0.0},
        yardsticks={
            "attention": "lost without the tokens of most attention",
            "random": "lost without random tokens",
            "beyond random": "the difference of the two",
            "control": "that difference of the control",
        },
        asks="Do the top tokens decide?",
        line="loses {} more",
        labels={"attention": "own", "random": "random", "control": "control's"},
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
        partly, yes: the thresholds it was graded by; None of a rule's own.
        is_nothing: of assignment, whether even the worst shuffle surely does nothing.
        open_because: what keeps a "cannot say" open where more texts would not help.
        other_draws: share of single draws of the control that change the answer.
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
    is_nothing: bool = False
    open_because: str = ""
    other_draws: float | None = None
    partly: float | None = None
    yes: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """From where on the answer is partly, and yes."""
        rule = RULES[self.rule]
        partly = rule.partly if self.partly is None else self.partly
        return partly, rule.yes if self.yes is None else self.yes

    @property
    def thresholds(self) -> dict[str, float]:
        """Where the answer changes, by what it then is."""
        return thresholds_between(*self.limits)


def with_thresholds(given: Sequence[str]) -> dict[str, Rule]:
    """The rules, some with thresholds of a user's own.

    Args:
        given: such as "importance=.2,.4" (partly and yes from), or "removal=.1".

    Raises:
        AttnProbeError: an unknown question, or no such numbers.
    """
    rules = dict(RULES)
    for text in given:
        name, _, numbers = text.partition("=")
        try:
            values = [float(number) for number in numbers.split(",")]
        except ValueError:
            values = []
        n_expected = (1, 2) if name in ("importance", "uniqueness", "erasure") else (1,)
        in_order = values == sorted(values) and all(map(math.isfinite, values))
        if name not in QUESTIONS or len(values) not in n_expected or not in_order:
            raise AttnProbeError(
                "expected thresholds such as importance=.2,.4 (partly and yes from) or "
                f"removal=.1, of {', '.join(QUESTIONS)}, got {text!r}; change --thresholds"
            )
        rules[name] = replace(rules[name], partly=values[0], yes=values[-1])
    return rules


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


def possible_answers(lowest: Estimate, highest: Estimate, rule: Rule) -> tuple[Answer, ...]:
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


EFFECT = "assignment"
RANKINGS = ("importance", "erasure", "removal")
DECISIVE = (EFFECT, *RANKINGS)
QUESTIONS = ("importance", "assignment", "uniqueness", "erasure", "removal")
"""About attention, in the order in which they are reported."""

COMBINATIONS = (
    (
        "the model is not shown to be better than guessing",
        Answer.CANNOT_SAY,
        "there are no predictions worth an explanation",
    ),
    (
        "even the worst shuffle of the weights surely does nothing to the output",
        Answer.NO,
        "what has no effect explains nothing, however well it ranks the tokens",
    ),
    (
        "importance, erasure and removal all say no",
        Answer.NO,
        "the weights name what matters no better than at random tokens",
    ),
    (
        "importance, assignment, erasure or removal was not asked",
        Answer.CANNOT_SAY,
        "a verdict needs all four",
    ),
    (
        "importance, assignment, erasure and removal all say yes",
        Answer.YES,
        "the weights name what matters, and the output depends on them; uniqueness says "
        "whether other attention would do as well, which does not make this one false",
    ),
    (
        "assignment says no",
        Answer.MOSTLY_NO,
        "agreement of weights that hardly matter is not what makes the prediction",
    ),
    (
        "more than half of the questions asked say yes, or no",
        "mostly yes, or mostly no",
        "they are counted, uniqueness too",
    ),
    ("anything else", Answer.PARTLY, "the questions disagree"),
)
"""The verdict by what the questions say, the first that fits; with the reason."""


@dataclass(frozen=True)
class Conclusion:
    """The verdict, and what it counts.

    Attributes:
        answer: to whether attention explains the predictions.
        answers: of the questions that were asked, by rule; one whose texts of two
            predicted classes have different answers says "partly".
        at_chance: whether the model is not shown to be better than guessing.
        is_nothing: whether attention surely has no effect.
    """

    answer: Answer
    answers: Mapping[str, Answer]
    at_chance: bool = False
    is_nothing: bool = False

    @property
    def missing(self) -> list[str]:
        """Questions without which there is no verdict, and that were not asked."""
        return [rule for rule in DECISIVE if rule not in self.answers]

    def saying(self, answer: Answer) -> list[str]:
        """The questions with an answer, in their order."""
        return [rule for rule, said in self.answers.items() if said == answer]


def conclude(findings: Sequence[Finding]) -> Conclusion:
    """The verdict from the findings, by ``COMBINATIONS``.

    Where a question is open the verdict is what it would be with any answer to it; where
    that differs, "cannot say", or the "mostly" that is sure.
    """
    accuracy = [f for f in findings if f.rule == "accuracy" and f.n]
    at_chance = any(f.answer != Answer.YES for f in accuracy)
    found = {rule: [f for f in findings if f.rule == rule] for rule in QUESTIONS}
    answers = {rule: _joint(f.answer for f in fs) for rule, fs in found.items() if fs}
    is_nothing = bool(found[EFFECT]) and all(f.is_nothing for f in found[EFFECT])
    if at_chance or not answers:
        answer = Answer.CANNOT_SAY
    elif is_nothing:
        answer = Answer.NO
    else:
        answer = overall(answers)
    return Conclusion(answer, answers, at_chance, is_nothing)


def _joint(answers: Iterable[Answer]) -> Answer:
    """Of the predicted classes: what all say that say something, else "partly"."""
    said = set(answers) - {Answer.CANNOT_SAY}
    return said.pop() if len(said) == 1 else Answer.PARTLY if said else Answer.CANNOT_SAY


def overall(answers: Mapping[str, Answer]) -> Answer:
    """One answer from those of the questions, by rule.

    >>> yes, no, unknown = Answer.YES, Answer.NO, Answer.CANNOT_SAY
    >>> decisive = dict(importance=yes, assignment=yes, erasure=yes, removal=yes)
    >>> overall(decisive | {"uniqueness": no}).value
    'yes'
    >>> overall(decisive | {"removal": unknown}).value
    'mostly yes'
    >>> overall({"assignment": yes}).value
    'cannot say'
    """
    open_ones = [rule for rule, a in answers.items() if a == Answer.CANNOT_SAY]
    possible = {
        _decided({**answers, **dict(zip(open_ones, chosen, strict=True))})
        for chosen in itertools.product(GRADES, repeat=len(open_ones))
    }
    if len(possible) == 1:
        return possible.pop()
    for all_of, surely in (
        ({Answer.YES, Answer.MOSTLY_YES}, Answer.MOSTLY_YES),
        ({Answer.NO, Answer.MOSTLY_NO}, Answer.MOSTLY_NO),
    ):
        if possible <= all_of:
            return surely
    return Answer.CANNOT_SAY


def _decided(answers: Mapping[str, Answer]) -> Answer:
    """The verdict where no question that was asked is open."""
    if all(answers.get(rule) == Answer.NO for rule in RANKINGS):
        return Answer.NO
    if any(rule not in answers for rule in DECISIVE):
        return Answer.CANNOT_SAY
    if all(answers[rule] == Answer.YES for rule in DECISIVE):
        return Answer.YES
    if answers[EFFECT] == Answer.NO:
        return Answer.MOSTLY_NO
    said = list(answers.values())
    for answer, mostly in (
        (Answer.YES, Answer.MOSTLY_YES),
        (Answer.NO, Answer.MOSTLY_NO),
    ):
        if said.count(answer) > len(said) / 2:
            return mostly
    return Answer.PARTLY
