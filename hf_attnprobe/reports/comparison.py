"""The public function ``compare_audits``, and the document that it makes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.serialization import plain
from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    Document,
    Link,
    Note,
    Number,
    Quoted,
    Section,
    Table,
    glossary,
)
from hf_attnprobe.documents.formats import Documented, as_json
from hf_attnprobe.plots.chart import HeatMap
from hf_attnprobe.reports.audit_document import GLOSSARY
from hf_attnprobe.reports.head_tables import (
    EFFECT_MAP,
    EFFECT_TITLE,
    head_map,
    head_name,
)
from hf_attnprobe.reports.paired_differences import (
    CANNOT_BE_TOLD,
    ComparedQuestion,
    ComparedStatistic,
    Setting,
    cautions,
    differing_settings,
    questions_of,
    shared_texts,
    short_names,
    statistics_of,
)
from hf_attnprobe.reports.report import Report, read_audit
from hf_attnprobe.statistics.differences import Difference
from hf_attnprobe.statistics.estimates import MIN_SHOWN, Estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer
from hf_attnprobe.statistics.heads import EFFECT, Place
from hf_attnprobe.statistics.verdicts import RULES, by_rule


SCHEMA_VERSION = 2


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
    pages: tuple[str, ...] = ()

    def linked(self, folders: Sequence[str | Path], start: str | Path) -> "AuditComparison":
        """Returns the comparison with links to the audits' pages.

        Args:
            folders: of the audits, in their order.
            start: the folder of the page that has the links.
        """
        pages = (os.path.relpath(Path(folder) / "report.html", start) for folder in folders)
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
def compare_audits(folders: Sequence[str | Path], *, seed: int = 0) -> AuditComparison:
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
    names = short_names(reports)
    shared = [shared_texts(reports[0], report) for report in reports[1:]]
    n_shared = tuple(map(len, shared))
    questions = questions_of(reports, shared, seed)
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


@public_function
def changed_answers(comparison: AuditComparison) -> list[str]:
    """Returns the answers that an audit has for certain otherwise than the first, a sentence each.

    Those of questions that both audits can answer, whose numbers are told apart; an answer
    that moves across a threshold by a difference that may be 0 is none.
    """
    first = comparison.names[0]
    return [
        f"{RULES[question.rule].name.lower()} is {question.answer(number)} for {name}, "
        f"{question.answer(0)} for {first}"
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
        Section(
            "Question by question",
            [_question(comparison, q) for q in comparison.questions],
            id="questions",
        ),
        Section(
            "What this comparison cannot say",
            [[*comparison.cautions, reading_note(comparison)]],
            id="cautions",
            brief=True,
        ),
        Section("Heads", list(maps_of_differences(comparison)), id="heads"),
    ]
    lead: list[Block] = [LEAD, _audits(comparison), _overview(comparison)]
    return Document(
        f"{', '.join(others)} beside {first}",
        lead,
        [
            *parts,
            glossary([*lead, *parts], GLOSSARY),
            _what_differs(comparison),
            Section("How to repeat them", [HOW_TO_REPEAT], id="origin"),
        ],
        data={
            **data_of(comparison),
            "statistics": [],
            "left_out": ["statistics"],
        },
    )


def reading_note(comparison: AuditComparison) -> str:
    """States how to read the intervals."""
    n_statistics = sum(1 for _ in told_statistics(comparison))
    n_questions = sum(d is not None for q in comparison.questions for d in q.differences)
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
    asked = [name for name in SCORES if any(_score(r, name) for r in comparison.reports)]
    columns = [*asked, "effect"]
    rows: list[list[Cell]] = []
    scores = pd.Series([score.value for score in comparison.scores])
    for k in scores.sort_values(ascending=False, kind="stable").index:
        report = comparison.reports[k]
        page = comparison.pages[k] if comparison.pages else ""
        name = Link(comparison.names[k], page) if page else comparison.names[k]
        numbers = [_score(report, column) for column in columns]
        rows.append([name, str(report.answer), *numbers, Quoted(report.model), report.n])
    head = ["audit", "explains?", *columns, "model", "texts"]
    return Table(head, rows, "The audits with their scores, the most faithful first")


def _score(report: Report, name: str) -> Number | None:
    """Returns a question's number with its interval; None where few texts or none have it."""
    found = by_rule(report.findings).get(name)
    if found is None or found.n < MIN_SHOWN:
        return None
    return Number(found.value, found.ci95, digits=2)


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
    caption = (
        "The answers side by side; “higher” and “lower” are said of the number that is named "
        "below, on the same data over the texts in which both have it: not always what the "
        "scores above differ by"
    )
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


# --- the questions ----------------------------------------------------------------------


def _question(comparison: AuditComparison, question: ComparedQuestion) -> Section:
    """The answers to one question side by side."""
    rows: list[list[Cell]] = []
    for k, name in enumerate(comparison.names):
        mean, found = question.means[k], question.findings[k]
        n = None if mean is None else mean.n
        said = None if found is None else found.sentence
        rows.append([name, question.answer(k) or None, mean, n, said])
    head = ["audit", "answer", "number [95%]", "texts", "in its own words"]
    measure = f"The number: {question.measure}"
    return Section(
        question.question,
        [
            Note(measure if question.measure else NOT_COMPARED),
            Table(head, rows, sortable=False),
        ],
        id=f"question-{question.rule}",
    )


NOT_COMPARED = "Its numbers are not compared"


# --- what is drawn ----------------------------------------------------------------------


def maps_of_differences(comparison: AuditComparison) -> Iterator[HeatMap]:
    """How much farther a shuffle of each head moves the output of each later audit's model."""
    first = comparison.names[0]
    for number, other in enumerate(comparison.names[1:], 1):
        found = {
            s.place: s.differences[number - 1]
            for s in comparison.statistics
            if s.statistic == EFFECT and s.is_of_head
        }
        known = {place: d for place, d in found.items() if d is not None}
        if known:
            yield head_map(
                f"{EFFECT_MAP}_difference_{number + 1}",
                f"{EFFECT_TITLE}: {other} minus {first}",
                {p: Estimate(d.value, d.simultaneous) for p, d in known.items()},
                finding=f"{other} minus {first}: {_heads_told(known)}",
                value_label=f"difference of {RULES['effect'].scale_of}",
                centre=0.0,
            )


def _heads_told(found: Mapping[Place, Difference]) -> str:
    """Says which heads can be told apart, and which differs most."""
    n_told = sum(d.can_be_told for d in found.values())
    most = max(found, key=lambda place: abs(found[place].value))
    largest = found[most].value
    return (
        f"{n_told} of {len(found)} heads can be told apart; the largest difference is "
        f"{largest:+.3f} at head {head_name(most)} (layer.head, from 0). Intervals hold "
        "for all compared statistics at once."
    )


# --- tables -----------------------------------------------------------------------------


def _what_differs(comparison: AuditComparison) -> Section:
    rows = [[s.name, *s.values] for s in comparison.settings]
    caption = "Only what is not the same in all audits"
    table = Table(["setting", *comparison.names], rows, caption)
    nothing = "Model, data, settings and versions are the same."
    title = "What differs in how they were made"
    return Section(title, [table or nothing], id="settings", brief=True)


HOW_TO_REPEAT = (
    "Each audit's own page says how it was made and the command that repeats it. "
    "This page is made again from their folders with attnprobe report; every statistic of every "
    "head, with its difference, is written by attnprobe report FOLDER FOLDER --output numbers.csv."
)
