"""Folders that stand for a named data set: are they what its recipe expects?"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hf_attnprobe.data.layouts.files import Contents
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


DATA_FILES = (".parquet", ".csv", ".json", ".jsonl", ".tsv", ".arrow")


def state_of(folder: Path) -> int:
    """A number that changes where a file below a folder does: names, times and sizes."""
    found = []
    for path in folder.rglob("*"):
        seen = path.stat()
        found.append((str(path), seen.st_mtime_ns, seen.st_size))
    return hash(tuple(sorted(found)))


def to_tables(contents: Contents) -> "dict[str, datasets.Dataset]":
    """The splits, with the types of their columns."""
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
        splits[split] = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    return splits


def check_there(path: Path, recipe: Recipe) -> None:
    """Raises AttnProbeError where the files to bring are not there."""
    if not recipe.name or path.is_file():
        return
    if recipe.hub_id.startswith("./") and not path.exists():
        raise AttnProbeError(
            f"expected a folder of data files at {recipe.hub_id}, which is not there; "
            f"`attnprobe datasets {recipe.name}` says what to bring, and "
            f"{recipe.name}=FOLDER as the data set says where it is"
        )
    if recipe.layout is None or not path.is_dir():
        return
    names = sorted(file.name for file in path.iterdir())
    inside = [file.name for file in path.glob("*/*")]
    if not any(name.endswith(DATA_FILES) for name in [*names, *inside]):
        raise AttnProbeError(
            f"expected the files of {recipe.name} in {path}, found "
            f"{', '.join(names[:5]) or 'nothing'}; `attnprobe datasets {recipe.name}` "
            "says which to bring"
        )


def check_columns(splits: "Mapping[str, datasets.Dataset]", recipe: Recipe) -> None:
    """Raises AttnProbeError where a folder lacks columns of the data set it stands for."""
    if not recipe.name:
        return
    texts = recipe.text_column or "text"
    expected = [texts] if isinstance(texts, str) else list(texts)
    if recipe.layout in ("babi", "cnn", "eraser"):
        expected = ["text", *_second(recipe.name)]
    expected += [recipe.text_pair_column] if recipe.text_pair_column else []
    label = recipe.label_column or "label"
    expected += [label] if isinstance(label, str) else list(label)
    present = {name for examples in splits.values() for name in examples.column_names}
    if present & {"text", "sentence"} and not recipe.text_pair_column:
        present.update(texts if isinstance(texts, list | tuple) else [texts])
    if "label" in present:  # the usual names are read in place of the source's own
        present.update([label] if isinstance(label, str) else label)
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
