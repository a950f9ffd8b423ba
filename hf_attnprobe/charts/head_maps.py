"""Layer × head maps. Pure: rows in.

Whoever reads a map looks for its largest number, so its intervals hold for all heads at
once; see :mod:`hf_attnprobe.statistics.estimates`.
"""

import pandas as pd

from hf_attnprobe.charts.chart import HeatMap
from hf_attnprobe.charts.heads import (
    MEASURES,
    Heads,
    Measure,
    by_statistic,
    head_name,
    heads_of,
    with_interval,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.wording import CLASSES, Words


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
            heads = heads_of(found[statistic], seed)
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
        finding=_finding(measure, heads, words),
        source=measure.source,
        values=grid(heads.means),
        low=grid(heads.low) if known else (),
        high=grid(heads.high) if known else (),
        value_label=words.measured if measure.is_effect else "mean Kendall τ",
        layers=tuple(layers),
        heads=tuple(numbers),
        centre=None if measure.is_effect else 0.0,
    )


def _finding(measure: Measure, heads: Heads, words: Words) -> str:
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
