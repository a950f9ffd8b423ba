"""Which units of the passage does the answer rest on, and does attention name them?

For language models that answer from a passage. Outputs are log-probabilities of the whole
answer, in nats: they saturate nowhere, so no temperature is needed.

Question: does the answer depend on the passage; is the unit with most attention the one
          that the answer rests on; in what order do the others follow?
Measure:  contextual gain = log p(answer | passage) − log p(answer | no passage). A unit's
          effect = log p(answer) − log p(answer | without the unit), the unit deleted and
          the others closing up (exact leave-one-out; AttriBoT, Liu et al. 2024). Of many
          units only the foremost are deleted, see ``units.py``.
Source:   the unit with the largest effect, where that is above 0: precision@1 of a
          ranking is 1 where it puts the source first. Beside it what needs no attention:
          chance, 1/U; the longest, the first and the last unit; and ``source_place``, from
          which follows how often the commonest place is the source.
Order:    Gini correlation of attention with the effects (functional/rank.py: a pair of
          units counts by how much their effects differ) and Kendall's τ-b, where all
          pairs count alike. Of 4 units or fewer there is neither.
Drop:     nats lost without the k units that a ranking puts first (top-k drop, ContextCite),
          mean over k of 1, 3 and 5, as far as a text has twice as many units. Beside it
          that of random units (of one exactly, of more by a draw a text), and the best: for
          each k the most that the effects' own order or any of these costs.
Mass:     overlap of attention with the positive effects, each divided by its sum over the
          units, beside the mean overlap over all ways of giving the weights to other units.
Sets:     on request every set of few units is deleted: exact Shapley values, and the smallest
          set without which greedy decoding says another token of the answer.
Masks:    on request a random half of the units is deleted again and again. ContextCite's
          LASSO is fitted to the answer's logit per token (64 masks in the paper), and the
          linear datamodeling score (LDS) says of every ranking how well the sum over the
          units that stay follows the logit on other masks.
Compare:  length, and deletion itself; of all attention also the last layer's; scores that
          somebody gave the units, see ``attnprobe judge``.
Reading:  precision@1 far above chance, length and place: attention finds the source. That it
          does does not mean that it explains, see ``knockout``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.correlation import ranks
from hf_attnprobe.faithfulness.input_erasure import erased_inputs
from hf_attnprobe.faithfulness.options import Sources
from hf_attnprobe.faithfulness.passage_units import (
    deletion_effects,
    drops_of,
    is_all_attention,
    log_prob,
    without,
)
from hf_attnprobe.faithfulness.rankings import GIVEN, given_scores
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional import aopc, attribution
from hf_attnprobe.functional.divergence import (
    distribution,
    overlap,
    overlap_by_chance,
)
from hf_attnprobe.functional.erasure import removal_rank
from hf_attnprobe.functional.intervention import drawn_order, random_generator
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


TOPS = (1, 3, 5)
NO_MAP = ("length", "first", "last")
"""Rankings that say nothing of how much a unit counts."""
NOT_COMPARED = ("first", "last", "deletion")
"""Rankings of which only is asked whether they find the source."""
NOT_DROPPED = ("length", "first", "last", "last layer")
"""Rankings whose first units are not deleted together."""
FEW = 4
"""Units up to which orders are not compared: at most 4! there are, many agree by chance."""
MASKS, HELD_OUT, RANDOM = 5, 6, 7  # streams of random numbers
READINGS: TestReadings = {
    "contextual_gain": "with the passage the answer gains {mean:.2f} nats of log-probability",
    "answer_is_greedy": share("greedy decoding says the answer in {mean:.0%} of texts"),
    "passage_share": "{mean:.2f} of the attention is on the passage",
    "sink_share": "{mean:.2f} of the attention is on the sink",
    "source_found": share(
        "the unit that {key} puts first is the one whose deletion costs the answer most in "
        "{mean:.0%} of texts"
    ),
    "source_agreement": (
        "{key} puts first what costs the answer most with a Gini correlation of {mean:.2f} "
        "(1 is the best order, 0 chance)"
    ),
    "source_tau": "{key} and deletion order the units with rank correlation {mean:.2f}",
    "shapley_agreement": (
        "{key} puts first the units of large Shapley value with a Gini correlation of {mean:.2f}"
    ),
    "source_place": "the source is unit {mean:.1f} of the passage on average, counted from 0",
    "drop": (
        "without the units that {key} puts first the answer loses {mean:.2f} nats (mean of the "
        "first 1, 3 and 5)"
    ),
    "mass": "{mean:.0%} of {key} lies on units in proportion to what they cost when deleted",
    "mass_by_chance": "at other units of the passage {mean:.0%} of {key} would",
    "unit_loss": "without unit {key} the answer loses {mean:.2f} nats",
    "unit_attention": "unit {key} has {mean:.2f} of the attention",
    "smallest_set": (
        "the smallest set of units without which the greedy answer changes has {mean:.1f} of "
        "them (mean over texts that have one)"
    ),
    "no_smallest_set": share("in {mean:.0%} of texts no set of units changes the greedy answer"),
    "lds": (
        "sums of what {key} says of the units follow the answer's logit with a rank "
        "correlation of {mean:.2f} over random sets of units (LDS)"
    ),
}


@dataclass(frozen=True)
class SourcesResult:
    """All [batch]. Gains, effects and drops are in nats and may be negative.

    By ranking: ``source_found`` is in [0, 1] (ties drawn), NaN where no deletion costs
    anything or there is one unit; agreements and τ are in [−1, 1], NaN for 4 units or
    fewer; masses are in [0, 1]. ``drop`` has ``random`` and ``best`` too, and is NaN where
    there is one unit. What is not measured is None.

    ``unit_loss`` and ``unit_attention`` are by number of the unit, of all attention only.

    ``smallest_set`` is NaN where no set changes the answer; it, ``no_smallest_set`` and
    what is said of Shapley values are NaN in texts of more units than ``exact_units``.
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
    shapley_agreement: Mapping[str, Tensor] | None = None
    smallest_set: Tensor | None = None
    no_smallest_set: Tensor | None = None
    lds: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    does="deletes the units of the passage and compares what is lost with attention",
    needs=(AnswersFromPassage, EditableInputs),
    default="on request",
    of_answers=Sources(),
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
    """Compares attention to the units of a passage with what the answer loses without them.

    Args:
        seed: of random units and masks.
    """
    model = observation.model.require(AnswersFromPassage)
    content = observation.batch.content_mask
    attention = observation.read(site)
    before = log_prob(observation)
    gain = before - model.log_prob(observation, model.without_passage(observation))
    effects = deletion_effects(observation)
    scores = _scores(observation, site, options, seed)
    order = _tied({**scores, "deletion": effects}, content, before)
    found, place = _found(order, effects, content)
    others = {name: ranked for name, ranked in order.items() if name not in NOT_COMPARED}
    given, wanted = _maps(scores, content), distribution(effects, content)
    is_whole = is_all_attention(observation, site)
    return SourcesResult(
        contextual_gain=gain,
        answer_is_greedy=model.is_greedy(observation).double(),
        passage_share=attention.masked_fill(~content, 0).sum(-1),
        sink_share=attention[..., -1],
        source_found=found,
        source_place=place,
        source_agreement=_agreements(others, effects, content),
        source_tau=_taus(others, order["deletion"], content),
        drop=_drops(observation, order, seed),
        mass={name: overlap(own, wanted) for name, own in given.items()},
        mass_by_chance={n: overlap_by_chance(own, wanted, content) for n, own in given.items()},
        unit_loss=by_unit(effects, content) if is_whole else None,
        unit_attention=by_unit(attention, content) if is_whole else None,
        **_of_all_sets(
            observation,
            others | {"deletion": order["deletion"]},
            options.exact_units,
        ),
        lds=_lds(observation, {**scores, "deletion": effects}, options, seed),
    )


