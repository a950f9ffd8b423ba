"""Encodes bags of instances for a model, and converts their labels to the model's class indices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.instances import find_instance_column, iterate_bags, read_bag
from hf_attnprobe.inference.encoding import (
    InputReader,
    Text,
    TextModel,
    TokenizedSplit,
    compute_identity,
)
from hf_attnprobe.inference.labels import convert_class_labels


if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class InstanceReader(InputReader):
    """Reader of bags, which replaces the tokenizer for a model that reads instances.

    Attributes:
        column: Column that the model reads, "features" or "items".
        feature_size: Size of the vectors; None accepts any size.
        n_items: Number of different integers that the model embeds; None accepts any number.
    """

    column: str = "features"
    feature_size: int | None = None
    n_items: int | None = None

    def read(self, examples: "datasets.Dataset") -> "Iterator[dict[str, Any]]":
        """Yield the model inputs of each bag of a data set.

        Args:
            examples: Examples with a column of bags.

        Yields:
            The column that the model reads, a tensor `[instances, size]` or a list of integers, and
            an ``attention_mask``.

        Raises:
            AttnProbeError: If the column is missing, or the bags do not have the model's input size.
        """
        column = find_instance_column(examples.column_names)
        if column != self.column:
            wanted = "vectors" if self.column == "features" else "integers"
            raise AttnProbeError(
                f"the model reads bags of {wanted}, from a column {self.column!r}, but the data has "
                f"{'the column ' + repr(column) if column else 'texts or images'}. Choose the column "
                "of the bags with --instance-column."
            )
        if column == "items":
            self._check_items(list(iterate_bags(examples, column)), examples)
        for bag in iterate_bags(examples, column):
            size = bag.shape[1] if column == "features" else None
            if size != self.feature_size and None not in (size, self.feature_size):
                raise AttnProbeError(
                    f"the model reads vectors of size {self.feature_size}, but the vectors in the "
                    f"data have the size {size}. Use features from the encoder with which the model "
                    "was trained."
                )
            # Arrays that are read from a data set cannot be written to, so they are copied.
            content = torch.tensor(bag) if column == "features" else bag
            yield {column: content, "attention_mask": [1] * len(bag)}

    def _check_items(self, bags: list[list[int]], examples: "datasets.Dataset") -> None:
        """Raise AttnProbeError if the model does not embed an integer."""
        for example_id, bag in zip(read_column(examples, "example_id"), bags, strict=True):
            if self.n_items is not None and max(bag) >= self.n_items:
                raise AttnProbeError(
                    f"the model has embeddings for the integers 0 to {self.n_items - 1}, but bag "
                    f"{example_id} contains {max(bag)}. Use the numbering with which the model was "
                    "trained."
                )


class FeatureInputs(Mapping[str, Any]):
    """Model inputs of one bag, whose vectors are read whenever they are requested.

    A bag can take many megabytes, so the bags of a data set are not kept in memory together.

    Args:
        examples: The data set.
        row: Index of the bag.
        n_instances: Number of instances in the bag.
    """

    def __init__(self, examples: "datasets.Dataset", row: int, n_instances: int) -> None:
        self._examples = examples
        self._row = row
        self._n_instances = n_instances

    def __getitem__(self, name: str) -> Any:
        if name == "attention_mask":
            return [1] * self._n_instances
        if name == "features":
            # Arrays that are read from a data set cannot be written to, so they are copied.
            return torch.tensor(read_bag(self._examples, "features", self._row))
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(("features", "attention_mask"))

    def __len__(self) -> int:
        return 2


@dataclass(frozen=True)
class BagText(Text):
    """An encoded bag, whose ``inputs`` contain ``features`` or ``items`` instead of token ids."""

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """An empty list, because a bag has no token ids."""
        return []

    @property
    def n_tokens(self) -> int:
        """Number of instances."""
        return len(self.inputs["attention_mask"])

    @property
    def n_content(self) -> int:
        """Number of explained instances, which is the number of all instances."""
        return self.n_tokens


def encode_instances(
    reader: InstanceReader, examples: "datasets.Dataset", model: TextModel
) -> TokenizedSplit:
    """Encode bags for a model, as :func:`~hf_attnprobe.inference.encoding.tokenize` encodes texts.

    Args:
        reader: The reader of bags.
        examples: Examples with a column of bags.
        model: The model's properties.

    Returns:
        One text for each bag.

    Raises:
        AttnProbeError: If the bags, their labels or their rationales do not suit the model.
    """
    bags = reader.read(examples)
    labels = convert_class_labels(model.prediction.outcomes, examples)
    ids = read_column(examples, "example_id")
    rationales: list[Any] = [None] * len(ids)
    if "rationale" in examples.column_names:
        rationales = read_column(examples, "rationale")
    texts: list[Text] = []
    rows = zip(ids, labels, bags, rationales, strict=True)
    for row, (example_id, label, bag_inputs, positions) in enumerate(rows):
        n_instances = len(bag_inputs["attention_mask"])
        rationale = None
        if positions is not None:
            rationale = _mark_positions(positions, n_instances, example_id)
        identity = compute_identity(bag_inputs)
        inputs: Mapping[str, Any] = bag_inputs
        if reader.column == "features":
            inputs = FeatureInputs(examples, row, n_instances)
        texts.append(BagText(example_id, label, inputs, rationale, identity=identity))
    return TokenizedSplit(texts, n_empty=0, n_truncated=0)


def _mark_positions(positions: list[int], n_instances: int, example_id: int) -> list[bool]:
    """Convert the positions of marked instances to one mark per instance."""
    if len(set(positions)) < len(positions) or not set(positions) <= set(range(n_instances)):
        raise AttnProbeError(
            f"a rationale must list different positions from 0 to {n_instances - 1}, but bag "
            f"{example_id} has {', '.join(map(str, positions[:9]))}. Count the instances of a bag "
            "from 0."
        )
    return [position in set(positions) for position in range(n_instances)]
