"""Maps of single heads, and groups of heads beside them. Pure: rows in.

Whoever reads a map looks for its largest number, so its intervals hold for all heads at
once; see :mod:`hf_attnprobe.statistics.simultaneous`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.charts import series_of_means
from hf_attnprobe.charts.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.statistics.estimates import mean_estimates, simultaneous_interval
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.stopping import stopping_of, widened
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.statistics.wording import CLASSES, Words


@dataclass(frozen=True)
class Measure:
    """A number of every head that is worth a map.

    Attributes:
        title: of the map.
        does: what is done with a head, after "each".
        source: paper and section.
        threshold: from where on a head counts, in ``RULES``.
        is_effect: whether it is a change of the output.
    """

    title: str
    does: str
    source: str
    threshold: float
    is_effect: bool = True


EFFECT = RULES["head_effect"].yes
MEASURES = {
    "median_tvd": Measure(
        "Output change when one head's attention is shuffled",
        "shuffled",
        "Jain & Wallace 2019, Section 4.2.1, for each head",
        EFFECT,
    ),
    "uniform_tvd": Measure(
        "Output change when one head attends evenly",
        "set to even attention",
        "Wiegreffe & Pinter 2019, Section 3.2, for each head, without training",
        EFFECT,
    ),
    "mean_tvd": Measure(
        "Output change when one head's output is replaced by its mean",
        "replaced by its mean",
        "mean ablation, for each head",
        EFFECT,
    ),
    "resample_tvd": Measure(
        "Output change when one head's output is taken from another text",
        "replaced by that of another text",
        "resample ablation, for each head",
        EFFECT,
    ),
    "zero_tvd": Measure(
        "Output change when one head is zero-ablated",
        "zero-ablated",
        "Michel et al. 2019, for each head",
        EFFECT,
    ),
    "attention_leave_one_out_tau": Measure(
        "Rank correlation of one head's attention with leaving tokens out",
        "compared with leave-one-out",
        "Jain & Wallace 2019, Section 4.1, for each head",
        RULES["head_importance"].yes,
        is_effect=False,
    ),
    "attention_gradient_tau": Measure(
        "Rank correlation of one head's attention with gradients",
        "compared with gradients",
        "Jain & Wallace 2019, Section 4.1, for each head",
        RULES["head_importance"].yes,
        is_effect=False,
    ),
}
"""By statistic, in the order of the maps."""


@dataclass(frozen=True)
class Heads:
    """A statistic of single heads: means and intervals by (layer, head)."""

    means: dict[tuple[int, int], float]
    low: dict[tuple[int, int], float]
    high: dict[tuple[int, int], float]
    sizes: tuple[int, int]

    @property
    def n_texts(self) -> str:
        fewest, most = self.sizes
        return f"{most} texts" if fewest == most else f"{fewest} to {most} texts a head"


def by_statistic(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each statistic that has a map."""
    if not len(rows):
        return {}
    wanted = rows[rows.statistic.isin(list(MEASURES))]
    return {str(name): part for name, part in wanted.groupby("statistic", sort=False)}


def by_place(rows: pd.DataFrame) -> pd.DataFrame:
    """Texts by (layer, head)."""
    rows = rows.drop_duplicates(["example_id", "layer", "head"])
    return rows.set_index(["example_id", "layer", "head"]).value.unstack([1, 2])


def single_heads(rows: pd.DataFrame, seed: int) -> Heads:
    """Means of one statistic's single heads, with simultaneous intervals.

    Heads with fewer than ``MIN_TEXTS`` texts have no interval.
    """
    single = rows[(rows.layer >= 0) & (rows["head"] >= 0)]
    if single.value.isna().all():  # as of texts with one token each
        return Heads({}, {}, {}, (0, 0))
    wide = by_place(single).sort_index(axis=1)
    values = wide.to_numpy(dtype=np.float64)
    sizes = (~np.isnan(values)).sum(0)
    wide, values, sizes = wide.loc[:, sizes > 0], values[:, sizes > 0], sizes[sizes > 0]
    places = [(int(layer), int(head)) for layer, head in wide.columns]
    means = dict(zip(places, np.nanmean(values, 0).tolist(), strict=True))
    enough = sizes >= MIN_TEXTS
    low = dict.fromkeys(places, float("nan"))
    high = dict(low)
    if enough.any():
        ordinary = simultaneous_interval(values[:, enough], seed=seed)
        ends = allowing_for_stopping(ordinary, wide.loc[:, enough], rows).T.tolist()
        tested = [place for place, ok in zip(places, enough, strict=True) if ok]
        for place, (first, last) in zip(tested, ends, strict=True):
            low[place], high[place] = first, last
    return Heads(means, low, high, (int(sizes.min()), int(sizes.max())))


