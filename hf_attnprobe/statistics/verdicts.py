"""The verdict: all rules, their findings, and how findings combine into one answer.

The rules about attention are in ``questions.py``. The documentation prints the table.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hf_attnprobe import markdown
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import (
    GRADES,
    Answer,
    Measure,
    Rule,
    grade_between,
    possible_answers,
)
from hf_attnprobe.statistics.questions import (
    EVERY_QUESTION,
    OF_ANSWERS,
    QUESTIONS,
    Measured,
    Question,
)
from hf_attnprobe.statistics.summary import ALL_TEXTS


ELSEWHERE = Rule(
    "Elsewhere",
    "Can a model be trained that classifies as well and attends elsewhere?",
    "JSD of an adversary's attention to the base's minus that of the farthest other "
    "seed, paired by text; a yes needs that no F1 is lost",
    partly=0.0,
    yes=0.0,
    source="Wiegreffe & Pinter 2019, Section 3.3: what is no farther than another "
    "seed is no counter-example",
    asks="Can a model look elsewhere?",
    word="JSD beyond a seed's",
    if_yes="a trained model classifies as well and attends elsewhere",
    if_no="no trained model both classifies as well and attends elsewhere",
    if_open="whether a model that classifies as well can attend elsewhere",
)
"""Of retraining, where other seeds were trained."""
RULES: dict[str, Rule] = {
    "accuracy": Rule(
        "Accuracy",
        "Is the model better than guessing?",
        "its accuracy on these texts minus that of always saying the most frequent "
        "class, paired by text; of numbers R²",
        partly=0.0,
        yes=0.0,
        source="a model at chance has no predictions to explain",
        done="The model's predictions are compared with the labels, and with always giving the "
        "same answer. Where the model is no better, "
        "there are no predictions worth an explanation.",
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
        word="more",
        labels={
            "accuracy": "right",
            "majority": "most frequent",
            "mean_absolute_error": "error",
            "mean_absolute_error_of_mean": "of always the mean",
        },
        compared=(
            Measure("share of a text's labels that are right", {"right": 1}),
            Measure("error of the predicted number (less is better)", {"error": 1}),
        ),
    ),
    "passage": Rule(
        "Passage",
        "Does the answer depend on the passage?",
        "log-probability of the answer with the passage minus that without it, in nats, mean over "
        "texts (contextual gain); in place of accuracy, of language models",
        partly=0.0,
        yes=0.0,
        source="what the answer does not depend on cannot explain it",
        done="All units of the passage are deleted. Where the answer is no less likely then, there "
        "is nothing in the passage that attention to it could explain.",
        scale="nats that the answer gains by the passage",
        if_yes="the answer depends on the passage",
        if_no="the answer is as likely without the passage",
        yardsticks={"greedy": "share of texts in which greedy decoding says the answer"},
        asks="Does the passage matter?",
        word="nats",
        labels={"greedy": "greedy"},
        compared=(Measure("nats that the answer gains by the passage", {"contextual_gain": 1}),),
    ),
    **EVERY_QUESTION,
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
        "the distance of the farthest attention found within ε = .01 as a share of the largest",
        partly=0.58,
        yes=0.58,
        source="as for all attention: .40 of ln 2 (Wiegreffe & Pinter 2019, Table 4)",
    ),
    "head_erasure": Rule(
        "One head: erasure",
        "Does this head rank the tokens by what the decision rests on?",
        "its attention's score between a random order and the best order tried",
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
        asks="Is its attention needed?",
        word="F1 it is worth",
        if_yes="attention is needed for the score",
        if_no="attention is not needed for the score",
        if_open="whether attention is needed for the score",
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
    "elsewhere": ELSEWHERE,
    "elsewhere_without_seeds": replace(
        ELSEWHERE,
        question="The same, where no other seeds were trained.",
        measure="JSD of an adversary's attention to the base's; a yes needs that no F1 is lost",
        partly=0.4,
        yes=0.4,
        source="Wiegreffe & Pinter 2019, Table 4",
        word="JSD to its attention",
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
        asks="Do its weights help others?",
        word="F1 gained",
        if_yes="its weights help a simpler model",
        if_no="its weights do not help a simpler model",
        if_open="whether its weights help a simpler model",
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
"""By key, in the order in which they are reported: of audits, of retraining, of deception."""


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
    def graded_by(self) -> Rule:
        """The rule, with the thresholds that graded this finding."""
        rule = RULES[self.rule]
        if self.partly is None or self.yes is None:
            return rule
        return replace(rule, partly=self.partly, yes=self.yes)

    @property
    def where(self) -> str:
        """Names the group of texts in brackets; empty for all texts."""
        return "" if self.group == ALL_TEXTS else f" (texts predicted {self.group})"

    @property
    def name(self) -> str:
        """The rule's name with its group of texts."""
        return f"{RULES[self.rule].name}{self.where}"

    @property
    def is_about_attention(self) -> bool:
        """Whether it counts for the verdict; accuracy says only whether there is one."""
        return self.rule in EVERY_QUESTION

    @property
    def number(self) -> str:
        """The graded number with its interval, two digits; empty without a number."""
        if self.value != self.value:
            return ""
        return markdown.interval(self.value, self.ci95, digits=2)


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
        rule = EVERY_QUESTION.get(name)
        in_order = values == sorted(values) and all(map(math.isfinite, values))
        if rule is None or len(values) not in _n_thresholds(rule) or not in_order:
            raise AttnProbeError(
                "expected thresholds such as importance=.2,.4 (partly and yes from) or "
                f"removal=.1, of {', '.join(EVERY_QUESTION)}, got {text!r}; change --thresholds"
            )
        rules[name] = replace(rule, partly=values[0], yes=values[-1])
    return rules


