"""Where texts of different predicted classes differ surely, said at the question."""

from hf_attnprobe import markdown
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import ALL_TEXTS
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.questions import QUESTIONS
from hf_attnprobe.statistics.summary import Statistic, site_of_model


MOST = 6


def class_sentence(report: AuditResult, rule: str) -> str | None:
    """The means by predicted class; None where no two intervals are apart.

    They are of the model alone, with nothing taken off for control or random tokens.
    """
    by_class = QUESTIONS[rule].by_class
    if by_class is None or not len(report.rows):
        return None
    name, said = by_class
    found = _of_classes(report, name)
    if not found:
        return None
    ends = [s.ci95 for s in found if s.ci95 is not None]
    if max(low for low, _ in ends) <= min(high for _, high in ends):
        return None
    found = sorted(found, key=lambda s: -s.mean)[:MOST]
    means = ", ".join(
        f"{markdown.interval(s.mean, s.ci95, digits=2)} in the {s.n} predicted {s.group}"
        for s in found
    )
    return f"Predicted classes differ: {said} {means} (the model alone)."


def _of_classes(report: AuditResult, name: str) -> list[Statistic]:
    """Of each predicted class with enough texts."""
    site = site_of_model(report.rows)
    classes = {str(c) for c in report.provenance.get("classes", [])}
    found = [
        s
        for s in report.statistics
        if s.statistic == name
        and (s.layer, s.head) == site
        and s.group in classes
        and s.group != ALL_TEXTS
        and s.n >= MIN_TEXTS
        and s.ci95 is not None
    ]
    return found if len(found) > 1 else []


def classes_note(report: AuditResult) -> str | None:
    """The classes, and how many texts are predicted each, where that is known."""
    classes = [str(c) for c in report.provenance.get("classes", [])]
    if not classes:
        return None
    counts = {c: max((s.n for s in report.statistics if s.group == c), default=0) for c in classes}
    if len(classes) > MOST:
        return f"{len(classes)} classes"
    if not any(counts.values()):
        return ", ".join(classes)
    return ", ".join(f"{c} ({n:,} texts predicted so)" for c, n in counts.items())
