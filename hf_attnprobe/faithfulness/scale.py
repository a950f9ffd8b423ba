"""How far does a ranking lie between a random order of the tokens and the best one?

The parts of faithfulness that leave tokens out; the fourth, erasure of weights, is measured by
the test ``erasure``, and ``statistics/scale.py`` makes one number of them.

Question:    does this attention name what this prediction of this model rests on?
Temperature: all is of probabilities after the logits are multiplied by one factor, with which
             the median lead of what is predicted is 3 nats (p = .95 of two classes). So nothing
             depends on how sure the model was trained to be.
Importance:  each token is left out in turn. Gini correlation of the ranking with how far the
             prediction then moves: 1 the best order, 0 a random one (Jain & Wallace 2019,
             Section 4.1, weighted; Schechtman & Yitzhaki 1987).
Removal:     what the prediction loses without the first 1, 5, 10, 20 and 50% of a ranking
             (comprehensiveness, DeYoung et al. 2020), beside that of a random order and of the
             best order known: of the rankings here, of leaving tokens out one after the other,
             each time the one that costs most, and of every order of texts of up to
             ``exact_units`` units (as normalised AOPC, Edin et al. 2025).
Mass:        overlap of the map with what matters, Σ min(α, w): w are the positive losses by
             leaving out, in texts of up to ``exact_units`` units the positive Shapley values,
             divided by their sum. Beside it the mean overlap of the same weights at other
             tokens. An order alone calls a map faithful that is bright at ten tokens of which
             one decides.
Nothing:     in a text without a token that matters by more than rounding, importance and mass
             are not defined. ``largest_loss`` says how much the most important token costs: in
             a class that is said by default next to nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings
from hf_attnprobe.faithfulness.input_erasure import erased_inputs, sets_of_tops
from hf_attnprobe.faithfulness.options import Scale
from hf_attnprobe.faithfulness.rankings import (
    GIVEN,
    OF_GROUP,
    OF_TEXT,
    importance,
    is_possible,
    ranking,
)
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional import aopc
from hf_attnprobe.functional.attribution import shapley_values
from hf_attnprobe.functional.divergence import (
    distribution,
    overlap,
    overlap_by_chance,
)
from hf_attnprobe.functional.erasure import removal_rank
from hf_attnprobe.functional.rank import gini_correlation
from hf_attnprobe.protocol import EditableInputs, Observation, Site


OF_HEAD = ("attention",)
OF_WHOLE = ("attention", "gradient", "product", *OF_GROUP)
WITHOUT_MASS = ("random", "leave_one_out")
"""A draw has no map, and leaving out is what maps are compared with."""
ROUNDING = 1e-6
"""Of probability at the standard temperature: what moves it by less may be rounding."""

READINGS: TestReadings = {
    "importance": (
        "{key} puts first what matters most when left out with a score of {mean:.2f} (1 is the "
        "best order, 0 a random one)"
    ),
    "mass": "{mean:.0%} of {key} lies on tokens in proportion to what they matter",
    "mass_by_chance": "at other tokens of the text {mean:.0%} of {key} would",
    "removal": (
        "without what {key} ranks first, the prediction loses {mean:.2f} of probability at the "
        "standard temperature (mean of the top 1 to 50%)"
    ),
    "largest_loss": (
        "the token that matters most costs {mean:.2f} of probability at the standard temperature"
    ),
}


@dataclass(frozen=True)
class ScaleResult:
    """By ranking, all [batch]. Importance is in [−1, 1], masses in [0, 1], removals in [−1, 1].

    ``removal`` has ``random`` and ``best`` too; ``best`` is at least as large as each of the
    others. NaN where nothing matters (importance, mass), or in texts without a unit.
    """

    importance: Mapping[str, Tensor]
    mass: Mapping[str, Tensor]
    mass_by_chance: Mapping[str, Tensor]
    removal: Mapping[str, Tensor]
    largest_loss: Tensor


@register_test(
    readings=READINGS,
    does="places attention between a random order of the tokens and the best one",
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
    """Measures importance, mass and removal of every ranking at the standard temperature.

    Args:
        seed: of the random ranking.
    """
    observation = observation.explaining(options.target)
    content = observation.batch.content_mask
    names = rankings_of(observation, site)
    ranked = {name: ranking(observation, site, name, seed=seed) for name in names}
    losses = left_out_losses(observation)
    largest = losses.masked_fill(~content, -torch.inf).amax(-1)
    matters = losses.abs().masked_fill(~content, 0).amax(-1) > ROUNDING

    def where_it_matters(values: Tensor) -> Tensor:
        return values.masked_fill(~matters, torch.nan)

    best, worth = _best_and_worth(observation, losses, options.exact_units)
    wanted = distribution(worth, content)
    agreement, mass, by_chance = {}, {}, {}
    for name, ranks in ranked.items():
        found = gini_correlation(losses.abs(), ranks, content)
        agreement[name] = where_it_matters(found)
        if name not in WITHOUT_MASS:
            values = importance(observation, site, name, seed=seed)
            given = distribution(values, content)
            chance = overlap_by_chance(given, wanted, content)
            mass[name] = where_it_matters(overlap(given, wanted))
            by_chance[name] = where_it_matters(chance)
    return ScaleResult(
        importance=agreement,
        mass=mass,
        mass_by_chance=by_chance,
        removal=_removals(observation, ranked, losses, best, options.greedy_units),
        largest_loss=largest.masked_fill(~content.any(-1), torch.nan),
    )


def rankings_of(observation: Observation, site: Site) -> tuple[str, ...]:
    """Returns the rankings that the scale places: of one head among many its attention alone."""
    is_whole = site.is_group or len(observation.model.sites()) == 1
    of_site = OF_WHOLE if is_whole else OF_HEAD
    names = (*of_site, *OF_TEXT, *GIVEN)
    return tuple(name for name in names if is_possible(observation, site, name))


def left_out_losses(observation: Observation) -> Tensor:
    """Returns what the prediction loses without each token, signed, [batch, keys]."""

    def compute() -> Tensor:
        without = observation.leave_one_out.transpose(0, 1)
        return observation.standard_losses(without).transpose(0, 1)

    return observation.remember(("left out losses", observation.explains), compute)


def _removals(
    observation: Observation,
    ranked: Mapping[str, Tensor],
    losses: Tensor,
    best: Tensor,
    greedy_units: int,
) -> dict[str, Tensor]:
    """Returns losses without the first tokens of every ranking, and of the best one, [batch].

    Args:
        ranked: dense ranks [batch, keys].
        losses: by leaving out, [batch, keys].
        best: of every order of short texts, [batch]; −∞ elsewhere.
    """
    content = observation.batch.content_mask
    turns = [removal_rank(ranks, content) for ranks in ranked.values()]
    turns.append(removal_rank(losses, content))
    turns.append(_greedy_turns(observation, losses, greedy_units))
    found = removal(observation, torch.stack(turns))
    removals = dict(zip(ranked, found, strict=False))
    removals["best"] = torch.maximum(found.amax(0), best)
    return removals


def removal(observation: Observation, turns: Tensor) -> Tensor:
    """Returns the mean loss without the first 1, 5, 10, 20 and 50% of the tokens.

    Args:
        turns: int [rankings, batch, keys], the turn at which each token leaves.

    Returns:
        [rankings, batch], of probability at the standard temperature.
    """
    tops = sets_of_tops(observation, turns)
    after = erased_inputs(observation, "deletion", tops.flatten(0, 1))
    lost = observation.standard_losses(after)
    return lost.unflatten(0, tops.shape[:2]).mean(0)


def _greedy_turns(observation: Observation, losses: Tensor, longest: int) -> Tensor:
    """Returns the turns of tokens that leave one by one, each time the one that costs most.

    Of texts of more than ``longest`` units those of leaving out. Only the first half of a text
    is searched: no more of it leaves.

    Shape: losses [batch, keys] -> int [batch, keys].
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    is_searched = (n_units <= longest) & (n_units > aopc.EXACT_UP_TO)
    scores = losses.clone()
    gone = torch.zeros_like(content)
    eye = torch.eye(content.shape[1], dtype=torch.bool, device=content.device)
    n_steps = 0
    if is_searched.any():
        n_leaving = (n_units + 1) // 2
        n_steps = int(n_leaving[is_searched].max())

    for step in range(n_steps):
        may_go = content & ~gone & is_searched[:, None]
        sets = (gone | eye[:, None]) & may_go.any(-1, keepdim=True)
        after = observation.standard_losses(erased_inputs(observation, "deletion", sets))
        costs = after.T.masked_fill(~may_go, -torch.inf)
        chosen = costs.argmax(-1, keepdim=True)
        first = torch.zeros_like(gone).scatter(1, chosen, True) & may_go
        before_the_rest = n_steps - step + 1.0
        scores = torch.where(first, before_the_rest, scores)
        gone |= first
    return removal_rank(scores, content)


