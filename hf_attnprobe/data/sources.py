"""Where data sets come from: names, folders, the Hub, memory."""

import difflib
import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.folders import (
    check_columns,
    check_there,
    state_of,
    to_tables,
)
from hf_attnprobe.data.frames import (
    CSV_OPTIONS,
    FORMATS,
    from_memory,
    is_columns,
    is_empty_parquet,
    read_file,
    without_gaps,
)
from hf_attnprobe.data.layouts.babi import read_babi
from hf_attnprobe.data.layouts.cnn import read_cnn
from hf_attnprobe.data.layouts.eraser import read_eraser
from hf_attnprobe.data.layouts.files import check_fields
from hf_attnprobe.data.layouts.mimic import read_mimic
from hf_attnprobe.data.layouts.nli import read_nli
from hf_attnprobe.data.layouts.tables import read_tables
from hf_attnprobe.data.recipes import RECIPES, Recipe
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import check_name


if TYPE_CHECKING:
    import datasets


CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""The system's numbers of a full disk, a full share of one, one that is only read."""
LAYOUTS = {
    "babi": read_babi,
    "cnn": read_cnn,
    "eraser": read_eraser,
    "mimic": read_mimic,
    "nli": read_nli,
    "tables": read_tables,
}


def recipe_of(dataset: Any, **given: Any) -> Recipe:
    """How the data set is cut: by the recipe of its name, or as it comes.

    Args:
        dataset: ``name=folder`` is a folder that is cut as the data set of that name.
        given: fields of the recipe; those that are not None replace its own.

    Raises:
        AttnProbeError: ``name`` is none, but nearly one.
    """
    if isinstance(dataset, str | os.PathLike):
        check_name("dataset", str(dataset))
        dataset = named(str(dataset))
    recipe = dataset if isinstance(dataset, Recipe) else Recipe("")
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(recipe, **changes)


def named(dataset: str) -> Recipe:
    """The recipe of a name, a Hub id, a folder, or ``name=folder``.

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
    """Whether the data set is a single file of a known kind."""
    if not isinstance(dataset, str | os.PathLike):
        return False
    path = Path(dataset)
    return path.suffix.lower() in FORMATS and path.is_file()


def has_splits(dataset: Any) -> bool:
    """Whether the data set may have several splits."""
    if isinstance(dataset, Mapping):
        return not is_columns(dataset)
    return isinstance(dataset, str | os.PathLike | Recipe) and not is_file(dataset)


def open_splits(dataset: Any, split: str, recipe: Recipe) -> "dict[str, datasets.Dataset]":
    """All splits by the source's names; one split alone is called ``split``."""
    if isinstance(dataset, str | os.PathLike | Recipe):
        return _load(recipe, split)
    if isinstance(dataset, Mapping) and not is_columns(dataset):
        return {
            name: _one_split(examples, f"split {name!r} of the data set")
            for name, examples in dataset.items()
        }
    return {recipe.splits.get(split, split): _one_split(dataset, "the data set")}


def _one_split(dataset: Any, name: str) -> "datasets.Dataset":
    examples = from_memory(dataset)
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
    if recipe.layout is not None and path.is_dir():
        splits = _read(recipe.layout, recipe.name, path, state_of(path))
        if splits is not None:
            return dict(splits)
    check_there(path, recipe)
    try:
        if is_file(path):
            return {recipe.splits.get(split, split): read_file(path)}
        if is_saved:
            loaded = datasets.load_from_disk(path)
        else:
            loaded = _load_dataset(recipe.hub_id, recipe.config)
    except AttnProbeError:  # of a table's fields
        raise
    except Exception as reason:
        # datasets, pyarrow, the file system and the network raise many kinds.
        raise AttnProbeError(_cannot_load(recipe.hub_id, reason)) from reason
    splits = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    if path.is_dir():
        check_columns(splits, recipe)
    return splits


@lru_cache(maxsize=1)  # train, validation and test are asked for one after the other
def _read(
    layout: str, name: str, folder: Path, state: int
) -> "Mapping[str, datasets.Dataset] | None":
    """The splits of a folder in its authors' layout; None if it is in another.

    ``state`` changes where the files do.
    """
    contents = LAYOUTS[layout](folder, name)
    return None if contents is None else to_tables(contents)


def _load_dataset(name: str, config: str | None) -> Any:
    """As ``datasets.load_dataset``, but a table's cells such as "NA" stay texts."""
    import datasets

    builder = datasets.load_dataset_builder(name, config)
    # the data set as it is now, as papers name it; its fingerprint is in every report
    if type(builder.config).__name__ != "CsvConfig":
        return datasets.load_dataset(name, config)  # nosec B615
    _check_tables(builder.config)
    loaded = datasets.load_dataset(name, config, **CSV_OPTIONS)  # nosec B615
    return {split: without_gaps(examples) for split, examples in loaded.items()}


def _check_tables(config: Any) -> None:
    """Checks the tables of CSV files, unless their README says how they are read."""
    import datasets

    counted = {"sep": config.sep, "quoting": config.quoting}
    usual = type(config)(**counted).pd_read_csv_kwargs
    if config.pd_read_csv_kwargs != usual:
        return
    manager = datasets.DownloadManager()
    for files in manager.download_and_extract(config.data_files or {}).values():
        for file in manager.iter_files(files):
            check_fields(Path(file), config.sep, config.quoting)


def _cannot_load(name: str, reason: Exception) -> str:
    """What to do about a data set that cannot be loaded, on one line."""
    if _is_of_the_cache(reason):
        return (
            f"cannot write to Hugging Face's cache ({_in_short(reason)}); make room "
            "there, or set HF_HOME to a folder that can be written to"
        )
    if Path(name).exists() and is_empty_parquet(Path(name)):
        return f"expected examples in {name}, its Parquet files have no rows; write some"
    if Path(name).is_file():
        return (
            f"expected a file ending in {', '.join(FORMATS)}, got {name!r}, which "
            f"cannot be read: {_in_short(reason)}"
        )
    return (
        f"expected one of {', '.join(RECIPES)}, a folder of data files, a file or a "
        f"Hub id, got {name!r}, which cannot be loaded: {_in_short(reason)}"
    )


def _is_of_the_cache(reason: BaseException | None) -> bool:
    """Whether a full disk or one that is only read is at the bottom of an error."""
    while reason is not None:
        said_so = "Not enough disk space" in str(reason)  # datasets, without a number
        if isinstance(reason, OSError) and (said_so or reason.errno in CANNOT_WRITE):
            return True
        reason = reason.__cause__ or reason.__context__
    return False


def _in_short(reason: Exception) -> str:
    """The messages of an error and of its cause on one line of 200 characters."""
    messages = [str(error) for error in (reason, reason.__cause__) if error is not None]
    text = " ".join(": ".join(filter(None, messages)).split())
    text = text or type(reason).__name__
    return text if len(text) <= 200 else text[:199] + "…"
