"""Intervals of an audit that may stop before all texts are done.

Its rows carry a mark: how many texts there are in all, and the seed of the fixed random
order in which they are taken. Of every head those rows count that are the first of that
order without a gap, however the work was batched, killed or shared out, so that what is
there is a random sample at whatever moment one looks.

An interval is then the hull of two: the ordinary one, as a full audit would give for so
many texts; and the confidence sequence of the mean over all texts, which is valid
however the audit decided to stop. So it covers what the full audit would have found, and
is never narrower than a full audit's of the same texts. Once all texts are done it is
the ordinary one.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.confidence_sequences import LEVEL, confidence_sequence


MARK = "stopping"
Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
CORRELATION: Bounds = (-1.0, 1.0)
JSD: Bounds = (0.0, float(np.log(2)))
OF_OUTPUT = {
    "median_tvd": SHARE,
    "median_tvd_of": SHARE,
    "max_tvd": SHARE,
    "largest_change": SHARE,
    "largest_drawn_change": SHARE,
    "uniform_tvd": SHARE,
    "uniform_tvd_of": SHARE,
    "zero_tvd": SHARE,
    "mean_tvd": SHARE,
    "resample_tvd": SHARE,
    "comprehensiveness": CORRELATION,
    "sufficiency": CORRELATION,
}
"""Changes of the output; of a predicted number they have no bound."""
BY_NAME = {
    **OF_OUTPUT,
    "max_attention": SHARE,
    "special_attention": SHARE,
    "median_share_of_log_odds": SHARE,
    "attention_leave_one_out_agreement": CORRELATION,
    "attention_leave_one_out_precision": SHARE,
    "flip_possible": SHARE,
    "share_of_largest": SHARE,
    "share_of_largest_upper": SHARE,
    "significant_by_chance": SHARE,
    "top_overlap_by_chance": SHARE,
    "fraction_to_flip": SHARE,
    "fraction_to_lose_lead": SHARE,
    "never_flips": SHARE,
    "minimal_fraction": SHARE,
    "probability_mass_removed": SHARE,
    "no_set_flips": SHARE,
    "no_order_flips": SHARE,
    "auprc": SHARE,
    "average_precision": SHARE,
    "token_f1": SHARE,
    "iou_f1": SHARE,
    "attention_on_rationale": SHARE,
    "attention_share": SHARE,
    "epsilon_max_jsd": JSD,
    "epsilon_max_jsd_upper": JSD,
    "largest_jsd": JSD,
}
BY_ENDING = {
    "_tau": CORRELATION,
    "_pearson": CORRELATION,
    "_flip": SHARE,
    "_significant": SHARE,
    "_p_value": SHARE,
    "_top_overlap": SHARE,
}
WATCHED = (
    "attention_leave_one_out_tau",
    "median_tvd",
    "uniform_tvd",
    "zero_tvd",
    "mean_tvd",
    "resample_tvd",
    "share_of_largest@0.01",
    "fraction_to_flip@attention",
    "fraction_to_flip@random",
    "comprehensiveness@attention",
    "comprehensiveness@random",
    "auprc",
)
"""What the verdict and the tables of heads rest on, as far as it is bounded."""


@dataclass(frozen=True)
class Stopping:
    """What intervals need to know of an audit that may stop early.

    Attributes:
        n_texts: all texts of the audit.
        seed: of their order.
        n_heads: single heads that it may look at, which share out the doubt.
        is_number: whether a number is predicted, so that changes of it have no bound.
    """

    n_texts: int
    seed: int
    n_heads: int = 1
    is_number: bool = False

    def bounds(self, statistic: str) -> Bounds | None:
        """The least and the largest value; None where there is no bound that is known."""
        name = statistic.partition("@")[0]
        if self.is_number and name in OF_OUTPUT:
            return None
        endings = (b for ending, b in BY_ENDING.items() if name.endswith(ending))
        return BY_NAME.get(name) or next(endings, None)


def marked(rows: pd.DataFrame, stopping: Stopping) -> pd.DataFrame:
    """The same rows with the mark, which their selections keep."""
    rows = rows.copy(deep=False)
    rows.attrs = {**rows.attrs, MARK: asdict(stopping)}
    return rows


def stopping_of(rows: pd.DataFrame) -> Stopping | None:
    """The mark of rows; None of those of an ordinary audit."""
    mark = rows.attrs.get(MARK)
    return None if mark is None else Stopping(**mark)


def random_order(ids: Iterable[int], seed: int) -> list[int]:
    """The ids in an order that depends on the seed and on nothing else.

    By another hash than the one that draws a sample or halves the texts.

    >>> random_order(range(6), 0)
    [0, 4, 1, 3, 5, 2]
    """

    def place(example_id: int) -> bytes:
        return hashlib.sha256(f"order {seed} of {example_id}".encode()).digest()

    return sorted(set(ids), key=place)


def without_gaps(rows: pd.DataFrame, order: Sequence[int]) -> pd.DataFrame:
    """Of every test and head the rows of the first texts of the order, up to a gap.

    Args:
        rows: of an audit.
        order: all ids, as :func:`random_order` gives them.
    """
    where = ["test", "layer", "head"]
    ranks = rows.example_id.map({k: rank for rank, k in enumerate(order)})
    pairs = rows[where].assign(rank=ranks).dropna().drop_duplicates()
    pairs = pairs.sort_values("rank")
    pairs = pairs[pairs["rank"] == pairs.groupby(where).cumcount()]
    n_first = pairs.groupby(where)["rank"].count().rename("n_first")
    allowed = rows[where].merge(n_first, "left", left_on=where, right_index=True)
    return rows[(ranks < allowed.n_first).to_numpy()]


def rows_that_count(
    rows: pd.DataFrame, facts: Mapping[str, Any] | None, ids: Iterable[int]
) -> pd.DataFrame:
    """Of an audit that may have stopped the rows without gaps, marked.

    Args:
        facts: "stopping" of a report's provenance; None of an ordinary audit.
        ids: of all its texts.
    """
    if facts is None or not len(rows):
        return rows
    stopping = Stopping(**facts["order"])
    return marked(without_gaps(rows, random_order(ids, stopping.seed)), stopping)


def widened(
    ordinary: np.ndarray,
    values: pd.DataFrame,
    bounds: Sequence[Bounds | None],
    stopping: Stopping | None,
    *,
    together: int = 1,
) -> np.ndarray:
    """Ordinary intervals of columns made valid in spite of stopping.

    Args:
        ordinary: low and high, [2, columns].
        values: [texts, columns], by example id; NaN where a text has none.
        bounds: of each column; one without keeps its ordinary interval.
        stopping: None leaves everything as it is.
        together: so many intervals are to hold at once.

    Returns:
        The hulls, [2, columns].
    """
    if stopping is None or not len(values):
        return ordinary
    order = random_order(values.index, stopping.seed)
    drawn = values.reindex(order).to_numpy(dtype=np.float64)
    unfinished = (~np.isnan(drawn)).sum(0) < stopping.n_texts
    low, high = np.array(ordinary, dtype=np.float64)
    level = 1 - (1 - LEVEL) / together
    for kind in {b for b in bounds if b is not None}:
        these = np.array([b == kind for b in bounds]) & unfinished
        ends = confidence_sequence(drawn[:, these], stopping.n_texts, bounds=kind, level=level)
        low[these] = np.fmin(low[these], ends[0])
        high[these] = np.fmax(high[these], ends[1])
    return np.stack([low, high])


def difference(one: Bounds | None, other: Bounds | None) -> Bounds | None:
    """The bounds of a value minus another.

    >>> difference((0.0, 1.0), (-1.0, 1.0))
    (-1.0, 2.0)
    """
    if one is None or other is None:
        return None
    return one[0] - other[1], one[1] - other[0]


def watched(statistics: Iterable[str], stopping: Stopping) -> list[str]:
    """Of a test's statistics those whose intervals are to be narrow.

    What the verdict rests on; of a test that has none of these all that have bounds.
    """
    bounded = [name for name in statistics if stopping.bounds(name) is not None]
    return [name for name in bounded if name in WATCHED] or bounded
