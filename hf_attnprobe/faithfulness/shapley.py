"""Does attention rank tokens as every set of them counts?

Shapley 1953; limits of rankings: Edin et al. 2025; interactions: Grabisch & Roubens 1999.

Question: leave-one-out misses what two tokens carry together, or each in place of the
          other; do tokens with more attention count more over all sets of tokens?
Measure:  every set of a text's units is taken out once, of 12 units 4,096 sets: deleted,
          masked, or their attention weights set to 0. From these outputs follow exactly:
          Shapley values (how far the prediction falls when a unit leaves, over all orders
          of leaving), leave-one-out, the area under any ranking's removal with the limits
          over all orders (NAOPC), the interaction of two units, the smallest set without
          which the decision flips, and the smallest that keeps it alone.
Longer:   of texts with more units the values are means over random orders, with the half
          width of their 95% intervals, and nothing that needs every set is said. Or they
          are cut into phrases, as many as units may be, that leave as a whole; a phrase
          ranks as its best unit does.
Compare:  attention and attention × its gradient, gradients, leave-one-out and a random
          ranking; of groups of heads the readings of ``input_erasure``.
Target:   as in ``input_erasure``; values are signed, what speaks for the side that the text
          is on counts most.
Reading:  1 is the order of the Shapley values, 0 chance. They are one fair share among
          others, of a model that reads texts unlike those it knows: name the operator with
          the number.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.erasure import erased
from hf_attnprobe.faithfulness.input_erasure import (
    erased_inputs,
    losses,
    rankings_at,
)
from hf_attnprobe.faithfulness.options import Shapley
from hf_attnprobe.faithfulness.rankings import (
    is_possible,
    ranking,
    rankings_of_text,
    tied,
)
from hf_attnprobe.faithfulness.registry import (
    AuditPreview,
    register_test,
)
from hf_attnprobe.functional import aopc, attribution
from hf_attnprobe.functional.erasure import never_as_all, removal_rank
from hf_attnprobe.functional.intervention import random_permutations
from hf_attnprobe.functional.rank import (
    gini_correlation,
    heaviest,
    kendall_tau_b,
    precision,
)
from hf_attnprobe.protocol import EditableInputs, Observation, Site


ORDER_STREAM = 1 << 42  # added to the seed: other shuffles than those of other tests

READINGS: TestReadings = {
    "shapley_tau": (
        "{key} and Shapley values order the units with rank correlation {mean:.2f} (1 is the "
        "same order)"
    ),
    "shapley_agreement": (
        "{key} puts first what has the largest Shapley values with a Gini correlation of "
        "{mean:.2f} (1 is the best order, 0 chance)"
    ),
    "shapley_precision": (
        "{mean:.2f} of the units that together hold half of what speaks for the prediction are "
        "among as many that {key} ranks first"
    ),
    "comprehensiveness": (
        "taking out first what {key} ranks first, {said} loses {mean:.3f} {amount}{aside} (mean "
        "of every step)"
    ),
    "sufficiency": (
        "taking out last what {key} ranks first, {said} loses {mean:.3f} {amount}{aside} (mean "
        "of every step)"
    ),
    "naopc_comprehensiveness": (
        "taking out first what {key} ranks first scores {mean:.2f} on the scale from the "
        "mildest of all orders to the worst"
    ),
    "naopc_sufficiency": (
        "taking out last what {key} ranks first scores {mean:.2f} on the scale from the "
        "mildest of all orders to the worst"
    ),
    "lowest_area": (
        "in the mildest of all orders {said} loses {mean:.3f} {amount}{aside} (mean of every step)"
    ),
    "highest_area": (
        "in the worst of all orders {said} loses {mean:.3f} {amount}{aside} (mean of every step)"
    ),
    "largest_value": "the largest Shapley value of a text is {mean:.3f} in size",
    "largest_interaction": "the largest interaction of two units is {mean:.3f} in size",
    "necessary_units": (
        "in the order of {key}, {decision} flips when {mean:.1f} units are gone (of texts that "
        "some set flips; never counts as all)"
    ),
    "no_necessary_set": share("in {mean:.0%} of texts no set of units flips {decision}"),
    "sufficient_units": (
        "in the order of {key}, the first {mean:.1f} units keep {decision} by themselves"
    ),
    "half_width": (
        "a Shapley value of random orders is known to ±{mean:.3f} (half of its 95% interval, "
        "mean over the units of longer texts)"
    ),
    "is_exact": share("of {mean:.0%} of texts every set of units was taken out"),
}


@dataclass(frozen=True)
class ShapleyResult:
    """All [batch], or [batch] by ranking.

    τ and agreements are in [−1, 1], NaN in texts of one unit; precision is in [0, 1], NaN
    where nothing speaks for the prediction. Areas and values are differences of
    probabilities, in [−1, 1].

    ``necessary_units`` and ``sufficient_units`` are numbers of units, of the ranking
    ``smallest`` those of the smallest sets; the first are NaN where no set flips the
    decision, the others 0 where nothing is left of the text and it stays. A model that makes
    no decisions has neither.

    What needs every set is NaN in texts of which only random orders were tried, and
    ``half_width`` in the others.
    """

    shapley_tau: Mapping[str, Tensor]
    shapley_agreement: Mapping[str, Tensor]
    shapley_precision: Mapping[str, Tensor]
    comprehensiveness: Mapping[str, Tensor]
    sufficiency: Mapping[str, Tensor]
    naopc_comprehensiveness: Mapping[str, Tensor]
    naopc_sufficiency: Mapping[str, Tensor]
    lowest_area: Tensor
    highest_area: Tensor
    largest_value: Tensor
    largest_interaction: Tensor
    half_width: Tensor
    is_exact: Tensor
    necessary_units: Mapping[str, Tensor] = field(default_factory=dict)
    no_necessary_set: Tensor | None = None
    sufficient_units: Mapping[str, Tensor] = field(default_factory=dict)


def _check(preview: AuditPreview, options: Shapley) -> None:
    """Checks that the model reads a text of special tokens alone."""
    game = _Game(preview.shortest, preview.sites[0], options)
    game.play(game.real[None])


@register_test(
    readings=READINGS,
    does="takes every set of a text's tokens out and compares what each counts with attention",
    needs=(EditableInputs,),
    default="on request",
    groups=True,
    check=_check,
)
@torch.no_grad()
def shapley(
    observation: Observation,
    site: Site,
    options: Shapley = Shapley(),
    *,
    seed: int = 0,
) -> ShapleyResult:
    """Compares rankings with exact Shapley values, and with the best and worst of all orders.

    Args:
        seed: of the random ranking and of random orders.
    """
    game = _Game(observation.explaining(options.target), site, options)
    ranked = game.rankings(seed)
    drops, flips = game.every_set()
    values, half_width = game.values(drops, seed)
    fair = tied("shapley", values, game.real)
    speaks_for = heaviest(values.clamp_min(0), game.real)
    n_listed = len(drops).bit_length() - 1  # units of the longest text of which every set is known
    turns = removal_rank(torch.stack([*ranked.values()]), game.real)[..., :n_listed]
    return ShapleyResult(
        shapley_tau={n: kendall_tau_b(x, fair, game.real).tau for n, x in ranked.items()},
        shapley_agreement={n: gini_correlation(values, x, game.real) for n, x in ranked.items()},
        shapley_precision={n: precision(x, speaks_for, game.real) for n, x in ranked.items()},
        largest_value=values.abs().amax(-1),
        half_width=half_width,
        is_exact=game.is_exact.double(),
        **_of_orders(game, drops, ranked, turns),
        **_of_decisions(game, flips, ranked, turns),
    )


class _Game:
    """The units of each text as players: some are taken out, and the prediction falls.

    Attributes:
        n_units: int [batch].
        real: bool [batch, units], whether a text has so many.
        is_exact: bool [batch], whether every set of its units is taken out.
    """

    def __init__(self, observation: Observation, site: Site, options: Shapley):
        self.observation = observation
        self.site = site
        self.options = options
        self.content = observation.batch.content_mask
        n_whole = self.content.sum(-1)
        most = options.exact_units if options.longer == "phrases" else int(n_whole.max())
        self.n_units = n_whole.clamp(max=most)
        n_units = self.n_units[:, None]
        place = (self.content.cumsum(-1) - 1).clamp_min(0)
        self.unit_of = place * n_units // n_whole[:, None]  # [batch, keys]
        units = torch.arange(int(n_units.max()), device=place.device)
        self.real = units < n_units
        self.is_exact = self.n_units <= options.exact_units

    def rankings(self, seed: int) -> dict[str, Tensor]:
        """Ranks of the units by name, each [batch, units]; of a phrase that of its best unit."""
        found = rankings_at(self.observation, self.site)
        for name in rankings_of_text(self.observation):
            if is_possible(self.observation, self.site, name):
                found[name] = ranking(self.observation, self.site, name, seed=seed)
        lowest = torch.full(self.real.shape, -1, device=self.real.device)
        return {
            name: lowest.to(x).scatter_reduce(
                1, self.unit_of, x.masked_fill(~self.content, -1), "amax"
            )
            for name, x in found.items()
        }

    def play(self, sets: Tensor) -> tuple[Tensor, Tensor]:
        """Takes sets of units out, bool [sets, batch, units].

        Returns:
            How far the probability of the predicted side falls, and whether the decision
            flips, both [sets, batch].
        """
        unit_of = self.unit_of.expand(len(sets), -1, -1)
        gone = sets.gather(-1, unit_of) & self.content
        if self.options.by == "attention":
            after = erased(self.observation, self.site, gone, all_zero=True)
        else:
            after = erased_inputs(self.observation, self.options.by, gone)
        lost = losses(self.observation, after).double()
        flips = self.observation.flips(after) == 1
        return lost, flips

    def every_set(self) -> tuple[Tensor, Tensor]:
        """:meth:`play` of all sets, each [2^units, batch]: none of texts that have too many."""

        def compute() -> tuple[Tensor, Tensor]:
            n_exact = self.n_units.where(self.is_exact, 0)
            most = max(1, int(n_exact.max()))
            real = self.real & self.is_exact[:, None]
            real = real[:, :most]
            every = aopc.subsets(most).to(real.device)
            sets = every[:, None] & real
            padding = (0, self.real.shape[1] - most)
            sets = torch.nn.functional.pad(sets, padding)
            return self.play(sets)

        if self.options.by == "attention":
            return compute()
        key = "every set", self.options, self.observation.explains
        return self.observation.remember(key, compute)

    def values(self, drops: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Returns Shapley values [batch, units], and the half width of their intervals [batch].

        Args:
            drops: of all sets; of texts that have too many the values are means over orders.
        """
        exact = attribution.shapley_values(drops)
        n_missing = self.real.shape[1] - exact.shape[1]
        values = torch.nn.functional.pad(exact, (0, n_missing))
        if self.is_exact.all():
            unknown = torch.full_like(values[:, 0], torch.nan)
            return values, unknown
        own = self.real & ~self.is_exact[:, None]
        gains = self._gains(own, seed)
        drawn, error = attribution.mean_over_orders(gains)
        critical = float(stdtrit(len(gains) - 1, 0.975))
        total = (error * own).sum(-1)
        half_width = critical * total / own.sum(-1)
        values = torch.where(own, drawn, values)
        return values, half_width

    def _gains(self, own: Tensor, seed: int) -> Tensor:
        """How far the prediction falls further as a unit leaves, [orders, batch, units]."""
        turns = random_permutations(
            own[:, None],
            self.options.n_orders,
            seed=seed + ORDER_STREAM,
            example_ids=self.observation.batch.example_ids,
        )[:, :, 0]
        steps = torch.arange(own.shape[1] + 1, device=own.device)[:, None, None, None]
        gone = (turns < steps) & own
        drops, _ = self.play(gone.flatten(0, 1))
        return (
            drops.unflatten(0, gone.shape[:2])
            .diff(dim=0)
            .gather(0, turns.movedim(-1, 0))
            .movedim(0, -1)
        )

    def exactly(self, found: Tensor) -> Tensor:
        """[..., batch]: NaN in texts of which not every set was taken out."""
        return found.double().masked_fill(~self.is_exact, torch.nan)


