"""Pairs of heads that only work together, or that replace each other.

The effect of removing a single head misleads in two cases. If two heads do the same work, then
removing one of them changes nothing, although the model needs one of the two. If one head prepares
what another head reads, then each of them seems to decide alone. Both cases are visible if the heads
are also removed in pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hf_attnprobe.statistics.estimates import compute_simultaneous_interval
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.heads import LayerHead


MIN_PAIR_EFFECT = 0.05
"""Smallest output change that counts, at the standard temperature, from 0 to 1."""
MAX_REMAINING_SHARE = 0.2
"""Two heads work together if this share of a head's effect, or less, remains without the other head."""

PairRelation = Literal["together", "substitutes"]
"""Relation of two heads.

- "together": each head has an effect, but hardly any without the other one.
- "substitutes": each head has a larger effect if the other one is already removed.
"""


@dataclass(frozen=True)
class HeadPair:
    """Two heads whose effects depend on each other.

    Effects are mean output changes at the standard temperature, from 0 to 1.

    Attributes:
        first: layer and index of the first head.
        second: layer and index of the second head.
        relation: whether the heads work together or replace each other.
        effects: effect of removing the first head, and of removing the second head.
        effects_without_other: the same two effects if the other head is already removed.
    """

    first: LayerHead
    second: LayerHead
    relation: PairRelation
    effects: tuple[float, float]
    effects_without_other: tuple[float, float]


@dataclass(frozen=True)
class HeadPairs:
    """Result of removing heads in pairs.

    Attributes:
        heads: heads that were removed, each alone and with each of the others.
        n_texts: number of texts.
        pairs: pairs whose effects certainly depend on each other, at a joint confidence of 95%.
    """

    heads: tuple[LayerHead, ...]
    n_texts: int
    pairs: tuple[HeadPair, ...]


def find_head_pairs(
    heads: Sequence[LayerHead], effects: np.ndarray, effects_without_other: np.ndarray
) -> HeadPairs:
    """Find the pairs of heads whose effects certainly depend on each other.

    Two heads are substitutes if the effect of each of them grows by :data:`MIN_PAIR_EFFECT` or more
    once the other one is removed. They work together if each of them has an effect of
    :data:`MIN_PAIR_EFFECT` or more, of which at most :data:`MAX_REMAINING_SHARE` remains once the
    other one is removed. Both must hold for the ends of confidence intervals that cover all pairs
    at once.

    Args:
        heads: layer and index of each head.
        effects: output change if head i is removed, [texts, heads].
        effects_without_other: output change if head i is removed from the model without head j,
            [texts, heads i, heads j]; NaN if i = j.

    Returns:
        The pairs; none with fewer than 30 texts.
    """
    n_texts, n_heads = effects.shape
    if n_texts < MIN_TEXTS or n_heads < 2:
        return HeadPairs(tuple(heads), n_texts, ())
    growth = effects_without_other - effects[:, :, None]
    remainder = effects_without_other - MAX_REMAINING_SHARE * effects[:, :, None]
    effect_low, _ = _compute_ends(effects)
    growth_low, _ = _compute_ends(growth)
    _, remainder_high = _compute_ends(remainder)

    works = effect_low >= MIN_PAIR_EFFECT
    depends = remainder_high <= 0
    grows = growth_low >= MIN_PAIR_EFFECT
    mean_effects = effects.mean(0)
    mean_without_other = effects_without_other.mean(0)
    pairs = []
    for i in range(n_heads):
        for j in range(i + 1, n_heads):
            relation: PairRelation
            if grows[i, j] and grows[j, i]:
                relation = "substitutes"
            elif works[i] and works[j] and depends[i, j] and depends[j, i]:
                relation = "together"
            else:
                continue
            pairs.append(
                HeadPair(
                    heads[i],
                    heads[j],
                    relation,
                    (float(mean_effects[i]), float(mean_effects[j])),
                    (float(mean_without_other[i, j]), float(mean_without_other[j, i])),
                )
            )
    return HeadPairs(tuple(heads), n_texts, tuple(pairs))


def _compute_ends(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the ends of simultaneous confidence intervals for means over texts.

    Args:
        values: values of each text, [texts, ...]; NaN in all texts for entries without a value.

    Returns:
        Low and high ends, each [...]; NaN for entries without a value.
    """
    columns = values.reshape(len(values), -1)
    is_measured = ~np.isnan(columns).any(0)
    ends = np.full((2, columns.shape[1]), np.nan)
    ends[:, is_measured] = compute_simultaneous_interval(columns[:, is_measured])
    low, high = ends.reshape(2, *values.shape[1:])
    return low, high
