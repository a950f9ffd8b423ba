"""The public function ``compare_audits``, and the document that it makes."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hf_attnprobe.audit_reports.charts import (
    NOTHING,
    audit_charts,
    series_of_means,
)
from hf_attnprobe.audit_reports.differences import (
    CANNOT_BE_TOLD,
    ComparedQuestion,
    ComparedStatistic,
    Setting,
    cautions,
    differing_settings,
    questions_of,
    shared_texts,
    short_names,
    signed,
    statistics_of,
)
from hf_attnprobe.audit_reports.document import GLOSSARY
from hf_attnprobe.audit_reports.head_maps import head_maps
from hf_attnprobe.audit_reports.heads import head_name
from hf_attnprobe.audit_reports.report import Report, read_audit
from hf_attnprobe.audit_reports.verdict import may_be_shown
from hf_attnprobe.charts.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import public_function
from hf_attnprobe.plain_data import plain
from hf_attnprobe.reports.document import (
    Block,
    Cell,
    Document,
    Figures,
    Folded,
    Link,
    Listing,
    Note,
    Number,
    NumberLine,
    Quoted,
    Section,
    Table,
    glossary,
)
from hf_attnprobe.reports.forms import Documented, as_json
from hf_attnprobe.statistics.differences import Difference
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import MIN_SHOWN, MIN_TEXTS, Answer
from hf_attnprobe.statistics.summary import site_of_model
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.asked import repeating


SCHEMA_VERSION = 1
MOST_ROWS = 150
"""Of the table of statistics; a CSV file has all."""
MOST_OVERLAID = 4
"""Audits in one chart; more lines cannot be told apart."""


@dataclass(frozen=True)
class MovedHead:
    """How far a head's attention in an audit's model is from that in the first's.

    Attributes:
        audit: its name.
        layer, head: from 0.
        mean: over n texts, total variation in [0, 1].
        ci95: of the mean, over all heads at once.
        n: texts.
    """

    audit: str
    layer: int
    head: int
    mean: float
    ci95: tuple[float, float]
    n: int


@dataclass(frozen=True)
class AuditComparison(Documented):
    """Several audits and their differences from the first. ``print`` gives the text.

    Attributes:
        names: of the audits, short and all different.
        models: that were audited.
        datasets: and on which texts.
        n: texts of every audit.
        n_shared: texts that an audit behind the first shares with the first; 0 where
            the data are others.
        answers: whether attention explains the predictions, by audit.
        scores: faithfulness of each; n is 0 where it was not asked.
        questions: in the order of the rules.
        statistics: all that the first audit shares with another one.
        settings: what differs in settings, model and versions.
        cautions: what the comparison cannot say.
        seed: of the resamples.
        reports: the audits.
        moved: of versions of one model, how far each head's attention moved, the farthest first.
        pages: addresses of the audits' own pages; none where they are not known.
    """

    names: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    n: tuple[int, ...]
    n_shared: tuple[int, ...]
    answers: tuple[Answer, ...]
    scores: tuple[Estimate, ...]
    questions: tuple[ComparedQuestion, ...]
    statistics: tuple[ComparedStatistic, ...]
    settings: tuple[Setting, ...]
    cautions: tuple[str, ...]
    seed: int
    reports: tuple[Report, ...] = field(default=(), repr=False, compare=False)
    moved: tuple[MovedHead, ...] = ()
    pages: tuple[str, ...] = ()

    def linked(
        self, folders: Sequence[str | Path], start: str | Path
    ) -> "AuditComparison":
        """Returns the comparison with links to the audits' pages.

        Args:
            folders: of the audits, in their order.
            start: the folder of the page that has the links.
        """
        pages = (
            os.path.relpath(Path(folder) / "report.html", start)
            for folder in folders
        )
        return replace(self, pages=tuple(pages))

    def document(self) -> Document:
        """The comparison as a document."""
        return _document_of(self)

    def to_json(self) -> str:
        """All of it for machines; a page is too small for that."""
        return as_json(data_of(self))

    def summary_frame(self) -> pd.DataFrame:
        """A row per statistic and audit behind the first, as a CSV file has them."""
        rows = []
        for s, number, difference in told_statistics(self):
            rows.append(
                {
                    "first": self.names[0],
                    "audit": self.names[number],
                    "test": s.test,
                    "statistic": s.statistic,
                    "layer": s.layer,
                    "head": s.head,
                    "first_mean": difference.first,
                    "mean": difference.other,
                    "difference": difference.value,
                    "ci_low": difference.ci95[0],
                    "ci_high": difference.ci95[1],
                    "simultaneous_low": difference.simultaneous[0],
                    "simultaneous_high": difference.simultaneous[1],
                    "n": difference.n,
                    "paired": difference.paired,
                    "can_be_told": difference.can_be_told,
                }
            )
        return pd.DataFrame(rows, columns=list(rows[0]) if rows else None)


def told_statistics(
    comparison: AuditComparison,
) -> Iterator[tuple[ComparedStatistic, int, Difference]]:
    """Every statistic of each later audit, with its difference from the first."""
    for s in comparison.statistics:
        for number, difference in enumerate(s.differences, 1):
            if difference is not None:
                yield s, number, difference


@public_function
def compare_audits(
    folders: Sequence[str | Path], *, seed: int = 0
) -> AuditComparison:
    """Compares audits' folders with the first.

    Raises:
        AttnProbeError: a folder without an audit, and what :func:`compare` raises.
    """
    return compare([read_audit(folder) for folder in folders], seed=seed)


def compare(reports: Sequence[Report], *, seed: int = 0) -> AuditComparison:
    """Compares several audits with the first.

    Texts with the same id of the same data are pairs, of language models where the answer is
    the same too. Only tests with the same options are compared.

    Args:
        reports: at least two, with their rows.
        seed: of the resamples.

    Raises:
        AttnProbeError: fewer than two reports, or reports without rows.
    """
    _check(reports)
    names = short_names(reports)
    shared = [shared_texts(reports[0], report) for report in reports[1:]]
    n_shared = tuple(map(len, shared))
    questions = questions_of(reports, shared, names, seed)
    return AuditComparison(
        names=names,
        models=tuple(r.model for r in reports),
        datasets=tuple(str(r.dataset) for r in reports),
        n=tuple(r.n for r in reports),
        n_shared=n_shared,
        answers=tuple(r.answer for r in reports),
        scores=tuple(r.score for r in reports),
        questions=questions,
        statistics=statistics_of(reports, shared, seed),
        settings=differing_settings(reports),
        cautions=tuple(cautions(reports, names, n_shared)),
        seed=seed,
        reports=tuple(reports),
    )


def _check(reports: Sequence[Report]) -> None:
    if len(reports) < 2:
        raise AttnProbeError(
            f"expected two audits or more to compare, got {len(reports)}; give another folder"
        )
    for report in reports:
        if not len(report.rows):
            raise AttnProbeError(
                f"expected audits with their rows, that of {report.model} has none; read "
                "it from its folder with read_audit"
            )


@public_function
def changed_answers(comparison: AuditComparison) -> list[str]:
    """Returns the answers that an audit has for certain otherwise than the first, a sentence each.

    Those of questions that both audits can answer, whose numbers are told apart; an answer
    that moves across a threshold by a difference that may be 0 is none.
    """
    first = comparison.names[0]
    return [
        f"{name}: {RULES[question.rule].name.lower()} is {question.answer(number)}, of {first} "
        f"{question.answer(0)}"
        for number, name in enumerate(comparison.names[1:], 1)
        for question in comparison.questions
        if question.changed(number)
    ]


# --- the document ---------------------------------------------------------------------


LEAD = (
    "Does attention explain the predictions, and does the answer differ between these "
    "audits? Each was tested by itself; differences are of what was measured in both."
)


def data_of(comparison: AuditComparison) -> dict[str, Any]:
    """The comparison for machines."""
    told = {k: v for k, v in vars(comparison).items() if k != "reports"}
    return plain(told) | {"schema_version": SCHEMA_VERSION}


def _document_of(comparison: AuditComparison) -> Document:
    first, *others = comparison.names
    parts = [
        *(
            _against_first(comparison, k)
            for k in range(1, len(comparison.names))
        ),
        _for_users(comparison),
        _question_by_question(comparison),
        Section(
            "What this comparison cannot say",
            [[*comparison.cautions, reading_note(comparison)]],
            id="cautions",
            brief=True,
        ),
        _moved_attention(comparison),
        Section("Heads", list(maps_of_all(comparison)), id="heads"),
        Section("Charts of all", list(charts_of_all(comparison)), id="charts"),
    ]
    lead: list[Block] = [LEAD, _audits(comparison), _overview(comparison)]
    numbers = _statistics(comparison)
    return Document(
        f"{', '.join(others)} beside {first}",
        lead,
        [
            *parts,
            glossary([*lead, *parts, numbers], GLOSSARY),
            _what_differs(comparison),
            _how_to_repeat(comparison),
            numbers,
        ],
        data={
            **data_of(comparison),
            "statistics": [],
            "left_out": ["statistics"],
        },
    )


MOST_MOVED = 8
"""Heads of an audit that the page names; the data have all."""
WHAT_MOVED = (
    "Half the sum of the differences between the weights that a head gives to what is explained "
    "of a text: 0 is the same attention, 1 attention to other units only. Intervals hold at once "
    "for all heads of an audit."
)


def _moved_attention(comparison: AuditComparison) -> Section:
    """How far attention itself moved, of every audit the mean over heads and the farthest."""
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(head.audit for head in comparison.moved):
        own = [head for head in comparison.moved if head.audit == name]
        mean = sum(head.mean for head in own) / len(own)
        rows.append([name, f"all {len(own)}, mean", Number(mean), own[0].n])
        rows += [
            [
                name,
                head_name((head.layer, head.head)),
                Number(head.mean, head.ci95),
                head.n,
            ]
            for head in own[:MOST_MOVED]
        ]
    table = Table(
        ["audit", "head", "moved [95%]", "texts"],
        rows,
        "How far attention moved",
    )
    parts: list[Block] = [Note(WHAT_MOVED), table] if rows else []
    return Section("The attention itself", parts, id="moved", brief=True)


def reading_note(comparison: AuditComparison) -> str:
    """States how to read the intervals."""
    n_statistics = sum(1 for _ in told_statistics(comparison))
    n_questions = sum(
        d is not None for q in comparison.questions for d in q.differences
    )
    return (
        f"Differences are the audit's minus that of {comparison.names[0]}. Intervals hold "
        f"at once with 95% probability: those of the questions over all {n_questions} "
        f"differences of questions, those of the statistics over all {n_statistics} of "
        "statistics (multiplier bootstrap over texts). Where one holds 0, or there are "
        f"fewer than {MIN_TEXTS} texts, the audits {CANNOT_BE_TOLD} there."
    )


SCORES = (
    "faithfulness",
    "importance",
    "erasure",
    "removal",
    "mass",
    "order",
    "drop",
    "source",
)


def _audits(comparison: AuditComparison) -> Table:
    """Returns the scores of every audit with their parts, the most faithful first."""
    asked = [
        name
        for name in SCORES
        if any(_score(r, name) for r in comparison.reports)
    ]
    columns = [*asked, "effect"]
    rows: list[list[Cell]] = []
    for k in sorted(
        range(len(comparison.names)),
        key=lambda k: -_or_least(comparison.scores[k]),
    ):
        report = comparison.reports[k]
        page = comparison.pages[k] if comparison.pages else ""
        name = Link(comparison.names[k], page) if page else comparison.names[k]
        numbers = [_score(report, column) for column in columns]
        rows.append(
            [name, str(report.answer), *numbers, Quoted(report.model), report.n]
        )
    head = ["audit", "explains?", *columns, "model", "texts"]
    return Table(
        head, rows, "The audits with their scores, the most faithful first"
    )


def _score(report: Report, name: str) -> Number | None:
    """Returns a question's number with its interval; None where few texts or none have it."""
    found = next(
        (f for f in report.findings if f.rule == name and f.n >= MIN_SHOWN),
        None,
    )
    return None if found is None else Number(found.value, found.ci95, digits=2)


