"""Do the tokens that attention ranks first carry the prediction?

Comprehensiveness and sufficiency: DeYoung et al. 2020.

Question: does the prediction fall without the tokens with most attention, and does it
          stand on them alone?
Measure:  with p the predicted class's probability, and the model run again on the
          changed text:
          comprehensiveness = p(text) − p(text without its top tokens), sufficiency =
          p(text) − p(top tokens only), each the mean over the top 1, 5, 10, 20 and 50%
          of the text's tokens (AOPC), their number rounded up, at least 1, as in the
          code of ERASER's own models; special tokens always stay. Tokens are deleted,
          or replaced by a mask. Normalised (NAOPC; Edin et al. 2025): the mean over
          every step 1, …, T, placed between the least and the most that any order of
          this text's tokens reaches with this model; tokens leave in the ranking's
          order for comprehensiveness and in reverse for sufficiency. Exact up to 8
          tokens, by a beam search above.
          Tokens to flip, on request: the share of the text's tokens that is gone when
          the decision first changes, as they leave in the ranking's order until one is
          left. All rankings are compared on the texts that one of them flips; there a
          ranking that never does counts as all tokens.
Target:   with a class to explain the decision is for it or not for it, and p that of the
          side the text is on: of the class, or of all others together.
Compare:  attention with attention × its gradient, gradients, leave-one-out, and a
          random ranking. Of a layer: mean attention, rollout up to it, norm-based, value
          zeroing and its rollout; of all attention: the mean over all heads, the mean of
          the last layer's, and rollout to it; of a set of heads: their mean.
Reading:  high comprehensiveness and low sufficiency speak for a ranking, as far as they
          part from the random one's. Only the normalised values may be compared between
          models. Erased texts are unlike those the model was trained on (Hase et al.
          2021): name the operator with the number, and see ``erased_share``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import InputErasure
from hf_attnprobe.faithfulness.rankings import (
    group_readings,
    is_possible,
    ranking,
    rankings_of_text,
    removals_until,
    tied,
)
from hf_attnprobe.faithfulness.registry import (
    AuditPreview,
    register_test,
)
from hf_attnprobe.functional import aopc
from hf_attnprobe.functional.erasure import never_as_all, removal_rank
from hf_attnprobe.protocol import (
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)


OF_SITE = ("attention", "product")
FLAGS_AT_ONCE = 1 << 22
"""Copies × texts × positions of erased sets that are looked through together."""

CAUTION = (
    "Texts with tokens deleted or masked are unlike those that the model was trained on, "
    "so what is lost mixes two things: that the tokens mattered, and that the "
    "model reads such texts badly (Hase et al. 2021). Comprehensiveness leaves out up to "
    "half of a text, sufficiency up to all but one of its tokens. Read both against the "
    "random ranking, which erases as many; other operators give other numbers."
)
OPERATOR = "deleted, or masked where by=mask"
READINGS: TestReadings = {
    "comprehensiveness": (
        "with what {key} ranks first taken out of the text "
        f"({OPERATOR}), {{said}} "
        "loses {mean:.3f} {amount}{aside} (mean of the top 1 to 50%)"
    ),
    "sufficiency": (
        "with all but what {key} ranks first taken out of the text "
        f"({OPERATOR}), "
        "{said} loses {mean:.3f} {amount}{aside} (mean of the top 1 to 50%)"
    ),
    "erased_share": share(
        "comprehensiveness takes out {mean:.0%} of a text's tokens on average, and "
        "sufficiency all others"
    ),
    "naopc_comprehensiveness": (
        f"taking out ({OPERATOR}) "
        "first what {key} ranks first scores {mean:.2f} on the scale from the mildest "
        "order to the worst"
    ),
    "naopc_sufficiency": (
        f"taking out ({OPERATOR}) "
        "last what {key} ranks first scores {mean:.2f} on the scale from the mildest "
        "order to the worst"
    ),
    "tokens_to_flip": share(
        "{mean:.0%} of the tokens are gone when the decision flips, taken out of the "
        f"text ({OPERATOR}) in the "
        "order of {key} (mean over texts that one of the orders flips; never counts as "
        "all)"
    ),
    "tokens_never_flip": share(
        "in {mean:.0%} of the texts that one of the orders flips, tokens taken out in "
        "the order of {key} never flip the decision"
    ),
    "no_tokens_flip": share(
        "in {mean:.0%} of texts none of the orders of taking tokens out flips the decision"
    ),
}


def _check(preview: AuditPreview, options: InputErasure) -> None:
    """Checks that the model reads a text of special tokens alone."""
    shortest = preview.shortest
    everything = shortest.batch.content_mask[None]
    model = shortest.model.require(EditableInputs)
    model.erase_inputs(shortest, everything, by=options.by)


@dataclass(frozen=True)
class InputErasureResult:
    """Differences of probabilities by ranking, all [batch], in [−1, 1].

    ``erased_share`` is the share of a text's tokens that comprehensiveness takes out in
    the mean of its steps, the same for all rankings. The normalised ones are in [0, 1]:
    None where they were not asked for, NaN where every order is as good.

    ``tokens_to_flip`` is in (0, 1], ``tokens_never_flip`` and ``no_tokens_flip`` are 0 or
    1; None where they were not asked for. All are NaN in texts of one token, and the
    first two in texts that no order flips.
    """

    comprehensiveness: Mapping[str, Tensor]
    sufficiency: Mapping[str, Tensor]
    erased_share: Tensor
    naopc_comprehensiveness: Mapping[str, Tensor] | None = None
    naopc_sufficiency: Mapping[str, Tensor] | None = None
    tokens_to_flip: Mapping[str, Tensor] | None = None
    tokens_never_flip: Mapping[str, Tensor] | None = None
    no_tokens_flip: Tensor | None = None


@register_test(
    readings=READINGS,
    does="takes the tokens with most attention out of the text",
    needs=(Differentiable, EditableInputs),
    groups=True,
    check=_check,
)
def input_erasure(
    observation: Observation,
    site: Site,
    options: InputErasure = InputErasure(),
    *,
    seed: int = 0,
) -> InputErasureResult:
    """ERASER's comprehensiveness and sufficiency of attention and of other rankings.

    Args:
        seed: of the random ranking.

    Raises:
        AttnProbeError: there is no token to mask with.
    """
    observation = observation.explaining(options.target)
    by, content = options.by, observation.batch.content_mask
    own = rankings_at(observation, site)
    ranked = dict(own)
    for name in rankings_of_text(observation):
        ranked[name] = ranking(observation, site, name, seed=seed)
    turns = torch.stack([removal_rank(ranks, content) for ranks in ranked.values()])

    def named(values: Tensor) -> dict[str, Tensor]:
        return dict(zip(ranked, values, strict=True))

    comprehensiveness, sufficiency = map(named, _tops(observation, by, turns))
    n_units = content.sum(-1)
    shares = aopc.removal_counts(n_units) / n_units.clamp_min(1)
    on_request: dict[str, Any] = {}
    if options.tokens_to_flip:
        on_request |= _flips(observation, options, list(ranked), turns)
    if options.beam_width:
        chains = _chains(observation, by, turns)
        tried = chains[:, len(own) :]
        key = f"bounds {by} {seed}", options.beam_width, observation.explains
        lower, upper = observation.remember(
            key, lambda: _bounds(observation, by, options.beam_width, tried)
        )
        comprehensive, sufficient = aopc.normalised(chains, lower, upper)
        on_request["naopc_comprehensiveness"] = named(comprehensive)
        on_request["naopc_sufficiency"] = named(sufficient)
    return InputErasureResult(comprehensiveness, sufficiency, shares.mean(0), **on_request)


def rankings_at(observation: Observation, site: Site) -> dict[str, Tensor]:
    """Dense ranks [batch, keys] of the units by a head or a group of heads, by name."""
    if not site.is_group:
        possible = (name for name in OF_SITE if is_possible(observation, site, name))
        return {name: ranking(observation, site, name) for name in possible}
    content = observation.batch.content_mask
    readings = group_readings(observation, site)
    return {name: tied(name, values, content) for name, values in readings.items()}


def sets_of_tops(observation: Observation, turns: Tensor) -> Tensor:
    """Marks the first tokens of each ranking at ERASER's steps.

    Shape: turns int [rankings, batch, keys] -> bool [steps, rankings, batch, keys].
    """
    content = observation.batch.content_mask
    counts = aopc.removal_counts(content.sum(-1))
    return (turns < counts[:, None, :, None]) & content


def _tops(observation: Observation, by: str, turns: Tensor) -> Tensor:
    """AOPC over ERASER's shares: comprehensiveness and sufficiency.

    Shape: [2, rankings, batch].
    """
    content = observation.batch.content_mask
    top = sets_of_tops(observation, turns)
    sets = torch.stack([top, content & ~top])  # [2, steps, rankings, batch, keys]
    return _drops(observation, by, sets.flatten(0, 2)).unflatten(0, sets.shape[:3]).mean(1)


def _chains(observation: Observation, by: str, turns: Tensor) -> Tensor:
    """Returns AOPC over every step: tokens removed in the ranking's order and in reverse.

    Shape: [2, rankings, batch].
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    n_steps = int(n_units.max())
    steps = torch.arange(1, n_steps + 1, device=content.device)
    steps = steps[:, None, None, None]

    in_reverse = n_units[:, None] - 1 - turns
    both = torch.stack([turns, in_reverse])
    sets = (both < steps[..., None]) & content  # [steps, 2, rankings, batch, keys]
    drops = _drops(observation, by, sets.flatten(0, 2))
    drops = drops.unflatten(0, sets.shape[:3])
    has_step = steps <= n_units
    total = (drops * has_step).sum(0)
    return total / n_units


