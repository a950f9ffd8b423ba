"""The report that a reader opens first, as Markdown."""

from collections.abc import Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.forms.notes import (
    controls_of,
    few_parts,
    group_lines,
    has_line,
    is_of_ranking,
    place_of,
    predicts_note,
    quality_lines,
    target_note,
    units_note,
    verdict_lines,
)
from hf_attnprobe.auditing.heads.tables import head_tables, prune_table, prune_title
from hf_attnprobe.auditing.heads.values import has_several
from hf_attnprobe.auditing.ranking_tables import comparison_section, section_in_words
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.reports.document import Section, Texts
from hf_attnprobe.reports.markdown import blocks
from hf_attnprobe.statistics.differences import Contrast
from hf_attnprobe.statistics.summary import Statistic, attention_bin, sentence
from hf_attnprobe.statistics.wording import Words
from hf_attnprobe.storage.provenance import provenance_section


BINNED = {
    "median_tvd": "median Δŷ under shuffling",
    "epsilon_max_jsd@0.01": "ε-max JSD (ε = .01)",
}
"""Statistics shown by the largest attention weight, as in the papers' violin plots."""


def to_markdown(report: AuditResult) -> str:
    """The report a reader opens first.

    Verdict, tables with readings, texts shown beside their adversaries, provenance.
    """
    parts = [
        f"# Does attention explain `{report.model}`?",
        "",
        f"{report.n} texts of `{report.dataset}`, seed {report.seed}.",
        *predicts_note(report),
        *units_note(report),
        "",
        *markdown.bullets([*target_note(report), *quality_lines(report), *verdict_lines(report)]),
    ]
    if has_several(report.statistics):  # all the numbers are in summary.json and the rows
        parts += group_lines(report)
        parts += head_tables(report.statistics, report.rows, report.words)
        parts += _prune_section(report.prune, report.words)
    else:
        for test in dict.fromkeys(s.test for s in report.statistics):
            parts += _test_section(test, report)
            parts += comparison_section(test, report.comparisons)
        parts += _bins_section(report)
    for block in blocks([Section("texts", [Texts(report.examples)])]):
        parts += ["", block]
    return markdown.document(parts + provenance_section(report.provenance))


def _prune_section(curve: PruneCurve | None, words: Words) -> list[str]:
    if curve is None:
        return []
    return markdown.section(prune_title(curve), prune_table(curve, words), level=3)


def _test_section(test: str, report: AuditResult) -> list[str]:
    """All numbers of a test; of single rankings only those over all texts."""
    statistics = few_parts([s for s in report.statistics if s.test == test])
    if not statistics:
        return []
    control = controls_of(report)
    rows = [
        _statistic_row(s) + (_control_cells(control.get(place_of(s))) if control else [])
        for s in statistics
        if s.group == "all" or not is_of_ranking(s)
    ]
    head = [
        "statistic",
        "predicted",
        "mean",
        "95% interval",
        "median",
        "std",
        "n",
        "undefined",
        *(["control", "difference, 95% interval"] if control else []),
    ]
    sentences = [
        f"{s.statistic}: {sentence(s, readings(), report.words)}."
        for s in statistics
        if s.group == "all" and has_line(s.statistic)
    ]
    return [
        "",
        f"## {test}",
        *section_in_words(test, statistics, report.rows),
        "",
        *markdown.table(head, rows),
        "",
        *markdown.bullets(sentences),
    ]


def _statistic_row(s: Statistic) -> list[object]:
    numbers = [
        markdown.number(s.mean),
        markdown.bounds(s.ci95),
        markdown.number(s.median),
        markdown.number(s.std),
    ]
    return [s.statistic, s.group, *numbers, s.n, s.undefined]


def _control_cells(contrast: Contrast | None) -> list[object]:
    """The control's mean, and the paired difference to it."""
    if contrast is None:
        return [markdown.MISSING, markdown.MISSING]
    difference = markdown.interval(contrast.value, contrast.ci95)
    return [markdown.number(contrast.control_mean), difference]


def _bins_section(report: AuditResult) -> list[str]:
    """Medians by predicted class and largest attention weight, of the one head.

    As the violin plots of Jain & Wallace 2019 (Figure 6), which part the classes too: a
    mean of both may be a value between two modes that no text has.
    """
    rows = report.rows
    if not len(rows):
        return []
    wanted = rows[rows.statistic.isin(["max_attention", "predicted_class", *BINNED])]
    wide = wanted.pivot_table(index="example_id", columns="statistic", values="value")
    shown = [name for name in BINNED if name in wide]
    if "max_attention" not in wide or "predicted_class" not in wide or not shown:
        return []
    classes = report.provenance.get("classes", [])
    by = [wide.predicted_class.astype(int), attention_bin(wide.max_attention)]
    table: list[list[object]] = []
    for (predicted, weight), texts in wide.groupby(by, observed=True):
        name = _class_name(int(predicted), classes)
        medians = map(markdown.number, texts[shown].median())
        table.append([name, weight, len(texts), *medians])
    head = ["predicted", "largest weight", "n", *(BINNED[name] for name in shown)]
    return markdown.section("by largest attention weight", markdown.table(head, table))


def _class_name(predicted: int, classes: Sequence[str]) -> str:
    """By number where it has no name; "all" where no single class is predicted."""
    if predicted < 0:
        return "all"
    return classes[predicted] if predicted < len(classes) else str(predicted)
