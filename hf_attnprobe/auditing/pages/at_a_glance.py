"""The verdict in a sentence and a small table: every question with its yardsticks."""

from collections.abc import Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.pages.on_the_line import scale_of
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import ALL_TEXTS, COUNTED, reason
from hf_attnprobe.page.elements import table
from hf_attnprobe.page.html import Child, Html
from hf_attnprobe.statistics.verdicts import (
    QUESTIONS,
    RULES,
    Finding,
    conclude,
)


def counted(findings: Sequence[Finding]) -> str:
    """How many questions say what, by name, and what else makes the answer.

    "5 of 5 questions asked: 1 yes (removal), 3 no (…), 1 undecided (erasure)."
    """
    concluded = conclude(findings)
    if not concluded.answers:
        return ""
    said = []
    for answer, word in COUNTED.items():
        rules = concluded.saying(answer)
        if rules:
            names = ", ".join(RULES[rule].name.lower() for rule in rules)
            said.append(f"{len(rules)} {word} ({names})")
    n_asked = len(concluded.answers)
    asked = f"{n_asked} of {len(QUESTIONS)} questions asked"
    why = reason(concluded)
    start = f"{why[:1].upper()}{why[1:]}. " if why and asked not in why else ""
    return f"{start}{asked}: {', '.join(said)}."


def _name(finding: Finding) -> str:
    where = "" if finding.group == ALL_TEXTS else f" of {finding.group}"
    return f"{RULES[finding.rule].name}{where}"


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
    value: Child = None
    if finding.value == finding.value:
        value = markdown.interval(finding.value, finding.ci95, digits=2)
        value = f"at most {value}" if finding.is_upper_bound else value
    rule = RULES[finding.rule]
    marks = ", ".join(f"{k} {v:.2f}" for k, v in finding.thresholds.items())
    beside = ", ".join(
        f"{label} {markdown.number(finding.yardsticks[name], digits=2)}"
        for name, label in rule.labels.items()
        if name in finding.yardsticks
    )
    name = f"{_name(finding)}: {scale_of(finding)}"
    return [name, str(finding.answer), value, marks, beside or None, finding.n]
