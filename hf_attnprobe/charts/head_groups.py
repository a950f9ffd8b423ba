"""Groups of heads edited at once, beside single heads. Pure: rows in."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.charts.chart import Chart, Reference, Series
from hf_attnprobe.charts.evidence import series_of_means
from hf_attnprobe.charts.heads import (
    MEASURES,
    Heads,
    Measure,
    allowing_for_stopping,
    by_place,
    by_statistic,
    head_name,
    heads_of,
    with_interval,
)
from hf_attnprobe.statistics.estimates import mean_estimates
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.statistics.wording import CLASSES, Words


WHOLE = (-1, -1)  # layer and head of all attention
ALL = "all attention"


def group_charts(rows: pd.DataFrame, *, seed: int = 0, words: Words = CLASSES) -> tuple[Chart, ...]:
    """Groups of heads edited at once, beside the largest single head of each.

    Args:
        rows: of an audit that tested all attention or layers; there is no chart of a
            statistic without groups.
        seed: of the intervals.
        words: of the kind of prediction.
    """
    found = by_statistic(rows)
    charts = (
        _group_chart(statistic, found[statistic], seed, words)
        for statistic, measure in MEASURES.items()
        if statistic in found and measure.is_effect
    )
    return tuple(chart for chart in charts if chart is not None)


def _group_chart(statistic: str, rows: pd.DataFrame, seed: int, words: Words) -> Chart | None:
    groups = rows[(rows["head"] < 0) & (rows.layer >= -1)]
    if groups.empty:
        return None
    together = _together(groups)
    heads = heads_of(rows, seed)
    if len(together.x) < 2 and not heads.means:
        return None
    measure = MEASURES[statistic]
    series = [together, *_largest(heads, together.x)]
    references: tuple[Reference, ...] = ()
    if statistic == "median_tvd":
        threshold = RULES["assignment"].yes
        references = (Reference("from here on all attention matters", threshold),)
    return Chart(
        key=f"groups_{statistic}",
        title=f"Heads {measure.does} together, beside the largest single head",
        finding=_group_finding(measure, together, heads),
        source=measure.source.replace("for each head", "for groups of heads"),
        kind="dots",
        x_label="heads edited",
        y_label=f"change of the output ({words.measured})",
        series=tuple(series),
        references=references,
        y_range=(0.0, _top(series)),
    )


def _top(series: Sequence[Series]) -> float:
    """Where the axis ends: above all bars."""
    ends = [end for s in series for end in (*s.y, *s.high) if end == end]
    return max(ends, default=1.0) or 1.0


def place_name(place: tuple[int, int]) -> str:
    """
    >>> place_name((-1, -1)), place_name((3, -1))
    ('all attention', 'layer 3')
    """
    return ALL if place == WHOLE else f"layer {place[0]}"


def _together(groups: pd.DataFrame) -> Series:
    wide = by_place(groups).sort_index(axis=1)
    names = [place_name((int(k), int(h))) for k, h in wide.columns]
    means = mean_estimates(wide.to_numpy(dtype=np.float64))
    ordinary = np.array([m.ci95 or (np.nan, np.nan) for m in means]).T
    ends = allowing_for_stopping(ordinary, wide, groups).T.tolist()
    means = [
        m if m.ci95 is None else replace(m, ci95=(low, high))
        for m, (low, high) in zip(means, ends, strict=True)
    ]
    return series_of_means("all its heads at once", dict(zip(names, means, strict=True)))


def _largest(heads: Heads, names: tuple) -> Iterator[Series]:
    """The head of the largest mean of each group; nothing without single heads."""
    if not heads.means:
        return
    chosen: dict[str, tuple[int, int]] = {}
    for place, mean in heads.means.items():
        for name in (ALL, f"layer {place[0]}"):
            if name in names and mean > heads.means.get(chosen.get(name, WHOLE), -1.0):
                chosen[name] = place
    shown = [name for name in names if name in chosen]
    places = [chosen[name] for name in shown]
    yield Series(
        "its largest single head (interval holds for all heads at once)",
        tuple(shown),
        tuple(heads.means[p] for p in places),
        tuple(heads.low[p] for p in places),
        tuple(heads.high[p] for p in places),
    )


def _group_finding(measure: Measure, together: Series, heads: Heads) -> str:
    def moved(k: int) -> str:
        ends = together.low[k], together.high[k]
        value = markdown.interval(together.y[k], ends, digits=2)
        return f"{value} ({together.n[k]} texts)"

    parts = []
    whole = [k for k, name in enumerate(together.x) if name == ALL]
    layers = [k for k, name in enumerate(together.x) if name != ALL]
    if whole:
        parts.append(f"{ALL} at once moves the output by {moved(whole[0])}")
    if layers:
        k = max(layers, key=lambda k: together.y[k])
        parts.append(f"of whole layers, {together.x[k]} moves it most, by {moved(k)}")
    if heads.means:
        largest = max(heads.means, key=lambda place: heads.means[place])
        parts.append(
            f"the largest single head, {head_name(largest)}, by "
            f"{with_interval(heads, largest)} ({heads.n_texts})"
        )
    return (
        f"Heads {measure.does} together: {'; '.join(parts)}. Single heads may move "
        "little because others make up for them; edits of many heads take the model "
        "outside what it was trained on."
    )
