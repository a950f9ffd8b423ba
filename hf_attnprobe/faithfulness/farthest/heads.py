"""The farthest attention of one head whose model is not linear in it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site
from hf_attnprobe.faithfulness.farthest.candidates import (
    Candidates,
    best_within,
    candidates_of,
    checked_by_model,
)
from hf_attnprobe.faithfulness.farthest.gradient_search import (
    SMALLEST_START,
    Search,
    gradient_search,
    model_distance,
)
from hf_attnprobe.faithfulness.farthest.result import (
    ROUNDING,
    AdversarialResult,
    lower_bound,
)
from hf_attnprobe.faithfulness.farthest.rows import (
    counting_queries,
    mean_over_rows,
    only_row,
)
from hf_attnprobe.functional.divergence import jsd, largest_jsd
from hf_attnprobe.functional.edges import farthest_on_edges, pulled_back
from hf_attnprobe.functional.search import search_adversarial_attention


def of_head(
    observation: Observation, site: Site, epsilons: Sequence[float], search: Search
) -> AdversarialResult:
    """Of one head of a Transformer: candidates, and with steps the paper's search."""
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    counting = counting_queries(observation, site.layer, site.query)
    largest = mean_over_rows(largest_jsd(attention, visible), counting)
    candidates = candidates_of(observation, site)
    checked = [checked_by_model(observation, site, next(candidates)[None])]
    # Most heads are free: no attention is farther than this first candidate.
    if (checked[0].change > min(epsilons)).any():
        rest = torch.stack(list(candidates))
        checked.append(checked_by_model(observation, site, rest))
        if search.n_steps:
            distance = model_distance(observation, site)
            for epsilon in epsilons:
                moved = gradient_search(observation, site, distance, search, epsilon)
                moved = torch.where(counting[..., None], moved, attention)
                checked.append(checked_by_model(observation, site, moved))
    together = Candidates(*map(torch.cat, zip(*checked, strict=True)))
    return lower_bound(epsilons, best_within(together, attention, epsilons), largest)


def of_row(
    observation: Observation, site: Site, epsilons: Sequence[float], search: Search
) -> AdversarialResult:
    """Of one head with one query, read by no linear map."""
    attention, visible = only_row(observation, site)
    candidates = torch.stack(list(candidates_of(observation, site)))
    checked = [checked_by_model(observation, site, candidates)]

    def replay(rows: Tensor) -> Tensor:
        edited = {site.layer: rows[:, :, None, None]}
        return observation.model.replay(observation, edited)

    on_edges = farthest_on_edges(attention, visible, replay, observation.probs, epsilons)
    checked.append(checked_by_model(observation, site, on_edges[:, :, None]))
    largest = largest_jsd(attention, visible)
    distance = model_distance(observation, site)
    for epsilon, farthest in zip(epsilons, on_edges, strict=True):
        is_farthest = largest - jsd(farthest, attention) <= ROUNDING
        if search.n_steps == 0 or is_farthest.all():
            continue
        random = gradient_search(observation, site, distance, search, epsilon)
        vertices = torch.stack([farthest, candidates[0][:, 0]])
        guided = search_adversarial_attention(
            vertices.clamp_min(SMALLEST_START).log(),
            attention,
            visible,
            distance,
            epsilon=epsilon,
            n_steps=search.n_steps,
        )
        moved = torch.cat([random[:, :, 0], guided])
        moved = pulled_back(moved, attention, replay, observation.probs, epsilon)
        checked.append(checked_by_model(observation, site, moved[:, :, None]))
    together = Candidates(*map(torch.cat, zip(*checked, strict=True)))
    best = best_within(together, attention[:, None], epsilons)
    return lower_bound(epsilons, best, largest)


def has_one_row(observation: Observation, site: Site) -> bool:
    """Whether the model's attention is one head with one query, of one layer."""
    is_only = len(observation.model.sites()) == 1
    return is_only and observation.attention[site.layer].shape[1:3] == (1, 1)
