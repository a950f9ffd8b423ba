"""Position of a ranking on the scale between a random order of the tokens (0) and the best one (1).

This module measures importance, removal and mass by deleting tokens. Reports prefer the same parts
by exchange (``faithfulness/exchange.py``), and use those by deletion if nothing can be exchanged.
A report's faithfulness number is the mean over four parts. The fourth, erasure, removes attention
weights instead of tokens and is measured in ``faithfulness/erasure.py``. ``statistics/scale.py``
converts the means over texts to positions on the scale and averages the parts.

Question
    Does this attention identify the tokens on which this prediction of this model depends?

Notation
    A text has tokens 1, ..., T. The ranking to be tested gives token i the score a_i, for example
    its attention. p(S) is the explained class's probability for the text without the tokens in S,
    and the loss of removing S is d(S) = p({}) - p(S). The loss of a single token is d_i = d({i})
    (leave-one-out). If the user chooses a class that the model did not predict for this text, all
    losses change sign.

Standard temperature
    All probabilities are computed after the logits have been multiplied by one factor per model.
    The factor makes the median probability of the predicted class .95, regardless of the number of
    classes. Otherwise the numbers would depend on how confident the model was trained to be. There
    is one factor for all texts: if some texts are confident and others are not, then the unsure
    texts contribute less, because their probabilities move less. Code:
    ``Observation.apply_standard_temperature``.

Importance
    Gini correlation between the ranking and the effect of leaving each token out::

        importance = sum_{i<j} (|d_i| - |d_j|) * sign(a_i - a_j) / sum_{i<j} | |d_i| - |d_j| |

    It is 1 for the best order and 0 on average for a random order. It is Kendall's tau with each
    token pair weighted by the difference in effect, so that the order among tokens without effect
    does not count. Jain & Wallace 2019, Section 4.1, compare attention with leave-one-out by the
    unweighted tau; the weighted form is due to Schechtman & Yitzhaki 1987. Code:
    :func:`measure_importance`.

Removal
    Mean loss without the k tokens that the ranking puts first::

        removal = mean of d(top-k tokens) for k = 1, 5, 10, 20 and 50% of T, rounded up

    This is the comprehensiveness of DeYoung et al. 2020, Section 4. Its position on the scale is
    (removal - random) / (best - random), as in the normalisation by Edin et al. 2025. ``random`` is
    the removal of a random order. ``best`` is the largest removal among all rankings, the
    leave-one-out order, a greedy order, and, for texts with up to ``exact_units`` units, all T!
    orders. Code: :func:`measure_removal`, :func:`_find_greedy_turns`, :func:`_measure_every_set`.

Mass
    Overlap of the scores with the effects, both as distributions over the tokens::

        mass = sum_i min(alpha_i, w_i)
        alpha_i = max(a_i, 0) / sum_j max(a_j, 0)
        w_i = max(v_i, 0) / sum_j max(v_j, 0)

    v_i is the Shapley value of token i in texts with up to ``exact_units`` units, and d_i in longer
    texts. The baseline ``mass_by_chance`` is the mean overlap over all assignments of the same
    scores to the tokens, and the position on the scale is (mass - chance) / (1 - chance). Mass is
    needed in addition to importance because an order alone cannot tell whether attention highlights
    ten tokens although only one of them matters. Code: :func:`measure_mass`.

Interpretation
    1 is the best that any explanation of this prediction could reach, 0 is a random order, and
    negative values are worse than random. Importance and mass are undefined (NaN) in a text in
    which no token changes the probability by more than rounding. ``largest_loss`` reports the
    effect of the most important token. For a class that is predicted by default, for example for
    the absence of all evidence, it can be close to 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.correlation import rank_with_ties
from hf_attnprobe.faithfulness.input_erasure import mark_top_units, predict_without_units
from hf_attnprobe.faithfulness.options import Scale
from hf_attnprobe.faithfulness.rankings import (
    FITTED_MAP_RANKING,
    GROUP_RANKINGS,
    TEXT_RANKINGS,
    USER_SCORE_RANKINGS,
    compute_importance,
    compute_ranking,
    is_ranking_available,
    is_whole_model,
    measure_top_positions,
)
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional import aopc
from hf_attnprobe.functional.attribution import shapley_values
from hf_attnprobe.functional.divergence import (
    distribution_overlap,
    expected_overlap,
    normalise_positive_part,
)
from hf_attnprobe.functional.erasure import compute_removal_rank
from hf_attnprobe.functional.rank import gini_correlation
from hf_attnprobe.protocol import EditableInputs, Observation, Site


EVALUATED_HEAD_RANKINGS = ("attention",)
"""Names of the rankings that are evaluated for a single head, if the model has several heads."""
EVALUATED_GROUP_RANKINGS = ("attention", "gradient", "product", *GROUP_RANKINGS)
"""Names of the rankings that are evaluated for a head group, and for the only head of a model."""
RANKINGS_WITHOUT_MASS = ("random", "leave_one_out")
"""Names of the rankings for which the statistic ``mass`` is not computed. A random order has no
scores, and leave-one-out scores equal the effects to which they would be compared."""
LOSS_TOLERANCE = 1e-6
"""Largest loss of probability that counts as a rounding error."""

READINGS: TestReadings = {
    "importance": (
        "the order of {key} agrees with the effect of leaving tokens out with a Gini correlation "
        "of {mean:.2f} (1 is the best order, 0 a random one)"
    ),
    "mass": "{key} and the effects of the tokens overlap by {mean:.0%} (as shares of the text)",
    "mass_by_chance": (
        "the weights of {key} on random tokens would overlap with the effects by {mean:.0%}"
    ),
    "removal": (
        "without the tokens that {key} ranks first, the prediction loses {mean:.2f} of "
        "probability at the standard temperature (mean of the top 1 to 50%)"
    ),
    "attended_position": make_share_reading(
        "attention ranks the {key} token first in {mean:.0%} of texts"
    ),
    "decisive_position": make_share_reading(
        "leaving out the {key} token changes the output most in {mean:.0%} of texts"
    ),
    "largest_loss": (
        "leaving out the most important token costs {mean:.2f} of probability at the standard "
        "temperature"
    ),
}


@dataclass(frozen=True)
class ScaleResult:
    """Statistics from the test ``scale``: tensors ``[batch]``, or mappings to them by ranking.

    All values are NaN in texts without a token.

    Attributes:
        importance: Gini correlation with the leave-one-out effects, in [-1, 1]. NaN if no token has
            an effect.
        mass: Overlap with the effects, in [0, 1]. NaN if no token has an effect.
        mass_by_chance: Mean overlap if the scores were assigned to the tokens at random, in [0, 1].
        removal: Mean probability loss without the top tokens, in [-1, 1]. It includes the entries
            ``random`` and ``best``; ``best`` is never smaller than any other entry.
        largest_loss: Probability loss without the most important token, in [-1, 1].
        attended_position: Whether attention ranks the first or the last token first, in [0, 1], by
            position. NaN in texts with one token; None unless the site contains all heads.
        decisive_position: The same for the token whose effect is largest. NaN if no token has an effect.
    """

    importance: Mapping[str, Tensor]
    mass: Mapping[str, Tensor]
    mass_by_chance: Mapping[str, Tensor]
    removal: Mapping[str, Tensor]
    largest_loss: Tensor
    attended_position: Mapping[str, Tensor] | None = None
    decisive_position: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    summary="measures where attention lies between a random order of the tokens and the best order",
    needs=(EditableInputs,),
    groups=True,
)
def scale(
    observation: Observation,
    site: Site,
    options: Scale = Scale(),
    *,
    seed: int = 0,
) -> ScaleResult:
    """Measure each ranking's importance, removal and mass at the standard temperature.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is ranked.
        options: Explained class and search for the best order.
        seed: Seed for the random ranking.

    Returns:
        Statistics per text and ranking.
    """
    observation = observation.with_target(options.target)
    content = observation.batch.content_mask
    losses = compute_leave_one_out_losses(observation)
    has_effect = losses.abs().masked_fill(~content, 0).amax(-1) > LOSS_TOLERANCE
    largest_loss = losses.masked_fill(~content, -torch.inf).amax(-1)
    largest_removal, token_values = _measure_every_set(observation, losses, options.exact_units)

    ranks_by_name = {
        name: compute_ranking(observation, site, name, seed=seed)
        for name in list_rankings(observation, site)
    }
    importance, mass, mass_by_chance = compare_with_effects(
        observation, site, ranks_by_name, losses, token_values, has_effect, seed
    )
    return ScaleResult(
        importance=importance,
        mass=mass,
        mass_by_chance=mass_by_chance,
        removal=_measure_removals(
            observation, ranks_by_name, losses, largest_removal, options.greedy_units
        ),
        largest_loss=largest_loss.masked_fill(~content.any(-1), torch.nan),
        **_measure_positions(observation, site, ranks_by_name["attention"], losses, has_effect),
    )


def _measure_positions(
    observation: Observation,
    site: Site,
    attention_ranks: Tensor,
    losses: Tensor,
    has_effect: Tensor,
) -> dict[str, dict[str, Tensor]]:
    """Measure at which positions the most attended and the most important token are.

    Returns:
        The statistics ``attended_position`` and ``decisive_position``; empty for single heads and layers.
    """
    if not is_whole_model(observation.model, site):
        return {}
    content = observation.batch.content_mask
    return {
        "attended_position": measure_top_positions(attention_ranks, content),
        "decisive_position": measure_decisive_positions(losses.abs(), content, has_effect),
    }


def measure_decisive_positions(
    losses: Tensor, content: Tensor, has_effect: Tensor
) -> dict[str, Tensor]:
    """Measure whether the first or the last token of each text is the most important one.

    Args:
        losses: Effects of the tokens, at least 0, ``[batch, keys]``.
        content: Boolean mask ``[batch, keys]`` for the explained tokens.
        has_effect: Whether any token of a text has an effect, bool ``[batch]``.

    Returns:
        Values in [0, 1], ``[batch]``, by position; NaN in texts without an effect.
    """
    largest_loss = losses.masked_fill(~content, 0).amax(-1, True)
    hits = measure_top_positions(rank_with_ties(losses, content, largest_loss), content)
    return {name: values.masked_fill(~has_effect, torch.nan) for name, values in hits.items()}


def compare_with_effects(
    observation: Observation,
    site: Site,
    ranks_by_name: Mapping[str, Tensor],
    losses: Tensor,
    token_values: Tensor,
    has_effect: Tensor,
    seed: int,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Compare rankings with the effects of the tokens: importance, mass, and mass by chance.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is ranked.
        ranks_by_name: Ranks ``[batch, keys]`` by ranking name.
        losses: Effects ``[batch, keys]`` with which importance compares the ranks.
        token_values: Effects ``[batch, keys]`` with which mass compares the scores.
        has_effect: Whether any token of a text has an effect, bool ``[batch]``. The results for
            other texts are NaN.
        seed: Seed for the random ranking.

    Returns:
        Importance, mass and mass by chance, each ``[batch]`` by ranking name. Mass is left out for
        :data:`RANKINGS_WITHOUT_MASS`.
    """
    content = observation.batch.content_mask
    importance, mass, mass_by_chance = {}, {}, {}
    for name, ranks in ranks_by_name.items():
        correlation = measure_importance(losses, ranks, content)
        importance[name] = correlation.masked_fill(~has_effect, torch.nan)
        if name in RANKINGS_WITHOUT_MASS:
            continue
        scores = compute_importance(observation, site, name, seed=seed)
        overlap, chance = measure_mass(scores, token_values, content)
        mass[name] = overlap.masked_fill(~has_effect, torch.nan)
        mass_by_chance[name] = chance.masked_fill(~has_effect, torch.nan)
    return importance, mass, mass_by_chance


