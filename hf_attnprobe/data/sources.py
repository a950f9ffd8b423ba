"""Open data sets: registered names, folders, single files, Hub ids and objects in memory."""

import csv
import difflib
import errno
import json
import logging
import math
import os
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.options import check_name, is_path
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.data.columns import PAIR_COLUMNS, TEXT_COLUMNS, TOKENS_COLUMN, list_columns
from hf_attnprobe.data.encodings import DEFAULT_ENCODING, find_encoding
from hf_attnprobe.data.instances import BAG_READERS, resolve_bag_paths
from hf_attnprobe.data.recipes import RECIPES, Recipe
from hf_attnprobe.statistics.sampling import order_by_hash


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

FILE_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
}
"""Maps the suffix of a data file to its format, as named in ``datasets.load_dataset``."""
PANDAS_CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
"""Options of ``pandas.read_csv`` that treat only empty cells as missing values.

Cells such as "NA" and "None" thus remain texts.
"""
STRING_COLUMNS = {"example_id", *TEXT_COLUMNS, *chain(*PAIR_COLUMNS)}
"""Columns of a CSV file that are always read as strings.

For example, the text "1984" is not converted to a number.
"""
MAX_EXAMPLE_ID = 2**63 - 1
"""Largest valid example id: the largest 64-bit integer."""
UNWRITABLE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Error numbers of a failed write: full disk, exceeded quota, and read-only file system."""
ENCODED_CONFIGS = ("CsvConfig", "JsonConfig", "TextConfig")
"""Names of the builder configurations in ``datasets`` that read text files with an encoding."""
MAX_CELL_LENGTH = 2**31 - 1
"""Maximum length of a CSV cell, in characters.

