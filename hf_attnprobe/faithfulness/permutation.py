"""Does it matter which token got which weight?

Jain & Wallace 2019, Section 4.2.1, Algorithm 2.

Question: if the attention weights of a text are shuffled over its tokens, does the
          output change?
Measure:  the median, over 100 random shuffles, of the total variation distance between
          new and old output; the encoder's states stay as they are.
Standard: the same at the standard temperature, where the median lead of what is predicted is
          3 nats: a saturated output hardly shows in probability what moves its logit, an
          unsure one shows little of anything.
Exactly:  where the read-out is linear, the largest change any of the T! permutations
          can make, whether one of them flips the decision, and the mean and variance of
          the logit over all of them.
Groups:   the heads of a layer, or of all layers, are shuffled at once. A layer's heads
          share a shuffle, as its single heads do; every layer has its own.
Reading:  0 the assignment of weights to tokens does not matter, 1 it decides
          everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import permute, random_permutations
from hf_attnprobe.functional.linear import (
    permutation_extremes,
    permutation_moments,
)
from hf_attnprobe.protocol import Observation, Site


MAPS_AT_ONCE = 2**22
"""Weights of shuffled maps that take little memory."""
READINGS: TestReadings = {
    "max_attention": "the token with the most attention has {mean:.2f} of it",
    "special_attention": (
        "{mean:.0%} of the attention is on tokens that are not explained, as [CLS]"
    ),
    "median_tvd": "shuffling attention moved the output by {mean:.2f} {unit}",
    "standard_tvd": (
        "shuffling attention moved the output by {mean:.2f} {unit} at the standard temperature"
    ),
    "largest_standard_tvd": (
        "the worst shuffle moves the output by {mean:.2f} {unit} at the standard temperature"
    ),
    "flips_drawn": share("{mean:.0%} of the drawn shuffles flip {decision}"),
    "median_tvd_of": ("shuffling attention moved what is said of {key} by {mean:.2f} of 1"),
    "max_tvd": ("the worst of all possible shuffles moves the output by {mean:.2f} {unit}"),
    "flip_possible": share(
        "some shuffle of the same weights flips {decision} in {mean:.0%} of texts"
    ),
    "logit_mean": (
        "over all shuffles the logit (of the second of two classes, else of the "
        "predicted one) is {mean:.2f} on average, which is what uniform attention gives"
    ),
    "logit_variance": "over all shuffles the logit has variance {mean:.2f}",
}


@dataclass(frozen=True)
class PermutationResult:
    """All [batch]. ``max_attention`` is what the papers bin the others by; of a group it
    is the largest weight of its heads' mean. ``special_attention`` is the share of the
    weights on tokens that are not explained: [CLS], [SEP], a text of a pair that is held.

    ``median_tvd_of`` is by part of the prediction, None where its parts have no names.
    The exact ones are None where the read-out is not linear; ``max_tvd`` also for over
    two classes.

    ``standard_tvd`` is the median over shuffles at the standard temperature,
    ``largest_standard_tvd`` the most of all shuffles that there are for two classes and a
    linear read-out, else of those that were drawn. ``flips_drawn`` is the share of the drawn
    ones that flip the decision, NaN where nothing is decided.

    ``logit_mean`` and ``logit_variance`` are of the logit of class 1 against class 0,
    or of the predicted class's logit where there are more than two classes.
    """

    max_attention: Tensor
    special_attention: Tensor
    median_tvd: Tensor
    standard_tvd: Tensor
    largest_standard_tvd: Tensor
    flips_drawn: Tensor
    median_tvd_of: Mapping[str, Tensor] | None = None
    max_tvd: Tensor | None = None
    flip_possible: Tensor | None = None
    logit_mean: Tensor | None = None
    logit_variance: Tensor | None = None


@register_test(
    readings=READINGS,
    does="shuffles the weights among the tokens",
    of_answers=Permutation(n_permutations=20),
    groups=True,
)
def permutation(
    observation: Observation,
    site: Site,
    options: Permutation = Permutation(),
    *,
    seed: int = 0,
) -> PermutationResult:
    """Measures how far the output moves when a head's attention is permuted over the tokens.

    Every query's weights are permuted over the keys that it may see.
    """
    after = _shuffled_probs(observation, site, options.n_permutations, seed)
    changes = tvd(after, observation.probs)
    token_logits = observation.token_logits
    exact = {} if token_logits is None else _exact(token_logits, observation, site)
    moved = observation.moved_by_part(after) or {}
    by_part = {name: _median(changes) for name, changes in moved.items()}
    attention = observation.read(site)
    batch = observation.batch
    is_special = batch.mask & ~batch.content_mask
    at_standard = tvd(observation.standard(after), observation.standard(observation.probs))
    worst = exact.pop("largest_standard_tvd", at_standard.amax(0))
    return PermutationResult(
        max_attention=attention.amax(-1),
        special_attention=attention.masked_fill(~is_special, 0).sum(-1),
        median_tvd=_median(changes),
        standard_tvd=_median(at_standard),
        largest_standard_tvd=worst,
        flips_drawn=observation.flips(after).double().mean(0),
        median_tvd_of=by_part or None,
        **exact,
    )


def _shuffled_probs(observation: Observation, site: Site, n_copies: int, seed: int) -> Tensor:
    """Probabilities under each shuffle, [copies, batch, classes].

    Of several layers the copies are replayed in parts, so that no more maps exist at
    once than all copies of one layer have, or :data:`MAPS_AT_ONCE`. The parts change nothing.
    """
    maps = [observation.attention[layer] for layer in observation.model.members(site)]
    within_memory = MAPS_AT_ONCE // sum(one.numel() for one in maps)
    at_once = max(1, n_copies // len(maps), min(within_memory, n_copies))
    parts = []
    for first in range(0, n_copies, at_once):
        copies = range(first, min(first + at_once, n_copies))
        shuffle = partial(_shuffled, observation, site, copies, seed)
        edited = observation.edited(site, shuffle)
        parts.append(observation.model.replay(observation, edited))
    return torch.cat(parts)


def _shuffled(
    observation: Observation,
    site: Site,
    copies: range,
    seed: int,
    layer: int,
    attention: Tensor,
) -> Tensor:
    """[batch, heads, queries, keys] -> [copies, batch, heads, queries, keys]."""
    layers = list(observation.model.members(site))
    if len(layers) == 1:  # its other heads need the same shuffles
        order = observation.permutations(layer, len(copies), seed)
    else:
        order = random_permutations(
            observation.model.visible(observation, layer),
            len(copies),
            seed=seed + (layers.index(layer) << 32),
            example_ids=observation.batch.example_ids,
            first=copies.start,
        )
    return permute(attention, order.unsqueeze(2))


def _median(changes: Tensor) -> Tensor:
    """Median over copies, [copies, batch, …] -> [batch, …].

    The mean of the two in the middle where the number is even.
    """
    middle = len(changes) // 2
    in_order = changes.sort(0).values
    if len(changes) % 2:
        return in_order[middle]
    return (in_order[middle - 1] + in_order[middle]) / 2


def _exact(token_logits: Tensor, observation: Observation, site: Site) -> dict[str, Tensor]:
    """Exact statistics over all T! permutations."""
    attention, mask = observation.read(site), observation.batch.mask
    predicted = observation.target(None)
    n_classes = token_logits.shape[-1]
    # Logits of the predicted class, [batch, keys], and how far they exceed those of
    # each class, [classes, batch, keys].
    texts = torch.arange(len(predicted), device=predicted.device)
    own = token_logits[texts, :, predicted]
    margins = own - token_logits.movedim(-1, 0)
    lowest, highest = permutation_extremes(attention, margins, mask)
    flips = (lowest.amin(0) < 0).to(torch.float64)
    logits = own if n_classes > 2 else token_logits[..., 1] - token_logits[..., 0]
    mean, variance = permutation_moments(attention, logits, mask)
    exact = {
        "flip_possible": flips,
        "logit_mean": mean,
        "logit_variance": variance,
    }
    if n_classes == 2:
        extremes = torch.stack([lowest, highest]).sum(1)
        before = _lead(observation.probs.double(), predicted)
        exact["max_tvd"] = _farthest(before, extremes)
        sharpness = observation.model.sharpness
        exact["largest_standard_tvd"] = _farthest(before * sharpness, extremes * sharpness)
    return exact


def _lead(probs: Tensor, predicted: Tensor) -> Tensor:
    """Returns the log-odds of the predicted one of two classes, [batch, 2] -> [batch]."""
    logs = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
    own = logs.gather(-1, predicted[:, None])[:, 0]
    return own - logs.gather(-1, 1 - predicted[:, None])[:, 0]


def _farthest(before: Tensor, extremes: Tensor) -> Tensor:
    """Returns the larger change of probability; log-odds [batch], [2, batch] -> [batch]."""
    return (extremes.sigmoid() - before.sigmoid()).abs().amax(0)
