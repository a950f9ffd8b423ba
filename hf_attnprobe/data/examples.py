"""Data sets by name, folder, Hub id or in memory, all in one form.

Whatever it was read from, a split becomes rows of `example_id`, `text` and `label`, of
`text_pair` where texts come in pairs, and `rationale` if there is one. `datasets` is imported
where it is used, so that the package imports without it.
"""

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_attnprobe.core.errors import AttnProbeError, NoSuchSplit
from hf_attnprobe.core.options import check_at_least, public_function
from hf_attnprobe.data.columns import (
    SINGLE,
    TOKENS,
    TextColumns,
    check_present,
    choose_columns,
    column_of,
    each,
    image_column,
    image_digest,
    not_images,
    read_images,
    read_texts,
)
from hf_attnprobe.data.labels import (
    Labels,
    join_columns,
    keep_classes,
    names_in,
    read_answers,
    read_choices,
    read_labels,
    read_rationales,
    read_word_labels,
    renamed,
    right_choices,
    word_label_column,
)
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.data.sources import (
    LARGEST_ID,
    has_splits,
    hold_out,
    is_file,
    open_splits,
    recipe_of,
    set_apart,
)
from hf_attnprobe.statistics.sampling import by_hash, sample


if TYPE_CHECKING:
    import datasets
    import pandas as pd


Source: TypeAlias = (
    "str | os.PathLike | Recipe | datasets.Dataset | datasets.DatasetDict | pd.DataFrame"
    " | Mapping[str, Any] | list[dict[str, Any]] | list[str]"
)
"""What a data set may be given as."""
logger = logging.getLogger(__name__)

LABEL_COLUMNS = ("label", "labels", "answerKey")
"""Where labels are looked for; the last is that of questions with choices."""


FURTHER = (
    "rationale",
    "text_pair",
    "rationale_pair",
    "word_labels",
    "answer_start",
    "answer_end",
    "choices",
    "passages",
    "question",
    "prompt",
    "turns",
    "answer",
    "other",
)
"""Columns that only some data has, in the order of the fingerprint."""
READ_FROM = "texts read from "


