"""Read data sets from any source into the same columns.

A split becomes rows with `example_id`, `text` and `label`, with `text_pair` if texts come in pairs
and `rationale` if the data has rationales. The library `datasets` is imported inside the functions
that need it, so that importing this package stays fast.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hf_attnprobe.core.errors import AttnProbeError, MissingSplitError
from hf_attnprobe.core.options import check_minimum, public_function
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.data.columns import (
    TEXT_COLUMNS,
    TOKENS_COLUMN,
    TextColumns,
    check_column_exists,
    choose_columns,
    compute_image_digest,
    find_image_column,
    has_images,
    list_columns,
    make_image_error,
    read_column,
    read_images,
    read_text_columns,
)
from hf_attnprobe.data.instances import (
    COORDINATES_COLUMN,
    INSTANCE_COLUMNS,
    choose_instance_column,
    compute_bag_digest,
    find_instance_column,
    has_instances,
    iterate_bags,
    read_instances,
)
from hf_attnprobe.data.labels import (
    Labels,
    convert_to_names,
    find_word_label_column,
    index_correct_choices,
    join_label_columns,
    read_answer_spans,
    read_choices,
    read_labels,
    read_rationales,
    read_word_labels,
    rename_labels,
    select_classes,
)
from hf_attnprobe.data.model_inputs import list_input_columns, read_model_inputs
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.data.sources import (
    MAX_EXAMPLE_ID,
    draw_holdout_rows,
    is_data_file,
    list_file_columns,
    may_have_splits,
    open_splits,
    resolve_recipe,
    split_by_holdout,
)
from hf_attnprobe.statistics.sampling import draw_sample, order_by_hash


if TYPE_CHECKING:
    import datasets
    import pandas as pd


DatasetSource: TypeAlias = (
    "str | os.PathLike | Recipe | datasets.Dataset | datasets.DatasetDict | pd.DataFrame"
    " | Mapping[str, Any] | list[dict[str, Any]] | list[str]"
)
"""Types of data sets that :func:`load_examples` accepts."""
logger = logging.getLogger(__name__)

LABEL_COLUMNS = ("label", "labels", "answerKey")
"""Usual names of the label column. `answerKey` is usual in multiple-choice data sets."""

OPTIONAL_COLUMNS = (
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
"""Columns that only some data sets have.

The fingerprint of a data set is a hash of its columns in this order. If the order changed, all
fingerprints would change.
"""
COLUMN_FIELDS = (
    "text_column",
    "text_pair_column",
    "instance_column",
    "label_column",
    "string_columns",
)
"""Fields of :class:`~hf_attnprobe.data.recipes.Recipe` that contain names of columns."""
MAX_ID_DIGITS = 19
"""Number of digits of the largest example id."""
MAX_EXACT_FLOAT = 2**53
"""Floats up to this number represent every whole number exactly."""
DESCRIPTION_PREFIX = "texts read from "
"""Prefix of the description of a loaded split, such as "texts read from premise with hypothesis"."""


NAMES_FROM_LISTS = "names-from-lists"
"""Id of the ClassLabel feature of a loaded split if its names occurred in lists of label names.

