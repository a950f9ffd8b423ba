"""Rows as wide Parquet: a row per test and text, statistics as lists over sites."""

import io
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.rows import Column, Rows
from hf_attnprobe.storage.rows import COLUMNS, KEY, TYPES


@dataclass(frozen=True)
class Values:
    """One statistic of a block.

    Attributes:
        values: [texts, sites]; NaN where undefined, or not there.
        is_missing: where there is no value at all, not even NaN, [texts, sites].
    """

    values: np.ndarray
    is_missing: np.ndarray


@dataclass(frozen=True)
class Block:
    """The values of one test for some texts.

    Attributes:
        test: its name.
        example_ids: int64 [texts].
        sites: layer and head of each place.
        columns: by statistic.
    """

    test: str
    example_ids: np.ndarray
    sites: Sequence[tuple[int, int]]
    columns: Mapping[str, Values]


TEST, TEXT = "test", "example_id"
METADATA = b"PANDAS_ATTRS"  # where pandas looks too: `pandas.read_parquet(file).attrs`
VERSION = 1
TEXTS_PER_GROUP = 4096  # of rows that a reader must hold at once
VALUES = pa.list_(pa.float64())


def to_wide(rows: pd.DataFrame) -> pa.Table:
    """One row per test and text, sorted by them; statistics as lists over sites.

    Values are float64: reports and oracles are compared to 1e-12, and float32 would
    save a third of the file at most, since most statistics repeat few values.

    Args:
        rows: as :func:`hf_attnprobe.storage.rows.to_rows` makes them, in any order;
            equal rows count once.

    Returns:
        Columns ``test``, ``example_id`` and one list per statistic, by name. The
        metadata have the sites of each test: the k-th of a list is of the k-th site.

    Raises:
        AttnProbeError: two values for one test, statistic, text and site.
    """
    rows = rows[list(COLUMNS)].drop_duplicates()
    if rows.duplicated(list(KEY)).any():
        first = rows[rows.duplicated(list(KEY))].iloc[0]
        raise AttnProbeError(
            f"expected one value of {first.test}, {first.statistic} of text "
            f"{first.example_id}, got several that differ; run the partition again"
        )
    if rows.statistic.isin([TEST, TEXT]).any():
        raise AttnProbeError(
            f"expected no statistic named {TEST} or {TEXT}, got one; rename the field "
            "of the test's result"
        )
    names = sorted(rows.statistic.unique())
    sites: dict[str, list[list[int]]] = {}
    tables = []
    for test, of_test in rows.groupby("test", sort=True, observed=True):
        table, sites[str(test)] = _of_test(str(test), of_test)
        tables.append(table)
    schema = pa.schema(
        [(TEST, pa.string()), (TEXT, pa.int64()), *((name, VALUES) for name in names)],
        metadata={METADATA: _described(sites)},
    )
    filled = [_with_all_columns(table, schema) for table in tables]
    return pa.concat_tables(filled) if filled else schema.empty_table()


def _of_test(test: str, rows: pd.DataFrame) -> tuple[pa.Table, list[list[int]]]:
    """The table of one test, and its sites in the order of the lists."""
    sites = rows[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    place = pd.MultiIndex.from_frame(sites).get_indexer(
        pd.MultiIndex.from_frame(rows[["layer", "head"]])
    )
    text, texts = pd.factorize(rows.example_id, sort=True)
    columns = {TEST: pa.array([test] * len(texts)), TEXT: pa.array(texts, pa.int64())}
    value = rows.value.to_numpy(dtype=np.float64)
    groups = rows.groupby("statistic", sort=True, observed=True).indices
    for name, own in groups.items():
        values = np.full((len(texts), len(sites)), np.nan)
        is_missing = np.ones(values.shape, dtype=bool)
        values[text[own], place[own]] = value[own]
        is_missing[text[own], place[own]] = False
        columns[str(name)] = as_lists(values, is_missing)
    return pa.table(columns), sites.to_numpy(dtype=int).tolist()


def as_lists(values: np.ndarray, is_missing: np.ndarray) -> pa.ListArray:
    """A matrix as a column of lists.

    Args:
        values: [texts, sites]; NaN is a value.
        is_missing: of the same shape, where there is none.
    """
    n_texts, n_sites = values.shape
    offsets = np.arange(n_texts + 1, dtype=np.int64) * n_sites
    flat = pa.array(_plain(values).ravel(), pa.float64(), mask=is_missing.ravel())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)


