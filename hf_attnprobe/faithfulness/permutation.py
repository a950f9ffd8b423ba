"""Test ``permutation``: does it matter which token gets which attention weight?

Jain & Wallace 2019, Section 4.2.1, Algorithm 2.

Question
    Does the output change if the attention weights of a text are shuffled over its tokens?

Measure
    Median output change (total variation distance) over 100 random shuffles. The encoder's states
    stay as they are.

Early stopping
    With the option ``stop_threshold``, a text gets only six shuffles if all six change its output
    by more than the threshold, or all six by less. Otherwise it gets all shuffles. The range of six
    independent values is a confidence interval for their median that holds with a probability of
    1 − 2 · 2⁻⁶ = .969 for any distribution (Thompson 1936), and six is the smallest number for
    which this is at least .95. If the median is on one side of the threshold, all six values are on
    the other side with a probability of at most 2⁻⁶ = .016. There is only one look at the values
    of a text, so no correction for several looks is needed. The rule only reads the text's own
    shuffles, which depend on the seed and the text id.

Standard temperature
    The same at the standard temperature, at which the predicted class's median probability is .95. A
    saturated model's probabilities hardly react to changes in its logits, and an undecided model's
    probabilities change little in any case.

Exact statistics
    With a linear read-out: the largest output change by any of the T! permutations, whether one of
    them flips the decision, and the logit's mean and variance over all of them.

Groups
    All heads in a layer or in the model are shuffled at once. Each head has its own shuffle: if two
    heads cancel each other, then a shared shuffle would not change their sum.

Interpretation
    0: the assignment of weights to tokens does not matter. 1: it determines the output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import draw_permutations, permute
from hf_attnprobe.functional.linear import (
    permutation_extremes,
    permutation_moments,
)
from hf_attnprobe.protocol import Observation, Site


MAX_WEIGHTS_PER_PASS = 2**22
"""Number of attention weights that fit into one forward pass, summed over all shuffled copies of a
batch."""
N_FIRST_SHUFFLES = 6
"""Number of shuffles after which a text may stop early. It is the smallest number whose range is a
95% confidence interval for the median, whatever the distribution."""
READINGS: TestReadings = {
    "max_attention": "the most attended token receives {mean:.2f} of the attention",
    "special_attention": (
        "{mean:.0%} of the attention is on tokens that are not explained, such as [CLS]"
    ),
    "median_tvd": "shuffling attention moves the output by {mean:.2f} {unit}",
    "standard_tvd": (
        "shuffling attention moves the output by {mean:.2f} {unit} at the standard temperature"
    ),
    "largest_standard_tvd": (
        "the most damaging shuffle moves the output by {mean:.2f} {unit} at the standard "
        "temperature"
    ),
    "flips_drawn": make_share_reading("{mean:.0%} of the random shuffles flip {decision}"),
    "median_tvd_of": "shuffling attention moves the prediction of {key} by {mean:.2f} of 1",
    "max_tvd": "the most damaging of all possible shuffles moves the output by {mean:.2f} {unit}",
    "flip_possible": make_share_reading(
        "in {mean:.0%} of texts some shuffle of the attention weights flips {decision}"
    ),
    "logit_mean": (
        "over all shuffles the logit (of the second of two classes, otherwise of the predicted "
        "class) has a mean of {mean:.2f}, which is also the logit with uniform attention"
    ),
    "logit_variance": "over all shuffles the logit has a variance of {mean:.2f}",
    "shuffles_drawn": "{mean:.1f} random shuffles were drawn for each text",
}


@dataclass(frozen=True)
class PermutationResult:
    """Statistics from the test ``permutation``, tensors ``[batch]``.

    Exact statistics are None if the read-out is not linear.

    Attributes:
        max_attention: Largest attention weight. For a head group, the largest weight after
            averaging over the heads. Reports group texts by this statistic, as the paper does.
        special_attention: Share of the attention on tokens that are not explained, such as [CLS]
            and [SEP], and a second text that is not explained.
        median_tvd: Median output change over the random shuffles.
        standard_tvd: Median output change at the standard temperature.
        largest_standard_tvd: Largest output change at the standard temperature: over all possible
            shuffles for two classes and a linear read-out, over the random shuffles otherwise. It
            is smaller for texts that stop early, because they have fewer shuffles.
        flips_drawn: Share of the random shuffles that flip the decision. NaN if the model makes no
            decisions.
        median_tvd_of: Median output change for each label or tag. None unless a prediction consists of
            several labels or tags with names.
        max_tvd: Exact largest output change over all shuffles. None for more than two classes.
        flip_possible: 1 if some shuffle flips the decision, else 0. Exact.
        logit_mean: Exact mean logit over all shuffles: class 1 against class 0, or the predicted
            class's logit if there are more than two classes.
        logit_variance: Exact variance of this logit over all shuffles.
        shuffles_drawn: Number of random shuffles. None if texts cannot stop early.
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
    shuffles_drawn: Tensor | None = None


