"""Comparison of several audits with the first one: public function, result, and document."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.serialization import convert_to_plain
from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    Document,
    FormattedNumber,
    Link,
    Note,
    Section,
    Table,
    UserText,
    build_glossary,
    map_texts,
)
from hf_attnprobe.documents.formats import DocumentedResult, format_json
from hf_attnprobe.plots.chart import HeatMap
from hf_attnprobe.reports.audit_document import GLOSSARY
from hf_attnprobe.reports.head_tables import (
    HEAD_MAP_SPECS,
    build_head_map,
    format_head,
)
from hf_attnprobe.reports.paired_differences import (
    UNCLEAR_DIFFERENCE_TEXT,
    ComparedQuestion,
    ComparedStatistic,
    Setting,
    choose_short_names,
    compare_questions,
    compare_statistics,
    find_shared_texts,
    iterate_cautions,
    list_differing_settings,
)
from hf_attnprobe.reports.report import Report, read_audit
from hf_attnprobe.reports.verdict import format_answer_reason
from hf_attnprobe.statistics.differences import Difference
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, ORDERED_ANSWERS, Answer
from hf_attnprobe.statistics.heads import EFFECT_STATISTIC, PATH_SHARE_STATISTIC, LayerHead
from hf_attnprobe.statistics.verdicts import RULES, index_by_rule
from hf_attnprobe.statistics.wording import find_unit_names, format_distinct_count


COMPARISON_SCHEMA_VERSION = 2
"""Version of the JSON format of comparisons.

