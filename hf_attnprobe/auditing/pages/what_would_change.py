"""What would change the verdict: how many more texts, or what else is missing."""

import itertools
import math
from collections.abc import Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import ALL_TEXTS
from hf_attnprobe.statistics.bootstrap import Estimate
from hf_attnprobe.statistics.contrasts import Contrast, find_contrast
from hf_attnprobe.statistics.sites import site_of_model
from hf_attnprobe.statistics.verdicts import (
    MIN_TEXTS,
    RULES,
    Answer,
    Finding,
    grade,
    overall,
)


MOST_TEXTS = 1_000_000
"""An estimate beyond this says only that the mean is too near to the threshold."""


def texts_needed(
    value: float, ci95: tuple[float, float], n: int, threshold: float
) -> float:
    """How many texts would make an interval exclude a threshold, if the mean stayed.

    n · (half width / distance)², since an interval narrows with √n; the half is the one
    on the side of the threshold. Infinite where the mean is the threshold.

    >>> texts_needed(0.5, (0.3, 0.7), 100, 0.4)
    400.0
    """
    distance = abs(value - threshold)
    half = value - ci95[0] if threshold < value else ci95[1] - value
    return round(n * (half / distance) ** 2, 6) if distance else math.inf


def crossed_thresholds(
    value: float, ci95: tuple[float, float], thresholds: Sequence[float]
) -> list[float]:
    """The thresholds within an interval, the nearest to its mean first."""
    inside = [t for t in set(thresholds) if ci95[0] <= t <= ci95[1]]
    return sorted(inside, key=lambda t: abs(value - t))


def change_sentences(report: AuditResult) -> list[str]:
    """One sentence for each question, and one for the verdict."""
    asked = [f for f in report.findings if f.rule != "accuracy"]
    quality = [f for f in report.findings if f.rule == "accuracy" and f.n]
    sentences = []
    if any(f.answer != Answer.YES for f in quality):
        sentences = [
            "The verdict waits for a model that is shown to be better than always saying "
            "the same."
        ]
    elif asked:
        sentences = [_verdict_sentence(asked)]
    settled = [f for f in report.findings if f.answer != Answer.CANNOT_SAY]
    if settled:
        sentences.append(_settled_sentence(settled))
    open_ones = [f for f in report.findings if f.answer == Answer.CANNOT_SAY]
    return sentences + [
        f"{_name(f)}: {_what(report, f)}{_control_too(f)}" for f in open_ones
    ]


def _control_too(finding: Finding) -> str:
    """That texts alone make no yes where the control is missing."""
    if finding.rule != "importance" or "control" in finding.yardsticks:
        return ""
    if finding.ci95 is None or finding.n < MIN_TEXTS:
        return ""
    return " A yes takes a control too (--control randomised)."


def _verdict_sentence(asked: Sequence[Finding]) -> str:
    """What the verdict could become if the open questions were answered."""
    open_ones = [f for f in asked if f.answer == Answer.CANNOT_SAY]
    known = [f.answer for f in asked if f.answer != Answer.CANNOT_SAY]
    choices = [_answers(f) for f in open_ones[:6]]
    ends = {overall([*known, *picked]) for picked in itertools.product(*choices)}
    if not open_ones:
        return (
            "Every question has an answer here. The verdict would change if one of "
            "them did: with another training, other texts, or other thresholds."
        )
    names = ", ".join(dict.fromkeys(RULES[f.rule].name.lower() for f in open_ones))
    if len(ends) == 1:
        return (
            f"The verdict stays {ends.pop()} whatever turns out for what is open "
            f"({names})."
        )
    order = [a for a in (Answer.NO, Answer.PARTLY, Answer.YES) if a in ends]
    return f"With answers to what is open ({names}) it can become {' or '.join(order)}."


def _answers(finding: Finding) -> list[Answer]:
    rule = RULES[finding.rule]
    between = [] if rule.partly == rule.yes else [Answer.PARTLY]
    return [Answer.NO, *between, Answer.YES]


