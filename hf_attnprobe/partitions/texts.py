"""The texts of a job, shared out over its partitions once, when it is planned.

A worker reads the file of its partition and nothing else, neither the data set nor other
texts. So its memory does not grow with the data, and data that changes after the plan
changes nothing.
"""

import gc
import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.examples import OpenedSplit, read_split
from hf_attnprobe.data.images import has_images
from hf_attnprobe.data.rows import columns_read
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import RATIONALES, second_texts
from hf_attnprobe.inference.reference import N_REFERENCE
from hf_attnprobe.partitions.plan import partition_of
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.statistics.samples import by_hash


if TYPE_CHECKING:
    import datasets


TEXTS = "texts"
"""The folder of the texts."""
AT_ONCE = 20_000
"""Rows that are in memory while texts are shared out."""


@dataclass(frozen=True)
class Shared:
    """What was seen of the texts while they were shared out; see ``Plan``."""

    texts: list[dict[str, Any]]
    columns: str
    rationales: bool
    spread: float | None
    reference: list[int]


@dataclass
class _Seen:
    """What is gathered from block to block."""

    columns: str = ""
    rationales: bool = False
    labels: list[np.ndarray] = field(default_factory=list)
    reference: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)


def share_out(
    reopen: Callable[[], OpenedSplit],
    store: Store,
    n_partitions: int,
    seed: int,
    limit: int | None,
) -> Shared:
    """Writes the texts of every partition, in the order of their ids.

    Args:
        reopen: opens the split. Done for every block, since pages of a mapped file that
            were read count as memory until it is closed.
        store: of the job.
        n_partitions, seed: of the plan.
        limit: number of texts of a fixed sample; None for all of them.

    Raises:
        AttnProbeError: no texts, or ones that :func:`load_examples` refuses.
    """
    seen = _Seen()
    with tempfile.TemporaryDirectory() as folder:
        for examples in _blocks(reopen):
            _look(seen, examples, limit)
            _spill(examples, Path(folder), n_partitions, seed)
        drawn = None if limit is None else np.asarray(seen.drawn, dtype=np.int64)
        parts = [_write_part(store, k, Path(folder), drawn) for k in range(n_partitions)]
    if not any(part["texts"] for part in parts):
        raise AttnProbeError(
            "the split has no example left after the recipe's filters; choose another with --split"
        )
    return Shared(parts, seen.columns, seen.rationales, _spread(seen), seen.reference)


def read_texts_of(store: Store, k: int, sha256: str) -> "datasets.Dataset":
    """The texts of a partition, as ``load_examples`` gives them.

    Raises:
        AttnProbeError: they are missing, or not those of the plan.
    """
    import datasets

    held = store.read(texts_name(k))
    if held is None or hashlib.sha256(held).hexdigest() != sha256:
        raise AttnProbeError(
            f"{store.url}/{texts_name(k)} is missing or not the one of the plan; make "
            "the plan again in another folder"
        )
    table = pq.read_table(io.BytesIO(held))
    features = datasets.Features.from_arrow_schema(table.schema)
    info = datasets.DatasetInfo(features=features)
    return datasets.Dataset(table, info=info)


def texts_name(k: int) -> str:
    """The file of a partition's texts."""
    return f"{TEXTS}/part-{k:05d}.parquet"


def _blocks(reopen: Callable[[], OpenedSplit]) -> "Iterator[datasets.Dataset]":
    """The split as examples, some thousand rows at a time."""
    opened = reopen()
    ids, n_rows = _ids_of(opened.source), len(opened.rows)
    del opened
    for start in range(0, n_rows, AT_ONCE):
        yield read_split(_block(reopen(), ids, start))
        gc.collect()


def _block(opened: OpenedSplit, ids: np.ndarray, start: int) -> OpenedSplit:
    """Some of the rows, with the ids that they have in the whole split."""
    rows = opened.rows[start : start + AT_ONCE]
    source = opened.source.select(rows)
    if "example_id" in source.column_names:
        source = source.remove_columns("example_id")
    numbered = source.add_column("example_id", ids[np.asarray(rows)])
    return replace(opened, source=numbered, rows=range(len(rows)))