Such lists name the labels that apply. A label that applies to no text is thus not among the names,
although every text is labelled for it.
"""


@public_function
def load_examples(  # noqa: PLR0913
    dataset: "DatasetSource",
    split: str,
    *,
    text_column: str | Sequence[str] | None = None,
    text_pair_column: str | None = None,
    instance_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    holdout: float | None = None,
    dataset_config: str | None = None,
    encoding: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> "datasets.Dataset":
    """Read one split as rows with `example_id`, `text`, `label` and further columns.

    Args:
        dataset: a registered name, a folder, a file (csv, tsv, json, jsonl, parquet), a Hub id, a
            `Recipe`, or examples in memory: a `Dataset`, a `DatasetDict`, a data frame, a dict of
            columns, a list of dicts or a list of texts.
        split: the split's name; ignored if the data set has only one split, such as a file, a
            data frame or a list.
        text_column: text column; several columns are joined by a space, leaving out missing
            values. Default: the recipe's column, otherwise a usual pair such as `premise` and
            `hypothesis`, otherwise `text` or `sentence`, otherwise the words in `tokens`.
        text_pair_column: column with the second texts, which the tokenizer pairs with the first.
        instance_column: column with bags of instances, for data that are not texts. Default: if the
            data has no texts, `features` or `items`.
        label_column: label column, or several columns of 0 and 1, one per label. Default:
            the recipe's column, otherwise `label` or `labels`.
        labels: new label names as ``data=model``; ``data=`` makes texts with this label unlabelled.
        holdout: share to use as the test split if the data set has a single split; validation gets
            the same share.
        dataset_config: configuration name, if the data set has several.
        encoding: encoding of CSV, TSV, JSON and text files, such as "latin-1"; None for UTF-8, or
            for the encoding that a file's byte order mark announces.
        limit: number of rows to sample after all filters; at least 1. A smaller sample is part of a
            larger one.
        seed: random seed with which validation rows are drawn from `train` if the recipe requires
            it; load both splits with the same seed.

    Returns:
        Rows with the columns

        - `example_id` (int64): the id in the source if the ids are unique and not negative,
          otherwise the row number in the source before any filter, so that it identifies the same
          text for every `limit`;
        - `text` (string), and `text_pair` (string) if texts come in pairs;
        - `label`: for classes a ClassLabel if the source names them or the labels are strings
          (sorted, over all splits), otherwise an int64, with -1 for unlabelled rows; for numbers
          with fractions a float64, with NaN for unlabelled rows; for several labels per text a list
          of label numbers, with None for unlabelled rows;
        - `rationale` (list of int64): the words that people marked as the reason, as positions from
          0 among the words separated by white space; empty for texts without a rationale. It is
          read from a column with this name that contains lists of integers;
        - `rationale_pair`: the same for the second text;
        - `word_labels` (list of ClassLabel or int64): one label per word, from columns such as
          `ner_tags` next to `tokens`, with -1 for unlabelled words;
        - `answer_start`, `answer_end`: the answer's position in the second text, in characters,
          with an exclusive end, and -1 for no answer; read from columns with these names or from
          `answers` in SQuAD's format;
        - `pixel_values`, `image` or `img`: images, if the data has no texts;
        - `features` or `items`: bags of instances, if the data has no texts. A bag in `features` is
          a matrix `[instances, size]` or the path of a file with this matrix, and a bag in `items`
          is a list of integers. `coordinates` has one position per instance, if the source has this
          column;
        - `choices` (list of string): the texts to choose from in multiple-choice questions, whose
          label is the index of the correct choice.

    Raises:
        AttnProbeError: if the data set, the split or a column does not exist, several columns may
            contain the texts, no row passes the filters, a text is not a string, or the labels have
            an unknown type.

    Example::

        from hf_attnprobe import load_examples

        rows = [{"text": "a fine film", "label": "pos"}, {"text": "a dull film", "label": "neg"}]
        examples = load_examples(rows, "test")
        examples.features["label"].names  # ['neg', 'pos']
    """
    check_minimum(1, limit=limit)
    opened = open_split(
        dataset,
        split,
        text_column=text_column,
        text_pair_column=text_pair_column,
        instance_column=instance_column,
        label_column=label_column,
        labels=labels,
        holdout=holdout,
        dataset_config=dataset_config,
        encoding=encoding,
        seed=seed,
    )
    return read_examples(opened, limit=limit)


def read_examples(
    opened: "OpenedSplit",
    *,
    limit: int | None = None,
    model_inputs: Mapping[str, str] | None = None,
) -> "datasets.Dataset":
    """Read the rows of an opened split, as :func:`load_examples` does.

    Args:
        opened: the opened split.
        limit: number of rows to sample after all filters; None keeps all.
        model_inputs: columns that the model reads in addition to the texts, by the name of the model
            input; see :mod:`hf_attnprobe.data.model_inputs`.

    Returns:
        The rows, at least one.

    Raises:
        AttnProbeError: if no row passes the filters, or texts or labels cannot be read.
    """
    examples = read_split(opened, limit=limit, model_inputs=model_inputs)
    if not len(examples):
        raise AttnProbeError(
            f"no row of split {opened.name!r} passes the filters of "
            "this registered data set. To keep all rows, pass a folder or a Hub id instead of its "
            "name."
        )
    return examples


def list_further_columns(opened: "OpenedSplit") -> list[str]:
    """List the columns of an opened split that contain neither texts nor labels.

    Args:
        opened: the opened split.
    """
    source, recipe = opened.source, opened.recipe
    used_columns = {"example_id", *list_columns(recipe.text_column)}
    used_columns |= {*TEXT_COLUMNS, *list_columns(recipe.text_pair_column)}
    used_columns |= {*list_columns(_find_label_columns(source, recipe))}
    return [name for name in source.column_names if name not in used_columns]


@dataclass(frozen=True)
class OpenedSplit:
    """A split whose texts are not read yet.

    Attributes:
        source: the source's rows, memory-mapped if they are on disk.
        rows: indices in ``source`` that belong to the split.
        splits: all splits in the source.
        recipe: the rules for filtering and reading the split.
        name: the split's name.
    """

    source: "datasets.Dataset"
    rows: Sequence[int]
    splits: "Mapping[str, datasets.Dataset]"
    recipe: Recipe
    name: str


def open_split(
    dataset: "DatasetSource",
    split: str,
    *,
    dataset_config: str | None = None,
    seed: int = 0,
    **recipe_fields: Any,
) -> OpenedSplit:
    """Open a split without reading its texts.

    Args:
        dataset: see :func:`load_examples`.
        split: the split's name.
        dataset_config: configuration name, if the data set has several.
        seed: random seed with which validation rows are drawn from `train`, if the recipe requires
            it.
        **recipe_fields: values that replace fields of :class:`~hf_attnprobe.data.recipes.Recipe`,
            such as ``text_column``; None keeps the recipe's value.

    Returns:
        The opened split.

    Raises:
        AttnProbeError: if the data set or the split does not exist, or the split is empty.
    """
    recipe = _strip_requested_names(resolve_recipe(dataset, config=dataset_config, **recipe_fields))
    splits = open_splits(dataset, split, recipe)
    splits = {name: _add_nested_columns(examples, recipe) for name, examples in splits.items()}
    if recipe.holdout is not None:
        splits = split_by_holdout(splits, recipe.holdout)
    recipe = _drop_missing_columns(recipe, splits, recipe_fields)
    source, rows = _choose_split(splits, split, recipe, seed)
    return OpenedSplit(source, rows, splits, recipe, split)


def check_named_columns(
    dataset: "DatasetSource",
    split: str,
    columns: Mapping[str, Sequence[str]],
    *,
    dataset_config: str | None = None,
    encoding: str | None = None,
) -> None:
    """Check that a data set and the columns that the user named exist, without reading its texts.

    A command calls this before it imports torch and loads a model, so that a misspelt name is
    reported at once.

    Args:
        dataset: see :func:`load_examples`.
        split: the split's name.
        columns: requested column names, by the command-line flag that names them.
        dataset_config: see :func:`load_examples`.
        encoding: see :func:`load_examples`.

    Raises:
        AttnProbeError: if the data set or a column does not exist.
    """
    recipe = resolve_recipe(dataset, config=dataset_config, encoding=encoding)
    if not any(columns.values()):
        return
    present: list[str] | None
    if is_data_file(recipe.hub_id):
        present = list_file_columns(Path(recipe.hub_id), encoding)
    else:
        splits = open_splits(dataset, split, recipe)
        present = [*dict.fromkeys(n for examples in splits.values() for n in examples.column_names)]
    if present is None:
        return
    for flag, names in columns.items():
        for name in names:
            # A nested column, such as "review.body", is inside the column "review".
            if name.strip() not in present and name.partition(".")[0] not in present:
                check_column_exists(present, name, flag)


def _strip_requested_names(recipe: Recipe) -> Recipe:
    """Remove the white space around requested column names, as around the names in the data.

    A user may copy a name such as "Review " from a file, including its space.
    """

    def strip_names(names: Any) -> Any:
        if names is None or isinstance(names, str):
            return names and names.strip()
        return type(names)(name.strip() for name in names)

    changes = {name: strip_names(getattr(recipe, name)) for name in COLUMN_FIELDS}
    return replace(recipe, **changes)


def _add_nested_columns(examples: "datasets.Dataset", recipe: Recipe) -> "datasets.Dataset":
    """Add the columns that the user named with dots, such as "review.body" inside "review"."""
    import datasets

    requested = [name for field in COLUMN_FIELDS for name in list_columns(getattr(recipe, field))]
    nested = [name for name in requested if "." in name and name not in examples.column_names]
    if not nested:
        return examples
    # The name of a flattened column contains the names of all levels, with dots between them.
    flattened = examples.flatten()
    while any(isinstance(feature, Mapping) for feature in flattened.features.values()):
        flattened = flattened.flatten()
    present = [name for name in dict.fromkeys(nested) if name in flattened.column_names]
    if not present:
        return examples
    return datasets.concatenate_datasets([examples, flattened.select_columns(present)], axis=1)


def read_split(
    opened: OpenedSplit,
    *,
    limit: int | None = None,
    model_inputs: Mapping[str, str] | None = None,
) -> "datasets.Dataset":
    """Read the rows of an opened split.

    Args:
        opened: the opened split.
        limit: number of rows to sample after all filters; None keeps all.
        model_inputs: columns that the model reads in addition to the texts, by the name of the model
            input.

    Returns:
        The rows with the columns of :func:`load_examples`; there may be none.

    Raises:
        AttnProbeError: if texts or labels cannot be read.
    """
    source, recipe = opened.source, opened.recipe
    images, choices = {}, None
    instance_column = _find_bags(source, recipe)
    if not recipe.text_column and instance_column is None:
        has_texts = bool(set(TEXT_COLUMNS) & set(source.column_names))
        images = read_images(source, has_texts=has_texts)
    if images or instance_column is not None:
        input_columns = tuple(images) if instance_column is None else (instance_column,)
        columns, second_texts = TextColumns(input_columns), None
        texts = [""] * len(source)
    else:
        columns, choices = _choose_text_columns(source, recipe)
        texts, second_texts = read_text_columns(source, columns)
    word_labels, word_label_names = _read_word_labels(source, columns, recipe, texts)
    has_text_labels = recipe.label_column is None and "label" in source.column_names
    labels = Labels("classes", [-1] * len(source))
    if word_labels is None or has_text_labels:
        labels = _read_labels(source, opened.splits, recipe)
    labels = select_classes(labels, recipe.keep_labels)
    ids = read_example_ids(source)
    answer_spans = {} if second_texts is None else read_answer_spans(source, second_texts)
    table: dict[str, Any] = {
        "example_id": ids,
        "text": texts,
        **images,
        "text_pair": second_texts,
        "label": labels.values,
        "rationale": read_rationales(source),
        "rationale_pair": second_texts and read_rationales(source, "_pair"),
        "word_labels": word_labels,
        **answer_spans,
        "choices": choices,
    }
    input_features = {}
    if model_inputs:
        input_values = read_model_inputs(source, model_inputs, texts, second_texts)
        table |= input_values
        for name in input_values:
            input_features[name] = source.features[model_inputs[name.partition(":")[2]]]
    is_training = opened.name in ("train", "validation")
    rows = []
    for row in opened.rows:
        has_selected_class = recipe.keep_labels is None or labels.values[row] is not None
        if has_selected_class and recipe.is_within_bounds(texts[row], training=is_training):
            rows.append(row)
    rows = draw_sample(rows, [ids[row] for row in rows], limit)
    selected_table = {
        name: [values[row] for row in rows] for name, values in table.items() if values is not None
    }
    if instance_column is not None:
        # Bags can be large, so only those of the selected rows are read.
        bags = read_instances(source, instance_column, rows)
        selected_table |= bags
        input_features |= {name: _make_bag_feature(values) for name, values in bags.items()}
    return _build_dataset(selected_table, labels, word_label_names, columns, input_features)


@dataclass(frozen=True)
class DatasetName:
    """A data set's name and split, as a report prints them.

    Attributes:
        name: the data set's name, folder or Hub id.
        split: the split's name; "" for none.

    >>> print(DatasetName("data/SST", "test"))
    data/SST (test)
    """

    name: str
    split: str

    def __str__(self) -> str:
        return f"{self.name} ({self.split})" if self.split else self.name

    @classmethod
    def parse(cls, text: str) -> "DatasetName":
        """Create a `DatasetName` from its printed form.

        >>> DatasetName.parse("data/SST (test)")
        DatasetName(name='data/SST', split='test')
        """
        # Split at the last " (", because the name may contain brackets too.
        name, _, split = text.rpartition(" (")
        if not name:
            return cls(text, "")
        return cls(name, split.removesuffix(")"))


def get_dataset_name(dataset: Any, split: str) -> DatasetName:
    """Return a data set's name and split for a report.

    Args:
        dataset: the data set in any form that :func:`load_examples` accepts.
        split: the split's name.

    Returns:
        The name; "data given in memory" for an object in memory.

    >>> print(get_dataset_name("imdb", "test"), get_dataset_name([], "test"), sep=", ")
    imdb (test), data given in memory (test)
    """
    if isinstance(dataset, Recipe):
        dataset = dataset.hub_id
    is_in_memory = not isinstance(dataset, str | os.PathLike)
    return DatasetName("data given in memory" if is_in_memory else str(dataset), split)


def _choose_split(
    splits: "Mapping[str, datasets.Dataset]",
    split: str,
    recipe: Recipe,
    seed: int,
) -> "tuple[datasets.Dataset, Sequence[int]]":
    """Find the rows of a requested split.

    If the recipe requires it, the validation split is a random sample of the split `train`.

    Returns:
        The split of the source that contains the rows, and the indices of the rows in it.
    """
    is_drawn_from_train = (
        recipe.validation_fraction is not None
        and "validation" not in splits
        and split in ("train", "validation")
    )
    name = "train" if is_drawn_from_train else recipe.splits.get(split, split)
    # A local folder may use the standard split names instead of the recipe's.
    name = name if name in splits else split
    if name not in splits:
        # A single split can also be divided.
        alternative = ", or test on a part of it with --holdout .2" if len(splits) == 1 else ""
        raise MissingSplitError(
            f"the data set has no split {split!r}. Choose one of {', '.join(splits)} with "
            f"--split{alternative}."
        )
    source = splits[name]
    rows = range(len(source))
    if not rows:
        raise AttnProbeError(f"split {split!r} is empty; choose another split with --split")
    if not is_drawn_from_train:
        return source, rows
    if recipe.balanced_validation:
        labels = _read_labels(source, splits, recipe).values
    else:
        labels = [0] * len(source)
    validation_rows = draw_holdout_rows(labels, recipe.validation_fraction or 0.0, seed)
    is_validation = split == "validation"
    return source, [row for row in rows if (row in validation_rows) == is_validation]


def read_example_ids(source: "datasets.Dataset") -> list[int]:
    """Read the example ids of a split, or number the rows from 0 if it has no ids.

    The ids are in the column `example_id`. They connect a text with its results and with scores from
    other explainers, so an id that is missing or occurs twice is never replaced silently.

    Args:
        source: the split as loaded from its source.

    Returns:
        One id per row.

    Raises:
        AttnProbeError: if the column exists, but its values are not different whole numbers from 0
            to ``MAX_EXAMPLE_ID``.
    """
    if "example_id" not in source.column_names:
        return list(range(len(source)))
    ids = read_column(source, "example_id")
    row_by_id: dict[int, int] = {}
    for row, cell in enumerate(ids):
        example_id = _parse_example_id(cell)
        if example_id is None or not 0 <= example_id <= MAX_EXAMPLE_ID:
            raise _make_id_error(f"row {row} has {format_short(cell)}")
        first_row = row_by_id.setdefault(example_id, row)
        if first_row != row:
            raise _make_id_error(f"rows {first_row} and {row} both have {example_id}")
    return list(row_by_id)


def _parse_example_id(cell: Any) -> int | None:
    """Convert the cell of an id to a whole number; None if it is none.

    Strings of digits count, because the cells of a CSV file are strings. Floats such as 3.0 count,
    because pandas converts a column of whole numbers to floats if a cell is missing.
    """
    # The type must be exactly int, since True is an instance of int too.
    if type(cell) is int:
        return cell
    is_short_number = isinstance(cell, str) and cell.isdecimal() and len(cell) <= MAX_ID_DIGITS
    is_exact_float = isinstance(cell, float) and cell.is_integer() and abs(cell) <= MAX_EXACT_FLOAT
    return int(cell) if is_short_number or is_exact_float else None


def _make_id_error(problem: str) -> AttnProbeError:
    """Make the error for a row without a usable id."""
    return AttnProbeError(
        "column 'example_id' must contain a different whole number from 0 to 2^63 − 1 in every row, but "
        f"{problem} (rows are counted from 0, without the header). Correct the ids, or remove or rename "
        "the column, so that the rows are numbered from 0."
    )


def _drop_missing_columns(
    recipe: Recipe,
    splits: "Mapping[str, datasets.Dataset]",
    user_fields: Mapping[str, Any],
) -> Recipe:
    """Remove column names from a recipe if the data has columns with usual names instead.

    A recipe contains the column names of a data set on the Hub. A local copy often has columns
    named `text` and `label` instead. Columns that the user named are never removed.
    """
    # The names of all columns in all splits.
    present = {name for examples in splits.values() for name in examples.column_names}
    usual_names = {"text_column": TEXT_COLUMNS, "label_column": ("label",)}
    for field_name, usual_columns in usual_names.items():
        recipe_columns = {*list_columns(getattr(recipe, field_name))}
        substitutes = present & set(usual_columns)
        is_user_choice = user_fields.get(field_name) is not None
        if not is_user_choice and substitutes and not recipe_columns <= present:
            # Without a column name, the columns with usual names are read.
            cleared_field: dict[str, Any] = {field_name: None}
            recipe = replace(recipe, **cleared_field)
            logger.warning(
                "the data has no column %s, unlike %s, so %s is read instead",
                ", ".join(sorted(recipe_columns)),
                recipe.hub_id,
                " or ".join(sorted(substitutes)),
            )
    return recipe


def _find_bags(source: "datasets.Dataset", recipe: Recipe) -> str | None:
    """Find the column with bags of instances, or return None if the data has texts or images."""
    if recipe.instance_column is not None:
        check_column_exists(source.column_names, recipe.instance_column, "--instance-column")
        if recipe.text_column or recipe.text_pair_column:
            raise AttnProbeError(
                "--instance-column cannot be combined with --text-column or --text-pair-column, "
                "because an example is either a bag of instances or a text. Leave out one of them."
            )
        return recipe.instance_column
    # A split that was loaded before has an empty column of texts next to its bags.
    if (source.info.description or "").startswith(DESCRIPTION_PREFIX):
        return find_instance_column(source.column_names)
    if recipe.text_column or recipe.text_pair_column or has_images(source):
        return None
    return choose_instance_column(source.column_names)


def _make_bag_feature(bags: Sequence[Any]) -> Any:
    """Return the ``datasets`` feature for bags of vectors or integers, or for paths of files."""
    if isinstance(bags[0], str):
        return _make_feature("string")
    dtypes = {str(getattr(bag, "dtype", "int64")) for bag in bags}
    if dtypes == {"int64"}:
        return _make_feature(["int64"])
    return _make_feature([["float64" if "float64" in dtypes else "float32"]])


def _choose_text_columns(
    source: "datasets.Dataset", recipe: Recipe
) -> tuple[TextColumns, list[list[str]] | None]:
    """Choose the text columns, and read the choices if the data has multiple-choice questions.

    Returns:
        The text columns, and a list of choices per row; None for data without choices.
    """
    text, text_pair = recipe.text_column, recipe.text_pair_column
    question_and_choices = read_choices(source)
    if question_and_choices is not None and text_pair is None:
        question_column, choices = question_and_choices
        return choose_columns(source.column_names, text or question_column, None), choices
    return choose_columns(source.column_names, text, text_pair), None


def _read_word_labels(
    source: "datasets.Dataset",
    columns: TextColumns,
    recipe: Recipe,
    texts: list[str],
) -> tuple[list[list[int]] | None, tuple[str, ...] | None]:
    """Return the label numbers of all words, and the label names; (None, None) without word labels."""
    if columns.text != (TOKENS_COLUMN,) and "word_labels" not in source.column_names:
        return None, None
    requested_column = recipe.label_column if isinstance(recipe.label_column, str) else None
    column = find_word_label_column(source, requested_column)
    if column is None:
        return None, None
    # A list feature stores the type of its items in the attribute "feature".
    is_list = hasattr(source.features.get(column), "feature")
    if not is_list:
        return None, None
    names = read_class_names(source.features[column]) or recipe.label_names
    return read_word_labels(read_column(source, column), names, texts, column)


def _find_label_columns(source: "datasets.Dataset", recipe: Recipe) -> str | tuple[str, ...] | None:
    """Find the label columns: one name, a tuple of several names, or None if there are no labels."""
    if recipe.label_column is None:
        present = [name for name in LABEL_COLUMNS if name in source.column_names]
        return present[0] if present else None
    # Remove repetitions, but keep the order.
    distinct_names = tuple(dict.fromkeys(list_columns(recipe.label_column)))
    for name in distinct_names:
        check_column_exists(source.column_names, name, "--label-column")
    return distinct_names[0] if len(distinct_names) == 1 else distinct_names


def _read_labels(
    source: "datasets.Dataset",
    splits: "Mapping[str, datasets.Dataset]",
    recipe: Recipe,
) -> Labels:
    """Read the labels of all texts. They are -1 if the data has no label column."""
    column = _find_label_columns(source, recipe)
    if column is None:
        return Labels("classes", [-1] * len(source), recipe.label_names)
    if not isinstance(column, str):
        cells = [read_column(source, name) for name in column]
        return Labels("several", join_label_columns(cells, column), column)
    values = read_column(source, column)
    if read_choices(source) is not None:
        has_choices = "choices" in source.column_names
        choices = read_column(source, "choices") if has_choices else None
        correct_choices = index_correct_choices(values, choices)
        return read_labels(correct_choices, correct_choices, column=column)
    all_values: list[Any] = []
    for examples in splits.values():
        if column in examples.column_names:
            all_values += _list_distinct_values(examples, column)
    feature = source.features[column]
    names, first_label = read_class_names(feature), 0
    are_names_declared = names is not None and not are_names_from_lists(feature)
    if recipe.labels:
        value_names = convert_to_names(values, names)
        all_names = convert_to_names(all_values, names)
        values = rename_labels(value_names, recipe.labels, all_names)
        all_values = rename_labels(all_names, recipe.labels, all_names)
        names = None
    if names is None:
        names, first_label = recipe.label_names, recipe.first_label
    result = read_labels(values, all_values, column=column, names=names, first_label=first_label)
    if result.label_type != "several" or result.names is None:
        return result
    return replace(result, lists_all_names=are_names_declared or recipe.label_names is not None)


def _list_distinct_values(examples: "datasets.Dataset", column: str) -> list[Any]:
    """List the different values in a column. If the cells are lists, return all cells instead."""
    if type(examples.features[column]).__name__ not in ("Value", "ClassLabel"):
        return read_column(examples, column)
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
"""Maps each column of a loaded split to its data type. Brackets denote lists.