def _settled_sentence(settled: Sequence[Finding]) -> str:
    """Which answers more of the same texts would not change, and how far they are."""
    said = []
    for f in settled:
        rule = RULES[f.rule]
        nearest = min((rule.partly, rule.yes), key=lambda t: abs(f.value - t))
        number = markdown.interval(f.value, f.ci95, digits=2)
        said.append(f"{_name(f)} {f.answer} ({number}, the threshold is {nearest:.2f})")
    return (
        "Settled on these texts, so that more of the same kind would hardly change it: "
        f"{'; '.join(said)}."
    )


def _name(finding: Finding) -> str:
    where = "" if finding.group == ALL_TEXTS else f" (texts predicted {finding.group})"
    return f"{RULES[finding.rule].name}{where}"


def _what(report: AuditResult, finding: Finding) -> str:
    """What is missing for an answer."""
    rule = RULES[finding.rule]
    if finding.ci95 is None:
        return "labels, or something to compare with, are missing."
    if finding.n < MIN_TEXTS:
        return f"it takes at least {MIN_TEXTS} texts; here are {finding.n}."
    value, ci95, n = finding.value, finding.ci95, finding.n
    crossed = crossed_thresholds(value, ci95, (rule.partly, rule.yes))
    if crossed:
        return _more_texts(value, ci95, n, crossed[0])
    return _other_than_texts(report, finding)


def _more_texts(
    value: float, ci95: tuple[float, float], n: int, threshold: float
) -> str:
    needed = texts_needed(value, ci95, n, threshold)
    if needed - n > MOST_TEXTS:
        return (
            f"the mean {value:.2f} is too near to the threshold {threshold:.2f} for "
            "any number of texts to tell."
        )
    return (
        f"about {_rounded(max(needed - n, 1))} more texts beside these {n} would make "
        f"the interval exclude {threshold:.2f}, if the mean stayed {value:.2f} (an "
        "estimate: intervals narrow with the root of the number of texts)."
    )


def _rounded(count: float) -> str:
    """Two digits, rounded up: an estimate has no more."""
    whole = math.ceil(count)
    step = 10 ** max(len(str(whole)) - 2, 0)
    return f"{math.ceil(whole / step) * step:,}"


def _other_than_texts(report: AuditResult, finding: Finding) -> str:
    """What is missing where the graded interval itself is clear."""
    if finding.rule == "uniqueness":
        return (
            "how far other attention can go is only known from below; a yes needs an "
            "upper bound, not more texts."
        )
    if "control" not in finding.yardsticks:
        return "a control is missing: run the audit with --control randomised."
    said = grade(Estimate(finding.value, finding.ci95, finding.n), RULES[finding.rule])
    if finding.rule == "importance":
        return (
            f"by the interval alone it would be {said}, but the control attends less "
            "sharply, so it takes a control as peaked as the model, not texts."
        )
    beyond = _beyond_control(report, finding)
    start = (
        f"by its own interval it would be {said}, but the control is not shown to be "
        "any worse"
    )
    if beyond is None:
        return f"{start}."
    if beyond.difference <= 0:
        return (
            f"{start}: the model's mean is not above the control's (difference "
            f"{markdown.number(beyond.difference, digits=2)}), so more texts of this kind "
            "would not help."
        )
    more = _more_texts(beyond.difference, beyond.ci95, beyond.n, 0.0)
    return f"{start}. Of the difference to it: {more}"


def _beyond_control(report: AuditResult, finding: Finding) -> Contrast | None:
    """Model − control of what was graded, where that is one statistic."""
    site = site_of_model(report.rows) if len(report.rows) else None
    if finding.rule != "erasure" or site is None:
        return None
    for name in ("way_to_best@attention", "way_to_best_tried@attention"):
        found = find_contrast(
            report.contrasts, name, group=finding.group, layer=site[0], head=site[1]
        )
        if found is not None:
            return found
    return None
