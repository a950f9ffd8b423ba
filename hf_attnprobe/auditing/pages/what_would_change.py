"""What would change the verdict: first what stops an answer, and only then more texts."""

import math
from collections.abc import Sequence

from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer
from hf_attnprobe.statistics.verdicts import Finding, conclude, names_of


MOST_TEXTS = 1_000_000
"""An estimate beyond this says only that the mean is too near to the threshold."""


def texts_needed(value: float, ci95: tuple[float, float], n: int, threshold: float) -> float:
    """How many texts would make an interval exclude a threshold, if the mean stayed.

    n · (half width / distance)², since an interval narrows with √n; the half is the one
    on the side of the threshold. Infinite where the mean is the threshold.

    >>> texts_needed(0.5, (0.3, 0.7), 100, 0.4)
    400.0
    """
    distance = abs(value - threshold)
    half = value - ci95[0] if threshold < value else ci95[1] - value
    return round(n * (half / distance) ** 2, 6) if distance else math.inf


def change_sentences(report: AuditResult) -> list[str]:
    """One sentence for the verdict, one for what is settled, one for each open question."""
    concluded = conclude(report.findings)
    asked = [f for f in report.findings if f.is_about_attention]
    sentences = []
    if concluded.at_chance:
        sentences.append("The verdict waits for a model that is shown to be better than guessing.")
    elif concluded.is_nothing:
        sentences.append(
            "No further test would change the verdict: attention has no effect to explain."
        )
    elif concluded.missing and asked:
        names = names_of(concluded.missing)
        sentences.append(f"A verdict needs the questions that were not asked: {names}.")
    settled = [f for f in report.findings if f.answer != Answer.CANNOT_SAY]
    if settled:
        sentences.append(_settled_sentence(settled))
    open_ones = [f for f in report.findings if f.answer == Answer.CANNOT_SAY]
    return sentences + [f"{f.name}: {what_is_missing(f)}" for f in open_ones]


def _settled_sentence(settled: Sequence[Finding]) -> str:
    """Which answers more of the same texts would not change, and how far they are."""
    said = []
    for f in settled:
        nearest = min(f.graded_by.thresholds.values(), key=lambda t: abs(f.value - t))
        said.append(f"{f.name} {f.answer} ({f.number}, the threshold is {nearest:.2f})")
    return (
        "Settled on these texts, so that more of the same kind would hardly change it: "
        f"{'; '.join(said)}."
    )


def what_is_missing(finding: Finding) -> str:
    """What an open question needs for an answer; what stops it comes before texts."""
    if finding.open_because:
        return f"more texts will not settle it: {finding.open_because.rstrip('.')}."
    if finding.n < MIN_TEXTS:
        return f"it takes at least {MIN_TEXTS} texts; here are {finding.n}."
    needed = more_texts(finding)
    if needed is None:
        return "labels, or something to compare with, are missing."
    if needed > MOST_TEXTS:
        return (
            f"the mean {finding.value:.2f} is too near to a threshold for any number of "
            "texts to tell."
        )
    return f"about {_rounded(needed):,} more texts would settle it (an estimate)."


def more_texts(finding: Finding) -> float | None:
    """How many more texts would take every threshold out of the interval.

    If the mean stayed, since an interval narrows with √n; infinite where the mean is a
    threshold, None where no threshold is in the interval.
    """
    if finding.ci95 is None:
        return None
    low, high = finding.ci95
    crossed = [t for t in set(finding.graded_by.thresholds.values()) if low <= t <= high]
    if not crossed:
        return None
    needed = [texts_needed(finding.value, finding.ci95, finding.n, t) for t in crossed]
    return max(max(needed) - finding.n, 1)


def _rounded(count: float) -> int:
    """Two digits, rounded up: an estimate has no more."""
    whole = math.ceil(count)
    step = 10 ** max(len(str(whole)) - 2, 0)
    return math.ceil(whole / step) * step
