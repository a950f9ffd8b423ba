"""Test ``shapley``: does attention rank tokens by their value over all token sets?

Shapley 1953; limits of rankings: Edin et al. 2025; interactions: Grabisch & Roubens 1999.

Question
    Leave-one-out misses evidence that two tokens carry only together, or that each of them carries
    alone. Do tokens with more attention matter more over all token sets?

Measure
    Every set of units is removed from the text once (4,096 sets for 12 units). Removed units are
    deleted, masked, or lose their attention weights. The outputs determine exactly

    - Shapley values: the mean loss when a unit is removed, over all removal orders;
    - the area under each ranking's removal curve, and its limits over all orders (NAOPC);
    - the interaction between any two units;
    - the smallest set whose removal flips the decision;
    - the smallest set that preserves the decision if all other units are removed.

Longer texts
    Shapley values are means over random removal orders, with 95% confidence intervals, and
    statistics that need all sets are NaN. Alternatively, neighbouring units form phrases that are
    removed as a whole. A phrase gets the rank of its highest-ranked unit.

Compared rankings
    Attention, attention × gradient, |gradient × input|, leave-one-out, and a random ranking. Head
    groups have the maps of ``input_erasure``.

Explained class
    As in ``input_erasure``. Values are signed: units that support the prediction have the largest
    values.

Interpretation
    1 is the order of the Shapley values, 0 is chance. Shapley values are one of several ways to
    divide an effect fairly, and the model reads texts that differ from its training data. The
    removal operator should be reported with the numbers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.erasure import predict_without_weights
from hf_attnprobe.faithfulness.input_erasure import (
    compute_losses,
    predict_without_units,
    rank_by_site,
)
from hf_attnprobe.faithfulness.options import Shapley
from hf_attnprobe.faithfulness.rankings import (
    compute_ranking,
    is_ranking_available,
    list_text_rankings,
    rank_scores,
)
from hf_attnprobe.faithfulness.registry import (
    AuditPreview,
    register_test,
)
from hf_attnprobe.functional import aopc, attribution
from hf_attnprobe.functional.erasure import compute_removal_rank, replace_unflipped_counts
from hf_attnprobe.functional.intervention import draw_permutations
from hf_attnprobe.functional.rank import (
    gini_correlation,
    kendall_tau_b,
    r_precision,
    select_heaviest,
)
from hf_attnprobe.protocol import EditableInputs, Observation, Site


SHAPLEY_SEED_OFFSET = 1 << 42
"""Number that is added to the seed for random removal orders. Otherwise, these orders would equal
the random orders in other tests."""
SMALLEST_SET_KEY = "smallest"
"""Key for the size of the smallest set of units that flips the decision. The other keys in the same
dictionary are names of rankings."""

READINGS: TestReadings = {
    "shapley_tau": (
        "{key} and Shapley values rank the units with a rank correlation of {mean:.2f} (1 is the "
        "same order)"
    ),
    "shapley_agreement": (
        "the order of {key} agrees with the Shapley values with a Gini correlation of {mean:.2f} (1 "
        "is the best order, 0 chance)"
    ),
    "shapley_precision": (
        "{mean:.2f} of the units that carry half of the support for the prediction are among "
        "equally many units that {key} ranks first"
    ),
    "comprehensiveness": (
        "when units are removed in the order of {key}, {prediction} loses {mean:.3f} "
        "{amount}{aside} (mean over every step)"
    ),
    "sufficiency": (
        "when units are removed in the reverse order of {key}, {prediction} loses {mean:.3f} "
        "{amount}{aside} (mean over every step)"
    ),
    "naopc_comprehensiveness": (
        "removing units in the order of {key} scores {mean:.2f} on the scale from the order with "
        "the smallest loss (0) to the one with the largest (1)"
    ),
    "naopc_sufficiency": (
        "removing units in the reverse order of {key} scores {mean:.2f} on the scale from the "
        "order with the smallest loss (0) to the one with the largest (1)"
    ),
    "lowest_area": (
        "in the order with the smallest loss, {prediction} loses {mean:.3f} {amount}{aside} (mean "
        "over every step)"
    ),
    "highest_area": (
        "in the order with the largest loss, {prediction} loses {mean:.3f} {amount}{aside} (mean "
        "over every step)"
    ),
    "largest_value": "the largest absolute Shapley value of a text is {mean:.3f}",
    "largest_interaction": "the largest absolute interaction of two units is {mean:.3f}",
    "necessary_units": (
        "in the order of {key}, {decision} flips when {mean:.1f} units have been removed (texts "
        "that some set flips; an order that never flips counts as all units)"
    ),
    "no_necessary_set": make_share_reading(
        "in {mean:.0%} of texts no set of units flips {decision}"
    ),
    "sufficient_units": (
        "in the order of {key}, the first {mean:.1f} units alone preserve {decision}"
    ),
    "half_width": (
        "Shapley values from random orders are accurate to ±{mean:.3f} (half of the 95% confidence "
        "interval, mean over the units of longer texts)"
    ),
    "is_exact": make_share_reading("in {mean:.0%} of texts all sets of units were removed"),
}


@dataclass(frozen=True)
class ShapleyResult:
    """Statistics from the test ``shapley``: tensors ``[batch]``, or mappings to them by ranking.

    Statistics that need all sets of units are NaN in texts of which only random orders were removed.
    Losses are differences of probabilities, in [−1, 1].

    Attributes:
        shapley_tau: Kendall's τ-b with the Shapley values in [−1, 1]. NaN in one-unit texts.
        shapley_agreement: Gini correlation with the Shapley values in [−1, 1]. NaN in one-unit
            texts.
        shapley_precision: Precision in [0, 1] against the units that carry half of the positive
            Shapley values. NaN if no value is positive.
        comprehensiveness: Mean loss over all steps, in ranking order.
        sufficiency: Mean loss over all steps, in the reverse order.
        naopc_comprehensiveness: ``comprehensiveness`` between ``lowest_area`` (0) and
            ``highest_area`` (1).
        naopc_sufficiency: ``sufficiency`` on the same scale.
        lowest_area: Smallest mean loss over all orders.
        highest_area: Largest mean loss over all orders.
        largest_value: Largest absolute Shapley value.
        largest_interaction: Largest absolute interaction of two units. NaN in one-unit texts.
        half_width: Half-width of the 95% confidence interval for a Shapley value, averaged over the
            units. NaN in texts with exact values.
        is_exact: 1 if all sets of units were removed, else 0.
        necessary_units: Number of units that have been removed when the decision flips;
            ``smallest`` is the smallest set's size. NaN if no set flips the decision. Like the next
            two statistics, it is empty for models that make no decisions.
        no_necessary_set: 1 if no set of units flips the decision, else 0.
        sufficient_units: Number of top units that preserve the decision alone; ``smallest`` is the
            smallest set's size. 0 if the decision is the same without any unit.
    """

    shapley_tau: Mapping[str, Tensor]
    shapley_agreement: Mapping[str, Tensor]
    shapley_precision: Mapping[str, Tensor]
    comprehensiveness: Mapping[str, Tensor]
    sufficiency: Mapping[str, Tensor]
    naopc_comprehensiveness: Mapping[str, Tensor]
    naopc_sufficiency: Mapping[str, Tensor]
    lowest_area: Tensor
    highest_area: Tensor
    largest_value: Tensor
    largest_interaction: Tensor
    half_width: Tensor
    is_exact: Tensor
    necessary_units: Mapping[str, Tensor] = field(default_factory=dict)
    no_necessary_set: Tensor | None = None
    sufficient_units: Mapping[str, Tensor] = field(default_factory=dict)


def _check_erasable(preview: AuditPreview, options: Shapley) -> None:
    """Check that the model can read a text that consists only of special tokens."""
    game = _RemovalGame(preview.shortest_text, preview.sites[0], options)
    game.measure_removals(game.has_unit[None])


@register_test(
    readings=READINGS,
    summary="removes all sets of a text's tokens and compares their values with attention",
    needs=(EditableInputs,),
    default="on request",
    groups=True,
    check=_check_erasable,
)
@torch.no_grad()
def shapley(
    observation: Observation,
    site: Site,
    options: Shapley = Shapley(),
    *,
    seed: int = 0,
) -> ShapleyResult:
    """Compare rankings with exact Shapley values and with the limits over all orders.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is ranked.
        options: Explained class, removal operator, and treatment of long texts.
        seed: Seed for the random ranking and the random orders.

    Returns:
        Statistics per text.
    """
    game = _RemovalGame(observation.with_target(options.target), site, options)
    ranks_by_name = game.compute_rankings(seed)
    losses, flips = game.measure_every_set()
    shapley_values, half_width = game.compute_values(losses, seed)
    has_unit = game.has_unit
    value_ranks = rank_scores("shapley", shapley_values, has_unit)
    supporting_units = select_heaviest(shapley_values.clamp_min(0), has_unit)
    # There are 2^units sets for the longest exact text, so this is its unit count.
    n_exact_units = len(losses).bit_length() - 1
    all_ranks = torch.stack([*ranks_by_name.values()])
    places = compute_removal_rank(all_ranks, has_unit)[..., :n_exact_units]
    return ShapleyResult(
        shapley_tau={
            name: kendall_tau_b(ranks, value_ranks, has_unit).tau
            for name, ranks in ranks_by_name.items()
        },
        shapley_agreement={
            name: gini_correlation(shapley_values, ranks, has_unit)
            for name, ranks in ranks_by_name.items()
        },
        shapley_precision={
            name: r_precision(ranks, supporting_units, has_unit)
            for name, ranks in ranks_by_name.items()
        },
        largest_value=shapley_values.abs().amax(-1),
        half_width=half_width,
        is_exact=game.is_exact.double(),
        **_compare_with_all_orders(game, losses, ranks_by_name, places),
        **_compare_with_smallest_sets(game, flips, ranks_by_name, places),
    )


class _RemovalGame:
    """Cooperative game with a text's units as players.

    The value of a set of units is the drop in the predicted probability when it is removed. In a long
    text, neighbouring tokens can form one unit, a phrase.

    Attributes:
        n_units: Unit counts, int ``[batch]``.
        has_unit: Mask that separates units from padding, bool ``[batch, units]``.
        unit_index: Index of the unit to which each key belongs, int ``[batch, keys]``.
        is_exact: Whether a text is short enough to remove all sets of units, bool ``[batch]``.
    """

    def __init__(self, observation: Observation, site: Site, options: Shapley):
        self.observation = observation
        self.site = site
        self.options = options
        self.content = observation.batch.content_mask
        n_tokens = self.content.sum(-1)
        max_units = options.exact_units if options.longer == "phrases" else int(n_tokens.max())
        self.n_units = n_tokens.clamp(max=max_units)
        n_units = self.n_units[:, None]
        token_index = (self.content.cumsum(-1) - 1).clamp_min(0)
        self.unit_index = token_index * n_units // n_tokens[:, None]
        units = torch.arange(int(n_units.max()), device=token_index.device)
        self.has_unit = units < n_units
        self.is_exact = self.n_units <= options.exact_units

    def compute_rankings(self, seed: int) -> dict[str, Tensor]:
        """Rank the units of each text by attention and by other importance scores.

        If a unit is a phrase, it gets the rank of its highest-ranked token.

        Args:
            seed: Seed for the random ranking.

        Returns:
            Ranks ``[batch, units]`` by ranking name.
        """
        ranks_by_name = rank_by_site(self.observation, self.site)
        for name in list_text_rankings(self.observation):
            if is_ranking_available(self.observation, self.site, name):
                ranks_by_name[name] = compute_ranking(self.observation, self.site, name, seed=seed)
        # The rank -1 marks tokens and units that are not ranked.
        lowest_ranks = torch.full(self.has_unit.shape, -1, device=self.has_unit.device)
        unit_ranks_by_name = {}
        for name, ranks in ranks_by_name.items():
            token_ranks = ranks.masked_fill(~self.content, -1)
            # For each unit, the largest rank of its tokens.
            unit_ranks_by_name[name] = lowest_ranks.to(ranks).scatter_reduce(
                1, self.unit_index, token_ranks, "amax"
            )
        return unit_ranks_by_name

    def measure_removals(self, sets: Tensor) -> tuple[Tensor, Tensor]:
        """Remove sets of units from the texts and measure the effect on the prediction.

        Args:
            sets: Units in each set, bool ``[sets, batch, units]``.

        Returns:
            Drop in the predicted probability, and whether the decision flips, each
            ``[sets, batch]``.
        """
        # A token is removed if its unit is in the set.
        unit_index = self.unit_index.expand(len(sets), -1, -1)
        removed = sets.gather(-1, unit_index) & self.content
        if self.options.by == "attention":
            # A set can contain all units of a text, so all weights may be 0.
            probs = predict_without_weights(self.observation, self.site, removed, all_zero=True)
        else:
            probs = predict_without_units(self.observation, self.options.by, removed)
        losses = compute_losses(self.observation, probs).double()
        flips = self.observation.find_flips(probs) == 1
        return losses, flips

    def measure_every_set(self) -> tuple[Tensor, Tensor]:
        """Remove every possible set of units from the short texts, and measure the effects.

        A text with n units has 2ⁿ sets. No unit is removed from texts that are too long for this.

        Returns:
            Losses and flips as in :meth:`measure_removals`, each ``[2^units, batch]``.
        """

        def compute() -> tuple[Tensor, Tensor]:
            n_exact = self.n_units.where(self.is_exact, 0)
            max_units = max(1, int(n_exact.max()))
            has_unit = self.has_unit & self.is_exact[:, None]
            has_unit = has_unit[:, :max_units]
            subsets = aopc.enumerate_subsets(max_units).to(has_unit.device)
            sets = subsets[:, None] & has_unit
            # The units that only longer texts have are never removed.
            n_further_units = self.has_unit.shape[1] - max_units
            sets = torch.nn.functional.pad(sets, (0, n_further_units))
            return self.measure_removals(sets)

        # Removing attention weights depends on the site, so its results are not cached.
        if self.options.by == "attention":
            return compute()
        key = "every set", self.options, self.observation.explained_class
        return self.observation.remember(key, compute)

    def compute_values(self, losses: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Compute the Shapley value of each unit: its mean contribution to the prediction.

        In short texts, the values are exact. In texts with too many units, they are means over
        random removal orders and have a confidence interval.

        Args:
            losses: Losses for all sets in the short texts, ``[2^units, batch]``.
            seed: Seed for the random orders.

        Returns:
            Values ``[batch, units]``, and the mean half-width of their 95% confidence intervals,
            ``[batch]``; NaN for exact values.
        """
        exact_values = attribution.shapley_values(losses)
        n_missing = self.has_unit.shape[1] - exact_values.shape[1]
        exact_values = torch.nn.functional.pad(exact_values, (0, n_missing))
        if self.is_exact.all():
            undefined = torch.full_like(exact_values[:, 0], torch.nan)
            return exact_values, undefined
        is_sampled = self.has_unit & ~self.is_exact[:, None]
        gains = self._measure_gains(is_sampled, seed)
        sampled_values, standard_errors = attribution.average_over_orders(gains)
        # Student's t distribution with n - 1 degrees of freedom, for a two-sided 95% interval.
        critical_value = float(stdtrit(len(gains) - 1, 0.975))
        total_error = (standard_errors * is_sampled).sum(-1)
        half_width = critical_value * total_error / is_sampled.sum(-1)
        return torch.where(is_sampled, sampled_values, exact_values), half_width

    def _measure_gains(self, is_sampled: Tensor, seed: int) -> Tensor:
        """Measure how much the removal of each unit increases the loss, in random removal orders.

        Args:
            is_sampled: Units in the longer texts, bool ``[batch, units]``.
            seed: Seed for the random orders.

        Returns:
            Additional losses ``[orders, batch, units]``.
        """
        # draw_permutations works on [batch, queries, keys]. An axis with a single query is added
        # here, and removed from the result.
        places = draw_permutations(
            is_sampled[:, None],
            self.options.n_orders,
            seed=seed + SHAPLEY_SEED_OFFSET,
            example_ids=self.observation.batch.example_ids,
        ).squeeze(2)
        # At step k, the first k units in each order are removed, [steps, orders, batch, units].
        n_steps = is_sampled.shape[1] + 1
        steps = torch.arange(n_steps, device=is_sampled.device)[:, None, None, None]
        removed = (places < steps) & is_sampled
        losses, _ = self.measure_removals(removed.flatten(0, 1))
        # A unit's gain is the loss after its removal minus the loss before it.
        # [steps, orders, batch]
        step_gains = losses.unflatten(0, removed.shape[:2]).diff(dim=0)
        # [units, orders, batch]
        unit_places = places.movedim(-1, 0)
        unit_gains = step_gains.gather(0, unit_places)
        return unit_gains.movedim(0, -1)

    def mask_inexact(self, values: Tensor) -> Tensor:
        """Set values to NaN in the texts that are too long to test every set of units.

        Args:
            values: Values ``[..., batch]``.
        """
        return values.double().masked_fill(~self.is_exact, torch.nan)


