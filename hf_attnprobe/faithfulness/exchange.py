"""Test ``exchange``: does the output move if words are exchanged for words of another text?

Deleting a word makes a text that the model was not trained on. It shifts positions, leaves the
model with less evidence, and cuts every path that leads through the word. A word that carries no
information of its own but collects information from others therefore seems important. Here a word
is replaced with a word of the same standing in another text, so that the text stays a text.

Question
    Does this attention identify the words whose identity decides this prediction?

Exchange of like with like
    Word t of a text is replaced with a word of a donor, a text that the model predicts otherwise.
    If t has the r-th most attention in its text, then it gets the word with the r-th most attention
    in the donor. The rank is determined by the model's whole attention and, in text pairs, within
    each segment. If the donor has fewer words, then it gives its least attended word. The new word
    takes the place of the old one. Nothing is deleted, and special tokens stay.

Notation
    A text has words 1, ..., T and donors 1, ..., D. q is the model's output at the standard
    temperature, and q_d(S) is the output if the words in the set S are exchanged for words of donor
    d. The output change is the total variation distance m_d(S) = 1/2 sum_c |q_c - q_d(S)_c|. The loss of
    word i is the mean over donors L_i = 1/D sum_d m_d({i}). a_i is the score of word i in the
    ranking that is tested, for example its attention.

Importance
    Gini correlation between the ranking and the losses::

        importance = sum_{i<j} (L_i - L_j) * sign(a_i - a_j) / sum_{i<j} |L_i - L_j|

    It is 1 for the best order and 0 on average for a random order. Code:
    :func:`~hf_attnprobe.functional.rank.gini_correlation`.

Removal
    Mean output change if the k words that the ranking puts first are exchanged together::

        removal = mean of m_d(top-k words) over donors d and k = 1, 5, 10, 20 and 50% of T, rounded up

    Only the first two donors are used, because a mean over texts needs no precise value per text.

    Its position on the scale is (removal - random) / (best - random). ``random`` is the removal of
    a random order, and ``best`` the largest removal among all rankings and the order of the losses.
    Code: :func:`measure_exchange_removal`.

Mass
    Overlap of the scores with the losses, both as distributions over the words, see the test
    ``scale``. Code: :func:`~hf_attnprobe.faithfulness.scale.measure_mass`.

Interpretation
    1 is the best that any order of the words could reach, 0 is a random order. Output changes have no
    sign: a word that speaks for the decision and a word that speaks against it both move the
    output. A word that occurs in every text cannot be exchanged for another one, so it has no
    loss: see ``same_word``. Statistics are NaN in texts that have no donor.

Donors
    They are drawn from a fixed sample of texts. The draw depends only on the seed and the id of the
    text. A donor is predicted as another class. For labels and tags, at least one of them differs;
    for numbers, the donor is among the half of the sample with the largest difference.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.input_erasure import mark_top_units
from hf_attnprobe.faithfulness.options import Exchange
from hf_attnprobe.faithfulness.rankings import compute_ranking, is_whole_model
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.faithfulness.scale import (
    LOSS_TOLERANCE,
    compare_with_effects,
    list_rankings,
    measure_decisive_positions,
)
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.erasure import compute_removal_rank
from hf_attnprobe.functional.grouped_effects import measure_texts_in_groups
from hf_attnprobe.functional.intervention import draw_permutation
from hf_attnprobe.protocol import (
    ALL,
    AttentionModelBase,
    Batch,
    ExchangeableUnits,
    Observation,
    Site,
    UnitDonors,
)


N_REMOVAL_DONORS = 2
"""Number of donors per text for exchanging several words together, if that many are requested."""
UNIT_DONOR_STREAM = 8
"""Index of the random number stream that draws the donors of each text."""
READINGS: TestReadings = {
    "exchange_importance": (
        "the order of {key} agrees with the output change when words are exchanged, with a Gini "
        "correlation of {mean:.2f} (1 is the best order, 0 a random one)"
    ),
    "exchange_removal": (
        "exchanging the words that {key} ranks first changes the output by {mean:.2f} at the "
        "standard temperature (mean of the top 1 to 50%)"
    ),
    "exchange_mass": (
        "{key} and the output changes when words are exchanged overlap by {mean:.0%} (as shares of "
        "the text)"
    ),
    "exchange_mass_by_chance": (
        "the weights of {key} on random words would overlap with these changes by {mean:.0%}"
    ),
    "exchange_decisive_position": make_share_reading(
        "exchanging the {key} word changes the output most in {mean:.0%} of texts"
    ),
    "largest_exchange": (
        "exchanging the word that matters most changes the output by {mean:.2f} at the standard "
        "temperature"
    ),
    "same_word": make_share_reading(
        "{mean:.0%} of the attention is on words that all donors replace with the same word, so that "
        "exchanging them changes nothing"
    ),
}


@dataclass(frozen=True)
class ExchangeResult:
    """Statistics from the test ``exchange``: tensors ``[batch]``, or mappings to them by ranking.

    All values are NaN in texts without a word or without a donor. The mappings are empty if the
    audit has no donors.

    Attributes:
        exchange_importance: Gini correlation with the losses, in [-1, 1]. NaN if no word moves the
            output.
        exchange_removal: Mean output change if the top words are exchanged, in [0, 1]. It includes the
            entries ``random`` and ``best``; ``best`` is never smaller than any other entry.
        exchange_mass: Overlap with the losses, in [0, 1]. NaN if no word moves the output.
        exchange_mass_by_chance: Mean overlap if the scores were assigned to the words at random.
        largest_exchange: Largest loss of a word, in [0, 1].
        same_word: Share of the model's attention on words that every donor replaces with the same
            word, in [0, 1].
        exchange_decisive_position: Whether the loss of the first or the last word is the largest, in
            [0, 1], by position. NaN if no word moves the output; None unless the site contains all
            heads.
    """

    exchange_importance: Mapping[str, Tensor] = field(default_factory=dict)
    exchange_removal: Mapping[str, Tensor] = field(default_factory=dict)
    exchange_mass: Mapping[str, Tensor] = field(default_factory=dict)
    exchange_mass_by_chance: Mapping[str, Tensor] = field(default_factory=dict)
    largest_exchange: Tensor | None = None
    same_word: Tensor | None = None
    exchange_decisive_position: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    summary="exchanges words for words of the same attention rank from texts predicted otherwise",
    needs=(ExchangeableUnits,),
    groups=True,
    uses_unit_donors=True,
)
@torch.no_grad()
def exchange(
    observation: Observation,
    site: Site,
    options: Exchange = Exchange(),
    *,
    seed: int = 0,
) -> ExchangeResult:
    """Measure each ranking's importance, removal and mass by exchange of like with like.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is ranked.
        options: Explained class and number of donors.
        seed: Seed for donors, ties of the attention, and the random ranking.

    Returns:
        Statistics per text and ranking.
    """
    observation = observation.with_target(options.target)
    if observation.model.unit_donors is None:
        return ExchangeResult()
    content = observation.batch.content_mask
    draws = draw_replacements(observation, options.n_donors, seed)
    losses = compute_exchange_losses(observation, draws)
    largest_loss = losses.masked_fill(~content, 0).amax(-1)
    is_measured = draws.has_donor & content.any(-1)
    has_effect = is_measured & (largest_loss > LOSS_TOLERANCE)

    ranks_by_name = {
        name: compute_ranking(observation, site, name, seed=seed)
        for name in list_rankings(observation, site)
    }
    importance, mass, mass_by_chance = compare_with_effects(
        observation, site, ranks_by_name, losses, losses, has_effect, seed
    )
    removals = measure_exchange_removal(observation, draws, [*ranks_by_name.values(), losses])
    # The order of the losses only contributes to the best order.
    removal = dict(zip(ranks_by_name, removals, strict=False))
    removal["best"] = removals.amax(0)
    decisive_position = None
    if is_whole_model(observation.model, site):
        decisive_position = measure_decisive_positions(losses, content, has_effect)
    return ExchangeResult(
        exchange_importance=importance,
        exchange_removal={
            name: values.masked_fill(~is_measured, torch.nan) for name, values in removal.items()
        },
        exchange_mass=mass,
        exchange_mass_by_chance=mass_by_chance,
        largest_exchange=largest_loss.masked_fill(~is_measured, torch.nan),
        same_word=_measure_same_word_share(observation, draws).masked_fill(~is_measured, torch.nan),
        exchange_decisive_position=decisive_position,
    )


# --- Donors ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReplacementDraws:
    """New contents for all units of a batch, one set for each donor of a text.

    Attributes:
        replacements: For each draw and text, the new content by the unit's position.
        has_donor: Whether a text has a donor, bool ``[batch]``. Texts without a donor keep their
            units.
        key: Number of donors and seed, which identify the draws in caches.
    """

    replacements: Sequence[Sequence[Mapping[int, Any]]]
    has_donor: Tensor
    key: tuple[Any, ...]


def find_model_site(model: AttentionModelBase) -> Site:
    """Return the model's whole attention: its only head, or all heads.

    Args:
        model: Model whose attention determines the ranks of words.
    """
    sites = model.sites()
    return sites[0] if len(sites) == 1 else Site(ALL, ALL)


def order_units(observation: Observation, seed: int) -> list[dict[int, list[int]]]:
    """List the units of each text and segment, the most attended unit first.

    Args:
        observation: Model outputs and attention for a batch.
        seed: Seed that decides between units with equal attention.

    Returns:
        For each text, the unit positions by segment. Texts that are not pairs have the segment 0.
    """
    batch = observation.batch
    site = find_model_site(observation.model)
    ranks = compute_ranking(observation, site, "attention", seed=seed).double()
    tie_breakers = compute_ranking(observation, site, "random", seed=seed)
    # The random ranks are at most the number of keys, so they only decide between equal ranks.
    scores = ranks * (ranks.shape[-1] + 1) + tie_breakers
    order = scores.masked_fill(~batch.content_mask, -torch.inf).argsort(-1, descending=True)
    n_units = batch.content_mask.sum(-1).tolist()
    segments = None if batch.segments is None else batch.segments.cpu()
    orders = []
    for text, positions in enumerate(order.tolist()):
        by_segment: dict[int, list[int]] = {}
        for position in positions[: n_units[text]]:
            segment = 0 if segments is None else int(segments[text, position])
            by_segment.setdefault(segment, []).append(position)
        orders.append(by_segment)
    return orders


@torch.no_grad()
def collect_unit_donors(
    model: AttentionModelBase,
    batches: Iterable[Batch],
    seed: int,
    read_contents: Callable[[int], Sequence[Any]] | None = None,
) -> UnitDonors:
    """Collect the units and predictions of a text sample.

    Args:
        model: Model that reads the texts.
        batches: Batches with the sample's texts.
        seed: Seed that decides between units with equal attention.
        read_contents: See :class:`~hf_attnprobe.protocol.UnitDonors`; None to store the contents.

    Returns:
        Units of all texts, ordered by attention.
    """
    exchangeable = model.require(ExchangeableUnits)
    example_ids: list[int] = []
    probs: list[Tensor] = []
    units: list[Mapping[int, Sequence[Any]]] = []
    identities: list[int | None] = []
    for batch in batches:
        observation = model.observe(batch)
        orders = order_units(observation, seed)
        if read_contents is None:
            contents = exchangeable.read_unit_contents(observation)
            for by_segment, text_contents in zip(orders, contents, strict=True):
                units.append(
                    {
                        segment: [text_contents[position] for position in positions]
                        for segment, positions in by_segment.items()
                    }
                )
        else:
            units += orders
        example_ids += batch.example_ids
        probs += observation.probs
        identities += batch.list_identities()
    return UnitDonors(
        tuple(example_ids), tuple(probs), tuple(units), tuple(identities), read_contents
    )


def draw_replacements(observation: Observation, n_donors: int, seed: int) -> ReplacementDraws:
    """Draw the donors of each text, and assign a new content to every unit.

    Args:
        observation: Model outputs and attention for a batch.
        n_donors: Number of donors per text. A text with fewer candidates uses some repeatedly.
        seed: Seed of the draw.
    """

    def compute() -> ReplacementDraws:
        donors = observation.model.unit_donors
        assert donors is not None
        orders = order_units(observation, seed)
        candidates = _find_candidates(observation, donors, orders)
        replacements: list[list[dict[int, Any]]] = [[] for _ in range(n_donors)]
        texts = zip(observation.batch.example_ids, orders, candidates, strict=True)
        for example_id, by_segment, text_candidates in texts:
            drawn = draw_permutation(seed, int(example_id), UNIT_DONOR_STREAM, len(text_candidates))
            for draw in range(n_donors):
                contents: dict[int, Any] = {}
                if len(text_candidates):
                    donor = text_candidates[drawn[draw % len(drawn)]]
                    contents = _assign_by_rank(by_segment, donors.read_units(donor))
                replacements[draw].append(contents)
        has_donor = torch.tensor([len(rows) > 0 for rows in candidates])
        key = n_donors, seed, observation.explained_class
        return ReplacementDraws(replacements, has_donor.to(observation.probs.device), key)

    cache_key = "replacements", n_donors, seed, observation.explained_class
    return observation.remember(cache_key, compute)


def _assign_by_rank(
    order: Mapping[int, Sequence[int]], donor_units: Mapping[int, Sequence[Any]]
) -> dict[int, Any]:
    """Assign the donor's r-th most attended unit to the r-th most attended unit of each segment."""
    contents = {}
    for segment, positions in order.items():
        segment_units = donor_units[segment]
        for rank, position in enumerate(positions):
            contents[position] = segment_units[min(rank, len(segment_units) - 1)]
    return contents


