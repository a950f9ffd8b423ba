"""Candidates for the farthest attention: proposed, checked by the model, compared."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site
from hf_attnprobe.faithfulness.farthest.rows import (
    counting_queries,
    counting_rows,
    mean_over_rows,
    stacked_rows,
    visible_rows,
)
from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.functional.intervention import at_head
from hf_attnprobe.functional.steering import steered_candidates


class Candidates(NamedTuple):
    """Attentions with their JSD to the original and the change of the output.

    Shape: [copies, batch, queries, keys], and twice [copies, batch].
    """

    attention: Tensor
    divergence: Tensor
    change: Tensor


def checked_by_model(observation: Observation, site: Site, attention: Tensor) -> Candidates:
    """Candidates with the change of the output when the model is run with them."""
    model, layer = observation.model, observation.attention[site.layer]
    edited = at_head(layer, site.head, site.query, attention)
    with torch.no_grad():
        probs = model.replay(observation, {site.layer: edited})
    counting = counting_queries(observation, site.layer, site.query)
    divergence = mean_over_rows(jsd(attention, layer[:, site.head]), counting)
    return Candidates(attention, divergence, tvd(probs, observation.probs))


def best_within(
    candidates: Candidates, original: Tensor, epsilons: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """The farthest candidate whose change is at most ε, for each ε.

    Where there is none it is the ``original`` [batch, queries, keys], whose JSD is 0.
    """
    attention = torch.cat([original[None], candidates.attention])
    divergence = _with_zero(candidates.divergence)
    change = _with_zero(candidates.change)
    rows = torch.arange(len(original), device=original.device)
    best = []
    for epsilon in epsilons:
        values, index = divergence.masked_fill(change > epsilon, -1).max(0)
        best.append((values, attention[index, rows]))
    return best


def _with_zero(values: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(values[:1]), values])


def candidates_of(observation: Observation, site: Site) -> Iterator[Tensor]:
    """Candidates of the linearised model, each [batch, rows, keys].

    Only rows that count are moved.
    """
    attention = stacked_rows(observation, site, observation.attention)
    slope = stacked_rows(observation, site, observation.attention_gradient)
    movable = visible_rows(observation, site)
    movable = movable & counting_rows(observation, site)[..., None]
    return steered_candidates(attention, slope, movable)
