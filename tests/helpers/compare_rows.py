"""Rows of two audits are the same, whatever their order: equal places, values to rounding."""

import pandas as pd

from hf_attnprobe.statistics.rows import KEY


def by_place(rows: pd.DataFrame) -> pd.Series:
    """The values by test, statistic, text, layer and head."""
    return rows.set_index([*KEY]).value.sort_index()


def assert_same(found: pd.DataFrame, expected: pd.DataFrame, tolerance: float = 1e-6) -> None:
    """Checks that two audits have the same rows with the same values, undefined ones too."""
    found, expected = by_place(found), by_place(expected)
    assert len(found) and found.index.is_unique and found.index.equals(expected.index)
    worst = (found - expected).abs()
    assert worst.max() <= tolerance, worst.nlargest(5)
    assert found.isna().equals(expected.isna())