def _bounds(observation: Observation, by: str, beam: int, tried: Tensor) -> Tensor:
    """Lowest and highest AOPC of any order, [2, batch].

    Exact for short texts. For others the furthest that were found, by the beam or among
    ``tried`` [2, rankings, batch], the orders that do not depend on the site.
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    short = n_units <= aopc.EXACT_UP_TO
    # Of texts that are not short the empty set alone.
    lattice = aopc.every_set(content & short[:, None])
    lattice = _drops(observation, by, lattice)
    exact = torch.stack(aopc.chain_bounds(lattice, n_units.where(short, 0)))
    if short.all():
        return exact
    drops = partial(_drops, observation, by)
    lower, upper = aopc.beam_bounds(drops, content & ~short[:, None], beam)
    orders = tried.flatten(0, 1)
    lower = torch.minimum(lower, orders.amin(0))
    upper = torch.maximum(upper, orders.amax(0))
    return torch.where(short, exact, torch.stack([lower, upper]).to(exact.dtype))


def _flips(
    observation: Observation,
    options: InputErasure,
    names: Sequence[str],
    turns: Tensor,
) -> dict[str, Any]:
    """Fields of the result about when the decision flips, by name.

    Args:
        names: of the rankings.
        turns: [rankings, batch, keys].
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    counts = aopc.removal_steps(n_units, options.n_steps)

    def happens(gone: Tensor) -> Tensor:
        after = erased_inputs(observation, options.by, gone)
        return observation.flips(after)[None]

    (n_removed,) = removals_until(happens, 1, turns, content, counts)
    flips = ~n_removed.isnan()
    can_flip = flips.any(0)
    counted = never_as_all(n_removed, n_units, can_flip)
    never = (~flips).double().masked_fill(~can_flip, torch.nan)
    none = (~can_flip).double().masked_fill(n_units < 2, torch.nan)
    return {
        "tokens_to_flip": dict(zip(names, counted / n_units, strict=True)),
        "tokens_never_flip": dict(zip(names, never, strict=True)),
        "no_tokens_flip": none,
    }


def erased_inputs(observation: Observation, by: str, erased: Tensor) -> Tensor:
    """Probabilities without the erased units, computed a few copies at a time.

    Shape: [copies, batch, keys] -> [copies, batch, classes].
    """
    model = observation.model.require(EditableInputs)
    at_once = max(1, FLAGS_AT_ONCE // erased[0].numel())
    parts = erased.split(at_once)
    return torch.cat([model.erase_inputs(observation, part, by=by) for part in parts])


def _drops(observation: Observation, by: str, erased: Tensor) -> Tensor:
    """Drop of the probability of the predicted side when units are erased.

    Shape: [copies, batch, keys] -> [copies, batch].
    """
    return losses(observation, erased_inputs(observation, by, erased))


def losses(observation: Observation, after: Tensor) -> Tensor:
    """Drop of the probability of the predicted side, [copies, batch, classes] -> [copies, batch]."""
    before = observation.explained_probs(observation.probs)
    return (before - observation.explained_probs(after)) * observation.side[:, 0]