def _find_candidates(
    observation: Observation, donors: UnitDonors, orders: Sequence[Mapping[int, Any]]
) -> list[np.ndarray]:
    """Find the donors of each text that are predicted otherwise and are no copies, as row indices."""
    prediction = observation.model.prediction
    n_donors = len(donors.example_ids)
    if prediction.is_number:
        differs = _find_distant_numbers(observation, donors)
    elif prediction.target_names:
        donor_probs = torch.stack(donors.probs)
        if observation.explained_class is None:
            decisions = prediction.decide(observation.probs)
            differs = (decisions[:, None] != prediction.decide(donor_probs)).any(-1)
        else:
            target = observation.explained_class
            is_for = prediction.is_target_predicted(observation.probs, target)
            differs = is_for[:, None] != prediction.is_target_predicted(donor_probs, target)
    else:
        # The outcomes of an answer span, a choice or tags belong to one text only.
        differs = torch.ones(len(observation.probs), n_donors, dtype=torch.bool)
    candidates = []
    batch = observation.batch
    texts = zip(batch.example_ids, batch.list_identities(), orders, differs.cpu(), strict=True)
    for example_id, identity, by_segment, is_different in texts:
        rows = [
            row
            for row in is_different.nonzero()[:, 0].tolist()
            if donors.example_ids[row] != example_id
            and (identity is None or donors.identities[row] != identity)
            and by_segment.keys() <= donors.units[row].keys()
        ]
        candidates.append(np.array(rows, dtype=int))
    return candidates


