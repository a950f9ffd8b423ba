"""Data sets by name, folder, Hub id or in memory, all in one form.

Whatever it was read from, a split becomes rows of `example_id`, `text` and `label`, and
`rationale` if there is one. `datasets` is imported where it is used, so that the
package imports without it.
"""

import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_attnprobe.data.lengths import fits
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.data.sources import open_splits, recipe_of
from hf_attnprobe.data.word_tags import read_word_tags
from hf_attnprobe.errors import AttnProbeError, NoSuchSplit
from hf_attnprobe.options import check_at_least


if TYPE_CHECKING:
    import datasets

    Source: TypeAlias = (
        str
        | os.PathLike
        | Recipe
        | datasets.Dataset
        | datasets.DatasetDict
        | list[dict[str, Any]]
    )


# Columns that may hold a human rationale; the second is ERASER's name for it.
RATIONALE_COLUMNS = ("rationale", "evidence")


def load_examples(
    dataset: "Source",
    split: str,
    *,
    text_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    dataset_config: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> "datasets.Dataset":
    """One split as rows of `example_id`, `text`, `label` and perhaps `rationale`.

    Args:
        dataset: a name in `RECIPES`, a folder, a Hub id, a `Recipe`, or examples in
            memory.
        split: ignored for a `Dataset` and a list, which are one split.
        text_column: default: the recipe's, else `text` or `sentence`. Several columns
            are joined by a space, leaving out missing values.
        label_column: default: the recipe's, else `label`.
        dataset_config: configuration of the data set, for those that have several.
        limit: number of rows to keep after all filters, see :func:`sample`; at least 1.
        seed: chooses the rows of `train` that become `validation` where the recipe sets
            them apart, and nothing else: give both splits the same seed.

    Returns:
        Rows with the columns

        - `example_id` (int64): the source's own where those are unique and not
          negative, else the row number in the source split before any filter, so that
          it names the same text whatever `limit` is;
        - `text` (string);
        - `label`: a ClassLabel where the source names its classes or its labels are
          strings (sorted, over all splits), else an int64; -1 for unlabelled rows;
        - `rationale` (list of int64): a human rationale, or the words that a rule
          decides by, as positions from 0 among the words that white space separates in
          the text; empty where there is none. It is read from a column `rationale`, or
          from `evidence` (ERASER's name), that holds lists of integers;
        - `word_tags` (list of string): a tag, such as its part of speech, for each word
          that white space separates in the text, from a column `word_tags`, `pos_tags`
          or `pos` that holds lists of strings or of named classes.

    Raises:
        AttnProbeError: no such data set, split or column; no row left; a text that is
            not a string; labels that are neither integers nor strings.
    """
    check_at_least(1, limit=limit)
    recipe = recipe_of(dataset, text_column, label_column, dataset_config)
    splits = open_splits(dataset, split, recipe)
    source, rows = _choose_split(splits, split, recipe, seed)
    labels, names = _keep_classes(*_labels(source, splits, recipe), recipe.keep_labels)
    ids, texts = _example_ids(source), _texts(source, recipe)
    table: dict[str, Sequence[Any]] = {
        "example_id": ids,
        "text": texts,
        "label": labels,
    }
    rationale_column = _rationale_column(source)
    if rationale_column is not None:
        table["rationale"] = column_of(source, rationale_column)

    tags = read_word_tags(source)
    if tags is not None:
        table["word_tags"] = tags

    is_training = split in ("train", "validation")
    rows = [row for row in rows if labels[row] is not None]
    rows = [row for row in rows if fits(texts[row], recipe, training=is_training)]
    rows = sample(rows, [ids[row] for row in rows], limit)
    if not rows:
        raise AttnProbeError(
            f"split {split!r} has no example left of {len(source)} rows after the "
            "recipe's filters"
        )
    for name, values in table.items():
        table[name] = [values[row] for row in rows]
    return _to_dataset(table, names)


def column_of(examples: "datasets.Dataset", name: str) -> list[Any]:
    """A column as plain Python values, whatever the format of the data set."""
    return examples.with_format(None)[name][:]


def by_hash(ids: Sequence[int]) -> list[int]:
    """Indices of `ids` sorted by SHA-256: a fixed pseudo-random order."""
    digests = [hashlib.sha256(str(i).encode()).digest() for i in ids]
    return sorted(range(len(ids)), key=digests.__getitem__)


def sample(rows: Sequence[int], ids: Sequence[int], limit: int | None) -> list[int]:
    """A fixed pseudo-random sample of `rows`, in their order, chosen by their ids.

    A smaller sample is part of a larger one. The first rows would not do: many data
    sets are sorted by class.

    >>> sample(range(10), range(10), 3), sample(range(10), range(10), 4)
    ([4, 8, 9], [3, 4, 8, 9])
    """
    return [rows[k] for k in sorted(by_hash(ids)[:limit])]


def label_names(examples: "datasets.Dataset") -> list[str]:
    """Names of the classes; `LABEL_0`, `LABEL_1`, … as in Transformers for integers."""
    feature = examples.features["label"]
    if hasattr(feature, "names"):
        return list(feature.names)
    n_labels = max(column_of(examples, "label"), default=-1) + 1
    return [f"LABEL_{label}" for label in range(n_labels)]


@dataclass(frozen=True)
class DatasetName:
    """What a report calls the texts.

    Attributes:
        name: the data set's name, folder or Hub id.
        split: of the data set.

    >>> print(DatasetName("data/SST", "test"))
    data/SST (test)
    """

    name: str
    split: str

    def __str__(self) -> str:
        return f"{self.name} ({self.split})" if self.split else self.name

    @classmethod
    def parse(cls, text: str) -> "DatasetName":
        """The inverse of ``str``.

        >>> DatasetName.parse("data/SST (test)")
        DatasetName(name='data/SST', split='test')
        """
        name, _, split = text.rpartition(" (")
        return cls(name, split.removesuffix(")")) if name else cls(text, "")

    @property
    def published_as(self) -> str:
        """The name of the data set in the papers' tables, if it is there.

        >>> DatasetName("data/SST", "test").published_as
        'sst'
        """
        return Path(self.name).name.lower()


def dataset_name(dataset: Any, split: str) -> DatasetName:
    """What a report calls the texts.

    >>> print(dataset_name("imdb", "test"), dataset_name([], "test"), sep=", ")
    imdb (test), data given in memory (test)
    """
    if isinstance(dataset, Recipe):
        dataset = dataset.hub_id
    in_memory = not isinstance(dataset, str | os.PathLike)
    return DatasetName("data given in memory" if in_memory else str(dataset), split)


def dataset_fingerprint(examples: "datasets.Dataset") -> str:
    """16 hex digits (SHA-256) of ids, texts, labels and rationales.

    Equal for equal examples, in any order and from any source.
    """
    names = ["example_id", "text", "label"]
    further = ("rationale", "word_tags")
    names += [name for name in further if name in examples.column_names]
    columns = [column_of(examples, name) for name in names]
    digest = hashlib.sha256()
    for row in sorted(zip(*columns, strict=True)):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()[:16]


def _choose_split(
    splits: "Mapping[str, datasets.Dataset]", split: str, recipe: Recipe, seed: int
) -> "tuple[datasets.Dataset, Sequence[int]]":
    """The source split, and its rows that belong to `split`."""
    from_train = (
        recipe.validation_fraction is not None
        and "validation" not in splits
        and split in ("train", "validation")
    )
    name = "train" if from_train else recipe.splits.get(split, split)
    if name not in splits:
        raise NoSuchSplit(
            f"expected one of the splits {', '.join(splits)}, got {split!r}; choose "
            "one with --split"
        )
    source = splits[name]
    rows = range(len(source))
    if not rows:
        raise AttnProbeError(
            f"expected examples in split {split!r}, got an empty one; choose another "
            "with --split"
        )
    if not from_train:
        return source, rows
    held_out = _held_out_rows(source, splits, recipe, seed)
    return source, [row for row in rows if (row in held_out) == (split == "validation")]


def _held_out_rows(
    source: "datasets.Dataset",
    splits: "Mapping[str, datasets.Dataset]",
    recipe: Recipe,
    seed: int,
) -> set[int]:
    """The rows of `train` that become `validation`."""
    fraction = recipe.validation_fraction or 0.0
    groups: list[Sequence[int]] = [range(len(source))]
    if recipe.balanced_validation:
        groups = _rows_by_class(_labels(source, splits, recipe)[0])
    draw = random.Random(seed)
    held_out: set[int] = set()
    for group in groups:
        held_out.update(draw.sample(group, round(fraction * len(group))))
    return held_out


def _rows_by_class(labels: list[int]) -> list[Sequence[int]]:
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(label, []).append(row)
    return [groups[label] for label in sorted(groups)]


def _example_ids(source: "datasets.Dataset") -> list[int]:
    by_row = list(range(len(source)))
    if "example_id" not in source.column_names:
        return by_row
    ids = column_of(source, "example_id")
    are_valid = all(isinstance(i, int) and i >= 0 for i in ids)
    return ids if are_valid and len(set(ids)) == len(ids) else by_row


def _rationale_column(source: "datasets.Dataset") -> str | None:
    """The column with lists of integers; elsewhere the names mean quoted sentences."""
    for name in RATIONALE_COLUMNS:
        items = getattr(source.features.get(name), "feature", None)
        if str(getattr(items, "dtype", "")).startswith(("int", "uint", "null")):
            return name
    return None


def _find_column(
    source: "datasets.Dataset", given: str | None, defaults: tuple[str, ...], flag: str
) -> str | None:
    """The name of the column; None if none was given and no default exists."""
    if given is not None and given not in source.column_names:
        raise AttnProbeError(
            f"no column {given!r} among the columns {', '.join(source.column_names)}; "
            f"name one with {flag}"
        )
    existing = [name for name in defaults if name in source.column_names]
    return given or next(iter(existing), None)


def _texts(source: "datasets.Dataset", recipe: Recipe) -> list[str]:
    if recipe.text_column is None or isinstance(recipe.text_column, str):
        return _strings(source, recipe.text_column)
    parts = [_strings(source, name, may_lack=True) for name in recipe.text_column]
    return [" ".join(filter(None, row)) for row in zip(*parts, strict=True)]


def _strings(
    source: "datasets.Dataset", given: str | None, *, may_lack: bool = False
) -> list[str]:
    """A column of strings, \"\" for missing values where they are allowed."""
    column = _find_column(source, given, ("text", "sentence"), "--text-column")
    if column is None:
        raise AttnProbeError(
            "no column 'text' or 'sentence' among the columns "
            f"{', '.join(source.column_names)}; name the one with the texts with "
            "--text-column"
        )
    texts = column_of(source, column)
    for row, text in enumerate(texts):
        if not isinstance(text, str) and not (may_lack and text is None):
            raise AttnProbeError(
                f"column {column!r} must hold strings, row {row} is "
                f"{type(text).__name__}; mend or drop it, or name another column with "
                "--text-column"
            )
    return [text or "" for text in texts]


def _labels(
    source: "datasets.Dataset", splits: "Mapping[str, datasets.Dataset]", recipe: Recipe
) -> tuple[list[int], tuple[str, ...] | None]:
    """Class numbers, -1 where there is none, and the names of the classes if any."""
    column = _find_column(source, recipe.label_column, ("label",), "--label-column")
    if column is None:
        return [-1] * len(source), recipe.label_names
    values = column_of(source, column)
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {str}:
        classes = _names_in_all(splits, column)
        numbers = {name: number for number, name in enumerate(classes)}
        return [numbers.get(value, -1) for value in values], classes
    _check_integers(values, column)
    names = getattr(source.features[column], "names", None)
    first = 0
    if names is None:
        names, first = recipe.label_names, recipe.first_label
    labels = [-1 if value is None else int(value) for value in values]
    _check_range(labels, names, first)
    labels = [label if label < 0 else label - first for label in labels]
    return labels, None if names is None else tuple(names)


def _names_in_all(
    splits: "Mapping[str, datasets.Dataset]", column: str
) -> tuple[str, ...]:
    """The sorted strings in a column of all splits.

    Numbered by one split alone, the classes would differ where another has one more.
    """
    names: set[str] = set()
    for examples in splits.values():
        if column in examples.column_names:
            values = column_of(examples, column)
            names.update(value for value in values if isinstance(value, str))
    return tuple(sorted(names))


def _check_integers(values: list[Any], column: str) -> None:
    for row, value in enumerate(values):
        if not isinstance(value, int | None):
            raise AttnProbeError(
                f"column {column!r} must hold integers or strings as labels, row {row} "
                f"is {type(value).__name__}; convert them or name another column with "
                "--label-column"
            )


def _check_range(labels: list[int], names: Sequence[str] | None, first: int) -> None:
    end = max(labels, default=-1) + 1 if names is None else first + len(names)
    for row, label in enumerate(labels):
        if label != -1 and not first <= label < end:
            raise AttnProbeError(
                f"expected labels from {first} to {end - 1}, or -1 for none, row {row} "
                f"has {label}; renumber them"
            )


def _keep_classes(
    labels: list[int], names: tuple[str, ...] | None, kept: tuple[str, ...] | None
) -> tuple[Sequence[int | None], tuple[str, ...] | None]:
    """The labels renumbered, None where the class is not kept."""
    if kept is None:
        return labels, names
    names = names or ()
    if not set(kept) <= set(names):
        existing = ", ".join(names) or "none with a name"
        raise AttnProbeError(
            f"expected the classes {', '.join(kept)}, got {existing}; choose a data "
            "set that has them"
        )
    new = {names.index(name): index for index, name in enumerate(kept)}
    return [new.get(label) for label in labels], kept


def _to_dataset(
    table: Mapping[str, Sequence[Any]], names: tuple[str, ...] | None
) -> "datasets.Dataset":
    from datasets import ClassLabel, Dataset, Features, List, Value

    features = {
        "example_id": Value("int64"),
        "text": Value("string"),
        "label": Value("int64") if names is None else ClassLabel(names=list(names)),
    }
    if "rationale" in table:
        features["rationale"] = List(Value("int64"))
    if "word_tags" in table:
        features["word_tags"] = List(Value("string"))
    return Dataset.from_dict(table, features=Features(features))