It changes if a key is removed or gets a new meaning.
"""


@dataclass(frozen=True)
class AuditComparison(DocumentedResult):
    """Several audits and their differences from the first one.

    ``print(comparison)`` prints the report. Tuples have one element per audit, unless stated
    otherwise.

    Attributes:
        names: short names of the audits, all different.
        models: names of the audited models.
        datasets: names of the data sets.
        n: number of texts, including copies of the same text.
        n_distinct: number of different texts.
        n_shared: number of different texts shared with the first audit, for each audit after it; 0
            if the data differ.
        answers: main answers: whether attention explains the predictions.
        scores: faithfulness; its ``n`` is 0 if it was not measured.
        questions: all compared questions, in the order of the rules.
        statistics: all statistics that the first audit shares with another one.
        settings: settings, model and versions that differ between audits.
        cautions: sentences about limits of the comparison.
        seed: bootstrap seed.
        reports: the compared reports.
        pages: links to the audits' own pages; empty if unknown.
    """

    names: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    n: tuple[int, ...]
    n_distinct: tuple[int, ...]
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

    def add_page_links(self, folders: Sequence[str | Path], start: str | Path) -> "AuditComparison":
        """Return a copy of the comparison with links to the audits' own pages.

        Args:
            folders: the audits' output folders.
            start: folder of the comparison's page; links are relative to it.
        """
        pages = (os.path.relpath(Path(folder) / "report.html", start) for folder in folders)
        return replace(self, pages=tuple(pages))

    def build_document(self) -> Document:
        """Build the document that all output formats print."""
        document = _build_document(self)
        unit_names = {find_unit_names(report.provenance) for report in self.reports}
        # Audits with different units, such as words and tokens, are compared in terms of words.
        if len(unit_names) != 1 or None in unit_names:
            return document
        return map_texts(document, self.reports[0].rename_units)

    def to_json(self) -> str:
        """Return all results as JSON, including long lists that a page omits."""
        return format_json(build_comparison_data(self))

    def summary_frame(self) -> pd.DataFrame:
        """Return the differences between the first audit and the other audits as a data frame.

        Each row compares one statistic of one of the other audits.
        """
        rows = []
        for statistic, audit_index, difference in iterate_compared_statistics(self):
            rows.append(
                {
                    "first": self.names[0],
                    "audit": self.names[audit_index],
                    "test": statistic.test,
                    "statistic": statistic.statistic,
                    "layer": statistic.layer,
                    "head": statistic.head,
                    "first_mean": difference.first,
                    "mean": difference.other,
                    "difference": difference.value,
                    "ci_low": difference.ci95[0],
                    "ci_high": difference.ci95[1],
                    "simultaneous_low": difference.simultaneous[0],
                    "simultaneous_high": difference.simultaneous[1],
                    "n": difference.n,
                    "paired": difference.paired,
                    "can_be_told": difference.has_clear_sign,
                }
            )
        return pd.DataFrame(rows, columns=list(rows[0]) if rows else None)


def iterate_compared_statistics(
    comparison: AuditComparison,
) -> Iterator[tuple[ComparedStatistic, int, Difference]]:
    """Yield each statistic's difference between the first audit and each of the other audits.

    Args:
        comparison: comparison of two or more audits.

    Yields:
        The statistic, the other audit's index, and the difference.
    """
    for statistic in comparison.statistics:
        for audit_index, difference in enumerate(statistic.differences, 1):
            if difference is not None:
                yield statistic, audit_index, difference


@public_function
def compare_audits(folders: Sequence[str | Path], *, seed: int = 0) -> AuditComparison:
    """Compare audits with the first one, as ``attnprobe report FOLDER FOLDER`` does.

    Example::

        comparison = compare_audits(["audit-of-base", "audit-of-finetuned"])
        print(comparison)

    Args:
        folders: output folders of at least two audits.
        seed: bootstrap seed.

    Raises:
        AttnProbeError: If a folder contains no audit, or the audits cannot be compared.
    """
    return compare_reports([read_audit(folder) for folder in folders], seed=seed)


def compare_reports(reports: Sequence[Report], *, seed: int = 0) -> AuditComparison:
    """Compare several reports with the first one.

    Two audits are compared text by text if they used the same data. For language models, the answers
    must also be equal. Tests are compared only if their options are equal.

    Args:
        reports: at least two reports with their rows.
        seed: bootstrap seed.

    Raises:
        AttnProbeError: If there are fewer than two reports, or a report has no rows.
    """
    if len(reports) < 2:
        raise AttnProbeError(
            f"expected at least two audits to compare, got {len(reports)}. Add another folder."
        )
    for report in reports:
        if not len(report.rows):
            raise AttnProbeError(
                f"the report of {report.model} contains no rows to compare. Read the report from its "
                "folder with read_audit, which also reads the rows."
            )
    names = choose_short_names(reports)
    shared_ids = [find_shared_texts(reports[0], report) for report in reports[1:]]
    n_shared = tuple(map(len, shared_ids))
    return AuditComparison(
        names=names,
        models=tuple(report.model for report in reports),
        datasets=tuple(str(report.dataset) for report in reports),
        n=tuple(report.n for report in reports),
        n_distinct=tuple(report.n_distinct for report in reports),
        n_shared=n_shared,
        answers=tuple(report.attention_answer for report in reports),
        scores=tuple(report.attention_score for report in reports),
        questions=compare_questions(reports, shared_ids, seed),
        statistics=compare_statistics(reports, shared_ids, seed),
        settings=list_differing_settings(reports),
        cautions=tuple(iterate_cautions(reports, names, n_shared)),
        seed=seed,
        reports=tuple(reports),
    )


@public_function
def list_changed_answers(comparison: AuditComparison) -> list[str]:
    """List the questions that another audit certainly answers differently from the first audit.

    Both audits must have an answer other than "cannot say", and the confidence interval for the
    difference between their numbers must exclude 0. Two different answers alone are not enough.

    Args:
        comparison: comparison of two or more audits.

    Returns:
        A sentence for each changed answer.
    """
    # The first audit has index 0, so the other audits are counted from 1.
    first_name = comparison.names[0]
    sentences = []
    for audit_index, name in enumerate(comparison.names[1:], 1):
        for question in comparison.questions:
            if question.has_changed_answer(audit_index):
                question_name = RULES[question.rule].name.lower()
                sentences.append(
                    f"{question_name} is {question.answer(audit_index)} for {name}, "
                    f"{question.answer(0)} for {first_name}"
                )
    return sentences


# --- the document ---------------------------------------------------------------------


COMPARISON_INTRODUCTION = (
    "Does attention explain the predictions, and does the answer differ between these audits? Each "
    "audit ran its own tests. Differences are reported for numbers that both audits measured."
)
"""First paragraph of a report that compares several audits."""


def build_comparison_data(comparison: AuditComparison) -> dict[str, Any]:
    """Convert a comparison to dictionaries, lists and numbers that JSON can store.

    Args:
        comparison: comparison of two or more audits.
    """
    fields = {name: value for name, value in vars(comparison).items() if name != "reports"}
    return convert_to_plain(fields) | {"schema_version": COMPARISON_SCHEMA_VERSION}


def _build_document(comparison: AuditComparison) -> Document:
    """Build the document for a comparison of audits."""
    first_name, *other_names = comparison.names
    sections = [
        Section(
            "Question by question",
            [_build_question_section(comparison, question) for question in comparison.questions],
            id="questions",
        ),
        Section(
            "Limitations of this comparison",
            [[*comparison.cautions, describe_intervals(comparison)]],
            id="cautions",
            in_short_report=True,
        ),
        Section("Heads", list(build_difference_maps(comparison)), id="heads"),
    ]
    lead: list[Block] = [
        COMPARISON_INTRODUCTION,
        [describe_answer_change(comparison, k) for k in range(1, len(comparison.names))],
        _build_audits_table(comparison),
        _build_overview_table(comparison),
    ]
    return Document(
        f"{', '.join(other_names)} compared with {first_name}",
        lead,
        [
            *sections,
            build_glossary([*lead, *sections], GLOSSARY),
            _build_settings_section(comparison),
            Section("How to repeat the audits", [REPETITION_NOTE], id="origin"),
        ],
        data={
            **build_comparison_data(comparison),
            "statistics": [],
            "left_out": ["statistics"],
        },
    )


def describe_answer_change(comparison: AuditComparison, audit_index: int) -> str:
    """Describe whether an audit's answer differs from the first audit's answer, with the reasons.

    A reason is stated for every answer "cannot say", and for the weaker answer of an audit whose
    faithfulness is higher.

    Args:
        comparison: comparison of two or more audits.
        audit_index: index of the audit, from 1; the first audit has index 0.
    """
    pair = (audit_index, 0)
    first_answer, other_answer = comparison.answers[0], comparison.answers[audit_index]
    if Answer.CANNOT_SAY in (first_answer, other_answer):
        beginning = "It is open whether the answer differs"
    elif first_answer == other_answer:
        beginning = "The answer is the same"
    else:
        beginning = "The answer differs"
    answers = ", ".join(f"{comparison.names[k]}: {comparison.answers[k]}" for k in pair)
    sentences = [f"{beginning} ({answers})."]
    faithful_index = None
    difference = _find_faithfulness_difference(comparison, audit_index)
    if difference is not None and difference.n:
        if difference.has_clear_sign:
            faithful_index = audit_index if difference.value > 0 else 0
            sentences.append(f"Faithfulness is higher for {comparison.names[faithful_index]}.")
        else:
            sentences.append(f"Their faithfulness {UNCLEAR_DIFFERENCE_TEXT}.")
    for k in pair:
        (other_index,) = {*pair} - {k}
        is_weaker = _is_weaker(comparison.answers[k], comparison.answers[other_index])
        if comparison.answers[k] == Answer.CANNOT_SAY or (k == faithful_index and is_weaker):
            report = comparison.reports[k]
            reason = report.rename_units(format_answer_reason(report.findings, report.words))
            sentences.append(
                f"The answer for {comparison.names[k]} is {comparison.answers[k]} for this reason: "
                f"{reason}"
            )
    return " ".join(sentences)


def _find_faithfulness_difference(
    comparison: AuditComparison, audit_index: int
) -> Difference | None:
    """Return an audit's difference in faithfulness from the first audit; None if not compared."""
    for question in comparison.questions:
        if question.rule == "faithfulness":
            return question.differences[audit_index - 1]
    return None


