"""Test ``sources``: does attention identify the unit of the passage on which the answer depends?

For language models that answer from a passage. The output is the log-probability of the whole
answer in nats. It does not saturate, so that no standard temperature is needed.

Question
    Does the answer depend on the passage? Is the unit with the most attention the one on which the
    answer depends? Are the other units ordered by their importance?

Measure
    contextual gain = log p(answer | passage) − log p(answer | no passage). The effect of a unit is
    log p(answer) − log p(answer | without the unit); the unit is deleted and the gap closed (exact
    leave-one-out; AttriBoT, Liu et al. 2024). In long passages, only the most important units are
    deleted, see ``passage_units.py``.

Source
    The source is the unit with the largest effect, if this effect is positive. ``source_found`` of
    a ranking is 1 if it puts the source first (precision@1). Baselines without attention are chance
    (1 / number of units) and the longest, the first and the last unit. ``source_place`` is the
    position of the source, from which reports compute how often the most common position is the
    source.

Order
    The order of the units by attention is compared with their order by effect. In Kendall's τ-b,
    all pairs of units count equally. In the Gini correlation, each pair is weighted by the
    difference in effect (see ``functional/rank.py``). Both are NaN in passages with 4 units or
    fewer.

Drop
    The top-k drop (ContextCite) is the loss of the answer, in nats, when the first k units of a
    ranking are deleted. It is averaged over k = 1, 3 and 5. A value k only counts in passages with
    at least 2k units.

    There are two baselines. One is the drop of random units, computed exactly for k = 1, and with
    one random draw per text for larger k. The other is the best drop: for each k, the largest drop
    of any ranking, including the order by effect.

Mass
    Overlap of attention with the positive effects, both as distributions over the units. The
    baseline is the mean overlap over all assignments of the weights to the units.

All sets, on request
    In short passages, every set of units is deleted. This gives exact Shapley values, and the smallest
    set without which greedy decoding generates another answer.

Random halves, on request
    Random halves of the units are deleted (64 halves in the paper). ContextCite fits a linear model
    (LASSO) to the answer's logit per token.

    Further random halves give the linear datamodeling score (LDS) of each ranking. It is the rank
    correlation between this logit and the sum of the remaining units' scores.

Compared rankings
    Attention, unit length, and deletion itself; for all heads together also the last layer's
    attention and a fitted map, see ``attnprobe audit --map``; user-provided scores, see ``attnprobe
    evaluate-scores``.

Interpretation
    If precision@1 is far above chance, length and position, attention finds the source. This does
    not imply that the source acts through attention, see ``knockout``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.correlation import rank_with_ties
from hf_attnprobe.faithfulness.input_erasure import predict_without_units
from hf_attnprobe.faithfulness.options import Sources
from hf_attnprobe.faithfulness.passage_units import (
    compute_answer_losses,
    compute_log_prob,
    covers_all_heads,
    measure_deletion_effects,
    measure_losses_without,
)
from hf_attnprobe.faithfulness.rankings import (
    FITTED_MAP_RANKING,
    USER_SCORE_RANKINGS,
    compute_importance,
    is_ranking_available,
    measure_top_positions,
    read_user_scores,
)
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional import aopc, attribution
from hf_attnprobe.functional.divergence import (
    distribution_overlap,
    expected_overlap,
    normalise_positive_part,
)
from hf_attnprobe.functional.erasure import compute_removal_rank
from hf_attnprobe.functional.intervention import create_random_generator, draw_permutation
from hf_attnprobe.functional.rank import (
    gini_correlation,
    kendall_tau_b_matrix,
    top_overlap,
)
from hf_attnprobe.protocol import (
    ALL,
    AnswersFromPassage,
    EditableInputs,
    Observation,
    Site,
)


TOP_COUNTS = (1, 3, 5)
"""Numbers of top-ranked units that are deleted from a passage. For example, 3 means that the first
three units are deleted together."""
ORDER_ONLY_RANKINGS = ("length", "first", "last")
"""Names of the rankings by length or position. They order the units of a passage, but do not assign
scores to them."""
RANKINGS_COMPARED_BY_SOURCE = ("first", "last", "deletion")
"""Names of the rankings for which only one result is reported: how often their first unit is the
source of the answer. All other rankings are also compared unit by unit with the deletion effects."""
RANKINGS_WITHOUT_DROP = ("length", "first", "last", "last layer")
"""Names of the rankings whose first units are never deleted together. For all other rankings, this
shows how much the answer's log-probability falls without the first k units (the top-k drop)."""
MAX_UNITS_OF_SHORT_PASSAGE = 4
"""Largest number of units in a passage that is too short for a rank correlation. Two orders of so
few units often agree by chance."""
CONTEXTCITE_STREAM = 5
"""Index of the random number stream that draws the random halves of a passage to which ContextCite
is fitted."""
LDS_STREAM = 6
"""Index of the random number stream that draws the random halves of a passage for the linear
datamodeling score (LDS)."""
RANDOM_ORDER_STREAM = 7
"""Index of the random number stream that shuffles the units of a passage. The random order is the
baseline for the top-k drop."""
READINGS: TestReadings = {
    "contextual_gain": "with the passage the answer gains {mean:.2f} nats of log-probability",
    "answer_is_greedy": make_share_reading(
        "greedy decoding generates the answer in {mean:.0%} of texts"
    ),
    "passage_share": "the passage receives {mean:.2f} of the attention",
    "sink_share": "the attention sink receives {mean:.2f} of the attention",
    "source_found": make_share_reading(
        "the unit that {key} ranks first is the one whose deletion costs the answer most in "
        "{mean:.0%} of texts"
    ),
    "source_agreement": (
        "the order of {key} agrees with the losses by deletion with a Gini correlation of "
        "{mean:.2f} (1 is the best order, 0 chance)"
    ),
    "source_tau": "{key} and deletion rank the units with a rank correlation of {mean:.2f}",
    "shapley_agreement": (
        "the order of {key} agrees with the Shapley values with a Gini correlation of {mean:.2f}"
    ),
    "source_place": "the source is unit {mean:.1f} of the passage on average, counted from 0",
    "drop": (
        "without the units that {key} ranks first the answer loses {mean:.2f} nats (mean of the "
        "first 1, 3 and 5)"
    ),
    "mass": "{key} and the losses by deletion overlap by {mean:.0%} (as shares of the passage)",
    "mass_by_chance": (
        "the weights of {key} on random units would overlap with the losses by {mean:.0%}"
    ),
    "unit_loss": "without unit {key} the answer loses {mean:.2f} nats",
    "unit_attention": "unit {key} receives {mean:.2f} of the attention",
    "attended_position": make_share_reading(
        "attention ranks the {key} unit first in {mean:.0%} of texts"
    ),
    "unit_map": "unit {key} has the score {mean:.2f} in the fitted map",
    "smallest_set": (
        "the smallest set of units without which the greedy answer changes has {mean:.1f} units "
        "(mean over texts with such a set)"
    ),
    "no_smallest_set": make_share_reading(
        "in {mean:.0%} of texts no set of units changes the greedy answer"
    ),
    "lds": (
        "the summed scores of {key} and the answer's logit have a rank correlation of {mean:.2f} "
        "over random sets of units (LDS)"
    ),
}