Python's default of 131,072 is too small for some texts.
"""


def resolve_recipe(dataset: Any, **recipe_fields: Any) -> Recipe:
    """Find a data set's recipe, and replace its fields with the given settings.

    A recipe describes how a data set is loaded, filtered and split. Data sets that are not
    registered have an empty recipe.

    Args:
        dataset: a name, a Hub id, a path, ``name=folder`` (a folder to which the rules of a
            registered data set are applied), a recipe, or an object in memory.
        **recipe_fields: new values for recipe fields; None keeps the recipe's value.

    Returns:
        The recipe.

    Raises:
        AttnProbeError: if the name before "=" is misspelt, or a path does not exist.
    """
    if isinstance(dataset, str | os.PathLike):
        check_name("dataset", str(dataset))
        dataset = find_recipe(str(dataset))
        if not dataset.name:
            _check_path_exists(dataset.hub_id)
    recipe = dataset if isinstance(dataset, Recipe) else Recipe("")
    changes = {name: value for name, value in recipe_fields.items() if value is not None}
    return replace(recipe, **changes)


def _check_path_exists(name: str) -> None:
    """Raise AttnProbeError if a name that looks like a path or a data file does not exist."""
    path = Path(name)
    if path.exists():
        return
    if path.suffix.lower() in FILE_FORMATS:
        raise AttnProbeError(
            f"the data file {name} does not exist{_describe_search(path)}. Check its path."
        )
    if is_path(name):
        raise AttnProbeError(
            f"the data set {name} does not exist: there is no folder and no file with this "
            f"path{_describe_search(path)}. Check the path."
        )


def _describe_search(path: Path) -> str:
    """Return where a missing file was searched, and the existing name that is most similar to it."""
    parent = path.parent
    if not parent.is_dir():
        return f", and neither does the folder {parent}"
    with suppress(OSError):
        similar_names = difflib.get_close_matches(path.name, os.listdir(parent), n=1)
        if similar_names:
            return f" in {parent.resolve()}, which contains {similar_names[0]}"
    return f" in {parent.resolve()}"


def find_recipe(dataset: str) -> Recipe:
    """Return the recipe for a registered name, a Hub id, a folder, or ``name=folder``.

    Args:
        dataset: the name, Hub id or path that the user gave.

    Returns:
        The registered recipe; for any other data set, a recipe without rules.

    Raises:
        AttnProbeError: if the name before "=" looks like a misspelt registered name.

    >>> find_recipe("sst").hub_id, find_recipe("sst=folder").hub_id
    ('SetFit/sst2', 'folder')
    """
    # A path may contain "=" too, so an existing path is not split.
    name, equals, folder = dataset.partition("=")
    if dataset in RECIPES or not equals or Path(dataset).exists():
        return RECIPES.get(dataset, Recipe(dataset))
    if name in RECIPES:
        recipe = RECIPES[name]
        # A folder that is a copy of the Hub's repository needs the Hub's configuration too.
        readme = Path(folder) / "README.md"
        is_copy = readme.is_file() and f"config_name: {recipe.config}" in readme.read_text()
        return replace(recipe, hub_id=folder, config=recipe.config if is_copy else None)
    similar_names = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.75)
    if similar_names:
        raise AttnProbeError(
            f"unknown data set {name!r} in {dataset!r}. Did you mean {similar_names[0]}={folder}? "
            f"If it is another data set, pass only the folder {folder}."
        )
    return Recipe(folder)


def is_data_file(dataset: Any) -> bool:
    """Return whether the data set is an existing file with a suffix in ``FILE_FORMATS``."""
    if not isinstance(dataset, str | os.PathLike):
        return False
    path = Path(dataset)
    return path.suffix.lower() in FILE_FORMATS and path.is_file()


def may_have_splits(dataset: Any) -> bool:
    """Return whether the data set may have several splits, unlike a single file or table."""
    if isinstance(dataset, Mapping):
        return _holds_splits(dataset)
    return isinstance(dataset, str | os.PathLike | Recipe) and not is_data_file(dataset)


def open_splits(dataset: Any, split: str, recipe: Recipe) -> "dict[str, datasets.Dataset]":
    """Open all splits of a data set.

    Args:
        dataset: the data set: a name, a path, a Hub id or an object in memory.
        split: name to give to the split if there is only one, as in a file.
        recipe: the data set's recipe.

    Returns:
        The splits, with the source's split names as keys.

    Raises:
        AttnProbeError: if the data set cannot be loaded.
    """
    if isinstance(dataset, str | os.PathLike | Recipe):
        splits = _load_splits(recipe, split)
    elif recipe.encoding is not None:
        raise AttnProbeError(
            f"encoding={recipe.encoding!r} is only for files, but the data is in memory. Omit encoding."
        )
    elif isinstance(dataset, Mapping) and _holds_splits(dataset):
        splits = {
            name: _open_single_split(examples, f"split {name!r} of the data set")
            for name, examples in dataset.items()
        }
    else:
        splits = {recipe.splits.get(split, split): _open_single_split(dataset, "the data set")}
    return {name: _strip_column_names(examples) for name, examples in splits.items()}


def _strip_column_names(examples: "datasets.Dataset") -> "datasets.Dataset":
    """Remove the white space around column names, so that every format has the same names.

    Raises:
        AttnProbeError: if two names differ only in white space.
    """
    stripped_names = [name.strip() for name in examples.column_names]
    if len(set(stripped_names)) < len(stripped_names):
        names = ", ".join(map(repr, examples.column_names))
        raise AttnProbeError(
            f"several columns have the same name, apart from spaces around it. Rename one of the "
            f"columns {names}."
        )
    new_names = {name: name.strip() for name in examples.column_names if name != name.strip()}
    return examples.rename_columns(new_names) if new_names else examples


def _open_single_split(dataset: Any, description: str) -> "datasets.Dataset":
    """Convert an object in memory to a split, or raise AttnProbeError if its type is unknown."""
    examples = _convert_to_split(dataset)
    if examples is None:
        raise AttnProbeError(
            f"{description} must be a name, a folder, a file, a Hub id, a Dataset, a DatasetDict, a "
            "DataFrame, a dict of columns, or a list of dicts or texts, got "
            f"{type(dataset).__name__}"
        )
    return examples


def _load_splits(recipe: Recipe, split: str) -> "dict[str, datasets.Dataset]":
    """Load all splits of a data set from a file, a folder or the Hub."""
    import datasets

    path = Path(recipe.hub_id)
    is_saved_dataset = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
    if recipe.name and recipe.hub_id.startswith("./") and not path.exists():
        raise AttnProbeError(
            f"the folder {recipe.hub_id} with the files of {recipe.name} does not exist. If the files "
            f"are in another folder, pass {recipe.name}=FOLDER. To list the required files, run "
            f"`attnprobe datasets {recipe.name}`."
        )
    try:
        if is_data_file(path):
            return {recipe.splits.get(split, split): _read_table(path, recipe)}
        if not is_saved_dataset and _has_bag_files(path):
            return _read_label_tables(path, split, recipe)
        if is_saved_dataset:
            _check_no_encoding(recipe.encoding, recipe.hub_id)
            loaded = datasets.load_from_disk(path)
        else:
            loaded = _load_dataset(
                recipe.hub_id, recipe.config, _list_string_columns(recipe), recipe.encoding
            )
    except AttnProbeError:
        raise
    # datasets, pyarrow, the file system and the network raise many types of exceptions.
    except Exception as error:
        raise AttnProbeError(_explain_load_failure(recipe.hub_id, error)) from error
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _read_table(path: Path, recipe: Recipe) -> "datasets.Dataset":
    """Read a data file. Paths of bags in it are relative to its folder."""
    string_columns = _list_string_columns(recipe)
    examples = read_data_file(path, string_columns, encoding=recipe.encoding)
    return resolve_bag_paths(examples, recipe.instance_column, path.parent)


def _has_bag_files(folder: Path) -> bool:
    """Return whether a folder, or a folder in it, contains files with bags of instances."""
    return folder.is_dir() and any(path.suffix.lower() in BAG_READERS for path in folder.rglob("*"))


def _read_label_tables(folder: Path, split: str, recipe: Recipe) -> "dict[str, datasets.Dataset]":
    """Read the tables with the labels in a folder with bags.

    The folder has one table, or one for each split, such as train.csv and test.csv.

    Args:
        folder: the folder.
        split: name to give to the split if there is only one table.
        recipe: the data set's recipe.
    """
    tables = sorted(path for path in folder.iterdir() if is_data_file(path))
    split_names = {"train", "validation", "test"}
    if len(tables) == 1 and tables[0].stem not in split_names:
        return {recipe.splits.get(split, split): _read_table(tables[0], recipe)}
    names = [path.stem for path in tables]
    if not names or not set(names) <= split_names or len(set(names)) < len(names):
        raise AttnProbeError(
            f"the folder {folder} with bags must contain one table with labels, or one for each split, "
            f"such as train.csv and test.csv, got {', '.join(path.name for path in tables) or 'none'}. "
            "Write a table with the columns features (paths of the bags) and label."
        )
    return {path.stem: _read_table(path, recipe) for path in tables}


def _list_string_columns(recipe: Recipe) -> set[str]:
    """Return the names of columns that are read as strings even if they look like numbers."""
    text_columns = {*list_columns(recipe.text_column), *list_columns(recipe.text_pair_column)}
    label_columns = {*list_columns(recipe.label_column)}
    return (STRING_COLUMNS | text_columns | set(recipe.string_columns)) - label_columns


def _check_no_encoding(encoding: str | None, name: str) -> None:
    """Raise AttnProbeError if an encoding is set for data that are not text files."""
    if encoding is not None:
        raise AttnProbeError(
            f"--encoding is only for CSV, TSV, JSON and text files, but {name} has another format. "
            "Omit --encoding."
        )


def _load_dataset(
    name: str,
    config: str | None,
    string_columns: Collection[str],
    encoding: str | None = None,
) -> Any:
    """Load a data set with ``datasets``, but keep text cells in CSV files unchanged.

    By default, ``datasets`` reads a text such as "NA" as a missing value and a text such as "1984"
    as a number.
    """
    import datasets

    # The newest revision is loaded, since papers name data sets without a revision. Every report
    # records the data's fingerprint.
    builder = datasets.load_dataset_builder(name, config)
    config_class = type(builder.config)
    files: list[Path] = []
    options: dict[str, Any] = {}
    if config_class.__name__ in ENCODED_CONFIGS:
        files = _download_files(builder.config)
        encoding = _find_common_encoding(name, files, encoding, builder.config.encoding)
        if encoding != DEFAULT_ENCODING:
            options["encoding"] = encoding
    else:
        _check_no_encoding(encoding, name)
    if config_class.__name__ == "JsonConfig":
        if "encoding" in options and options["encoding"].startswith(("utf-16", "utf-32")):
            raise AttnProbeError(
                f"the JSON files in {name} are encoded as {encoding}. Save them as UTF-8, or pass a "
                "single file instead of the folder."
            )
        for file in files:
            _check_json_start(file, encoding or DEFAULT_ENCODING)
    if config_class.__name__ == "TextConfig":
        _check_text_files(name, builder.config.data_files or {})
    if config_class.__name__ != "CsvConfig":
        return datasets.load_dataset(name, config, **options)  # nosec B615
    options |= {**PANDAS_CSV_OPTIONS, "converters": dict.fromkeys(string_columns, str)}
    default_config = config_class(sep=builder.config.sep)
    # If the data set's README sets options for pandas, they determine how tables are read, so the
    # header cannot be checked here.
    if builder.config.pd_read_csv_kwargs == default_config.pd_read_csv_kwargs:
        headers = [
            check_table_fields(file, builder.config.sep, encoding=encoding or DEFAULT_ENCODING)
            for file in files
        ]
        options["converters"] = {
            column: str for column in chain(*headers) if column.strip() in string_columns
        }
    loaded = datasets.load_dataset(name, config, **options)  # nosec B615
    return {split: _clean_table(examples) for split, examples in loaded.items()}


def _find_common_encoding(
    name: str, files: Sequence[Path], requested: str | None, declared: str | None
) -> str:
    """Find the encoding of all files of a data set.

    Args:
        name: the data set's name, for the error message.
        files: local paths of the files.
        requested: encoding that the user named, or None.
        declared: encoding in the data set's README; None or "utf-8" if it states none.

    Returns:
        The name of a Python codec.

    Raises:
        AttnProbeError: if a file cannot be decoded, or the files have different encodings.
    """
    if requested is None and declared != "utf-8":
        requested = declared
    encodings = {file: find_encoding(file, requested) for file in files}
    if len(set(encodings.values())) > 1:
        descriptions = ", ".join(f"{file.name} ({codec})" for file, codec in encodings.items())
        raise AttnProbeError(
            f"the files in {name} have different encodings: {descriptions}. Save all of them as UTF-8."
        )
    return next(iter(encodings.values()), DEFAULT_ENCODING)


def _check_text_files(name: str, files_by_split: Mapping[Any, Sequence[Any]]) -> None:
    """Check that plain text files have no labels in the names of their folders, and log a warning.

    Each line of a text file is read as a text without a label. The files in folders such as pos and
    neg would lose their labels.
    """
    for split, files in files_by_split.items():
        folders = sorted({PurePosixPath(Path(file).as_posix()).parent.name for file in files})
        if len(folders) > 1:
            raise AttnProbeError(
                f"the text files of split {str(split)!r} are in the folders {', '.join(folders)}, but "
                "names of folders are not read as labels. Write the texts to a file such as "
                f"{split}.csv with the columns text and label."
            )
    logger.warning(
        "%s contains plain text files; each line is read as a text without a label", name
    )


def _download_files(config: Any) -> list[Path]:
    """Return the local paths of the files of a data set. Files on the Hub are downloaded first."""
    import datasets

    manager = datasets.DownloadManager()
    files_by_split = manager.download_and_extract(config.data_files or {})
    return [Path(file) for files in files_by_split.values() for file in manager.iter_files(files)]


def _explain_load_failure(name: str, error: Exception) -> str:
    """Return an error message that explains why a data set cannot be loaded, and how to fix it."""
    if _is_cache_failure(error):
        return (
            f"cannot write to the Hugging Face cache ({_shorten_error(error)}). Free some disk "
            "space, or set HF_HOME to a writable folder."
        )
    if "BatchSize must be greater" in str(error.__cause__):
        return f"the Parquet files in {name} have no rows"
    if Path(name).is_file() and not Path(name).stat().st_size:
        return f"the data file {name} is empty"
    if Path(name).is_file():
        if Path(name).suffix in FILE_FORMATS:
            return f"cannot read the data file {name!r}: {_shorten_error(error)}"
        advice = "Unpack or convert the file."
        if Path(name).suffix == ".txt":
            # Excel saves "Unicode text" under this ending.
            advice = "If it is a table with tabs between its columns, rename it to .tsv."
        return f"{name!r} is not a data file with one of the endings {', '.join(FILE_FORMATS)}. {advice}"
    if Path(name).is_dir():
        return (
            f"cannot load the data set in the folder {name!r} ({_shorten_error(error)}). Check that it "
            "contains data files with one of the endings "
            f"{', '.join(FILE_FORMATS)}, or a data set that save_to_disk wrote."
        )
    return (
        f"there is no folder or file {name!r}{_describe_search(Path(name))}, and the data set cannot be "
        f"loaded from the Hugging Face Hub ({_shorten_error(error)}). Pass a folder, a data file, a Hub "
        "id, or a name that `attnprobe datasets` lists."
    )


def _is_cache_failure(error: BaseException | None) -> bool:
    """Return whether an error was caused by a full disk or an unwritable cache folder."""
    from datasets.config import HF_DATASETS_CACHE

    cache_folders = [HF_DATASETS_CACHE, *map(str, Path(HF_DATASETS_CACHE).parents)]
    # Check the error itself, its cause, the cause of this cause, and so on.
    while error is not None:
        is_unwritable = isinstance(error, OSError) and error.errno in UNWRITABLE_ERRNOS
        # datasets raises an OSError without an error number if the disk is full.
        is_disk_full = "Not enough disk space" in str(error)
        is_cache_folder = str(getattr(error, "filename", "")) in cache_folders
        if is_unwritable or is_disk_full or is_cache_folder:
            return True
        error = error.__cause__ or error.__context__
    return False


def _shorten_error(error: Exception) -> str:
    """Return the messages of an error and its cause in one line, with at most 200 characters."""
    messages = [str(exception) for exception in (error, error.__cause__) if exception is not None]
    joined_messages = ": ".join(filter(None, messages))
    line = " ".join(joined_messages.split()) or type(error).__name__
    return line if len(line) <= 200 else line[:199] + "…"


# --- Tables and objects in memory ----------------------------------------------------------------


COLUMN_SEPARATORS = ",;\t|"
"""Characters that can separate the columns in a .csv file."""


def detect_separator(path: Path, encoding: str = DEFAULT_ENCODING) -> str:
    """Detect the column separator of a .csv or .tsv file.

    It is a tab for .tsv, and otherwise the separator that is most frequent in the header.

    Args:
        path: the file.
        encoding: its encoding.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding=encoding, errors="replace") as file:
        header = file.readline()
    return max(COLUMN_SEPARATORS, key=header.count)


