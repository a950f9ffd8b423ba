"""Does a unit of the passage act by being looked at?

Attention knockout: Geva et al. 2023 ("Dissecting Recall of Factual Associations"), Section 5.

Question: what does the answer lose when the rows behind the passage cannot look at a unit,
          and how much of what its deletion costs is that?
Measure:  the cells of one unit are set to 0 in all rows behind the passage, in every head
          and layer of the site at once, each layer computing its attention on top of the
          edited ones below. Loss: log p(answer) − log p(answer | without the cells), in
          nats, and the total variation distance (a lower bound, of the tokens kept).
Operators: what becomes of the weight: it goes to all that the row still looks at, in
          proportion ("renormalised", as when scores are masked); nowhere ("none"); to the
          sink ("sink"). Where they differ much, the number is about the operator.
Mediated: Σ loss by knockout / Σ loss by deletion over the units that matter: a unit that
          is deleted is gone from every state, one that is knocked out is still in the
          states of the tokens behind it. 1: units act by being looked at. Less: they reach
          the answer through other tokens, which no attention map of the answer can show.
          Above 1 or below 0 is possible, and is not clipped.
Noise:    a unit matters where its deletion costs more than a threshold (.1 nats) and more
          than the way of deleting changes: |loss, the others closing up − loss, the others
          keeping their positions|. What is smaller than that cannot be told from the
          change of all positions.
Layers:   with a window of w layers, what the source's cells cost in layers l to l + w − 1.
Reading:  attention is graded against knockout as against deletion in ``sources``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    KNOCKOUTS,
    AnswersFromPassage,
    EditableInputs,
    Observation,
    Site,
)
from hf_attnprobe.faithfulness.correlation import ranks
from hf_attnprobe.faithfulness.options import Knockout
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.faithfulness.sources import FEW, deletion_effects, drops_of, log_prob
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.rank import gini_correlation, kendall_tau_b, top_overlap
from hf_attnprobe.readings import TestReadings, share


OF_MEDIATION = "renormalised"
"""The operator whose loss is compared with deletion's: a deleted unit's weight goes to all
that is left, too."""
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
    "mediated_share": (
        "taking away the cells of the units that matter costs {mean:.2f} of what deleting "
        "them costs"
    ),
    "units_that_matter": "{mean:.1f} units cost the answer more than noise when deleted",
    "source_in_layers": (
        "the source's cells in layers {key} alone cost the answer {mean:.2f} nats"
    ),
}


@dataclass(frozen=True)
class KnockoutResult:
    """All [batch]; by operator, losses in nats and distances in [0, 1].

    ``knockout_found`` and ``knockout_finds_source`` are in [0, 1], NaN where no knockout
    or no deletion costs anything or there is one unit; agreement and τ are in [−1, 1], NaN
    for 4 units or fewer. ``mediated_share`` is NaN where no unit matters.

    ``source_in_layers`` is by layers such as "0-3"; None without a window.
    """

    largest_knockout: Mapping[str, Tensor]
    largest_knockout_tvd: Mapping[str, Tensor]
    knockout_found: Mapping[str, Tensor]
    knockout_finds_source: Mapping[str, Tensor]
    knockout_agreement: Mapping[str, Tensor]
    knockout_tau: Mapping[str, Tensor]
    mediated_share: Tensor
    units_that_matter: Tensor
    source_in_layers: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    does="takes away the attention to one unit of the passage at a time",
    needs=(AnswersFromPassage, EditableInputs),
    default="answers",
    groups=True,
)
@torch.no_grad()
def knockout(
    observation: Observation, site: Site, options: Knockout = Knockout(), *, seed: int = 0
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
    for operator in KNOCKOUTS:
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
    columns = zip(*by_operator.values(), strict=True)
    largest, moved_most, found, finds_source, agreement, tau = (
        dict(zip(by_operator, column, strict=True)) for column in columns
    )
    lost, _ = knocked_out(observation, site, OF_MEDIATION)
    matters = units_that_matter(observation, options.least_effect)
    within = (lost * matters).sum(-1) / (effects * matters).sum(-1)
    return KnockoutResult(
        largest,
        moved_most,
        found,
        finds_source,
        agreement,
        tau,
        within.masked_fill(~matters.any(-1), torch.nan),
        matters.sum(-1).double(),
        _by_window(observation, site, effects, options.window),
    )


def knocked_out(observation: Observation, site: Site, operator: str) -> tuple[Tensor, Tensor]:
    """Nats lost and total variation without the cells of each unit, each [batch, keys].

    0 outside the passage.

    Args:
        operator: one of :data:`~hf_attnprobe.attention_model.KNOCKOUTS`.
    """

    def compute() -> tuple[Tensor, Tensor]:
        content = observation.batch.content_mask
        each = torch.eye(content.shape[-1], dtype=torch.bool, device=content.device)
        cells = each[content.any(0), None] & content  # [units, batch, keys]
        probs = _without_cells(observation, site, cells, operator, min(layers), max(layers))
        lost = drops_of(observation, probs), tvd(probs, observation.probs)
        whole = [torch.zeros(content.shape, dtype=x.dtype, device=x.device) for x in lost]
        for values, found in zip(whole, lost, strict=True):
            values[:, content.any(0)] = found.T
            values.masked_fill_(~content, 0)
        return whole[0], whole[1]

    layers = observation.model.members(site)
    return observation.remember(("knocked out", site, operator), compute)


def _without_cells(
    observation: Observation, site: Site, cells: Tensor, operator: str, first: int, last: int
) -> Tensor:
    """Probabilities without cells, bool [copies, batch, keys], in layers first to last.

    Of the heads of the site, in every row or in ``site.query``.
    """
    model = observation.model.require(AnswersFromPassage)
    kept = {}
    for layer, heads in observation.model.members(site).items():
        if not first <= layer <= last:
            continue
        attention = observation.attention[layer]
        n_heads, n_rows = attention.shape[1], attention.shape[2]
        rows = slice(None) if site.query is None else slice(site.query, site.query + 1)
        whole = len(heads) == n_heads and site.query is None
        shape = (1, 1) if whole else (n_heads, n_rows)
        stays = torch.ones(
            *cells.shape[:2], *shape, cells.shape[-1], dtype=attention.dtype, device=cells.device
        )
        here = slice(None) if whole else heads
        stays[:, :, here, rows] = (~cells[:, :, None, None]).to(attention.dtype)
        kept[layer] = stays
    return model.replay_masked(observation, kept, operator=operator)


def units_that_matter(observation: Observation, least_effect: float) -> Tensor:
    """Units whose deletion costs the answer more than its noise, bool [batch, keys]."""
    effects, gap = deletion_effects(observation), deletion_effects(observation, "gap")
    return (effects > (effects - gap).abs()) & (effects >= max(least_effect, 1e-12))


def mediated_shares(observation: Observation, site: Site, least_effect: float = 0.1) -> Tensor:
    """Loss by knockout over loss by deletion of every unit, [batch, keys]; NaN of others.

    Args:
        least_effect: see :class:`~hf_attnprobe.faithfulness.options.Knockout`.
    """
    lost, _ = knocked_out(observation, site, OF_MEDIATION)
    matters = units_that_matter(observation, least_effect)
    return (lost / deletion_effects(observation)).masked_fill(~matters, torch.nan)


def _by_window(
    observation: Observation, site: Site, effects: Tensor, window: int
) -> dict[str, Tensor] | None:
    """Nats lost without the source's cells in each window of layers; None without windows."""
    layers = observation.model.members(site)
    if not window or len(layers) < 2:
        return None
    content = observation.batch.content_mask
    best = effects.masked_fill(~content, -torch.inf)
    source = torch.zeros_like(content).scatter(1, best.argmax(-1, keepdim=True), True)
    found = {}
    for first in range(min(layers), max(max(layers) - window, min(layers)) + 2):
        last = min(first + window - 1, max(layers))
        probs = _without_cells(observation, site, source[None], OF_MEDIATION, first, last)
        lost = drops_of(observation, probs)[0]
        found[f"{first}-{last}"] = lost.masked_fill(best.amax(-1) <= 0, torch.nan)
        if last == max(layers):
            break
    return found