def by_unit(values: Tensor, content: Tensor) -> dict[str, Tensor]:
    """Values of the units by their number, [batch, keys] -> [batch] each; NaN where there is none."""
    known = values.double().masked_fill(~content, torch.nan)
    return {str(k): known[:, k] for k in content.any(0).nonzero()[:, 0].tolist()}


# --- rankings ------------------------------------------------------------------------------


def _scores(observation: Observation, site: Site, options: Sources, seed: int) -> dict[str, Tensor]:
    """What each ranking says of the units, [batch, keys], attention first."""
    model = observation.model.require(AnswersFromPassage)
    attention = observation.read(site)
    place = torch.arange(attention.shape[-1], device=attention.device).expand_as(attention)
    scores = {
        "attention": attention,
        "length": model.unit_lengths(observation).to(attention.dtype),
        "first": -place.to(attention.dtype),
        "last": place.to(attention.dtype),
    }
    if site.layer == site.head == ALL and len(observation.attention) > 1:
        last = max(observation.model.members(site))
        scores["last layer"] = observation.read(Site(last, ALL, site.query))
    if options.masks:
        scores["contextcite"] = _contextcite(observation, options.masks, seed)
    if observation.batch.scores is not None:
        scores |= {name: given_scores(observation, name, seed) for name in GIVEN}
    return scores


