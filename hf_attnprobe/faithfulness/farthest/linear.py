"""The farthest attention of a linear read-out, logit = Σ a_t u_t."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site
from hf_attnprobe.faithfulness.farthest.candidates import best_within, checked_by_model
from hf_attnprobe.faithfulness.farthest.gradient_search import (
    PAPERS_EPSILON,
    SMALLEST_START,
    Search,
    gradient_search,
)
from hf_attnprobe.faithfulness.farthest.result import AdversarialResult, lower_bound
from hf_attnprobe.faithfulness.farthest.rows import as_only_query, only_row
from hf_attnprobe.functional.bounds import epsilon_max_jsd_bounds
from hf_attnprobe.functional.divergence import largest_jsd
from hf_attnprobe.functional.linear import epsilon_max_jsd
from hf_attnprobe.functional.search import (
    linear_distance,
    search_adversarial_attention,
)


def exactly(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
) -> AdversarialResult:
    """Of a linear read-out of two classes, by vertex enumeration."""
    attention, visible = only_row(observation, site)
    scores = token_logits[..., 1] - token_logits[..., 0]
    exact = epsilon_max_jsd(attention, scores, visible, epsilons)
    largest = largest_jsd(attention, visible)
    return AdversarialResult(
        dict(zip(epsilons, exact.jsd, strict=True)),
        largest,
        torch.ones_like(largest),
        attention=as_only_query(epsilons, exact.attention),
    )


def within_bounds(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
    n_steps: int,
) -> AdversarialResult:
    """Of a linear read-out of more classes: what is attained, and what none exceeds.

    With ``n_steps`` the gradient search goes on from the best that is attained.
    """
    attention, visible = only_row(observation, site)
    bounds = epsilon_max_jsd_bounds(attention, token_logits, visible, epsilons)
    largest = largest_jsd(attention, visible)
    lower, farthest = list(bounds.lower), list(bounds.attention)
    if n_steps:
        distance = linear_distance(token_logits, observation.probs)
        for k, epsilon in enumerate(epsilons):
            start = bounds.attention[k].to(attention).clamp_min(SMALLEST_START).log()
            moved = search_adversarial_attention(
                start[None],
                attention,
                visible,
                distance,
                epsilon=epsilon,
                n_steps=n_steps,
            )
            candidates = checked_by_model(observation, site, moved[:, :, None])
            ((found, searched),) = best_within(candidates, attention[:, None], [epsilon])
            is_farther = found > lower[k]
            lower[k] = torch.where(is_farther, found, lower[k])
            farthest[k] = torch.where(
                is_farther[:, None], searched[:, 0].to(farthest[k]), farthest[k]
            )
    return AdversarialResult(
        dict(zip(epsilons, lower, strict=True)),
        largest,
        torch.zeros_like(largest),
        epsilon_max_jsd_upper=dict(zip(epsilons, bounds.upper, strict=True)),
        attention=as_only_query(epsilons, farthest),
    )


def by_search(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
    search: Search,
) -> AdversarialResult:
    """Of a linear read-out, by the paper's search from random starts."""
    attention, visible = only_row(observation, site)
    distance = linear_distance(token_logits, observation.probs)
    moved = gradient_search(observation, site, distance, search, PAPERS_EPSILON)
    candidates = checked_by_model(observation, site, moved)
    best = best_within(candidates, attention[:, None], epsilons)
    return lower_bound(epsilons, best, largest_jsd(attention, visible))
