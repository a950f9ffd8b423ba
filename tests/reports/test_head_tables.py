"""What is said of many heads: planted numbers in, words out, recomputed with plain numpy."""

import numpy as np
import pandas as pd

from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.head_tables import (
    build_head_table,
    describe_head_pairs,
    get_head_means,
    list_heads,
)
from hf_attnprobe.reports.report import assemble_report
from hf_attnprobe.statistics.head_pairs import HeadPair, HeadPairs
from hf_attnprobe.statistics.rows import Rows
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


# The order of heads


def list_displayed_heads(*parts):
    """Heads in the order of the report's table, for heads without faithfulness."""
    rows = Rows.coerce(pd.concat(parts, ignore_index=True)[COLUMNS])
    provenance = {"classes": ["a", "b"], "prediction": None}
    facts = {"model": "model", "dataset": "data", "n": N, "seed": 0}
    report = assemble_report(rows, provenance=provenance, **facts)
    return [row[0] for row in build_head_table(report).rows]


def test_heads_are_listed_by_the_effect_of_ablation():
    shuffled = {(0, 0): exactly(0.3, 0.1), (0, 1): exactly(0.2, 0.1), (1, 0): exactly(0.1, 0.1)}
    zeroed = {(0, 0): exactly(0.1, 0.1), (0, 1): exactly(0.3, 0.1), (1, 0): exactly(0.2, 0.1)}
    replaced = {(0, 0): exactly(0.2, 0.1), (0, 1): exactly(0.1, 0.1), (1, 0): exactly(0.3, 0.1)}
    effects = rows_of("permutation", "standard_tvd", shuffled)
    assert list_displayed_heads(effects) == ["0.0", "0.1", "1.0"]
    zeroing = rows_of("head_ablation", "zero_tvd", zeroed)
    assert list_displayed_heads(effects, zeroing) == ["0.1", "1.0", "0.0"]
    replacing = rows_of("head_ablation", "mean_tvd", replaced)
    assert list_displayed_heads(effects, zeroing, replacing) == ["1.0", "0.0", "0.1"]


# Pairs of heads


def test_pairs_are_described_with_both_effects():
    substitutes = HeadPair((1, 2), (2, 0), "substitutes", (0.01, 0.02), (0.43, 0.44))
    together = HeadPair((0, 1), (2, 3), "together", (0.31, 0.32), (0.03, 0.04))
    heads = ((0, 1), (1, 2), (2, 0), (2, 3))
    text = describe_head_pairs(HeadPairs(heads, 50, (substitutes, together)))
    assert "4 heads were also set to zero in pairs, on 50 texts" in text
    assert (
        "Layer 1 head 2 and layer 2 head 0 replace each other: setting one of them to zero changes "
        "the output by 0.01 and 0.02, and by 0.43 and 0.44 if the other one is already zero."
    ) in text
    assert "Layer 0 head 1 and layer 2 head 3 only work together" in text
    nothing = describe_head_pairs(HeadPairs(heads, 50, ()))
    assert "No pair certainly works only together, or replaces each other." in nothing


def test_unmeasured_pairs_are_said_to_be_unseen():
    few_texts = HeadPairs(((0, 1), (1, 2)), 29, ())
    assert "cannot show whether two heads replace each other" in describe_head_pairs(None)
    assert "in pairs on only 29 texts, but 30 are needed" in describe_head_pairs(few_texts)