def _compare_with_all_orders(
    game: _RemovalGame, losses: Tensor, names: Collection[str], places: Tensor
) -> dict[str, Any]:
    """Compute the areas under the removal curves, their limits, and the interactions.

    Args:
        game: Units and removals for the batch.
        losses: Losses for all sets, ``[2^units, batch]``.
        names: Ranking names.
        places: Place of each unit in the ranking, from 0 for the unit that is removed first,
            int ``[rankings, batch, units]``.
    """
    n_units = game.n_units.where(game.is_exact, 1)
    lower, upper = aopc.compute_aopc_bounds(losses, n_units)
    reversed_places = n_units[:, None] - 1 - places
    areas = {
        "comprehensiveness": game.mask_inexact(aopc.compute_aopc(losses, places, n_units)),
        "sufficiency": game.mask_inexact(aopc.compute_aopc(losses, reversed_places, n_units)),
    }
    normalised_areas = {
        f"naopc_{statistic}": aopc.normalise_aopc(values, lower, upper)
        for statistic, values in areas.items()
    }
    by_ranking = {
        statistic: dict(zip(names, values, strict=True))
        for statistic, values in (areas | normalised_areas).items()
    }
    interactions = attribution.shapley_interactions(losses).abs().amax((-2, -1))
    interactions = game.mask_inexact(interactions).masked_fill(game.n_units < 2, torch.nan)
    return by_ranking | {
        "lowest_area": game.mask_inexact(lower),
        "highest_area": game.mask_inexact(upper),
        "largest_interaction": interactions,
    }


