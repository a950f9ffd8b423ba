"""The numbers of an audit as data frames."""

from collections import Counter
from collections.abc import Collection

import pandas as pd

from hf_attnprobe.audit_reports.result import AuditResult
from hf_attnprobe.statistics.rows import COLUMNS, PREDICTION, Rows


def wide_frame(rows: Rows | pd.DataFrame) -> pd.DataFrame:
    """A text per row, a statistic per column; NaN where a text has no value.

    Args:
        rows: of an audit.

    Returns:
        The index is ``example_id``. A column is called as its statistic, and
        ``test.statistic`` where several tests have one of that name. Where several
        heads or groups were tested, columns have the levels statistic, layer and head;
        what is no statistic of attention, such as ``predicted_class``, has empty ones.
    """
    rows = Rows.of(rows)
    n_tests = Counter(
        name for _, name in {column[:2] for column in rows.columns}
    )
    names = [
        f"{c[0]}.{c[1]}" if n_tests[c[1]] > 1 else c[1] for c in rows.columns
    ]
    wide = rows.wide()
    if len(rows.sites) <= 1:
        return wide.set_axis(pd.Index(names, name="statistic"), axis=1)
    places = [("", "") if c[0] == PREDICTION else c[2:] for c in rows.columns]
    levels = [(name, *place) for name, place in zip(names, places, strict=True)]
    columns = pd.MultiIndex.from_tuples(
        levels, names=["statistic", "layer", "head"]
    )
    return wide.set_axis(columns, axis=1)


def summary_frame(
    report: AuditResult, statistics: Collection[str] | None = None
) -> pd.DataFrame:
    """A statistic per row, over all texts and by predicted class.

    Args:
        report: the audit.
        statistics: names to keep, such as "median_tvd"; None keeps all.

    Returns:
        Columns test, statistic, layer, head, group, mean, ci_low, ci_high, median, std,
        n, undefined.
    """
    wanted = (
        s
        for s in report.statistics
        if statistics is None or s.statistic in statistics
    )
    return pd.DataFrame(
        [s.row() for s in wanted], columns=[*COLUMNS, *OF_TEXTS]
    )


OF_TEXTS = [
    "group",
    "mean",
    "ci_low",
    "ci_high",
    "median",
    "std",
    "n",
    "undefined",
]


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(frame: pd.DataFrame) -> str:
    """A table as CSV; ``'`` stands before a text that a spreadsheet would take for a formula.

    Names of classes and groups are whoever made the checkpoint's.
    """
    texts = {
        name: frame[name].map(_no_formula)
        for name in frame
        if frame[name].dtype.kind in "OU"
    }
    return frame.assign(**texts).to_csv(index=False)


def _no_formula(cell: object) -> object:
    return (
        f"'{cell}"
        if isinstance(cell, str) and cell.startswith(FORMULA)
        else cell
    )
