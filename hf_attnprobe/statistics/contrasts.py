"""A model beside another one on the same texts, such as its randomised control.

Every text is a pair: what a statistic says of it with the model, and with the other
one. Pure: two data frames in, paired differences out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.bootstrap import mean_interval
from hf_attnprobe.statistics.shares import is_share, paired_share_interval
from hf_attnprobe.statistics.summary import groups_of_texts, one_row_per_text


DRAW = "draw"
"""The column of a control's rows that numbers its draws, where there are several."""


def draws_of(control: pd.DataFrame | None) -> list[pd.DataFrame]:
    """The rows of each draw of a control; none without one."""
    if control is None:
        return []
    if DRAW not in control:
        return [control]
    return [rows.drop(columns=DRAW) for _, rows in control.groupby(DRAW)]


def mean_of_draws(control: pd.DataFrame) -> pd.DataFrame:
    """A control's rows with every value the mean over its draws."""
    if DRAW not in control:
        return control
    key = [name for name in control.columns if name not in (DRAW, "value")]
    return control.groupby(key, as_index=False, sort=False).value.mean()


@dataclass(frozen=True)
class Contrast:
    """One statistic of two audits, over the texts in which both have a value.

    Attributes:
        test: the faithfulness test it is of.
        statistic: its name, or ``name@key``.
        layer: where it was measured; negative for groups of heads and the whole model.
        head: as ``layer``.
        group: ``all`` texts, or the class that the first model predicts for them.
        mean: of the first model.
        control_mean: of the other one.
        difference: mean over texts of the first one's value minus the other's.
        ci95: 95% interval of the difference, of a difference of two shares that of
            Bonet & Price (2012).
        n: texts in which both have a value; with none, all numbers are NaN.
    """

    test: str
    statistic: str
    layer: int
    head: int
    group: str
    mean: float
    control_mean: float
    difference: float
    ci95: tuple[float, float]
    n: int


def contrast(
    rows: pd.DataFrame,
    other: pd.DataFrame,
    label_names: Sequence[str],
) -> tuple[Contrast, ...]:
    """Paired differences of every statistic that both sets of rows have.

    Args:
        rows: of the model, as :func:`~hf_attnprobe.storage.rows.read_rows` gives them; the groups are
            those of its predictions.
        other: of the other model, paired by ``example_id``; a text that only one of
            the two has is left out.
        label_names: names of the classes.

    Returns:
        In the order of test, statistic, layer and head, each for ``all`` texts and then
        for the predicted classes, except classes that are never predicted.
    """
    first, second = one_row_per_text(rows), one_row_per_text(mean_of_draws(other))
    texts = first.index.intersection(second.index)
    columns = first.columns.intersection(second.columns).sort_values()
    first, second = first.loc[texts, columns], second.loc[texts, columns]
    by_group = [
        _contrasts(members, second.loc[members.index], group)
        for group, members in groups_of_texts(rows, first, label_names).items()
        if len(members)
    ]
    return tuple(c for of_column in zip(*by_group, strict=True) for c in of_column)


def find_contrast(
    contrasts: Sequence[Contrast],
    name: str,
    *,
    group: str = "all",
    layer: int = 0,
    head: int = 0,
) -> Contrast | None:
    """The contrast of a statistic, or None where no text has both values."""
    wanted = name, group, layer, head
    for c in contrasts:
        if c.n and (c.statistic, c.group, c.layer, c.head) == wanted:
            return c
    return None


def paired_intervals(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """95% intervals of the mean differences of columns, [2, columns].

    Args:
        values: [texts, columns]; NaN where a text has no value.
        others: of the other model, the same texts and columns.
    """
    differences = values - others
    bounds = mean_interval(differences)
    shares = is_share(values) & is_share(others)
    bounds[:, shares] = paired_share_interval(differences[:, shares])
    return bounds


def _contrasts(first: pd.DataFrame, second: pd.DataFrame, group: str) -> list[Contrast]:
    """One contrast per column."""
    values = first.to_numpy(dtype=np.float64)
    others = second.to_numpy(dtype=np.float64)
    differences = values - others
    intervals = paired_intervals(values, others).T.tolist()
    found = []
    for k, (test, statistic, layer, head) in enumerate(first.columns):
        paired = ~np.isnan(differences[:, k])
        mean, control_mean, difference = (
            float(x[paired, k].mean()) if paired.any() else float("nan")
            for x in (values, others, differences)
        )
        low, high = intervals[k]
        found.append(
            Contrast(
                test=test,
                statistic=statistic,
                layer=int(layer),
                head=int(head),
                group=group,
                mean=mean,
                control_mean=control_mean,
                difference=difference,
                ci95=(low, high),
                n=int(paired.sum()),
            )
        )
    return found