def _of_orders(game: _Game, drops: Tensor, ranked: Iterable[str], turns: Tensor) -> dict[str, Any]:
    """Fields of the result about areas, their limits, and interactions.

    Args:
        turns: of each unit by each ranking, int [rankings, batch, units].
    """
    n_units = game.n_units.where(game.is_exact, 1)
    lower, upper = aopc.chain_bounds(drops, n_units)
    first, last = (
        game.exactly(aopc.area_along(drops, order, n_units))
        for order in (turns, n_units[:, None] - 1 - turns)
    )
    areas = {"comprehensiveness": first, "sufficiency": last}
    scaled = {f"naopc_{name}": aopc.normalised(x, lower, upper) for name, x in areas.items()}
    by_name = {n: dict(zip(ranked, x, strict=True)) for n, x in (areas | scaled).items()}
    pairs = attribution.interactions(drops).abs().amax((-2, -1))
    return by_name | {
        "lowest_area": game.exactly(lower),
        "highest_area": game.exactly(upper),
        "largest_interaction": game.exactly(pairs).masked_fill(game.n_units < 2, torch.nan),
    }


def _of_decisions(
    game: _Game, flips: Tensor, ranked: Iterable[str], turns: Tensor
) -> dict[str, Any]:
    """Fields of the result about sets without which, and with which alone, a decision stands.

    Args:
        turns: as of :func:`_of_orders`.
    """
    if not game.observation.model.prediction.decides:
        return {}
    gone = aopc.sets_along(turns)  # [steps, rankings, batch]
    text = torch.arange(flips.shape[1], device=flips.device)
    without, alone = flips[gone, text], ~flips[len(flips) - 1 - gone, text]
    first, keeps = (x.to(torch.int8).argmax(0).double() for x in (without, alone))
    smallest = attribution.smallest_set(flips)
    can_flip = ~smallest.isnan()
    never = first.masked_fill(~without.any(0), torch.nan)
    counted = never_as_all(never, game.n_units, can_flip)
    of_rankings = {
        "necessary_units": (counted, smallest),
        "sufficient_units": (keeps, attribution.smallest_set(~flips.flip(0))),
    }
    found = {
        name: dict(
            zip(
                (*ranked, "smallest"),
                game.exactly(torch.cat([x, least[None]])),
                strict=True,
            )
        )
        for name, (x, least) in of_rankings.items()
    }
    return found | {"no_necessary_set": game.exactly(~can_flip)}
