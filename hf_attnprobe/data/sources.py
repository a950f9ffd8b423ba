"""Where data sets come from: names, folders, the Hub, memory."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.recipes import RECIPES, Recipe
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


def recipe_of(
    dataset: Any,
    text_column: str | Sequence[str] | None,
    label_column: str | None,
    config: str | None,
) -> Recipe:
    """How the data set is cut: as its name says, or as it comes; with what is given in place of the recipe's own."""
    if isinstance(dataset, str | os.PathLike):
        dataset = RECIPES.get(str(dataset), Recipe(str(dataset)))
    recipe = dataset if isinstance(dataset, Recipe) else Recipe("")
    given = {"text_column": text_column, "label_column": label_column, "config": config}
    return replace(
        recipe, **{name: value for name, value in given.items() if value is not None}
    )


def open_splits(
    dataset: Any, split: str, recipe: Recipe
) -> "dict[str, datasets.Dataset]":
    """Everything that there is, by the source's names; what is one split in memory, as ``split``."""
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
        "expected a name, a folder, a Hub id, a Dataset, a DatasetDict or a list of dicts as the data set, "
        f"got {type(dataset).__name__}; convert it to one of them"
    )


def _load(recipe: Recipe) -> "dict[str, datasets.Dataset]":
    import datasets

    folder = Path(recipe.hub_id)
    saved = any(
        (folder / name).is_file() for name in ("dataset_dict.json", "state.json")
    )
    try:
        loaded = (
            datasets.load_from_disk(folder)
            if saved
            else datasets.load_dataset(recipe.hub_id, recipe.config)
        )
    except Exception as reason:  # the library, pyarrow, the file system and the network raise many kinds
        raise AttnProbeError(
            f"expected one of {', '.join(RECIPES)}, a folder of data files or a Hub id, got {recipe.hub_id!r}, "
            f"which cannot be loaded: {_in_short(reason)}"
        ) from reason
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _in_short(reason: Exception, width: int = 200) -> str:
    causes = [
        str(error)
        for error in (reason, reason.__cause__)
        if error is not None and str(error)
    ]
    text = " ".join(": ".join(causes).split()) or type(reason).__name__
    return text if len(text) <= width else text[: width - 1] + "…"


def _from_rows(rows: list[Mapping[str, Any]]) -> "datasets.Dataset":
    import datasets

    columns = {
        name: [row.get(name) for row in rows]
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    for name, values in columns.items():
        types = [type(value) for value in values if value is not None]
        for row, value in enumerate(values):
            if value is not None and type(value) is not types[0]:
                raise AttnProbeError(
                    f"column {name!r} must hold values of one type, row {row} is {type(value).__name__} after "
                    f"{types[0].__name__}; convert them"
                )
    return datasets.Dataset.from_dict(columns)
