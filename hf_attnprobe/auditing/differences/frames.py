"""A comparison of audits as rows. Pure."""

import pandas as pd

from hf_attnprobe.auditing.differences.report import AuditComparison


def to_frame(comparison: AuditComparison) -> pd.DataFrame:
    """A row per statistic and audit behind the first, as for a CSV file."""
    rows = []
    for s in comparison.statistics:
        for number, difference in enumerate(s.differences, 1):
            if difference is None:
                continue
            rows.append(
                {
                    "first": comparison.names[0],
                    "audit": comparison.names[number],
                    "test": s.test,
                    "statistic": s.statistic,
                    "layer": s.layer,
                    "head": s.head,
                    "first_mean": difference.first,
                    "mean": difference.other,
                    "difference": difference.value,
                    "ci_low": difference.ci95[0],
                    "ci_high": difference.ci95[1],
                    "simultaneous_low": difference.simultaneous[0],
                    "simultaneous_high": difference.simultaneous[1],
                    "n": difference.n,
                    "paired": difference.paired,
                    "can_be_told": difference.can_be_told,
                }
            )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else None)
