"""Where data sets come from: names, folders, the Hub, memory."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.recipes import RECIPES, Recipe
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


def recipe_of(dataset: Any, **given: Any) -> Recipe:
    """How the data set is cut: by the recipe of its name, or as it comes.

    Args:
        given: fields of the recipe; those that are not None replace its own.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = RECIPES.get(str(dataset), Recipe(str(dataset)))
    recipe = dataset if isinstance(dataset, Recipe) else Recipe("")
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(recipe, **changes)


def open_splits(
    dataset: Any, split: str, recipe: Recipe
) -> "dict[str, datasets.Dataset]":
    """All splits by the source's names; one split in memory is called ``split``."""
    import datasets

    if isinstance(dataset, str | os.PathLike | Recipe):
        return _load(recipe)
    if isinstance(dataset, datasets.DatasetDict):
        return dict(dataset)
    if isinstance(dataset, list) and all(isinstance(row, Mapping) for row in dataset):
        dataset = _from_rows(dataset)
    if isinstance(dataset, datasets.Dataset):
        return {recipe.splits.get(split, split): dataset}
    raise AttnProbeError(
        "expected a name, a folder, a Hub id, a Dataset, a DatasetDict or a list of "
        f"dicts as the data set, got {type(dataset).__name__}; convert it to one of "
        "them"
    )


def _load(recipe: Recipe) -> "dict[str, datasets.Dataset]":
    import datasets

    folder = Path(recipe.hub_id)
    markers = ("dataset_dict.json", "state.json")
    is_saved = any((folder / name).is_file() for name in markers)
    try:
        if is_saved:
            loaded = datasets.load_from_disk(folder)
        else:
            loaded = datasets.load_dataset(recipe.hub_id, recipe.config)
    except Exception as reason:
        # datasets, pyarrow, the file system and the network raise many kinds.
        raise AttnProbeError(
            f"expected one of {', '.join(RECIPES)}, a folder of data files or a Hub "
            f"id, got {recipe.hub_id!r}, which cannot be loaded: {_in_short(reason)}"
        ) from reason
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _in_short(reason: Exception) -> str:
    """The messages of an error and of its cause on one line of 200 characters."""
    messages = [str(error) for error in (reason, reason.__cause__) if error is not None]
    text = " ".join(": ".join(filter(None, messages)).split())
    text = text or type(reason).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def _from_rows(rows: list[Mapping[str, Any]]) -> "datasets.Dataset":
    import datasets

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    for name, values in columns.items():
        _check_one_type(name, values)
    return datasets.Dataset.from_dict(columns)


def _check_one_type(column: str, values: list[Any]) -> None:
    present = [(row, value) for row, value in enumerate(values) if value is not None]
    for row, value in present:
        first = type(present[0][1])
        if type(value) is not first:
            raise AttnProbeError(
                f"column {column!r} must hold values of one type, row {row} is "
                f"{type(value).__name__} after {first.__name__}; convert them"
            )
