"""The verdict in a sentence and a small table: every question with its yardsticks."""

from collections.abc import Mapping, Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.pages.on_the_line import (
    scale_of,
    thresholds,
    yardsticks,
)
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import ALL_TEXTS
from hf_attnprobe.page.elements import table
from hf_attnprobe.page.html import Child, Html
from hf_attnprobe.statistics.summary import find_statistic
from hf_attnprobe.statistics.verdicts import RULES, Answer, Finding


HOW = (
    "The answer to all is yes, or no, only where every question says so, and partly where "
    "they disagree."
)
AS = {
    Answer.YES: "speaks for it",
    Answer.PARTLY: "speaks for it in part",
    Answer.NO: "speaks against it",
    Answer.CANNOT_SAY: "has no clear answer",
}
SEVERAL = {
    Answer.YES: "speak for it",
    Answer.PARTLY: "speak for it in part",
    Answer.NO: "speak against it",
    Answer.CANNOT_SAY: "have no clear answer",
}
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def counted(findings: Sequence[Finding]) -> str:
    """How many questions say what, and how that makes one answer.

    "Of five questions about attention one speaks for it (removal), three speak (…)."
    """
    asked = [f for f in findings if f.rule != "accuracy"]
    if not asked:
        return ""
    said = []
    for answer in AS:
        names = [_name(f) for f in asked if f.answer == answer]
        if names:
            verb = (AS if len(names) == 1 else SEVERAL)[answer]
            said.append(f"{_number(len(names))} {verb} ({', '.join(names).lower()})")
    start = (
        f"Of {_number(len(asked))} question{'s' * (len(asked) > 1)} about attention "
    )
    if len(asked) < len(findings):
        start += "(accuracy is not counted) "
    parts = ", ".join(said[:-1]) + (" and " if len(said) > 1 else "") + said[-1]
    return f"{start}{parts}. {HOW}"


def _number(n: int) -> str:
    return WORDS[n] if n < len(WORDS) else str(n)


def _name(finding: Finding) -> str:
    where = "" if finding.group == ALL_TEXTS else f" of {finding.group}"
    return f"{RULES[finding.rule].name}{where}"


LESS_CONTROL = {"importance": "attention_leave_one_out_tau", "assignment": "median_tvd"}
"""Statistics from which the control's is taken off before they are graded."""


def glance(report: AuditResult) -> Html | None:
    """A row for each question: answer, number, and what it is to be compared with."""
    if not report.findings:
        return None
    head = ["question", "answer", "number [95%]", "graded", "beside it", "texts"]
    return table(
        head,
        [_row(report, f) for f in report.findings],
        caption="Each question's number beside what it is compared with. Every row has a "
        "scale of its own; the cards below say what the numbers are.",
        sortable=False,
    )


def _row(report: AuditResult, finding: Finding) -> list[Child]:
    value: Child = None
    if finding.value == finding.value:
        value = markdown.interval(finding.value, finding.ci95, digits=2)
        value = f"at most {value}" if finding.is_upper_bound else value
    marks = ", ".join(f"{k} {v:.2f}" for k, v in thresholds(finding.rule).items())
    others = _raw(report, finding) or yardsticks(finding)
    beside = ", ".join(f"{k} {markdown.number(v, digits=2)}" for k, v in others.items())
    name = f"{_name(finding)}: {scale_of(finding)}"
    return [name, str(finding.answer), value, marks, beside or None, finding.n]


def _raw(report: AuditResult, finding: Finding) -> Mapping[str, float]:
    """Both numbers where the graded one is their difference; else nothing."""
    name = LESS_CONTROL.get(finding.rule)
    if name is None or "control" not in finding.yardsticks:
        return {}
    places = {(s.layer, s.head) for s in report.statistics if s.statistic == name}
    heads = [place for place in places if min(place) >= 0]
    layer, head = (-1, -1) if (-1, -1) in places or not heads else heads[0]
    found = find_statistic(
        report.statistics, name, group=finding.group, layer=layer, head=head
    )
    model = {} if found is None else {"model": found.mean}
    return {**model, "control": finding.yardsticks["control"]}
