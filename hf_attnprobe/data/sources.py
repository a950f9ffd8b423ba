"""Where data sets come from: names, folders, single files, the Hub, memory."""

import csv
import difflib
import errno
import json
import os
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import check_name, check_path
from hf_attnprobe.core.serialization import in_short
from hf_attnprobe.data.columns import KNOWN_PAIRS, SINGLE, each
from hf_attnprobe.data.recipes import RECIPES, Recipe
from hf_attnprobe.statistics.sampling import by_hash


if TYPE_CHECKING:
    import datasets


FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
}
CSV_OPTIONS: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
"""So that cells such as NA and None stay texts."""
AS_TEXT = {"example_id", *SINGLE, *chain(*KNOWN_PAIRS)}
"""Columns whose cells are kept as they are written: years are texts, and ids may be past int64."""
LARGEST_ID = 2**63 - 1
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""The system's numbers of a full disk, a full share of one, one that is only read."""
LONGEST_FIELD = 2**31 - 1
"""Characters of a cell, in place of the few that Python's csv takes."""


def recipe_of(dataset: Any, **given: Any) -> Recipe:
    """How a data set is split: by the recipe of its name, or as its source has it.

    Args:
        dataset: ``name=folder`` is a folder that is cut as the data set of that name.
        given: fields of the recipe; those that are not None replace its own.

    Raises:
        AttnProbeError: ``name`` is none, but nearly one; or a path where nothing is.
    """
    if isinstance(dataset, str | os.PathLike):
        check_name("dataset", str(dataset))
        dataset = named(str(dataset))
        if not dataset.name:
            _check_path(dataset.hub_id)
    recipe = dataset if isinstance(dataset, Recipe) else Recipe("")
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(recipe, **changes)


def _check_path(place: str) -> None:
    """Raises AttnProbeError if a path, or a name that ends as a file, does not exist."""
    check_path("data set", place)
    path = Path(place)
    if path.suffix.lower() in FORMATS and not path.exists():
        raise AttnProbeError(f"expected a data set, there is no file {place} in {Path.cwd()}")


def named(dataset: str) -> Recipe:
    """Recipe for a name, a Hub id, a folder, or ``name=folder``.

    >>> named("sst").hub_id, named("sst=folder").hub_id, named("sst=folder").longer_than
    ('SetFit/sst2', 'folder', 5)
    """
    name, equals, folder = dataset.partition("=")
    if dataset in RECIPES or not equals or Path(dataset).exists():
        return RECIPES.get(dataset, Recipe(dataset))
    if name in RECIPES:
        recipe = RECIPES[name]
        # The Hub's configuration, where the folder is a copy of what is there.
        card = Path(folder) / "README.md"
        is_copy = card.is_file() and f"config_name: {recipe.config}" in card.read_text()
        return replace(recipe, hub_id=folder, config=recipe.config if is_copy else None)
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.75)
    if near:
        raise AttnProbeError(
            f"expected a known name before =, got {name!r}; did you mean "
            f"{near[0]}={folder}? Give {folder} alone for a data set without a recipe"
        )
    return Recipe(folder)


def is_file(dataset: Any) -> bool:
    """Whether the data set is a single file of a known type."""
    if not isinstance(dataset, str | os.PathLike):
        return False
    path = Path(dataset)
    return path.suffix.lower() in FORMATS and path.is_file()


def has_splits(dataset: Any) -> bool:
    """Whether the data set may have several splits."""
    if isinstance(dataset, Mapping):
        return _are_splits(dataset)
    return isinstance(dataset, str | os.PathLike | Recipe) and not is_file(dataset)


def open_splits(dataset: Any, split: str, recipe: Recipe) -> "dict[str, datasets.Dataset]":
    """All splits, by the source's names; a single split is called ``split``."""
    if isinstance(dataset, str | os.PathLike | Recipe):
        return _load(recipe, split)
    if isinstance(dataset, Mapping) and _are_splits(dataset):
        return {
            name: _one_split(examples, f"split {name!r} of the data set")
            for name, examples in dataset.items()
        }
    return {recipe.splits.get(split, split): _one_split(dataset, "the data set")}


def _one_split(dataset: Any, name: str) -> "datasets.Dataset":
    examples = _from_memory(dataset)
    if examples is None:
        raise AttnProbeError(
            "expected a name, a folder, a file, a Hub id, a Dataset, a DatasetDict, a "
            "DataFrame, a dict of columns or a list of dicts or of texts as "
            f"{name}, got {type(dataset).__name__}; convert it to one of them"
        )
    return examples