def list_rankings(observation: Observation, site: Site) -> tuple[str, ...]:
    """List the rankings whose faithfulness is measured at a site.

    If the model has several heads, a single head contributes only the ranking by its attention.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
    """
    has_all_attention = site.is_group or len(observation.model.sites()) == 1
    site_rankings = EVALUATED_GROUP_RANKINGS if has_all_attention else EVALUATED_HEAD_RANKINGS
    candidates = (*site_rankings, FITTED_MAP_RANKING, *TEXT_RANKINGS, *USER_SCORE_RANKINGS)
    return tuple(name for name in candidates if is_ranking_available(observation, site, name))


def compute_leave_one_out_losses(observation: Observation) -> Tensor:
    """Compute how much the explained class's probability falls if each token is left out.

    The loss for token i is d_i = p(text) − p(text without token i). Both probabilities are computed
    at the standard temperature, so that losses can be compared between models. For texts in which
    the model does not predict the explained class, the sign is reversed.

    Args:
        observation: Model outputs and attention for a batch.

    Returns:
        Signed losses of probability ``[batch, keys]``; positive if the token supports the model's
        decision.
    """

    def compute() -> Tensor:
        probs_without_token = observation.leave_one_out.transpose(0, 1)
        return observation.compute_standard_losses(probs_without_token).transpose(0, 1)

    return observation.remember(("left out losses", observation.explained_class), compute)