def _compare_with_smallest_sets(
    game: _RemovalGame, flips: Tensor, names: Collection[str], places: Tensor
) -> dict[str, Any]:
    """Compare the rankings with the smallest sets that flip or preserve the decision.

    Args:
        game: Units and removals for the batch.
        flips: Whether the decision flips without each set, bool ``[2^units, batch]``.
        names: Ranking names.
        places: Place of each unit in the ranking, from 0 for the unit that is removed first,
            int ``[rankings, batch, units]``.

    Returns:
        Statistics by name; empty if the model makes no decisions.
    """
    if not game.observation.model.prediction.decides:
        return {}
    # Indices of the sets that contain the first units, [steps, rankings, batch].
    top_sets = aopc.list_removed_sets(places)
    complements = len(flips) - 1 - top_sets
    text = torch.arange(flips.shape[1], device=flips.device)
    flips_without_top = flips[top_sets, text]
    top_preserves = ~flips[complements, text]
    n_to_flip = flips_without_top.to(torch.int8).argmax(0).double()
    n_to_preserve = top_preserves.to(torch.int8).argmax(0).double()

    smallest_to_flip = attribution.find_smallest_set_size(flips)
    # In reversed order, each row belongs to the complement of the set: all units except the set are
    # removed.
    smallest_to_preserve = attribution.find_smallest_set_size(~flips.flip(0))
    can_flip = ~smallest_to_flip.isnan()
    n_to_flip = n_to_flip.masked_fill(~flips_without_top.any(0), torch.nan)
    n_to_flip = replace_unflipped_counts(n_to_flip, game.n_units, can_flip)

    def name_rankings(counts: Tensor, smallest: Tensor) -> dict[str, Tensor]:
        values = game.mask_inexact(torch.cat([counts, smallest[None]]))
        return dict(zip((*names, SMALLEST_SET_KEY), values, strict=True))

    return {
        "necessary_units": name_rankings(n_to_flip, smallest_to_flip),
        "sufficient_units": name_rankings(n_to_preserve, smallest_to_preserve),
        "no_necessary_set": game.mask_inexact(~can_flip),
    }
