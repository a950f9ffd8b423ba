"""Test ``knockout``: does a unit of the passage influence the answer through attention to it?

Attention knockout: Geva et al. 2023 ("Dissecting Recall of Factual Associations"), Section 5.

Question
    How much does the answer lose if the tokens after the passage cannot attend to a unit? How large
    is this loss compared with the loss by deleting the unit?

Measure
    The attention to one unit is blocked in all query rows after the passage, in all heads that the
    site contains at once. Each layer computes its attention from the edited layers below. The loss
    is log p(answer) − log p(answer | knockout), in nats. The test also reports the total variation
    distance, which is a lower bound because only some tokens of the vocabulary are stored.

Operators
    An operator redistributes the blocked attention:

    - "renormalised": to all other tokens in proportion to their attention, as if the attention
      scores of the unit were masked.
    - "none" (on request): to no token.
    - "sink" (on request): to the attention sink.

    If the results differ much, they reflect the operator more than the unit.

Mediated share
    The sum of all losses by knockout, divided by the sum of all losses by deletion. The sums include
    all texts, but only units that matter.

    A deleted unit disappears from all states, whereas a knocked-out unit remains in the states of
    the tokens after it. A share of 1 means that units act through attention to them. A smaller
    share means that they reach the answer through other tokens, which no attention map of the
    answer can show. Values above 1 or below 0 are possible.

Units that matter
    A unit matters if the loss by deleting it is

    - at least ``least_effect`` nats, and at least the noise floor of the model: in half precision,
      an audit deletes some units in two ways that only differ by rounding, and the floor is the
      largest difference,
    - at least a tenth of the largest loss in the passage,
    - and larger than its noise.

    To measure the noise, the unit is deleted again, but the remaining tokens keep their positions.
    The noise is the difference between the two losses.

Interpretation
    The rank statistics compare attention with knockout, as ``sources`` compares it with deletion.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.correlation import rank_with_ties
from hf_attnprobe.faithfulness.options import Knockout
from hf_attnprobe.faithfulness.passage_units import (
    RENORMALISED_KNOCKOUT,
    compute_log_prob,
    covers_all_heads,
    find_units_that_matter,
    measure_deletion_effects,
    measure_knockouts,
)
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.faithfulness.sources import MAX_UNITS_OF_SHORT_PASSAGE, split_by_unit
from hf_attnprobe.functional.rank import (
    gini_correlation,
    kendall_tau_b,
    top_overlap,
)
from hf_attnprobe.protocol import (
    AnswersFromPassage,
    EditableInputs,
    KeptPositions,
    Observation,
    Site,
)


STATISTICS_BY_OPERATOR = (
    "largest_knockout",
    "largest_knockout_tvd",
    "knockout_found",
    "knockout_finds_source",
    "knockout_agreement",
    "knockout_tau",
)
"""Names of the statistics that are computed for each knockout operator. The operators differ in how
they redistribute the blocked attention."""
READINGS: TestReadings = {
    "largest_knockout": (
        "blocking attention to the most important unit costs the answer {mean:.2f} nats ({key} "
        "weights)"
    ),
    "largest_knockout_tvd": (
        "blocking attention to one unit moves the output by at most {mean:.2f} {unit} ({key} "
        "weights; a lower bound)"
    ),
    "knockout_found": make_share_reading(
        "the unit with the most attention is the one whose knockout costs most in {mean:.0%} of "
        "texts ({key} weights)"
    ),
    "knockout_finds_source": make_share_reading(
        "the unit whose knockout costs most is the one whose deletion costs most in {mean:.0%} of "
        "texts ({key} weights)"
    ),
    "knockout_agreement": (
        "the order of attention agrees with the losses by knockout with a Gini correlation of "
        "{mean:.2f} ({key} weights)"
    ),
    "knockout_tau": (
        "attention and knockout rank the units with a rank correlation of {mean:.2f} ({key} "
        "weights)"
    ),
    "lost_by_knockout": "blocking attention to the units that matter costs {mean:.2f} nats",
    "lost_by_deletion": "deleting the units that matter costs {mean:.2f} nats",
    "unit_knockout": "blocking attention to unit {key} costs the answer {mean:.2f} nats",
    "unit_matters": make_share_reading(
        "deleting unit {key} costs the answer more than noise in {mean:.0%} of texts"
    ),
    "units_that_matter": "deleting costs the answer more than noise for {mean:.1f} units",
}


@dataclass(frozen=True)
class KnockoutResult:
    """Statistics from the test ``knockout``: tensors ``[batch]``, or mappings to them.

    The statistics in :data:`STATISTICS_BY_OPERATOR` are mappings by operator. Rank statistics are NaN
    in one-unit passages and in texts in which no knockout or no deletion lowers the answer's
    probability.

    Attributes:
        largest_knockout: Largest loss by knocking out a unit, in nats.
        largest_knockout_tvd: Largest output change by knocking out a unit, in [0, 1].
        knockout_found: Whether attention ranks the unit with the largest loss by knockout first, in
            [0, 1] (ties are averaged).
        knockout_finds_source: Whether the units with the largest losses by knockout and by deletion
            are the same, in [0, 1].
        knockout_agreement: Gini correlation between attention and the losses by knockout, in [−1,
            1]. NaN in passages with 4 units or fewer.
        knockout_tau: Kendall's τ-b between attention and knockout, in [−1, 1]. NaN in passages with
            4 units or fewer.
        lost_by_knockout: Summed losses by knockout over the units that matter, in nats; 0 if no
            unit matters.
        lost_by_deletion: Summed losses by deletion over the units that matter, in nats.
        units_that_matter: Number of units that matter.
        unit_knockout: Loss by knocking out each unit, by unit number; None unless the site contains
            all heads.
        unit_matters: 1 if the unit matters, else 0, by unit number; None unless the site contains
            all heads.
    """

    largest_knockout: Mapping[str, Tensor]
    largest_knockout_tvd: Mapping[str, Tensor]
    knockout_found: Mapping[str, Tensor]
    knockout_finds_source: Mapping[str, Tensor]
    knockout_agreement: Mapping[str, Tensor]
    knockout_tau: Mapping[str, Tensor]
    lost_by_knockout: Tensor
    lost_by_deletion: Tensor
    units_that_matter: Tensor
    unit_knockout: Mapping[str, Tensor] | None = None
    unit_matters: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    summary="blocks the attention to one unit of the passage at a time",
    needs=(AnswersFromPassage, EditableInputs, KeptPositions),
    default="on request",
    answer_options=Knockout(),
    groups=True,
)
@torch.no_grad()
def knockout(
    observation: Observation,
    site: Site,
    options: Knockout = Knockout(),
    *,
    seed: int = 0,
) -> KnockoutResult:
    """Block the attention to each unit and compare the losses with the losses by deletion.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group in which the attention is blocked.
        options: Redistribution rules, and smallest loss at which a unit counts as mattering.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    # Losses are differences of log-probabilities, which determine their rounding error.
    scale = compute_log_prob(observation).abs()[:, None]
    attention_ranks = rank_with_ties(observation.read(site), content)
    effects = measure_deletion_effects(observation)
    deletion_ranks = rank_with_ties(effects, content, scale)
    is_too_short = n_units <= MAX_UNITS_OF_SHORT_PASSAGE
    has_no_source = effects.amax(-1) <= 0

    by_operator: dict[str, dict[str, Tensor]] = {name: {} for name in STATISTICS_BY_OPERATOR}
    for operator in options.operators:
        losses, output_changes = measure_knockouts(observation, site, operator)
        knockout_ranks = rank_with_ties(losses, content, scale)
        has_no_loss = (n_units < 2) | (losses.amax(-1) <= 0)
        largest_loss = losses.masked_fill(~content, -torch.inf).amax(-1)
        hits = top_overlap(attention_ranks, knockout_ranks, content, 1)
        source_hits = top_overlap(knockout_ranks, deletion_ranks, content, 1)
        agreement = gini_correlation(losses, attention_ranks, content)
        tau = kendall_tau_b(attention_ranks, knockout_ranks, content).tau
        for name, values in {
            "largest_knockout": largest_loss,
            "largest_knockout_tvd": output_changes.amax(-1),
            "knockout_found": hits.masked_fill(has_no_loss, torch.nan),
            "knockout_finds_source": source_hits.masked_fill(
                has_no_loss | has_no_source, torch.nan
            ),
            "knockout_agreement": agreement.masked_fill(is_too_short, torch.nan),
            "knockout_tau": tau.masked_fill(is_too_short, torch.nan),
        }.items():
            by_operator[name][operator] = values

    losses, _ = measure_knockouts(observation, site, RENORMALISED_KNOCKOUT)
    matters = find_units_that_matter(observation, options.least_effect)
    is_whole_model = covers_all_heads(observation, site)
    return KnockoutResult(
        **by_operator,
        lost_by_knockout=(losses * matters).sum(-1),
        lost_by_deletion=(effects * matters).sum(-1),
        units_that_matter=matters.sum(-1).double(),
        unit_knockout=split_by_unit(losses, content) if is_whole_model else None,
        unit_matters=split_by_unit(matters, content) if is_whole_model else None,
    )