def _n_thresholds(rule: Rule) -> tuple[int, ...]:
    """How many thresholds may be given; of a rule with two answers there is one."""
    return (1,) if rule.partly == rule.yes else (1, 2)


NO_CONTROL = "no control was run"
ONE_DRAW = "one draw of such a control says nothing of the next one"


def answered(key: str, rule: Rule, group: str, measured: Measured) -> Finding:
    """Grades what a question measured and words the finding.

    Args:
        key: of the rule.
        rule: by which it is graded, perhaps with thresholds of a user's own.
        group: "all" texts, or the predicted class whose texts it is about.
        measured: by the rule's question.
    """
    number, said = measured.graded, measured.said
    lowest = number if measured.at_least is None else measured.at_least
    answer = grade_between(lowest, number, rule)
    possible = possible_answers(lowest, number, rule)
    open_because = measured.open_because if answer == Answer.CANNOT_SAY else ""
    if number.n and number.ci95 is None:
        open_because = ONE_DRAW
    if measured.caution and answer != Answer.NO:
        answer, open_because = Answer.CANNOT_SAY, measured.caution
        possible = ()
    if measured.lacks_control:
        possible, open_because = (), NO_CONTROL
        said += " No control was run, which may reach as much."
        if answer != Answer.NO:
            answer = Answer.CANNOT_SAY
    found = finding(key, rule, group, answer, said, number, measured.yardsticks, possible)
    return replace(
        found,
        is_upper_bound=measured.is_upper_bound,
        is_nothing=measured.is_nothing,
        open_because=open_because,
    )


def finding(
    key: str,
    rule: Rule,
    group: str,
    answer: Answer,
    said: str,
    number: Estimate,
    yardsticks: Mapping[str, float | None],
    possible: Sequence[Answer] = (),
) -> Finding:
    """A finding whose sentence begins with its answer, as in "Erasure: cannot say (partly or yes)."

    Args:
        said: what was measured, in sentences.
        possible: the answers that are open.
    """
    where = "" if group == ALL_TEXTS else f" (texts predicted {group})"
    is_open = answer == Answer.CANNOT_SAY and len(possible) > 1
    between = f" ({' or '.join(possible)})" if is_open else ""
    has_own_thresholds = rule != RULES[key]
    return Finding(
        rule=key,
        group=group,
        answer=answer,
        sentence=f"{rule.name}{where}: {answer}{between}. {said}",
        value=number.value,
        ci95=number.ci95,
        n=number.n or 0,
        yardsticks={n: v for n, v in yardsticks.items() if v is not None and v == v},
        partly=rule.partly if has_own_thresholds else None,
        yes=rule.yes if has_own_thresholds else None,
    )


