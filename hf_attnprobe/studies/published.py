"""Numbers of the papers, compared with ours on data sets of the same name.

The numbers and their sources stand in ``published.yaml``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hf_attnprobe.core.serialization import read_packaged


Number: TypeAlias = float | None
"""None: not released, or NaN there."""
ByClass: TypeAlias = tuple[Number, ...]
"""A number for each predicted class, or one of all texts."""

Agreement: TypeAlias = tuple[Number, Number] | None
"""Kendall τ, and the share of texts in which it is significant."""
Rerun: TypeAlias = tuple[Agreement, Agreement, Agreement, Number]


@dataclass(frozen=True)
class PublishedResults:
    """Tables of the papers, by data set in the papers' own words where nothing else is said.

    Attributes:
        papers: names by the study whose tables are compared with them.
        uniform: F1 by model, base and uniform.
        reported: F1 that Jain & Wallace reported.
        seed_jsd: median JSD to the attention of other seeds, read off a figure.
        diagnostic_mlp: F1 by guide.
        adversary: λ and TVD in our scale, mean JSD, F1.
        pooled: data sets that are not divided by predicted class.
        tau: by measure and encoder, for each predicted class τ, its standard deviation and the
            share significant.
        tau_differences: by our name of the statistic; averages over data sets.
        reruns: by encoder and attention, of all classes together: τ of attention with gradients,
            of attention with leave-one-out and of these two, then F1 or accuracy.
        epsilon_max_jsd: medians by encoder, for each predicted class.
        permutation: median Δŷ by encoder and bin of the largest weight, for each predicted class.
        fraction_to_flip: median share of weights erased, by encoder and ranking.
        nearest: a data set of the paper's for one that is not.
        regularised: by attention and model, F1 in points, and its change under uniform and under
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


PUBLISHED: PublishedResults = read_packaged(Path(__file__).with_suffix(".yaml"), PublishedResults)


class Published(NamedTuple):
    """What the papers' numbers of an audit are looked up by, in the papers' own words."""

    dataset: str
    encoder: str
    attention: str = "additive"

    def of_class(
        self,
        table: Mapping[str, Mapping[str, Any]],
        *keys: str,
        number: int | None,
    ) -> Any:
        """A number of a predicted class; None where the papers have none.

        Args:
            table: of :data:`PUBLISHED`, of additive attention.
            keys: what it is divided by below the data set.
            number: of the class; None for all texts.
        """
        if self.attention != "additive":
            return None
        by_class: Any = table.get(self.dataset, {})
        for key in keys:
            by_class = by_class.get(key, {})
        if number is None:
            return by_class[0] if len(by_class) == 1 else None
        return by_class[number] if len(by_class) > max(1, number) else None