def _is_weaker(answer: Answer, other_answer: Answer) -> bool:
    """Check whether both answers are graded and the first one is the lower grade."""
    if Answer.CANNOT_SAY in (answer, other_answer):
        return False
    return ORDERED_ANSWERS.index(answer) < ORDERED_ANSWERS.index(other_answer)


def describe_intervals(comparison: AuditComparison) -> str:
    """Explain how to interpret the confidence intervals of a comparison.

    Args:
        comparison: comparison of two or more audits.
    """
    n_statistics = len(list(iterate_compared_statistics(comparison)))
    n_questions = 0
    for question in comparison.questions:
        known_differences = [d for d in question.differences if d is not None]
        n_questions += len(known_differences)
    return (
        f"A difference is the audit's number minus the number for {comparison.names[0]}. Intervals "
        f"hold simultaneously with 95% probability for all {n_questions} differences between "
        f"questions, and for all {n_statistics} differences between statistics (multiplier bootstrap "
        f"over texts). If an interval contains 0, or there are fewer than {MIN_TEXTS} texts, the "
        f"audits {UNCLEAR_DIFFERENCE_TEXT}."
    )


SCORED_QUESTIONS = (
    "faithfulness",
    "importance",
    "erasure",
    "removal",
    "mass",
    "order",
    "drop",
    "source",
)
"""Keys of the questions whose scores have a column in the table of audits, in this order."""