def _or_least(score: Estimate) -> float:
    """Returns a score to sort by: those that were not asked are last."""
    return score.value if score.n and score.value == score.value else -math.inf


def _overview(comparison: AuditComparison) -> Table:
    """Every question with all answers and the differences."""
    names = comparison.names
    rows: list[list[Cell]] = []
    for q in comparison.questions:
        answers = [q.answer(k) or None for k in range(len(names))]
        rows.append([q.question, *answers, *map(_moved, q.differences)])
    head = [
        "question",
        *names,
        *(f"{name} against {names[0]}" for name in names[1:]),
    ]
    caption = "The answers side by side; “higher” and “lower” are said of the number that is named below"
    return Table(head, rows, caption, sortable=False)


def _moved(difference: Difference | None) -> Cell:
    """A difference, if it can be told."""
    if difference is None or not difference.n:
        return "not compared"
    if not difference.can_be_told:
        return CANNOT_BE_TOLD
    side = "higher:" if difference.value > 0 else "lower:"
    ends = difference.simultaneous
    return Number(difference.value, ends, digits=2, sign="+", before=side)


def _against_first(comparison: AuditComparison, number: int) -> Section:
    """How an audit differs from the first."""
    first, other = comparison.names[0], comparison.names[number]
    return Section(
        f"{other} against {first}",
        [[q.sentences[number - 1] for q in comparison.questions]],
        id=f"against-{number}",
        brief=True,
    )