def _plain(values: np.ndarray) -> np.ndarray:
    """One NaN and one zero: processors differ in the signs that they give them."""
    return np.where(np.isnan(values), np.nan, values) + 0.0


def _described(sites: Mapping[str, list[list[int]]]) -> bytes:
    described = {"attnprobe_rows": VERSION, "sites": dict(sites)}
    return json.dumps(described, sort_keys=True).encode()


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Null where the test has no such statistic."""
    columns = [
        table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def sites_of(table: pa.Table) -> dict[str, list[tuple[int, int]]]:
    """Layer and head of every place in the lists, by test.

    Raises:
        AttnProbeError: the table is none of :func:`to_wide`, or of another version.
    """
    metadata = table.schema.metadata or {}
    try:
        described = json.loads(metadata[METADATA])
        version, sites = int(described["attnprobe_rows"]), described["sites"]
    except (KeyError, TypeError, ValueError) as error:
        raise AttnProbeError(
            "expected a file of wide rows, its metadata name no sites; run the partition again"
        ) from error
    if version != VERSION:
        raise AttnProbeError(
            f"expected wide rows of version {VERSION}, got {version}; read "
            "them with the hf_attnprobe that wrote them"
        )
    return {test: [(k, h) for k, h in places] for test, places in sites.items()}


def from_wide(table: pa.Table) -> pd.DataFrame:
    """The long rows again, sorted by their key: the inverse of :func:`to_wide`."""
    parts = [
        _long(block, statistic, column)
        for block in matrices_of(table)
        for statistic, column in block.columns.items()
    ]
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame({name: [] for name in COLUMNS}).astype(TYPES)
    rows = pd.concat(parts, ignore_index=True)
    return rows.sort_values(list(KEY), kind="stable", ignore_index=True)


def matrices_of(table: pa.Table) -> Iterator[Block]:
    """The values of every test as matrices, without the long form between.

    Statistics that a test has nowhere are left out. Tables of several parts are read
    one by one: each has its own sites.
    """
    sites = sites_of(table)
    of_row = table[TEST].to_numpy()
    for test in sorted(set(of_row)):
        own = table.filter(pa.array(of_row == test))
        columns = {
            name: _matrix(own[name], len(sites[test]))
            for name in own.column_names
            if name not in (TEST, TEXT) and own[name].null_count < len(own)
        }
        yield Block(test, own[TEXT].to_numpy(), sites[test], columns)


def _matrix(column: pa.ChunkedArray, n_sites: int) -> Values:
    flat = column.combine_chunks().flatten()
    is_missing = flat.is_null().to_numpy(zero_copy_only=False)
    values = flat.to_numpy(zero_copy_only=False)
    return Values(values.reshape(-1, n_sites), is_missing.reshape(-1, n_sites))


def _long(block: Block, statistic: str, column: Values) -> pd.DataFrame:
    text, site = np.nonzero(~column.is_missing)
    layers, heads = np.array(block.sites, dtype=np.int32).reshape(-1, 2).T
    return pd.DataFrame(
        {
            "test": block.test,
            "statistic": statistic,
            "example_id": block.example_ids[text],
            "layer": layers[site],
            "head": heads[site],
            "value": column.values[text, site],
        }
    )


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as a Parquet file: the same bytes for the same table.

    Bytes of a float64 are stored apart (byte-stream split) and compressed (zstd), except
    where a column repeats so few values that a dictionary of them is smaller.
    """
    lists = [name for name in table.column_names if name not in (TEST, TEXT)]
    repeats = [name for name in lists if _repeats(table[name])]
    others = [name for name in lists if name not in repeats]
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=[TEST, *map(_leaf, repeats)],
        column_encoding={_leaf(name): "BYTE_STREAM_SPLIT" for name in others} or None,
        write_statistics=[TEST, TEXT],
    ) as writer:
        writer.write_table(table, row_group_size=TEXTS_PER_GROUP)
    return sink.getvalue()


