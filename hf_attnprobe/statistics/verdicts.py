"""The verdict: all rules, their findings, and how findings combine into one answer.

The rules about attention are in ``questions.py``. The documentation prints the table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import (
    MIN_PROMPTS,
    MIN_TEXTS,
    Answer,
    Rule,
    either,
    grade_between,
    of_statistic,
    possible_answers,
)
from hf_attnprobe.statistics.questions import (
    EVERY_QUESTION,
    OF_ANSWERS,
    QUESTIONS,
    Measured,
    Question,
)


ELSEWHERE = Rule(
    "Elsewhere",
    "Can a model be trained that classifies as well and attends elsewhere?",
    "JSD of an adversary's attention to the base's minus that of the farthest other "
    "seed, paired by text; a yes needs that no F1 is lost",
    partly=0.0,
    yes=0.0,
    source="Wiegreffe & Pinter 2019, Section 3.3: what is no farther than another "
    "seed is no counter-example",
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
        compared=(
            of_statistic("share of a text's labels that are right", "right"),
            of_statistic("error of the predicted number (less is better)", "error"),
        ),
    ),
    "own": Rule(
        "Own answer",
        "Does the model itself say the answer?",
        "share of texts in which greedy decoding says the answer that is explained; what follows "
        "is of these texts",
        partly=0.5,
        yes=0.9,
        source="what a model does not say its attention need not explain; the shares are our choice; "
        "where it says all answers itself none is left out: yes, whatever the interval",
        done="The answer that is explained is compared with the model's own, token by token. All "
        "that follows speaks of the texts in which they are the same.",
        scale="share of texts in which the model says the answer itself",
        if_yes="the answers are the model's own",
        if_no="the model says other answers than those that are explained",
        compared=(of_statistic("share of texts with the model's own answer", "answer_is_greedy"),),
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
        compared=(of_statistic("nats that the answer gains by the passage", "contextual_gain"),),
    ),
    **EVERY_QUESTION,
    "need": Rule(
        "Need",
        "Is attention needed for the score?",
        "mean F1 of the trainings with attention (base and other seeds) minus that of "
        "one with uniform attention; the interval covers texts and seeds",
        partly=0.02,
        yes=0.02,
        source="Wiegreffe & Pinter 2019, Section 3.2; .02 of F1 is our choice; the "
        "interval of one more training from the spread of the seeds (Student's t)",
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
        if_yes="the score is not kept",
        if_no="the score is kept",
        if_open="the score is not told to be kept or lost",
    ),
    "elsewhere": ELSEWHERE,
    "elsewhere_without_seeds": replace(
        ELSEWHERE,
        question="The same, where no other seeds were trained.",
        measure="JSD of an adversary's attention to the base's; a yes needs that no F1 is lost",
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
        if_yes="the model uses the impermissible tokens",
        if_no="the model hardly uses the impermissible tokens",
        if_open="the model may or may not use the impermissible tokens",
    ),
    "hiding": Rule(
        "Hiding",
        "Has attention to the impermissible tokens gone?",
        "half of the attention mass on them before minus the mass after, per text",
        partly=0.0,
        yes=0.0,
        source="Pruthi et al. 2020; half of the mass is our choice",
        if_yes="attention does not show the impermissible tokens",
        if_no="attention still shows the impermissible tokens",
        if_open="attention may or may not show the impermissible tokens",
    ),
}
"""By key, in the order in which they are reported: of audits, of retraining, of deception."""


@dataclass(frozen=True)
class Finding:
    """One question with its answer.

    Attributes:
        rule: key of the rule.
        answer: yes, partly, no or cannot say.
        sentence: the answer in words, with number, interval and yardsticks.
        value: the number that was graded.
        ci95: its 95% interval.
        n: texts.
        yardsticks: the numbers it is to be seen beside, by name.
        is_upper_bound: whether the number is only known not to be larger.
        is_nothing: of an effect, whether even the worst shuffle surely does nothing.
        open_because: what keeps a "cannot say" open where more texts would not help.
        partly, yes: the thresholds it was graded by; None of a rule's own.

    Raises:
        AttnProbeError: there is no such rule.
    """

    rule: str
    answer: Answer
    sentence: str
    value: float
    ci95: tuple[float, float] | None
    n: int
    yardsticks: dict[str, float] = field(default_factory=dict)
    is_upper_bound: bool = False
    is_nothing: bool = False
    open_because: str = ""
    partly: float | None = None
    yes: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise AttnProbeError(
                f"expected the key of a rule, such as {next(iter(RULES))}, got {self.rule!r}"
            )

    @property
    def graded_by(self) -> Rule:
        """The rule, with the thresholds that graded this finding."""
        rule = RULES[self.rule]
        if self.partly is None or self.yes is None:
            return rule
        return replace(rule, partly=self.partly, yes=self.yes)

    @property
    def name(self) -> str:
        """The rule's name."""
        return RULES[self.rule].name

    @property
    def said(self) -> str:
        """The sentence without name and answer."""
        return self.sentence.partition(". ")[2]

    @property
    def role(self) -> str:
        """What it is in the verdict; a gate where it is not about attention."""
        asked = EVERY_QUESTION.get(self.rule)
        return "gate" if asked is None else asked.role

    @property
    def is_about_attention(self) -> bool:
        """Whether it is about attention; accuracy says only whether there is a verdict."""
        return self.rule in EVERY_QUESTION

    @property
    def estimate(self) -> Estimate:
        """The number that was graded."""
        return Estimate(self.value, self.ci95, self.n)

    @property
    def number(self) -> str:
        """The graded number with its interval, two digits; empty without a number."""
        if self.value != self.value:
            return ""
        return markdown.interval(self.value, self.ci95, digits=2)