MAX_JSON_SIZE_TO_PEEK = 20_000_000
"""Maximum size, in bytes, of a JSON file that is read only to list its columns."""


def list_file_columns(path: Path, encoding: str | None = None) -> list[str] | None:
    """List the column names of a data file, without reading its rows if possible.

    Args:
        path: a file with a suffix in ``FILE_FORMATS``.
        encoding: encoding that the user named, or None.

    Returns:
        The names without white space around them; None for a large JSON file, whose columns are
        only known when all rows are read.

    Raises:
        AttnProbeError: if the file cannot be read.
    """
    file_format = FILE_FORMATS[path.suffix.lower()]
    if file_format == "csv":
        codec = find_encoding(path, encoding)
        names = check_table_fields(path, detect_separator(path, codec), encoding=codec)
    elif file_format == "parquet":
        import pyarrow.parquet as parquet

        try:
            names = parquet.read_schema(path).names
        # The reader of the whole file explains the error.
        except Exception:
            return None
    elif path.stat().st_size > MAX_JSON_SIZE_TO_PEEK:
        return None
    else:
        names = read_data_file(path, encoding=encoding).column_names
    return [name.strip() for name in names]


def read_data_file(
    path: Path,
    string_columns: Collection[str] = STRING_COLUMNS,
    *,
    encoding: str | None = None,
) -> "datasets.Dataset":
    """Read a single data file into memory.

    Unlike ``datasets.load_dataset``, this function does not need a writable cache folder.

    Args:
        path: a file with a suffix in ``FILE_FORMATS``.
        string_columns: columns to read as strings from a CSV or TSV file.
        encoding: encoding of a CSV, TSV or JSON file; None for UTF-8, or for the encoding that the
            file's byte order mark announces.

    Returns:
        The rows.

    Raises:
        AttnProbeError: if the file cannot be decoded or has no rows, the rows differ in length, or
            a column has mixed types.
    """
    import datasets
    import pandas as pd

    file_format = FILE_FORMATS[path.suffix.lower()]
    if file_format == "parquet":
        _check_no_encoding(encoding, str(path))
        examples = datasets.Dataset(_read_parquet(path))
    elif file_format == "json":
        examples = _read_json(path, find_encoding(path, encoding), string_columns)
    else:
        codec = find_encoding(path, encoding)
        separator = detect_separator(path, codec)
        header = check_table_fields(path, separator, encoding=codec)
        converters = {column: str for column in header if column.strip() in string_columns}
        options = {"sep": separator, "encoding": codec, "converters": converters}
        frame = pd.read_csv(path, **options, **PANDAS_CSV_OPTIONS)
        examples = _clean_table(datasets.Dataset.from_pandas(frame, preserve_index=False))
    if not len(examples):
        raise AttnProbeError(f"the data file {path} has no rows")
    return examples


