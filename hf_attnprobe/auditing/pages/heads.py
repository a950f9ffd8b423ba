"""Heads: maps, groups beside single heads, and every site in one sortable table."""

from collections.abc import Mapping, Sequence

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.forms.notes import has_line
from hf_attnprobe.auditing.group_tables import METHOD, group_sentences, place_name
from hf_attnprobe.auditing.heads.sentences import head_sentences
from hf_attnprobe.auditing.heads.tables import MARKED, prune_title
from hf_attnprobe.auditing.heads.values import has_several, head_intervals
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.charts.chart import Chart, HeatMap
from hf_attnprobe.page.elements import (
    bullets,
    details,
    figure,
    head_map,
    section,
    table,
)
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.statistics.summary import Statistic, key_of


Place = tuple[int, int]
Intervals = Mapping[Place, tuple[float, float]]
HOW_TO_READ = (
    "A head is named layer.head, both from 0. Intervals of single heads hold for all "
    "heads at once (simultaneous, 95%), so the largest may be looked for; those of "
    "groups hold for each group by itself."
)


def heads(
    report: AuditResult,
    charts: Sequence[Chart],
    maps: Sequence[HeatMap],
    answer: str | None = None,
) -> Html | None:
    """All that is known of single heads and groups; None of a model with one head.

    Args:
        report: an audit.
        charts: of groups of heads.
        maps: of single heads.
        answer: which heads matter, in words.
    """
    if not has_several(report.statistics):
        return None
    said = [
        *group_sentences(report.statistics, report.words),
        *head_sentences(report.statistics, report.rows, report.words),
    ]
    return section(
        "Which heads matter",
        tag("p", tag("strong", answer)) if answer else None,
        details("more about groups and single heads", bullets(said), open=not answer),
        *map(figure, charts),
        *map(head_map, maps),
        tag("h3", "Groups of heads and single heads, all numbers"),
        tag("p", HOW_TO_READ),
        tag("p", report.words.fill(METHOD)),
        details("the table of all sites", site_table(report)),
        _pruned(report),
        id="heads",
    )


COLUMNS = (
    *MARKED,
    "gradient_leave_one_out_tau",
    "uniform_flip",
    "zero_flip",
    "erased_share",
    "max_attention",
)
"""Statistics of the table of sites; of all of them nobody reads a row."""


def site_table(report: AuditResult) -> Html:
    """Sites down, statistics over all texts across, each with its interval."""
    shown = [s for s in report.statistics if s.group == "all" and _in_table(s)]
    known = {s.statistic for s in shown}
    names = [name for name in COLUMNS if name in known]
    by_place: dict[Place, dict[str, Statistic]] = {}
    for s in shown:
        by_place.setdefault((s.layer, s.head), {})[s.statistic] = s
    sets = report.provenance.get("head_sets") or []
    simultaneous = _intervals_of_heads(report.rows, names)
    rows = [
        [
            place_name(place, sets),
            *(_cell(found.get(name), simultaneous.get(name, {})) for name in names),
        ]
        for place, found in sorted(by_place.items(), key=_groups_first)
    ]
    head = ["site", *(name.replace("_", " ") for name in names)]
    caption = (
        "mean over texts [95% interval]; all other statistics are written by attnprobe "
        "report FOLDER --output numbers.csv, where FOLDER is the audit's output folder"
    )
    return table(head, rows, caption=caption)


def _in_table(s: Statistic) -> bool:
    return bool(s.n) and has_line(s.statistic) and not isinstance(key_of(s.statistic), str)


def _groups_first(item: tuple[Place, object]) -> tuple[int, Place]:
    """All attention, layers, sets, then heads."""
    (layer, head), _ = item
    kind = 3 if min(layer, head) >= 0 else 0 if layer == -1 else 1 if layer >= 0 else 2
    return kind, (layer, head)


def _intervals_of_heads(rows: pd.DataFrame, names: Sequence[str]) -> dict[str, Intervals]:
    """Simultaneous intervals by statistic; nothing without rows."""
    if not len(rows):
        return {}
    wanted = rows[rows.statistic.isin(names) & (rows["head"] >= 0) & (rows.layer >= 0)]
    return {
        str(name): head_intervals(own, str(name))
        for name, own in wanted.groupby("statistic", observed=True)
    }


def _cell(s: Statistic | None, intervals: Intervals) -> object:
    if s is None:
        return None
    bounds = s.ci95 if min(s.layer, s.head) < 0 else intervals.get((s.layer, s.head))
    return markdown.interval(s.mean, bounds, digits=2)


def _pruned(report: AuditResult) -> Html | None:
    """How the model holds as more and more heads are removed."""
    curve = report.prune
    if curve is None:
        return None
    rows = zip(curve.n_removed, curve.agreement, curve.accuracy, strict=True)
    head = ["heads removed", "predictions kept", "accuracy"]
    return details(prune_title(curve), table(head, list(rows), sortable=False))