@dataclass(frozen=True)
class SourcesResult:
    """Statistics from the test ``sources``: tensors ``[batch]``, or mappings to them by ranking.

    Losses are in nats and can be negative. Statistics on request are None if they were not
    requested. Statistics about all sets are NaN in passages with more than ``exact_units`` units.

    Attributes:
        contextual_gain: Log-probability that the answer gains from the passage, in nats.
        answer_is_greedy: 1 if greedy decoding generates the answer, else 0.
        passage_share: Share of the attention on the passage, in [0, 1].
        sink_share: Share of the attention on the attention sink, in [0, 1].
        source_found: Precision@1 in [0, 1] (ties are averaged). NaN in one-unit passages and if no
            deletion lowers the answer's probability.
        source_place: Index of the source in the passage. NaN in the same texts.
        source_agreement: Gini correlation with the effects in [−1, 1]. NaN in passages with 4 units
            or fewer.
        source_tau: Kendall's τ-b with the effects in [−1, 1]. NaN in passages with 4 units or
            fewer.
        drop: Top-k drop in nats, including ``random`` and ``best``. NaN in one-unit passages.
        mass: Overlap with the effects in [0, 1].
        mass_by_chance: Mean overlap over all assignments of the weights to the units, in [0, 1].
        unit_loss: Effect of deleting each unit, by unit number; None unless the site contains all
            heads.
        unit_attention: Attention to each unit, by unit number; None unless the site contains all
            heads.
        attended_position: Whether attention ranks the first, the last or the longest unit first, in
            [0, 1], by position. NaN in one-unit passages; None unless the site contains all heads.
        unit_map: Score of each unit in the fitted map, by unit number; None without a map.
        shapley_agreement: Gini correlation with the Shapley values in [−1, 1], on request.
        smallest_set: Size of the smallest set of units whose deletion changes the answer, on request.
            NaN if no set does.
        no_smallest_set: 1 if deleting no set of units changes the answer, else 0, on request.
        lds: Linear datamodeling score in [−1, 1], on request.
    """

    contextual_gain: Tensor
    answer_is_greedy: Tensor
    passage_share: Tensor
    sink_share: Tensor
    source_found: Mapping[str, Tensor]
    source_place: Tensor
    source_agreement: Mapping[str, Tensor]
    source_tau: Mapping[str, Tensor]
    drop: Mapping[str, Tensor]
    mass: Mapping[str, Tensor]
    mass_by_chance: Mapping[str, Tensor]
    unit_loss: Mapping[str, Tensor] | None = None
    unit_attention: Mapping[str, Tensor] | None = None
    unit_map: Mapping[str, Tensor] | None = None
    attended_position: Mapping[str, Tensor] | None = None
    shapley_agreement: Mapping[str, Tensor] | None = None
    smallest_set: Tensor | None = None
    no_smallest_set: Tensor | None = None
    lds: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    summary="deletes the units of the passage and compares the losses with attention",
    needs=(AnswersFromPassage, EditableInputs),
    default="on request",
    answer_options=Sources(),
    groups=True,
)
@torch.no_grad()
def sources(
    observation: Observation,
    site: Site,
    options: Sources = Sources(),
    *,
    seed: int = 0,
) -> SourcesResult:
    """Compare the attention to passage units with the losses by deleting them.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is ranked.
        options: Requested statistics.
        seed: Seed for the random order and the random halves.

    Returns:
        Statistics per text.
    """
    model = observation.model.require(AnswersFromPassage)
    content = observation.batch.content_mask
    attention = observation.read(site)
    log_prob = compute_log_prob(observation)
    probs_without_passage = model.compute_probs_without_passage(observation)
    effects = measure_deletion_effects(observation)
    scores = _score_units(observation, site, options, seed)
    scores_with_deletion = {**scores, "deletion": effects}
    ranks_by_name = _rank_units(scores_with_deletion, content, log_prob)
    source_found, source_position = _find_source(ranks_by_name, effects, content)
    compared_ranks = {
        name: ranks
        for name, ranks in ranks_by_name.items()
        if name not in RANKINGS_COMPARED_BY_SOURCE
    }
    score_shares = _normalise_scores(scores, content)
    effect_shares = normalise_positive_part(effects, content)
    is_whole_model = covers_all_heads(observation, site)
    has_map = FITTED_MAP_RANKING in scores
    return SourcesResult(
        contextual_gain=log_prob - model.compute_log_prob(observation, probs_without_passage),
        answer_is_greedy=model.is_greedy(observation).double(),
        passage_share=attention.masked_fill(~content, 0).sum(-1),
        sink_share=attention[..., -1],
        source_found=source_found,
        source_place=source_position,
        source_agreement=_compute_agreements(compared_ranks, effects, content),
        source_tau=_compute_taus(compared_ranks, ranks_by_name["deletion"], content),
        drop=_measure_drops(observation, ranks_by_name, seed),
        mass={
            name: distribution_overlap(shares, effect_shares)
            for name, shares in score_shares.items()
        },
        mass_by_chance={
            name: expected_overlap(shares, effect_shares, content)
            for name, shares in score_shares.items()
        },
        unit_loss=split_by_unit(effects, content) if is_whole_model else None,
        unit_attention=split_by_unit(attention, content) if is_whole_model else None,
        unit_map=split_by_unit(scores[FITTED_MAP_RANKING], content) if has_map else None,
        attended_position=_measure_attended_positions(ranks_by_name, content)
        if is_whole_model
        else None,
        **_analyse_all_sets(
            observation,
            compared_ranks | {"deletion": ranks_by_name["deletion"]},
            options.exact_units,
        ),
        lds=_compute_lds(observation, scores_with_deletion, options, seed),
    )


