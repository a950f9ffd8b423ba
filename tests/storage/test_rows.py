"""Rows on disk: nothing is lost, the order of texts and tables leaves no trace, what is none is refused."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.protocol import Site
from hf_attnprobe.statistics.rows import KEY, Rows
from hf_attnprobe.storage.rows import (
    append_rows,
    joined,
    read_part,
    read_rows,
    rows_in,
    rows_of_parts,
    sites_of,
    to_rows,
)
from tests.helpers.error_messages import refused, refuses


NAMES = st.sampled_from(["median_tvd", "fraction@0.5", "label@a.b", "label@ä list.element"])
SITES = st.lists(
    st.builds(Site, st.integers(-1, 2), st.integers(-1, 2)),
    min_size=1,
    max_size=3,
    unique_by=lambda site: site[:2],
)
VALUE = st.floats(allow_nan=True, allow_infinity=True, width=64)


@st.composite
def measured(draw):
    """By test the ids of texts, and by site the statistics of each."""
    tests = draw(st.lists(st.sampled_from(["permutation", "erasure"]), min_size=1, unique=True))
    found = {}
    for test in tests:
        ids = draw(st.lists(st.integers(0, 2**62), min_size=1, max_size=4, unique=True))
        values = st.lists(VALUE, min_size=len(ids), max_size=len(ids))
        sites = draw(SITES)
        found[test] = ids, {site: draw(st.dictionaries(NAMES, values)) for site in sites}
    return found


def long_of(found) -> pd.DataFrame:
    values = [
        (test, name, text, site.layer, site.head, value)
        for test, (ids, at) in found.items()
        for site, statistics in at.items()
        for name, values in statistics.items()
        for text, value in zip(ids, values, strict=True)
    ]
    rows = pd.DataFrame(values, columns=[*KEY, "value"])
    kinds = {"test": "str", "statistic": "str", "example_id": "int64"}
    kinds |= {"layer": "int32", "head": "int32", "value": "float64"}
    return rows.astype(kinds).sort_values(list(KEY), ignore_index=True)


def kept(table):
    """The bytes of the part of a table, and the rows that are read of it."""
    with tempfile.TemporaryDirectory() as folder:
        append_rows(Path(folder), table, name="one")
        part = Path(folder, "part-one.parquet")
        return part.read_bytes(), rows_of_parts([read_part(part)]).long()


def table_of(test, ids, at):
    tensors = {
        site: {name: torch.tensor(values, dtype=torch.float64) for name, values in own.items()}
        for site, own in at.items()
    }
    return to_rows(test, ids, tensors)


@settings(max_examples=30)
@given(measured(), st.randoms())
def test_rows_come_back_and_their_order_leaves_no_trace(found, random):
    tables = [table_of(test, ids, at) for test, (ids, at) in found.items()]
    data, rows = kept(joined(tables))
    expected = long_of(found)
    pd.testing.assert_frame_equal(rows, expected, check_exact=True)
    pd.testing.assert_frame_equal(Rows.of(expected).long(), expected, check_exact=True)
    pieces = []
    for test, (ids, at) in found.items():
        for k in random.sample(range(len(ids)), len(ids)):
            one = {s: {n: values[k : k + 1] for n, values in own.items()} for s, own in at.items()}
            pieces.append(table_of(test, ids[k : k + 1], one))
    random.shuffle(pieces)
    assert kept(joined(pieces))[0] == data
    pd.testing.assert_frame_equal(rows_of_parts(pieces).long(), expected, check_exact=True)


def test_no_rows_are_no_rows(tmp_path):
    assert len(kept(joined([]))[1]) == 0
    assert list(read_rows(tmp_path)) == [*KEY, "value"]


def test_of_a_value_that_two_parts_have_the_first_parts_counts(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        found = {Site(0, 0): {"x": [value, value]}}
        append_rows(tmp_path, table_of("erasure", [3, 1 if name == "a" else 2], found), name=name)
    found = read_rows(tmp_path)[["example_id", "value"]].to_numpy().tolist()
    assert found == [[1, 1.0], [2, 2.0], [3, 1.0]]


def test_one_row_per_test_and_text_and_pandas_reads_it(tmp_path):
    at = {Site(layer, 0): {"median_tvd": [7 + layer / 10, 3 + layer / 10]} for layer in (1, 0)}
    tables = [
        table_of("permutation", [7, 3], at),
        table_of("prediction", [3], {Site(-1, -1): {"label": [1.0]}}),
    ]
    append_rows(tmp_path, joined(tables), name="one")
    wide = pd.read_parquet(tmp_path / "part-one.parquet")
    assert wide.test.tolist() == ["permutation", "permutation", "prediction"]
    assert wide.example_id.tolist() == [3, 7, 3]
    assert wide.median_tvd[1].tolist() == [7.0, 7.1]
    assert wide.median_tvd[2] is None
    assert wide.attrs["sites"]["permutation"] == [[0, 0], [1, 0]]
    assert sites_of(read_part(tmp_path / "part-one.parquet"))["prediction"] == [(-1, -1)]
    assert read_rows(tmp_path, "permutation").value.tolist() == [3.0, 3.1, 7.0, 7.1]
    assert rows_in(tmp_path, "other").ids.tolist() == []


def test_another_format_is_refused_in_one_line(tmp_path):
    long = pd.DataFrame({"test": ["a"], "statistic": ["x"], "example_id": [1], "value": [0.0]})
    long.to_parquet(tmp_path / "part-old.parquet", index=False)
    with refuses("found another format; delete it") as error:
        read_rows(tmp_path)
    assert "part-old" in str(error.value)
    (tmp_path / "part-cut.parquet").write_bytes(b"PAR1 and then nothing")
    refused("cannot read the rows", read_part, tmp_path / "part-cut.parquet")
    refused("rename the field", table_of, "permutation", [1], {Site(0, 0): {"test": [1.0]}})
    with pytest.raises(ValueError, match="other sites"):
        joined(table_of("erasure", [k], {Site(k, 0): {"x": [1.0]}}) for k in (0, 1))


@pytest.mark.parametrize("repeated", [False, True])
def test_files_are_smaller_than_a_value_per_row(repeated, tmp_path):
    generator = np.random.default_rng(0)
    values = generator.random((24, 3, 300))
    values = np.round(values) if repeated else values
    sites = [Site(k // 12, k % 12) for k in range(24)]
    found = {
        site: dict(zip("abc", own, strict=True)) for site, own in zip(sites, values, strict=True)
    }
    data, rows = kept(table_of("permutation", range(300), found))
    long = tmp_path / "long.parquet"
    rows.to_parquet(long, index=False)
    assert len(data) < 0.85 * long.stat().st_size
    assert len(data) / values.size < (0.4 if repeated else 8)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.assign(x=[values * 0.5 for values in rows.x]),
        lambda rows: rows.assign(x=[*rows.x[1:], rows.x[0]]),
        lambda rows: rows.assign(x=[values + np.inf for values in rows.x]),
        lambda rows: rows.assign(x=[values[:1] for values in rows.x]),
        lambda rows: rows.assign(x=[[*values, 0.5] for values in rows.x]),
        lambda rows: rows.assign(x=[None, *rows.x[1:]]),
        lambda rows: rows.assign(example_id=rows.example_id + 1),
        lambda rows: rows.assign(test="permutation"),
        lambda rows: rows[:2],
    ],
)
def test_values_that_were_changed_are_refused(change, tmp_path):
    """Whoever writes them anew with the same metadata, which have a check of their own."""
    values = np.arange(6.0).reshape(2, 3)
    found = {Site(k, 0): {"x": own, "y": own} for k, own in enumerate(values)}
    append_rows(tmp_path, table_of("erasure", [3, 4, 5], found), name="one")
    part = tmp_path / "part-one.parquet"
    whole = pq.read_table(part)
    assert read_part(part).num_rows == 3
    changed = pa.Table.from_pandas(change(whole.to_pandas()), whole.schema, preserve_index=False)
    check_refused(changed.replace_schema_metadata(whole.schema.metadata), part)


def check_refused(changed, part):
    """A table in place of a part is refused in a line, read as a part and as rows."""
    pq.write_table(changed, part)
    with refuses("cannot read the rows in .*part-one"):
        read_part(part)
    with refuses("cannot read the rows in .*part-one"):
        read_rows(part.parent, "erasure")


def test_other_columns_types_and_places_are_refused(tmp_path):
    append_rows(tmp_path, table_of("erasure", [3], {Site(0, 0): {"x": [0.5]}}), name="one")
    part = tmp_path / "part-one.parquet"
    whole = pq.read_table(part)
    said = {
        name: value.replace(b"[0, 0]", b"[0, 1]") for name, value in whole.schema.metadata.items()
    }
    assert said != whole.schema.metadata
    check_refused(whole.replace_schema_metadata(said), part)
    check_refused(whole.drop_columns(["x"]), part)
    check_refused(whole.set_column(2, "x", pa.array([0.5])), part)
    check_refused(whole.set_column(1, "example_id", pa.array(["x"])), part)