def allowing_for_stopping(
    ordinary: np.ndarray, values: pd.DataFrame, rows: pd.DataFrame
) -> np.ndarray:
    """Intervals of heads or groups, wider where the audit stopped, [2, columns].

    Args:
        values: texts by (layer, head).
        rows: of one statistic, which the values are from.
    """
    stopping = stopping_of(rows)
    if stopping is None:
        return ordinary
    bounds = [stopping.bounds(str(rows.statistic.iloc[0]))] * values.shape[1]
    of_heads = min(map(min, values.columns)) >= 0
    together = max(values.shape[1], stopping.n_heads) if of_heads else 1
    return widened(ordinary, values, bounds, stopping, together=together)


def head_name(place: tuple[int, int]) -> str:
    """A head as reports call it: layer and head, both from 0.

    >>> head_name((5, 3))
    '5.3'
    """
    return f"{place[0]}.{place[1]}"


def with_interval(heads: Heads, place: tuple[int, int]) -> str:
    """The mean of a head with its interval, where it has one."""
    ends = heads.low[place], heads.high[place]
    return markdown.interval(heads.means[place], ends if ends[0] == ends[0] else None, digits=2)


# --- maps: layers down, heads across --------------------------------------------------


def head_maps(rows: pd.DataFrame, *, seed: int = 0, words: Words = CLASSES) -> tuple[HeatMap, ...]:
    """A map of every statistic of ``MEASURES`` that more than one head has.

    Args:
        rows: of an audit.
        seed: of the intervals, which are simultaneous over all heads of a map.
        words: of the kind of prediction.
    """
    found = by_statistic(rows)
    maps = []
    for statistic in MEASURES:
        if statistic in found:
            heads = single_heads(found[statistic], seed)
            if len(heads.means) > 1:
                maps.append(_map(statistic, heads, _places(rows), words))
    return tuple(maps)


def _places(rows: pd.DataFrame) -> tuple[list[int], list[int]]:
    """All layers and heads with any number, those among them that were only screened."""
    single = rows[(rows.layer >= 0) & (rows["head"] >= 0)]
    most = int(single.layer.max()), int(single["head"].max())
    return list(range(most[0] + 1)), list(range(most[1] + 1))


def _map(
    statistic: str, heads: Heads, places: tuple[list[int], list[int]], words: Words
) -> HeatMap:
    measure = MEASURES[statistic]
    layers, numbers = places

    def grid(by_head: dict[tuple[int, int], float]) -> tuple[tuple[float, ...], ...]:
        nan = float("nan")
        return tuple(tuple(by_head.get((k, h), nan) for h in numbers) for k in layers)

    known = any(value == value for value in heads.low.values())
    return HeatMap(
        key=f"heads_{statistic}",
        title=measure.title,
        finding=_map_finding(measure, heads, words),
        source=measure.source,
        values=grid(heads.means),
        low=grid(heads.low) if known else (),
        high=grid(heads.high) if known else (),
        value_label=words.measured if measure.is_effect else "mean Kendall τ",
        layers=tuple(layers),
        heads=tuple(numbers),
        centre=None if measure.is_effect else 0.0,
    )


def _map_finding(measure: Measure, heads: Heads, words: Words) -> str:
    """The largest head with its interval, and how many surely count."""
    largest = max(heads.means, key=lambda place: heads.means[place])
    value = with_interval(heads, largest)
    n = len(heads.means)
    if measure.is_effect:
        most = (
            f"Of {n} heads tested, each {measure.does} alone, head {head_name(largest)} "
            f"(layer.head, from 0) moves the output most: {value} ({words.distance})"
        )
    else:
        most = (
            f"Of {n} heads tested, each {measure.does}, head {head_name(largest)} (layer.head, "
            f"from 0) agrees most: mean τ {value}, where 0 is chance and 1 the same order"
        )
    n_known = sum(low == low for low in heads.low.values())
    if not n_known:
        return (
            f"{most}. There are too few texts ({heads.n_texts}) for intervals, so which "
            "heads count cannot be said."
        )
    count = sum(low >= measure.threshold for low in heads.low.values())
    of = "" if n_known == n else f" of the {n_known} with {MIN_TEXTS} texts or more"
    return (
        f"{most}. Surely at {measure.threshold:.2f} or more, from where on we count a "
        f"head, are {count}{of} (95% intervals that hold for all heads at once; "
        f"{heads.n_texts})."
    )


# --- groups of heads edited at once, beside single heads ------------------------------


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
    heads = single_heads(rows, seed)
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
        sentences=(_group_finding(measure, together, heads),),
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


def _whole_or_layer(place: tuple[int, int]) -> str:
    """
    >>> _whole_or_layer((-1, -1)), _whole_or_layer((3, -1))
    ('all attention', 'layer 3')
    """
    return ALL if place == WHOLE else f"layer {place[0]}"


def _together(groups: pd.DataFrame) -> Series:
    wide = by_place(groups).sort_index(axis=1)
    names = [_whole_or_layer((int(k), int(h))) for k, h in wide.columns]
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
