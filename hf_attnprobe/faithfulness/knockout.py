"""Does a unit of the passage act by being looked at?

Attention knockout: Geva et al. 2023 ("Dissecting Recall of Factual Associations"), Section 5.

Question: what does the answer lose when the rows behind the passage cannot look at a unit,
          and how much of what its deletion costs is that?
Measure:  the cells of one unit are set to 0 in all rows behind the passage, in every head
          and layer of the site at once, each layer computing its attention on top of the
          edited ones below. Loss: log p(answer) − log p(answer | without the cells), in
          nats, and the total variation distance (a lower bound, of the tokens kept).
Operators: what becomes of the weight: it goes to all that the row still looks at, in
          proportion ("renormalised", as when scores are masked); on request nowhere ("none"),
          or to the sink ("sink"). Where they differ much, the number is about the operator.
Mediated: Σ loss by knockout / Σ loss by deletion over the units that matter, both sums over
          all texts: a unit that is deleted is gone from every state, one that is knocked out
          is still in the states of the tokens behind it. 1: units act by being looked at.
          Less: they reach the answer through other tokens, which no attention map of the
          answer can show. Above 1 or below 0 is possible, and is not clipped.
Noise:    a unit matters where its deletion costs at least .1 nats, a tenth of what the
          costliest unit costs, and more than the way of deleting changes: |loss, the others closing up − loss, the others
          keeping their positions|. What is smaller than that cannot be told from the
          change of all positions.
Reading:  attention is graded against knockout as against deletion in ``sources``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.correlation import ranks
from hf_attnprobe.faithfulness.options import Knockout
from hf_attnprobe.faithfulness.passage_units import (
    RENORMALISED,
    deletion_effects,
    is_all_attention,
    knocked_out,
    log_prob,
    units_that_matter,
)
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.faithfulness.sources import FEW, by_unit
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


READINGS: TestReadings = {
    "largest_knockout": (
        "the unit whose cells matter most costs the answer {mean:.2f} nats ({key} weights)"
    ),
    "largest_knockout_tvd": (
        "taking away the cells of one unit moves the output by at most {mean:.2f} {unit} "
        "({key} weights; a lower bound)"
    ),
    "knockout_found": share(
        "the unit with most attention is the one whose cells matter most in {mean:.0%} of "
        "texts ({key} weights)"
    ),
    "knockout_finds_source": share(
        "the unit whose cells matter most is the one whose deletion costs most in {mean:.0%} of "
        "texts ({key} weights)"
    ),
    "knockout_agreement": (
        "attention puts first the units whose cells matter with a Gini correlation of "
        "{mean:.2f} ({key} weights)"
    ),
    "knockout_tau": (
        "attention and knockout order the units with rank correlation {mean:.2f} ({key} weights)"
    ),
    "lost_by_knockout": "taking away the cells of the units that matter costs {mean:.2f} nats",
    "lost_by_deletion": "deleting the units that matter costs {mean:.2f} nats",
    "unit_knockout": "taking away the cells of unit {key} costs the answer {mean:.2f} nats",
    "unit_matters": share(
        "unit {key} costs the answer more than noise when deleted in {mean:.0%} of texts"
    ),
    "units_that_matter": "{mean:.1f} units cost the answer more than noise when deleted",
}


@dataclass(frozen=True)
class KnockoutResult:
    """All [batch]; by operator, losses in nats and distances in [0, 1].

    ``knockout_found`` and ``knockout_finds_source`` are in [0, 1], NaN where no knockout
    or no deletion costs anything or there is one unit; agreement and τ are in [−1, 1], NaN
    for 4 units or fewer. What is lost by knockout and by deletion is the sum over the units
    that matter, in nats; 0 where none does.

    ``unit_knockout`` and ``unit_matters`` are by number of the unit, of all attention only.
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
    does="takes away the attention to one unit of the passage at a time",
    needs=(AnswersFromPassage, EditableInputs, KeptPositions),
    default="on request",
    of_answers=Knockout(),
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
    """Takes away the cells of each unit, and compares what is lost with its deletion.

    Args:
        seed: unused, nothing here is random.
    """
    content = observation.batch.content_mask
    size = log_prob(observation).abs()[:, None]
    attention = ranks(observation.read(site), content)
    effects = deletion_effects(observation)
    deleted = ranks(effects, content, size)
    few, alone = content.sum(-1) <= FEW, content.sum(-1) < 2
    by_operator: dict[str, list[Tensor]] = {}
    for operator in options.operators:
        lost, moved = knocked_out(observation, site, operator)
        ranked = ranks(lost, content, size)
        none = alone | (lost.amax(-1) <= 0)
        by_operator[operator] = [
            lost.masked_fill(~content, -torch.inf).amax(-1),
            moved.amax(-1),
            top_overlap(attention, ranked, content, 1).masked_fill(none, torch.nan),
            top_overlap(ranked, deleted, content, 1).masked_fill(
                none | (effects.amax(-1) <= 0), torch.nan
            ),
            gini_correlation(lost, attention, content).masked_fill(few, torch.nan),
            kendall_tau_b(attention, ranked, content).tau.masked_fill(few, torch.nan),
        ]
    largest, moved_most, found, finds_source, agreement, tau = (
        {operator: values[k] for operator, values in by_operator.items()} for k in range(6)
    )
    lost, _ = knocked_out(observation, site, RENORMALISED)
    matters = units_that_matter(observation, options.least_effect)
    is_whole = is_all_attention(observation, site)
    return KnockoutResult(
        largest,
        moved_most,
        found,
        finds_source,
        agreement,
        tau,
        lost_by_knockout=(lost * matters).sum(-1),
        lost_by_deletion=(effects * matters).sum(-1),
        units_that_matter=matters.sum(-1).double(),
        unit_knockout=by_unit(lost, content) if is_whole else None,
        unit_matters=by_unit(matters, content) if is_whole else None,
    )
