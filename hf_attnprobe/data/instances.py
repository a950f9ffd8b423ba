"""Read bags: examples that are lists of instances instead of texts.

An instance is, for example, a patch of a microscope slide, a visit of a patient or an item in a
history. A bag is in a column `features` (one vector per instance) or `items` (one integer per
instance). A cell contains the bag itself, or the path of a file with its features.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.data.columns import PAIR_COLUMNS, TEXT_COLUMNS, TOKENS_COLUMN, read_column


if TYPE_CHECKING:
    import datasets
    import numpy as np


logger = logging.getLogger(__name__)

INSTANCE_COLUMNS = ("features", "items")
"""Names of the column with bags: `features` has one vector per instance, `items` one integer."""
COORDINATES_COLUMN = "coordinates"
"""Name of the optional column with the position of each instance, such as x and y on a slide."""
COORDINATES_NAMES = ("coordinates", "coords")
"""Usual names of the array with coordinates in a file with a bag."""
PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".npz")
"""Suffixes of files that may contain pickled objects, which can run code when they are read."""


def find_instance_column(columns: Sequence[str]) -> str | None:
    """Return the name of the column with bags, or None if there is none.

    Args:
        columns: all column names of a split.
    """
    return next((name for name in INSTANCE_COLUMNS if name in columns), None)


def choose_instance_column(columns: Sequence[str]) -> str | None:
    """Choose the column with bags in a data set whose columns the user did not name.

    A data set with texts is read as texts, even if it also has a column `features` or `items`.

    Args:
        columns: all column names of a split.

    Returns:
        The column name; None if the data has texts, or has no such column.
    """
    present = set(columns)
    has_texts = bool(present & {*TEXT_COLUMNS, TOKENS_COLUMN})
    has_pairs = any(set(pair) <= present for pair in PAIR_COLUMNS)
    return None if has_texts or has_pairs else find_instance_column(columns)


def has_instances(examples: "datasets.Dataset") -> bool:
    """Return whether a split that ``load_examples`` returned contains bags instead of texts."""
    return find_instance_column(examples.column_names) is not None


def read_instances(
    source: "datasets.Dataset", column: str, rows: Sequence[int]
) -> dict[str, list[Any]]:
    """Read the bags in some rows of a split.

    Args:
        source: the split.
        column: the column with the bags.
        rows: indices of the rows to read.

    Returns:
        The bags, as arrays `[instances, size]` under the name `features` or as lists of integers
        under the name `items`. Bags in files are returned as the paths of the files. The data may
        also have `coordinates`, arrays `[instances, dimensions]`.

    Raises:
        AttnProbeError: if a bag is empty, contains anything but finite numbers, is ragged, or has
            vectors of another size than the other bags.
    """
    cells = [_get_plain_cell(source, column, row) for row in rows]
    coordinates: list[Any] = []
    if COORDINATES_COLUMN in source.column_names:
        coordinates = [_get_plain_cell(source, COORDINATES_COLUMN, row) for row in rows]
    first_cell = next((cell for cell in cells if cell is not None), None)
    if isinstance(first_cell, str):
        return _read_bag_paths(cells, coordinates, column, rows)
    name = "items" if column == "items" or _is_item_list(first_cell) else "features"
    convert = _convert_items if name == "items" else _convert_matrix
    bags: list[Any] = [convert(cell, column, row) for cell, row in zip(cells, rows, strict=True)]
    table: dict[str, list[Any]] = {name: bags}
    if name == "features":
        _check_same_size([bag.shape for bag in bags], column, rows)
        # A column of Arrow has a single data type, so bags in single precision are converted if
        # others have double precision.
        dtypes = {bag.dtype for bag in bags}
        if len(dtypes) > 1:
            table[name] = [bag.astype(max(dtypes)) for bag in bags]
    if coordinates:
        table[COORDINATES_COLUMN] = _convert_coordinates(
            coordinates, [len(bag) for bag in bags], rows
        )
    return table


def _read_bag_paths(
    cells: Sequence[Any], coordinates: Sequence[Any], column: str, rows: Sequence[int]
) -> dict[str, list[Any]]:
    """Check bags in files, and return the paths of the files instead of the bags.

    Each bag is read again when it is needed, because all bags together may not fit into memory.

    Args:
        cells: The paths.
        coordinates: Coordinates from the table; empty to read them from the files.
        column: The column with the paths.
        rows: Indices of the rows.

    Returns:
        The paths under the name `features`, and the `coordinates` if all files have them.
    """
    shapes = []
    file_coordinates = []
    for cell, row in zip(cells, rows, strict=True):
        arrays = _read_bag_file(cell, column, row)
        shapes.append(_convert_matrix(arrays["features"], column, row).shape)
        if "coordinates" in arrays:
            file_coordinates.append(arrays["coordinates"])
    _check_same_size(shapes, column, rows)
    table: dict[str, list[Any]] = {"features": list(cells)}
    if not coordinates and len(file_coordinates) == len(cells):
        coordinates = file_coordinates
    elif not coordinates and file_coordinates:
        logger.warning(
            "only %d of %d files in column %r have coordinates, so no coordinates are read",
            len(file_coordinates),
            len(cells),
            column,
        )
    if coordinates:
        lengths = [shape[0] for shape in shapes]
        table[COORDINATES_COLUMN] = _convert_coordinates(coordinates, lengths, rows)
    return table


def iterate_bags(examples: "datasets.Dataset", column: str) -> "Iterator[Any]":
    """Yield the bags of a loaded split: arrays `[instances, size]`, or lists of integers.

    Args:
        examples: a split loaded by ``load_examples``.
        column: `features`, `items` or `coordinates`.
    """
    for row in range(len(examples)):
        yield read_bag(examples, column, row)


def read_bag(examples: "datasets.Dataset", column: str, row: int) -> Any:
    """Return one bag of a loaded split: an array `[instances, size]`, or a list of integers.

    Args:
        examples: a split loaded by ``load_examples``.
        column: `features`, `items` or `coordinates`.
        row: index of the row.

    Raises:
        AttnProbeError: if the file with the bag can no longer be read.
    """
    cell = _get_plain_cell(examples, column, row)
    if isinstance(cell, str):
        return _convert_matrix(_read_bag_file(cell, column, row)["features"], column, row)
    return cell


def _get_plain_cell(source: "datasets.Dataset", column: str, row: int) -> Any:
    """Return the content of a cell; a list of lists of numbers becomes an array.

    Reading an array directly from Arrow is much faster than converting every number to Python.
    """
    import numpy as np
    import pyarrow as pa

    index = row
    if source._indices is not None:
        index = source._indices.column(0)[row].as_py()
    scalar = source.data.column(column)[index]
    is_matrix = isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar)
    values = scalar.values if is_matrix else None
    if values is None or not hasattr(values, "flatten") or not hasattr(values.type, "value_type"):
        return scalar.as_py()
    lengths = values.value_lengths().to_numpy(zero_copy_only=False)
    numbers = values.flatten()
    is_rectangular = len(lengths) > 0 and bool((lengths == lengths[0]).all())
    is_number = pa.types.is_floating(numbers.type) or pa.types.is_integer(numbers.type)
    if not is_rectangular or not is_number or values.null_count or numbers.null_count:
        return scalar.as_py()
    return np.asarray(numbers).reshape(len(lengths), -1)


def _is_item_list(cell: Any) -> bool:
    """Return whether a cell is a list of integers, and not a list of vectors."""
    return isinstance(cell, list) and bool(cell) and not isinstance(cell[0], list)


def _convert_items(cell: Any, column: str, row: int) -> list[int]:
    """Return a bag of integers, or raise AttnProbeError if the cell contains anything else."""
    items = cell if isinstance(cell, list) else []
    # The type must be exactly int, since True is an instance of int too.
    if not items or any(type(item) is not int or item < 0 for item in items):
        raise AttnProbeError(
            f"column {column!r} must contain a list of integers of at least 0 in every row, but row "
            f"{row} has {format_short(cell)}. Correct or drop this row. Bags of vectors are lists of "
            "lists of numbers."
        )
    return items


def _convert_matrix(cell: Any, column: str, row: int) -> "np.ndarray":
    """Return an array `[instances, size]`, or raise AttnProbeError if a cell is no such array."""
    import numpy as np

    lengths = {len(vector) if isinstance(vector, list) else -1 for vector in _list_vectors(cell)}
    if len(lengths) > 1:
        raise AttnProbeError(
            f"column {column!r} must contain vectors of the same size, but row {row} is ragged: its "
            f"instances have the sizes {', '.join(map(str, sorted(lengths)))}. Correct this bag."
        )
    try:
        matrix = np.asarray(cell)
        is_numeric = matrix.dtype.kind in "fiu"
    # NumPy raises several types of exceptions for lists of different objects.
    except Exception:
        is_numeric = False
    if not is_numeric or matrix.ndim != 2 or not matrix.size:
        raise AttnProbeError(
            f"column {column!r} must contain a matrix [instances, size] of numbers in every row, but "
            f"row {row} has {_describe_cell(cell)}. Correct or drop this row."
        )
    # Half precision and integers become float32; other numbers keep their type.
    dtype = np.float64 if matrix.dtype == np.float64 else np.float32
    matrix = matrix.astype(dtype, copy=False)
    if not np.isfinite(matrix).all():
        n_invalid = int((~np.isfinite(matrix)).sum())
        raise AttnProbeError(
            f"column {column!r} must contain finite numbers, but row {row} has {n_invalid} values "
            "that are NaN or infinite. Remove these instances, or correct their values."
        )
    return matrix


def _list_vectors(cell: Any) -> list[Any]:
    """Return the entries of a cell that is a list, and an empty list for any other cell."""
    return cell if isinstance(cell, list) else []


def _describe_cell(cell: Any) -> str:
    """Describe a cell in an error message, such as "an empty cell" or "an array of shape [3]"."""
    if cell is None or (isinstance(cell, list) and not cell):
        return "an empty cell"
    if hasattr(cell, "shape"):
        return f"an array of shape {list(cell.shape)} and type {cell.dtype}"
    return format_short(cell)


def _check_same_size(shapes: Sequence[tuple[int, ...]], column: str, rows: Sequence[int]) -> None:
    """Raise AttnProbeError if two bags of the shapes `[instances, size]` have different sizes."""
    first_size = shapes[0][1]
    for (_, size), row in zip(shapes, rows, strict=True):
        if size != first_size:
            raise AttnProbeError(
                f"all vectors in column {column!r} must have the same size, but row {rows[0]} has "
                f"vectors of size {first_size} and row {row} of size {size}. Use "
                "features from the same encoder for all bags."
            )


def _convert_coordinates(
    cells: Sequence[Any], lengths: Sequence[int], rows: Sequence[int]
) -> list[Any]:
    """Return the coordinates as arrays, and check that each instance has a position."""
    coordinates = []
    for cell, length, row in zip(cells, lengths, rows, strict=True):
        positions = _convert_matrix(cell, COORDINATES_COLUMN, row)
        if len(positions) != length:
            raise AttnProbeError(
                f"column {COORDINATES_COLUMN!r} must have one position per instance, but row {row} "
                f"has {format_count(len(positions), 'position')} and "
                f"{format_count(length, 'instance')}. Correct this row."
            )
        coordinates.append(positions)
    return coordinates


def compute_bag_digest(bag: Any) -> str:
    """Return a string that identifies an array: its shape, data type and a hash of its numbers.

    Args:
        bag: an array, or nested lists of numbers.
    """
    import numpy as np

    numbers = np.ascontiguousarray(bag)
    content = hashlib.sha256(numbers.data).hexdigest()
    return f"{numbers.shape} {numbers.dtype} {content}"


# --- Files with one bag each ---------------------------------------------------------------------


def _read_npy(path: Path) -> "dict[str, np.ndarray]":
    """Read a file of NumPy, without executing code that a pickled array could contain."""
    import numpy as np

    return {"features": np.load(path, allow_pickle=False)}


def _read_safetensors(path: Path) -> "dict[str, np.ndarray]":
    """Read all arrays in a file of safetensors."""
    from safetensors.numpy import load_file

    return dict(load_file(path))


def _read_hdf5(path: Path) -> "dict[str, np.ndarray]":
    """Read all arrays at the top level of an HDF5 file."""
    h5py = import_module("h5py")
    with h5py.File(path, "r") as file:
        return {name: item[()] for name, item in file.items() if isinstance(item, h5py.Dataset)}


BAG_READERS: "Mapping[str, Callable[[Path], dict[str, np.ndarray]]]" = {
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
}
"""Maps the suffix of a file with a bag to the function that reads its arrays by name."""


def _read_bag_file(cell: Any, column: str, row: int) -> "dict[str, np.ndarray]":
    """Read the features, and the coordinates if there are any, from the file that a cell names."""
    if not isinstance(cell, str):
        raise AttnProbeError(
            f"column {column!r} must contain the path of a file in every row, but row {row} has "
            f"{_describe_cell(cell)}. Correct or drop this row."
        )
    path = Path(cell)
    suffix = path.suffix.lower()
    if suffix in PICKLE_SUFFIXES:
        raise AttnProbeError(
            f"row {row} of column {column!r} names {path.name}, but files with the ending {suffix} can "
            "run code when they are opened, so they are not read. Save the features as .npy, "
            ".safetensors or .h5."
        )
    if suffix not in BAG_READERS:
        raise AttnProbeError(
            f"column {column!r} must contain paths with an ending among {', '.join(BAG_READERS)}, but "
            f"row {row} has {format_short(cell)}. Convert this file."
        )
    if not path.is_file():
        raise AttnProbeError(
            f"the file {path} in row {row} of column {column!r} does not exist. Paths are relative to "
            "the folder of the table."
        )
    if BAG_READERS[suffix] is _read_hdf5 and find_spec("h5py") is None:
        raise AttnProbeError(
            f"reading {path} needs the package h5py. Install it with `pip install hf_attnprobe[hdf5]`, or "
            "save the features as .npy."
        )
    try:
        arrays = BAG_READERS[suffix](path)
    # The libraries raise many types of exceptions for damaged files.
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise AttnProbeError(
            f"cannot read the bag in {path} ({reason}). Save its features again as an array "
            "[instances, size] of numbers."
        ) from error
    bag = {}
    for name in COORDINATES_NAMES:
        if name in arrays:
            bag["coordinates"] = arrays.pop(name)
    if "features" not in arrays and len(arrays) != 1:
        raise AttnProbeError(
            f"{path} must contain an array named 'features' at its top level, got "
            f"{', '.join(arrays) or 'no array'}. Rename or move the array of features."
        )
    features = arrays["features"] if "features" in arrays else next(iter(arrays.values()))
    # Files of some tools have an additional first axis of length 1.
    bag["features"] = features[0] if features.ndim == 3 and len(features) == 1 else features
    return bag


def resolve_bag_paths(
    source: "datasets.Dataset", column: str | None, folder: Path
) -> "datasets.Dataset":
    """Make the paths of files with bags absolute.

    Args:
        source: a split that was read from a table in ``folder``.
        column: the column with the bags that the user named; None for `features`.
        folder: the folder of the table.

    Returns:
        The split, unchanged if the column does not exist or contains no strings. Blank cells
        become None.
    """
    column = column or INSTANCE_COLUMNS[0]
    feature = source.features.get(column)
    if getattr(feature, "dtype", None) not in ("string", "large_string"):
        return source
    if choose_instance_column(source.column_names) != column and column == INSTANCE_COLUMNS[0]:
        return source
    paths = [
        None if cell is None or not cell.strip() else str(folder.resolve() / cell)
        for cell in read_column(source, column)
    ]
    return source.remove_columns(column).add_column(column, paths)
