"""Compare the rows of two audits, whatever their order."""

import pandas as pd

from hf_attnprobe.statistics.rows import ROW_KEY


def index_values(rows: pd.DataFrame) -> pd.Series:
    """Return the values of rows, indexed by test, statistic, text, layer and head."""
    return rows.set_index([*ROW_KEY]).value.sort_index()


def assert_same_rows(found: pd.DataFrame, expected: pd.DataFrame, tolerance: float = 1e-6) -> None:
    """Check that two audits have the same rows, with the same values up to rounding."""
    found, expected = index_values(found), index_values(expected)
    assert len(found) and found.index.is_unique and found.index.equals(expected.index)
    differences = (found - expected).abs()
    assert differences.max() <= tolerance, differences.nlargest(5)
    # Undefined values must be undefined in both audits.
    assert found.isna().equals(expected.isna())
