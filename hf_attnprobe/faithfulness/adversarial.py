"""Could attention have looked elsewhere with the same output? Jain & Wallace 2019, Section 4.2.2, Algorithm 3.

Question: how different can the weights of one text be while the output stays within ε?
Measure:  ε-max JSD, the largest Jensen-Shannon divergence (nats, at most ln 2) from the model's attention among
          attentions that move the output by at most ε in total variation.
Exactly:  for a binary linear read-out, by vertex enumeration (functional/linear.py). The paper's gradient search
          finds less (functional/search.py) and is what every other model gets.
Reading:  0 the output pins the weights down; ln 2 = .69 all the weight can sit on tokens that had none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.attention_model import AttentionModel, Observation, Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.intervention import random_generator
from hf_attnprobe.functional.linear import FarthestAttention, epsilon_max_jsd
from hf_attnprobe.functional.search import linear_distance, search_adversarial_attention


EPSILONS = (0.01, 0.05)  # the paper's, for classification and for question answering; its code evaluates at .05
FRONTIER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
NOISE_STREAM = 1  # apart from the permutations' random numbers

READINGS = {
    "epsilon_max_jsd": "with the output within {key} of the original, attention can be moved by a divergence of {mean:.2f} (at most 0.69)",
    "largest_jsd": "with no regard to the output, attention could be moved by a divergence of {mean:.2f}",
}


@dataclass(frozen=True)
class AdversarialResult:
    """``epsilon_max_jsd`` by ε, each [batch], in [0, ln 2]; ``largest_jsd`` [batch] bounds them all.

    ``attention`` by ε, each [batch, keys]: the adversary found, to be shown beside the original.
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
    n_steps: int = 500,
    seed: int = 0,
) -> AdversarialResult:
    """The farthest attention within each ε.

    Args:
        method: ``exact`` for binary linear read-outs, ``search`` for all; ``auto`` is exact where it can be.
        epsilons: default: .01 and .05, with ``exact`` the whole frontier from .001 to .5.
        n_starts, n_steps: of the search, as in the paper: 5 random starts, 500 steps of Adam with ε = .01.

    Raises:
        AttnProbeError: ``exact`` on a model whose read-out is not binary and linear.
    """
    token_logits = model.token_logits(observation)
    linear = token_logits is not None and token_logits.shape[-1] == 2
    if method == "exact" and not linear:
        raise AttnProbeError(
            "method='exact' needs a binary linear read-out (two labels, logit = Σ a_t u_t), which this model does not "
            "have; use method='search'"
        )
    attention, mask = observation.read(site), observation.batch.mask
    if linear and method != "search":
        epsilons = FRONTIER if epsilons is None else epsilons
        found = epsilon_max_jsd(attention, token_logits[..., 1] - token_logits[..., 0], mask, epsilons)
    else:
        epsilons = EPSILONS if epsilons is None else epsilons
        found = _search(model, observation, site, epsilons, n_starts, n_steps, seed)
    return AdversarialResult(
        dict(zip(epsilons, found.jsd, strict=True)),
        largest_jsd(attention, mask),
        dict(zip(epsilons, found.attention, strict=True)),
    )


def _search(model, observation, site, epsilons, n_starts: int, n_steps: int, seed: int) -> FarthestAttention:
    """The paper's search from random starts; the model's own attention is always a candidate, with JSD 0."""
    attention, mask, logits = observation.read(site), observation.batch.mask, model.token_logits(observation)
    start = 3 * _noise(mask, observation.batch.example_ids, n_starts, seed).to(attention)
    distance = linear_distance(logits, observation.probs)
    candidates = search_adversarial_attention(start, attention, mask, distance, n_steps=n_steps)
    edited = candidates[:, :, None, None, :]
    change = tvd(model.replay(observation, {site.layer: edited}), observation.probs)
    return best_within(candidates, attention, change, epsilons)


def best_within(candidates: Tensor, attention: Tensor, change: Tensor, epsilons: Sequence[float]) -> FarthestAttention:
    """Of candidates [copies, batch, keys] and the attention itself the farthest whose change [copies, batch] is ≤ ε."""
    candidates = torch.cat([attention[None], candidates])
    divergence = jsd(candidates, attention)
    divergence[0] = 0
    change = torch.cat([torch.zeros_like(change[:1]), change])
    best = [divergence.masked_fill(change > epsilon, -1).max(0) for epsilon in epsilons]
    place = torch.arange(len(attention), device=attention.device)
    return FarthestAttention(
        torch.stack([values for values, _ in best]), torch.stack([candidates[index, place] for _, index in best])
    )


def _noise(mask: Tensor, example_ids: Sequence[int], n_starts: int, seed: int) -> Tensor:
    """Standard normal draws on the real tokens, [starts, batch, keys]."""
    rows = mask.cpu().numpy()
    noise = np.zeros((n_starts, *rows.shape))
    for row, example_id in enumerate(example_ids):
        generator = random_generator(seed, int(example_id), NOISE_STREAM)
        noise[:, row, rows[row]] = generator.standard_normal((n_starts, int(rows[row].sum())))
    return torch.from_numpy(noise)