def _for_users(comparison: AuditComparison) -> Section:
    """Whether each attention may be shown, by its audit's own answers."""
    return Section(
        "May I show this to users?",
        [
            Section(
                name,
                [" ".join(may_be_shown(report.findings, report.words))],
                id=f"for-users-{k}",
            )
            for k, (name, report) in enumerate(
                zip(comparison.names, comparison.reports, strict=True), 1
            )
        ],
        id="for-users",
    )


# --- the questions ----------------------------------------------------------------------


OWN_SCALES = "Every line of a difference has a scale of its own: compare the numbers, not lengths."


def _question_by_question(comparison: AuditComparison) -> Section:
    articles = [_question(comparison, q) for q in comparison.questions]
    return Section(
        "Question by question",
        [Note(OWN_SCALES), *articles, number_chart(comparison)],
        id="questions",
    )


def _question(
    comparison: AuditComparison, question: ComparedQuestion
) -> Section:
    """One question: the answers side by side, the differences on a line of numbers."""
    names = comparison.names
    rows: list[list[Cell]] = []
    for k, name in enumerate(names):
        mean = question.means[k]
        rows.append(
            [
                name,
                question.answer(k) or None,
                mean,
                None if mean is None else mean.n,
            ]
        )
    measure = question.measure
    lines: list[Block] = []
    for name, difference in zip(names[1:], question.differences, strict=True):
        if difference is not None and difference.n:
            shown = Number(difference.value, difference.simultaneous)
            lines += [
                Note(f"{name} minus {names[0]}:"),
                NumberLine(shown, thresholds={"no difference": 0.0}),
            ]
    own = [
        f"{name}: {found.sentence}"
        for name, found in zip(names, question.findings, strict=True)
        if found is not None
    ]
    return Section(
        question.question,
        [
            Note(
                f"The number: {measure}"
                if measure
                else "Its numbers are not compared"
            ),
            Table(
                ["audit", "answer", "number [95%]", "texts"],
                rows,
                sortable=False,
            ),
            *lines,
            Folded("Each audit's own words", [own]),
        ],
        id=f"question-{question.rule}",
    )


