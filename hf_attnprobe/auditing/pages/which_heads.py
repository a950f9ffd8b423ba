"""Which heads matter, in one or two sentences with number and interval."""

from collections.abc import Mapping

from hf_attnprobe import markdown
from hf_attnprobe.auditing.heads.values import MATTERS, by_head, head_intervals
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.summary import Statistic


EDITS = {
    "median_tvd": ("its attention is shuffled", "shuffling all heads at once"),
    "uniform_tvd": (
        "its attention is made even",
        "even attention in all heads at once",
    ),
    "zero_tvd": ("its output is zeroed", "zeroing all heads at once"),
}
"""How heads are edited; the first that an audit has is the one that is told."""

MOST_NAMED = 5
Place = tuple[int, int]


def which_heads(report: AuditResult) -> str | None:
    """The answer for one edit; None where no single heads were edited."""
    for name, (edited, all_edited) in EDITS.items():
        means = by_head(report.statistics, name)
        if len(means) > 1:
            single = _single(report, name, means, edited)
            beside = _beside(report, name, all_edited)
            return f"{single}{beside}{_chosen(report, len(means))}"
    return None


def _chosen(report: AuditResult, n_tested: int) -> str:
    """That only some heads were tested, and how they were chosen."""
    n = len(heads_of_model(report))
    if n <= n_tested:
        return ""
    sites = report.provenance.get("sites", {})
    how = ", chosen by a quick estimate of their effect" if sites.get("screen") else ""
    return f" Only {n_tested} of {n} heads were tested one by one{how}."


def heads_of_model(report: AuditResult) -> set[Place]:
    """All heads with any number, those among them that were only screened."""
    return {(s.layer, s.head) for s in report.statistics if min(s.layer, s.head) >= 0}


def tested_heads(report: AuditResult) -> set[Place]:
    """The heads that were tested one by one, and not only screened."""
    tested = {(s.layer, s.head) for s in report.statistics if s.test != "screen"}
    return tested & heads_of_model(report)


def _single(report: AuditResult, name: str, means: Mapping[Place, float], edited: str) -> str:
    rows = report.rows
    intervals = {}
    if len(rows):
        own = rows[(rows.statistic == name) & (rows["head"] >= 0) & (rows.layer >= 0)]
        intervals = head_intervals(own, name)
    if not intervals:
        place = max(means, key=means.__getitem__)
        return (
            f"Which heads matter is not known: no head has the {MIN_TEXTS} texts that an "
            f"interval takes. The largest mean is that of head {_name(place)}, "
            f"{means[place]:.2f}, by which the output moves when {edited}."
        )
    sure = sorted(
        (p for p, (low, _) in intervals.items() if low >= MATTERS),
        key=lambda p: -means[p],
    )
    may = sum(high >= MATTERS for _, high in intervals.values()) - len(sure)
    largest = max(intervals, key=means.__getitem__)
    number = markdown.interval(means[largest], intervals[largest], digits=2)
    if sure:
        named = ", ".join(_name(p) for p in sure[:MOST_NAMED])
        more = f" and {len(sure) - MOST_NAMED} more" if len(sure) > MOST_NAMED else ""
        said = (
            f"By itself matters head {named}{more}: when {edited}, the output surely "
            f"moves by {MATTERS:.2f} or more; the most by {number} (head {_name(largest)})"
        )
    else:
        said = (
            f"No single head is shown to matter by itself: when {edited}, of the heads "
            f"with an interval {_name(largest)} moves the output most, by {number}, and a "
            f"head counts from {MATTERS:.2f} on"
        )
    open_ones = f"; of {may} more it is open" if sure and may else ""
    open_ones = f"; of {may} it is open" if may and not sure else open_ones
    unknown = len(means) - len(intervals)
    few = f"; {unknown} heads have too few texts for an interval" if unknown else ""
    top = max(means, key=means.__getitem__)
    if top not in intervals:
        few = (
            f"; {_name(top)} has a larger mean ({means[top]:.2f}) but too few texts for "
            f"an interval{f', as {unknown - 1} others' if unknown > 1 else ''}"
        )
    return (
        f"{said}{open_ones}{few}. Compared are {len(intervals)} heads, with intervals that "
        "hold for all of them at once (95%)."
    )


def _beside(report: AuditResult, name: str, all_edited: str) -> str:
    """The largest layer, and the model's attention as a whole."""
    found = {
        (s.layer, s.head): s
        for s in report.statistics
        if s.statistic == name and s.group == "all" and s.n
    }
    layers = {p: s for p, s in found.items() if p[0] >= 0 and p[1] == -1}
    said = []
    if layers:
        place = max(layers, key=lambda p: layers[p].mean)
        said.append(f"of whole layers layer {place[0]} moves it most, by {_shown(layers[place])}")
    if (-1, -1) in found:
        said.append(f"{all_edited} moves it by {_shown(found[-1, -1])}")
    if not said:
        return ""
    text = "; ".join(said)
    return f" Beside that, {text}."


def _shown(s: Statistic) -> str:
    return markdown.interval(s.mean, s.ci95, digits=2)


def _name(place: Place) -> str:
    return f"{place[0]}.{place[1]}"