def with_thresholds(given: Sequence[str]) -> dict[str, Rule]:
    """The rules, some with thresholds of a user's own.

    Thresholds of faithfulness are those of its parts too, unless these have their own.

    Args:
        given: such as "faithfulness=.4,.65" (partly and yes from), or "effect=.1".

    Raises:
        AttnProbeError: an unknown question, or no such numbers.
    """
    rules = dict(RULES)
    for text in sorted(given, key=lambda text: not text.startswith("faithfulness=")):
        name, _, numbers = text.partition("=")
        try:
            values = [float(number) for number in numbers.split(",")]
        except ValueError:
            values = []
        rule = EVERY_QUESTION.get(name)
        in_order = values == sorted(values) and all(map(math.isfinite, values))
        if (
            rule is None
            or not 1 <= len(values) <= (1 if rule.partly == rule.yes else 2)
            or not in_order
        ):
            raise AttnProbeError(
                "expected thresholds such as faithfulness=.4,.65 (partly and yes from) or "
                f"effect=.1, of {', '.join(EVERY_QUESTION)}, got {text!r}; change --thresholds"
            )
        same = [name]
        if rule.role == "score":
            same += [key for key, asked in EVERY_QUESTION.items() if asked.role == "part"]
        for key in same:
            rules[key] = replace(rules[key], partly=values[0], yes=values[-1])
    return rules


def answered(key: str, rule: Rule, measured: Measured, least: int = MIN_TEXTS) -> Finding:
    """Grades what a question measured and words the finding.

    Args:
        key: of the rule.
        rule: by which it is graded, perhaps with thresholds of a user's own.
        measured: by the rule's question.
        least: texts below which nothing is said.
    """
    number = measured.graded
    lowest = number if measured.at_least is None else measured.at_least
    answer = grade_between(lowest, number, rule, least)
    possible = possible_answers(lowest, number, rule, least)
    found = finding(key, rule, answer, measured.said, number, measured.yardsticks, possible)
    return replace(
        found,
        is_upper_bound=measured.is_upper_bound,
        is_nothing=measured.is_nothing,
        open_because=measured.open_because if answer == Answer.CANNOT_SAY else "",
    )


