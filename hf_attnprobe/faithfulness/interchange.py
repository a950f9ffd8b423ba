"""Does the decision follow the state that has most attention?

Question: where the state with most attention is another text's, is the decision that text's?
Measure:  the most attended state is exchanged for the most attended state of a text that
          is predicted otherwise. The weights stay as they are, and no word leaves the text.
          1 where the model then decides as for that other text, else 0; and how far the
          output moves (total variation).
Compare:  the same at the other places of the text (``other``, their mean), and at the
          place that any other ranking puts first.
Exactly:  every other place where the read-out is linear; else some drawn at random.
Reading:  attention 1 and others 0: the decision comes from where attention is. Attention
          as low as others: it comes from elsewhere, or from many places together.
Caution:  where several places say the same, exchanging one of them changes nothing. A state
          may hold what its neighbours say: the decision follows it, and the word does not
          matter.

The other text is drawn by (seed, text) from a fixed sample of texts, observed once. In heads of
Transformers a state is the value vector that the head reads, exchanged in every row; in a group
of heads that of each of them. A word of several tokens is read as their mean. What other layers
hold of a word stays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import Interchange
from hf_attnprobe.faithfulness.rankings import ranking
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.faithfulness.scale import rankings_of
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import drawn_place
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    Decisions,
    Donors,
    ExchangeableStates,
    HeadValues,
    Observation,
    Site,
)


DONOR_STREAM = 6  # apart from the other tests' random numbers
READINGS: TestReadings = {
    "follows": share(
        "with a state exchanged for the most attended one of a text predicted otherwise, "
        "{decision} becomes that text's in {mean:.0%} of texts (at the place of: {key})"
    ),
    "moved": (
        "with a state exchanged for the most attended one of a text predicted otherwise, the "
        "output moves by {mean:.2f} {unit} (at the place of: {key})"
    ),
}


@dataclass(frozen=True)
class InterchangeResult:
    """By place [batch]: whether the decision follows, 0 or 1, and the output's change in [0, 1].

    The places are those that the rankings put first, and ``other``: the mean over places
    that do not have most attention, NaN in texts of one unit. All are NaN in texts without a unit,
    and where every text of the sample is predicted alike; empty without a sample.
    """

    follows: dict[str, Tensor] = field(default_factory=dict)
    moved: dict[str, Tensor] = field(default_factory=dict)


@register_test(
    readings=READINGS,
    does="exchanges the state with most attention for another text's",
    groups=True,
    needs=(Decisions, HeadValues, ExchangeableStates),
    uses_donors=True,
)
@torch.no_grad()
def interchange(
    observation: Observation,
    site: Site,
    options: Interchange = Interchange(),
    *,
    seed: int = 0,
) -> InterchangeResult:
    """Exchanges one state of every text, at the places that rankings put first and at others.

    Args:
        seed: with a text's id it draws the other text, the other places, and which of
            equals comes first.
    """
    model = observation.model
    donors = model.donors
    if donors is None or site not in donors.states:
        return InterchangeResult()
    drawn = _drawn(donors, observation, seed)
    names = rankings_of(observation, site)
    first = {name: _first(observation, site, name, seed) for name in names}
    n_others = options.n_others if observation.token_logits is None else None
    others = _others(observation, first["attention"], n_others, seed)
    of_rankings = torch.stack([*first.values()])
    units = torch.cat([of_rankings, others])

    states = {layer: given[drawn] for layer, given in donors.states[site].items()}
    exchangeable = model.require(ExchangeableStates, site)
    places = units.clamp_min(0)  # what is missing is left out below
    after = exchangeable.replay_exchanged(observation, site, places, states)
    is_donors = model.prediction.decision(after) == donors.decisions[drawn]
    follows = is_donors.all(-1).double()
    moved = tvd(after, observation.probs)
    is_empty = ~observation.batch.content_mask.any(-1)
    missing = (units < 0) | (drawn < 0) | is_empty

    def by_place(values: Tensor) -> dict[str, Tensor]:
        found = values.masked_fill(missing, torch.nan)
        at_others = found[len(first) :].nanmean(0)
        return {"other": at_others, **dict(zip(first, found, strict=False))}

    return InterchangeResult(by_place(follows), by_place(moved))


@torch.no_grad()
def donors_of(
    model: AttentionModelBase,
    batches: Iterable[Batch],
    sites: Sequence[Site],
    seed: int,
) -> Donors:
    """Returns the most attended states of some texts at each of the sites, and their decisions."""
    decisions, attended = [], []
    for batch in batches:
        observation = model.observe(batch)
        decisions.append(model.prediction.decision(observation.probs))
        found = {site: _attended(observation, site, seed) for site in sites}
        attended.append(found)
    states: dict[Site, dict[int, Tensor]] = {}
    for site in sites:
        states[site] = {
            layer: torch.cat([found[site][layer] for found in attended])
            for layer in model.members(site)
        }
    return Donors(torch.cat(decisions), states)


def _attended(observation: Observation, site: Site, seed: int) -> dict[int, Tensor]:
    """Returns what a site's heads read at the most attended unit: by layer [batch, heads, width]."""
    model = observation.model
    content = observation.batch.content_mask
    first = _first(observation, site, "attention", seed)
    unit = F.one_hot(first, content.shape[-1]).bool()
    found = {}
    for layer, heads in model.members(site).items():
        places = model.positions(observation, layer, unit)
        elsewhere = ~places[:, None, :, None]
        values = observation.head_values[layer][:, heads]
        total = values.masked_fill(elsewhere, 0).sum(2)
        n_places = places.sum(-1).clamp_min(1)
        found[layer] = total / n_places[:, None, None]
    return found


def _drawn(donors: Donors, observation: Observation, seed: int) -> Tensor:
    """Returns for each text a donor that is decided otherwise, int64 [batch]; −1 where there is none."""
    own = observation.model.prediction.decision(observation.probs)
    differs = (donors.decisions != own[:, None]).any(-1).cpu()
    chosen = []
    for example_id, other in zip(observation.batch.example_ids, differs, strict=True):
        rows = other.nonzero()[:, 0].tolist()
        if rows:
            place = drawn_place(seed, int(example_id), DONOR_STREAM, len(rows))
            chosen.append(rows[place])
        else:
            chosen.append(-1)
    return torch.tensor(chosen, device=own.device)


def _first(observation: Observation, site: Site, name: str, seed: int) -> Tensor:
    """Returns the unit that a ranking puts first, int64 [batch]; which of several equals is drawn."""
    content = observation.batch.content_mask
    n_keys = content.shape[-1]
    ranks = ranking(observation, site, name, seed=seed).double()
    lots = ranking(observation, site, "random", seed=seed)
    turn = ranks * (n_keys + 1) + lots
    turn = turn.masked_fill(~content, -torch.inf)
    return turn.argmax(-1)


def _others(observation: Observation, unit: Tensor, n: int | None, seed: int) -> Tensor:
    """Returns other units than one of every text, drawn without replacement.

    Args:
        unit: int64 [batch].
        n: how many; None: all.

    Returns:
        int64 [others, batch], −1 where a text has fewer.
    """
    content = observation.batch.content_mask
    is_other = content.scatter(1, unit[:, None], False)
    n_others = is_other.sum(-1)
    n_most = int(n_others.max())
    if n is not None:
        n_most = min(n, n_most)

    lots = ranking(observation, Site(), "random", seed=seed).double()
    lots = lots.masked_fill(~is_other, -torch.inf)
    drawn = lots.topk(n_most, dim=-1)
    is_missing = drawn.values.isinf()
    return drawn.indices.masked_fill(is_missing, -1).t()