def _build_audits_table(comparison: AuditComparison) -> Table:
    """Build a table with one row per audit and its scores, the most faithful audit first."""
    columns = []
    for key in SCORED_QUESTIONS:
        was_measured = any(_format_score(report, key) for report in comparison.reports)
        if was_measured:
            columns.append(key)
    columns.append("effect")
    rows: list[list[Cell]] = []
    scores = pd.Series([score.value for score in comparison.scores])
    order = scores.sort_values(ascending=False, kind="stable").index
    for k in order:
        report = comparison.reports[k]
        page = comparison.pages[k] if comparison.pages else ""
        name = Link(comparison.names[k], page) if page else comparison.names[k]
        numbers = [_format_score(report, key) for key in columns]
        n_answered = report.attention_conclusion.n
        n_texts: Cell = n_answered or report.n
        if n_answered in (0, report.n_distinct) and report.n_distinct < report.n:
            n_texts = format_distinct_count(report.n, report.n_distinct)
        rows.append([name, str(report.attention_answer), *numbers, UserText(report.model), n_texts])
    head = ["audit", "explains?", *columns, "model", "texts"]
    return Table(head, rows, "The audits with their scores, the most faithful first")


def _format_score(report: Report, key: str) -> FormattedNumber | None:
    """Format an audit's number for a question, with its confidence interval.

    Args:
        report: the audit's report.
        key: key of the question, such as "faithfulness".

    Returns:
        The number; None if it was not measured, or for too few texts.
    """
    finding = index_by_rule(report.findings).get(key)
    if finding is None or finding.n < MIN_DISPLAYED_TEXTS:
        return None
    return FormattedNumber(finding.value, finding.ci95, digits=2)


def _build_overview_table(comparison: AuditComparison) -> Table:
    """Build a table with one question per row, and the answers of all audits as columns.

    Further columns contain the differences from the first audit.
    """
    names = comparison.names
    rows: list[list[Cell]] = []
    for question in comparison.questions:
        answers = [question.answer(k) or None for k in range(len(names))]
        differences = map(_format_difference, question.differences)
        rows.append([question.question, *answers, *differences])
    head = [
        "question",
        *names,
        *(f"{name} compared with {names[0]}" for name in names[1:]),
    ]
    caption = (
        "All answers. “Higher” and “lower” compare the number that is described below, over the texts "
        "that both audits measured. The difference between the scores above may be another one"
    )
    return Table(head, rows, caption, sortable=False)


def _format_difference(difference: Difference | None) -> Cell:
    """Format a difference between two audits, such as "higher: +0.12 [0.03, 0.21]".

    If the interval contains 0, the result states that the direction is unclear.
    """
    if difference is None or not difference.n:
        return "not compared"
    if not difference.has_clear_sign:
        return UNCLEAR_DIFFERENCE_TEXT
    direction = "higher:" if difference.value > 0 else "lower:"
    interval = difference.simultaneous
    return FormattedNumber(difference.value, interval, digits=2, sign="+", prefix=direction)


# --- the questions ----------------------------------------------------------------------