def finding(
    key: str,
    rule: Rule,
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
    is_open = answer == Answer.CANNOT_SAY and len(possible) > 1
    between = f" ({either(possible)})" if is_open else ""
    has_own_thresholds = rule != RULES[key]
    return Finding(
        rule=key,
        answer=answer,
        sentence=f"{rule.name}: {answer}{between}. {said}",
        value=number.value,
        ci95=number.ci95,
        n=number.n or 0,
        yardsticks={n: v for n, v in yardsticks.items() if v is not None and v == v},
        partly=rule.partly if has_own_thresholds else None,
        yes=rule.yes if has_own_thresholds else None,
    )


# --- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What is asked of one kind of model, and when there is nothing to explain.

    Attributes:
        questions: by key.
        gate: the rule whose yes is needed.
        closed: what is so where the gate does not say yes, and why that ends it.
        least_texts: below which nothing is said.
    """

    questions: Mapping[str, Question]
    gate: str
    closed: tuple[str, str]
    least_texts: int = MIN_TEXTS

    def of(self, role: str) -> list[str]:
        """The keys of the questions with a role."""
        return [key for key, asked in self.questions.items() if asked.role == role]


CLASSIFIERS = Asked(
    QUESTIONS,
    "accuracy",
    (
        "the model is not shown to be better than guessing",
        "there are no predictions worth an explanation",
    ),
)
ANSWERS = Asked(
    OF_ANSWERS,
    "passage",
    (
        "the answer is not shown to depend on the passage",
        "what the answer does not depend on cannot explain it",
    ),
    MIN_PROMPTS,
)


def by_rule(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Returns findings by the keys of their rules."""
    return {f.rule: f for f in findings}


def asked_by(rules: Iterable[str]) -> Asked:
    """What is asked where findings are about these rules: of answers where the passage is."""
    about = set(rules)
    only_of_answers = {ANSWERS.gate, *OF_ANSWERS} - QUESTIONS.keys()
    return ANSWERS if about & only_of_answers else CLASSIFIERS


def names_of(rules: Iterable[str]) -> str:
    """The names of rules in a sentence, as in "erasure, removal"."""
    return ", ".join(RULES[rule].name.lower() for rule in rules)


def steps_of(asked: Asked) -> tuple[tuple[str, str, str], ...]:
    """How a verdict is reached, the first that fits: what is so, the answer, and why."""
    closed, why_closed = asked.closed
    score = "faithfulness"
    return (
        (closed, Answer.CANNOT_SAY, why_closed),
        (
            "even the worst shuffle of the weights surely does nothing to the output",
            Answer.NO,
            "what has no effect explains nothing, however well it ranks the tokens",
        ),
        (
            f"{' or '.join(names_of([key]) for key in asked.of('effect'))} says no",
            Answer.NO,
            "it may rank the tokens well, but it is not what decides",
        ),
        (
            f"{score} says no",
            Answer.NO,
            "its order is hardly better than a random one",
        ),
        (
            f"{score} or an effect was not asked, or an effect is open",
            Answer.CANNOT_SAY,
            "an answer needs both",
        ),
        (
            "else",
            f"as {score} says: yes, partly or cannot say",
            "its interval and thresholds",
        ),
    )


MAY_I = "May I show this to users?"
MAY = {
    Answer.YES: "Yes, with a note: in a single text it may be otherwise.",
    Answer.PARTLY: "Only with a warning: what is highlighted is some of what decides.",
    Answer.CANNOT_SAY: "Not yet: this audit cannot tell.",
    Answer.NO: "No.",
}
"""The better the earlier."""


@dataclass(frozen=True)
class Conclusion:
    """The verdict and what it rests on.

    Attributes:
        answer: to whether attention explains the predictions.
        why: the reason, where it is not the score alone; else empty.
        score: faithfulness; None where it was not asked.
        asked: of what kind of model it is.
        gate: whether there is anything to explain; None where that was not asked.
        missing: keys of the questions without which there is no answer, that were not asked.
    """

    answer: Answer
    why: str = ""
    score: Finding | None = None
    asked: Asked = CLASSIFIERS
    gate: Finding | None = None
    missing: Sequence[str] = ()

    @property
    def is_closed(self) -> bool:
        """Whether the gate ends it."""
        return self.why == self.asked.closed[0]


def conclude(findings: Sequence[Finding]) -> Conclusion:
    """The verdict from the findings, by :func:`steps_of`."""
    found = by_rule(findings)
    asked = asked_by(found)
    score = next((f for f in findings if f.role == "score"), None)
    effects = [f for f in findings if f.role == "effect"]
    gate = found.get(asked.gate)
    needed = (*asked.of("score"), *asked.of("effect"))
    missing = [key for key in needed if key not in found]
    answer, why = _decided(asked, gate, effects, score, missing)
    return Conclusion(answer, why, score, asked, gate, missing)


def too_few(n: int, least: int) -> str:
    """Returns why so few texts have no answer, with a place for what they are."""
    return f"only {n} of the {least} {{texts}} that are needed"


def also_needs(missing: Sequence[str]) -> str:
    """Returns that questions were not asked without which there is no answer."""
    return f"an answer also needs {names_of(missing)}"


def _decided(
    asked: Asked,
    gate: Finding | None,
    effects: Sequence[Finding],
    score: Finding | None,
    missing: Sequence[str],
) -> tuple[Answer, str]:
    """The answer, and the reason where it is not the score alone."""
    counted = [f.n for f in (*effects, score) if f is not None]
    if not counted and gate is not None:
        counted = [gate.n]
    if 0 < max(counted, default=0) < asked.least_texts:
        return Answer.CANNOT_SAY, too_few(max(counted), asked.least_texts)
    if gate is not None and gate.n and gate.answer != Answer.YES:
        return Answer.CANNOT_SAY, asked.closed[0]
    if any(f.is_nothing for f in effects):
        return (
            Answer.NO,
            "even the worst shuffle of attention surely does nothing to the output",
        )
    without = [f.rule for f in effects if f.answer == Answer.NO]
    if without:
        return Answer.NO, RULES[without[0]].if_no
    if score is not None and score.answer == Answer.NO:
        return Answer.NO, ""
    if score is None or missing:
        return Answer.CANNOT_SAY, also_needs(missing)
    cannot_say = [f.rule for f in effects if f.answer == Answer.CANNOT_SAY]
    if cannot_say:
        return Answer.CANNOT_SAY, f"{names_of(cannot_say)} cannot say"
    return score.answer, ""