def _read_parquet(path: Path) -> Any:
    """Read a Parquet file as a pyarrow table."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if not path.stat().st_size:
        raise AttnProbeError(f"the data file {path} is empty")
    try:
        return parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise AttnProbeError(
            f"{path} is not a complete Parquet file ({_shorten_error(error)}). Write it again, or "
            "correct the ending of its name."
        ) from error


def _read_json(
    path: Path, encoding: str, string_columns: Collection[str] = STRING_COLUMNS
) -> "datasets.Dataset":
    """Read a JSON file with a list of rows, or with one row per line.

    pyarrow is not used, since it converts texts that look like dates, and aborts the process if a
    file starts with null.
    """
    _check_json_start(path, encoding)
    content = path.read_text(encoding=encoding)
    rows: Any
    try:
        rows = json.loads(content)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise AttnProbeError(_explain_json_error(path, error)) from error
        rows = _read_json_lines(path, content)
    if isinstance(rows, Mapping):
        _check_single_row(path, rows, string_columns)
        rows = [rows]
    examples = _convert_to_split(rows)
    if examples is None:
        wrong_row = next(row for row in rows if not isinstance(row, Mapping))
        raise AttnProbeError(
            f"{path} must contain one JSON object per row, got {format_short(wrong_row)}. Write each "
            "row as an object with the column names as keys."
        )
    return examples


def _read_json_lines(path: Path, content: str) -> list[Any]:
    """Parse a JSON file with one row per line; a wrong line raises AttnProbeError."""
    rows = []
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise AttnProbeError(_explain_json_error(path, error, number)) from error
    return rows


def _explain_json_error(path: Path, error: json.JSONDecodeError, line: int | None = None) -> str:
    """Return an error message with the line and the column at which a file is not valid JSON."""
    line = error.lineno if line is None else line
    return (
        f"{path} is not valid JSON: line {line}, column {error.colno} ({error.msg}). Correct this line. "
        "Each line must contain one complete object, or the file must contain one list of objects."
    )


def _check_single_row(path: Path, row: Mapping[str, Any], string_columns: Collection[str]) -> None:
    """Raise AttnProbeError if a JSON file's only object is not a row but contains the rows."""
    if _holds_columns(row):
        raise AttnProbeError(
            f"{path} contains one object per column instead of one per row. If pandas wrote the file, "
            "use to_json(…, orient='records', lines=True)."
        )
    if row.keys() & {*string_columns, TOKENS_COLUMN}:
        return
    for name, value in row.items():
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            raise AttnProbeError(
                f"{path} contains a single object, and its list {name!r} seems to contain the rows. "
                f"Save only the list {name!r} as a file."
            )


