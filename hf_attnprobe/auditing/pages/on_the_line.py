"""What stands on the number line of a question beside its graded number.

Only what is on the same scale: where a control is taken off, so it is there too.
"""

from collections.abc import Mapping

from hf_attnprobe.auditing.pages.plain_words import QUESTIONS
from hf_attnprobe.page.elements import scale
from hf_attnprobe.page.html import Html
from hf_attnprobe.statistics.verdicts import RULES, Finding


ENDS = {"uniqueness": (0.0, 1.0)}
"""Of the line, where the number has a lowest and a highest value."""


def number_line_of(finding: Finding) -> Html | None:
    """The number with its interval among thresholds and yardsticks; None without one."""
    if finding.value != finding.value:
        return None
    low, high = finding.ci95 or (None, None)
    return scale(
        finding.value,
        low,
        high,
        thresholds(finding.rule),
        yardsticks(finding),
        ENDS.get(finding.rule),
        "at most" if finding.is_upper_bound else "",
    )


def thresholds(rule: str) -> dict[str, float]:
    """Where the answer changes, by what it then is."""
    partly, yes = RULES[rule].partly, RULES[rule].yes
    if partly == yes:
        return {"yes above" if yes == 0 else "yes from": yes}
    return {"partly from": partly, "yes from": yes}


def yardsticks(finding: Finding) -> dict[str, float]:
    """What others reach on the same scale, by what they are."""
    known = finding.yardsticks
    return {**_ends(finding.rule, known), **_others(finding.rule, known)}


def _ends(rule: str, known: Mapping[str, float]) -> dict[str, float]:
    """What 0 and 1 are on this scale."""
    has_control = "control" in known
    zero_and_one = {
        "accuracy": {},
        "importance": {"the control" if has_control else "an unrelated order": 0.0},
        "assignment": {"the control" if has_control else "nothing moves": 0.0},
        "uniqueness": {"anything may replace it": 0.0, "nothing else may": 1.0},
        "erasure": {"random order": 0.0, "best order": 1.0},
        "removal": {"random tokens": 0.0},
    }
    return zero_and_one.get(rule, {})


def _others(rule: str, known: Mapping[str, float]) -> dict[str, float]:
    """The control, gradients and bounds, where they are on this scale."""
    control = known.get("control")
    if rule == "importance" and "gradient" in known and control is None:
        return {"gradients": known["gradient"]}
    if rule == "assignment" and "worst shuffle" in known and control is None:
        return {"worst shuffle": known["worst shuffle"]}
    if rule == "uniqueness":
        bound = known.get("upper_bound")
        sure = {} if bound is None else {"certainly at least": 1 - bound}
        return sure | ({} if control is None else {"the control": 1 - control})
    if rule in ("erasure", "removal") and control is not None:
        return {"the control": control}
    return {}


def scale_of(finding: Finding) -> str:
    """What the graded number is."""
    plain = QUESTIONS.get(finding.rule)
    said = plain.scale if plain else RULES[finding.rule].measure
    less = finding.rule in ("importance", "assignment")
    is_less = less and "control" in finding.yardsticks
    return f"{said}, less the control's" if is_less else said
