"""Published numbers from the papers, for comparison with ours on data sets with the same name.

The numbers and their sources are in ``published.yaml``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hf_attnprobe.core.serialization import read_package_yaml


PublishedNumber: TypeAlias = float | None
"""A published number; None if it was not released or is NaN."""
ByClass: TypeAlias = tuple[PublishedNumber, ...]
"""A number for each predicted class, or a single number for all texts."""

Agreement: TypeAlias = tuple[PublishedNumber, PublishedNumber] | None
"""Agreement between two rankings: Kendall τ, and the fraction of texts with a significant τ."""
Rerun: TypeAlias = tuple[Agreement, Agreement, Agreement, PublishedNumber]
"""Results of a rerun that the authors released: three rank agreements, then F1 or accuracy.

The agreements are attention with gradients, attention with leave-one-out, and gradients with
leave-one-out.
"""


@dataclass(frozen=True)
class PublishedResults:
    """Tables of the papers, by data set, then by the names that the papers use.

    Attributes:
        papers: Paper titles by study name.
        uniform: F1 by model (base and uniform).
        reported: F1 reported by Jain & Wallace.
        seed_jsd: Median JSD from the attention with other seeds, read off a figure.
        diagnostic_mlp: F1 by guide.
        adversary: λ and TVD on our scale, mean JSD, and F1.
        pooled: Data sets that the paper does not divide by predicted class.
        tau: By measure and encoder: τ, its standard deviation and the fraction of texts with a
            significant τ, for each predicted class.
        tau_differences: Averages over data sets, by our statistic name.
        reruns: Results of the authors' released reruns by encoder and attention, for all classes
            together, see :data:`Rerun`.
        epsilon_max_jsd: Medians by encoder, for each predicted class.
        permutation: Median Δŷ by encoder and bin of the largest weight, for each predicted class.
        fraction_to_flip: Median fraction of erased weights, by encoder and ranking.
        nearest: The paper's most similar data set, for data sets that the paper does not use.
        regularised: By attention and model: F1 in points, and its changes under uniform and under
            permuted attention.
    """

    papers: Mapping[str, str]
    uniform: Mapping[str, Mapping[str, float]]
    reported: Mapping[str, float]
    seed_jsd: Mapping[str, str]
    diagnostic_mlp: Mapping[str, Mapping[str, float]]
    adversary: Mapping[str, Mapping[str, float]]
    pooled: tuple[str, ...]
    tau: Mapping[str, Mapping[str, Mapping[str, tuple[tuple[float, float, float], ...]]]]
    tau_differences: Mapping[str, float]
    reruns: Mapping[str, Mapping[str, Mapping[str, Rerun]]]
    epsilon_max_jsd: Mapping[str, Mapping[str, ByClass]]
    permutation: Mapping[str, Mapping[str, Mapping[str, ByClass]]]
    fraction_to_flip: Mapping[str, Mapping[str, Mapping[str, float]]]
    nearest: Mapping[str, str]
    regularised: Mapping[str, Mapping[str, Mapping[str, tuple[float, float, float]]]]


PUBLISHED: PublishedResults = read_package_yaml(
    Path(__file__).with_suffix(".yaml"), PublishedResults
)
"""Numbers from the papers whose experiments the studies repeat, for comparison with our results."""


class PublishedLookup(NamedTuple):
    """Key for looking up published numbers: an audit's data set, encoder and attention."""

    dataset: str
    encoder: str
    attention: str = "additive"

    def get_value(
        self,
        table: Mapping[str, Mapping[str, Any]],
        *keys: str,
        class_index: int | None,
    ) -> Any:
        """Look up a number from a paper for one predicted class; return None if there is none.

        Args:
            table: A table in :data:`PUBLISHED` for additive attention.
            *keys: Further keys below the data set, such as the encoder.
            class_index: Index of the predicted class; None for the value for all texts together.
        """
        if self.attention != "additive":
            return None
        values_by_class: Any = table.get(self.dataset, {})
        for key in keys:
            values_by_class = values_by_class.get(key, {})
        # Some papers publish one value per class, others a single value for all texts.
        has_single_value = len(values_by_class) == 1
        if class_index is None:
            return values_by_class[0] if has_single_value else None
        if has_single_value or class_index >= len(values_by_class):
            return None
        return values_by_class[class_index]