# --- what is drawn ----------------------------------------------------------------------


def number_chart(comparison: AuditComparison) -> Chart | None:
    """The numbers of all questions, of every audit."""
    asked = [q for q in comparison.questions if any(m and m.n for m in q.means)]
    if not asked:
        return None
    series = []
    for k, name in enumerate(comparison.names):
        means = {RULES[q.rule].name: q.means[k] or NOTHING for q in asked}
        series.append(series_of_means(name, means))
    told = [
        f"{RULES[q.rule].name.lower()} ({q.measure})"
        for q in asked
        if any(d is not None and d.can_be_told for d in q.differences)
    ]
    sentences = (
        f"Told apart from {comparison.names[0]} (simultaneous intervals of the "
        f"differences, above): {'; '.join(told) or 'nothing'}.",
        "The intervals here are each audit's own; of the same texts a difference may be sure "
        "where they overlap.",
    )
    return Chart(
        key="questions_of_all",
        title="The numbers behind the answers",
        sentences=sentences,
        source="",
        kind="dots",
        x_label="question",
        y_label="the question's number, mean over texts",
        series=tuple(series),
    )


def maps_of_all(comparison: AuditComparison) -> Iterator[HeatMap]:
    """Each audit's map of every measure that all have, and their difference."""
    maps = [
        {m.key: m for m in head_maps(r.judged, r.rules)}
        for r in comparison.reports
    ]
    for key in maps[0] if maps else ():
        if all(key in of_audit for of_audit in maps):
            for number, name in enumerate(comparison.names):
                own = maps[number][key]
                renamed = f"{own.title}: {name}"
                own = replace(own, key=f"{key}_{number + 1}", title=renamed)
                yield own
                if number:
                    yield from _difference_map(comparison, maps[0][key], number)