def _holds_columns(row: Mapping[str, Any]) -> bool:
    """Return whether an object has the format of ``DataFrame.to_json``, without further options.

    This is an object of columns, each of which is an object with the row names as keys.
    """
    columns = [*row.values()]
    are_objects = bool(columns) and all(isinstance(column, Mapping) for column in columns)
    return are_objects and all(
        column and column.keys() == columns[0].keys() and all(key.isdigit() for key in column)
        for column in columns
    )


def _check_json_start(path: Path, encoding: str = DEFAULT_ENCODING) -> None:
    """Raise AttnProbeError if a JSON file is empty, or does not start with an object or a list.

    Some of these files would make pyarrow abort the process.
    """
    with path.open(encoding=encoding, errors="replace") as file:
        nonblank_lines = (line.strip() for line in file if line.strip())
        first_character = next(nonblank_lines, "")[:1]
    if not first_character:
        raise AttnProbeError(f"the data file {path} is empty")
    if first_character not in "{[":
        raise AttnProbeError(
            f"{path} must contain one JSON object per row, but starts with "
            f"{format_short(first_character)}. Write one object per line, or a list of objects."
        )


def _clean_table(examples: "datasets.Dataset") -> "datasets.Dataset":
    """Clean a table that was read from a CSV file.

    White space around column names is removed. Empty cells in string columns become empty strings.
    """
    import datasets
    import pyarrow.compute as pc

    padded_names = [name for name in examples.column_names if name != name.strip()]
    examples = examples.rename_columns({name: name.strip() for name in padded_names})
    table = examples.data.table
    for position, (name, feature) in enumerate(examples.features.items()):
        if getattr(feature, "dtype", "") in ("string", "large_string"):
            column = pc.fill_null(table[name], "")
            table = table.set_column(position, name, column)
    return datasets.Dataset(table)