def _find_distant_numbers(observation: Observation, donors: UnitDonors) -> Tensor:
    """Find the half of the donors whose predicted number differs most, bool ``[batch, donors]``."""
    donor_numbers = torch.stack(donors.probs)[:, 0]
    distances = (observation.probs[:, :1] - donor_numbers).abs()
    return (distances >= distances.median(-1, keepdim=True).values) & (distances > 0)


# --- Measurements ----------------------------------------------------------------------------


def measure_output_change(observation: Observation, probs: Tensor) -> Tensor:
    """Measure how far edits move the output at the standard temperature.

    Args:
        observation: Model outputs and attention for a batch.
        probs: Probabilities after the edits, ``[copies, batch, classes]``.

    Returns:
        Total variation distances ``[copies, batch]``. If the user chose a class to be explained, the
        absolute change of its probability.
    """
    if observation.explained_class is not None:
        return observation.compute_standard_losses(probs).abs()
    before = observation.apply_standard_temperature(observation.probs)
    return tvd(observation.apply_standard_temperature(probs), before)


def measure_exchanges(
    observation: Observation,
    draws: ReplacementDraws,
    sets: Tensor,
    *,
    n_donors: int | None = None,
) -> Tensor:
    """Measure how far the output moves if sets of units are exchanged.

    Each set of a text is run only once per observation and donor, because many heads rank the same
    words first.

    Args:
        observation: Model outputs and attention for a batch.
        draws: New contents of the units.
        sets: Units to be exchanged, bool ``[sets, batch, keys]``.
        n_donors: Number of donors per text; None for all of them.

    Returns:
        Output changes ``[donors, sets, batch]``.
    """
    sets = sets & observation.batch.content_mask
    n_sets, n_texts, _ = sets.shape
    packed_sets = np.packbits(sets.flatten(0, 1).cpu().numpy(), axis=1)
    keys = [(row % n_texts, bits.tobytes()) for row, bits in enumerate(packed_sets)]
    changes = []
    for donor in range(len(draws.replacements))[:n_donors]:
        measured: dict[tuple[int, bytes], float] = observation.remember(
            ("exchanged", draws.key, donor), dict
        )
        new_rows = {key: row for row, key in enumerate(keys) if key not in measured}
        if new_rows:
            is_new = torch.zeros(n_sets * n_texts, dtype=torch.bool)
            is_new[list(new_rows.values())] = True
            new_changes = _exchange_new_sets(
                observation, draws.replacements[donor], sets, is_new.unflatten(0, (n_sets, n_texts))
            )
            measured.update((key, new_changes[row]) for key, row in new_rows.items())
        changes.append([measured[key] for key in keys])
    values = torch.tensor(changes, dtype=torch.float64, device=sets.device)
    return values.unflatten(1, (n_sets, n_texts))