def _leaf(name: str) -> str:
    """How Parquet calls the values of a list column."""
    return f"{name}.list.element"


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether the values of a column are few, such as 0 and 1."""
    flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], pa.float64())
    return len(flat.unique()) < len(flat) / 8


def read_wide(source: str | Path | bytes) -> pa.Table:
    """The table in a file, or in the bytes of one.

    Raises:
        AttnProbeError: it is no such file.
    """
    where = "bytes" if isinstance(source, bytes) else str(source)
    try:
        return pq.read_table(pa.BufferReader(source) if where == "bytes" else where)
    except (OSError, ValueError, NotImplementedError) as error:  # what pyarrow raises
        raise AttnProbeError(
            f"cannot read the wide rows in {where}; delete the part and run its partition again"
        ) from error


# --- Many parts as the rows of one audit ---------------------------------------------------------
# A part has all statistics of some texts, a report wants one statistic of all texts. So each
# part is read once and its values laid down, column by column, in a file that nobody else sees.


class _Piece(NamedTuple):
    """Where the values of a statistic of one part lie.

    Attributes:
        texts: their places among all.
        offset: of the file: values [sites, texts], behind them which of them are there.
        sites: place of each site.
    """

    texts: slice
    offset: int
    sites: Mapping[tuple[int, int], int]


class _Columns:
    """The columns of all parts, in a file that goes with whoever reads from it."""

    def __init__(self) -> None:
        self.ids: list[np.ndarray] = []
        self.pieces: dict[tuple[str, str], list[_Piece]] = {}
        self.n_texts = 0
        self._file = TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def add(self, table: pa.Table) -> None:
        """Lays down the values of a part."""
        ids = np.unique(table[TEXT].to_numpy())
        texts = slice(self.n_texts, self.n_texts + len(ids))
        for block in matrices_of(table):
            place = np.searchsorted(ids, block.example_ids)
            sites = {site: k for k, site in enumerate(block.sites)}
            for name, column in block.columns.items():
                values = np.full((len(sites), len(ids)), np.nan)
                there = np.zeros(values.shape, dtype=bool)
                values[:, place], there[:, place] = column.values.T, ~column.is_missing.T
                piece = _Piece(texts, self._file.tell(), sites)
                self.pieces.setdefault((block.test, name), []).append(piece)
                self._file.write(values.tobytes())
                self._file.write(there.tobytes())
        self.ids.append(ids)
        self.n_texts = texts.stop

    def values(self, column: Column) -> np.ndarray:
        """In the order of the parts, [texts]; NaN where there are none."""
        found = np.full(self.n_texts, np.nan)
        for piece, number, n_texts in self._of(column):
            self._file.seek(piece.offset + 8 * number * n_texts)
            found[piece.texts] = np.frombuffer(self._file.read(8 * n_texts), np.float64)
        return found

    def is_there(self, column: Column) -> np.ndarray:
        """Which of them are there, bool [texts]."""
        found = np.zeros(self.n_texts, dtype=bool)
        for piece, number, n_texts in self._of(column):
            self._file.seek(piece.offset + (8 * len(piece.sites) + number) * n_texts)
            found[piece.texts] = np.frombuffer(self._file.read(n_texts), np.bool_)
        return found

    def _of(self, column: Column) -> Iterator[tuple[_Piece, int, int]]:
        """The pieces of a column, with the place of its site and their number of texts."""
        test, name, layer, head = column
        for piece in self.pieces[test, name]:
            if (layer, head) in piece.sites:
                yield piece, piece.sites[layer, head], piece.texts.stop - piece.texts.start


def rows_of_parts(tables: Iterable[pa.Table]) -> Rows:
    """The rows of all parts; a column takes as much memory as it has values.

    While they are in use they take nine bytes per value of the disk for temporary files.

    Args:
        tables: as :func:`to_wide` makes them, of different texts.
    """
    laid = _Columns()
    for table in tables:
        laid.add(table)
    ids = np.concatenate([np.empty(0, np.int64), *laid.ids])
    order = np.argsort(ids, kind="stable")
    columns = {
        (*key, *site)
        for key, pieces in laid.pieces.items()
        for piece in pieces
        for site in piece.sites
    }
    return Rows(
        ids=ids[order],
        columns=tuple(sorted(columns)),
        read=lambda column: laid.values(column)[order],
        is_there=lambda column: laid.is_there(column)[order],
    )
