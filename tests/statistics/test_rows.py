"""Rows as a table: pandas reads a folder as one tidy table."""

import numpy as np
import pandas as pd
import torch

from hf_attnprobe.protocol import Site
from hf_attnprobe.statistics.rows import PREDICTION_TEST
from hf_attnprobe.storage.rows import NO_SITE, append_rows, build_rows


def build(test, ids, statistics_by_site):
    """Build rows from lists of values."""
    tensors = {
        site: {name: torch.tensor(values, dtype=torch.float64) for name, values in lists.items()}
        for site, lists in statistics_by_site.items()
    }
    return build_rows(test, ids, tensors)


def test_pandas_reads_a_folder_as_one_tidy_table(tmp_path):
    sites = {Site(layer, 0): {"median_tvd": [7 + layer / 10, np.nan]} for layer in (1, 0)}
    append_rows(tmp_path, build("permutation", [7, 3], sites), name="one")
    append_rows(tmp_path, build(PREDICTION_TEST, [3], {NO_SITE: {"label": [1.0]}}), name="two")
    rows = pd.read_parquet(tmp_path)
    assert list(rows) == ["test", "statistic", "layer", "head", "example_id", "value"]
    assert rows.test.tolist() == ["permutation"] * 4 + [PREDICTION_TEST]
    assert rows.example_id.tolist() == [3, 7, 3, 7, 3]
    assert rows.layer.tolist()[:4] == [0, 0, 1, 1]
    assert rows.layer.isna().tolist() == rows["head"].isna().tolist() == [False] * 4 + [True]
    assert rows.value.dropna().tolist() == [7.0, 7.1, 1.0]
    assert rows.statistic.tolist() == ["median_tvd"] * 4 + ["label"]
    filtered = pd.read_parquet(
        tmp_path, filters=[("test", "==", "permutation"), ("layer", "==", 1)]
    )
    assert filtered.value.tolist()[1] == 7.1 and len(filtered) == 2
