"""Several audits on one page: answers side by side, differences, charts of all."""

import re
from collections.abc import Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.differences import AuditComparison, differences
from hf_attnprobe.auditing.differences.pictures import (
    charts_of_all,
    maps_of_all,
    number_chart,
)
from hf_attnprobe.auditing.differences.report import (
    CANNOT_BE_TOLD,
    ComparedStatistic,
    reading_note,
    title,
    to_json,
)
from hf_attnprobe.auditing.differences.side_by_side import by_class, of_controls
from hf_attnprobe.auditing.document import GLOSSARY
from hf_attnprobe.auditing.report import Report
from hf_attnprobe.auditing.verdict import may_be_shown
from hf_attnprobe.page import elements
from hf_attnprobe.page.document import document
from hf_attnprobe.page.elements import section
from hf_attnprobe.page.html import Child, Html, tag
from hf_attnprobe.statistics.differences import Difference
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.asked import repeating


MOST_ROWS = 400
"""Of the table of statistics; a model with many heads has thousands."""


def comparison_page(audits: AuditComparison | Sequence[Report]) -> str:
    """The page of a comparison: one self-contained HTML file.

    Args:
        audits: a comparison, or the reports to compare.
    """
    comparison = audits
    if not isinstance(comparison, AuditComparison):
        comparison = differences(comparison)
    parts = [
        *_opening(comparison),
        _for_users(comparison),
        _questions(comparison),
        elements.section(
            "What this comparison cannot say",
            elements.bullets([*comparison.cautions, reading_note(comparison)]),
            id="cautions",
        ),
        elements.section("Heads", *map(elements.head_map, maps_of_all(comparison)), id="heads"),
        elements.section(
            "Charts of all",
            *map(elements.figure, charts_of_all(comparison)),
            id="charts",
        ),
    ]
    numbers = _statistics(comparison)
    return document(
        title(comparison),
        *parts,
        glossary([*parts, numbers]),
        _what_differs(comparison),
        numbers,
        data=to_json(comparison),
    )


def _for_users(comparison: AuditComparison) -> Html:
    """May each be shown, by its own answers."""
    said = [
        [tag("strong", name), f": {may_be_shown(report.findings)}"]
        for name, report in zip(comparison.names, comparison.reports, strict=True)
    ]
    return elements.section(
        "May this attention be shown to users as an explanation?",
        elements.bullets(said),
        id="for-users",
    )


WHAT_A_CONTROL_IS = (
    "A control is the same model with its attention weights at other tokens, or where "
    "that was asked for with other model weights. What it reaches too says nothing "
    "about where this attention lies."
)


def _opening(comparison: AuditComparison) -> list[Html]:
    """The question, every audit's answer, and what can be told."""
    names = comparison.names
    rows = zip(
        names,
        comparison.answers,
        comparison.models,
        comparison.datasets,
        comparison.n,
        strict=True,
    )
    head = ["audit", "does its attention explain it?", "model", "texts of", "texts"]
    lead = (
        "Does attention explain the predictions, and does the answer differ between "
        "these audits? Each was tested by itself; differences are of what was measured "
        "in both."
    )
    return [
        tag("header", tag("h1", title(comparison)), tag("p", lead)),
        elements.table(head, rows, caption="The audits, with each one's own answer"),
        tag("p", WHAT_A_CONTROL_IS),
        _overview(comparison),
        elements.bullets(_told(comparison, k) for k in range(1, len(names))),
    ]


def _overview(comparison: AuditComparison) -> Html:
    """Every question with all answers, and what can be told of the differences."""
    names = comparison.names
    rows = []
    for q in comparison.questions:
        answers = [q.answer(k) or None for k in range(len(names))]
        rows.append([q.question, *answers, *map(_said, q.differences)])
    head = ["question", *names, *(f"{name} against {names[0]}" for name in names[1:])]
    caption = (
        "The answers side by side; classes are named where theirs differ. Higher or "
        f"lower is the number that each question below names. {of_controls(comparison)}"
    )
    return elements.table(head, rows, caption=caption, sortable=False)


def _said(difference: Difference | None) -> str:
    if difference is None or difference.value != difference.value:
        return "not compared"
    if not difference.can_be_told:
        return CANNOT_BE_TOLD
    side = "higher" if difference.value > 0 else "lower"
    low, high = difference.simultaneous
    return f"{side}: {difference.value:+z.2f} [{low:+z.2f}, {high:+z.2f}]"


def _told(comparison: AuditComparison, number: int) -> str:
    """Which questions an audit differs in from the first."""
    first, other = comparison.names[0], comparison.names[number]
    asked = [q for q in comparison.questions if q.differences[number - 1] is not None]
    if not asked:
        return f"{other} and {first}: no question can be compared."
    groups: dict[str, list[str]] = {"changed": [], "moved": [], CANNOT_BE_TOLD: []}
    for q in asked:
        difference = q.differences[number - 1]
        kind = CANNOT_BE_TOLD
        if difference is not None and difference.can_be_told:
            kind = "changed" if q.changed(number) else "moved"
        name = RULES[q.rule].name.lower()
        groups[kind].append(f"{name}{by_class(comparison, q, number)}")
    said = {
        "changed": "The answers differ in",
        "moved": "The number differs, which does not change what is answered, in",
        CANNOT_BE_TOLD: "They cannot be told apart in",
    }
    parts = [f"{said[k]} {', '.join(rules)}" for k, rules in groups.items() if rules]
    return f"{other} against {first}: {'. '.join(parts)}."


