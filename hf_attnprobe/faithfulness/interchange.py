"""Test ``interchange``: does the decision follow the state with the most attention?

Question
    If a text's most attended state is replaced with a state from another text, does the model
    decide as for that other text?

Measure
    The most attended state is replaced with the most attended state of a donor, a text with another
    predicted class. The attention weights stay as they are, and no word is removed from the text.
    ``follows`` is 1 if the model then predicts the class of the donor, else 0. ``moved`` is the
    output change (total variation distance).

Compared positions
    The positions that other rankings put first, and control positions (``other``, their mean).
    Models with a linear read-out use all other positions in a text as controls, and other models
    use a random sample.

Interpretation
    If ``follows`` is near 1 for attention and near 0 for the controls, the decision comes from the
    most attended position. If the values are equal, it comes from other positions, or from many
    together. If several positions carry the same evidence, exchanging one of them changes nothing.
    A state can also contain information about neighbouring words; the decision then follows the
    state although the word at its position does not matter.

Details
    - The donor is drawn from a fixed text sample, which the model reads once. It only depends on
      the seed and the text's id.
    - The state in a Transformer head is the value vector. It is replaced in every query row. In a
      head group, the value vectors of all heads are replaced.
    - The state of a word with several tokens is the mean over its tokens.
    - Information about the word in other layers is not replaced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import Interchange
from hf_attnprobe.faithfulness.rankings import compute_ranking
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.faithfulness.scale import list_rankings
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import draw_index
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


INTERCHANGE_DONOR_STREAM = 6
"""Index of the random number stream that draws donors. A donor is another text whose state is
copied into the audited text."""
READINGS: TestReadings = {
    "follows": make_share_reading(
        "if a state is exchanged for the most attended state of a text with another predicted class, "
        "{decision} follows that text in {mean:.0%} of texts (position: {key})"
    ),
    "moved": (
        "exchanging a state for the most attended state of a text with another predicted class "
        "changes the output by {mean:.2f} {unit} (position: {key})"
    ),
}


@dataclass(frozen=True)
class InterchangeResult:
    """Statistics from the test ``interchange``: mappings from positions to tensors ``[batch]``.

    Each position is named after the ranking that puts it first; ``other`` is the mean over the
    control positions. Values are NaN in texts without a unit and if the sample has no donor with
    another predicted class; ``other`` is also NaN in one-unit texts. The mappings are empty if the
    audit has no sample of donors.

    Attributes:
        follows: 1 if the decision becomes the donor's, else 0.
        moved: Output change (total variation distance) in [0, 1].
    """

    follows: dict[str, Tensor] = field(default_factory=dict)
    moved: dict[str, Tensor] = field(default_factory=dict)


@register_test(
    readings=READINGS,
    summary="exchanges the most attended state for that of another text",
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
    """Exchange one state per text, at each ranking's top position and at control positions.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose states are exchanged.
        options: Number of control positions.
        seed: Seed for donors, control positions, and ties for the top position.

    Returns:
        Statistics per text and position.
    """
    model = observation.model
    donors = model.donors
    if donors is None or site not in donors.states:
        return InterchangeResult()
    donor_rows = _draw_donors(donors, observation, seed)
    names = list_rankings(observation, site)
    top_units = {name: _find_top_unit(observation, site, name, seed) for name in names}
    n_others = options.n_others if observation.token_logits is None else None
    other_units = _draw_other_units(observation, top_units["attention"], n_others, seed)
    units = torch.cat([torch.stack([*top_units.values()]), other_units])

    donor_states = {layer: states[donor_rows] for layer, states in donors.states[site].items()}
    exchangeable = model.require(ExchangeableStates, site)
    # Missing units and donors have index -1; their results are masked below.
    probs = exchangeable.replay_interchange(observation, site, units.clamp_min(0), donor_states)
    has_donor_outcome = model.prediction.decide(probs) == donors.decisions[donor_rows]
    follows = has_donor_outcome.all(-1).double()
    output_change = tvd(probs, observation.probs)
    is_empty = ~observation.batch.content_mask.any(-1)
    is_missing = (units < 0) | (donor_rows < 0) | is_empty

    def name_positions(values: Tensor) -> dict[str, Tensor]:
        values = values.masked_fill(is_missing, torch.nan)
        mean_at_others = values[len(top_units) :].nanmean(0)
        return {"other": mean_at_others, **dict(zip(top_units, values, strict=False))}

    return InterchangeResult(name_positions(follows), name_positions(output_change))


@torch.no_grad()
def collect_donors(
    model: AttentionModelBase,
    batches: Iterable[Batch],
    sites: Sequence[Site],
    seed: int,
) -> Donors:
    """Run the model on a sample of texts, and collect the states that other texts will receive.

    For each text and head, this is the value vector of the most attended unit.

    Args:
        model: Model to be tested.
        batches: Batches with the sample's texts.
        sites: Heads and head groups whose states are collected.
        seed: Seed for the choice among equally attended units.

    Returns:
        The model's decisions for all texts, and the states by site.
    """
    decisions, batch_states = [], []
    for batch in batches:
        observation = model.observe(batch)
        decisions.append(model.prediction.decide(observation.probs))
        batch_states.append(
            {site: _read_most_attended_values(observation, site, seed) for site in sites}
        )
    states: dict[Site, dict[int, Tensor]] = {}
    for site in sites:
        states[site] = {
            layer: torch.cat([states_by_site[site][layer] for states_by_site in batch_states])
            for layer in model.get_heads_by_layer(site)
        }
    return Donors(torch.cat(decisions), states)


def _read_most_attended_values(
    observation: Observation, site: Site, seed: int
) -> dict[int, Tensor]:
    """Return the value vectors of the most attended unit in each text.

    If the unit has several positions, their value vectors are averaged.

    Returns:
        Value vectors ``[batch, heads, width]`` by layer.
    """
    model = observation.model
    content = observation.batch.content_mask
    top_unit = _find_top_unit(observation, site, "attention", seed)
    is_top_unit = one_hot(top_unit, content.shape[-1]).bool()
    value_vectors = {}
    for layer, heads in model.get_heads_by_layer(site).items():
        # In subword models, a unit (word) can have several positions.
        positions = model.get_unit_positions(observation, layer, is_top_unit)
        is_elsewhere = ~positions[:, None, :, None]
        values = observation.head_values[layer][:, heads]
        total = values.masked_fill(is_elsewhere, 0).sum(2)
        n_positions = positions.sum(-1).clamp_min(1)
        value_vectors[layer] = total / n_positions[:, None, None]
    return value_vectors


def _draw_donors(donors: Donors, observation: Observation, seed: int) -> Tensor:
    """Draw one donor per text: a text for which the model makes a different decision.

    Args:
        donors: Decisions and states for the texts that can be donors.
        observation: Model outputs and attention for the texts that need a donor.
        seed: Seed for the draw.

    Returns:
        Donor indices, int64 ``[batch]``; −1 if there is no such donor.
    """
    decisions = observation.model.prediction.decide(observation.probs)
    # [texts, donors]. A prediction can have several parts, such as one tag per word.
    differs = (donors.decisions != decisions[:, None]).any(-1).cpu()
    donor_rows = []
    for example_id, is_candidate in zip(observation.batch.example_ids, differs, strict=True):
        candidates = is_candidate.nonzero()[:, 0].tolist()
        if candidates:
            index = draw_index(seed, int(example_id), INTERCHANGE_DONOR_STREAM, len(candidates))
            donor_rows.append(candidates[index])
        else:
            donor_rows.append(-1)
    return torch.tensor(donor_rows, device=decisions.device)


def _find_top_unit(observation: Observation, site: Site, name: str, seed: int) -> Tensor:
    """Find the highest-ranked unit in each text, int64 ``[batch]``; ties are broken at random."""
    content = observation.batch.content_mask
    n_keys = content.shape[-1]
    ranks = compute_ranking(observation, site, name, seed=seed).double()
    tie_breakers = compute_ranking(observation, site, "random", seed=seed)
    # Neighbouring ranks are n_keys + 1 apart after the multiplication. The random ranks are at most
    # n_keys, so they only decide between equal ranks.
    scores = ranks * (n_keys + 1) + tie_breakers
    scores = scores.masked_fill(~content, -torch.inf)
    return scores.argmax(-1)


def _draw_other_units(
    observation: Observation, excluded_unit: Tensor, n_units: int | None, seed: int
) -> Tensor:
    """Draw different units at random from each text, but never the excluded unit.

    Args:
        observation: Model outputs and attention for a batch.
        excluded_unit: Unit that is not drawn in each text, int64 ``[batch]``.
        n_units: Number of units per text. None draws all.
        seed: Seed for the draw.

    Returns:
        Keys of the units, int64 ``[units, batch]``. Texts with fewer units are filled up with −1.
    """
    content = observation.batch.content_mask
    is_candidate = content.scatter(1, excluded_unit[:, None], False)
    n_candidates = is_candidate.sum(-1)
    n_drawn = int(n_candidates.max())
    if n_units is not None:
        n_drawn = min(n_units, n_drawn)

    random_scores = compute_ranking(observation, Site(), "random", seed=seed).double()
    random_scores = random_scores.masked_fill(~is_candidate, -torch.inf)
    # The units with the largest random scores are drawn.
    drawn_units = random_scores.topk(n_drawn, dim=-1)
    is_missing = drawn_units.values.isinf()
    return drawn_units.indices.masked_fill(is_missing, -1).t()
