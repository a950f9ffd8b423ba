"""What a comparison shows: numbers of questions, maps of heads, charts of all as one.

Pure: a comparison in, charts as data out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hf_attnprobe.auditing.differences.report import AuditComparison
from hf_attnprobe.charts.audit_charts import NOTHING, audit_charts, series_of_means
from hf_attnprobe.charts.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.charts.head_maps import head_maps
from hf_attnprobe.statistics.differences import Difference
from hf_attnprobe.statistics.summary import site_of_model
from hf_attnprobe.statistics.verdicts import RULES


MOST_OVERLAID = 4
"""Audits in one chart; more lines cannot be told apart."""


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
    finding = (
        f"Told apart from {comparison.names[0]} (simultaneous intervals of the "
        f"differences, above): {'; '.join(told) or 'nothing'}. The intervals here are "
        "each audit's own; of the same texts a difference may be sure where they overlap."
    )
    return Chart(
        key="questions_of_all",
        title="The numbers behind the answers",
        finding=finding,
        source="",
        kind="dots",
        x_label="question",
        y_label="the question's number, mean over texts",
        series=tuple(series),
    )


# --- heads --------------------------------------------------------------------------


def maps_of_all(comparison: AuditComparison) -> Iterator[HeatMap]:
    """Each audit's map of every measure that all have, and their difference."""
    maps = [
        {m.key: m for m in head_maps(r.rows, seed=r.seed, words=r.words)}
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


def _difference_map(comparison: AuditComparison, first: HeatMap, number: int) -> Iterator[HeatMap]:
    """What an audit's heads do more than the first's."""
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
    )


def _part(difference: Difference | None, part: int) -> float:
    if difference is None:
        return float("nan")
    return (difference.value, *difference.simultaneous)[part]


def charts_of_all(comparison: AuditComparison) -> Iterator[Chart]:
    """Charts that all audits have, laid over one another; clouds of points are not.

    Of many audits the first ones are drawn, which the findings say.
    """
    reports = comparison.reports[:MOST_OVERLAID]
    sites = [site_of_model(r.rows) for r in reports]
    if None in sites:
        return
    by_audit = [
        {c.key: c for c in audit_charts(r.rows, (), site=s, words=r.words, seed=r.seed)}
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
        finding=_findings_of([c.finding for c in charts], names),
        references=tuple(references.values()),
    )


def _findings_of(findings: Sequence[str], names: Sequence[str]) -> str:
    """What each chart shows; a sentence that all have is said once, at the end."""
    by_audit = [finding.removesuffix(".").split(". ") for finding in findings]
    common = [s for s in by_audit[0] if all(s in said for said in by_audit)]
    own = []
    for said, name in zip(by_audit, names, strict=False):
        rest = [s for s in said if s not in common]
        own += [f"{name}: {'. '.join(rest)}."] if rest else []
    if len(names) > len(findings):
        own.append(f"Drawn are the first {len(findings)} of {len(names)} audits.")
    return " ".join([*own, *(f"{s}." for s in common)])