@register_test(
    readings=READINGS,
    summary="shuffles the attention weights among the tokens",
    answer_options=Permutation(n_permutations=20, stop_threshold=0.05),
    groups=True,
)
def permutation(
    observation: Observation,
    site: Site,
    options: Permutation = Permutation(),
    *,
    seed: int = 0,
) -> PermutationResult:
    """Measure how much the output changes when the attention weights are shuffled.

    Each query's weights are permuted over its visible keys.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is permuted.
        options: Number of random shuffles, and the threshold at which a text stops early.
        seed: Seed for the shuffles.

    Returns:
        Statistics per text.
    """
    statistics = _measure_random_shuffles(observation, site, options, seed)
    token_logits = observation.token_logits
    if token_logits is not None:
        statistics |= _compute_exact_statistics(token_logits, observation, site)
    attention = observation.read(site)
    batch = observation.batch
    is_special = batch.mask & ~batch.content_mask
    return PermutationResult(
        max_attention=attention.amax(-1),
        special_attention=attention.masked_fill(~is_special, 0).sum(-1),
        **statistics,
    )


# --- Random shuffles -------------------------------------------------------------------------


def _measure_random_shuffles(
    observation: Observation, site: Site, options: Permutation, seed: int
) -> dict[str, Any]:
    """Shuffle the attention at random, and summarise how much the output changes.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        options: Number of random shuffles, and the threshold at which a text stops early.
        seed: Seed for the shuffles.

    Returns:
        Fields of :class:`PermutationResult`.
    """
    n_shuffles, threshold = options.n_permutations, options.stop_threshold
    n_first = n_shuffles if threshold is None else min(N_FIRST_SHUFFLES, n_shuffles)
    probs = _predict_shuffled(observation, site, range(n_first), n_shuffles, seed)
    statistics = _summarise_shuffles(observation, probs)
    if threshold is None:
        return statistics
    changes = _compute_standard_changes(observation, probs)
    is_clear = (changes > threshold).all(0) | (changes < threshold).all(0)
    stops = is_clear | (n_first == n_shuffles)
    statistics["shuffles_drawn"] = torch.full_like(changes[0], n_first)
    if stops.all():
        return statistics
    remaining = range(n_first, n_shuffles)
    remaining_probs = _predict_shuffled(observation, site, remaining, n_shuffles, seed)
    all_statistics = _summarise_shuffles(observation, torch.cat([probs, remaining_probs]))
    all_statistics["shuffles_drawn"] = torch.full_like(changes[0], n_shuffles)
    # The remaining shuffles were computed for the whole batch, but clear texts do not use them. The
    # statistics of a text are therefore the same in any batch.
    return {
        name: _select_by_text(stops, values, all_statistics[name])
        for name, values in statistics.items()
    }


def _select_by_text(is_first: Tensor, first: Any, second: Any) -> Any:
    """Combine two values of a statistic: the first for some texts, the second for all other texts.

    Args:
        is_first: Texts with the first value, bool ``[batch]``.
        first: Values ``[batch]``, a mapping to such values, or None.
        second: Values of the same form.
    """
    if isinstance(first, Mapping):
        return {name: values.where(is_first, second[name]) for name, values in first.items()}
    return None if first is None else first.where(is_first, second)


def _summarise_shuffles(observation: Observation, probs: Tensor) -> dict[str, Any]:
    """Summarise the output changes over the random shuffles of each text.

    Args:
        observation: Model outputs for the batch.
        probs: Probabilities with shuffled attention, ``[copies, batch, classes]``.

    Returns:
        Fields of :class:`PermutationResult`.
    """
    changes_by_part = observation.compute_change_by_part(probs) or {}
    medians_by_part = {name: _compute_median(changes) for name, changes in changes_by_part.items()}
    standard_changes = _compute_standard_changes(observation, probs)
    return {
        "median_tvd": _compute_median(tvd(probs, observation.probs)),
        "standard_tvd": _compute_median(standard_changes),
        "largest_standard_tvd": standard_changes.amax(0),
        "flips_drawn": observation.find_flips(probs).double().mean(0),
        "median_tvd_of": medians_by_part or None,
    }


def _compute_standard_changes(observation: Observation, probs: Tensor) -> Tensor:
    """Compute the output changes at the standard temperature.

    Args:
        observation: Model outputs for the batch.
        probs: Probabilities with shuffled attention, ``[copies, batch, classes]``.

    Returns:
        Total variation distances ``[copies, batch]``.
    """
    return tvd(
        observation.apply_standard_temperature(probs),
        observation.apply_standard_temperature(observation.probs),
    )


