"""The splits that a model is trained, chosen and scored on."""

import os
from collections import Counter
from collections.abc import Mapping

from hf_attnprobe.data.examples import by_hash, label_names, load_examples
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.errors import AttnProbeError, NoSuchSplit
from hf_attnprobe.options import check_at_least


def load_splits(dataset, *, seed: int = 0, limit: int | None = None, **columns) -> dict:
    """Train, validation and, where there is one with labels, test, as keyword arguments of :func:`train_classifier`.

    Args:
        limit: so many training texts, as even over the classes as can be; always the same, and fewer are among more.
    """
    if not isinstance(
        dataset, str | os.PathLike | Recipe | Mapping
    ):  # a DatasetDict is a mapping
        raise AttnProbeError(
            "expected a data set with splits, a name, a folder, a Hub id or a DatasetDict; one split alone would be trained, "
            f"chosen and scored on alike, got a {type(dataset).__name__}"
        )
    found = {"train": load_examples(dataset, "train", seed=seed, **columns)}
    if limit is not None:
        check_at_least(1, limit=limit)
        found["train"] = _balanced(found["train"], limit)
    for name in ("validation", "test"):
        try:
            examples = load_examples(dataset, name, seed=seed, **columns)
        except NoSuchSplit:
            continue
        if name == "validation" or max(examples.with_format(None)["label"][:]) >= 0:
            found[name] = examples
    if "validation" not in found:
        raise AttnProbeError(
            f"expected a validation split in {dataset}, which chooses the epoch to keep; add one, or call train_classifier"
        )
    return found


def _balanced(examples, limit: int):
    """The first ``limit`` examples when the classes take turns, each in the order of a hash of its examples' ids."""
    columns = examples.with_format(None)
    ids, labels = columns["example_id"][:], columns["label"][:]
    order = by_hash(ids)
    turn, turns = Counter(), {}
    for row in order:
        turns[row] = turn[labels[row]]
        turn[labels[row]] += 1
    return examples.select(sorted(sorted(order, key=turns.get)[:limit]))


def check_sets(train, validation, test) -> dict:
    """The splits by name as :func:`load_examples` returns them; all that is not None, with the same classes."""
    given = {"train": train, "validation": validation, "test": test}
    sets = {
        name: load_examples(data, name)
        for name, data in given.items()
        if data is not None
    }
    names = label_names(sets["train"])
    _check_classes(sets["train"], names)
    for name in sets.keys() - {"train"}:
        _check_held_out(name, sets[name], names)
    return sets


def _check_classes(train, names) -> None:
    present = set(train.with_format(None)["label"][:])
    if len(names) < 2 or not set(range(len(names))) <= present or -1 in present:
        raise AttnProbeError(
            f"expected labelled training texts of every class of {', '.join(names)}, got labels {sorted(present)}; "
            "check the label column"
        )


def _check_held_out(name: str, examples, names) -> None:
    """The same classes under the same numbers as in the training texts; numbers alone may be fewer."""
    present, own = set(examples.with_format(None)["label"][:]), label_names(examples)
    if -1 in present or own != names[: len(own)]:
        raise AttnProbeError(
            f"expected labelled {name} texts of the training texts' classes {', '.join(names)}, got labels "
            f"{sorted(present)} of {', '.join(own) or 'none'}; give all splits the same classes"
        )