@dataclass(frozen=True)
class Asked:
    """What is asked of one kind of model, and when there is nothing to explain.

    Attributes:
        questions: by key.
        gate: the rule whose yes is needed.
        closed: what is so where the gate does not say yes, and why that ends it.
        waits_for: what a verdict then waits for.
    """

    questions: Mapping[str, Question]
    gate: str
    closed: tuple[str, str]
    waits_for: str

    def of(self, *parts: str) -> tuple[str, ...]:
        """The keys of the questions of some parts."""
        return tuple(key for key, q in self.questions.items() if q.part in parts)

    @property
    def effects(self) -> tuple[str, ...]:
        """Whether attention has an effect."""
        return self.of("effect")

    @property
    def rankings(self) -> tuple[str, ...]:
        """Whether its order names what matters."""
        return self.of("ranking")

    @property
    def decisive(self) -> tuple[str, ...]:
        """The questions that a verdict needs."""
        return (*self.effects, *self.rankings)


CLASSIFIERS = Asked(
    QUESTIONS,
    "accuracy",
    (
        "the model is not shown to be better than guessing",
        "there are no predictions worth an explanation",
    ),
    "a model that is shown to be better than guessing",
)
ANSWERS = Asked(
    OF_ANSWERS,
    "passage",
    (
        "the answer is not shown to depend on the passage",
        "what the answer does not depend on cannot explain it",
    ),
    "answers that are shown to depend on the passage",
)
RANKINGS = CLASSIFIERS.rankings
DECISIVE = CLASSIFIERS.decisive


def asked_by(rules: Iterable[str]) -> Asked:
    """What is asked where findings are about these rules: of answers where the passage is."""
    about = set(rules)
    only_of_answers = {ANSWERS.gate, *OF_ANSWERS} - QUESTIONS.keys()
    return ANSWERS if about & only_of_answers else CLASSIFIERS


def _listed(keys: Iterable[str], last: str = "and") -> str:
    """Names of rules in their order, as in "importance, erasure and removal"."""
    *names, end = (RULES[key].name.lower() for key in EVERY_QUESTION if key in set(keys))
    return f"{', '.join(names)} {last} {end}" if names else end


