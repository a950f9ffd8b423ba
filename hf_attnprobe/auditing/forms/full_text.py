"""All that an audit says, as text for a terminal."""

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
from hf_attnprobe.auditing.heads.tables import head_tables
from hf_attnprobe.auditing.heads.values import has_several
from hf_attnprobe.auditing.ranking_tables import comparison_sentences, ranked_lines
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.statistics.differences import Contrast
from hf_attnprobe.statistics.summary import Statistic, sentence
from hf_attnprobe.statistics.wording import Words
from hf_attnprobe.terminal import visible


def to_text(report: AuditResult) -> str:
    """One line per statistic, a table of rankings, the comparisons and the verdict.

    All over all texts. p-values and most of the frontier are in :func:`to_markdown`.
    """
    lines = [
        f"{report.model} on {report.dataset}: {report.n} texts, seed {report.seed}",
        *predicts_note(report),
        *units_note(report),
        *target_note(report),
        *quality_lines(report),
        "",
    ]
    if has_several(report.statistics):
        lines += [*group_lines(report)]
        lines += [*head_tables(report.statistics, report.rows, report.words), ""]
    else:
        lines += [*_test_lines(report), "", *_comparison_lines(report)]
    return visible("\n".join(lines + _verdict_section(report)))


def _test_lines(report: AuditResult) -> list[str]:
    """The statistics of every test over all texts, and its table of rankings."""
    overall = few_parts([s for s in report.statistics if s.group == "all"])
    shown = [s for s in overall if has_line(s.statistic) and not is_of_ranking(s)]
    width = max((len(s.statistic) for s in shown), default=0)
    lines = []
    control, words = controls_of(report), report.words
    for test in dict.fromkeys(s.test for s in overall):
        of_test = [
            _statistic_line(s, width, control.get(place_of(s)), words)
            for s in shown
            if s.test == test
        ]
        of_test += ranked_lines([s for s in overall if s.test == test])
        lines += [test, *(of_test or [f"  undefined for all {report.n} texts"])]
    return lines


def _statistic_line(s: Statistic, width: int, control: Contrast | None, words: Words) -> str:
    value = markdown.interval(s.mean, s.ci95) if s.n else "undefined"
    aside = f"({s.undefined} undefined) " if s.undefined and s.n else ""
    if control is not None:
        aside += f"(control {markdown.number(control.control_mean)}) "
    said = sentence(s, readings(), words)
    return f"  {s.statistic:<{width}}  {value:<24} n {s.n:<6} {aside}{said}"


def _comparison_lines(report: AuditResult) -> list[str]:
    lines = [f"  {line}" for line in comparison_sentences(report.comparisons)]
    title = (
        "Comparisons on the same texts (p ≤ .05 after Holm's correction over those of "
        "a test; of erasure on texts that can be flipped, where never counts as all)"
    )
    return [title, *lines, ""] if lines else []


def _verdict_section(report: AuditResult) -> list[str]:
    lines = [f"  {line}" for line in verdict_lines(report)]
    return ["Verdict", *lines] if lines else []
