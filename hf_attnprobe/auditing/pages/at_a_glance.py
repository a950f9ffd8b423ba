"""The verdict in a sentence and a small table: every question with its yardsticks."""

from collections.abc import Sequence

from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.page.elements import table
from hf_attnprobe.page.html import Child, Html
from hf_attnprobe.statistics.summary import ALL_TEXTS
from hf_attnprobe.statistics.verdicts import Finding, conclude


def counted(findings: Sequence[Finding]) -> str:
    """How many questions say what, by name, and what else makes the answer.

    "5 of 5 questions asked: 1 yes (removal), 3 no (…), 1 undecided (erasure)."
    """
    concluded = conclude(findings)
    if not concluded.answers:
        return ""
    why = concluded.why
    start = f"{why[:1].upper()}{why[1:]}. " if why else ""
    return f"{start}{concluded.counted(by_name=True)}."


def glance(report: AuditResult) -> Html | None:
    """A row for each question: answer, number, and what it is to be compared with."""
    if not report.findings:
        return None
    head = ["question", "answer", "number [95%]", "graded", "beside it", "texts"]
    return table(
        head,
        [_row(f) for f in report.findings],
        caption="Each question's number beside what it is compared with. Every row has a "
        "scale of its own; the cards below say what the numbers are.",
        sortable=False,
    )


def _row(finding: Finding) -> list[Child]:
    value = f"at most {finding.number}" if finding.is_upper_bound else finding.number
    rule = finding.graded_by
    of = "" if finding.group == ALL_TEXTS else f" of {finding.group}"
    return [
        f"{rule.name}{of}: {rule.scale_of}",
        str(finding.answer),
        value or None,
        rule.graded,
        ", ".join(rule.beside(finding.yardsticks)) or None,
        finding.n,
    ]