def _holds_splits(dataset: Mapping[str, Any]) -> bool:
    """Return whether the values of a mapping are splits rather than columns."""
    return bool(dataset) and all(map(_is_split, dataset.values()))


def _is_split(value: Any) -> bool:
    """Return whether an object in memory is a split (a table or a list of dicts), not a column."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], Mapping)
    return hasattr(value, "column_names") or hasattr(value, "columns")


def _convert_to_split(dataset: Any) -> "datasets.Dataset | None":
    """Convert an object in memory to a split.

    Args:
        dataset: a list of texts or dicts, a dict of columns, a data frame, or a ``Dataset``.

    Returns:
        The split; None for any other type.

    Raises:
        AttnProbeError: if a column has mixed types, or columns differ in length.
    """
    import datasets
    import pandas as pd

    if isinstance(dataset, datasets.Dataset):
        return dataset
    if isinstance(dataset, pd.DataFrame):
        if not dataset.columns.is_unique:
            raise AttnProbeError(
                "several columns have the same name. Rename one of the columns "
                f"{', '.join(map(str, dataset.columns))}."
            )
        frame = dataset.astype(object).where(dataset.notna(), None)
        return _build_from_columns(dict(frame.items()))
    if isinstance(dataset, Mapping) and not _holds_splits(dataset):
        return _build_from_columns(dataset)
    if not isinstance(dataset, list | tuple):
        return None
    if any(isinstance(row, str) for row in dataset) and all(
        isinstance(row, str) or _is_missing(row) for row in dataset
    ):
        return _build_from_columns({"text": list(dataset)})
    if all(isinstance(row, Mapping) for row in dataset):
        names = dict.fromkeys(name for row in dataset for name in row)
        return _build_from_columns({name: [row.get(name) for row in dataset] for name in names})
    return None


def _build_from_columns(columns: Mapping[Any, Any]) -> "datasets.Dataset":
    """Build a split from lists of values by column name."""
    import datasets

    lists: dict[str, list[Any]] = {}
    for name, values in columns.items():
        # NumPy arrays and pandas series have tolist, which returns plain Python values.
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, list | tuple):
            raise AttnProbeError(
                f"column {name!r} must be a list of values, got {type(values).__name__}"
            )
        lists[str(name)] = _replace_missing(list(values))
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise AttnProbeError(f"all columns must have the same length, got {counts}")
    valid_columns = []
    for name, values in lists.items():
        try:
            valid_columns.append(datasets.Dataset.from_dict({name: values}))
        # pyarrow raises many types of exceptions.
        except Exception as error:
            reason = " ".join(str(error).split())[:120]
            raise AttnProbeError(
                f"column {name!r} must contain values of the same type ({reason}); convert them"
            ) from error
    if not valid_columns:
        return datasets.Dataset.from_dict({})
    return datasets.concatenate_datasets(valid_columns, axis=1)


def _is_missing(value: Any) -> bool:
    """Return whether a cell is None or NaN, the marks of a missing value in Python and pandas."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _replace_missing(values: list[Any]) -> list[Any]:
    """Replace NaN by None in a column of strings, as a missing cell of a file is read."""
    if not any(isinstance(value, str) for value in values):
        return values
    return [None if _is_missing(value) else value for value in values]