def _exchange_new_sets(
    observation: Observation,
    replacements: Sequence[Mapping[int, Any]],
    sets: Tensor,
    is_new: Tensor,
) -> list[float]:
    """Run the model on those sets that have not been measured before.

    Args:
        observation: Model outputs and attention for a batch.
        replacements: For each text, the new content by the unit's position.
        sets: Units to be exchanged, bool ``[sets, batch, keys]``.
        is_new: Whether a set has to be measured, bool ``[sets, batch]``.

    Returns:
        Output changes for all sets and texts, one after the other; NaN for those that are not new.
    """
    model = observation.model.require(ExchangeableUnits)
    has_new_text = is_new.any(-1)
    # The other texts in a row exchange nothing, so the model does not run on them again.
    new_sets = sets[has_new_text.to(sets.device)] & is_new[has_new_text].to(sets.device)[..., None]
    probs = model.exchange_inputs(observation, new_sets, replacements)
    changes = torch.full(is_new.shape, torch.nan, dtype=torch.float64)
    changes[has_new_text] = measure_output_change(observation, probs).double().cpu()
    return changes.flatten().tolist()


def compute_exchange_losses(observation: Observation, draws: ReplacementDraws) -> Tensor:
    """Compute each unit's loss: how far the output moves if it is exchanged, mean over donors.

    Args:
        observation: Model outputs and attention for a batch.
        draws: New contents of the units.

    Returns:
        Losses ``[batch, keys]`` in [0, 1].
    """

    def compute() -> Tensor:
        content = observation.batch.content_mask
        n_keys = content.shape[1]
        limit = observation.model.max_unit_edits
        if limit is not None and content.sum(1).max() > limit:
            return _compute_grouped_losses(observation, draws, limit)
        is_used = content.any(0)
        # These sets take n² bytes for n units, so they are not copied.
        single_units = torch.eye(n_keys, dtype=torch.bool, device=content.device)[is_used]
        sets = single_units[:, None].expand(-1, len(content), -1)
        losses = torch.zeros(content.shape, dtype=torch.float64, device=content.device)
        losses[:, is_used] = measure_exchanges(observation, draws, sets).mean(0).T
        return losses

    return observation.remember(("exchange losses", draws.key), compute)


