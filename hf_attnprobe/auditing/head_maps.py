"""Maps of single heads, and charts of groups of heads. Pure: statistics and rows in.

Whoever reads a map looks for its largest number, so its intervals hold for all heads at
once; see :func:`hf_attnprobe.auditing.heads.head_intervals`.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.charts import series_of_means
from hf_attnprobe.auditing.heads import (
    ALL,
    EVERYWHERE,
    MEASURES,
    Heads,
    Measure,
    Place,
    at_places,
    head_name,
    heads_of,
)
from hf_attnprobe.charts.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.statistics.wording import CLASSES, Words


# --- maps: layers down, heads across --------------------------------------------------


def head_maps(
    statistics: Sequence[Statistic], rows: Rows | pd.DataFrame, words: Words = CLASSES
) -> tuple[HeatMap, ...]:
    """A map of every statistic of ``MEASURES`` that more than one head has.

    Args:
        statistics: of an audit.
        rows: of the same audit; without them no head has an interval.
        words: of the kind of prediction.
    """
    known = {(s.layer, s.head) for s in statistics if min(s.layer, s.head) >= 0}
    if len(known) < 2:
        return ()
    sides = [range(1 + max(place[k] for place in known)) for k in (0, 1)]
    rows = Rows.of(rows)
    found = {name: heads_of(statistics, rows, name, m.less) for name, m in MEASURES.items()}
    return tuple(
        _map(name, heads, sides, words) for name, heads in found.items() if len(heads.means) > 1
    )


def _map(name: str, heads: Heads, sides: Sequence[range], words: Words) -> HeatMap:
    measure = MEASURES[name]
    layers, numbers = map(tuple, sides)
    nan = float("nan")

    def grid(by_head: Mapping[Place, float]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(by_head.get((k, h), nan) for h in numbers) for k in layers)

    low, high = ({p: ends[k] for p, ends in heads.intervals.items()} for k in (0, 1))
    return HeatMap(
        key=f"heads_{name.replace('@', '_')}",
        title=measure.title,
        finding=_map_finding(measure, heads, words),
        source=measure.source,
        values=grid(heads.means),
        low=grid(low) if low else (),
        high=grid(high) if high else (),
        value_label=words.fill(measure.label),
        layers=layers,
        heads=numbers,
        centre=measure.centre,
    )


def _map_finding(measure: Measure, heads: Heads, words: Words) -> str:
    """The head with the largest value, its interval, and how many heads surely count."""
    n, n_known, foremost = len(heads.means), len(heads.intervals), heads.ranked[0]
    named = f"{head_name(foremost)} (layer.head, from 0)"
    most = words.fill(measure.most, head=named, value=heads.said(foremost))
    if not n_known:
        return (
            f"Of {n} heads tested, {most}. There are too few texts ({heads.n_texts}) for "
            "intervals, so which heads count cannot be said."
        )
    of = "" if n_known == n else f" of the {n_known} with {MIN_TEXTS} texts or more"
    return (
        f"Of {n} heads tested, {most}. Surely at {measure.threshold:.2f} or more, from where on we "
        f"count a head, are {len(heads.surely(measure.threshold))}{of} (95% intervals that hold "
        f"for all heads at once; {heads.n_texts})."
    )


# --- groups of heads edited at once, beside single heads ------------------------------


WHOLE = "all attention"


def group_charts(
    statistics: Sequence[Statistic], rows: Rows | pd.DataFrame, words: Words = CLASSES
) -> tuple[Chart, ...]:
    """Groups of heads edited at once, beside the largest single head of each.

    Args:
        statistics: of an audit that tested all attention or layers; there is no chart of one
            without groups.
        rows: of the same audit.
        words: of the kind of prediction.
    """
    charts = (_group_chart(name, statistics, rows, words) for name, m in MEASURES.items() if m.done)
    return tuple(chart for chart in charts if chart is not None)


def _group_chart(
    name: str, statistics: Sequence[Statistic], rows: Rows | pd.DataFrame, words: Words
) -> Chart | None:
    found = at_places(statistics, name)
    groups = {_group(p): found[p] for p in sorted(found) if p == EVERYWHERE or p[1] == ALL <= p[0]}
    heads = heads_of(statistics, rows, name)
    if not groups or (len(groups) < 2 and not heads.means):
        return None
    measure = MEASURES[name]
    series = [series_of_means("all its heads at once", groups)]
    foremost = _foremost(heads, groups)
    if foremost:
        single = {group: _estimate(heads, place) for group, place in foremost.items()}
        title = "its largest single head (interval holds for all heads at once)"
        series.append(series_of_means(title, single))
    threshold = Reference("from here on all attention matters", RULES["effect"].yes)
    return Chart(
        key=f"groups_{name}",
        title=f"Heads {measure.done} together, beside the largest single head",
        sentences=(_group_finding(measure, groups, heads),),
        source=measure.source.replace("for each head", "for groups of heads"),
        kind="dots",
        x_label="heads edited",
        y_label=f"change of the output ({words.measured})",
        series=tuple(series),
        references=(threshold,) if name == "median_tvd" else (),
        y_range=(0.0, _top(series)),
    )


def _top(series: Sequence[Series]) -> float:
    """Where the axis ends: above all bars."""
    return max((end for s in series for end in (*s.y, *s.high) if end == end), default=1.0) or 1.0


def _group(place: Place) -> str:
    """
    >>> _group((-1, -1)), _group((3, -1))
    ('all attention', 'layer 3')
    """
    return WHOLE if place == EVERYWHERE else f"layer {place[0]}"


def _foremost(heads: Heads, groups: Mapping[str, Statistic]) -> dict[str, Place]:
    """The head with the largest mean in each group."""
    upwards = sorted(heads.means, key=heads.means.__getitem__)
    found = {name: place for place in upwards for name in (WHOLE, f"layer {place[0]}")}
    return {name: found[name] for name in groups if name in found}


def _estimate(heads: Heads, place: Place) -> Estimate:
    return Estimate(heads.means[place], heads.intervals.get(place), heads.n[place])


def _group_finding(measure: Measure, groups: Mapping[str, Statistic], heads: Heads) -> str:
    def moved(name: str) -> str:
        s = groups[name]
        return f"{markdown.interval(s.mean, s.ci95, digits=2)} ({s.n} texts)"

    parts = []
    layers = [name for name in groups if name != WHOLE]
    if WHOLE in groups:
        parts.append(f"{WHOLE} at once moves the output by {moved(WHOLE)}")
    if layers:
        most = max(layers, key=lambda name: groups[name].mean)
        parts.append(f"of whole layers, {most} moves it most, by {moved(most)}")
    if heads.means:
        largest = heads.ranked[0]
        parts.append(
            f"the largest single head, {head_name(largest)}, by {heads.said(largest)} "
            f"({heads.n_texts})"
        )
    return (
        f"Heads {measure.done} together: {'; '.join(parts)}. Single heads may move "
        "little because others make up for them; edits of many heads take the model "
        "outside what it was trained on."
    )
