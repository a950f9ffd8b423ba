"""Numbers of single heads, with intervals that hold for all heads at once. Pure."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.statistics.estimates import simultaneous_interval
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.stopping import stopping_of, widened
from hf_attnprobe.statistics.verdicts import RULES


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


def heads_of(rows: pd.DataFrame, seed: int) -> Heads:
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
