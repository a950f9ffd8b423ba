"""Could attention have looked elsewhere with the same output?

Jain & Wallace 2019, Section 4.2.2, Algorithm 3.

Question: how different can the weights of one text be while the output stays within ε?
Measure:  ε-max JSD, the largest Jensen-Shannon divergence (nats, at most ln 2) from the
          model's attention among attentions that move the output by at most ε in total
          variation; of a head with several queries, the mean over its query rows.
Exactly:  for a binary linear read-out, by vertex enumeration (functional/linear.py).
Search:   for linear read-outs the paper's gradient search (functional/search.py). For a
          head of a Transformer, where 500 steps through the model are out of reach,
          candidates from the linearised model (functional/steering.py), checked by
          running it; the paper's search through the model on request (``n_steps``). All
          are lower bounds.
Reading:  0 the output pins the weights down; ln 2 = .69 all the weight can sit on
          tokens that had none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    Differentiable,
    LinearReadout,
    Observation,
    Site,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.intervention import at_head, random_generator
from hf_attnprobe.functional.linear import epsilon_max_jsd
from hf_attnprobe.functional.search import (
    Distance,
    linear_distance,
    search_adversarial_attention,
)
from hf_attnprobe.functional.steering import steered_candidates
from hf_attnprobe.options import Options, option


EPSILONS = (0.01, 0.05)
"""The paper's, for classification and for question answering; its code evaluates at .05."""
FRONTIER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
NOISE_STREAM = 1  # apart from the permutations' random numbers

READINGS = {
    "epsilon_max_jsd": (
        "with the output within {key} of the original, attention can be moved by a "
        "divergence of {mean:.2f} (at most 0.69)"
    ),
    "largest_jsd": (
        "with no regard to the output, attention could be moved by a divergence of "
        "{mean:.2f}"
    ),
}
HEAD_TITLES = {
    "epsilon_max_jsd@0.05": (
        "how far the attention can be moved with the output within .05 (at most .69; a "
        "lower bound)"
    ),
}


@dataclass(frozen=True)
class Adversarial(Options):
    """How the farthest attention is found, and how far the output may move."""

    method: Literal["auto", "exact", "search"] = option(
        "auto",
        "exact works for binary linear read-outs, search for all models; auto takes exact "
        "if possible",
    )
    epsilons: Sequence[float] | None = option(
        None,
        "distances that the output may move (default: .01 and .05; exact: nine from .001 "
        "to .5)",
        at_least=0,
        metavar="EPSILON",
    )
    n_starts: int = option(5, "random starts of the gradient search", at_least=1)
    n_steps: int | None = option(
        None,
        "steps of the gradient search (default: 500; for Transformers 0, which tries the "
        "candidates of the linearised model only)",
        at_least=0,
    )


@dataclass(frozen=True)
class AdversarialResult:
    """``epsilon_max_jsd`` by ε, each [batch], in [0, ln 2].

    ``largest_jsd`` [batch] bounds them all.

    ``attention`` by ε, each [batch, queries, keys]: the adversary found, to be shown
    beside the original.
    """

    epsilon_max_jsd: dict[float, Tensor]
    largest_jsd: Tensor
    attention: dict[float, Tensor]


def _binary_logits(observation: Observation) -> Tensor | None:
    """Logits of each token alone [batch, keys, 2] of a binary linear read-out, or None."""
    token_logits = observation.token_logits
    if token_logits is None or token_logits.shape[-1] != 2:
        return None
    return token_logits


def _check_method(observation: Observation, options: Adversarial) -> None:
    if options.method == "exact" and _binary_logits(observation) is None:
        raise AttnProbeError(
            "method='exact' needs a binary linear read-out (two labels, logit = Σ a_t "
            "u_t), which this model does not have; use method='search'"
        )


