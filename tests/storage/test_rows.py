"""Rows on disk: nothing is lost, the order of texts and tables leaves no trace, damage is refused."""

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
from hf_attnprobe.statistics.rows import PREDICTION_TEST, ROW_KEY, Rows
from hf_attnprobe.storage.rows import (
    NO_SITE,
    append_rows,
    build_rows,
    collect_rows,
    concatenate_rows,
    load_rows,
    read_finished_ids,
    read_part,
    read_rows,
)
from tests.helpers.error_messages import refused, refuses


STATISTICS = st.sampled_from(["median_tvd", "fraction@0.5", "label@a.b", "label@ä list.element"])
SITES = st.lists(
    st.builds(Site, st.integers(-1, 2), st.integers(-1, 2)),
    min_size=1,
    max_size=3,
    unique_by=lambda site: site[:2],
)
VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64)


@st.composite
def measured_tests(draw):
    """For each test the ids of texts, and for each site the statistics of these texts."""
    names = st.lists(
        st.sampled_from(["permutation", "erasure", PREDICTION_TEST]), min_size=1, unique=True
    )
    measured = {}
    for test in draw(names):
        ids = draw(st.lists(st.integers(0, 2**62), min_size=1, max_size=4, unique=True))
        values = st.lists(VALUES, min_size=len(ids), max_size=len(ids))
        sites = [NO_SITE] if test == PREDICTION_TEST else draw(SITES)
        measured[test] = ids, {site: draw(st.dictionaries(STATISTICS, values)) for site in sites}
    return measured


def to_long_frame(measured) -> pd.DataFrame:
    cells = [
        (test, name, site.layer, site.head, example_id, value)
        for test, (ids, statistics_by_site) in measured.items()
        for site, statistics in statistics_by_site.items()
        for name, values in statistics.items()
        for example_id, value in zip(ids, values, strict=True)
    ]
    types = {"test": "str", "statistic": "str", "layer": "int32", "head": "int32"}
    types |= {"example_id": "int64", "value": "float64"}
    rows = pd.DataFrame(cells, columns=[*ROW_KEY, "value"]).astype(types)
    return rows.sort_values(list(ROW_KEY), ignore_index=True)


def write_and_read(table):
    """Write a table as a part; return its bytes, and the rows read from it."""
    with tempfile.TemporaryDirectory() as folder:
        append_rows(Path(folder), table, name="one")
        part = Path(folder, "part-one.parquet")
        return part.read_bytes(), collect_rows([read_part(part)]).build_long_frame()


def build(test, ids, statistics_by_site):
    """Build rows from lists of values."""
    tensors = {
        site: {name: torch.tensor(values, dtype=torch.float64) for name, values in lists.items()}
        for site, lists in statistics_by_site.items()
    }
    return build_rows(test, ids, tensors)


@settings(max_examples=30)
@given(measured_tests(), st.randoms())
def test_rows_come_back_and_their_order_leaves_no_trace(measured, random):
    expected = to_long_frame(measured)
    data, rows = write_and_read(concatenate_rows(build(t, *found) for t, found in measured.items()))
    pd.testing.assert_frame_equal(rows, expected, check_exact=True)
    pd.testing.assert_frame_equal(
        Rows.coerce(expected).build_long_frame(), expected, check_exact=True
    )
    pieces = []
    for test, (ids, statistics_by_site) in measured.items():
        for k in range(len(ids)):
            one_text = {
                site: {name: values[k : k + 1] for name, values in statistics.items()}
                for site, statistics in statistics_by_site.items()
            }
            pieces.append(build(test, ids[k : k + 1], one_text))
    random.shuffle(pieces)
    assert write_and_read(concatenate_rows(pieces))[0] == data
    pd.testing.assert_frame_equal(
        collect_rows(pieces).build_long_frame(), expected, check_exact=True
    )


def test_no_rows_are_no_rows(tmp_path):
    assert len(write_and_read(concatenate_rows([]))[1]) == 0
    assert len(write_and_read(build("erasure", [], {Site(0, 0): {"x": []}}))[1]) == 0
    assert list(read_rows(tmp_path)) == [*ROW_KEY, "value"]


