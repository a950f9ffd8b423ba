"""Could attention have looked elsewhere with the same output? Jain & Wallace 2019, Section 4.2.2, Algorithm 3.

Question: how different can the weights of one text be while the output stays within ε?
Measure:  ε-max JSD, the largest Jensen-Shannon divergence (nats, at most ln 2) from the model's attention among
          attentions that move the output by at most ε in total variation; of a head with several queries, the mean
          over its query rows.
Exactly:  for a binary linear read-out, by vertex enumeration (functional/linear.py).
Search:   for linear read-outs the paper's gradient search (functional/search.py). For a head of a Transformer, where
          500 steps through the model are out of reach, candidates from the linearised model (functional/steering.py),
          checked by running it; the paper's search through the model on request (``n_steps``). All are lower bounds.
Reading:  0 the output pins the weights down; ln 2 = .69 all the weight can sit on tokens that had none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.attention_model import AttentionModel, Observation, Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.intervention import at_head, random_generator
from hf_attnprobe.functional.linear import epsilon_max_jsd
from hf_attnprobe.functional.search import (
    Distance,
    linear_distance,
    search_adversarial_attention,
)
from hf_attnprobe.functional.steering import steered_candidates


EPSILONS = (
    0.01,
    0.05,
)  # the paper's, for classification and for question answering; its code evaluates at .05
FRONTIER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
NOISE_STREAM = 1  # apart from the permutations' random numbers

READINGS = {
    "epsilon_max_jsd": "with the output within {key} of the original, attention can be moved by a divergence of {mean:.2f} (at most 0.69)",
    "largest_jsd": "with no regard to the output, attention could be moved by a divergence of {mean:.2f}",
}


@dataclass(frozen=True)
class AdversarialResult:
    """``epsilon_max_jsd`` by ε, each [batch], in [0, ln 2]; ``largest_jsd`` [batch] bounds them all.

    ``attention`` by ε, each [batch, queries, keys]: the adversary found, to be shown beside the original.
    """

    epsilon_max_jsd: dict[float, Tensor]
    largest_jsd: Tensor
    attention: dict[float, Tensor]


def adversarial(
    model: AttentionModel,
    observation: Observation,
    site: Site,
    *,
    method: Literal["auto", "exact", "search"] = "auto",
    epsilons: Sequence[float] | None = None,
    n_starts: int = 5,
    n_steps: int | None = None,
    seed: int = 0,
) -> AdversarialResult:
    """The farthest attention within each ε.

    Args:
        method: ``exact`` for binary linear read-outs, ``search`` for all; ``auto`` is exact where it can be.
        epsilons: default: .01 and .05, with ``exact`` the whole frontier from .001 to .5.
        n_starts, n_steps: of the gradient search, in the paper 5 random starts and 500 steps of Adam with ε = .01;
            ``None`` is 500 for linear read-outs, else 0: only the candidates of the linearised model.

    Raises:
        AttnProbeError: ``exact`` on a model whose read-out is not binary and linear.
    """
    token_logits = observation.token_logits
    linear = token_logits is not None and token_logits.shape[-1] == 2
    if method == "exact" and not linear:
        raise AttnProbeError(
            "method='exact' needs a binary linear read-out (two labels, logit = Σ a_t u_t), which this model does not "
            "have; use method='search'"
        )
    attention = observation.attention[site.layer][:, site.head]
    visible = model.visible(observation, site.layer)
    if linear and method != "search":
        epsilons = FRONTIER if epsilons is None else epsilons
        scores = token_logits[..., 1] - token_logits[..., 0]
        found = epsilon_max_jsd(attention[:, 0], scores, visible[:, 0], epsilons)
        farthest = list(zip(found.jsd, found.attention.unsqueeze(2), strict=True))
    else:
        epsilons = EPSILONS if epsilons is None else epsilons
        farthest = _search(
            model, observation, site, token_logits, epsilons, n_starts, n_steps, seed
        )
    return AdversarialResult(
        {
            epsilon: divergence
            for epsilon, (divergence, _) in zip(epsilons, farthest, strict=True)
        },
        _over_rows(largest_jsd(attention, visible), visible, site.query),
        {
            epsilon: adversary
            for epsilon, (_, adversary) in zip(epsilons, farthest, strict=True)
        },
    )


def _search(
    model,
    observation,
    site,
    token_logits,
    epsilons,
    n_starts: int,
    n_steps: int | None,
    seed: int,
):
    """For each ε the farthest attention found, JSD [batch] and attention [batch, queries, keys]."""
    attention = observation.attention[site.layer][:, site.head]
    visible = model.visible(observation, site.layer)
    linear = token_logits is not None
    checked = []
    if not linear:
        slope = observation.attention_gradient[site.layer][:, site.head]
        steered = steered_candidates(attention, slope, visible)
        checked.append(_check(model, observation, site, steered[:1]))
        if (
            checked[0].change <= min(epsilons)
        ).all():  # most heads are free: nothing is farther than the farthest
            return best_within(*checked, attention, epsilons)
        checked.append(_check(model, observation, site, steered[1:]))
    if linear or n_steps:
        distance = (
            linear_distance(token_logits, observation.probs)
            if linear
            else _model_distance(model, observation, site)
        )
        start = 3 * _noise(visible, observation.batch.example_ids, n_starts, seed).to(
            attention
        )
        flat = (
            x.flatten(-3, -2)
            for x in (start, attention, visible.expand(attention.shape))
        )
        n_steps = 500 if n_steps is None else n_steps
        found = search_adversarial_attention(
            *flat, distance, n_steps=n_steps
        ).unflatten(1, attention.shape[:2])
        checked.append(_check(model, observation, site, found))
    return best_within(
        Candidates(*map(torch.cat, zip(*checked, strict=True))), attention, epsilons
    )


class Candidates(NamedTuple):
    """Attentions [copies, batch, queries, keys] with their JSD to the original and their change of the output, [copies, batch]."""

    attention: Tensor
    divergence: Tensor
    change: Tensor


def _check(model, observation, site, attention: Tensor) -> Candidates:
    """Candidates with what running the model says of them."""
    layer, visible = (
        observation.attention[site.layer],
        model.visible(observation, site.layer),
    )
    with torch.no_grad():
        probs = model.replay(
            observation, {site.layer: at_head(layer, site.head, site.query, attention)}
        )
    divergence = _over_rows(jsd(attention, layer[:, site.head]), visible, site.query)
    return Candidates(attention, divergence, tvd(probs, observation.probs))


def _model_distance(model, observation, site) -> Distance:
    """Distance and its gradient through the model, over [copies, batch · queries, keys]."""
    attention = observation.attention[site.layer]
    n_batch, n_queries = attention.shape[0], attention.shape[2]

    def distance(candidates: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = (
                candidates.unflatten(1, (n_batch, n_queries)).detach().requires_grad_()
            )
            edited = at_head(attention, site.head, site.query, leaf)
            change = tvd(
                model.replay(observation, {site.layer: edited}), observation.probs
            )
            (slope,) = torch.autograd.grad(change.sum(), leaf)
        rows = change.detach()[:, :, None].expand(-1, -1, n_queries)
        return rows.flatten(1, 2), slope.flatten(1, 2)

    return distance


def best_within(
    found: Candidates, own: Tensor, epsilons: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """For each ε the farthest candidate whose change is ≤ ε, or else ``own`` [batch, queries, keys], whose JSD is 0."""
    candidates = torch.cat([own[None], found.attention])
    divergence, change = (
        torch.cat([torch.zeros_like(x[:1]), x])
        for x in (found.divergence, found.change)
    )
    best = [divergence.masked_fill(change > epsilon, -1).max(0) for epsilon in epsilons]
    place = torch.arange(len(own), device=own.device)
    return [(values, candidates[index, place]) for values, index in best]


def _over_rows(values: Tensor, visible: Tensor, query: int | None) -> Tensor:
    """[..., batch, queries] to [..., batch]: one query's value, or the mean over queries that see anything."""
    if query is not None:
        return values[..., query]
    real = visible.any(-1).to(values.dtype).expand(values.shape)
    return (values * real).sum(-1) / real.sum(-1).clamp_min(1)


def _noise(
    visible: Tensor, example_ids: Sequence[int], n_starts: int, seed: int
) -> Tensor:
    """Standard normal draws where attention may be, [starts, batch, queries, keys]."""
    rows = visible.cpu().numpy()
    noise = np.zeros((n_starts, *rows.shape))
    for example, example_id in enumerate(example_ids):
        queries, keys = (rows[example].any(axis) for axis in (1, 0))
        draws = random_generator(seed, int(example_id), NOISE_STREAM)
        draws = draws.standard_normal((n_starts, queries.sum(), keys.sum()))
        noise[:, example][(slice(None), *np.ix_(queries, keys))] = draws
    return torch.from_numpy(noise).to(visible.device)
