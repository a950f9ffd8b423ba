"""Summaries of parts on disk: made from wide rows, merged without them.

One row per predicted class, test, statistic, layer and head, so that ``pandas`` reads
them too; the same bytes for the same rows.
"""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.merging import (
    KEYS,
    Partial,
    from_lists,
    summary_of_part,
    to_lists,
    with_derived,
)
from hf_attnprobe.storage.wide_rows import METADATA, matrices_of


FORMAT = 2
NUMBERS = ("n", "n_zero", "n_one", "mean", "m2", "m3", "low", "high", "is_brief")


def summary_of_rows(table: pa.Table, n_classes: int) -> Partial:
    """The summary of a part's wide rows, with what answers need paired by text.

    Args:
        table: of :func:`hf_attnprobe.storage.wide_rows.to_wide`.
        n_classes: of the model.
    """
    blocks = [*with_derived(matrices_of(table))]
    return summary_of_part(blocks, n_classes)


def partial_bytes(partial: Partial) -> bytes:
    """A summary as a Parquet file; the same bytes for the same summary."""
    offsets, bins, counts = to_lists(partial.bins)
    whole = pa.int64()
    columns = {
        name: pa.array(partial.keys.get_level_values(name).to_numpy())
        for name in KEYS
        if name not in ("test", "statistic")
    }
    for name in ("test", "statistic"):
        columns[name] = pa.array(list(partial.keys.get_level_values(name)), pa.string())
    columns |= {name: pa.array(getattr(partial, name)) for name in NUMBERS}
    columns |= {
        "bins": _lists(offsets, pa.array(bins, whole)),
        "counts": _lists(offsets, pa.array(counts, whole)),
    }
    described = {"attnprobe_partial": FORMAT, "texts": partial.texts}
    table = pa.table(columns).replace_schema_metadata(
        {METADATA: json.dumps(described, sort_keys=True).encode()}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_statistics=False)
    return sink.getvalue()


def _lists(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def read_partial(source: str | Path | bytes) -> Partial:
    """The summary in a file, or in the bytes of one.

    Raises:
        AttnProbeError: it is none, or of another version.
    """
    is_data = isinstance(source, bytes)
    where = "bytes" if is_data else str(source)
    try:
        table = pq.read_table(pa.BufferReader(source) if is_data else where)
        described = json.loads((table.schema.metadata or {})[METADATA])
        version, texts = int(described["attnprobe_partial"]), described["texts"]
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise AttnProbeError(
            f"cannot read the summary of a part in {where}; delete the part and run its "
            "partition again"
        ) from error
    if version != FORMAT:
        raise AttnProbeError(
            f"expected a summary of version {FORMAT}, {where} is of version {version}; "
            "read it with the hf_attnprobe that made it, or make the job anew"
        )
    return _from_table(table, {int(cell): int(n) for cell, n in texts.items()})


def _from_table(table: pa.Table, texts: dict[int, int]) -> Partial:
    levels = [np.asarray(table[name].to_pylist()) for name in KEYS]
    empty = pd.MultiIndex.from_arrays([[]] * len(KEYS), names=KEYS)
    keys = pd.MultiIndex.from_arrays(levels, names=KEYS) if len(table) else empty
    numbers = {name: _flat(table[name]) for name in NUMBERS}
    bins = table["bins"].combine_chunks()
    return Partial(
        keys=keys,
        bins=from_lists(bins.offsets.to_numpy(), _inner(table["bins"]), _inner(table["counts"])),
        texts=texts,
        **numbers,
    )


def _flat(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().copy()


def _inner(column: pa.ChunkedArray) -> np.ndarray:
    """The values of a list column, one list after the other."""
    return column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