def split_by_unit(values: Tensor, content: Tensor) -> dict[str, Tensor]:
    """Split the values for passage units into one dictionary entry per unit.

    Args:
        values: Values ``[batch, keys]``. Key i holds unit i of the passage.
        content: Whether each passage has a unit with this number, bool ``[batch, keys]``.

    Returns:
        Values ``[batch]`` by unit number, such as "0"; NaN in passages with fewer units.
    """
    unit_values = values.double().masked_fill(~content, torch.nan)
    numbers = content.any(0).nonzero()[:, 0].tolist()
    return {str(number): unit_values[:, number] for number in numbers}


# --- Rankings --------------------------------------------------------------------------------


def _score_units(
    observation: Observation, site: Site, options: Sources, seed: int
) -> dict[str, Tensor]:
    """Score the passage units by attention and by the methods with which it is compared.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        options: Number of random halves on which ContextCite is fitted; 0 omits ContextCite.
        seed: Seed for the random halves and for shuffled user-provided scores.

    Returns:
        Scores ``[batch, keys]`` by ranking name, attention first. Larger scores mean more
        important units.
    """
    model = observation.model.require(AnswersFromPassage)
    attention = observation.read(site)
    position = torch.arange(attention.shape[-1], device=attention.device).expand_as(attention)
    scores = {
        "attention": attention,
        "length": model.count_unit_tokens(observation).to(attention.dtype),
        "first": -position.to(attention.dtype),
        "last": position.to(attention.dtype),
    }
    # For the whole model, the attention in the last layer is an additional ranking.
    if site.layer == site.head == ALL and len(observation.attention) > 1:
        last_layer = max(observation.model.get_heads_by_layer(site))
        scores["last layer"] = observation.read(Site(last_layer, ALL, site.query))
    if is_ranking_available(observation, site, FITTED_MAP_RANKING):
        scores[FITTED_MAP_RANKING] = compute_importance(observation, site, FITTED_MAP_RANKING)
    if options.masks:
        scores["contextcite"] = _fit_contextcite(observation, options.masks, seed)
    if observation.batch.scores is not None:
        for name in USER_SCORE_RANKINGS:
            scores[name] = read_user_scores(observation, name, seed)
    return scores


