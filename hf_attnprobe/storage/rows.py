"""Rows on disk: a row per text and test, each statistic a list over the sites where the test looked.

Every mean can be recomputed from them. Whoever audits writes them, an audit's folder and a job's
partition alike: Parquet, a part per batch, each written whole or not at all.
Several processes write parts side by side, and a part that is there is work done. The sites of
each test, layer and head, stand once in a part, in what ``pandas.read_parquet(part).attrs`` gives.

:class:`~hf_attnprobe.statistics.rows.Rows` reads a column at a time; their long form, a value
per row, is a view of them.
"""

import hashlib
import json
import os
import uuid
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.protocol import AttentionModelBase, Batch, Site
from hf_attnprobe.statistics.rows import Column, Rows
from hf_attnprobe.storage.folders import half_written


TEST, TEXT = "test", "example_id"
VALUES = pa.list_(pa.float64())
NO_SITE = Site(layer=-1, head=-1)  # rows about the whole model, such as its prediction
AGAIN = "delete it and run the audit again"

Place = tuple[str, int, int]
"""A test, and the layer and head where it looked."""
Done = Mapping[Place, Collection[int]]
"""The ids of the texts that have rows, by test, layer and head."""
Sites = Mapping[str, Sequence[tuple[int, int]]]
"""By test the layers and heads of a part, in the order of its lists."""


# --- What a test or a model says of each text ----------------------------------------------------


def statistics_of(result: object) -> dict[str, torch.Tensor]:
    """The per-text statistics of a test's result, each [batch], by name.

    Args:
        result: a dataclass; its fields of shape [batch] count, and mappings of those as
            ``name@key``.
    """
    statistics = {}
    for name, value in vars(result).items():
        values = {name: value}
        if isinstance(value, Mapping):
            values = {f"{name}@{key}": inner for key, inner in value.items()}
        for full_name, inner in values.items():
            if isinstance(inner, torch.Tensor) and inner.dim() == 1:
                statistics[full_name] = inner
    return statistics


