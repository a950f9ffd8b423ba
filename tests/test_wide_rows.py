"""Rows wide and back: nothing is lost, and the order of the rows leaves no trace."""

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.storage.rows import COLUMNS, KEY
from hf_attnprobe.storage.wide_rows import (
    from_wide,
    parquet_bytes,
    read_wide,
    sites_of,
    to_wide,
)


NAMES = st.sampled_from(
    [
        "median_tvd",
        "fraction@0.5",
        "way@norm_based",
        "label@a.b",
        "label@ä list.element",
    ]
)
ONE = st.tuples(
    st.sampled_from(["permutation", "erasure", "prediction"]),
    NAMES,
    st.integers(0, 2**62),
    st.integers(-1, 2),
    st.integers(-1, 2),
)
VALUE = st.floats(allow_nan=True, allow_infinity=True, width=64)


def _frame(values):
    rows = pd.DataFrame([(*key, v) for key, v in values.items()], columns=COLUMNS)
    return rows.astype({"layer": "int32", "head": "int32", "value": "float64"})


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(ONE, VALUE, min_size=1, max_size=40), st.randoms())
def test_rows_come_back_and_their_order_leaves_no_trace(values, random):
    rows = _frame(values)
    expected = rows.sort_values(list(KEY)).reset_index(drop=True)
    data = parquet_bytes(to_wide(rows))
    pd.testing.assert_frame_equal(from_wide(read_wide(data)), expected, check_exact=True)
    shuffled = [*range(len(rows)), 0]  # and one row twice
    random.shuffle(shuffled)
    assert parquet_bytes(to_wide(rows.iloc[shuffled])) == data


def test_no_rows_are_no_rows():
    table = read_wide(parquet_bytes(to_wide(_frame({}))))
    assert len(from_wide(table)) == 0
    assert list(from_wide(table)) == list(COLUMNS)


def test_one_row_per_test_and_text_and_pandas_reads_it(tmp_path):
    rows = _frame(
        {
            ("permutation", "median_tvd", text, layer, 0): text + layer / 10
            for text in (7, 3)
            for layer in (0, 1)
        }
        | {("prediction", "label", 3, -1, -1): 1.0}
    )
    file = tmp_path / "part.parquet"
    file.write_bytes(parquet_bytes(to_wide(rows)))
    wide = pd.read_parquet(file)
    assert wide[["test", "example_id"]].to_numpy().tolist() == [
        ["permutation", 3],
        ["permutation", 7],
        ["prediction", 3],
    ]
    assert wide.median_tvd[1].tolist() == [7.0, 7.1]
    assert wide.median_tvd[2] is None
    assert wide.attrs["sites"]["permutation"] == [[0, 0], [1, 0]]
    assert sites_of(read_wide(file))["prediction"] == [(-1, -1)]


def test_what_is_no_wide_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(AttnProbeError, match="cannot read the wide rows"):
        read_wide(b"PAR1 and then nothing")
    with pytest.raises(AttnProbeError, match="name no sites"):
        sites_of(pa.table({"test": ["a"]}))
    rows = _frame({("permutation", "test", 1, 0, 0): 1.0})
    with pytest.raises(AttnProbeError, match="rename the field"):
        to_wide(rows)
    twice = _frame({("permutation", "tvd", 1, 0, 0): 1.0})
    with pytest.raises(AttnProbeError, match="several that differ"):
        to_wide(pd.concat([twice, twice.assign(value=2.0)]))


@pytest.mark.parametrize("repeated", [False, True])
def test_wide_files_are_smaller_than_long_ones(repeated):
    generator = np.random.default_rng(0)
    n_texts, n_sites = 300, 24
    values = generator.random((3, n_texts, n_sites))
    values = np.round(values) if repeated else values
    places = np.indices(values.shape)
    rows = pd.DataFrame(
        {
            "test": "permutation",
            "statistic": np.array(["a", "b", "c"])[places[0].ravel()],
            "example_id": places[1].ravel(),
            "layer": (places[2] // 12).ravel().astype("int32"),
            "head": (places[2] % 12).ravel().astype("int32"),
            "value": values.ravel(),
        }
    )
    long = io.BytesIO()
    rows.to_parquet(long, index=False)
    size = len(parquet_bytes(to_wide(rows)))
    assert size < 0.85 * len(long.getvalue())
    assert size / values.size < (0.4 if repeated else 8)