Labels and images are missing, since their types depend on the data set.
"""


def _make_feature(data_type: Any) -> Any:
    """Return the ``datasets`` feature for a type such as "int64", or ["int64"] for a list."""
    from datasets import List, Value

    if isinstance(data_type, list):
        return List(_make_feature(data_type[0]))
    return Value(data_type)


def _build_dataset(
    table: Mapping[str, Sequence[Any]],
    labels: Labels,
    word_label_names: tuple[str, ...] | None,
    columns: TextColumns,
    input_features: Mapping[str, Any],
) -> "datasets.Dataset":
    """Build the loaded split from its columns, with the right data types.

    The features of further columns that a model reads are those of their source.
    """
    from datasets import ClassLabel, Dataset, DatasetInfo, Features, Image, List

    def make_class_feature(names: tuple[str, ...] | None) -> Any:
        if names is None:
            return _make_feature("int64")
        feature_id = None if labels.lists_all_names else NAMES_FROM_LISTS
        return ClassLabel(names=list(names), id=feature_id)

    label_features = {
        "classes": make_class_feature(labels.names),
        "numbers": _make_feature("float64"),
        "several": List(make_class_feature(labels.names)),
    }
    all_features = {name: _make_feature(data_type) for name, data_type in FEATURES.items()}
    all_features["label"] = label_features[labels.label_type]
    all_features["word_labels"] = List(make_class_feature(word_label_names))
    all_features["image"] = all_features["img"] = Image()
    all_features |= input_features
    features = Features({name: all_features[name] for name in table})
    info = DatasetInfo(description=f"{DESCRIPTION_PREFIX}{columns}", features=features)
    try:
        return Dataset.from_dict(table, features=features, info=info)
    # Pillow and the file system raise many types of exceptions for a damaged image.
    except Exception as error:
        name = find_image_column(list(table))
        if name is None:
            raise
        raise make_image_error(name, error) from error


# --- Facts about a loaded split ------------------------------------------------------------------


def get_label_type(examples: "datasets.Dataset") -> str:
    """Return the label type of a split: "classes", "numbers", or "several" for lists of labels."""
    feature = examples.features["label"]
    # A list feature stores the type of its items in the attribute "feature".
    if hasattr(feature, "feature"):
        return "several"
    return "numbers" if str(feature.dtype).startswith("float") else "classes"


def has_labels(examples: "datasets.Dataset") -> bool:
    """Return whether a split has labels: classes, numbers, answers or word labels."""
    if {"word_labels", "answer_start"} & set(examples.column_names):
        return True
    label_type, labels = get_label_type(examples), read_column(examples, "label")
    # A missing label is stored as −1, NaN or None, depending on the label type.
    if label_type == "classes":
        return max(labels, default=-1) >= 0
    if label_type == "numbers":
        return not all(math.isnan(label) for label in labels)
    return any(label is not None for label in labels)


def get_label_names(examples: "datasets.Dataset") -> list[str]:
    """Return a loaded split's class or label names.

    Args:
        examples: a split loaded by :func:`load_examples`.

    Returns:
        The names; `LABEL_0`, `LABEL_1`, … as in Transformers if labels have no names; empty for
        regression.
    """
    label_type, names = get_label_type(examples), read_class_names(examples.features["label"])
    if names is not None:
        return list(names)
    if label_type == "numbers":
        return []
    labels = read_column(examples, "label")
    if label_type == "several":
        labels = [number for row in labels for number in row or []]
    n_labels = max(labels, default=-1) + 1
    return [f"LABEL_{label}" for label in range(n_labels)]


def describe_text_columns(examples: "datasets.Dataset") -> str:
    """Return the source columns of a loaded split's texts, such as "premise with hypothesis"."""
    return examples.info.description.removeprefix(DESCRIPTION_PREFIX)