@public_function
def load_examples(
    dataset: "Source",
    split: str,
    *,
    text_column: str | Sequence[str] | None = None,
    text_pair_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    holdout: float | None = None,
    dataset_config: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> "datasets.Dataset":
    """Reads one split as rows of `example_id`, `text`, `label` and further fields.

    Args:
        dataset: a name in `RECIPES`, a folder, a file (csv, tsv, json, jsonl, parquet),
            a Hub id, a `Recipe`, or examples in memory: a `Dataset`, a `DatasetDict`, a
            data frame, a dict of columns, a list of dicts or of texts.
        split: ignored for a file, a `Dataset`, a data frame, columns and a list, which
            are one split.
        text_column: default: the recipe's, else those of a known pair such as premise
            and hypothesis, else `text` or `sentence`, else the words of `tokens`.
            Several columns are joined by a space into one text, leaving out missing
            values.
        text_pair_column: the second text, which the tokenizer pairs with the first.
        label_column: default: the recipe's, else `label` or `labels`. Several are one
            column of 0 and 1 per label, of which any number may hold.
        labels: ``data=model``, what labels of the data are called in place of their names;
            with nothing behind ``=`` there is no label.
        holdout: share of a single split that is the test split, and as much validation.
        dataset_config: configuration of the data set, for those that have several.
        limit: number of rows to keep after all filters, see :func:`sample`; at least 1.
        seed: chooses the rows of `train` that become `validation` where the recipe sets
            them apart, and nothing else: give both splits the same seed.

    Returns:
        Rows with the columns

        - `example_id` (int64): the source's own where those are unique and not
          negative, else the row number in the source split before any filter, so that
          it names the same text whatever `limit` is;
        - `text` (string), and `text_pair` (string) where texts come in pairs;
        - `label`: a ClassLabel where the source names its classes or its labels are
          strings (sorted, over all splits), else an int64; -1 for unlabelled rows. A
          float64, NaN for none, where some label has a fraction. A list of the numbers
          of the labels that hold, None for none known, where labels are lists (of
          numbers or of names) or have a column each;
        - `rationale` (list of int64): a human rationale, or the words that a rule
          decides by, as positions from 0 among the words that white space separates in
          the text; empty where there is none. It is read from a column of that name that
          holds lists of integers;
        - `rationale_pair`: the same of the second text;
        - `word_labels` (list of ClassLabel or int64): where words come with a label
          each, such as `tokens` with `ner_tags`; -1 for none;
        - `answer_start`, `answer_end`: where the answer is in the second text, in
          characters, the end exclusive, -1 for none, from columns of these names or
          SQuAD's `answers`;
        - `pixel_values`, `image` or `img`: of data without texts, for models of images;
        - `choices` (list of string): the second texts to choose from, where the data is
          of questions with choices; the label is the number of the right one.

    Raises:
        AttnProbeError: no such data set, split or column; several ways to read the
            texts; no row left; a text that is not a string; labels of no known kind.
    """
    check_at_least(1, limit=limit)
    opened = open_split(
        dataset,
        split,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        labels=labels,
        holdout=holdout,
        dataset_config=dataset_config,
        seed=seed,
    )
    examples = read_split(opened, limit=limit)
    if not len(examples):
        raise AttnProbeError(
            f"split {split!r} has no example left of {len(opened.source)} rows after the "
            "recipe's filters"
        )
    return examples


@dataclass(frozen=True)
class OpenedSplit:
    """A split at its source, before anything is read.

    Attributes:
        source: the rows as they come, mapped into memory where they are on disk.
        rows: the numbers of those that belong to the split.
        splits: all splits of the source.
        recipe: how the split is cut and read.
        name: of the split.
    """

    source: "datasets.Dataset"
    rows: Sequence[int]
    splits: "Mapping[str, datasets.Dataset]"
    recipe: Recipe
    name: str


def open_split(
    dataset: "Source",
    split: str,
    *,
    dataset_config: str | None = None,
    seed: int = 0,
    **given: Any,
) -> OpenedSplit:
    """Opens a split without reading its texts; arguments as :func:`load_examples`.

    Args:
        given: the columns and what else a :class:`Recipe` has.
    """
    recipe = recipe_of(dataset, config=dataset_config, **given)
    splits = open_splits(dataset, split, recipe)
    if recipe.holdout is not None:
        splits = set_apart(splits, recipe.holdout)
    recipe = _as_present(recipe, splits, given)
    source, rows = _choose_split(splits, split, recipe, seed)
    return OpenedSplit(source, rows, splits, recipe, split)


def read_split(opened: OpenedSplit, *, limit: int | None = None) -> "datasets.Dataset":
    """Reads the rows of an opened split, see :func:`load_examples`; there may be none."""
    source, recipe = opened.source, opened.recipe
    images, choices = {}, None
    if not recipe.text_column:
        images = read_images(source, texts=bool(set(SINGLE) & set(source.column_names)))
    if images:
        columns, seconds = TextColumns(tuple(images)), None
        texts = [""] * len(source)
    else:
        columns, choices = _text_columns(source, recipe)
        texts, seconds = read_texts(source, columns)
    word_labels, word_names = _word_labels(source, columns, recipe, texts)
    is_beside = recipe.label_column is None and "label" in source.column_names
    labels = Labels("classes", [-1] * len(source))
    if word_labels is None or is_beside:
        labels = _read_labels(source, opened.splits, recipe)
    labels = keep_classes(labels, recipe.keep_labels)
    ids = example_ids(source)
    of_seconds = {} if seconds is None else read_answers(source, seconds)
    table: dict[str, Any] = {
        "example_id": ids,
        "text": texts,
        **images,
        "text_pair": seconds,
        "label": labels.values,
        "rationale": read_rationales(source),
        "rationale_pair": seconds and read_rationales(source, "_pair"),
        "word_labels": word_labels,
        **of_seconds,
        "choices": choices,
    }
    is_training = opened.name in ("train", "validation")
    keeps_all = recipe.keep_labels is None
    rows = []
    for row in opened.rows:
        is_kept = keeps_all or labels.values[row] is not None
        if is_kept and recipe.admits(texts[row], training=is_training):
            rows.append(row)
    rows = sample(rows, [ids[row] for row in rows], limit)
    chosen = {k: [values[row] for row in rows] for k, values in table.items() if values is not None}
    return _to_dataset(chosen, labels, word_names, columns)


@dataclass(frozen=True)
class DatasetName:
    """The name of the texts in a report.

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


def dataset_name(dataset: Any, split: str) -> DatasetName:
    """The name of the texts in a report.

    >>> print(dataset_name("imdb", "test"), dataset_name([], "test"), sep=", ")
    imdb (test), data given in memory (test)
    """
    if isinstance(dataset, Recipe):
        dataset = dataset.hub_id
    in_memory = not isinstance(dataset, str | os.PathLike)
    return DatasetName("data given in memory" if in_memory else str(dataset), split)


def _choose_split(
    splits: "Mapping[str, datasets.Dataset]",
    split: str,
    recipe: Recipe,
    seed: int,
) -> "tuple[datasets.Dataset, Sequence[int]]":
    """The split of the source that contains `split`, and the indices of its rows."""
    from_train = (
        recipe.validation_fraction is not None
        and "validation" not in splits
        and split in ("train", "validation")
    )
    name = "train" if from_train else recipe.splits.get(split, split)
    name = name if name in splits else split  # a folder may have split it itself
    if name not in splits:
        raise NoSuchSplit(
            f"expected one of the splits {', '.join(splits)}, got {split!r}; choose "
            "one with --split"
        )
    source = splits[name]
    rows = range(len(source))
    if not rows:
        raise AttnProbeError(
            f"expected examples in split {split!r}, got an empty one; choose another with --split"
        )
    if not from_train:
        return source, rows
    of_class = recipe.balanced_validation
    labels = _read_labels(source, splits, recipe).values if of_class else [0] * len(source)
    held_out = hold_out(labels, recipe.validation_fraction or 0.0, seed)
    return source, [row for row in rows if (row in held_out) == (split == "validation")]


def example_ids(source: "datasets.Dataset") -> list[int]:
    """The ids of a source's rows: its own where they name every row, else their numbers."""
    by_row = list(range(len(source)))
    if "example_id" not in source.column_names:
        return by_row
    ids = column_of(source, "example_id")
    are_valid = all(
        # True is an int to Python, and no id
        type(i) is int and 0 <= i <= LARGEST_ID
        for i in ids
    )
    return ids if are_valid and len(set(ids)) == len(ids) else by_row


def _as_present(
    recipe: Recipe,
    splits: "Mapping[str, datasets.Dataset]",
    given: Mapping[str, Any],
) -> Recipe:
    """The recipe without the columns that a local folder lacks.

    Only where the folder has columns of the usual names, and the user named none.
    """
    present = {name for part in splits.values() for name in part.column_names}
    for name, usual in (("text_column", SINGLE), ("label_column", ("label",))):
        own = getattr(recipe, name)
        wanted = {*each(own)}
        there = present & {*usual}
        if given.get(name) is None and there and not wanted <= present:
            without: dict[str, Any] = {name: None}
            recipe = replace(recipe, **without)
            logger.warning(
                "no column %s as in %s, %s is read instead",
                ", ".join(sorted(wanted)),
                recipe.hub_id,
                " or ".join(sorted(there)),
            )
    return recipe


def _text_columns(
    source: "datasets.Dataset", recipe: Recipe
) -> tuple[TextColumns, list[list[str]] | None]:
    """The columns of the texts, and the choices beside them if there are any."""
    found = read_choices(source)
    text, pair = recipe.text_column, recipe.text_pair_column
    if found is not None and pair is None:
        return choose_columns(source.column_names, text or found[0], None), found[1]
    return choose_columns(source.column_names, text, pair), None


def _word_labels(
    source: "datasets.Dataset",
    columns: TextColumns,
    recipe: Recipe,
    texts: list[str],
) -> tuple[list[list[int]] | None, tuple[str, ...] | None]:
    """Labels of words and their names; None if words have none."""
    if columns.text != (TOKENS,) and "word_labels" not in source.column_names:
        return None, None
    given = recipe.label_column
    column = word_label_column(source, given if isinstance(given, str) else None)
    if column is None or not hasattr(source.features.get(column), "feature"):  # no list
        return None, None
    names = names_of(source.features[column]) or recipe.label_names
    return read_word_labels(column_of(source, column), names, texts, column)


def _label_column(source: "datasets.Dataset", recipe: Recipe) -> str | tuple[str, ...] | None:
    """The column or columns with the labels; None if there are none."""
    given = recipe.label_column
    if given is None:
        present = [name for name in LABEL_COLUMNS if name in source.column_names]
        return present[0] if present else None
    names = tuple(dict.fromkeys(each(given)))  # each once
    for name in names:
        check_present(source.column_names, name, "--label-column")
    return names[0] if len(names) == 1 else names


def _read_labels(
    source: "datasets.Dataset",
    splits: "Mapping[str, datasets.Dataset]",
    recipe: Recipe,
) -> Labels:
    """The labels of the texts, -1 for all without a label column."""
    column = _label_column(source, recipe)
    if column is None:
        return Labels("classes", [-1] * len(source), recipe.label_names)
    if not isinstance(column, str):
        cells = [column_of(source, name) for name in column]
        return Labels("several", join_columns(cells, column), column)
    values = column_of(source, column)
    if read_choices(source) is not None:
        has_choices = "choices" in source.column_names
        choices = column_of(source, "choices") if has_choices else None
        right = right_choices(values, choices)
        return read_labels(right, right, column=column)
    everywhere: list[Any] = []
    for examples in splits.values():
        if column in examples.column_names:
            everywhere += _distinct(examples, column)
    names, first = names_of(source.features[column]), 0
    if recipe.labels:
        said, names = (
            [names_in(cells, names) for cells in (values, everywhere)],
            None,
        )
        values, everywhere = (renamed(cells, recipe.labels, said[1]) for cells in said)
    if names is None:
        names, first = recipe.label_names, recipe.first_label
    return read_labels(values, everywhere, column=column, names=names, first=first)


def _distinct(examples: "datasets.Dataset", column: str) -> list[Any]:
    """Distinct values of a column, without loading it at once."""
    if type(examples.features[column]).__name__ not in ("Value", "ClassLabel"):
        return column_of(examples, column)
    return examples.with_format(None).unique(column)


FEATURES: dict[str, Any] = {
    "example_id": "int64",
    "text": "string",
    "text_pair": "string",
    "rationale": ["int64"],
    "rationale_pair": ["int64"],
    "answer_start": "int64",
    "answer_end": "int64",
    "choices": ["string"],
    "pixel_values": [[["float32"]]],
}
"""Types of columns, lists of them in brackets; of labels and images they are below."""


def _feature(kind: Any) -> Any:
    """A type of a column, of lists as deep as the brackets."""
    from datasets import List, Value

    return List(_feature(kind[0])) if isinstance(kind, list) else Value(kind)


def _to_dataset(
    table: Mapping[str, Sequence[Any]],
    labels: Labels,
    word_names: tuple[str, ...] | None,
    columns: TextColumns,
) -> "datasets.Dataset":
    from datasets import ClassLabel, Dataset, DatasetInfo, Features, Image, List

    def numbers(names: tuple[str, ...] | None) -> Any:
        return _feature("int64") if names is None else ClassLabel(names=[*names])

    of_labels = {
        "classes": numbers(labels.names),
        "numbers": _feature("float64"),
        "several": List(numbers(labels.names)),
    }
    known = {name: _feature(kind) for name, kind in FEATURES.items()}
    known["label"] = of_labels[labels.kind]
    known["word_labels"] = List(numbers(word_names))
    known["image"] = known["img"] = Image()
    features = Features({name: known[name] for name in table})
    info = DatasetInfo(description=f"{READ_FROM}{columns}", features=features)
    try:
        return Dataset.from_dict(table, features=features, info=info)
    except Exception as reason:  # Pillow and the file system raise many kinds
        name = image_column(list(table))
        if name is None:
            raise
        raise not_images(name, reason) from reason


# --- what the rows hold --------------------------------------------------------------------------


def label_kind(examples: "datasets.Dataset") -> str:
    """ "classes", "numbers" (for regression) or "several" (labels at once)."""
    feature = examples.features["label"]
    if hasattr(feature, "feature"):
        return "several"
    return "numbers" if str(feature.dtype).startswith("float") else "classes"


def has_labels(examples: "datasets.Dataset") -> bool:
    """Whether any row has a label, an answer or labelled words."""
    if {"word_labels", "answer_start"} & set(examples.column_names):
        return True
    kind, labels = label_kind(examples), column_of(examples, "label")
    if kind == "classes":
        return max(labels, default=-1) >= 0
    if kind == "numbers":
        return not all(math.isnan(label) for label in labels)
    return any(label is not None for label in labels)


def label_names(examples: "datasets.Dataset") -> list[str]:
    """Names of the classes or labels; none for numbers.

    `LABEL_0`, `LABEL_1`, … as in Transformers where they have none.
    """
    kind, names = label_kind(examples), names_of(examples.features["label"])
    if names is not None:
        return list(names)
    if kind == "numbers":
        return []
    labels = column_of(examples, "label")
    if kind == "several":
        labels = [number for row in labels for number in row or []]
    n_labels = max(labels, default=-1) + 1
    return [f"LABEL_{label}" for label in range(n_labels)]


def columns_read(examples: "datasets.Dataset") -> str:
    """Names, in words, the source columns that :func:`load_examples` read as texts."""
    return examples.info.description.removeprefix(READ_FROM)


def names_of(feature: Any) -> tuple[str, ...] | None:
    """The names of a ClassLabel, or of the ClassLabels in a list."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return None if names is None else tuple(names)


def dataset_fingerprint(examples: "datasets.Dataset") -> str:
    """16 hex digits (SHA-256) of ids, texts, labels and the rows' further fields.

    Equal for equal examples, in any order and from any source.
    """
    names = ["example_id", "text", "label"]
    names += [name for name in FURTHER if name in examples.column_names]
    columns = [column_of(examples, name) for name in names]
    image = image_column(examples.column_names)
    if image is not None:
        columns.append([image_digest(pixels) for pixels in column_of(examples, image)])
    digest = hashlib.sha256()
    rows = [json.dumps(row) for row in zip(*columns, strict=True)]
    order = zip(columns[0], columns[1], rows, strict=True)
    for _, _, row in sorted(order):
        digest.update(row.encode() + b"\n")
    return digest.hexdigest()[:16]


# --- The splits that a model is trained, chosen and scored on ------------------------------------

WORDS_FOR = {
    "numbers": "numbers to be predicted",
    "several": "lists of several labels",
}


@public_function
def load_splits(
    dataset: "str | os.PathLike | Recipe | Mapping[str, Any]",
    *,
    dataset_config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    text_pair_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    holdout: float | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> "dict[str, datasets.Dataset]":
    """Loads train, validation and, if it exists and has labels, test.

    The result fits the keyword arguments of :func:`train_classifier`.

    Args:
        dataset: a name, a folder, a Hub id, a `Recipe` or a `DatasetDict`.
        dataset_config, text_column, text_pair_column, label_column, labels, holdout, seed:
            see :func:`load_examples`.
        limit: number of training texts, as even over the classes as possible; a smaller
            sample is part of a larger one.

    Raises:
        AttnProbeError: one split alone, or no validation split.
    """
    if holdout is None and not has_splits(dataset):
        raise AttnProbeError(
            "expected the splits train, validation and test, since a model is not scored on the "
            f"texts that it learned, got one {'file' if is_file(dataset) else 'split'}; set a "
            "share of it apart with --holdout .2, here and in the audit, or give a folder with "
            "train.csv, validation.csv and test.csv"
        )

    load = partial(
        load_examples,
        dataset,
        dataset_config=dataset_config,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        labels=labels,
        holdout=holdout,
        seed=seed,
    )
    splits = {"train": load("train")}
    if limit is not None:
        check_at_least(1, limit=limit)
        _check_are_classes("training", splits["train"])
        splits["train"] = _balanced(splits["train"], limit)
    for name in ("validation", "test"):
        with suppress(NoSuchSplit):
            examples = load(name)
            if name == "validation" or has_labels(examples):
                splits[name] = examples
    if "validation" not in splits:
        raise AttnProbeError(
            f"expected a validation split in {dataset}, which chooses the epoch to "
            "keep; add one, or call train_classifier"
        )
    return splits


def _balanced(examples: "datasets.Dataset", limit: int) -> "datasets.Dataset":
    """The first ``limit`` examples, taking the classes in turn.

    Within a class the order is that of :func:`by_hash`.
    """
    labels = column_of(examples, "label")
    order = by_hash(column_of(examples, "example_id"))
    n_drawn: Counter[int] = Counter()
    turns = {}
    for row in order:
        turns[row] = n_drawn[labels[row]]
        n_drawn[labels[row]] += 1
    return examples.select(sorted(sorted(order, key=turns.__getitem__)[:limit]))


def check_sets(train: Any, validation: Any, test: Any) -> "dict[str, datasets.Dataset]":
    """The given splits by name, in the form of :func:`load_examples`.

    Raises:
        AttnProbeError: a split without labels, or with other classes than ``train``.
    """
    given = {"train": train, "validation": validation, "test": test}
    splits = {
        name: load_examples(examples, name)
        for name, examples in given.items()
        if examples is not None
    }
    names = label_names(splits["train"])
    _check_classes(splits["train"], names)
    for name in splits.keys() - {"train"}:
        _check_held_out(name, splits[name], names)
    return splits


def _check_classes(train: "datasets.Dataset", names: list[str]) -> None:
    if not has_labels(train):
        raise AttnProbeError(
            "expected labelled training texts, got none; name the column of the labels with "
            "--label-column (in Python: Data(…, label_column=…))"
        )
    _check_are_classes("training", train)
    present = set(column_of(train, "label"))
    if len(names) < 2 or present != set(range(len(names))):
        raise AttnProbeError(
            f"expected labelled training texts of every class of {', '.join(names)}, "
            f"got labels {sorted(present)}; check the label column"
        )


def _check_are_classes(name: str, examples: "datasets.Dataset") -> None:
    if label_kind(examples) != "classes":
        raise AttnProbeError(
            f"expected one class per {name} text, got "
            f"{WORDS_FOR[label_kind(examples)]}; name a column of classes with "
            "--label-column"
        )


def _check_held_out(name: str, examples: "datasets.Dataset", names: list[str]) -> None:
    """Checks that the classes and their numbers are those of the training texts.

    Where classes have no names there may be fewer.
    """
    _check_are_classes(name, examples)
    labels = column_of(examples, "label")
    held_out_names = label_names(examples)
    if held_out_names != names[: len(held_out_names)]:
        raise AttnProbeError(
            f"expected labelled {name} texts of the training texts' classes "
            f"{', '.join(names)}, got labels {sorted(set(labels))} of "
            f"{', '.join(held_out_names) or 'none'}; give all splits the same classes"
        )
    if -1 in labels:
        raise AttnProbeError(
            f"expected labelled {name} texts, got {labels.count(-1)} of {len(labels)} "
            "without a label; label or drop them"
        )
