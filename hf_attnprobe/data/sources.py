"""Where data sets come from: names, folders, the Hub, memory."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.layouts import babi, cnn, eraser, mimic, nli, tables
from hf_attnprobe.data.layouts.files import Contents
from hf_attnprobe.data.recipes import RECIPES, Recipe
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


LAYOUTS = {
    "babi": babi.read,
    "cnn": cnn.read,
    "eraser": eraser.read,
    "mimic": mimic.read,
    "nli": nli.read,
    "tables": tables.read,
}
DATA_FILES = (".parquet", ".csv", ".json", ".jsonl", ".tsv", ".arrow")


def recipe_of(dataset: Any, **given: Any) -> Recipe:
    """How the data set is cut: by the recipe of its name, or as it comes.

    Args:
        dataset: ``name=folder`` is a folder that is cut as the data set of that name.
        given: fields of the recipe; those that are not None replace its own.

    Raises:
        AttnProbeError: ``name`` is none, but nearly one.
    """
    if isinstance(dataset, str | os.PathLike):
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
        return replace(RECIPES[name], hub_id=folder)
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.75)
    if near:
        raise AttnProbeError(
            f"expected a known name before =, got {name!r}; did you mean "
            f"{near[0]}={folder}? Give {folder} alone for a data set without a recipe"
        )
    return Recipe(folder)


def open_splits(
    dataset: Any, split: str, recipe: Recipe
) -> "dict[str, datasets.Dataset]":
    """All splits by the source's names; one split in memory is called ``split``."""
    import datasets

    if isinstance(dataset, str | os.PathLike | Recipe):
        return load(recipe)
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


def load(recipe: Recipe) -> "dict[str, datasets.Dataset]":
    """All splits of a folder or a data set of the Hub, by the source's names.

    Raises:
        AttnProbeError: there is nothing, or not what the recipe expects.
    """
    folder = Path(recipe.hub_id)
    if recipe.layout is not None and folder.is_dir():
        splits = _read(recipe.layout, recipe.name, folder, _state_of(folder))
        if splits is not None:
            return dict(splits)
        _check_data_files(folder, recipe)
    elif recipe.hub_id.startswith("./") and recipe.name and not folder.exists():
        raise AttnProbeError(
            f"expected a folder of data files at {recipe.hub_id}, which is not there; "
            f"`attnprobe datasets {recipe.name}` says what to bring, and "
            f"{recipe.name}=FOLDER as the data set says where it is"
        )
    splits = _load_files(recipe)
    if folder.is_dir():
        _check_columns(splits, recipe)
    return splits


def _load_files(recipe: Recipe) -> "dict[str, datasets.Dataset]":
    """What ``datasets`` makes of a folder or a Hub id."""
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


@lru_cache(maxsize=1)  # train, validation and test are asked for one after the other
def _read(
    layout: str, name: str, folder: Path, state: tuple[Any, ...]
) -> "Mapping[str, datasets.Dataset] | None":
    """The splits of a folder in its authors' layout; None if it is in another.

    ``state`` changes where the files do.
    """
    contents = LAYOUTS[layout](folder, name)
    return None if contents is None else _as_datasets(contents)


def _state_of(folder: Path) -> tuple[Any, ...]:
    """Names, times and sizes of what is in a folder."""
    return tuple(
        (path.name, path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(folder.glob("*")) + sorted(folder.glob("*/*.*"))[:1000]
    )


def _as_datasets(contents: Contents) -> "dict[str, datasets.Dataset]":
    import datasets

    places = datasets.List(datasets.Value("int64"))
    special = {
        "rationale": places,
        "rationale_pair": places,
        "choices": datasets.List(datasets.Value("string")),
    }
    if contents.classes is not None:
        special["label"] = datasets.ClassLabel(names=list(contents.classes))
    splits = {}
    for split, rows in contents.splits.items():
        columns = {name: [row[name] for row in rows] for name in (rows or [{}])[0]}
        features = {}
        for name in columns:
            is_number = isinstance(rows[0][name], int)
            plain = datasets.Value("int64" if is_number else "string")
            features[name] = special.get(name, plain)
        splits[split] = datasets.Dataset.from_dict(
            columns, features=datasets.Features(features)
        )
    return splits


def _check_data_files(folder: Path, recipe: Recipe) -> None:
    """Raises AttnProbeError where a folder holds nothing that could be the data set."""
    names = sorted(path.name for path in folder.iterdir())
    if not any(name.endswith(DATA_FILES) for name in names) and not any(
        path.suffix in DATA_FILES for path in folder.glob("*/*")
    ):
        found = ", ".join(names[:5]) or "nothing"
        raise AttnProbeError(
            f"expected the files of {recipe.name} in {folder}, found {found}; "
            f"`attnprobe datasets {recipe.name}` says which to bring"
        )


def _check_columns(splits: "Mapping[str, datasets.Dataset]", recipe: Recipe) -> None:
    """Raises AttnProbeError where a folder lacks columns of the data set it stands for."""
    if not recipe.name:
        return
    texts = recipe.text_column or "text"
    expected = [texts] if isinstance(texts, str) else list(texts)
    if recipe.layout in ("babi", "cnn", "eraser"):
        expected = ["text", *_second(recipe.name)]
    expected += [recipe.text_pair_column] if recipe.text_pair_column else []
    expected += [recipe.label_column or "label"]
    present = {name for examples in splits.values() for name in examples.column_names}
    if recipe.text_column is None and "sentence" in present:
        present.add("text")  # either may hold the texts
    lacking = [name for name in expected if name not in present]
    if lacking:
        raise AttnProbeError(
            f"expected the columns {', '.join(expected)} of {recipe.name} in "
            f"{recipe.hub_id}, got {', '.join(sorted(present))}; rename them, or name "
            "them with --text-column, --text-pair-column and --label-column "
            f"(`attnprobe datasets {recipe.name}` says what else it may hold)"
        )


def _second(name: str) -> list[str]:
    """The column of what stands beside the text in rows that a layout makes."""
    special = {"eraser-movies": [], "eraser-cose": ["choices"]}
    return special.get(name, ["text_pair"])


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
