"""The numbers of an audit as a LaTeX table, ready for a paper."""

from collections.abc import Collection, Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.forms.notes import controls_of, few_parts, has_line, place_of
from hf_attnprobe.auditing.group_tables import place_name
from hf_attnprobe.auditing.heads.values import has_several
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.reports.latex import escape, table
from hf_attnprobe.statistics.differences import Contrast
from hf_attnprobe.statistics.summary import Statistic


def to_latex(report: AuditResult, statistics: Collection[str] | None = None) -> str:
    """A table with booktabs' rules: mean, 95% interval and n over all texts.

    With a control its mean and the paired difference to it stand beside.

    Args:
        report: the audit.
        statistics: names, such as "median_tvd"; by default those with a line in the
            full text, of many heads only what groups of heads do.

    Raises:
        AttnProbeError: a name that the audit does not have.
    """
    chosen = _chosen(report, statistics)
    several, controls = has_several(report.statistics), controls_of(report)
    head = [
        "statistic",
        *(["where"] if several else []),
        "mean",
        r"95\% interval",
        "$n$",
    ]
    head += ["control", r"difference, 95\% interval"] if controls else []
    rows = []
    for s in chosen:
        cells = [escape(s.statistic), *([_where(s, report)] if several else [])]
        cells += [markdown.number(s.mean), markdown.bounds(s.ci95), str(s.n)]
        if controls:
            beside = controls.get(place_of(s))
            cells += _beside(beside)
        rows.append(cells)
    return table(head, rows, _caption(report), n_texts=2 if several else 1)


def _chosen(report: AuditResult, statistics: Collection[str] | None) -> Sequence[Statistic]:
    overall = [s for s in report.statistics if s.group == "all"]
    if statistics is None:
        groups = [s for s in overall if min(s.layer, s.head) < 0]
        return few_parts([s for s in groups or overall if has_line(s.statistic)])
    wanted = [statistics] if isinstance(statistics, str) else list(statistics)
    unknown = set(wanted) - {s.statistic for s in overall}
    if unknown:
        raise AttnProbeError(
            f"expected statistics of this audit, got {', '.join(sorted(unknown))}; "
            "report.summary_frame() lists those there are"
        )
    return [s for name in wanted for s in overall if s.statistic == name]


def _where(s: Statistic, report: AuditResult) -> str:
    sets = report.provenance.get("head_sets") or []
    return escape(place_name((s.layer, s.head), sets))


def _beside(contrast: Contrast | None) -> list[str]:
    if contrast is None:
        return [markdown.MISSING] * 2
    difference = markdown.interval(contrast.value, contrast.ci95)
    return [markdown.number(contrast.control_mean), difference]


def _caption(report: AuditResult) -> str:
    caption = (
        f"{report.model} on {report.dataset}: means over {report.n} texts with 95% "
        "intervals over texts."
    )
    if "control" in report.provenance:
        caption += f" Control: {report.provenance['control']}."
    return escape(caption)