def check_table_fields(
    path: Path,
    separator: str,
    quoting: Literal[0, 1, 2, 3] = csv.QUOTE_MINIMAL,
    *,
    encoding: str = DEFAULT_ENCODING,
) -> list[str]:
    """Check that every row in a table has as many fields as the header, and return the header.

    pandas would not report such an error: it uses surplus fields in the first row as an index, which
    shifts all columns, and adds missing fields to short rows.

    Args:
        path: the CSV or TSV file.
        separator: the column separator.
        quoting: a quoting constant from the module ``csv``, such as ``csv.QUOTE_MINIMAL``.
        encoding: the file's encoding.

    Returns:
        The column names as written, including white space around them.

    Raises:
        AttnProbeError: if a row has more or fewer fields than the header, two columns have the same
            name, or a .tsv file has no tabs.
    """
    default_limit = csv.field_size_limit(MAX_CELL_LENGTH)
    try:
        # Undecodable bytes are replaced here, since the reader of the table reports them.
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            lines = csv.reader(file, delimiter=separator, quoting=quoting)
            rows = (row for row in lines if len(row) > 1 or "".join(row).strip())
            header = next(rows, [])
            _check_has_separator(path, separator, header)
            for number, row in enumerate(rows):
                if len(row) != len(header):
                    raise AttnProbeError(
                        f"{path}, row {number} (line {lines.line_num}) has {len(row)} fields, but the "
                        f"header has {len(header)}. Put each text that contains {separator!r} in "
                        "double quotes."
                    )
    finally:
        csv.field_size_limit(default_limit)
    names = [name.strip() for name in header]
    nonempty_names = list(filter(None, names))
    if len(set(nonempty_names)) < len(nonempty_names):
        raise AttnProbeError(
            f"several columns in {path} have the same name. Rename one of the columns "
            f"{', '.join(names)}."
        )
    return header