def said_of(
    adapter: AttentionModelBase, batch: Batch, probs: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The rows about the predictions of a batch, see :func:`prediction_statistics`.

    Args:
        probs: [batch, entries].

    Raises:
        AttnProbeError: a probability that is no number.
    """
    wrong = probs.isnan().flatten(1).any(1).nonzero()[:, 0].tolist()
    if wrong:  # as weights of a training that diverged give
        raise AttnProbeError(
            "expected probabilities of the model, it gives NaN on text "
            f"{batch.example_ids[wrong[0]]}; check its weights and --dtype"
        )
    assert batch.labels is not None  # collate gives −1 to unlabelled texts
    n_tokens = batch.content_mask.sum(-1)
    said = prediction_statistics(adapter.prediction, probs, batch.labels, n_tokens)
    if batch.identities is None:
        return said
    return said | {"identity": batch.identities}


def prediction_statistics(
    prediction: Prediction,
    probs: torch.Tensor,
    labels: torch.Tensor,
    n_tokens: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The rows about the model's predictions, by statistic, each [batch].

    ``predicted_class`` and ``label`` are −1 where there is no single class; then
    ``correct`` is the share of a text's labels that are met (NaN without labels), with
    which labels those are where they have names (``label@name`` of labels that may hold,
    ``label_share@name`` of tags), and of a number there are ``value`` and ``labelled_value`` in the data's unit, their means where
    there are several.

    Args:
        prediction: what the entries of ``probs`` are.
        probs: [batch, entries].
        labels: the true ones [batch] or [batch, parts]; −1, or NaN, for a text without
            one.
        n_tokens: of each text without special tokens and padding, [batch].
    """
    if prediction.is_number:
        return _of_number(prediction, probs, labels) | {"n_tokens": n_tokens}
    if prediction.has_one_part:
        probability, predicted = probs.max(-1)
        return {
            "predicted_class": predicted,
            "probability": probability,
            "label": labels,
            "n_tokens": n_tokens,
        }
    none = torch.full_like(n_tokens, -1)
    parts = prediction.grouped(probs)
    present = parts.sum(-1) > 0
    return {
        "predicted_class": none,
        "probability": parts.amax(-1).sum(-1) / present.sum(-1),
        "label": none,
        "correct": prediction.right(probs, labels),
        "n_tokens": n_tokens,
        **_labels_by_name(prediction, labels),
    }


def _labels_by_name(prediction: Prediction, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Which labels a text has, so that what is most frequent can be counted.

    ``label@name`` is 1, 0 or −1 of every label that may hold, ``label_share@name`` the
    share of a text's labelled words that have a tag, NaN without any.
    """
    if labels.dim() != 2:
        return {}
    if prediction.kind == "labels":
        columns = zip(prediction.parts, labels.unbind(1), strict=True)
        return {f"label@{name}": column for name, column in columns}
    if prediction.kind != "tags":
        return {}
    n_known = (labels >= 0).sum(1)
    return {
        f"label_share@{name}": (labels == k).sum(1) / n_known
        for k, name in enumerate(prediction.outcomes)
    }


def _of_number(
    prediction: Prediction, probs: torch.Tensor, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The statistics of a predicted number, and of its side of a threshold."""
    labels = labels.to(probs.device, probs.dtype).reshape(len(probs), -1).mean(-1)
    statistics = {
        "predicted_class": torch.full(labels.shape, -1, device=probs.device),
        "probability": torch.full_like(labels, torch.nan),
        "label": torch.full(labels.shape, -1, device=probs.device),
        "value": prediction.value(probs).mean(-1),
        "labelled_value": labels,
    }
    if prediction.decides and prediction.has_one_part:
        statistics["predicted_class"] = probs.argmax(-1)
        side = (labels <= prediction.origin).long()
        statistics["label"] = side.where(~labels.isnan(), -1)
    return statistics


# --- A table: the rows of some texts ------------------------------------------------------------

METADATA = b"PANDAS_ATTRS"  # where pandas looks too: `pandas.read_parquet(file).attrs`
VERSION = 2
TEXTS_PER_GROUP = 4096  # of rows that a reader must hold at once


def to_rows(
    test: str,
    example_ids: Iterable[int],
    found: Mapping[Site, Mapping[str, torch.Tensor]],
) -> pa.Table:
    """What a test says of some texts, a text per row.

    Values are float64: reports and oracles are compared to 1e-12, and float32 would
    save a third of the file at most, since most statistics repeat few values.

    Args:
        found: by site the statistics, each [texts]; sites may have different ones.

    Returns:
        Columns ``test``, ``example_id`` and one list per statistic, by name: null where
        there is no value, NaN where it is undefined. The metadata have the sites: the k-th
        of a list is of the k-th.

    Raises:
        AttnProbeError: a statistic is named like another column.
    """
    ids = np.asarray(tuple(example_ids), dtype=np.int64)
    sites = sorted(found, key=lambda site: site[:2])
    names = sorted({name for statistics in found.values() for name in statistics})
    if {TEST, TEXT} & set(names):
        raise AttnProbeError(
            f"expected no statistic named {TEST} or {TEXT}, got one; rename the field "
            "of the test's result"
        )
    order = np.argsort(ids, kind="stable")
    columns = {
        TEST: pa.array([test] * len(ids), pa.string()),
        TEXT: pa.array(ids[order]),
    }
    for name in names:
        values = np.full((len(ids), len(sites)), np.nan)
        has = [name in found[site] for site in sites]
        for k in np.flatnonzero(has):
            measured = found[sites[k]][name].detach().to(torch.float64).cpu().numpy()
            if measured.shape != ids.shape:
                raise ValueError(f"expected a {name} of each text, got {measured.shape}")
            values[:, k] = measured
        is_there = np.broadcast_to(has, values.shape)
        columns[name] = _as_lists(values[order], is_there)
    places = [(site.layer, site.head) for site in sites]
    return _described(pa.table(columns), {test: places}, {test: names})


def _as_lists(values: np.ndarray, is_there: np.ndarray) -> pa.ListArray:
    """Returns a matrix [texts, sites] as a column of lists, null where there is no value."""
    n_texts, n_sites = values.shape
    starts = np.arange(n_texts + 1, dtype=np.int64) * n_sites
    offsets = pa.array(starts, pa.int32())
    # Processors differ in the signs that they give to zero and NaN.
    plain = np.where(np.isnan(values), np.nan, values)
    plain = plain + 0.0
    is_missing = ~is_there.ravel()
    flat = pa.array(plain.ravel(), pa.float64(), mask=is_missing)
    return pa.ListArray.from_arrays(offsets, flat)


def _described(
    table: pa.Table,
    sites: Sites,
    statistics: Mapping[str, Sequence[str]],
) -> pa.Table:
    """The table with metadata that say of each test the sites and the statistics."""
    said = {
        "attnprobe_rows": VERSION,
        "sites": sites,
        "statistics": statistics,
    }
    return _saying(table, said)


def _saying(table: pa.Table, said: Mapping[str, Any]) -> pa.Table:
    """The table with other metadata."""
    metadata = {METADATA: json.dumps(said, sort_keys=True)}
    return table.replace_schema_metadata(metadata)


def _sealed(table: pa.Table, owner: str | None) -> pa.Table:
    """The table with its audit and a hash of every column in its metadata."""
    said = _said(table.schema) | {"audit": owner}
    said["columns"] = {name: _digest(table[name]) for name in table.column_names}
    said["check"] = _check_sum(said)
    return _saying(table, said)


def _digest(column: pa.ChunkedArray) -> str:
    """SHA-256 of a column's names, ids, or lists: their lengths, and which values are there."""
    if pa.types.is_string(column.type):
        names = "\0".join(column.to_pylist())
        return hashlib.sha256(names.encode()).hexdigest()
    parts = [column]
    if pa.types.is_list(column.type):
        lengths = pc.list_value_length(column)
        values = pc.list_flatten(column)
        parts = [lengths.fill_null(-1), values.is_valid(), values.fill_null(0)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.to_numpy().tobytes())
    return digest.hexdigest()


def _check_sum(said: Mapping[str, Any]) -> str:
    """SHA-256 of the metadata, which no checksum of a page covers."""
    covered = {name: value for name, value in said.items() if name != "check"}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _said(schema: pa.Schema) -> dict[str, Any]:
    """The metadata; nothing where a file has none."""
    return dict(json.loads((schema.metadata or {}).get(METADATA, b"{}")))


def sites_of(table: pa.Table) -> Sites:
    """Layer and head of every place in the lists, by test."""
    sites = _said(table.schema)["sites"]
    return {test: [(layer, head) for layer, head in places] for test, places in sites.items()}


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Joins the rows of several tables, by test and text: their order leaves no trace.

    Args:
        tables: whose tests have the same sites in each that has them.
    """
    tables = list(tables)
    sites: dict[str, Sequence[tuple[int, int]]] = {}
    statistics: dict[str, set[str]] = {}
    for table in tables:
        said = _said(table.schema)
        for test, places in said["sites"].items():
            if sites.setdefault(test, places) != places:
                raise ValueError(f"the test {test} has other sites in another table")
            own = said["statistics"][test]
            statistics.setdefault(test, set()).update(own)

    names = set().union(*statistics.values())
    columns = [(name, VALUES) for name in sorted(names)]
    schema = pa.schema([(TEST, pa.string()), (TEXT, pa.int64()), *columns])
    plain = [table.replace_schema_metadata() for table in tables]
    whole = pa.concat_tables([schema.empty_table(), *plain], promote_options="default")
    ordered = whole.sort_by([(TEST, "ascending"), (TEXT, "ascending")])
    by_test = {test: sorted(own) for test, own in statistics.items()}
    return _described(ordered.combine_chunks(), sites, by_test)


def write_parquet(table: pa.Table, sink: Path, owner: str | None) -> None:
    """Writes the table as a Parquet file, with a hash of every column.

    Bytes of a float64 are stored apart (byte-stream split) and compressed (zstd), except
    where a column repeats so few values that a dictionary of them is smaller.
    """
    table = _sealed(table, owner)
    lists = [name for name in table.column_names if name not in (TEST, TEXT)]
    values = {name: pc.list_flatten(table[name]) for name in lists}
    # Few different values, such as 0 and 1.
    repeats = [name for name, of in values.items() if len(of.unique()) < len(of) / 8]
    others = [name for name in lists if name not in repeats]
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=[TEST, *map(_leaf, repeats)],
        column_encoding={_leaf(name): "BYTE_STREAM_SPLIT" for name in others} or None,
        write_statistics=[TEST, TEXT],
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=TEXTS_PER_GROUP)


def _leaf(name: str) -> str:
    """How Parquet calls the values of a list column."""
    return f"{name}.list.element"


# --- Parts: tables on disk -----------------------------------------------------------------------


def append_rows(folder: Path, rows: pa.Table, *, name: str | None = None) -> None:
    """Adds a part, or replaces the one of that name; readers never see half of it.

    Args:
        folder: of the parts; made where there is none.
        rows: as :func:`to_rows` makes them, or several :func:`joined`.
        name: of the part; by default a new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = name or uuid.uuid4().hex
    hidden = half_written(folder / name)
    try:
        write_parquet(rows, hidden, owner(folder))
        os.replace(hidden, folder / f"part-{name}.parquet")
    except BaseException:  # a full disk needs the space
        hidden.unlink(missing_ok=True)
        raise


def owner(folder: Path) -> str | None:
    """SHA-256 of the mark of the audit that a folder of rows is in; None where there is no mark."""
    mark = folder.parent / "audit.json"
    return hashlib.sha256(mark.read_bytes()).hexdigest() if mark.is_file() else None


def read_part(part: Path, tests: Collection[str] | None = None) -> pa.Table:
    """The rows of one part.

    Args:
        part: its file.
        tests: whose statistics alone are read; None: those of all.

    Raises:
        AttnProbeError: it cannot be read, is of another format or of another audit than its
            folder, or has other values than were written.
    """
    wrong = (OSError, ValueError, LookupError, TypeError, NotImplementedError)
    try:
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            said = _said(schema)
            if is_ours := said.get("attnprobe_rows") == VERSION:
                names = {
                    name
                    for test, own in said["statistics"].items()
                    for name in own
                    if tests is None or test in tests
                }
                columns = [TEST, TEXT, *names]
                table = file.read(columns).replace_schema_metadata(schema.metadata)
                is_whole = all(_digest(table[k]) == said["columns"][k] for k in columns)
                if said["check"] != _check_sum(said) or not is_whole:
                    raise ValueError("it was changed since it was written")
    except wrong as error:  # what pyarrow raises
        raise AttnProbeError(f"cannot read the rows in {part}; {AGAIN}") from error
    if not is_ours:
        raise AttnProbeError(
            f"expected rows of this version (a row per text and test) in {part}, found another "
            f"format; {AGAIN}"
        )
    if owner(part.parent) not in (None, said["audit"]):
        raise AttnProbeError(
            f"expected rows of the audit in {part.parent.parent}, those in {part} are of "
            f"another one; {AGAIN}"
        )
    return table


CELL = np.dtype([("value", np.float64), ("is_there", np.bool_)])
"""A value, and whether it is there; a value that is there may be NaN."""
NOT_THERE = np.array((np.nan, False), CELL)


class Block(NamedTuple):
    """The values of one test of a part.

    Attributes:
        test: its name.
        ids: of the texts, int64 [texts].
        sites: layer and head of each place.
        columns: by statistic the :data:`CELL` [texts, sites].
    """

    test: str
    ids: np.ndarray
    sites: Sequence[tuple[int, int]]
    columns: Mapping[str, np.ndarray]


def _blocks(table: pa.Table, only: str | None = None) -> Iterator[Block]:
    """Yields the values of every test, or of one, as matrices."""
    sites = sites_of(table)
    statistics = _said(table.schema)["statistics"]
    of_row = table[TEST].to_numpy(zero_copy_only=False)
    for test in sorted(sites) if only is None else sites.keys() & {only}:
        names = [name for name in statistics[test] if name in table.column_names]
        own = table.select([TEXT, *names]).filter(pa.array(of_row == test))
        columns = {}
        for name in names:
            column = own[name].combine_chunks()
            columns[name] = _matrix(column, len(sites[test]))
        yield Block(test, own[TEXT].to_numpy(), sites[test], columns)


def _matrix(column: pa.ListArray, n_sites: int) -> np.ndarray:
    """Returns lists as cells, [lists, sites]."""
    has = column.is_valid().to_numpy(zero_copy_only=False)
    flat = column.flatten()  # of the lists that are no null
    own = np.empty(len(flat), CELL)
    own["value"] = flat.to_numpy(zero_copy_only=False)
    own["is_there"] = flat.is_valid().to_numpy(zero_copy_only=False)
    cells = np.full((len(has), n_sites), NOT_THERE)
    cells[has] = own.reshape(-1, n_sites)
    return cells


def parts_in(folder: str | Path) -> list[Path]:
    """The files of rows in a folder, by name."""
    return sorted(Path(folder).glob("part-*.parquet"))


def finished_ids(folder: Path) -> dict[Place, set[int]]:
    """The ids of the texts that have rows, by test and site."""
    finished: dict[Place, set[int]] = {}
    for part in parts_in(folder):
        table = read_part(part, tests=())
        for block in _blocks(table):
            ids = block.ids.tolist()
            for site in block.sites:
                finished.setdefault((block.test, *site), set()).update(ids)
    return finished


# --- Many parts as the rows of one audit ---------------------------------------------------------
# A part has all statistics of some texts, a report wants one statistic of all texts. So each
# part is read once and its values laid down, column by column, in a file that nobody else sees.

IN_MEMORY = 2**23
"""Bytes of columns that are kept in memory; more are in a temporary file."""


class _Piece(NamedTuple):
    """Where the values of a statistic of one part lie.

    Attributes:
        texts: the number of their list of ids.
        offset: of the file: of each site the cells.
        sites: number of each site that has a value.
    """

    texts: int
    offset: int
    sites: Mapping[tuple[int, int], int]


class Parts:
    """The rows of parts that are added one by one; a column takes memory while it is read.

    While they are in use they take nine bytes per value of the disk for temporary files.
    """

    def __init__(self) -> None:
        self._texts: list[np.ndarray] = []
        self._pieces: dict[tuple[str, str], list[_Piece]] = {}
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def add(self, table: pa.Table, test: str | None = None) -> None:
        """Lays down the values of a part, or of one test in it.

        Args:
            table: of :func:`to_rows`, or several :func:`joined`.
            test: whose values alone are wanted.
        """
        self._file.seek(0, os.SEEK_END)
        for block in _blocks(table, test):
            if not self._texts or not np.array_equal(self._texts[-1], block.ids):
                self._texts.append(block.ids)
            texts = len(self._texts) - 1
            for name, cells in block.columns.items():
                filled = np.flatnonzero(cells["is_there"].any(0))
                sites = {block.sites[k]: k for k in filled.tolist()}
                piece = _Piece(texts, self._file.tell(), sites)
                pieces = self._pieces.setdefault((block.test, name), [])
                pieces.append(piece)
                self._file.write(cells.T.tobytes())

    def rows(self) -> Rows:
        """Those of the parts so far; of a value that several have that of the first counts."""
        ids = np.unique(np.concatenate([np.empty(0, np.int64), *self._texts]))
        places = [np.searchsorted(ids, own).astype(np.int32) for own in self._texts]
        pieces = {key: (*own,) for key, own in self._pieces.items()}
        columns = {
            (*key, *site) for key, own in pieces.items() for piece in own for site in piece.sites
        }

        def column(wanted: Column) -> np.ndarray:
            cells = np.full(len(ids), NOT_THERE)
            key, site = wanted[:2], wanted[2:]
            for piece in reversed(pieces[key]):
                if site in piece.sites:
                    at = places[piece.texts]
                    n_bytes = CELL.itemsize * len(at)
                    start = piece.sites[site] * n_bytes
                    self._file.seek(piece.offset + start)
                    found = np.frombuffer(self._file.read(n_bytes), CELL)
                    known = found["is_there"]
                    cells[at[known]] = found[known]
            return cells

        return Rows(
            ids=ids,
            columns=tuple(sorted(columns)),
            read=lambda wanted: column(wanted)["value"].copy(),
            is_there=lambda wanted: column(wanted)["is_there"].copy(),
        )

    def finished(self) -> Rows:
        """The rows, where no part is added any more."""
        found = self.rows()
        self._texts.clear()
        return found


def rows_of_parts(tables: Iterable[pa.Table], test: str | None = None) -> Rows:
    """The rows of tables together, or of one test in them, read a column at a time."""
    parts = Parts()
    for table in tables:
        parts.add(table, test)
    return parts.finished()


def rows_in(folder: str | Path, test: str | None = None) -> Rows:
    """The rows of a folder, or of one test, read a column at a time.

    Raises:
        AttnProbeError: see :func:`read_part`.
    """
    wanted = None if test is None else [test]
    return rows_of_parts((read_part(part, wanted) for part in parts_in(folder)), test)


@public_function
def read_rows(folder: str | Path, test: str | None = None) -> pd.DataFrame:
    """All rows of a folder, long: a value per row, each once, by test, statistic, text and site.

    Args:
        folder: ``rows`` in the folder of an audit or a retraining.
        test: whose rows alone are read; None: those of all.

    Returns:
        Columns test, statistic, example_id, layer, head and value. NaN is a value: the
        statistic is undefined for the text.

    Raises:
        AttnProbeError: a part is damaged, of another format, or of another audit than its
            folder.
    """
    return rows_in(folder, test).long()