# --- questions ----------------------------------------------------------------------


OWN_SCALES = "Every line of a difference has a scale of its own: compare the numbers, not lengths."


def _questions(comparison: AuditComparison) -> Html:
    chart = number_chart(comparison)
    articles = [_question(comparison, k) for k in range(len(comparison.questions))]
    return elements.section(
        "Question by question",
        tag("p", OWN_SCALES, class_="note"),
        *articles,
        elements.figure(chart) if chart is not None else None,
        id="questions",
    )


def _question(comparison: AuditComparison, place: int) -> Html:
    """One question: the answers side by side, the differences on a line of numbers."""
    question = comparison.questions[place]
    rows = []
    for k, name in enumerate(comparison.names):
        mean = question.means[k]
        number = None if mean is None else markdown.interval(mean.value, mean.ci95)
        n = None if mean is None else mean.n
        rows.append([name, question.answer(k) or None, number, n])
    head = ["audit", "answer", "number [95%]", "texts"]
    lines = []
    for k, sentence in enumerate(question.sentences):
        lines += [tag("p", sentence), _line(question.differences[k])]
    own = [
        f"{name}: {f.sentence}"
        for name, found in zip(comparison.names, question.findings, strict=True)
        for f in found
    ]
    return tag(
        "article",
        tag("h3", question.question),
        tag("p", _number(question.measure), class_="note"),
        elements.table(head, rows, sortable=False),
        *lines,
        elements.details("Each audit's own words", elements.bullets(own)),
        class_="answer",
    )


def _number(measure: str) -> str:
    return f"The number: {measure}" if measure else "Its numbers are not compared"


def _line(difference: Difference | None) -> Html | None:
    if difference is None or difference.value != difference.value:
        return None
    low, high = difference.simultaneous
    return elements.scale(difference.value, low, high, thresholds={"no difference": 0.0})


# --- tables -------------------------------------------------------------------------


def _what_differs(comparison: AuditComparison) -> Html:
    rows = [[s.name, *s.values] for s in comparison.settings]
    table = elements.table(
        ["setting", *comparison.names],
        rows,
        caption="Only what is not the same in all audits",
    )
    nothing = "Model, data, settings and versions are the same."
    again = (
        "Each audit's own page says how it was made and the command that repeats it. "
        "This page is made again from their folders with attnprobe report."
    )
    return elements.section(
        "What differs in how they were made",
        table if rows else tag("p", nothing),
        tag("p", again),
        *_commands(comparison),
        id="settings",
    )


def _commands(comparison: AuditComparison) -> list[Html]:
    """What repeats each audit."""
    found = []
    for name, report in zip(comparison.names, comparison.reports, strict=True):
        line = repeating("audit", report.provenance)
        found += [tag("h3", name), tag("pre", tag("code", line), tabindex="0")]
    return found


def _statistics(comparison: AuditComparison) -> Html:
    """All statistics, a row per audit behind the first; heads only as far as they fit."""
    rows = [
        (s, k, d)
        for s in comparison.statistics
        for k, d in enumerate(s.differences, 1)
        if d is not None and d.n
    ]
    shown = rows
    if len(rows) > MOST_ROWS:
        shown = sorted(rows, key=lambda row: min(row[0].layer, row[0].head) >= 0)
        shown = shown[:MOST_ROWS]
    head: list[Child] = ["test", "statistic", "told apart", "layer", "head", "audit"]
    head += [comparison.names[0], "its mean", "difference", "from", "to", "texts"]
    note = [tag("p", reading_note(comparison))]
    if len(shown) < len(rows):
        left = f"{len(rows) - len(shown)} rows of single heads are left out."
        note.append(tag("p", left))
    cells = [_row(comparison, *row) for row in shown]
    # What is the same in every row is no column: mostly layer, head and audit.
    kept = [k for k in range(len(head)) if k < 3 or k > 5 or _varies(cells, k)]
    table = elements.table(
        [head[k] for k in kept],
        [[row[k] for k in kept] for row in cells],
        caption="Means and differences; intervals hold for all rows at once",
    )
    folded = elements.details(f"the table: {len(cells):,} differences", table)
    return elements.section("All statistics", *note, folded, id="statistics")


def _varies(rows: Sequence[Sequence[Child]], k: int) -> bool:
    return len({row[k] for row in rows}) > 1


def _row(
    comparison: AuditComparison, s: ComparedStatistic, number: int, d: Difference
) -> list[Child]:
    told = "no"
    if d.can_be_told:
        told = "higher" if d.value > 0 else "lower"
    place = [s.test, s.statistic, told, s.layer, s.head, comparison.names[number]]
    return [*place, d.first, d.other, d.value, *d.simultaneous, d.n]


def glossary(parts: Sequence[object]) -> Html | None:
    """The terms that occur in what stands above, with what they mean."""
    text = re.sub("<[^>]*>", " ", " ".join(str(part) for part in parts if part))
    known = {
        term: meaning
        for term, meaning in GLOSSARY.items()
        if re.search(rf"(?<!\w){re.escape(term)}", text, re.IGNORECASE)
    }
    if not known:
        return None
    pairs = [[tag("dt", term), tag("dd", said)] for term, said in known.items()]
    return section("What the words mean", tag("dl", *pairs), id="glossary")