def _best_and_worth(
    observation: Observation, losses: Tensor, exact_units: int
) -> tuple[Tensor, Tensor]:
    """Returns the largest removal of any order, and what each token is worth.

    Of texts of at most ``exact_units`` units from every set of them; of others −∞, and the
    losses by leaving out.

    Returns:
        [batch] and [batch, keys].
    """

    def compute() -> tuple[Tensor, Tensor]:
        content = observation.batch.content_mask
        is_short = content.sum(-1) <= exact_units
        n_units = content.sum(-1).where(is_short, 0)
        unknown = torch.full_like(losses[:, 0], -torch.inf)
        if not (n_units > 0).any():
            return unknown, losses
        short = content & is_short[:, None]
        positions = aopc.units_first(short)
        sets = aopc.every_set(short)
        after = erased_inputs(observation, "deletion", sets)
        drops = observation.standard_losses(after)
        _, largest = aopc.chain_bounds(drops, n_units, _step_weights(n_units))
        values = torch.zeros_like(losses).scatter(1, positions, shapley_values(drops))
        is_exact = n_units > 0
        return largest.where(is_exact, unknown), values.where(is_exact[:, None], losses)

    key = (
        "every set at the standard temperature",
        exact_units,
        observation.explains,
    )
    return observation.remember(key, compute)


def _step_weights(n_units: Tensor) -> Tensor:
    """Returns how many of the steps of removal erase so many units, as a share.

    Shape: [batch] -> [units + 1, batch].
    """
    sizes = torch.arange(int(n_units.max()) + 1, device=n_units.device)
    counts = aopc.removal_counts(n_units)
    return (counts == sizes[:, None, None]).double().mean(1)
