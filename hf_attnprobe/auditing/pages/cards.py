"""One card for each question: answer, number, thresholds, yardsticks, source."""

from collections.abc import Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.pages.by_class import class_sentence
from hf_attnprobe.auditing.pages.on_the_line import number_line_of
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import ALL_TEXTS
from hf_attnprobe.charts.chart import Chart
from hf_attnprobe.page.elements import answer, bullets, details, figure, section
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.known_truth import row_of
from hf_attnprobe.statistics.questions import QUESTIONS
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.statistics.wording import Words


def card(finding: Finding, words: Words, *said: str | None) -> Html:
    """A question with its graded answer, its number on a line, and what is beside it.

    Args:
        finding: the answer.
        words: of the kind of prediction.
        said: more sentences behind that of the finding.
    """
    done = RULES[finding.rule].done
    return answer(
        f"{RULES[finding.rule].question}{finding.where}",
        str(finding.answer),
        finding.sentence,
        tag("p", words.fill(done), class_="note") if done else None,
        *[tag("p", sentence) for sentence in said if sentence],
        number_line_of(finding),
        _graded(finding),
        details(
            "yardsticks and how it is graded",
            bullets(_beside(finding)),
            *_rule(finding),
        ),
    )


def _graded(finding: Finding) -> Html | None:
    """What the line is of, and how many texts are behind it."""
    if not finding.number:
        return None
    most = ": at most" if finding.is_upper_bound else ":"
    said = f"On the line: {RULES[finding.rule].scale_of}{most} {finding.number}; {finding.n} texts."
    return tag("p", said, class_="note")


def _beside(finding: Finding) -> list[str]:
    known = RULES[finding.rule].yardsticks
    lines = [
        f"{known.get(name, name.replace('_', ' '))}: {markdown.number(value, digits=2)}"
        for name, value in finding.yardsticks.items()
    ]
    if finding.other_draws is not None:
        lines.append(
            f"share of single draws of the control that change the answer: "
            f"{finding.other_draws:.2f}"
        )
    return lines


def _rule(finding: Finding) -> list[Html]:
    rule = finding.graded_by
    sentences = [
        f"Measured: {rule.measure}.",
        f"Graded: {rule.graded}; a 95% interval that crosses a threshold, or fewer than "
        f"{MIN_TEXTS} texts, cannot say.",
        f"Source: {rule.source}.",
    ]
    known = row_of(finding.rule, finding.n)
    if known is not None and finding.partly is None:
        sentences.append(known.sentence)
    return [tag("p", sentence) for sentence in sentences]


def questions(report: AuditResult, charts: Sequence[Chart]) -> Html | None:
    """A card for each question about attention, its charts behind it."""
    asked = [f for f in report.findings if f.is_about_attention]
    if not asked and not charts:
        return None
    parts: list[object] = []
    rules = list(dict.fromkeys(f.rule for f in asked))
    for rule in rules:
        by_class = class_sentence(report, rule)
        parts += [
            card(f, report.words, by_class if f.group == ALL_TEXTS else None)
            for f in asked
            if f.rule == rule
        ]
        parts += [figure(c) for c in charts if c.key in QUESTIONS[rule].charts]
    shown = {key for rule in rules for key in QUESTIONS[rule].charts}
    parts += [figure(c) for c in charts if c.key not in shown]
    return section("The questions, one by one", *parts, id="questions")
