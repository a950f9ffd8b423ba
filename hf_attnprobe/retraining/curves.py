"""Attention moved by training and by search, against what it costs: the λ curve. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hf_attnprobe import markdown
from hf_attnprobe.charts.chart import Chart, Reference, Series
from hf_attnprobe.retraining.result import RetrainingResult
from hf_attnprobe.retraining.verdict import published_point
from hf_attnprobe.statistics.summary import Statistic


ADVERSARY = "trained adversaries"
SEEDS = "other seeds"
UNIFORM = "trained with uniform attention"
SEARCH = "search, same states"
FRONTIER = "exact frontier, same states"
PUBLISHED = "published adversary"
CEILING = "no attention whatever can be farther"
JOINED = (ADVERSARY, FRONTIER)
MIN_CURVE = 3
"""Trained models whose points may be called a curve."""


class CurvePoint(NamedTuple):
    """One way to move attention, on average over the texts.

    Attributes:
        series: the kind of way, a line of the legend.
        label: which one of its kind, such as "λ 0.001".
        jsd: Jensen-Shannon divergence from the base's attention, nats.
        tvd: change of the output, total variation; NaN where any is allowed.
        tvd_interval: its 95% interval over texts, if it has one.
        jsd_interval: that of ``jsd``.
        n: texts.
    """

    series: str
    label: str
    jsd: float
    tvd: float
    tvd_interval: tuple[float, float] | None = None
    jsd_interval: tuple[float, float] | None = None
    n: int = 0


def curve_points(statistics: Sequence[Statistic]) -> tuple[CurvePoint, ...]:
    """The points of a report on retrained models, in the order of the legend.

    Args:
        statistics: of the report. Adversaries, other seeds, uniform attention, searches
            and the frontier are drawn where they are there.
    """
    means = {s.statistic: s for s in statistics if s.group == "all" and s.n}
    points = [
        *_keyed(means, "adversary", ADVERSARY, "λ"),
        *_keyed(means, "one_seed", SEEDS, "seed"),
        *_keyed(means, "search", SEARCH, "ε"),
        *_frontier(means),
    ]
    if not any(p.series == SEEDS for p in points):
        points += _single(means, "seed", SEEDS)
    points += _single(means, "uniform_model", UNIFORM)
    if "largest_jsd" in means:
        most = means["largest_jsd"]
        points.append(CurvePoint(CEILING, "", most.mean, math.nan, None, most.ci95, most.n))
    return tuple(points)


def _keyed(means: dict[str, Statistic], family: str, series: str, unit: str) -> list[CurvePoint]:
    """``family_jsd@key`` with ``family_tvd@key``, by key."""
    found = []
    for name in means:
        start, _, key = name.partition("@")
        other = f"{family}_tvd@{key}"
        if start == f"{family}_jsd" and other in means:
            found.append((float(key), means[name], means[other]))
    return [
        _point(series, f"{unit} {key:g}", jsd, tvd)
        for key, jsd, tvd in sorted(found, key=lambda pair: pair[0])
    ]


def _single(means: dict[str, Statistic], family: str, series: str) -> list[CurvePoint]:
    jsd, tvd = means.get(f"{family}_jsd"), means.get(f"{family}_tvd")
    return [] if jsd is None or tvd is None else [_point(series, "", jsd, tvd)]


def _point(series: str, label: str, jsd: Statistic, tvd: Statistic) -> CurvePoint:
    return CurvePoint(series, label, jsd.mean, tvd.mean, tvd.ci95, jsd.ci95, jsd.n)


def _frontier(means: dict[str, Statistic]) -> list[CurvePoint]:
    """At each ε, what the output may move by at most."""
    found = []
    for name, jsd in means.items():
        start, _, key = name.partition("@")
        if start == "frontier_jsd":
            found.append((float(key), jsd))
    return [
        CurvePoint(FRONTIER, f"ε {key:g}", jsd.mean, key, None, jsd.ci95, jsd.n)
        for key, jsd in sorted(found, key=lambda pair: pair[0])
    ]


def penalty_curve(
    points: Iterable[CurvePoint], *, published: tuple[float, float] | None = None
) -> Chart | None:
    """What moving attention costs: output change against distance of attention.

    Args:
        points: as :func:`curve_points` gives them.
        published: (JSD, TVD) of a published adversary, in our units.

    Returns:
        None without a point that moves the output.
    """
    points = [CurvePoint(*point) for point in points]
    drawn = [p for p in points if p.tvd == p.tvd and p.series != CEILING]
    if not drawn:
        return None
    series = [_series(name, drawn) for name in dict.fromkeys(p.series for p in drawn)]
    if published is not None:
        jsd, tvd = published
        series.append(Series(PUBLISHED, (jsd,), (tvd,)))
    ceiling = [p for p in points if p.series == CEILING]
    return Chart(
        key="penalty_curve",
        title="How far attention moves, and what that does to the output",
        sentences=_sentences(drawn, ceiling),
        source="Wiegreffe & Pinter 2019, Figure 5",
        kind="points",
        x_label="JSD from the base's attention, nats (mean)",
        y_label="output change, total variation (mean over texts)",
        series=tuple(series),
        references=tuple(Reference(CEILING, p.jsd, "x") for p in ceiling),
        x_range=(0.0, 0.7),
    )


def curve_of(report: RetrainingResult) -> Chart | None:
    """The curve of retrained models, with the adversary that was published on their data."""
    found = published_point(report.dataset.published_as)
    at = None
    if found and not isinstance(found[0].tvd, str):
        at = found[0].jsd, found[0].tvd
    return penalty_curve(curve_points(report.statistics), published=at)


def _series(name: str, points: Sequence[CurvePoint]) -> Series:
    own = [p for p in points if p.series == name]
    labels = [p.label for p in own if p.label]
    span = f" ({labels[0]} to {labels[-1].split()[-1]})" if len(labels) > 1 else ""
    if len(labels) == 1:
        span = f" ({labels[0]})"
    ends = [p.tvd_interval or (math.nan, math.nan) for p in own]
    has_bars = any(p.tvd_interval for p in own)
    return Series(
        name + span,
        tuple(p.jsd for p in own),
        tuple(p.tvd for p in own),
        tuple(low for low, _ in ends) if has_bars else (),
        tuple(high for _, high in ends) if has_bars else (),
        tuple(p.n for p in own) if all(p.n for p in own) else (),
        joined=name in JOINED and len(own) > 1,
    )


def _sentences(drawn: Sequence[CurvePoint], ceiling: Sequence[CurvePoint]) -> tuple[str, ...]:
    """How far each way goes at most, and what that costs."""
    parts = []
    for name in dict.fromkeys(p.series for p in drawn):
        p = max((p for p in drawn if p.series == name), key=lambda p: p.jsd)
        which = f" ({p.label})" if p.label else ""
        jsd = markdown.interval(p.jsd, p.jsd_interval, digits=2)
        tvd = markdown.interval(p.tvd, p.tvd_interval, digits=2)
        at_most = "at most " if name == FRONTIER else ""
        parts.append(f"{name}{which} {jsd}, moving the output by {at_most}{tvd}")
    n = max(p.n for p in drawn)
    texts = f" (means over {n} texts)" if n else ""
    limit = f"; {CEILING} than {ceiling[0].jsd:.2f}" if ceiling else ""
    farthest = f"Farthest from the base's attention by JSD{texts}: {'; '.join(parts)}{limit}."
    return (*_ways(drawn), farthest, *_reading(drawn))


def _ways(drawn: Sequence[CurvePoint]) -> list[str]:
    """What is trained and what is not, before distances of both are compared."""
    found = {p.series for p in drawn}
    said = []
    if found & {SEARCH, FRONTIER}:
        said.append(
            "Search and exact frontier (the farthest attention that moves the output by "
            "at most ε) move attention within the base's own states, without training."
        )
    if found & {ADVERSARY, SEEDS}:
        said.append("Trained adversaries and other seeds learn states of their own.")
    return said


def _reading(drawn: Sequence[CurvePoint]) -> list[str]:
    """How the drawing is to be read, as far as it has the points for that."""
    said = []
    if sum(p.series == ADVERSARY for p in drawn) >= MIN_CURVE:
        said.append(
            "A curve of adversaries that rises late says that attention can be trained "
            "to look elsewhere with the same output."
        )
    if any(p.series == SEEDS for p in drawn):
        said.append("The distance to other seeds is what training alone changes.")
    return said
