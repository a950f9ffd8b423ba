"""Losses in a language model's answer if a passage unit is deleted or knocked out.

All losses are log p(answer) − log p(answer | without the unit), in nats, and can be negative. They
are cached, so that all tests share one computation per prompt.

A knockout takes about the same time for any passage, whereas a deletion takes longer in longer
passages. In passages with more than :data:`MAX_DELETED_UNITS` units, all units are knocked out, but
only the most important ones are deleted. The loss of the other deletions counts as 0.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.input_erasure import predict_without_units
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.protocol import (
    ALL,
    AnswersFromPassage,
    Observation,
    Site,
)


WHOLE_MODEL = Site(ALL, ALL)
"""Site that contains all heads in all layers."""
RENORMALISED_KNOCKOUT = "renormalised"
"""Name of the knockout that blocks the attention to a unit and then renormalises the remaining
weights, so that they sum to 1 again."""
MAX_DELETED_UNITS = 16
"""Largest number of units per passage (such as sentences) that are deleted one by one. It limits
the run time."""
MIN_SHARE_OF_LARGEST_LOSS = 0.1
"""Smallest share of the largest loss in a passage at which a unit counts as important. The loss is
measured by deleting the unit."""
N_UNITS_BY_ATTENTION = 5
"""Number of units in a long passage that are selected for deletion by their attention. All other
units are selected by the loss when the attention to them is blocked."""


def covers_all_heads(observation: Observation, site: Site) -> bool:
    """Return whether a site contains all heads in the model.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
    """
    heads_by_layer = observation.model.get_heads_by_layer(site)
    return sum(map(len, heads_by_layer.values())) == len(observation.model.sites())


def compute_log_prob(observation: Observation) -> Tensor:
    """Return the answer's log-probability given the whole prompt, ``[batch]``.

    Args:
        observation: Model outputs and attention for a batch.
    """
    model = observation.model.require(AnswersFromPassage)
    return model.compute_log_prob(observation, observation.probs)


def compute_answer_losses(observation: Observation, probs: Tensor) -> Tensor:
    """Return how much the answer's log-probability falls for changed prompts, in nats.

    Args:
        observation: Model outputs for the original prompts.
        probs: Probabilities for changed prompts, ``[..., batch, entries]``.

    Returns:
        Losses ``[..., batch]``.
    """
    model = observation.model.require(AnswersFromPassage)
    return compute_log_prob(observation) - model.compute_log_prob(observation, probs)


def measure_losses_without(
    observation: Observation, sets: Tensor, *, operator: str = "deletion"
) -> Tensor:
    """Measure how much the answer's log-probability falls when each set of units is deleted.

    Args:
        observation: Model outputs and attention for a batch.
        sets: Units to be deleted, bool ``[sets, batch, keys]``.
        operator: Positions of the remaining tokens. With "deletion", they move up to close the gap.
            With "gap", they keep their positions.

    Returns:
        Losses ``[sets, batch]`` in nats.
    """
    probs = predict_without_units(observation, operator, sets)
    return compute_answer_losses(observation, probs)


# --- Deletion --------------------------------------------------------------------------------


def measure_deletion_effects(observation: Observation) -> Tensor:
    """Measure how much the answer's log-probability falls when each unit is deleted alone.

    Args:
        observation: Model outputs and attention for a batch.

    Returns:
        Losses ``[batch, keys]`` in nats; 0 outside the passage and for units that are not deleted.
    """

    def compute() -> Tensor:
        deleted_units = select_deleted_units(observation)
        measure_losses = partial(measure_losses_without, observation)
        return _measure_single_units(deleted_units, measure_losses)

    return observation.remember("deletion effects", compute)


def measure_contrast_effects(observation: Observation) -> Tensor:
    """Measure how much each unit of the passage favours the answer over an alternative answer.

    The margin is the answer's log-probability minus the alternative answer's log-probability. Each
    unit is deleted alone, and its effect is the fall in the margin.

    Args:
        observation: Model outputs for a batch with an alternative answer.

    Returns:
        Losses ``[batch, keys]`` in nats; 0 outside the passage, NaN in prompts without an
        alternative answer.
    """
    model = observation.model.require(AnswersFromPassage)
    original_contrast = model.compute_contrast(observation, observation.probs)

    def measure_losses(sets: Tensor) -> Tensor:
        probs = predict_without_units(observation, "deletion", sets)
        return original_contrast - model.compute_contrast(observation, probs)

    return _measure_single_units(select_deleted_units(observation), measure_losses)


def select_deleted_units(observation: Observation) -> Tensor:
    """Select the units of each passage whose effect is measured by deletion.

    In short passages, these are all units. In long passages, they are the five units with the most
    attention, and the units with the largest losses when the attention to them is blocked (a
    knockout). A knockout is only a rough estimate, but much faster.

    Args:
        observation: Model outputs and attention for a batch.

    Returns:
        Selected units, bool ``[batch, keys]``.
    """
    content = observation.batch.content_mask
    if int(content.sum(-1).max()) <= MAX_DELETED_UNITS:
        return content
    is_short = content.sum(-1, keepdim=True) <= MAX_DELETED_UNITS
    attention = observation.read(WHOLE_MODEL)
    selected_by_attention = _select_largest(attention, content, N_UNITS_BY_ATTENTION)
    losses, _ = measure_knockouts(observation, WHOLE_MODEL, RENORMALISED_KNOCKOUT)
    remaining_units = content & ~selected_by_attention
    n_by_knockout = MAX_DELETED_UNITS - N_UNITS_BY_ATTENTION
    selected_by_knockout = _select_largest(losses, remaining_units, n_by_knockout)
    return content & (is_short | selected_by_attention | selected_by_knockout)


def _select_largest(scores: Tensor, candidates: Tensor, n_units: int) -> Tensor:
    """Return a mask for the candidates with the largest scores, bool ``[batch, keys]``."""
    candidate_scores = scores.masked_fill(~candidates, -torch.inf)
    positions = candidate_scores.topk(min(n_units, candidates.shape[-1])).indices
    return torch.zeros_like(candidates).scatter(-1, positions, True) & candidates


def find_units_that_matter(observation: Observation, least_effect: float) -> Tensor:
    """Return the units whose deletion clearly lowers the answer's probability, ``[batch, keys]``.

    The loss must be larger than the measurement noise, see :func:`measure_position_noise`, and at
    least as large as the noise floor of the model, which is the rounding of its number format.

    Args:
        observation: Model outputs and attention for a batch.
        least_effect: Smallest loss, in nats, that counts. The loss must also be at least a tenth of
            the largest loss in the passage.
    """
    effects = measure_deletion_effects(observation)
    least_effect = max(least_effect, observation.model.noise_floor)
    noise = measure_position_noise(observation, least_effect)
    # The noise is NaN for units whose loss is too small, and this comparison is then false.
    return effects > noise


def measure_position_noise(observation: Observation, least_effect: float) -> Tensor:
    """Measure how much of each unit's loss may be due to later tokens moving up.

    Each unit is deleted in two ways: the remaining tokens move up to close the gap, or they keep
    their positions. The noise is the absolute difference between the two losses.

    Args:
        observation: Model outputs and attention for a batch.
        least_effect: Smallest loss, in nats, for which the noise is measured. The loss must also be
            at least a tenth of the largest loss in the passage.

    Returns:
        Noise in nats, ``[batch, keys]``; NaN for other keys and for units with smaller losses.
    """

    def compute() -> Tensor:
        effects = measure_deletion_effects(observation)
        largest_effect = effects.amax(-1, keepdim=True)
        threshold = (MIN_SHARE_OF_LARGEST_LOSS * largest_effect).clamp_min(max(least_effect, 1e-12))
        candidates = observation.batch.content_mask & (effects >= threshold)
        measure_losses_with_gap = partial(measure_losses_without, observation, operator="gap")
        effects_with_gap = _measure_single_units(candidates, measure_losses_with_gap)
        noise = (effects - effects_with_gap).abs()
        return noise.masked_fill(~candidates, torch.nan)

    return observation.remember(("position noise", least_effect), compute)


def _measure_single_units(units: Tensor, measure_losses: Callable[[Tensor], Tensor]) -> Tensor:
    """Measure the loss when each unit is removed alone.

    Args:
        units: Units to be removed, bool ``[batch, keys]``.
        measure_losses: Function that takes sets of removed units, bool ``[sets, batch, keys]``, and
            returns the losses ``[sets, batch]``.

    Returns:
        Losses ``[batch, keys]``; 0 for units that are not measured.
    """
    effects = torch.zeros(units.shape, dtype=torch.float64, device=units.device)
    # Only keys that are a unit in at least one text of the batch are measured.
    positions = units.any(0).nonzero()[:, 0]
    if len(positions):
        # Row i of the identity matrix is a mask that only contains key i.
        single_units = torch.eye(units.shape[-1], dtype=torch.bool, device=units.device)[positions]
        effects[:, positions] = measure_losses(single_units[:, None] & units).T
    return effects.masked_fill(~units, 0)


# --- Knockout --------------------------------------------------------------------------------


def measure_knockouts(observation: Observation, site: Site, operator: str) -> tuple[Tensor, Tensor]:
    """Block the attention to each unit alone, and measure the effect on the answer.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group in which the attention is blocked.
        operator: Where the blocked attention goes, one of
            :data:`~hf_attnprobe.protocol.KNOCKOUTS`.

    Returns:
        Fall in the answer's log-probability in nats, and output change as a total variation
        distance. Each is ``[batch, keys]`` and 0 outside the passage.
    """

    def compute() -> tuple[Tensor, Tensor]:
        content = observation.batch.content_mask
        is_unit = content.any(0)
        # Row i of the identity matrix is a mask that only contains key i.
        single_units = torch.eye(content.shape[-1], dtype=torch.bool, device=content.device)
        # [units, batch, keys]
        blocked = single_units[is_unit, None] & content
        probs = _predict_knocked_out(observation, site, blocked, operator)

        def expand_to_keys(unit_values: Tensor) -> Tensor:
            values = torch.zeros(content.shape, dtype=unit_values.dtype, device=unit_values.device)
            values[:, is_unit] = unit_values.T
            return values.masked_fill(~content, 0)

        losses = compute_answer_losses(observation, probs)
        output_changes = tvd(probs, observation.probs)
        return expand_to_keys(losses), expand_to_keys(output_changes)

    return observation.remember(("knocked out", site, operator), compute)


def _predict_knocked_out(
    observation: Observation, site: Site, blocked: Tensor, operator: str
) -> Tensor:
    """Return the probabilities if a site's attention to some units is blocked.

    The attention is blocked in every query row, or only in row ``site.query``.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        blocked: Units to which attention is blocked, bool ``[copies, batch, keys]``.
        operator: Redistribution rule for the blocked attention.
    """
    model = observation.model.require(AnswersFromPassage)
    attention_masks = {}
    for layer, heads in observation.model.get_heads_by_layer(site).items():
        attention = observation.attention[layer]
        n_heads, n_rows = attention.shape[1], attention.shape[2]
        edits_whole_layer = len(heads) == n_heads and site.query is None
        # A mask that is equal for all heads and rows is broadcast, which saves memory.
        mask_shape = (1, 1) if edits_whole_layer else (n_heads, n_rows)
        edited_heads = slice(None) if edits_whole_layer else heads
        edited_rows = slice(None) if site.query is None else slice(site.query, site.query + 1)
        mask = torch.ones(
            *blocked.shape[:2],
            *mask_shape,
            blocked.shape[-1],
            dtype=attention.dtype,
            device=blocked.device,
        )
        mask[:, :, edited_heads, edited_rows] = (~blocked[:, :, None, None]).to(attention.dtype)
        attention_masks[layer] = mask
    return model.replay_masked(observation, attention_masks, operator=operator)