def _difference_map(
    comparison: AuditComparison, first: HeatMap, number: int
) -> Iterator[HeatMap]:
    """Difference between an audit's heads and the first's."""
    statistic = first.key.removeprefix("heads_")
    by_head = {}
    for s in comparison.statistics:
        if s.statistic == statistic and (s.layer, s.head) >= (0, 0):
            by_head[s.layer, s.head] = s.differences[number - 1]
    found = {place: d for place, d in by_head.items() if d is not None}
    if not found:
        return
    told = [place for place, d in found.items() if d.can_be_told]
    other, name = comparison.names[number], comparison.names[0]
    largest = max(found, key=lambda place: abs(found[place].value))
    which = ", ".join(f"{layer}.{head}" for layer, head in told[:12])
    more = f" and {len(told) - 12} more" if len(told) > 12 else ""
    finding = (
        f"{other} minus {name}: {len(told)} of {len(found)} heads can be told apart"
        f"{f' ({which}{more})' if told else ''}; the largest difference is "
        f"{found[largest].value:+.3f} at head {largest[0]}.{largest[1]} (layer.head, "
        "from 0). Intervals hold for all compared statistics at once."
    )

    def grid(part: int) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(_part(found.get((layer, head)), part) for head in first.heads)
            for layer in first.layers
        )

    yield replace(
        first,
        key=f"{first.key}_difference_{number + 1}",
        title=f"{first.title}: {other} minus {name}",
        finding=finding,
        source="",
        values=grid(0),
        low=grid(1),
        high=grid(2),
        value_label=f"difference of {first.value_label}",
        centre=0.0,
        threshold=None,
    )


def _part(difference: Difference | None, part: int) -> float:
    if difference is None:
        return float("nan")
    return (difference.value, *difference.simultaneous)[part]


def charts_of_all(comparison: AuditComparison) -> Iterator[Chart]:
    """Charts that all audits have, overlaid; clouds of points are left out.

    Of many audits the first ones are drawn, which the findings say.
    """
    reports = comparison.reports[:MOST_OVERLAID]
    sites = [site_of_model(r.rows) for r in reports]
    if None in sites:
        return
    by_audit = [
        {c.key: c for c in audit_charts(r.rows, (), site=s, words=r.words)}
        for r, s in zip(reports, sites, strict=True)
        if s is not None
    ]
    for key, first in by_audit[0].items():
        charts = [charts[key] for charts in by_audit if key in charts]
        if len(charts) == len(reports) and first.kind != "points":
            yield _overlaid(charts, comparison.names)


def _overlaid(charts: Sequence[Chart], names: Sequence[str]) -> Chart:
    """One chart of all: where each has several series, of the first of each."""
    several = len(charts[0].series) > 1
    series: list[Series] = []
    references: dict[tuple[str, str], Reference] = {}
    for chart, name in zip(charts, names, strict=False):
        first = chart.series[0]
        shown = f"{name}: {first.name}" if several else name
        series.append(replace(first, name=shown))
        for r in chart.references:
            known = references.setdefault((r.name, r.axis), r)
            if known.value != r.value:
                own = replace(r, name=f"{r.name}, {name}")
                references[own.name, own.axis] = own
    return replace(
        charts[0],
        series=tuple(series),
        sentences=tuple(_sentences_of(charts, names)),
        references=tuple(references.values()),
    )


