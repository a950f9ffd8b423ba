"""Data that people have at hand: lists, dicts of columns, data frames, single files."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.layouts.files import check_fields
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
}
CSV_OPTIONS: dict[str, Any] = {
    "keep_default_na": False,
    "na_values": [""],
    "converters": {"example_id": str},
}
"""So that cells such as NA and None stay texts, and ids past int64 can be read."""
LARGEST_ID = 2**63 - 1


def read_file(path: Path) -> "datasets.Dataset":
    """A single file as one split."""
    import datasets

    kind, options = FORMATS[path.suffix.lower()], {}
    if kind == "csv":
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        check_fields(path, separator)
        options = CSV_OPTIONS | {"sep": separator}
    # a file of this machine, which has no revision
    loaded = datasets.load_dataset(  # nosec B615
        kind, data_files=str(path), **options
    )
    return without_gaps(loaded["train"]) if kind == "csv" else loaded["train"]


def is_empty_parquet(path: Path) -> bool:
    """Whether a file, or all of a folder, is Parquet that can be read and has no rows."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    try:
        rows = [parquet.read_metadata(file).num_rows for file in files]
    except (OSError, pa.ArrowException):
        return False
    return bool(rows) and not any(rows)


def without_gaps(examples: "datasets.Dataset") -> "datasets.Dataset":
    """A table without blanks around its names, empty cells of texts as empty texts.

    Ids are numbers.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.compute as pc

    blank = [name for name in examples.column_names if name != name.strip()]
    examples = examples.rename_columns({name: name.strip() for name in blank})
    table = examples.data.table
    for position, (name, feature) in enumerate(examples.features.items()):
        kind = getattr(feature, "dtype", "")
        if kind in ("string", "large_string") and table[name].null_count:
            filled = pc.fill_null(table[name], "")
            table = table.set_column(position, name, filled)
    filled = datasets.Dataset(table, info=examples.info, split=examples.split)
    if "example_id" not in filled.column_names:
        return filled
    ids = filled.with_format(None)["example_id"][:]
    if not all(str(k).isdecimal() and int(k) <= LARGEST_ID for k in ids):
        return filled
    numbers = pa.array([int(k) for k in ids], pa.int64())
    position = filled.column_names.index("example_id")
    return datasets.Dataset(table.set_column(position, "example_id", numbers))


def is_columns(dataset: Any) -> bool:
    """Whether a mapping is of columns by name, and not of splits."""
    if not isinstance(dataset, Mapping):
        return False
    return not dataset or not all(_is_split(value) for value in dataset.values())


def _is_split(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], Mapping)
    return hasattr(value, "column_names") or hasattr(value, "columns")


def from_memory(dataset: Any) -> "datasets.Dataset | None":
    """Examples in memory as one split; None for what is no such thing.

    A list of texts or of dicts, a dict of columns, a data frame, a `Dataset`.

    Raises:
        AttnProbeError: a column with values of several types, or of different lengths.
    """
    import datasets
    import pandas as pd

    if isinstance(dataset, datasets.Dataset):
        return dataset
    if isinstance(dataset, pd.DataFrame):
        frame = dataset.astype(object).where(dataset.notna(), None)
        return _from_columns({str(name): frame[name].tolist() for name in frame})
    if is_columns(dataset):
        return _from_columns({str(name): _listed(values) for name, values in dataset.items()})
    if not isinstance(dataset, list | tuple):
        return None
    if dataset and all(isinstance(row, str) for row in dataset):
        return _from_columns({"text": list(dataset)})
    if all(isinstance(row, Mapping) for row in dataset):
        names = dict.fromkeys(name for row in dataset for name in row)
        return _from_columns({n: [row.get(n) for row in dataset] for n in names})
    return None


def _listed(values: Any) -> Any:
    """Plain Python values of arrays, series and tuples."""
    return values.tolist() if hasattr(values, "tolist") else values


def _from_columns(columns: Mapping[str, Any]) -> "datasets.Dataset":
    import datasets

    for name, values in columns.items():
        if not isinstance(values, list | tuple):
            raise AttnProbeError(
                f"expected a list of values in column {name!r}, got "
                f"{type(values).__name__}; give every column as a list"
            )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise AttnProbeError(
            f"expected columns of one length, got {counts}; give each text one value"
        )
    usable = {n: values for n, values in columns.items() if _can_be_kept(n, values)}
    for name, values in usable.items():
        _check_one_type(name, values)
        try:
            datasets.Dataset.from_dict({name: values})
        except Exception as reason:  # pyarrow raises many kinds
            short = " ".join(str(reason).split())[:120]
            raise AttnProbeError(
                f"column {name!r} must hold values of one type, also within lists: "
                f"{short}; convert them"
            ) from reason
    return datasets.Dataset.from_dict(usable)


def _can_be_kept(name: str, values: list[Any]) -> bool:
    """Ids past int64 name no text: the rows are numbered instead."""
    if name != "example_id":
        return True
    return not any(isinstance(k, int) and abs(k) > LARGEST_ID for k in values)


def _check_one_type(column: str, values: list[Any]) -> None:
    """Numbers are of one type, whole or not; NaN and None are of any."""
    present = [(row, value) for row, value in enumerate(values) if _is_there(value)]
    kinds = [float if _is_number(value) else type(value) for _, value in present]
    for (row, value), kind in zip(present, kinds, strict=True):
        if kind is not kinds[0]:
            raise AttnProbeError(
                f"column {column!r} must hold values of one type, row {row} is "
                f"{type(value).__name__} after {type(present[0][1]).__name__}; convert "
                "them"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_there(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
