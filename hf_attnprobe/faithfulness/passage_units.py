"""What an answer loses without a unit of its passage: deleted, or knocked out.

Computed once a prompt, whichever tests read it. Losses are log p(answer) − log p(answer | without
the unit), in nats, and may be negative.

Many units: a knockout costs about the same however long the passage is, a deletion grows with it.
So of more than :data:`MANY` units all are knocked out, and only the foremost are deleted; what is
not deleted counts as costing nothing.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.input_erasure import erased_inputs
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.protocol import (
    ALL,
    AnswersFromPassage,
    Observation,
    Site,
)


WHOLE = Site(ALL, ALL)
RENORMALISED = "renormalised"
"""The operator whose loss is compared with deletion's: a deleted unit's weight goes to all
that is left, too."""
MANY = 16
"""Units up to which every one is deleted."""
LEAST_SHARE = 0.1
"""Of what the costliest unit costs, what a unit must cost to matter."""
BY_ATTENTION = 5
"""Of those that are deleted otherwise so many have most attention; the others cost most where
they are knocked out."""


def is_all_attention(observation: Observation, site: Site) -> bool:
    """Whether a site stands for all heads of the model."""
    members = observation.model.members(site)
    return sum(map(len, members.values())) == len(observation.model.sites())


def log_prob(observation: Observation) -> Tensor:
    """Log-probability of the answer to the whole text, [batch]."""
    return observation.model.require(AnswersFromPassage).log_prob(observation, observation.probs)


def drops_of(observation: Observation, probs: Tensor) -> Tensor:
    """Nats that the answer loses, [..., batch, entries] -> [..., batch]."""
    model = observation.model.require(AnswersFromPassage)
    return log_prob(observation) - model.log_prob(observation, probs)


def without(observation: Observation, sets: Tensor, *, by: str = "deletion") -> Tensor:
    """Nats that the answer loses without sets of units, bool [sets, batch, keys] -> [sets, batch].

    Args:
        by: "deletion", the others close up, or "gap", they keep their positions.
    """
    return drops_of(observation, erased_inputs(observation, by, sets))


# --- deletion ------------------------------------------------------------------------------


def deletion_effects(observation: Observation) -> Tensor:
    """Nats that the answer loses without each unit, [batch, keys]; 0 outside the passage."""

    def compute() -> Tensor:
        return _each(deleted_units(observation), partial(without, observation))

    return observation.remember("deletion effects", compute)


def contrast_effects(observation: Observation) -> Tensor:
    """Nats of its lead over another answer that the answer loses without each unit, [batch, keys].

    0 outside the passage, NaN of texts without another answer.
    """
    model = observation.model.require(AnswersFromPassage)
    before = model.contrast(observation, observation.probs)

    def lost(sets: Tensor) -> Tensor:
        probs = erased_inputs(observation, "deletion", sets)
        return before - model.contrast(observation, probs)

    return _each(deleted_units(observation), lost)


def deleted_units(observation: Observation) -> Tensor:
    """The units that are deleted one by one, bool [batch, keys]: all, or the foremost of many."""
    content = observation.batch.content_mask
    if int(content.sum(-1).max()) <= MANY:
        return content
    few = content.sum(-1, keepdim=True) <= MANY
    by_attention = _foremost(observation.read(WHOLE), content, BY_ATTENTION)
    lost, _ = knocked_out(observation, WHOLE, RENORMALISED)
    by_knockout = _foremost(lost, content & ~by_attention, MANY - BY_ATTENTION)
    return content & (few | by_attention | by_knockout)


def _foremost(scores: Tensor, among: Tensor, n: int) -> Tensor:
    """The n largest, bool [batch, keys]."""
    places = scores.masked_fill(~among, -torch.inf).topk(min(n, among.shape[-1])).indices
    return torch.zeros_like(among).scatter(-1, places, True) & among


def units_that_matter(observation: Observation, least_effect: float) -> Tensor:
    """Returns the units whose deletion costs more than its noise, bool [batch, keys].

    Noise is what the way of deleting changes: |loss, the others closing up − loss, the others
    keeping their positions|.

    Args:
        least_effect: nats; what costs less does not matter, nor what costs less than a tenth
            of the costliest unit.
    """

    def compute() -> Tensor:
        effects = deletion_effects(observation)
        share = LEAST_SHARE * effects.amax(-1, keepdim=True)
        least = share.clamp_min(max(least_effect, 1e-12))
        wanted = observation.batch.content_mask & (effects >= least)
        gap = _each(wanted, partial(without, observation, by="gap"))
        noise = (effects - gap).abs()
        return wanted & (effects > noise)

    return observation.remember(("units that matter", least_effect), compute)


def _each(wanted: Tensor, lost: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns nats lost without each of the wanted units, [batch, keys]; 0 of the others.

    Args:
        wanted: bool [batch, keys].
        lost: nats lost without sets of units, as :func:`without` takes them.
    """
    each = torch.zeros(wanted.shape, dtype=torch.float64, device=wanted.device)
    places = wanted.any(0).nonzero()[:, 0]
    if len(places):
        single = torch.eye(wanted.shape[-1], dtype=torch.bool, device=wanted.device)[places]
        each[:, places] = lost(single[:, None] & wanted).T
    return each.masked_fill(~wanted, 0)


# --- knockout ------------------------------------------------------------------------------


def knocked_out(observation: Observation, site: Site, operator: str) -> tuple[Tensor, Tensor]:
    """Returns nats lost and total variation without each unit's cells, each [batch, keys].

    0 outside the passage.

    Args:
        operator: one of :data:`~hf_attnprobe.protocol.KNOCKOUTS`.
    """

    def compute() -> tuple[Tensor, Tensor]:
        content = observation.batch.content_mask
        is_unit = content.any(0)
        each = torch.eye(content.shape[-1], dtype=torch.bool, device=content.device)
        cells = each[is_unit, None] & content  # [units, batch, keys]
        probs = _without_cells(observation, site, cells, operator)

        def at_keys(found: Tensor) -> Tensor:
            values = torch.zeros(content.shape, dtype=found.dtype, device=found.device)
            values[:, is_unit] = found.T
            return values.masked_fill(~content, 0)

        lost = drops_of(observation, probs)
        moved = tvd(probs, observation.probs)
        return at_keys(lost), at_keys(moved)

    return observation.remember(("knocked out", site, operator), compute)


def _without_cells(observation: Observation, site: Site, cells: Tensor, operator: str) -> Tensor:
    """Probabilities without cells, bool [copies, batch, keys], of the heads of a site.

    In every row, or in ``site.query``.
    """
    model = observation.model.require(AnswersFromPassage)
    kept = {}
    for layer, heads in observation.model.members(site).items():
        attention = observation.attention[layer]
        n_heads, n_rows = attention.shape[1], attention.shape[2]
        rows = slice(None) if site.query is None else slice(site.query, site.query + 1)
        whole = len(heads) == n_heads and site.query is None
        shape = (1, 1) if whole else (n_heads, n_rows)
        stays = torch.ones(
            *cells.shape[:2],
            *shape,
            cells.shape[-1],
            dtype=attention.dtype,
            device=cells.device,
        )
        here = slice(None) if whole else heads
        stays[:, :, here, rows] = (~cells[:, :, None, None]).to(attention.dtype)
        kept[layer] = stays
    return model.replay_masked(observation, kept, operator=operator)