def _build_question_section(comparison: AuditComparison, question: ComparedQuestion) -> Section:
    """Build the section that compares the answers to one question."""
    rows: list[list[Cell]] = []
    for k, name in enumerate(comparison.names):
        mean, finding = question.means[k], question.findings[k]
        n_texts = None if mean is None else mean.n
        sentence = None if finding is None else finding.sentence
        rows.append([name, question.answer(k) or None, mean, n_texts, sentence])
    head = ["audit", "answer", "number [95%]", "texts", "finding"]
    note = f"Compared number: {question.measure}" if question.measure else NOT_COMPARED_NOTE
    return Section(
        question.question,
        [Note(note), Table(head, rows, sortable=False)],
        id=f"question-{question.rule}",
    )


NOT_COMPARED_NOTE = "The numbers for this question are not compared"
"""Note for a question without a number that can be compared between two audits."""


# --- maps of heads ----------------------------------------------------------------------


def build_difference_maps(comparison: AuditComparison) -> Iterator[HeatMap]:
    """Build a heat map for each audit except the first, which shows how its heads differ.

    Each cell contains the path share of one head minus the path share of this head in the first
    audit, because heads are graded by their path shares. If the path shares were not measured in
    both audits, the cells contain differences of effects.

    Args:
        comparison: comparison of two or more audits.

    Yields:
        The maps; audits without single heads have none.
    """
    first_name = comparison.names[0]
    specs = {spec.rule: spec for spec in HEAD_MAP_SPECS}
    for audit_index, name in enumerate(comparison.names[1:], 1):
        path_share_differences = _select_head_differences(
            comparison, PATH_SHARE_STATISTIC, audit_index
        )
        if path_share_differences:
            spec, differences = specs["path_share"], path_share_differences
        else:
            spec = specs["effect"]
            differences = _select_head_differences(comparison, EFFECT_STATISTIC, audit_index)
        if differences:
            yield build_head_map(
                f"{spec.key}_difference_{audit_index + 1}",
                f"{spec.title}: {name} minus {first_name}",
                {
                    site: Estimate(difference.value, difference.simultaneous)
                    for site, difference in differences.items()
                },
                finding=f"{name} minus {first_name}: {_describe_differing_heads(differences)}",
                value_label=f"difference of {RULES[spec.rule].scale_label}",
                centre=0.0,
            )


def _select_head_differences(
    comparison: AuditComparison, statistic_name: str, audit_index: int
) -> dict[LayerHead, Difference]:
    """Select the differences of a statistic between an audit and the first one, by layer and head.

    Args:
        comparison: comparison of two or more audits.
        statistic_name: name of the statistic.
        audit_index: index of the audit, from 1; the first audit has the index 0.
    """
    differences = {}
    for statistic in comparison.statistics:
        if statistic.statistic == statistic_name and statistic.is_single_head:
            difference = statistic.differences[audit_index - 1]
            if difference is not None:
                differences[statistic.site] = difference
    return differences


def _describe_differing_heads(differences: Mapping[LayerHead, Difference]) -> str:
    """Describe how many heads certainly differ, and name the head with the largest difference.

    A difference is certain if its confidence interval excludes 0.

    Args:
        differences: difference between two audits for each layer and head.
    """
    n_certain = sum(difference.has_clear_sign for difference in differences.values())
    site = max(differences, key=lambda site: abs(differences[site].value))
    return (
        f"{n_certain} of {len(differences)} heads certainly differ. The largest difference is "
        f"{differences[site].value:+.3f}, for head {format_head(site)} (layer.head, from 0). "
        "Intervals hold for all compared statistics simultaneously."
    )


# --- settings ---------------------------------------------------------------------------


def _build_settings_section(comparison: AuditComparison) -> Section:
    """Build the section with the settings that differ between the audits."""
    rows = [[setting.name, *setting.values] for setting in comparison.settings]
    caption = "Only settings that differ between the audits"
    table = Table(["setting", *comparison.names], rows, caption)
    no_difference = "Model, data, settings and versions are equal."
    return Section(
        "Differences between the settings",
        [table or no_difference],
        id="settings",
        in_short_report=True,
    )


REPETITION_NOTE = (
    "Each audit's page contains the command that repeats it. To create this page again, run attnprobe "
    "report with the audits' folders. For every statistic of every head with its difference, run "
    "attnprobe report FOLDER FOLDER --output numbers.csv."
)
"""Last paragraph of a comparison's report.

It explains how to repeat the audits and the comparison.
"""
