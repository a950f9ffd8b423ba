"""An audit as data frames: a text per row, or a statistic per row."""

from collections.abc import Collection

import pandas as pd

from hf_attnprobe.auditing.forms.notes import controls_of, place_of
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.statistics.summary import COLUMNS, KEY, PREDICTION


def wide_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """A text per row, a statistic per column; NaN where a text has no value.

    Args:
        rows: of an audit.

    Returns:
        The index is ``example_id``. A column is called as its statistic, and
        ``test.statistic`` where several tests have one of that name. Where several
        heads or groups were tested, columns have the levels statistic, layer and head;
        what is no statistic of attention, such as ``predicted_class``, has empty ones.
    """
    rows = rows.drop_duplicates(KEY)
    names = _names(rows)
    tested = rows.test != PREDICTION
    several = len(rows[tested][["layer", "head"]].drop_duplicates()) > 1
    if not several:
        return (
            rows.assign(name=names)
            .pivot(index="example_id", columns="name", values="value")[list(names.unique())]
            .rename_axis(columns="statistic")
        )
    levels = [names]
    for level in ("layer", "head"):
        levels.append(rows[level].astype(object).where(tested, ""))
    table = rows.assign(statistic=levels[0], layer=levels[1], head=levels[2])
    order = table[["statistic", "layer", "head"]].drop_duplicates()
    wide = table.pivot(index="example_id", columns=["statistic", "layer", "head"], values="value")
    return wide[list(order.itertuples(index=False, name=None))]


def _names(rows: pd.DataFrame) -> pd.Series:
    """The columns' names: the statistic's, with its test's where that is ambiguous."""
    tests_of = rows.groupby("statistic").test.nunique()
    ambiguous = rows.statistic.map(tests_of) > 1
    return rows.statistic.where(~ambiguous, rows.test + "." + rows.statistic)


def summary_frame(report: AuditResult, statistics: Collection[str] | None = None) -> pd.DataFrame:
    """A statistic per row, over all texts and by predicted class.

    Args:
        report: the audit.
        statistics: names to keep, such as "median_tvd"; None keeps all.

    Returns:
        Columns test, statistic, layer, head, group, mean, ci_low, ci_high, median, std,
        n, undefined. Where a control was run also its mean (control), and the paired
        difference to it with its 95% interval (difference, difference_low,
        difference_high).
    """
    controls = controls_of(report)
    table = []
    for s in report.statistics:
        row = s.row()
        beside = controls.get(place_of(s))
        if beside is not None:
            row |= {
                "control": beside.control_mean,
                "difference": beside.value,
                "difference_low": beside.ci95[0],
                "difference_high": beside.ci95[1],
            }
        if statistics is None or s.statistic in statistics:
            table.append(row)
    columns = [*COLUMNS, *OF_TEXTS, *(OF_CONTROL if controls else [])]
    return pd.DataFrame(table, columns=columns)


OF_TEXTS = ["group", "mean", "ci_low", "ci_high", "median", "std", "n", "undefined"]
OF_CONTROL = ["control", "difference", "difference_low", "difference_high"]
