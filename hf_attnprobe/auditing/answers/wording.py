"""How an answer is put into words, and made a finding. Pure."""

from collections.abc import Mapping, Sequence

from hf_attnprobe import markdown
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.summary import ALL_TEXTS
from hf_attnprobe.statistics.verdicts import (
    RULES,
    Answer,
    Finding,
    Rule,
    possible_answers,
)


def as_finding(
    key: str,
    group: str,
    answer: Answer,
    sentence: str,
    graded: Estimate,
    yardsticks: Mapping[str, float | None],
    rule: Rule | None = None,
) -> Finding:
    """A finding whose yardsticks are those that are known.

    Args:
        rule: with thresholds of a user's own; None: that of the key.
    """
    known = {n: v for n, v in yardsticks.items() if v is not None and v == v}
    own = rule is not None and rule != RULES[key]
    return Finding(
        rule=key,
        group=group,
        answer=answer,
        sentence=sentence,
        value=graded.value,
        ci95=graded.ci95,
        n=graded.n or 0,
        yardsticks=known,
        partly=rule.partly if own and rule else None,
        yes=rule.yes if own and rule else None,
    )


def start(
    key: str,
    group: str,
    answer: Answer,
    estimate: Estimate | None = None,
    rule: Rule | None = None,
) -> str:
    """How the sentence of an answer begins: what it is about, and what is left open."""
    possible = () if estimate is None else possible_answers(estimate, estimate, rule or RULES[key])
    return begin(key, group, answer, possible)


def begin(key: str, group: str, answer: Answer, possible: Sequence[Answer]) -> str:
    """``Erasure: cannot say (partly or yes).``"""
    where = "" if group == ALL_TEXTS else f" (texts predicted {group})"
    between = ""
    if answer == Answer.CANNOT_SAY and len(possible) > 1:
        between = f" ({' or '.join(possible)})"
    return f"{RULES[key].name}{where}: {answer}{between}."


def thresholds(rule: Rule) -> str:
    """From where on a rule says partly and yes, in words."""
    return ", ".join(f"{name} {at:.2f}" for name, at in rule.thresholds.items())


def said_as(estimate: Estimate) -> str:
    """A number with its interval, two digits."""
    return markdown.interval(estimate.value, estimate.ci95, digits=2)


def one_minus(estimate: Estimate) -> Estimate:
    """What is left of 1, with its interval turned round."""
    if estimate.ci95 is None:
        return estimate
    low, high = estimate.ci95
    return Estimate(1 - estimate.value, (1 - high, 1 - low), estimate.n)