def combinations_of(asked: Asked) -> tuple[tuple[str, str, str], ...]:
    """The verdict by what the questions say, the first that fits; with the reason."""
    closed, why_closed = asked.closed
    return (
        (closed, Answer.CANNOT_SAY, why_closed),
        (
            "even the worst shuffle of the weights surely does nothing to the output",
            Answer.NO,
            "what has no effect explains nothing, however well it ranks the tokens",
        ),
        (
            f"{_listed(asked.rankings)} all say no",
            Answer.NO,
            "the weights name what matters no better than at random tokens",
        ),
        (
            f"{_listed(asked.decisive, 'or')} was not asked",
            Answer.CANNOT_SAY,
            "a verdict needs them all",
        ),
        (
            f"{_listed(asked.decisive)} all say yes",
            Answer.YES,
            "the weights name what matters, and the output depends on them; uniqueness says "
            "whether other attention would do as well, which does not make this one false",
        ),
        (
            f"{_listed(asked.effects, 'or')} says no",
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


COUNTED = {
    Answer.YES: "yes",
    Answer.PARTLY: "partly",
    Answer.NO: "no",
    Answer.CANNOT_SAY: "undecided",
}


def names_of(rules: Iterable[str]) -> str:
    """The names of rules in a sentence, as in "erasure, removal"."""
    return ", ".join(RULES[rule].name.lower() for rule in rules)


@dataclass(frozen=True)
class Conclusion:
    """The verdict with the answers that it counts.

    Attributes:
        answer: to whether attention explains the predictions.
        answers: of the questions that were asked, by rule; one whose texts of two
            predicted classes have different answers says "partly".
        at_chance: whether the gate does not say yes.
        is_nothing: whether attention surely has no effect.
        asked: of what kind of model it is.
    """

    answer: Answer
    answers: Mapping[str, Answer]
    at_chance: bool = False
    is_nothing: bool = False
    asked: Asked = CLASSIFIERS

    @property
    def missing(self) -> list[str]:
        """The decisive questions that were not asked."""
        return [rule for rule in self.asked.decisive if rule not in self.answers]

    @property
    def why(self) -> str:
        """The reason for the verdict, where counting answers does not give it; else empty."""
        if self.at_chance:
            return self.asked.closed[0]
        if self.is_nothing:
            return "attention has no effect on the output"
        if self.missing and self.answer == Answer.CANNOT_SAY:
            return f"a verdict also needs {names_of(self.missing)}"
        beside = (
            EVERY_QUESTION[rule].beside_yes
            for rule, said in self.answers.items()
            if self.answer == Answer.YES and said in (Answer.NO, Answer.PARTLY)
        )
        return "; ".join(filter(None, beside))

    def counted(self, *, by_name: bool = False) -> str:
        """Counts the questions asked, by answer.

        "5 of 5 questions asked: 1 yes, 3 no, 1 undecided"; by name "1 yes (removal), …".
        """
        said = []
        for answer, word in COUNTED.items():
            rules = self.saying(answer)
            names = f" ({names_of(rules)})" if by_name else ""
            said += [f"{len(rules)} {word}{names}"] if rules else []
        n = len(self.asked.questions)
        return f"{len(self.answers)} of {n} questions asked: {', '.join(said)}"

    def saying(self, answer: Answer) -> list[str]:
        """The questions with an answer, in their order."""
        return [rule for rule, said in self.answers.items() if said == answer]


def conclude(findings: Sequence[Finding]) -> Conclusion:
    """The verdict from the findings, by :func:`combinations_of`.

    Where a question is open the verdict is what it would be with any answer to it; where
    that differs, "cannot say", or the "mostly" that is sure.
    """
    asked = asked_by(f.rule for f in findings)
    gate = [f for f in findings if f.rule == asked.gate and f.n]
    at_chance = any(f.answer != Answer.YES for f in gate)
    found = {rule: [f for f in findings if f.rule == rule] for rule in asked.questions}
    answers = {rule: _joint(f.answer for f in fs) for rule, fs in found.items() if fs}
    is_nothing = any(fs and all(f.is_nothing for f in fs) for fs in found.values())
    if at_chance or not answers:
        answer = Answer.CANNOT_SAY
    elif is_nothing:
        answer = Answer.NO
    else:
        answer = overall(answers, asked)
    return Conclusion(answer, answers, at_chance, is_nothing, asked)


def _joint(answers: Iterable[Answer]) -> Answer:
    """Joins the answers of predicted classes: the one decided answer, else "partly"."""
    said = set(answers) - {Answer.CANNOT_SAY}
    return said.pop() if len(said) == 1 else Answer.PARTLY if said else Answer.CANNOT_SAY


def overall(answers: Mapping[str, Answer], asked: Asked = CLASSIFIERS) -> Answer:
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
        _decided({**answers, **dict(zip(open_ones, chosen, strict=True))}, asked)
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


def _decided(answers: Mapping[str, Answer], asked: Asked) -> Answer:
    """The verdict where no question that was asked is open."""
    if all(answers.get(rule) == Answer.NO for rule in asked.rankings):
        return Answer.NO
    if any(rule not in answers for rule in asked.decisive):
        return Answer.CANNOT_SAY
    if all(answers[rule] == Answer.YES for rule in asked.decisive):
        return Answer.YES
    if Answer.NO in (answers[rule] for rule in asked.effects):
        return Answer.MOSTLY_NO
    said = list(answers.values())
    for answer, mostly in (
        (Answer.YES, Answer.MOSTLY_YES),
        (Answer.NO, Answer.MOSTLY_NO),
    ):
        if said.count(answer) > len(said) / 2:
            return mostly
    return Answer.PARTLY