def _normalise_scores(scores: Mapping[str, Tensor], content: Tensor) -> dict[str, Tensor]:
    """Scale the scores of each passage so that they sum to 1; negative scores become 0.

    For example, the scores (3, 1, −2) become (0.75, 0.25, 0). Three rankings are left out, because
    they have an order but no scores: by length, from the first unit, and from the last unit.

    Args:
        scores: Scores ``[batch, keys]`` by ranking name. A key is a position in the batch; it holds
            a unit of the passage, such as a sentence, or is empty.
        content: Which positions hold a unit, bool ``[batch, keys]``.
    """
    return {
        name: normalise_positive_part(values, content)
        for name, values in scores.items()
        if name not in ORDER_ONLY_RANKINGS
    }


def _rank_units(
    scores: Mapping[str, Tensor], content: Tensor, log_prob: Tensor
) -> dict[str, Tensor]:
    """Convert scores to ranks, from 0 for the least important unit.

    Units whose scores only differ by rounding errors share a rank.

    Args:
        scores: Scores ``[batch, keys]`` by ranking name.
        content: Which positions (keys) hold a unit, bool ``[batch, keys]``.
        log_prob: The answer's log-probability ``[batch]``.

    Returns:
        Ranks ``[batch, keys]`` by ranking name.
    """
    # Some scores are differences between log-probabilities. Their rounding error is proportional to
    # the size of the log-probability.
    log_prob_size = log_prob.abs()[:, None]
    scales = {"deletion": log_prob_size, "contextcite": log_prob_size}
    for name in USER_SCORE_RANKINGS:
        if name in scores:
            scales[name] = scores[name].abs().amax(-1, True)
    return {
        name: rank_with_ties(values, content, scales.get(name, 0.0))
        for name, values in scores.items()
    }