def _load(recipe: Recipe, split: str) -> "dict[str, datasets.Dataset]":
    import datasets

    path = Path(recipe.hub_id)
    markers = ("dataset_dict.json", "state.json")
    is_saved = any((path / name).is_file() for name in markers)
    if recipe.name and recipe.hub_id.startswith("./") and not path.exists():
        raise AttnProbeError(
            f"expected a folder of data files at {recipe.hub_id}, which is not there; "
            f"`attnprobe datasets {recipe.name}` says what to bring, and "
            f"{recipe.name}=FOLDER as the data set says where it is"
        )
    try:
        if is_file(path):
            return {recipe.splits.get(split, split): read_file(path, _texts_of(recipe))}
        if is_saved:
            loaded = datasets.load_from_disk(path)
        else:
            loaded = _load_dataset(recipe.hub_id, recipe.config, _texts_of(recipe))
    except AttnProbeError:  # of a table's fields
        raise
    except Exception as reason:
        # datasets, pyarrow, the file system and the network raise many kinds.
        raise AttnProbeError(_cannot_load(recipe.hub_id, reason)) from reason
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _texts_of(recipe: Recipe) -> set[str]:
    """The columns of a table that are read as texts, whatever they look like."""
    named = [recipe.text_column, recipe.text_pair_column, recipe.label_column]
    text, pair, labels = (set(each(one)) for one in named)
    return (AS_TEXT | text | pair | {*recipe.as_text}) - labels


def _load_dataset(name: str, config: str | None, texts: Collection[str]) -> Any:
    """Like ``datasets.load_dataset``, but cells such as "NA" stay texts."""
    import datasets

    builder = datasets.load_dataset_builder(name, config)
    kind = type(builder.config).__name__
    # the data set as it is now, as papers name it; its fingerprint is in every report
    if kind == "JsonConfig":
        for file in _files_of(builder.config):
            _check_json(file)
    if kind != "CsvConfig":
        return datasets.load_dataset(name, config)  # nosec B615
    options = {**CSV_OPTIONS, "converters": dict.fromkeys(texts, str)}
    usual = type(builder.config)(sep=builder.config.sep)
    # else their README tells how to read the tables
    if builder.config.pd_read_csv_kwargs == usual.pd_read_csv_kwargs:
        headers = [check_fields(file, builder.config.sep) for file in _files_of(builder.config)]
        options["converters"] = {name: str for name in chain(*headers) if name.strip() in texts}
    loaded = datasets.load_dataset(name, config, **options)  # nosec B615
    return {split: _without_gaps(examples) for split, examples in loaded.items()}


def _files_of(config: Any) -> list[Path]:
    """The files of a data set on this machine, fetched where they are on the Hub."""
    import datasets

    manager = datasets.DownloadManager()
    of_splits = manager.download_and_extract(config.data_files or {}).values()
    return [Path(file) for files in of_splits for file in manager.iter_files(files)]


def _cannot_load(name: str, reason: Exception) -> str:
    """One line that says why a data set cannot be loaded, and what to do."""
    if _is_of_the_cache(reason):
        return (
            f"cannot write to Hugging Face's cache ({_in_short(reason)}); make room "
            "there, or set HF_HOME to a folder that can be written to"
        )
    if "BatchSize must be greater" in str(reason.__cause__):
        return f"expected examples in {name}, its Parquet files have no rows; write some"
    if Path(name).is_file() and not Path(name).stat().st_size:
        return f"expected examples in {name}, the file is empty; write some"
    if Path(name).is_file():
        cause = f", which cannot be read: {_in_short(reason)}"
        if Path(name).suffix not in FORMATS:
            cause = "; unpack it, or write it as one of them"
        return f"expected a file ending in {', '.join(FORMATS)}, got {name!r}{cause}"
    return (
        "expected a folder of data files, a file, a Hub id or a name that attnprobe datasets "
        f"lists, got {name!r}, which cannot be loaded: {_in_short(reason)}; without a "
        "network give NAME=FOLDER, or set HF_HUB_OFFLINE=1"
    )


def _is_of_the_cache(reason: BaseException | None) -> bool:
    """Whether an error comes from a full or read-only disk, or a home that is none."""
    from datasets.config import HF_DATASETS_CACHE

    places = [HF_DATASETS_CACHE, *map(str, Path(HF_DATASETS_CACHE).parents)]
    while reason is not None:
        is_known = isinstance(reason, OSError) and reason.errno in CANNOT_WRITE
        # datasets has no number for a full disk
        is_full = "Not enough disk space" in str(reason)
        is_place = str(getattr(reason, "filename", "")) in places
        if is_known or is_full or is_place:
            return True
        reason = reason.__cause__ or reason.__context__
    return False