def test_first_part_counts_if_two_parts_have_a_value(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        ids = [3, 1 if name == "a" else 2]
        append_rows(tmp_path, build("erasure", ids, {Site(0, 0): {"x": [value, value]}}), name=name)
    rows = read_rows(tmp_path)[["example_id", "value"]].to_numpy().tolist()
    assert rows == [[1, 1.0], [2, 2.0], [3, 1.0]]


def test_rows_of_one_test_and_finished_ids(tmp_path):
    sites = {Site(layer, 0): {"x": [7.0, 3.0], "y": [0.0, 0.0]} for layer in (1, 0)}
    tables = [
        build("permutation", [7, 3], sites),
        build(PREDICTION_TEST, [3], {NO_SITE: {"label": [1]}}),
    ]
    append_rows(tmp_path, concatenate_rows(tables), name="one")
    append_rows(tmp_path, build("permutation", [5], {Site(1, 0): {"x": [np.nan]}}), name="two")
    of_test = read_rows(tmp_path, "permutation")
    assert set(of_test.test) == {"permutation"} and len(of_test) == 9
    assert load_rows(tmp_path, "other").ids.tolist() == []
    assert read_finished_ids(tmp_path) == {
        ("permutation", 0, 0): {3, 7},
        ("permutation", 1, 0): {3, 5, 7},
        (PREDICTION_TEST, -1, -1): {3},
    }


def test_another_format_is_refused_in_one_line(tmp_path):
    rows = pd.DataFrame({"test": ["a"], "statistic": ["x"], "example_id": [1], "value": [0.0]})
    rows.to_parquet(tmp_path / "part-old.parquet", index=False)
    with refuses("cannot read the file format of .* Delete this file") as error:
        read_rows(tmp_path)
    assert "part-old" in str(error.value)
    (tmp_path / "part-cut.parquet").write_bytes(b"PAR1 and then nothing")
    refused("cannot read the rows", read_part, tmp_path / "part-cut.parquet")


def test_rows_of_another_audit_are_refused(tmp_path):
    table = build("erasure", [3], {Site(0, 0): {"x": [0.5]}})
    for name, settings_text in (("a", "{}"), ("b", '{"seed": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "audit.json").write_text(settings_text)
        append_rows(tmp_path / name / "rows", table, name=name)
    assert len(read_rows(tmp_path / "a/rows")) == 1
    (tmp_path / "b/rows/part-b.parquet").rename(tmp_path / "a/rows/part-b.parquet")
    refused("does not belong to the audit in", read_rows, tmp_path / "a/rows")


@pytest.mark.parametrize(("is_repeated", "bytes_per_value"), [(False, 8), (True, 0.6)])
def test_files_are_hardly_larger_than_their_values(is_repeated, bytes_per_value):
    values = np.random.default_rng(0).random((24, 3, 300))
    values = np.round(values) if is_repeated else values
    statistics = {
        Site(k // 12, k % 12): dict(zip("abc", by_name, strict=True))
        for k, by_name in enumerate(values)
    }
    data, _ = write_and_read(build("permutation", range(300), statistics))
    assert len(data) / values.size < bytes_per_value


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.assign(value=rows.value * 0.5),
        lambda rows: rows.assign(value=[*rows.value[1:], rows.value[0]]),
        lambda rows: rows.assign(value=np.inf),
        lambda rows: rows.assign(value=np.nan),
        lambda rows: rows.assign(example_id=rows.example_id + 1),
        lambda rows: rows.assign(test="permutation"),
        lambda rows: rows.assign(statistic=rows.statistic.cat.rename_categories({"x": "z"})),
        lambda rows: rows.assign(layer=rows.layer + 1),
        lambda rows: rows.assign(head=rows["head"] + 1),
        lambda rows: rows[:-1],
        lambda rows: rows[1:],
        lambda rows: pd.concat([rows, rows[-1:]]),
        lambda rows: rows.drop(columns="value"),
        lambda rows: rows.assign(value="x"),
        lambda rows: rows.assign(example_id="x"),
        lambda rows: rows.rename(columns={"value": "number"}),
    ],
)
def test_contents_that_were_changed_are_refused(change, tmp_path):
    """The file is valid Parquet with valid checksums and the metadata of the original."""
    statistics = {Site(k, 0): {"x": [k, 1.0, 2.0], "y": [k, 5.0, 6.0]} for k in range(2)}
    append_rows(tmp_path, build("erasure", [3, 4, 5], statistics), name="one")
    part = tmp_path / "part-one.parquet"
    original = read_part(part)
    metadata = pq.read_metadata(part).metadata
    changed = pa.Table.from_pandas(change(original.to_pandas()), preserve_index=False)
    for rows, is_refused in ((original, False), (changed, True)):
        with pq.ParquetWriter(part, rows.schema, store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata(metadata)
        if is_refused:
            refused(f"cannot read the rows in {part}", read_part, part)
            refused(f"cannot read the rows in {part}", read_rows, tmp_path, "erasure")
        else:
            assert read_part(part).equals(original)