def _maps(scores: Mapping[str, Tensor], content: Tensor) -> dict[str, Tensor]:
    """What rankings give each unit, as distributions over the units, [batch, keys]."""
    return {name: distribution(x, content) for name, x in scores.items() if name not in NO_MAP}


def _tied(scores: Mapping[str, Tensor], content: Tensor, before: Tensor) -> dict[str, Tensor]:
    """Dense ranks of the units, by ranking; what differs by rounding alone is equal."""
    size = before.abs()[:, None]
    units = {"deletion": size, "contextcite": size}
    units |= {name: scores[name].abs().amax(-1, True) for name in GIVEN if name in scores}
    return {name: ranks(x, content, units.get(name, 0.0)) for name, x in scores.items()}


def _found(
    order: Mapping[str, Tensor], effects: Tensor, content: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Precision@1 by ranking and by chance, and the place of the source, all [batch].

    NaN where there is one unit, or no deletion costs anything.
    """
    n_units = content.sum(-1)
    costs = effects.masked_fill(~content, -torch.inf)
    has_source = (costs.amax(-1) > 0) & (n_units > 1)
    found = {name: top_overlap(x, order["deletion"], content, 1) for name, x in order.items()}
    found["chance"] = 1 / n_units.double()
    place = costs.argmax(-1).double()
    found = {name: hit.where(has_source, torch.nan) for name, hit in found.items()}
    return found, place.where(has_source, torch.nan)


def _agreements(order: Mapping[str, Tensor], values: Tensor, content: Tensor) -> dict[str, Tensor]:
    """Gini correlation with values, by ranking; NaN for few units."""
    few = content.sum(-1) <= FEW
    return {
        name: gini_correlation(values, ranked, content).masked_fill(few, torch.nan)
        for name, ranked in order.items()
    }


def _taus(order: Mapping[str, Tensor], wanted: Tensor, content: Tensor) -> dict[str, Tensor]:
    """Kendall's τ-b, by ranking; NaN for few units."""
    few = content.sum(-1) <= FEW
    every = torch.stack([*order.values(), wanted], 1)
    taus = kendall_tau_b_matrix(every, content).tau
    with_wanted = taus[:, :-1, -1]
    known = with_wanted.masked_fill(few[:, None], torch.nan)
    by_ranking = known.unbind(1)
    return dict(zip(order, by_ranking, strict=True))


def _drops(observation: Observation, order: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Nats lost without the first units, by ranking, of random units and at best, all [batch]."""
    content = observation.batch.content_mask
    named = {n: removal_rank(x, content) for n, x in order.items() if n not in NOT_DROPPED}
    named["random"] = _random_turns(observation, seed)
    lost = _without_first(observation, torch.stack([*named.values()]))
    every = dict(zip(named, lost, strict=True)) | {"best": lost.amax(0)}
    of_one = deletion_effects(observation).sum(-1) / content.sum(-1)
    every["random"][0] = of_one.where(content.sum(-1) > 1, torch.nan)  # of one unit it is known
    return {name: by_k.nanmean(0) for name, by_k in every.items() if name != "deletion"}


def _without_first(observation: Observation, turns: Tensor) -> Tensor:
    """Nats lost without the first k units for every k; NaN where fewer are left.

    Shape: turns of the units, int [rankings, batch, keys] -> [rankings, tops, batch].
    """
    content = observation.batch.content_mask
    n_first = torch.tensor(TOPS, device=content.device)[:, None]
    leaves_enough = content.sum(-1) >= 2 * n_first
    removed = content & leaves_enough[..., None]
    sets = (turns[:, None] < n_first[..., None]) & removed
    lost = without(observation, sets.flatten(0, 1)).unflatten(0, sets.shape[:2])
    return lost.masked_fill(~leaves_enough, torch.nan)


def _random_turns(observation: Observation, seed: int) -> Tensor:
    """A random order of the units, int [batch, keys]."""
    content = observation.batch.content_mask
    turns = torch.zeros(content.shape, dtype=torch.long)
    for row, real in enumerate(content.cpu()):
        example_id = int(observation.batch.example_ids[row])
        order = drawn_order(seed, example_id, RANDOM, int(real.sum()))
        turns[row, real] = torch.from_numpy(order.copy())
    return turns.to(content.device)


# --- every set of few units ----------------------------------------------------------------


def _of_all_sets(
    observation: Observation, order: Mapping[str, Tensor], exact_units: int
) -> dict[str, Any]:
    """Fields of the result about all sets of units; none where no text has so few."""
    content = observation.batch.content_mask
    many = content.sum(-1) > exact_units
    if many.all():
        return {}
    drops, changes = all_sets(observation, exact_units)
    values = _at_units(attribution.shapley_values(drops), content & ~many[:, None])
    agreements = _agreements(order, values, content)
    smallest = attribution.smallest_set(changes)
    none = smallest.isnan().double()
    return {
        "shapley_agreement": {n: x.masked_fill(many, torch.nan) for n, x in agreements.items()},
        "smallest_set": smallest.masked_fill(many, torch.nan),
        "no_smallest_set": none.masked_fill(many, torch.nan),
    }


def all_sets(observation: Observation, exact_units: int) -> tuple[Tensor, Tensor]:
    """Every set of a text's units deleted, for texts of at most ``exact_units``.

    Returns:
        Nats that the answer loses, and whether the greedy answer changes, each
        [2^units, batch], numbered as in :func:`~hf_attnprobe.functional.aopc.subsets`.
        0 and False for texts of more units.
    """

    def compute() -> tuple[Tensor, Tensor]:
        content = observation.batch.content_mask
        content = content & (content.sum(-1, keepdim=True) <= exact_units)
        places = aopc.units_first(content)
        real = content.gather(1, places)
        sets = aopc.subsets(places.shape[1]).to(content.device)[:, None] & real
        gone = aopc.at_positions(sets, places, content.shape[1])
        probs = erased_inputs(observation, "deletion", gone)
        return drops_of(observation, probs), observation.flips(probs).bool()

    return observation.remember(("all sets", exact_units), compute)


def _at_units(values: Tensor, content: Tensor) -> Tensor:
    """Values of a text's units in their order, put at their keys; 0 elsewhere."""
    places = aopc.units_first(content)
    whole = torch.zeros(content.shape, dtype=values.dtype, device=values.device)
    return whole.scatter(1, places, values).masked_fill(~content, 0)


# --- random halves -------------------------------------------------------------------------


def masked_outputs(
    observation: Observation, n_masks: int, stream: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Random halves of the units, and the answer's logit per token with them alone.

    Returns:
        bool [masks, batch, keys], the units that stay, and [masks, batch].
    """

    def compute() -> tuple[Tensor, Tensor]:
        batch, model = (
            observation.batch,
            observation.model.require(AnswersFromPassage),
        )
        kept = torch.zeros(n_masks, *batch.content_mask.shape, dtype=torch.bool)
        for row, real in enumerate(batch.content_mask.cpu()):
            draws = random_generator(seed, int(batch.example_ids[row]), stream)
            stays = draws.integers(0, 2, (n_masks, int(real.sum()))).astype(bool)
            kept[:, row, real] = torch.from_numpy(stays)
        kept = kept.to(batch.content_mask.device)
        probs = erased_inputs(observation, "deletion", ~kept & batch.content_mask)
        n_tokens = observation.model.prediction.grouped(observation.probs).shape[-2]
        return kept, attribution.logit_of(model.log_prob(observation, probs).double()) / n_tokens

    return observation.remember(("masks", n_masks, stream, seed), compute)


def _contextcite(observation: Observation, n_masks: int, seed: int) -> Tensor:
    """LASSO weights of the units, [batch, keys]."""
    content = observation.batch.content_mask
    kept, outputs = masked_outputs(observation, n_masks, MASKS, seed)
    weights = torch.zeros(content.shape, dtype=outputs.dtype, device=outputs.device)
    for row, real in enumerate(content):
        weights[row, real] = attribution.lasso(kept[:, row, real], outputs[:, row])
    return weights


def _lds(
    observation: Observation,
    scores: Mapping[str, Tensor],
    options: Sources,
    seed: int,
) -> dict[str, Tensor] | None:
    """Linear datamodeling score, by ranking; None without masks."""
    if not options.masks:
        return None
    kept, outputs = masked_outputs(observation, options.held_out, HELD_OUT, seed)
    every = torch.ones_like(outputs.T, dtype=torch.bool)
    return {
        name: attribution.spearman((kept * values.double()).sum(-1).T, outputs.T, every)
        for name, values in scores.items()
    }