def _find_source(
    ranks_by_name: Mapping[str, Tensor], effects: Tensor, content: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Find the source of each answer, and check which rankings put it first.

    The source is the unit whose deletion makes the answer least probable, and the first such unit if
    several effects are equal up to rounding. A passage has no source if it consists of one unit, or if no deletion lowers the answer's probability.

    Args:
        ranks_by_name: Unit ranks ``[batch, keys]`` by ranking name.
        effects: Loss when each unit is deleted, ``[batch, keys]``.
        content: Which positions (keys) hold a unit, bool ``[batch, keys]``.

    Returns:
        Hits by ranking name, and the positions of the sources. Each is ``[batch]`` and NaN in
        passages without a source. A hit is 1 if the ranking puts the source first, and 0
        otherwise. The entry ``chance`` is the probability that a random order puts it first.
    """
    n_units = content.sum(-1)
    unit_effects = effects.masked_fill(~content, -torch.inf)
    has_source = (unit_effects.amax(-1) > 0) & (n_units > 1)
    # The overlap between the first unit of a ranking and the source is 1 or 0, or a share for ties.
    hits = {
        name: top_overlap(ranks, ranks_by_name["deletion"], content, 1)
        for name, ranks in ranks_by_name.items()
    }
    hits["chance"] = 1 / n_units.double()
    # Units whose effects differ only by rounding share a rank, and the first of them is the source.
    # `argmax` of the effects would let rounding, and so the batch, decide between them.
    source_ranks = ranks_by_name["deletion"].masked_fill(~content, -1)
    source_position = source_ranks.argmax(-1).double()
    hits = {name: values.where(has_source, torch.nan) for name, values in hits.items()}
    return hits, source_position.where(has_source, torch.nan)


def _measure_attended_positions(
    ranks_by_name: Mapping[str, Tensor], content: Tensor
) -> dict[str, Tensor]:
    """Measure whether attention ranks the first, the last or the longest unit first, ``[batch]``."""
    hits_by_position = measure_top_positions(ranks_by_name["attention"], content)
    hits = top_overlap(ranks_by_name["attention"], ranks_by_name["length"], content, 1)
    return {**hits_by_position, "longest": hits.where(content.sum(-1) > 1, torch.nan)}


def _compute_agreements(
    ranks_by_name: Mapping[str, Tensor], effects: Tensor, content: Tensor
) -> dict[str, Tensor]:
    """Compute how well each ranking agrees with the effects of the units (Gini correlation).

    The result is 1 for the ranking by effect, and 0 on average for a random ranking. It is NaN in
    short passages.

    Args:
        ranks_by_name: Rank of each unit, ``[batch, keys]``, by ranking name. A key is a position in
            the batch; it holds a unit of the passage, such as a sentence, or is empty.
        effects: Effect of each unit on the answer, ``[batch, keys]``.
        content: Which positions hold a unit, bool ``[batch, keys]``.
    """
    is_too_short = content.sum(-1) <= MAX_UNITS_OF_SHORT_PASSAGE
    return {
        name: gini_correlation(effects, ranks, content).masked_fill(is_too_short, torch.nan)
        for name, ranks in ranks_by_name.items()
    }


def _compute_taus(
    ranks_by_name: Mapping[str, Tensor], effect_ranks: Tensor, content: Tensor
) -> dict[str, Tensor]:
    """Compute Kendall's τ-b between each ranking and the ranking by the units' effects.

    It is NaN in short passages.

    Args:
        ranks_by_name: Unit ranks ``[batch, keys]`` by ranking name.
        effect_ranks: Ranks of the units by their effect on the answer, ``[batch, keys]``.
        content: Which positions (keys) hold a unit, bool ``[batch, keys]``.
    """
    is_too_short = content.sum(-1) <= MAX_UNITS_OF_SHORT_PASSAGE
    # All pairs are computed at once. The last row and column belong to the effects.
    all_ranks = torch.stack([*ranks_by_name.values(), effect_ranks], 1)
    tau_matrix = kendall_tau_b_matrix(all_ranks, content).tau
    taus_with_effects = tau_matrix[:, :-1, -1].masked_fill(is_too_short[:, None], torch.nan)
    return dict(zip(ranks_by_name, taus_with_effects.unbind(1), strict=True))


# --- Top-k drop ------------------------------------------------------------------------------


def _measure_drops(
    observation: Observation, ranks_by_name: Mapping[str, Tensor], seed: int
) -> dict[str, Tensor]:
    """Measure how much the answer's log-probability falls without the first units of each ranking.

    This top-k drop is averaged over k = 1, 3 and 5. For comparison, it is also measured for random
    units ("random"). The entry "best" uses the ranking with the largest drop for each k.

    Args:
        observation: Model outputs and attention for a batch.
        ranks_by_name: Unit ranks ``[batch, keys]`` by ranking name.
        seed: Seed for the random units.

    Returns:
        Drops ``[batch]`` by ranking name.
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    places_by_name = {
        name: compute_removal_rank(ranks, content)
        for name, ranks in ranks_by_name.items()
        if name not in RANKINGS_WITHOUT_DROP
    }
    places_by_name["random"] = _draw_random_places(observation, seed)
    places = torch.stack([*places_by_name.values()])
    losses = _measure_drops_without_top_units(observation, places)
    losses_by_name = dict(zip(places_by_name, losses, strict=True))
    losses_by_name["best"] = losses.amax(0)
    # For k = 1 (index 0), the expected loss without a random unit is the mean over all units.
    mean_effect = measure_deletion_effects(observation).sum(-1) / n_units
    losses_by_name["random"][0] = mean_effect.where(n_units > 1, torch.nan)
    return {
        name: losses_by_count.nanmean(0)
        for name, losses_by_count in losses_by_name.items()
        if name != "deletion"
    }


def _measure_drops_without_top_units(observation: Observation, places: Tensor) -> Tensor:
    """Delete the first k units of a ranking, and measure how much the answer's log-probability falls.

    This is done for each ranking, and for k = 1, 3 and 5. The result is NaN if the k units are more
    than half of the passage.

    Args:
        observation: Model outputs and attention for a batch.
        places: Place of each unit in the ranking, from 0 for the first unit, int
            ``[rankings, batch, keys]``.

    Returns:
        Decrease of the log-probability, ``[rankings, k, batch]``.
    """
    is_unit = observation.batch.content_mask
    n_units = is_unit.sum(-1)
    # The values of k are the first axis: [k, 1].
    top_counts = torch.tensor(TOP_COUNTS, device=is_unit.device)[:, None]
    has_enough_units = n_units >= 2 * top_counts  # [k, batch]
    is_deletable = is_unit & has_enough_units[..., None]  # [k, batch, keys]
    is_in_top = places[:, None] < top_counts[..., None]  # [rankings, k, batch, keys]
    is_deleted = is_in_top & is_deletable
    # The model takes a single axis for all deletions, so rankings and k are merged for the call.
    losses = measure_losses_without(observation, is_deleted.flatten(0, 1))
    losses = losses.unflatten(0, is_deleted.shape[:2])
    return losses.masked_fill(~has_enough_units, torch.nan)


def _draw_random_places(observation: Observation, seed: int) -> Tensor:
    """Draw a random order of the units in each passage.

    Returns:
        Place of each unit in the order, from 0 for the first unit, int ``[batch, keys]``.
    """
    content = observation.batch.content_mask
    places = torch.zeros(content.shape, dtype=torch.long)
    for row, is_unit in enumerate(content.cpu()):
        example_id = int(observation.batch.example_ids[row])
        order = draw_permutation(seed, example_id, RANDOM_ORDER_STREAM, int(is_unit.sum()))
        places[row, is_unit] = torch.from_numpy(order.copy())
    return places.to(content.device)


# --- All sets of units -----------------------------------------------------------------------


def _analyse_all_sets(
    observation: Observation, ranks_by_name: Mapping[str, Tensor], exact_units: int
) -> dict[str, Any]:
    """Compute the statistics for which every possible set of units must be deleted.

    These are the agreement with the units' Shapley values, and the size of the smallest set whose
    deletion changes the answer. The result is empty if all passages are too long.

    Args:
        observation: Model outputs and attention for a batch.
        ranks_by_name: Unit ranks ``[batch, keys]`` by ranking name.
        exact_units: Number of units up to which a passage is short enough.
    """
    content = observation.batch.content_mask
    is_too_long = content.sum(-1) > exact_units
    if is_too_long.all():
        return {}
    losses, changes_answer = measure_all_sets(observation, exact_units)
    shapley_values = attribution.shapley_values(losses)
    units_of_short_passages = content & ~is_too_long[:, None]
    values = _scatter_to_units(shapley_values, units_of_short_passages)
    agreements = _compute_agreements(ranks_by_name, values, content)
    smallest_set = attribution.find_smallest_set_size(changes_answer)
    has_no_set = smallest_set.isnan().double()
    return {
        "shapley_agreement": {
            name: agreement.masked_fill(is_too_long, torch.nan)
            for name, agreement in agreements.items()
        },
        "smallest_set": smallest_set.masked_fill(is_too_long, torch.nan),
        "no_smallest_set": has_no_set.masked_fill(is_too_long, torch.nan),
    }


def measure_all_sets(observation: Observation, exact_units: int) -> tuple[Tensor, Tensor]:
    """Delete every possible set of units from short passages, and measure the effects.

    Args:
        observation: Model outputs and attention for a batch.
        exact_units: Number of units up to which a passage is short enough.

    Returns:
        The losses of the answer's log-probability in nats, and whether the model would generate a
        different answer (with greedy decoding), each ``[2^units, batch]``. The sets have the same
        order as in :func:`~hf_attnprobe.functional.aopc.enumerate_subsets`. In longer passages, all
        losses are 0 and no answer changes.
    """

    def compute() -> tuple[Tensor, Tensor]:
        content = observation.batch.content_mask
        # Nothing is deleted from longer passages.
        content = content & (content.sum(-1, keepdim=True) <= exact_units)
        positions = aopc.list_unit_positions(content)
        is_unit = content.gather(1, positions)
        subsets = aopc.enumerate_subsets(positions.shape[1]).to(content.device)
        sets = subsets[:, None] & is_unit
        deleted = aopc.expand_to_positions(sets, positions, content.shape[1])
        probs = predict_without_units(observation, "deletion", deleted)
        return compute_answer_losses(observation, probs), observation.find_flips(probs).bool()

    return observation.remember(("all sets", exact_units), compute)


def _scatter_to_units(values: Tensor, content: Tensor) -> Tensor:
    """Write the values of passage units to the keys of these units.

    Args:
        values: Values ``[batch, units]``.
        content: Which positions (keys) hold a unit, bool ``[batch, keys]``.

    Returns:
        Values ``[batch, keys]``; 0 at all other keys.
    """
    positions = aopc.list_unit_positions(content)
    key_values = torch.zeros(content.shape, dtype=values.dtype, device=values.device)
    return key_values.scatter(1, positions, values).masked_fill(~content, 0)


# --- Random halves of the units --------------------------------------------------------------


def measure_random_halves(
    observation: Observation, n_masks: int, stream: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw random halves of the passage, and measure how probable the answer is given each half.

    Each unit remains in a half with a probability of 1/2. The logit is ln p − ln(1 − p), with the
    answer's probability p.

    Args:
        observation: Model outputs and attention for a batch.
        n_masks: Number of random halves.
        stream: Random number stream.
        seed: Seed for the draw.

    Returns:
        Remaining units, bool ``[masks, batch, keys]``, and the answer's logit divided by its token
        count, ``[masks, batch]``.
    """

    def compute() -> tuple[Tensor, Tensor]:
        batch = observation.batch
        model = observation.model.require(AnswersFromPassage)
        remaining = torch.zeros(n_masks, *batch.content_mask.shape, dtype=torch.bool)
        for row, is_unit in enumerate(batch.content_mask.cpu()):
            generator = create_random_generator(seed, int(batch.example_ids[row]), stream)
            draws = generator.integers(0, 2, (n_masks, int(is_unit.sum()))).astype(bool)
            remaining[:, row, is_unit] = torch.from_numpy(draws)
        remaining = remaining.to(batch.content_mask.device)
        probs = predict_without_units(observation, "deletion", ~remaining & batch.content_mask)
        log_probs = model.compute_log_prob(observation, probs).double()
        # The prediction has one part for each token of the answer.
        n_tokens = observation.model.prediction.group_by_part(observation.probs).shape[-2]
        return remaining, attribution.compute_logit(log_probs) / n_tokens

    return observation.remember(("masks", n_masks, stream, seed), compute)


def _fit_contextcite(observation: Observation, n_masks: int, seed: int) -> Tensor:
    """Score the passage units by ContextCite (Cohen-Wang et al. 2024).

    ContextCite deletes random halves of the passage and predicts the answer's logit from the
    remaining units by a sparse linear regression (LASSO).

    Returns:
        Weight of each unit in the regression, ``[batch, keys]``.
    """
    content = observation.batch.content_mask
    remaining, logits = measure_random_halves(observation, n_masks, CONTEXTCITE_STREAM, seed)
    weights = torch.zeros(content.shape, dtype=logits.dtype, device=logits.device)
    for row, is_unit in enumerate(content):
        weights[row, is_unit] = attribution.fit_lasso(remaining[:, row, is_unit], logits[:, row])
    return weights


def _compute_lds(
    observation: Observation,
    scores: Mapping[str, Tensor],
    options: Sources,
    seed: int,
) -> dict[str, Tensor] | None:
    """Compute the linear datamodeling score (LDS) of each ranking.

    The LDS shows how well the scores predict the answer when only a random half of the passage
    remains. It is the Spearman correlation between the sum of the remaining units' scores and the
    answer's logit.

    Args:
        observation: Model outputs and attention for a batch.
        scores: Scores ``[batch, keys]`` by ranking name.
        options: Number of random halves (``held_out``). If ``masks`` is 0, the LDS is not computed.
        seed: Seed for the random halves.

    Returns:
        LDS ``[batch]`` by ranking name; None if it is not computed.
    """
    if not options.masks:
        return None
    remaining, logits = measure_random_halves(observation, options.held_out, LDS_STREAM, seed)
    # The correlation uses all random halves.
    mask = torch.ones_like(logits.T, dtype=torch.bool)
    scores_by_ranking = {}
    for name, values in scores.items():
        # Sum of the scores over the remaining units, [batch, masks].
        score_sums = (remaining * values.double()).sum(-1).T
        scores_by_ranking[name] = attribution.spearman(score_sums, logits.T, mask)
    return scores_by_ranking
