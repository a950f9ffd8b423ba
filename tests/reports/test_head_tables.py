"""What is said of many heads: planted numbers in, words out, recomputed with plain numpy."""

import numpy as np
import pandas as pd
import scipy.stats

from hf_attnprobe.documents.markdown import blocks
from hf_attnprobe.faithfulness.head_ablation import PruneCurve
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.reports.head_tables import by_head, heads_of, prune_table, prune_title
from hf_attnprobe.statistics.summary import summarize
from tests.helpers.synthetic_rows import rows_of_texts


N = 200
COLUMNS = ["test", "statistic", "example_id", "layer", "head", "value"]


def rows_of(test, statistic, values, ids=None):
    """Rows of one statistic, {(layer, head): values}; NaN is undefined."""
    parts = [
        rows_of_texts(
            {(test, statistic): column}, ids=ids and ids[site], layer=site[0], head=site[1]
        )
        for site, column in values.items()
    ]
    return pd.concat(parts, ignore_index=True)


def exactly(mean, deviation, n=N, seed=0):
    """Values with this very mean and spread."""
    drawn = np.random.default_rng(seed).standard_normal(n)
    return mean + deviation * (drawn - drawn.mean()) / drawn.std()


def described(*parts):
    rows = pd.concat(parts, ignore_index=True)[COLUMNS]
    return summarize(rows, ["a", "b"], readings()), rows


def test_groups_of_heads_are_no_heads():
    groups = {(0, 0): exactly(0.1, 0.1)}
    groups |= dict.fromkeys([(0, -1), (-1, -1), (-2, 0)], exactly(0.9, 0.1))
    statistics, _ = described(rows_of("permutation", "median_tvd", groups))
    assert len(heads_of(statistics)) == 1
    assert by_head(statistics, "median_tvd").keys() == {(0, 0)}
    two = rows_of("permutation", "median_tvd", {(0, 0): [0.1], (0, 1): [0.1]})
    assert len(heads_of(described(two)[0])) == 2


# The prune curve


def test_the_prune_table_has_intervals_and_says_that_it_is_crossed():
    curve = PruneCurve((0, 48), (1.0, 0.88), (0.9, 0.8), 200, 0, crossed=True)
    table = blocks([prune_table(curve)])[0].splitlines()
    expected = scipy.stats.binomtest(176, 200).proportion_ci(method="exact")
    assert f"| 48 | 0.880 [{expected.low:.3f}, {expected.high:.3f}] | 0.800 |" in table
    assert "200 texts, crossed: each half's order comes from the other half" in (prune_title(curve))
    assert "crossed" not in prune_title(PruneCurve((0,), (1.0,), (1.0,)))
