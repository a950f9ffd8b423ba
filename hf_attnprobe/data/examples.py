"""Data sets by name, folder, Hub id or in memory, all in one form.

Whatever it was read from, a split becomes rows of `example_id`, `text` and `label` (and `evidence`, if there is any).
`datasets` is imported where it is used, so that the package imports without it.
"""

import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.lengths import fits
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.data.sources import open_splits, recipe_of
from hf_attnprobe.errors import AttnProbeError, NoSuchSplit


if TYPE_CHECKING:
    import datasets


def load_examples(
    dataset: "str | os.PathLike | Recipe | datasets.Dataset | datasets.DatasetDict | list[dict[str, Any]]",
    split: str,
    *,
    text_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    config: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> "datasets.Dataset":
    """One split as rows of `example_id` (int64), `text` (string), `label`, and `evidence` (list of int64) if any.

    `evidence` is a human rationale, or the words that a rule decides by: the positions, from 0, of those words among the
    words that white space separates in the text; empty where there is none.

    `example_id` is the source's own where those are unique and not negative, else the row number in the source split
    before any filter, so it names the same text whatever `limit` is. `label` is a ClassLabel where the source names
    its classes or labels with strings (sorted, over all splits), else an int64; unlabelled rows have -1.

    Args:
        dataset: a name in `RECIPES`, a folder, a Hub id, a `Recipe`, or examples in memory.
        split: ignored for a `Dataset` and a list, which are one split.
        text_column, label_column: default to the recipe's, else to `text` or `sentence`, and `label`. Several text
            columns are joined by a space, leaving out what is missing.
        config: configuration of the data set, for those that have several.
        limit: keep so many rows, after all filters, see :func:`sample`; at least 1.
        seed: decides which rows of `train` become `validation` where the recipe sets them apart, and nothing else:
            give `train` and `validation` the same one.

    Raises:
        AttnProbeError: no such data set, split or column; no row left; a text that is not a string; labels that are
            neither integers nor strings.
    """
    if limit is not None and limit < 1:
        raise AttnProbeError(
            f"limit must be at least 1, got {limit}; leave it out for the whole split"
        )
    recipe = recipe_of(dataset, text_column, label_column, config)
    splits = open_splits(dataset, split, recipe)
    source, rows = _choose_split(splits, split, recipe, seed)
    labels, names = _keep_classes(*_labels(source, splits, recipe), recipe.keep_labels)
    table = {
        "example_id": _example_ids(source),
        "text": _texts(source, recipe),
        "label": labels,
    }
    if _has_evidence(source):
        table["evidence"] = _values(source, "evidence")
    training = split in ("train", "validation")
    rows = [
        row
        for row in rows
        if labels[row] is not None
        and fits(table["text"][row], recipe, training=training)
    ]
    rows = sample(rows, [table["example_id"][row] for row in rows], limit)
    if not rows:
        raise AttnProbeError(
            f"split {split!r} has no example left of {len(source)} rows after the recipe's filters"
        )
    return _to_dataset(
        {name: [values[row] for row in rows] for name, values in table.items()}, names
    )


def by_hash(ids: Sequence[int]) -> list[int]:
    """The positions of ids in the order of a hash (SHA-256) of theirs: as good as drawn, and always the same."""
    return sorted(
        range(len(ids)), key=lambda k: hashlib.sha256(str(ids[k]).encode()).digest()
    )


def sample(rows: Sequence[int], ids: Sequence[int], limit: int | None) -> list[int]:
    """So many of the rows, in their order, drawn by their ids: always the same ones, and fewer are among more.

    The first ones would not do: many data sets are sorted by class.

    >>> sample(range(10), range(10), 3), sample(range(10), range(10), 4)
    ([4, 8, 9], [3, 4, 8, 9])
    """
    return [rows[k] for k in sorted(by_hash(ids)[:limit])]


def label_names(examples: "datasets.Dataset") -> list[str]:
    """The names of the classes; `LABEL_0`, `LABEL_1`, … as in Transformers where the labels are bare integers."""
    feature = examples.features["label"]
    if hasattr(feature, "names"):
        return list(feature.names)
    return [
        f"LABEL_{label}"
        for label in range(max(_values(examples, "label"), default=-1) + 1)
    ]


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
    dataset = getattr(dataset, "hub_id", dataset)  # of a recipe
    in_memory = not isinstance(dataset, str | os.PathLike)
    return DatasetName("data given in memory" if in_memory else str(dataset), split)


def dataset_fingerprint(examples: "datasets.Dataset") -> str:
    """16 hex digits (SHA-256) of ids, texts, labels and evidence: equal for equal examples, in any order and from
    anywhere."""
    digest, columns = hashlib.sha256(), ["example_id", "text", "label"]
    columns += ["evidence"] if "evidence" in examples.column_names else []
    for row in sorted(zip(*(_values(examples, name) for name in columns), strict=True)):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()[:16]


def _choose_split(
    splits: Mapping[str, Any], split: str, recipe: Recipe, seed: int
) -> tuple[Any, Sequence[int]]:
    """The source split and the rows of it that belong to `split`."""
    carved = (
        recipe.validation_fraction is not None
        and "validation" not in splits
        and split in ("train", "validation")
    )
    name = "train" if carved else recipe.splits.get(split, split)
    if name not in splits:
        raise NoSuchSplit(
            f"expected one of the splits {', '.join(splits)}, got {split!r}; choose one with --split"
        )
    source = splits[name]
    rows = range(len(source))
    if not rows:
        raise AttnProbeError(
            f"expected examples in split {split!r}, got an empty one; choose another with --split"
        )
    if not carved:
        return source, rows
    draw = random.Random(seed)
    groups = (
        _rows_by_class(source, splits, recipe) if recipe.balanced_validation else [rows]
    )
    apart = {
        row
        for group in groups
        for row in draw.sample(group, round(recipe.validation_fraction * len(group)))
    }
    return source, [row for row in rows if (row in apart) == (split == "validation")]


def _rows_by_class(
    source: "datasets.Dataset", splits: Mapping[str, Any], recipe: Recipe
) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(_labels(source, splits, recipe)[0]):
        groups.setdefault(label, []).append(row)
    return [groups[label] for label in sorted(groups)]


def _values(source: "datasets.Dataset", column: str) -> list[Any]:
    return source.with_format(None)[column][:]


def _example_ids(source: "datasets.Dataset") -> list[int]:
    ids = _values(source, "example_id") if "example_id" in source.column_names else []
    usable = (
        ids
        and all(isinstance(i, int) and i >= 0 for i in ids)
        and len(set(ids)) == len(ids)
    )
    return ids if usable else list(range(len(source)))


def _has_evidence(source: "datasets.Dataset") -> bool:
    """Lists of integers: elsewhere a column of that name holds quoted sentences."""
    items = getattr(source.features.get("evidence"), "feature", None)
    return str(getattr(items, "dtype", "")).startswith(("int", "uint", "null"))


def _column(
    source: "datasets.Dataset", given: str | None, defaults: tuple[str, ...], flag: str
) -> str | None:
    """The name of the column; None if none was given and no default is there."""
    if given is not None and given not in source.column_names:
        raise AttnProbeError(
            f"no column {given!r} among the columns {', '.join(source.column_names)}; name one with {flag}"
        )
    return given or next(
        (name for name in defaults if name in source.column_names), None
    )


def _texts(source: "datasets.Dataset", recipe: Recipe) -> list[str]:
    if recipe.text_column is None or isinstance(recipe.text_column, str):
        return _strings(source, recipe.text_column)
    parts = [_strings(source, name, may_lack=True) for name in recipe.text_column]
    return [" ".join(filter(None, row)) for row in zip(*parts, strict=True)]


def _strings(
    source: "datasets.Dataset", given: str | None, *, may_lack: bool = False
) -> list[str | None]:
    column = _column(source, given, ("text", "sentence"), "--text-column")
    if column is None:
        raise AttnProbeError(
            f"no column 'text' or 'sentence' among the columns {', '.join(source.column_names)}; "
            "name the one with the texts with --text-column"
        )
    texts = _values(source, column)
    for row, text in enumerate(texts):
        if not isinstance(text, str) and not (may_lack and text is None):
            raise AttnProbeError(
                f"column {column!r} must hold strings, row {row} is {type(text).__name__}; "
                "mend or drop it, or name another column with --text-column"
            )
    return texts


def _labels(
    source: "datasets.Dataset", splits: "Mapping[str, datasets.Dataset]", recipe: Recipe
) -> tuple[list[int], tuple[str, ...] | None]:
    """Class indices, -1 where there is none, and the names of the classes if they have any."""
    column = _column(source, recipe.label_column, ("label",), "--label-column")
    if column is None:
        return [-1] * len(source), recipe.label_names
    values = _values(source, column)
    names = getattr(source.features[column], "names", recipe.label_names)
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {str}:
        # The classes of one split alone would be numbered differently where another split has one more.
        everywhere = [
            value
            for other in splits.values()
            if column in other.column_names
            for value in _values(other, column)
        ]
        names = sorted({value for value in everywhere if isinstance(value, str)})
        values = [None if value is None else names.index(value) for value in values]
    elif not kinds <= {int, bool}:
        row = next(
            row for row, value in enumerate(values) if not isinstance(value, int | None)
        )
        raise AttnProbeError(
            f"column {column!r} must hold integers or strings as labels, row {row} is {type(values[row]).__name__}; "
            "convert them or name another column with --label-column"
        )
    first = (
        0
        if kinds == {str} or hasattr(source.features[column], "names")
        else recipe.first_label
    )
    labels = [-1 if value is None else int(value) for value in values]
    _check_range(labels, names, first)
    return [
        label if label < 0 else label - first for label in labels
    ], None if names is None else tuple(names)


def _check_range(labels: list[int], names: Sequence[str] | None, first: int) -> None:
    end = max(labels, default=-1) + 1 if names is None else first + len(names)
    for row, label in enumerate(labels):
        if label != -1 and not first <= label < end:
            raise AttnProbeError(
                f"expected labels from {first} to {end - 1}, or -1 for none, row {row} has {label}; renumber them"
            )


def _keep_classes(
    labels: list[int], names: tuple[str, ...] | None, kept: tuple[str, ...] | None
) -> tuple[list[int | None], tuple[str, ...] | None]:
    """The labels renumbered, None where the class is not kept."""
    if kept is None:
        return labels, names
    if not set(kept) <= set(names or ()):
        raise AttnProbeError(
            f"expected the classes {', '.join(kept)}, got {', '.join(names or ('none with a name',))}"
        )
    new = {names.index(name): index for index, name in enumerate(kept)}
    return [new.get(label) for label in labels], kept


def _to_dataset(
    table: dict[str, list[Any]], names: tuple[str, ...] | None
) -> "datasets.Dataset":
    from datasets import ClassLabel, Dataset, Features, List, Value

    features = {
        "example_id": Value("int64"),
        "text": Value("string"),
        "label": Value("int64") if names is None else ClassLabel(names=list(names)),
        "evidence": List(Value("int64")),
    }
    return Dataset.from_dict(
        table, features=Features({name: features[name] for name in table})
    )