def read_class_names(feature: Any) -> tuple[str, ...] | None:
    """Return the class names if a feature is a ClassLabel or a list of them, otherwise None."""
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return None if names is None else tuple(names)


def are_names_from_lists(feature: Any) -> bool:
    """Return whether a label feature has only the names that occur in the texts' lists of labels."""
    return getattr(getattr(feature, "feature", feature), "id", None) == NAMES_FROM_LISTS


def compute_dataset_fingerprint(examples: "datasets.Dataset") -> str:
    """Compute a hash that identifies a loaded split's ids, texts, labels and further columns.

    The same examples have the same fingerprint, whatever their order and their source.

    Args:
        examples: a split loaded by :func:`load_examples`.

    Returns:
        The first 16 hexadecimal digits of a SHA-256.
    """
    names = ["example_id", "text", "label"]
    names += [name for name in OPTIONAL_COLUMNS if name in examples.column_names]
    names += list_input_columns(examples)
    columns = [read_column(examples, name) for name in names]
    image_column = find_image_column(examples.column_names)
    if image_column is not None:
        images = read_column(examples, image_column)
        columns.append([compute_image_digest(pixels) for pixels in images])
    if has_instances(examples):
        for name in (*INSTANCE_COLUMNS, COORDINATES_COLUMN):
            if name in examples.column_names:
                columns.append([compute_bag_digest(bag) for bag in iterate_bags(examples, name)])
    digest = hashlib.sha256()
    rows = [json.dumps(row) for row in zip(*columns, strict=True)]
    ids, texts = columns[0], columns[1]
    for _, _, row in sorted(zip(ids, texts, rows, strict=True)):
        digest.update(row.encode() + b"\n")
    return digest.hexdigest()[:16]