def _in_short(reason: Exception) -> str:
    """Messages of an error and its cause in one line of 200 characters."""
    messages = [str(error) for error in (reason, reason.__cause__) if error is not None]
    text = " ".join(": ".join(filter(None, messages)).split())
    text = text or type(reason).__name__
    return text if len(text) <= 200 else text[:199] + "…"


# --- tables and memory ---------------------------------------------------------------------------


SEPARATORS = ",;\t|"


def separator_of(path: Path) -> str:
    """Returns what separates the columns of a table: a tab in .tsv, else by its header."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline()
    return max(SEPARATORS, key=header.count)


def read_file(path: Path, texts: Collection[str] = AS_TEXT) -> "datasets.Dataset":
    """Reads a table whole; what needs no cache cannot fail by one.

    Args:
        path: ends in one of :data:`FORMATS`.
        texts: columns of a CSV or TSV file whose cells are kept as they are written.

    Raises:
        AttnProbeError: rows of different lengths, no rows, values of several types in a column.
    """
    import datasets
    import pandas as pd
    import pyarrow.parquet as parquet

    kind = FORMATS[path.suffix.lower()]
    if kind == "parquet":
        examples = datasets.Dataset(parquet.read_table(path))
    elif kind == "json":
        examples = _of_json(path)
    else:
        separator = separator_of(path)
        header = check_fields(path, separator)
        kept = {name: str for name in header if name.strip() in texts}
        frame = pd.read_csv(path, sep=separator, converters=kept, **CSV_OPTIONS)
        examples = _without_gaps(datasets.Dataset.from_pandas(frame, preserve_index=False))
    if not len(examples):
        raise AttnProbeError(f"expected examples in {path}, it has no rows; write some")
    return examples


def _of_json(path: Path) -> "datasets.Dataset":
    """A list of rows, or a row per line; texts are no dates and dates no numbers.

    pyarrow, which reads faster, makes dates of texts and ends the process at a null in front.
    """
    _check_json(path)
    text = path.read_text(encoding="utf-8-sig")
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    examples = _from_memory([rows] if isinstance(rows, Mapping) else rows)
    if examples is None:
        odd = next(row for row in rows if not isinstance(row, Mapping))
        raise AttnProbeError(
            f"expected a list of rows, or a row per line, as names with values in {path}, got "
            f"{in_short(odd)}; mend it"
        )
    return examples


def _check_json(path: Path) -> None:
    """Raises AttnProbeError for JSON that begins as no rows do; pyarrow dies of some of it."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line.strip()[0] for line in file if line.strip()), "")
    if not first:
        raise AttnProbeError(f"expected examples in {path}, the file is empty; write some")
    if first not in "{[":
        raise AttnProbeError(
            f"expected a list of rows, or a row per line, in {path}, which begins with "
            f"{in_short(first)}; write rows as names with values"
        )


def _without_gaps(examples: "datasets.Dataset") -> "datasets.Dataset":
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
        if getattr(feature, "dtype", "") in ("string", "large_string"):
            column = pc.fill_null(table[name], "")
            if name == "example_id":
                with suppress(pa.ArrowInvalid):  # names that are no numbers stay
                    column = pc.cast(column, pa.int64())
            table = table.set_column(position, name, column)
    return datasets.Dataset(table)


def _are_splits(dataset: Mapping[str, Any]) -> bool:
    """Whether a mapping holds splits rather than columns."""
    return bool(dataset) and all(map(_is_split, dataset.values()))


def _is_split(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], Mapping)
    return hasattr(value, "column_names") or hasattr(value, "columns")


def _from_memory(dataset: Any) -> "datasets.Dataset | None":
    """Examples in memory as one split; None for other objects.

    A list of texts or of dicts, a dict of columns, a data frame, a `Dataset`.

    Raises:
        AttnProbeError: a column with values of several types, or of different lengths.
    """
    import datasets
    import pandas as pd

    if isinstance(dataset, datasets.Dataset):
        return dataset
    if isinstance(dataset, pd.DataFrame):
        if not dataset.columns.is_unique:
            raise AttnProbeError(
                "expected columns with a name each, got "
                f"{', '.join(map(str, dataset.columns))}; rename one"
            )
        frame = dataset.astype(object).where(dataset.notna(), None)
        return _from_columns(dict(frame.items()))
    if isinstance(dataset, Mapping) and not _are_splits(dataset):
        return _from_columns(dataset)
    if not isinstance(dataset, list | tuple):
        return None
    if dataset and all(isinstance(row, str) for row in dataset):
        return _from_columns({"text": list(dataset)})
    if all(isinstance(row, Mapping) for row in dataset):
        names = dict.fromkeys(name for row in dataset for name in row)
        return _from_columns({n: [row.get(n) for row in dataset] for n in names})
    return None