def _compute_grouped_losses(
    observation: Observation, draws: ReplacementDraws, limit: int
) -> Tensor:
    """Compute the losses of units in long texts with a limited number of passes for each donor.

    Each unit gets an equal share of its group's loss.

    Args:
        observation: Model outputs and attention for a batch.
        draws: New contents of the units.
        limit: Largest number of edited copies per text and donor.

    Returns:
        Losses ``[batch, keys]`` in [0, 1].
    """
    losses = measure_texts_in_groups(
        observation.batch.content_mask,
        observation.read(find_model_site(observation.model)),
        lambda sets: measure_exchanges(observation, draws, sets).mean(0)[..., None],
        limit,
    )
    return losses[..., 0].double()


def measure_exchange_removal(
    observation: Observation, draws: ReplacementDraws, rankings: Sequence[Tensor]
) -> Tensor:
    """Measure the mean output change if the first 1, 5, 10, 20 and 50% of the units are exchanged.

    Args:
        observation: Model outputs and attention for a batch.
        draws: New contents of the units.
        rankings: Unit ranks or scores ``[batch, keys]``, larger for more important units.

    Returns:
        Output changes ``[rankings, batch]``.
    """
    content = observation.batch.content_mask
    turns = torch.stack([compute_removal_rank(ranks, content) for ranks in rankings])
    top_units = mark_top_units(observation, turns)
    changes = measure_exchanges(
        observation, draws, top_units.flatten(0, 1), n_donors=N_REMOVAL_DONORS
    )
    # [donors, steps, rankings, batch]
    return changes.unflatten(1, top_units.shape[:2]).mean((0, 1))


def _measure_same_word_share(observation: Observation, draws: ReplacementDraws) -> Tensor:
    """Measure the share of the model's attention on units that no donor changes, ``[batch]``."""
    model = observation.model.require(ExchangeableUnits)
    contents = model.read_unit_contents(observation)
    content = observation.batch.content_mask
    is_same = torch.zeros_like(content)
    for text, text_contents in enumerate(contents):
        for position, original in text_contents.items():
            is_same[text, position] = all(
                torch.equal(by_text[text][position].to(original), original)
                for by_text in draws.replacements
                if by_text[text]
            )
    attention = observation.read(find_model_site(observation.model)) * content
    return (attention * is_same).sum(-1) / attention.sum(-1).clamp_min(1e-30)
