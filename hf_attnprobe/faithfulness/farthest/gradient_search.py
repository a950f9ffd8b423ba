"""The search of Jain & Wallace 2019 (Algorithm 3) from random starts, of one head."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import at_head, random_generator
from hf_attnprobe.functional.search import Distance, search_adversarial_attention


PAPERS_EPSILON = 0.01  # its search aims at this one, whichever is read
NOISE_STREAM = 1  # apart from the permutations' random numbers
SMALLEST_START = 1e-4  # a weight of 0 has no logarithm to start a search from


class Search(NamedTuple):
    """How long the gradient search goes on: random starts, and steps from each."""

    n_starts: int
    n_steps: int
    seed: int


def gradient_search(
    observation: Observation,
    site: Site,
    distance: Distance,
    search: Search,
    epsilon: float,
) -> Tensor:
    """What the search ends at from each of its random starts.

    Shape: attention [starts, batch, queries, keys].
    """
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    noise = _noise(visible, observation.batch.example_ids, search.n_starts, search.seed)
    start = 3 * noise.to(attention)
    moved = search_adversarial_attention(
        start.flatten(-3, -2),
        attention.flatten(-3, -2),
        visible.expand(attention.shape).flatten(-3, -2),
        distance,
        epsilon=epsilon,
        n_steps=search.n_steps,
    )
    return moved.unflatten(1, attention.shape[:2])


def model_distance(observation: Observation, site: Site) -> Distance:
    """Distance and its gradient through the model.

    Shape: [copies, batch · queries, keys].
    """
    model = observation.model
    attention = observation.attention[site.layer]
    n_batch, n_queries = attention.shape[0], attention.shape[2]

    def distance(candidates: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = candidates.unflatten(1, (n_batch, n_queries)).detach().requires_grad_()
            edited = at_head(attention, site.head, site.query, leaf)
            change = tvd(model.replay(observation, {site.layer: edited}), observation.probs)
            (slope,) = torch.autograd.grad(change.sum(), leaf)
        rows = change.detach()[:, :, None].expand(-1, -1, n_queries)
        return rows.flatten(1, 2), slope.flatten(1, 2)

    return distance


def _noise(visible: Tensor, example_ids: Sequence[int], n_starts: int, seed: int) -> Tensor:
    """Standard normal draws where attention may be, [starts, batch, queries, keys]."""
    rows = visible.cpu().numpy()
    noise = np.zeros((n_starts, *rows.shape))
    for example, example_id in enumerate(example_ids):
        queries, keys = (rows[example].any(axis) for axis in (1, 0))
        generator = random_generator(seed, int(example_id), NOISE_STREAM)
        shape = (n_starts, queries.sum(), keys.sum())
        places = (slice(None), *np.ix_(queries, keys))
        noise[:, example][places] = generator.standard_normal(shape)
    return torch.from_numpy(noise).to(visible.device)