def measure_importance(losses: Tensor, ranks: Tensor, content: Tensor) -> Tensor:
    """Compute the Gini correlation between a ranking and the size of the leave-one-out losses.

    It is 1 if the ranking orders all tokens by |d|, and −1 for the opposite order. The formula is
    sum_{i<j} (|d_i| - |d_j|) * sign(r_i - r_j) / sum_{i<j} | |d_i| - |d_j| |.

    Args:
        losses: Leave-one-out losses d ``[batch, keys]``. Their sign is ignored.
        ranks: Token ranks r ``[batch, keys]``, larger for more important tokens.
        content: Boolean mask ``[batch, keys]`` for the explained tokens.

    Returns:
        Correlations ``[batch]`` in [-1, 1].
    """
    return gini_correlation(losses.abs(), ranks, content)


def measure_mass(scores: Tensor, token_values: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the overlap of scores and effects, sum_i min(alpha_i, w_i), and its chance level.

    alpha and w are the scores and the effects, divided by their sum over the tokens.

    Args:
        scores: Scores a ``[batch, keys]``, such as attention weights, from which the shares alpha
            are computed. Negative scores count as 0.
        token_values: Effects v ``[batch, keys]`` (Shapley values or leave-one-out losses), from
            which the shares w are computed. Negative effects count as 0.
        content: Boolean mask ``[batch, keys]`` for the explained tokens.

    Returns:
        Overlap and mean overlap over all assignments of the scores to the tokens, each ``[batch]``
        in [0, 1].
    """
    score_shares = normalise_positive_part(scores, content)
    value_shares = normalise_positive_part(token_values, content)
    overlap = distribution_overlap(score_shares, value_shares)
    overlap_by_chance = expected_overlap(score_shares, value_shares, content)
    return overlap, overlap_by_chance


def measure_removal(observation: Observation, turns: Tensor) -> Tensor:
    """Measure the probability loss when the first tokens in each ranking are removed.

    The loss is averaged over five removals: of the first 1, 5, 10, 20 and 50% of the tokens.

    Args:
        observation: Model outputs and attention for a batch.
        turns: Place of each token in the order of removal, from 0 for the token that is removed
            first, int ``[rankings, batch, keys]``.

    Returns:
        Probability losses at the standard temperature, ``[rankings, batch]``.
    """
    removed = mark_top_units(observation, turns)
    probs = predict_without_units(observation, "deletion", removed.flatten(0, 1))
    losses = observation.compute_standard_losses(probs)
    return losses.unflatten(0, removed.shape[:2]).mean(0)


def _measure_removals(
    observation: Observation,
    ranks_by_name: Mapping[str, Tensor],
    losses: Tensor,
    largest_removal: Tensor,
    greedy_units: int,
) -> dict[str, Tensor]:
    """Measure the mean loss without the top tokens, for each ranking and the best known order.

    Args:
        observation: Model outputs and attention for a batch.
        ranks_by_name: Dense ranks ``[batch, keys]`` by ranking name.
        losses: Leave-one-out losses ``[batch, keys]``.
        largest_removal: Largest mean loss over all token orders, ``[batch]``; -inf in texts that
            are too long to try all orders.
        greedy_units: Longest text, in units, for which a greedy order is searched.
    """
    content = observation.batch.content_mask
    turns = [compute_removal_rank(ranks, content) for ranks in ranks_by_name.values()]
    turns.append(compute_removal_rank(losses, content))
    turns.append(_find_greedy_turns(observation, losses, greedy_units))
    removals = measure_removal(observation, torch.stack(turns))
    # The last two rows, leave-one-out and greedy, only contribute to the best order.
    removals_by_name = dict(zip(ranks_by_name, removals, strict=False))
    removals_by_name["best"] = torch.maximum(removals.amax(0), largest_removal)
    return removals_by_name


def _find_greedy_turns(observation: Observation, losses: Tensor, greedy_units: int) -> Tensor:
    """Return the greedy order, which removes the most important remaining token at each step.

    In texts with more than ``greedy_units`` units, and in texts that are short enough for exact
    bounds, the tokens are ordered by their leave-one-out losses instead. Only the first half of a
    text is searched, because :func:`measure_removal` never removes more.

    Args:
        observation: Model outputs and attention for a batch.
        losses: Leave-one-out losses ``[batch, keys]``.
        greedy_units: Longest text, in units, for which a greedy order is searched.

    Returns:
        Place of each token in the order of removal, from 0 for the token that is removed first,
        int ``[batch, keys]``.
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    is_searched = (n_units <= greedy_units) & (n_units > aopc.MAX_UNITS_OF_EXACT_BOUNDS)
    scores = losses.clone()
    removed = torch.zeros_like(content)
    single_tokens = torch.eye(content.shape[1], dtype=torch.bool, device=content.device)
    n_steps = 0
    if is_searched.any():
        n_removals = (n_units + 1) // 2
        n_steps = int(n_removals[is_searched].max())

    for step in range(n_steps):
        candidates = content & ~removed & is_searched[:, None]
        sets = (removed | single_tokens[:, None]) & candidates.any(-1, keepdim=True)
        probs = predict_without_units(observation, "deletion", sets)
        set_losses = observation.compute_standard_losses(probs).T
        best_token = set_losses.masked_fill(~candidates, -torch.inf).argmax(-1, keepdim=True)
        is_removed_now = torch.zeros_like(removed).scatter(1, best_token, True) & candidates
        # Losses are at most 1, so that greedily removed tokens precede all remaining tokens.
        greedy_score = n_steps - step + 1.0
        scores = torch.where(is_removed_now, greedy_score, scores)
        removed |= is_removed_now
    return compute_removal_rank(scores, content)


def _measure_every_set(
    observation: Observation, losses: Tensor, exact_units: int
) -> tuple[Tensor, Tensor]:
    """Return the largest mean loss that any removal order reaches, and each token's effect.

    In texts with at most ``exact_units`` units, every token set is removed, and the effects are
    Shapley values. In longer texts, the largest removal is -inf (unknown), and the effects are
    leave-one-out losses.

    Args:
        observation: Model outputs and attention for a batch.
        losses: Leave-one-out losses ``[batch, keys]``.
        exact_units: Longest text, in units, in which all token sets are removed.

    Returns:
        Largest removal ``[batch]`` and Shapley values or losses ``[batch, keys]``.
    """

    def compute() -> tuple[Tensor, Tensor]:
        content = observation.batch.content_mask
        is_short = content.sum(-1) <= exact_units
        n_units = content.sum(-1).where(is_short, 0)
        unknown = torch.full_like(losses[:, 0], -torch.inf)
        if not (n_units > 0).any():
            return unknown, losses
        short_content = content & is_short[:, None]
        positions = aopc.list_unit_positions(short_content)
        sets = aopc.enumerate_unit_sets(short_content)
        probs = predict_without_units(observation, "deletion", sets)
        set_losses = observation.compute_standard_losses(probs)
        step_weights = _compute_step_weights(n_units)
        _, largest = aopc.compute_aopc_bounds(set_losses, n_units, step_weights)
        values = torch.zeros_like(losses).scatter(1, positions, shapley_values(set_losses))
        is_exact = n_units > 0
        return largest.where(is_exact, unknown), values.where(is_exact[:, None], losses)

    key = (
        "every set at the standard temperature",
        exact_units,
        observation.explained_class,
    )
    return observation.remember(key, compute)


def _compute_step_weights(n_units: Tensor) -> Tensor:
    """Return how often each number of removed units occurs among the five removal steps.

    The five steps remove 1, 5, 10, 20 and 50% of the units, rounded up. In a text with 10 units,
    they remove 1, 1, 1, 2 and 5 units, so the share is 3/5 for 1 unit, 1/5 for 2 units and 1/5 for
    5 units.

    Args:
        n_units: Unit counts, int ``[batch]``.

    Returns:
        Shares ``[units + 1, batch]``, which sum to 1 over the first dimension.
    """
    possible_counts = torch.arange(int(n_units.max()) + 1, device=n_units.device)
    removal_counts = aopc.compute_removal_counts(n_units)
    is_count_of_step = removal_counts == possible_counts[:, None, None]
    return is_count_of_step.double().mean(1)
