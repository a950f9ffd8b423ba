"""Which units of the passage does the answer rest on, and does attention name them?

For language models that answer from a passage. Outputs are log-probabilities of the whole
answer, in nats.

Question: does the answer depend on the passage; is the unit with most attention the one
          that the answer rests on; in what order do the others follow?
Measure:  contextual gain = log p(answer | passage) − log p(answer | no passage). A unit's
          effect = log p(answer) − log p(answer | without the unit), the unit deleted and
          the others closing up (exact leave-one-out; AttriBoT, Liu et al. 2024).
Source:   the unit with the largest effect, where that is above 0: precision@1 of a
          ranking is 1 where it puts the source first. Beside it chance, 1/U, and the
          longest unit: a long unit collects attention by its length alone.
Order:    Gini correlation of attention with the effects (functional/rank.py: a pair of
          units counts by how much their effects differ) and Kendall's τ-b, where all
          pairs count alike. Of 4 units or fewer there is neither.
Drop:     nats lost without the k units that a ranking puts first (top-k drop, ContextCite),
          k of 1, 3 and 5, beside the drop by the effects' own order and by random units;
          of texts with more than k units.
Sets:     of few units every set is deleted: exact Shapley values, and the smallest set
          without which greedy decoding says another token of the answer.
Masks:    on request a random half of the units is deleted again and again. ContextCite's
          LASSO is fitted to the answer's logit per token (64 masks in the paper), and the
          linear datamodeling score (LDS) says of every ranking how well the sum over the
          units that stay follows the logit on other masks.
Compare:  length, and deletion itself; of all attention also the last layer's; scores that
          somebody gave the units, see ``attnprobe judge``.
Reading:  precision@1 far above chance and length: attention finds the source. That it does
          does not mean that it explains, see ``knockout``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    ALL,
    AnswersFromPassage,
    EditableInputs,
    Observation,
    Site,
)
from hf_attnprobe.faithfulness.correlation import ranks
from hf_attnprobe.faithfulness.input_erasure import erased_inputs
from hf_attnprobe.faithfulness.options import Sources
from hf_attnprobe.faithfulness.rankings import GIVEN, given_scores
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional import aopc, attribution
from hf_attnprobe.functional.erasure import removal_rank
from hf_attnprobe.functional.intervention import drawn_order, random_generator
from hf_attnprobe.functional.rank import gini_correlation, kendall_tau_b, top_overlap
from hf_attnprobe.readings import TestReadings, share


TOPS = (1, 3, 5)
N_RANDOM = 5  # orders of random units
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
    "drop_of_top_1": "without the unit that {key} puts first the answer loses {mean:.2f} nats",
    "drop_of_top_3": "without the 3 units that {key} puts first the answer loses {mean:.2f} nats",
    "drop_of_top_5": "without the 5 units that {key} puts first the answer loses {mean:.2f} nats",
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
    fewer. What is not measured is None.

    ``smallest_set`` is NaN where no set changes the answer; it, ``no_smallest_set`` and
    what is said of Shapley values are NaN in texts of more units than ``exact_units``.
    """

    contextual_gain: Tensor
    answer_is_greedy: Tensor
    passage_share: Tensor
    sink_share: Tensor
    source_found: Mapping[str, Tensor]
    source_agreement: Mapping[str, Tensor]
    source_tau: Mapping[str, Tensor]
    drop_of_top_1: Mapping[str, Tensor]
    drop_of_top_3: Mapping[str, Tensor]
    drop_of_top_5: Mapping[str, Tensor]
    shapley_agreement: Mapping[str, Tensor] | None = None
    smallest_set: Tensor | None = None
    no_smallest_set: Tensor | None = None
    lds: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    does="deletes the units of the passage and compares what is lost with attention",
    needs=(AnswersFromPassage, EditableInputs),
    default="answers",
    groups=True,
    in_haste=Sources(exact_units=0),
)
@torch.no_grad()
def sources(
    observation: Observation, site: Site, options: Sources = Sources(), *, seed: int = 0
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
    scores = {
        "attention": attention,
        "length": model.unit_lengths(observation).to(attention.dtype),
        "deletion": effects,
    }
    if site.layer == site.head == ALL:
        last = max(observation.model.members(site))
        scores["last layer"] = observation.read(Site(last, ALL, site.query))
    if options.masks:
        scores["contextcite"] = _contextcite(observation, options.masks, seed)
    if observation.batch.scores is not None:
        scores |= {name: given_scores(observation, name, seed) for name in GIVEN}
    order = _tied(scores, content, before)
    found = _first_among(order, order["deletion"], content)
    has_source = effects.masked_fill(~content, 0).amax(-1) > 0
    found = {name: hit.masked_fill(~has_source, torch.nan) for name, hit in found.items()}
    chance = 1 / content.sum(-1).double()
    found["chance"] = chance.where(has_source & (chance < 1), torch.nan)
    others = {name: ranked for name, ranked in order.items() if name != "deletion"}
    drops = _top_drops(observation, order, seed)
    return SourcesResult(
        gain,
        model.is_greedy(observation).double(),
        attention.masked_fill(~content, 0).sum(-1),
        attention[..., -1],
        found,
        _agreements(others, effects, content),
        _taus(others, order["deletion"], content),
        drops[1],
        drops[3],
        drops[5],
        **_of_all_sets(observation, order, options.exact_units),
        lds=_lds(observation, scores, options, seed),
    )


# --- what the answer loses -----------------------------------------------------------------


def log_prob(observation: Observation) -> Tensor:
    """Log-probability of the answer to the whole text, [batch]."""
    return observation.model.require(AnswersFromPassage).log_prob(observation, observation.probs)


def deletion_effects(observation: Observation, by: str = "deletion") -> Tensor:
    """Nats that the answer loses without each unit, [batch, keys]; 0 outside the passage.

    Args:
        by: "deletion", the others close up, or "gap", they keep their positions.
    """

    def compute() -> Tensor:
        content = observation.batch.content_mask
        if by == "deletion":
            return drops_of(observation, observation.leave_one_out.transpose(0, 1)).T
        each = torch.eye(content.shape[-1], dtype=torch.bool, device=content.device)
        return _without(observation, each[:, None] & content, by=by).T

    effects = observation.remember(("deletion effects", by), compute)
    return effects.masked_fill(~observation.batch.content_mask, 0)


def drops_of(observation: Observation, probs: Tensor) -> Tensor:
    """Nats that the answer loses, [..., batch, entries] -> [..., batch]."""
    model = observation.model.require(AnswersFromPassage)
    return log_prob(observation) - model.log_prob(observation, probs)


def _without(observation: Observation, sets: Tensor, *, by: str = "deletion") -> Tensor:
    """Nats that the answer loses without sets of units, bool [sets, batch, keys] -> [sets, batch]."""
    return drops_of(observation, erased_inputs(observation, by, sets))


# --- rankings ------------------------------------------------------------------------------


def _tied(scores: Mapping[str, Tensor], content: Tensor, before: Tensor) -> dict[str, Tensor]:
    """Dense ranks of the units, by ranking; what differs by rounding alone is equal."""
    size = before.abs()[:, None]
    units = {"deletion": size, "contextcite": size}
    units |= {name: scores[name].abs().amax(-1, True) for name in GIVEN if name in scores}
    return {name: ranks(x, content, units.get(name, 0.0)) for name, x in scores.items()}


def _first_among(order: Mapping[str, Tensor], wanted: Tensor, content: Tensor) -> dict[str, Tensor]:
    """Precision@1, by ranking; NaN where there is one unit."""
    alone = content.sum(-1) < 2
    return {
        name: top_overlap(ranked, wanted, content, 1).masked_fill(alone, torch.nan)
        for name, ranked in order.items()
    }


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
    return {
        name: kendall_tau_b(ranked, wanted, content).tau.masked_fill(few, torch.nan)
        for name, ranked in order.items()
    }


def _top_drops(
    observation: Observation, order: Mapping[str, Tensor], seed: int
) -> dict[int, dict[str, Tensor]]:
    """Nats lost without the first k units, by k and ranking; NaN where there are no more."""
    content = observation.batch.content_mask
    turns = {name: removal_rank(ranked, content) for name, ranked in order.items()}
    draws = [_random_turns(observation, seed, draw) for draw in range(N_RANDOM)]
    every = torch.stack([*turns.values(), *draws])
    sets = torch.stack([(every < k) & content for k in TOPS])  # [tops, rankings, batch, keys]
    lost = _without(observation, sets.flatten(0, 1)).unflatten(0, sets.shape[:2])
    found = {}
    for k, drops in zip(TOPS, lost, strict=True):
        drops = drops.masked_fill(content.sum(-1) <= k, torch.nan)
        named = dict(zip(turns, drops, strict=False))
        found[k] = named | {"random": drops[len(turns) :].mean(0)}
    return found


def _random_turns(observation: Observation, seed: int, draw: int) -> Tensor:
    """A random order of the units, int [batch, keys]."""
    content = observation.batch.content_mask
    turns = torch.zeros(content.shape, dtype=torch.long)
    for row, real in enumerate(content.cpu()):
        example_id = int(observation.batch.example_ids[row])
        order = drawn_order(seed, example_id, RANDOM + draw, int(real.sum()))
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
        batch, model = observation.batch, observation.model.require(AnswersFromPassage)
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
    observation: Observation, scores: Mapping[str, Tensor], options: Sources, seed: int
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
