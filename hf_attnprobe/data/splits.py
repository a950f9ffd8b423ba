"""The splits that a model is trained, chosen and scored on."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.examples import has_labels, label_kind, label_names, load_examples
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.data.sources import has_splits, is_file
from hf_attnprobe.errors import AttnProbeError, NoSuchSplit
from hf_attnprobe.options import check_at_least
from hf_attnprobe.statistics.samples import by_hash


if TYPE_CHECKING:
    import datasets


WORDS_FOR = {
    "numbers": "numbers to be predicted",
    "several": "lists of several labels",
}


def load_splits(
    dataset: "str | os.PathLike | Recipe | Mapping[str, Any]",
    *,
    dataset_config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    text_pair_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> "dict[str, datasets.Dataset]":
    """Train, validation and, where there is one with labels, test.

    The result fits the keyword arguments of :func:`train_classifier`.

    Args:
        dataset: a name, a folder, a Hub id, a `Recipe` or a `DatasetDict`.
        dataset_config, text_column, text_pair_column, label_column, seed: see
            :func:`load_examples`.
        limit: number of training texts, as even over the classes as possible; a smaller
            sample is part of a larger one.

    Raises:
        AttnProbeError: one split alone, or no validation split.
    """
    if not has_splits(dataset):
        raise AttnProbeError(
            "expected the splits train, validation and test, since a model is not scored on the "
            f"texts that it learned, got one {'file' if is_file(dataset) else 'split'}; give a "
            "folder with train.csv, validation.csv and test.csv, or in Python a DatasetDict"
        )

    load = partial(
        load_examples,
        dataset,
        dataset_config=dataset_config,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        seed=seed,
    )
    splits = {"train": load("train")}
    if limit is not None:
        check_at_least(1, limit=limit)
        splits["train"] = _balanced(splits["train"], limit)
    for name in ("validation", "test"):
        try:
            examples = load(name)
        except NoSuchSplit:
            continue
        if name == "validation" or has_labels(examples):
            splits[name] = examples
    if "validation" not in splits:
        raise AttnProbeError(
            f"expected a validation split in {dataset}, which chooses the epoch to "
            "keep; add one, or call train_classifier"
        )
    return splits


def _balanced(examples: "datasets.Dataset", limit: int) -> "datasets.Dataset":
    """The first ``limit`` examples when the classes take turns.

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
    """The given splits by name, as :func:`load_examples` returns them.

    Raises:
        AttnProbeError: a split without labels, or with other classes than ``train``.
    """
    given = {"train": train, "validation": validation, "test": test}
    splits = {}
    for name, examples in given.items():
        if examples is not None:
            splits[name] = load_examples(examples, name)
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
    """The same classes under the same numbers as in the training texts.

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
