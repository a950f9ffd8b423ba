"""What is said of many heads: planted numbers in, words out, recomputed with plain numpy."""

import numpy as np
import pandas as pd
import scipy.stats

from hf_attnprobe.documents.markdown import render_markdown_blocks
from hf_attnprobe.faithfulness.head_ablation import PruneCurve
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.head_tables import (
    build_prune_table,
    format_prune_title,
    get_head_means,
    list_heads,
)
from hf_attnprobe.statistics.summary import summarize
from tests.helpers.synthetic_rows import make_rows


N = 200
COLUMNS = ["test", "statistic", "example_id", "layer", "head", "value"]


def rows_of(test, statistic, values, ids=None):
    """Rows of one statistic, {(layer, head): values}; NaN is undefined."""
    parts = [
        make_rows({(test, statistic): column}, ids=ids and ids[site], layer=site[0], head=site[1])
        for site, column in values.items()
    ]
    return pd.concat(parts, ignore_index=True)


def exactly(mean, deviation, n=N, seed=0):
    """Values with this very mean and spread."""
    drawn = np.random.default_rng(seed).standard_normal(n)
    return mean + deviation * (drawn - drawn.mean()) / drawn.std()


def described(*parts):
    rows = pd.concat(parts, ignore_index=True)[COLUMNS]
    return summarize(rows, ["a", "b"], load_readings()), rows


def test_groups_of_heads_are_no_heads():
    groups = {(0, 0): exactly(0.1, 0.1)}
    groups |= dict.fromkeys([(0, -1), (-1, -1), (-2, 0)], exactly(0.9, 0.1))
    statistics, _ = described(rows_of("permutation", "median_tvd", groups))
    assert len(list_heads(statistics)) == 1
    assert get_head_means(statistics, "median_tvd").keys() == {(0, 0)}
    two = rows_of("permutation", "median_tvd", {(0, 0): [0.1], (0, 1): [0.1]})
    assert len(list_heads(described(two)[0])) == 2


# The prune curve


def test_the_prune_table_has_intervals_and_says_that_it_is_crossed():
    curve = PruneCurve((0, 48), (1.0, 0.88), (0.9, 0.8), 200, 0, crossed=True)
    table = render_markdown_blocks([build_prune_table(curve)])[0].splitlines()
    expected = scipy.stats.binomtest(176, 200).proportion_ci(method="exact")
    assert f"| 48 | 0.880 [{expected.low:.3f}, {expected.high:.3f}] | 0.800 |" in table
    assert "200 texts, cross-validated: the order for each half comes from the other half" in (
        format_prune_title(curve)
    )
    assert "crossed" not in format_prune_title(PruneCurve((0,), (1.0,), (1.0,)))
