"""Generated texts as train, validation and test."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import datasets


def in_splits(examples: "datasets.Dataset") -> "datasets.DatasetDict":
    """Two thirds for training, a sixth each for validation and test, in their order."""
    from datasets import DatasetDict

    n_held_out = len(examples) // 6
    n_train = len(examples) - 2 * n_held_out
    return DatasetDict(
        train=examples.select(range(n_train)),
        validation=examples.select(range(n_train, n_train + n_held_out)),
        test=examples.select(range(n_train + n_held_out, len(examples))),
    )