# --- Splits for training a model, selecting its best epoch, and testing it -----------------------

LABEL_TYPE_DESCRIPTIONS = {
    "numbers": "numbers",
    "several": "lists of labels",
}
"""Maps each label type except "classes" to its description in an error message.

For example: "expected one class per training text, got lists of labels".
"""


@public_function
def load_splits(  # noqa: PLR0913
    dataset: "str | os.PathLike | Recipe | Mapping[str, Any]",
    *,
    dataset_config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    text_pair_column: str | None = None,
    instance_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    holdout: float | None = None,
    encoding: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> "dict[str, datasets.Dataset]":
    """Load the splits for a training: train, validation, and test if it exists and has labels.

    The result can be passed to :func:`train_classifier` as keyword arguments.

    Args:
        dataset: a registered name, a folder, a Hub id, a `Recipe` or a `DatasetDict`.
        dataset_config: see :func:`load_examples`.
        text_column: see :func:`load_examples`.
        text_pair_column: see :func:`load_examples`.
        instance_column: see :func:`load_examples`.
        label_column: see :func:`load_examples`.
        labels: see :func:`load_examples`.
        holdout: see :func:`load_examples`.
        encoding: see :func:`load_examples`.
        limit: training text count, balanced over the classes as far as possible; a smaller sample
            is part of a larger one.
        seed: see :func:`load_examples`.

    Returns:
        The splits by name.

    Raises:
        AttnProbeError: if there is only one split, or no validation split.

    Example::

        from hf_attnprobe import load_splits, train_classifier

        trained = train_classifier(**load_splits("sst", limit=500))
    """
    if holdout is None and not may_have_splits(dataset):
        source = "file" if is_data_file(dataset) else "split"
        raise AttnProbeError(
            f"training needs the splits train, validation and test, got a single {source}. To split "
            "it, use for example --holdout .2, with the same value in training and audit. "
            "Alternatively, pass a folder with train.csv, validation.csv and test.csv."
        )

    load_split = partial(
        load_examples,
        dataset,
        dataset_config=dataset_config,
        text_column=text_column,
        text_pair_column=text_pair_column,
        instance_column=instance_column,
        label_column=label_column,
        labels=labels,
        holdout=holdout,
        encoding=encoding,
        seed=seed,
    )
    splits = {"train": load_split("train")}
    if limit is not None:
        check_minimum(1, limit=limit)
        _check_has_classes("training", splits["train"])
        splits["train"] = _select_balanced(splits["train"], limit)
    for name in ("validation", "test"):
        with suppress(MissingSplitError):
            examples = load_split(name)
            if name == "validation" or has_labels(examples):
                splits[name] = examples
    if "validation" not in splits:
        raise AttnProbeError(
            f"{dataset} has no validation split, so the best epoch cannot be selected. Add a "
            "validation split, or call train_classifier in Python without one."
        )
    return splits


def _select_balanced(examples: "datasets.Dataset", limit: int) -> "datasets.Dataset":
    """Select ``limit`` examples, with the classes as balanced as possible.

    Within each class, examples are selected in the order of their hashed ids.
    """
    labels = read_column(examples, "label")
    order = order_by_hash(read_column(examples, "example_id"))
    # The first row of each class has rank 0, the second has rank 1, and so on. Selecting the rows
    # with the smallest ranks takes equally many from each class, as long as a class has enough.
    class_counts: Counter[int] = Counter()
    rank_in_class = {}
    for row in order:
        rank_in_class[row] = class_counts[labels[row]]
        class_counts[labels[row]] += 1
    selected_rows = sorted(order, key=rank_in_class.__getitem__)[:limit]
    return examples.select(sorted(selected_rows))


def prepare_splits(train: Any, validation: Any, test: Any) -> "dict[str, datasets.Dataset]":
    """Load the splits for a training with :func:`load_examples`, and check their labels.

    Args:
        train: training examples, of any type that :func:`load_examples` accepts.
        validation: validation examples, or None.
        test: test examples, or None.

    Returns:
        The splits by name.

    Raises:
        AttnProbeError: if a text is unlabelled, or a split has other classes than ``train``.
    """
    sources = {"train": train, "validation": validation, "test": test}
    splits = {
        name: load_examples(examples, name)
        for name, examples in sources.items()
        if examples is not None
    }
    for name, examples in splits.items():
        _check_blank_texts(name, examples)
    names = get_label_names(splits["train"])
    _check_training_labels(splits["train"], names)
    for name in splits.keys() - {"train"}:
        _check_evaluation_labels(name, splits[name], names)
    return splits


def _check_blank_texts(name: str, examples: "datasets.Dataset") -> None:
    """Log how many texts of a split are blank, or raise AttnProbeError if all of them are."""
    # Rows with images or bags of instances have empty texts.
    if has_images(examples) or has_instances(examples):
        return
    n_blank = sum(not text.strip() for text in read_column(examples, "text"))
    if not n_blank:
        return
    if n_blank == len(examples):
        raise AttnProbeError(
            f"every {name} text is blank, {n_blank} in total. Choose another column with "
            "--text-column."
        )
    logger.warning(
        "%d of %d %s texts are blank; the model reads them as empty texts",
        n_blank,
        len(examples),
        name,
    )


def _check_training_labels(train: "datasets.Dataset", names: list[str]) -> None:
    """Raise AttnProbeError if a training text has no label, or a class has no training text."""
    if not has_labels(train):
        raise AttnProbeError(
            "the training texts have no labels. Choose the label column with --label-column, or with "
            "Data(…, label_column=…) in Python."
        )
    _check_has_classes("training", train)
    present = set(read_column(train, "label"))
    if len(names) < 2 or present != set(range(len(names))):
        raise AttnProbeError(
            "training needs at least two classes, and labelled texts of each class. The classes are "
            f"{', '.join(names)}, and the labels are {sorted(present)}."
        )


def _check_has_classes(name: str, examples: "datasets.Dataset") -> None:
    """Raise AttnProbeError unless each text has a single class as its label."""
    label_type = get_label_type(examples)
    if label_type != "classes":
        raise AttnProbeError(
            f"expected one class per {name} text, got {LABEL_TYPE_DESCRIPTIONS[label_type]}. Choose "
            "another column with --label-column."
        )


def _check_evaluation_labels(name: str, examples: "datasets.Dataset", names: list[str]) -> None:
    """Raise AttnProbeError if a split has unlabelled texts or other classes than the training texts.

    If classes have no names, the split may lack the last ones.
    """
    _check_has_classes(name, examples)
    labels = read_column(examples, "label")
    split_names = get_label_names(examples)
    if split_names != names[: len(split_names)]:
        raise AttnProbeError(
            f"the {name} texts must have the same classes as the training texts "
            f"({', '.join(names)}), got {', '.join(split_names) or 'no classes'} (labels "
            f"{sorted(set(labels))})"
        )
    if -1 in labels:
        raise AttnProbeError(
            f"{labels.count(-1)} of {len(labels)} {name} texts have no label; label or drop them"
        )