@register_test(
    readings=READINGS,
    head_titles=HEAD_TITLES,
    needs=((LinearReadout, Differentiable),),
    gradient_copies_at_once=lambda options: options.n_starts if options.n_steps else 1,
    check=lambda preview, options: _check_method(preview.shortest, options),
)
def adversarial(
    observation: Observation,
    site: Site,
    options: Adversarial = Adversarial(),
    *,
    seed: int = 0,
) -> AdversarialResult:
    """The farthest attention within each ε.

    The paper's search has 5 random starts and 500 steps of Adam with ε = .01.

    Raises:
        AttnProbeError: ``exact`` on a model whose read-out is not binary and linear.
    """
    _check_method(observation, options)
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    token_logits = _binary_logits(observation)
    farthest: list[tuple[Tensor, Tensor]]
    if token_logits is not None and options.method != "search":
        epsilons = FRONTIER if options.epsilons is None else options.epsilons
        scores = token_logits[..., 1] - token_logits[..., 0]
        exact = epsilon_max_jsd(attention[:, 0], scores, visible[:, 0], epsilons)
        farthest = list(zip(exact.jsd, exact.attention.unsqueeze(2), strict=True))
    else:
        epsilons = EPSILONS if options.epsilons is None else options.epsilons
        farthest = _search(observation, site, epsilons, options, seed)
    by_epsilon = dict(zip(epsilons, farthest, strict=True))
    return AdversarialResult(
        {epsilon: divergence for epsilon, (divergence, _) in by_epsilon.items()},
        _over_rows(largest_jsd(attention, visible), visible, site.query),
        {epsilon: adversary for epsilon, (_, adversary) in by_epsilon.items()},
    )


def _search(
    observation: Observation,
    site: Site,
    epsilons: Sequence[float],
    options: Adversarial,
    seed: int,
) -> list[tuple[Tensor, Tensor]]:
    """The farthest attention found for each ε.

    Shape: JSD [batch] and attention [batch, queries, keys].
    """
    attention = observation.attention[site.layer][:, site.head]
    token_logits = observation.token_logits
    search = partial(_gradient_search, observation, site, options.n_starts, seed)
    if token_logits is not None:
        distance = linear_distance(token_logits, observation.probs)
        n_steps = 500 if options.n_steps is None else options.n_steps
        moved = search(distance, n_steps)
        return best_within(_check(observation, site, moved), attention, epsilons)
    slope = observation.attention_gradient[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    steered = steered_candidates(attention, slope, visible)
    checked = [_check(observation, site, steered[:1])]
    # Most heads are free: no attention is farther than this first candidate.
    if (checked[0].change <= min(epsilons)).all():
        return best_within(checked[0], attention, epsilons)
    checked.append(_check(observation, site, steered[1:]))
    if options.n_steps:
        moved = search(_model_distance(observation, site), options.n_steps)
        checked.append(_check(observation, site, moved))
    candidates = Candidates(*map(torch.cat, zip(*checked, strict=True)))
    return best_within(candidates, attention, epsilons)


def _gradient_search(
    observation: Observation,
    site: Site,
    n_starts: int,
    seed: int,
    distance: Distance,
    n_steps: int,
) -> Tensor:
    """The paper's search from random starts.

    Shape: attention [starts, batch, queries, keys].
    """
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    noise = _noise(visible, observation.batch.example_ids, n_starts, seed)
    start = 3 * noise.to(attention)
    moved = search_adversarial_attention(
        start.flatten(-3, -2),
        attention.flatten(-3, -2),
        visible.expand(attention.shape).flatten(-3, -2),
        distance,
        n_steps=n_steps,
    )
    return moved.unflatten(1, attention.shape[:2])


class Candidates(NamedTuple):
    """Attentions with their JSD to the original and the change of the output.

    Shape: [copies, batch, queries, keys], and twice [copies, batch].
    """

    attention: Tensor
    divergence: Tensor
    change: Tensor


def _check(observation: Observation, site: Site, attention: Tensor) -> Candidates:
    """Candidates with the change of the output when the model is run with them."""
    model, layer = observation.model, observation.attention[site.layer]
    visible = model.visible(observation, site.layer)
    edited = at_head(layer, site.head, site.query, attention)
    with torch.no_grad():
        probs = model.replay(observation, {site.layer: edited})
    divergence = _over_rows(jsd(attention, layer[:, site.head]), visible, site.query)
    return Candidates(attention, divergence, tvd(probs, observation.probs))


def _model_distance(observation: Observation, site: Site) -> Distance:
    """Distance and its gradient through the model.

    Shape: [copies, batch · queries, keys].
    """
    model = observation.model
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


def _over_rows(values: Tensor, visible: Tensor, query: int | None) -> Tensor:
    """One query's value, or the mean over queries that see anything.

    Shape: [..., batch, queries] -> [..., batch].
    """
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
        generator = random_generator(seed, int(example_id), NOISE_STREAM)
        shape = (n_starts, queries.sum(), keys.sum())
        places = (slice(None), *np.ix_(queries, keys))
        noise[:, example][places] = generator.standard_normal(shape)
    return torch.from_numpy(noise).to(visible.device)