def _predict_shuffled(
    observation: Observation, site: Site, copies: range, n_shuffles: int, seed: int
) -> Tensor:
    """Return the probabilities with shuffled attention, ``[copies, batch, classes]``.

    The shuffled copies are processed in chunks to limit the memory. The chunk size does not change
    the results.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        copies: Indices of the shuffles.
        n_shuffles: Largest number of shuffles for a text, which limits the size of a chunk.
        seed: Seed for the shuffles.
    """
    maps = [observation.attention[layer] for layer in observation.model.get_heads_by_layer(site)]
    n_within_memory = MAX_WEIGHTS_PER_PASS // sum(layer_map.numel() for layer_map in maps)
    # A chunk may always contain as many weights as all copies of a single layer.
    chunk_size = max(1, n_shuffles // len(maps), min(n_within_memory, n_shuffles))
    chunks = []
    for start in range(copies.start, copies.stop, chunk_size):
        chunk = range(start, min(start + chunk_size, copies.stop))
        shuffle = partial(_shuffle_layer, observation, site, chunk, seed)
        edited = observation.edit_attention(site, shuffle)
        chunks.append(observation.model.replay(observation, edited))
    return torch.cat(chunks)


def _shuffle_layer(
    observation: Observation,
    site: Site,
    copies: range,
    seed: int,
    layer: int,
    attention: Tensor,
) -> Tensor:
    """Shuffle a layer's attention, once per copy.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        copies: Indices of the shuffles.
        seed: Seed for the shuffles.
        layer: Attention layer.
        attention: Attention ``[batch, heads, queries, keys]``.

    Returns:
        Copies ``[copies, batch, heads, queries, keys]``.
    """
    n_heads = attention.shape[1]
    layers = list(observation.model.get_heads_by_layer(site))
    if n_heads == 1 and len(layers) == 1:
        # The observation caches the shuffles, because other heads of the layer use them too.
        orders = observation.draw_permutations(layer, copies.stop, seed)[copies.start :]
        return permute(attention, orders.unsqueeze(2))
    visible = observation.model.get_visible_keys(observation, layer)
    # All rows of all heads are drawn at once, as if they were the rows of a single head.
    order = draw_permutations(
        visible.repeat(1, n_heads, 1),
        len(copies),
        seed=seed + (layers.index(layer) << 32),
        example_ids=observation.batch.example_ids,
        first=copies.start,
    )
    return permute(attention, order.unflatten(2, (n_heads, -1)))


def _compute_median(changes: Tensor) -> Tensor:
    """Return the median over copies, ``[copies, batch, ...] -> [batch, ...]``.

    For an even number of copies, the two middle values are averaged.
    """
    middle = len(changes) // 2
    sorted_changes = changes.sort(0).values
    if len(changes) % 2:
        return sorted_changes[middle]
    return (sorted_changes[middle - 1] + sorted_changes[middle]) / 2


# --- All shuffles ----------------------------------------------------------------------------


def _compute_exact_statistics(
    token_logits: Tensor, observation: Observation, site: Site
) -> dict[str, Tensor]:
    """Compute the exact statistics over all T! permutations.

    Args:
        token_logits: Logits that the read-out gives each token alone, ``[batch, keys, classes]``.
        observation: Model outputs and attention for a batch.
        site: Head.
    """
    attention, mask = observation.read(site), observation.batch.mask
    predicted = observation.get_target_classes(None)
    n_classes = token_logits.shape[-1]
    texts = torch.arange(len(predicted), device=predicted.device)
    # [batch, keys]
    predicted_logits = token_logits[texts, :, predicted]
    # Margins between the predicted class and each class, [classes, batch, keys].
    margins = predicted_logits - token_logits.movedim(-1, 0)
    lowest, highest = permutation_extremes(attention, margins, mask)
    can_flip = (lowest.amin(0) < 0).to(torch.float64)
    class_difference = token_logits[..., 1] - token_logits[..., 0]
    logits = predicted_logits if n_classes > 2 else class_difference
    mean, variance = permutation_moments(attention, logits, mask)
    exact = {
        "flip_possible": can_flip,
        "logit_mean": mean,
        "logit_variance": variance,
    }
    if n_classes == 2:
        # The margin over the predicted class itself is 0, so the sum is the only other margin.
        extremes = torch.stack([lowest, highest]).sum(1)
        log_odds = _compute_log_odds(observation.probs.double(), predicted)
        sharpness = observation.model.sharpness
        exact["max_tvd"] = _compute_largest_change(log_odds, extremes)
        exact["largest_standard_tvd"] = _compute_largest_change(
            log_odds * sharpness, extremes * sharpness
        )
    return exact


def _compute_log_odds(probs: Tensor, predicted: Tensor) -> Tensor:
    """Return the predicted class's log-odds against the other class, ``[batch, 2] -> [batch]``."""
    log_probs = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
    predicted_log_prob = log_probs.gather(-1, predicted[:, None])[:, 0]
    return predicted_log_prob - log_probs.gather(-1, 1 - predicted[:, None])[:, 0]


def _compute_largest_change(log_odds: Tensor, extremes: Tensor) -> Tensor:
    """Return the largest change in the probability that any shuffle can cause.

    Args:
        log_odds: Log-odds without a shuffle, ``[batch]``.
        extremes: Smallest and largest log-odds over all shuffles, ``[2, batch]``.

    Returns:
        Probability changes ``[batch]``.
    """
    changes = (extremes.sigmoid() - log_odds.sigmoid()).abs()
    return changes.amax(0)
