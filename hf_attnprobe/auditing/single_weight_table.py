"""What erasing the largest weight did beside another, by how much larger it was.

Pure: rows in, lines out.
"""

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.statistics.summary import js_by_gap


TITLE = (
    "ΔJS by Δα, over texts (as the figure of Serrano & Smith 2019): how much farther the "
    "output moves without the largest weight than without the other one (nats), by how "
    "much larger that weight is:"
)
READING = (
    "Were weights a ranking by importance, ΔJS would be above 0 and grow with Δα. In the "
    "paper it is seldom below 0, and near 0 unless Δα is large."
)


def delta_table(rows: pd.DataFrame) -> list[str]:
    """ΔJS in bins of Δα, of the audit of one head."""
    if not len(rows):
        return []
    wanted = rows[rows.statistic.isin(["delta_js", "delta_attention"])]
    wide = wanted.pivot_table(index="example_id", columns="statistic", values="value")
    if not {"delta_js", "delta_attention"} <= set(wide):
        return []
    table = [
        [
            texts.name,
            texts.n,
            markdown.interval(texts.median, texts.quartiles),
            f"{texts.negative:.1%}",
        ]
        for texts in js_by_gap(wide.delta_attention, wide.delta_js)
    ]
    head = ["Δα", "texts", "ΔJS, median [quartiles]", "ΔJS below 0"]
    return ["", TITLE, "", *markdown.table(head, table), "", READING]