def _from_columns(columns: Mapping[Any, Any]) -> "datasets.Dataset":
    """Columns by name as one split, without ids that do not fit into int64."""
    import datasets

    plain: dict[str, list[Any]] = {}
    for name, values in columns.items():
        # arrays and series hold no plain Python values
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, list | tuple):
            raise AttnProbeError(
                f"expected a list of values in column {name!r}, got "
                f"{type(values).__name__}; give every column as a list"
            )
        plain[str(name)] = [*values]
    lengths = {name: len(values) for name, values in plain.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise AttnProbeError(
            f"expected columns of one length, got {counts}; give each text one value"
        )
    usable = {}
    for name, values in plain.items():
        try:
            datasets.Dataset.from_dict({name: values})
            usable[name] = values
        except Exception as reason:  # pyarrow raises many kinds
            is_long = isinstance(reason, OverflowError)
            if is_long and name == "example_id":  # rows are numbered then
                continue
            short = " ".join(str(reason).split())[:120]
            raise AttnProbeError(
                f"column {name!r} must hold values of one type, also within lists: "
                f"{short}; convert them"
            ) from reason
    return datasets.Dataset.from_dict(usable)


def check_fields(
    path: Path, separator: str, quoting: Literal[0, 1, 2, 3] = csv.QUOTE_MINIMAL
) -> list[str]:
    """Returns the header of a table in which every row has as many fields as it has names.

    pandas takes what the first row has too many for an index, by which all columns are
    another's, and fills up rows that have too few.

    Raises:
        AttnProbeError: a row has more or fewer, or a name is there twice.
    """
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        # what is no UTF-8 is said by whoever reads the table
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = csv.reader(file, delimiter=separator, quoting=quoting)
            rows = (row for row in lines if len(row) > 1 or "".join(row).strip())
            header = next(rows, [])
            for number, row in enumerate(rows):
                if len(row) != len(header):
                    raise AttnProbeError(
                        f"{path}, row {number} (line {lines.line_num}): expected "
                        f"{len(header)} fields as in the header, got {len(row)}; give one "
                        f"per column, texts that hold {separator!r} in double quotes"
                    )
    finally:
        csv.field_size_limit(before)
    names = [name.strip() for name in header]
    named = list(filter(None, names))
    if len(set(named)) < len(named):
        raise AttnProbeError(
            f"{path}: expected a header of different names, got {', '.join(names)}; rename one"
        )
    return header


def set_apart(
    splits: "Mapping[str, datasets.Dataset]", share: float
) -> "dict[str, datasets.Dataset]":
    """Returns train, validation and test of a single split, by a hash of the rows' numbers.

    Args:
        splits: the data set's; one.
        share: of the rows, that are tested on; as many are the validation split.

    Raises:
        AttnProbeError: several splits, or too few rows.
    """
    if len(splits) != 1:
        raise AttnProbeError(
            f"expected one split to set texts apart from, got {', '.join(splits)}; leave out "
            "--holdout"
        )
    (source,) = splits.values()
    n = round(share * len(source))
    if not n:
        raise AttnProbeError(
            f"expected a text to set apart, {share:g} of {len(source)} rows is none; make "
            "--holdout larger"
        )
    order = by_hash(range(len(source)))
    parts = {
        "train": order[2 * n :],
        "validation": order[n : 2 * n],
        "test": order[:n],
    }
    return {name: source.select(sorted(rows)) for name, rows in parts.items()}


def hold_out(labels: Sequence[Any], share: float, seed: int) -> set[int]:
    """Indices of a share of every class; a seed always gives the same ones.

    >>> sorted(hold_out(["a", "a", "b", "b"], 0.5, seed=0))
    [1, 3]
    """
    places: dict[Any, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    draw = random.Random(seed)
    held_out: set[int] = set()
    for label in sorted(places):
        held_out.update(draw.sample(places[label], round(share * len(places[label]))))
    return held_out
