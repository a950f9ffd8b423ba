"""Published numbers of the papers, which are compared with ours on data sets of the same name.

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
"""Kendall τ, and the share of texts in which it is significant."""
Rerun: TypeAlias = tuple[Agreement, Agreement, Agreement, PublishedNumber]
"""Results of a released rerun of the authors' code.

Three agreements (of attention with gradients, of attention with leave-one-out, and of gradients
with leave-one-out), then F1 or accuracy.
"""


@dataclass(frozen=True)
class PublishedResults:
    """Tables of the papers, by data set, then by the names that the papers use.

    Attributes:
        papers: Names of the papers, by the key of the study.
        uniform: F1 by model (base and uniform).
        reported: F1 reported by Jain & Wallace.
        seed_jsd: Median JSD from the attention of other seeds, read off a figure.
        diagnostic_mlp: F1 by guide.
        adversary: λ and TVD on our scale, mean JSD, and F1.
        pooled: Data sets that the paper does not divide by predicted class.
        tau: By measure and encoder: τ, its standard deviation and the share of significant texts,
            for each predicted class.
        tau_differences: Averages over data sets, by our name of the statistic.
        reruns: Results of the authors' released reruns by encoder and attention, for all classes
            together, see :data:`Rerun`.
        epsilon_max_jsd: Medians by encoder, for each predicted class.
        permutation: Median Δŷ by encoder and bin of the largest weight, for each predicted class.
        fraction_to_flip: Median share of erased weights, by encoder and ranking.
        nearest: The most similar data set of the paper, for data sets that the paper does not use.
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
"""The published numbers of all papers."""


class PublishedLookup(NamedTuple):
    """The data set, encoder and attention of an audit, by which published numbers are looked up."""

    dataset: str
    encoder: str
    attention: str = "additive"

    def get_value(
        self,
        table: Mapping[str, Mapping[str, Any]],
        *keys: str,
        number: int | None,
    ) -> Any:
        """Return the published number of a predicted class, or None if there is none.

        Args:
            table: A table of :data:`PUBLISHED` for additive attention.
            *keys: Further keys below the data set.
            number: Number of the class; None for all texts.
        """
        if self.attention != "additive":
            return None
        by_class: Any = table.get(self.dataset, {})
        for key in keys:
            by_class = by_class.get(key, {})
        if number is None:
            return by_class[0] if len(by_class) == 1 else None
        return by_class[number] if len(by_class) > max(1, number) else None