def _ids_of(source: "datasets.Dataset") -> np.ndarray:
    """The ids that ``load_examples`` would give, [rows]."""
    if "example_id" in source.column_names:
        column = source.with_format("arrow")["example_id"][:]
        if pa.types.is_integer(column.type) and not column.null_count:
            ids = column.to_numpy().astype(np.int64)  # no view of a mapped file
            if ids.min() >= 0 and _are_different(ids):
                return ids
    return np.arange(len(source), dtype=np.int64)


def _are_different(ids: np.ndarray) -> bool:
    """Whether no id occurs twice; of ids in order without a copy of all of them."""
    if (ids[1:] > ids[:-1]).all():
        return True
    ids = np.sort(ids)
    return bool((ids[1:] != ids[:-1]).all())


def _look(seen: _Seen, examples: "datasets.Dataset", limit: int | None) -> None:
    """Gathers what the plan says of all texts together."""
    ids = column_of(examples, "example_id")
    seen.columns = columns_read(examples)
    names = RATIONALES & set(examples.column_names)
    seen.rationales |= any(any(column_of(examples, name)) for name in names)
    if _are_numbers(examples):
        seen.labels.append(np.asarray(column_of(examples, "label"), dtype=np.float64))
    seen.reference = _first_by_hash(seen.reference + _with_text(examples), N_REFERENCE)
    if limit is not None:
        seen.drawn = _first_by_hash(seen.drawn + ids, limit)


def _are_numbers(examples: "datasets.Dataset") -> bool:
    feature = examples.features["label"]
    is_single = not hasattr(feature, "feature") and not hasattr(feature, "names")
    return is_single and str(feature.dtype).startswith(("int", "float"))


def _spread(seen: _Seen) -> float | None:
    """Standard deviation of numeric labels; None where they are none, or all equal."""
    labels = np.concatenate(seen.labels) if seen.labels else np.empty(0)
    known = labels[~np.isnan(labels)]
    return float(np.std(known)) or None if len(known) > 1 else None


def _first_by_hash(ids: Sequence[int], n: int) -> list[int]:
    return [ids[k] for k in by_hash(ids)[:n]]


def _with_text(examples: "datasets.Dataset") -> list[int]:
    """Ids of the texts that are not empty, or of images."""
    ids = column_of(examples, "example_id")
    if has_images(examples):
        return ids
    firsts, seconds = column_of(examples, "text"), second_texts(examples)
    pairs = zip(ids, firsts, seconds or [""] * len(ids), strict=True)
    return [example_id for example_id, a, b in pairs if (a + b).strip()]


def _spill(examples: "datasets.Dataset", folder: Path, n_partitions: int, seed: int) -> None:
    """Appends a block's texts to the files of their partitions, on this machine."""
    table = examples.with_format("arrow")[:]
    ids = table["example_id"].to_numpy()
    parts = partition_of(ids, n_partitions, seed)
    order = np.argsort(parts, kind="stable")
    present, starts = np.unique(parts[order], return_index=True)
    for k, rows in zip(present, np.split(order, starts[1:]), strict=True):
        with (folder / f"{k}.arrow").open("ab") as file:
            piece = table.take(pa.array(rows))
            with pa.ipc.new_stream(file, piece.schema) as stream:
                stream.write_table(piece)
    if not (folder / "schema.arrow").exists():
        (folder / "schema.arrow").write_bytes(table.schema.serialize())


def _write_part(store: Store, k: int, folder: Path, drawn: np.ndarray | None) -> dict[str, Any]:
    """The texts of one partition as Parquet; its number of texts and its SHA-256."""
    schema = pa.ipc.read_schema(pa.py_buffer((folder / "schema.arrow").read_bytes()))
    tables = [schema.empty_table(), *_streams(folder / f"{k}.arrow")]
    table = pa.concat_tables(tables, promote_options="default")
    ids = table["example_id"].to_numpy()
    if drawn is not None:
        table = table.filter(pa.array(np.isin(ids, drawn)))
        ids = table["example_id"].to_numpy()
    table = table.take(pa.array(np.argsort(ids))).combine_chunks()
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    store.write(texts_name(k), data)
    return {"texts": table.num_rows, "sha256": hashlib.sha256(data).hexdigest()}


def _streams(file: Path) -> Iterator[pa.Table]:
    """The tables of one stream after the other; none without a file."""
    if not file.exists():
        return
    size = file.stat().st_size
    with file.open("rb") as opened:
        while opened.tell() < size:
            yield pa.ipc.open_stream(opened).read_all()