def _check_has_separator(path: Path, separator: str, header: Sequence[str]) -> None:
    """Raise AttnProbeError if the header of a .tsv file has other separators instead of tabs."""
    if separator != "\t" or len(header) != 1:
        return
    (only_field,) = header
    other_separators = [mark for mark in COLUMN_SEPARATORS if mark in only_field]
    if other_separators:
        raise AttnProbeError(
            f"{path} ends in .tsv, so its columns must be separated by tabs, but its header "
            f"{format_short(only_field)} contains {other_separators[0]!r} and no tab. If this is the "
            "separator, rename the file so that it ends in .csv."
        )


def split_by_holdout(
    splits: "Mapping[str, datasets.Dataset]", share: float
) -> "dict[str, datasets.Dataset]":
    """Divide a single split into train, validation and test.

    A row is assigned to a split by a hash of its number, so it is always in the same split.

    Args:
        splits: the data set's splits; there must be exactly one.
        share: share to use for testing, from 0 to 1; validation gets the same share.

    Returns:
        The splits train, validation and test.

    Raises:
        AttnProbeError: if there are several splits, or too few rows for the share.
    """
    if len(splits) != 1:
        raise AttnProbeError(
            f"--holdout is only for a data set with one split, got {', '.join(splits)}. Omit "
            "--holdout."
        )
    (source,) = splits.values()
    n_test = round(share * len(source))
    if n_test == 0:
        raise AttnProbeError(
            f"--holdout {share:g} selects no text of {format_count(len(source), 'row')}; increase "
            "it"
        )
    order = order_by_hash(range(len(source)))
    rows_by_split = {
        "train": order[2 * n_test :],
        "validation": order[n_test : 2 * n_test],
        "test": order[:n_test],
    }
    return {name: source.select(sorted(rows)) for name, rows in rows_by_split.items()}


def draw_holdout_rows(labels: Sequence[Any], share: float, seed: int) -> set[int]:
    """Draw a random sample with the same share from every class.

    Args:
        labels: one label per row.
        share: share to draw from each class, from 0 to 1.
        seed: random seed; the same seed always gives the same rows.

    Returns:
        The drawn row indices.

    >>> sorted(draw_holdout_rows(["a", "a", "b", "b"], 0.5, seed=0))
    [1, 3]
    """
    rows_by_label: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        rows_by_label.setdefault(label, []).append(row)
    generator = random.Random(seed)
    drawn_rows: set[int] = set()
    for label in sorted(rows_by_label):
        rows = rows_by_label[label]
        drawn_rows.update(generator.sample(rows, round(share * len(rows))))
    return drawn_rows