def _sentences_of(
    charts: Sequence[Chart], names: Sequence[str]
) -> Iterator[str]:
    """Each chart's sentences; those that all share come once, at the end."""
    common = [
        s
        for s in charts[0].sentences
        if all(s in chart.sentences for chart in charts)
    ]
    for chart, name in zip(charts, names, strict=False):
        own = [s for s in chart.sentences if s not in common]
        if own:
            yield f"{name}: {' '.join(own)}"
    if len(names) > len(charts):
        yield f"Drawn are the first {len(charts)} of {len(names)} audits."
    yield from common


# --- tables -----------------------------------------------------------------------------


def _what_differs(comparison: AuditComparison) -> Section:
    rows = [[s.name, *s.values] for s in comparison.settings]
    caption = "Only what is not the same in all audits"
    return Section(
        "What differs in how they were made",
        [
            Table(["setting", *comparison.names], rows, caption)
            if rows
            else "Model, data, settings and versions are the same."
        ],
        id="settings",
        brief=True,
    )


def _how_to_repeat(comparison: AuditComparison) -> Section:
    """Command of each audit."""
    commands = [
        Section(
            name,
            [Listing(repeating("audit", report.provenance))],
            id=f"command-{k}",
        )
        for k, (name, report) in enumerate(
            zip(comparison.names, comparison.reports, strict=True), 1
        )
    ]
    again = (
        "Each audit's own page says how it was made and the command that repeats it. "
        "This page is made again from their folders with attnprobe report."
    )
    return Section("How to repeat them", [again, *commands], id="origin")


def _statistics(comparison: AuditComparison) -> Section:
    """All statistics, a row per audit behind the first, as far as they fit."""
    told = [row for row in told_statistics(comparison) if row[2].n]
    shown = told
    if (
        len(told) > MOST_ROWS
    ):  # no single heads before the model's, nothing unsure before the sure
        order = sorted(range(len(told)), key=lambda k: _rank(*told[k]))
        shown = [told[k] for k in sorted(order[:MOST_ROWS])]
    left_out = len(told) - len(shown)
    head = ["test", "statistic", "told apart", "layer", "head", "audit"]
    head += [comparison.names[0], "its mean", "difference", "texts"]
    rows = [_row(comparison, *row) for row in shown]
    # What is the same in every row is no column: mostly layer, head and audit.
    kept = [
        k
        for k in range(len(head))
        if not 3 <= k <= 5 or len({row[k] for row in rows}) > 1
    ]
    table = Table(
        [head[k] for k in kept],
        [[row[k] for k in kept] for row in rows],
        "Means are over all texts of each audit; differences are over the texts that both have, "
        "and their intervals hold for all rows at once",
    )
    return Section(
        "All statistics",
        [
            reading_note(comparison),
            f"{left_out:,} rows, of single heads or without a sure difference, are only in "
            "attnprobe report FOLDER FOLDER --output numbers.csv."
            if left_out
            else None,
            Folded(f"the table: {len(rows):,} differences", [table]),
        ],
        id="statistics",
    )


def _rank(
    s: ComparedStatistic, number: int, difference: Difference
) -> tuple[bool, bool]:
    """Whether it is of a single head, and whether it cannot be told apart."""
    return min(s.layer, s.head) >= 0, not difference.can_be_told


def _row(
    comparison: AuditComparison,
    s: ComparedStatistic,
    number: int,
    difference: Difference,
) -> list[Cell]:
    told = "no"
    if difference.can_be_told:
        told = "higher" if difference.value > 0 else "lower"
    place: list[Cell] = [
        s.test,
        s.statistic,
        told,
        s.layer,
        s.head,
        comparison.names[number],
    ]
    means = s.means[0], s.means[number]
    return [*place, *means, Figures(signed(difference)), difference.n]
