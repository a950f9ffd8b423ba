"""Test ``input_erasure``: do the tokens that attention ranks first carry the prediction?

Comprehensiveness and sufficiency, DeYoung et al. 2020 (ERASER).

Question
    Does the predicted class's probability fall without the most attended tokens, and do these
    tokens alone preserve it?

Measure
    p is the predicted class's probability, and the model is run again on the changed text::

        comprehensiveness = p(text) − p(text without its top tokens)
        sufficiency       = p(text) − p(top tokens only)

    Both are means over the top 1, 5, 10, 20 and 50% of the text's tokens (AOPC). The number of
    tokens is rounded up and at least 1, as in the code of ERASER's own models. Special tokens are
    never removed. Removed tokens are deleted, or replaced with the mask token.

Normalised scores, on request
    NAOPC (Edin et al. 2025) makes the scores of different models comparable. The tokens are removed
    one by one, in ranking order for comprehensiveness and in reverse for sufficiency, and the loss
    is averaged over all steps. The mean is then normalised: 0 is the smallest mean that any order
    of the tokens reaches with this model, and 1 is the largest. These limits are exact for texts
    with up to 8 tokens, and found by a beam search in longer texts.

Tokens to flip, on request
    Tokens are removed in ranking order until the decision flips or only one token is left. The test
    reports the share of removed tokens. All rankings are compared on the texts whose decision at
    least one ranking flips. In these texts, a ranking that never flips the decision counts as all
    tokens.

Explained class
    With a target class, the decision is for or against this class. p is then the probability of the
    predicted side: the class, or all other classes together.

Compared rankings
    - Always: |gradient × input|, leave-one-out, and a random ranking.
    - For a head: attention and attention × gradient.
    - For a layer: mean attention, rollout up to the layer, norm-based attention, and value zeroing
      with its rollout.
    - For all heads together: mean attention, the mean attention in the last layer, and rollout up to
      the last layer.
    - For any other set of heads: mean attention.

Interpretation
    A good ranking has higher comprehensiveness and lower sufficiency than the random ranking. Only
    normalised scores may be compared between models. Texts without some tokens differ from the
    texts that the model was trained on (Hase et al. 2021), so the removal operator and
    ``erased_share`` should be reported with the numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import InputErasure
from hf_attnprobe.faithfulness.rankings import (
    compute_ranking,
    count_removals_until,
    is_ranking_available,
    list_text_rankings,
    rank_scores,
    read_group_maps,
)
from hf_attnprobe.faithfulness.registry import (
    AuditPreview,
    register_test,
)
from hf_attnprobe.functional import aopc
from hf_attnprobe.functional.erasure import compute_removal_rank, replace_unflipped_counts
from hf_attnprobe.protocol import (
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)


HEAD_RANKINGS = ("attention", "product")
"""Names of the rankings that are computed for each head: by attention, and by the product of
attention and gradient."""
MAX_MASK_ENTRIES_PER_PASS = 1 << 22
"""Largest number of entries in the mask of removed tokens, ``[copies, batch, keys]``, in one
forward pass. It limits the memory."""

ERASURE_CAUTION = (
    "Texts with deleted or masked tokens differ from the texts that the model was trained on. A "
    "loss can therefore mean that the tokens matter, or that the model reads such texts badly "
    "(Hase et al. 2021). Comprehensiveness removes up to half of a text, sufficiency up to all but "
    "one of its tokens. Compare both with the random ranking, which removes equally many tokens. "
    "Other removal operators give other numbers."
)
"""Caution that reports print below the statistics of the test ``input_erasure``."""
REMOVAL_NOTE = "deleted, or masked with by=mask"
"""Note in report sentences on how tokens are removed. The option ``by`` determines whether they are
deleted or masked."""

READINGS: TestReadings = {
    "comprehensiveness": (
        f"without the tokens that {{key}} ranks first ({REMOVAL_NOTE}), {{prediction}} loses "
        "{mean:.3f} {amount}{aside} (mean of the top 1 to 50%)"
    ),
    "sufficiency": (
        f"with only the tokens that {{key}} ranks first (the others {REMOVAL_NOTE}), {{prediction}} "
        "loses {mean:.3f} {amount}{aside} (mean of the top 1 to 50%)"
    ),
    "erased_share": make_share_reading(
        "comprehensiveness removes {mean:.0%} of a text's tokens on average, and sufficiency all "
        "other tokens"
    ),
    "naopc_comprehensiveness": (
        f"removing tokens ({REMOVAL_NOTE}) in the order of {{key}} scores {{mean:.2f}} on the "
        "scale from the order with the smallest loss (0) to the one with the largest (1)"
    ),
    "naopc_sufficiency": (
        f"removing tokens ({REMOVAL_NOTE}) in the reverse order of {{key}} scores {{mean:.2f}} on "
        "the scale from the order with the smallest loss (0) to the one with the largest (1)"
    ),
    "tokens_to_flip": make_share_reading(
        f"{{mean:.0%}} of the tokens have been removed ({REMOVAL_NOTE}) in the order of {{key}} "
        "when the decision flips (mean over texts that some order flips; an order that never flips "
        "counts as all tokens)"
    ),
    "tokens_never_flip": make_share_reading(
        "in {mean:.0%} of the texts that some order flips, removing tokens in the order of {key} "
        "never flips the decision"
    ),
    "no_tokens_flip": make_share_reading(
        "in {mean:.0%} of texts no tested order of removing tokens flips the decision"
    ),
}


def _check_erasable(preview: AuditPreview, options: InputErasure) -> None:
    """Check that the model can process a text without any token except special tokens.

    The shortest text is processed in this form. If the model cannot do this, it raises an error.
    """
    shortest_text = preview.shortest_text
    all_units = shortest_text.batch.content_mask[None]
    model = shortest_text.model.require(EditableInputs)
    model.erase_inputs(shortest_text, all_units, operator=options.by)


@dataclass(frozen=True)
class InputErasureResult:
    """Statistics from the test ``input_erasure``: tensors ``[batch]``, or mappings by ranking.

    Statistics on request are None if they were not requested.

    Attributes:
        comprehensiveness: Probability loss without the top tokens, in [−1, 1].
        sufficiency: Probability loss with the top tokens only, in [−1, 1].
        erased_share: Mean share of a text's tokens that comprehensiveness removes, the same for all
            rankings.
        naopc_comprehensiveness: Normalised comprehensiveness in [0, 1], on request. NaN if all
            orders lose equally much.
        naopc_sufficiency: Normalised sufficiency in [0, 1], on request. NaN if all orders lose
            equally much.
        tokens_to_flip: Share of the tokens that have been removed when the decision flips, in (0,
            1], on request. NaN in one-token texts and in texts that no order flips.
        tokens_never_flip: 1 if the ranking never flips the decision, else 0, on request. NaN in the
            same texts.
        no_tokens_flip: 1 if no ranking flips the decision, else 0, on request. NaN in one-token
            texts.
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
    summary="removes the most attended tokens from the text",
    needs=(Differentiable, EditableInputs),
    groups=True,
    check=_check_erasable,
)
def input_erasure(
    observation: Observation,
    site: Site,
    options: InputErasure = InputErasure(),
    *,
    seed: int = 0,
) -> InputErasureResult:
    """Compute comprehensiveness and sufficiency for attention and other rankings.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is ranked.
        options: Explained class, removal operator and requested statistics.
        seed: Seed for the random ranking.

    Returns:
        Statistics per text and ranking.

    Raises:
        AttnProbeError: If tokens are to be masked and the tokenizer has no mask token.
    """
    observation = observation.with_target(options.target)
    operator, content = options.by, observation.batch.content_mask
    site_ranks = rank_by_site(observation, site)
    ranks_by_name = dict(site_ranks)
    for name in list_text_rankings(observation):
        ranks_by_name[name] = compute_ranking(observation, site, name, seed=seed)
    places = torch.stack([compute_removal_rank(ranks, content) for ranks in ranks_by_name.values()])

    def name_rankings(values: Tensor) -> dict[str, Tensor]:
        return dict(zip(ranks_by_name, values, strict=True))

    comprehensiveness, sufficiency = _measure_top_losses(observation, operator, places)
    n_units = content.sum(-1)
    erased_shares = aopc.compute_removal_counts(n_units) / n_units.clamp_min(1)
    requested: dict[str, Any] = {}
    if options.tokens_to_flip:
        requested |= _measure_flips(observation, options, list(ranks_by_name), places)
    if options.beam_width:
        scores = _measure_stepwise_losses(observation, operator, places)
        text_ranking_scores = scores[:, len(site_ranks) :]

        def compute_bounds() -> Tensor:
            return _compute_area_bounds(
                observation, operator, options.beam_width, text_ranking_scores
            )

        # The bounds do not depend on the site, so they are computed once per batch.
        key = f"bounds {operator} {seed}", options.beam_width, observation.explained_class
        lower, upper = observation.remember(key, compute_bounds)
        normalised_scores = aopc.normalise_aopc(scores, lower, upper)
        requested["naopc_comprehensiveness"] = name_rankings(normalised_scores[0])
        requested["naopc_sufficiency"] = name_rankings(normalised_scores[1])
    return InputErasureResult(
        name_rankings(comprehensiveness),
        name_rankings(sufficiency),
        erased_shares.mean(0),
        **requested,
    )


def rank_by_site(observation: Observation, site: Site) -> dict[str, Tensor]:
    """Rank the units by importance scores that differ between heads, such as attention.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.

    Returns:
        Ranks ``[batch, keys]`` by ranking name, from 0 for the least important unit.
    """
    if not site.is_group:
        return {
            name: compute_ranking(observation, site, name)
            for name in HEAD_RANKINGS
            if is_ranking_available(observation, site, name)
        }
    content = observation.batch.content_mask
    maps = read_group_maps(observation, site)
    return {name: rank_scores(name, values, content) for name, values in maps.items()}


def mark_top_units(observation: Observation, places: Tensor) -> Tensor:
    """Return which units are in the first 1, 5, 10, 20 and 50% of each ranking.

    Args:
        observation: Model outputs and attention for a batch.
        places: Place of each unit in the ranking, from 0 for the first unit, int
            ``[rankings, batch, keys]``.

    Returns:
        Masks, bool ``[5, rankings, batch, keys]``.
    """
    content = observation.batch.content_mask
    # Number of units for each of the five percentages, [5, batch].
    counts = aopc.compute_removal_counts(content.sum(-1))
    return (places < counts[:, None, :, None]) & content


def _measure_top_losses(observation: Observation, operator: str, places: Tensor) -> Tensor:
    """Measure comprehensiveness and sufficiency (DeYoung et al. 2020).

    Comprehensiveness is the loss of probability without the first units of a ranking. Sufficiency
    is the loss with these units only. Both are averaged over the first 1, 5, 10, 20 and 50%.

    Args:
        observation: Model outputs and attention for a batch.
        operator: "deletion" or "mask".
        places: Place of each unit in the ranking, from 0 for the first unit, int
            ``[rankings, batch, keys]``.

    Returns:
        Both losses, ``[2, rankings, batch]``.
    """
    content = observation.batch.content_mask
    top_units = mark_top_units(observation, places)
    # One step for each percentage: [2, steps, rankings, batch, keys].
    removed = torch.stack([top_units, content & ~top_units])
    losses = _measure_losses(observation, operator, removed.flatten(0, 2))
    return losses.unflatten(0, removed.shape[:3]).mean(1)


def _measure_stepwise_losses(observation: Observation, operator: str, places: Tensor) -> Tensor:
    """Remove the units of a text one by one, and measure the mean loss over all steps.

    Args:
        observation: Model outputs and attention for a batch.
        operator: "deletion" or "mask".
        places: Place of each unit in the ranking, from 0 for the first unit, int
            ``[rankings, batch, keys]``.

    Returns:
        Mean losses (AOPC) ``[2, rankings, batch]``, for removal in the order of each ranking and in
        the reverse order.
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    n_steps = int(n_units.max())
    # The steps become the first axis, in front of orders, rankings and texts.
    steps = torch.arange(1, n_steps + 1, device=content.device)
    steps = steps[:, None, None, None]

    # After step k, the first k units are removed. Their places in the ranking are 0 to k − 1.
    reversed_places = n_units[:, None] - 1 - places
    both_places = torch.stack([places, reversed_places])
    # [steps, 2, rankings, batch, keys]
    removed = (both_places < steps[..., None]) & content
    losses = _measure_losses(observation, operator, removed.flatten(0, 2))
    losses = losses.unflatten(0, removed.shape[:3])
    # Shorter texts have fewer steps.
    has_step = steps <= n_units
    total = (losses * has_step).sum(0)
    return total / n_units


def _compute_area_bounds(
    observation: Observation, operator: str, beam_width: int, ranking_scores: Tensor
) -> Tensor:
    """Compute the lowest and the highest AOPC over all orders of a text's units.

    AOPC is the mean probability loss when the units are removed one by one. The bounds are exact
    for short texts. In longer texts, they are the most extreme values that a beam search or any of
    the tested rankings reaches.

    Args:
        observation: Model outputs and attention for a batch.
        operator: "deletion" or "mask".
        beam_width: Width of the beam search.
        ranking_scores: AOPC of the tested rankings that are the same for all heads,
            ``[2, rankings, batch]``.

    Returns:
        Lowest and highest AOPC, ``[2, batch]``.
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    is_short = n_units <= aopc.MAX_UNITS_OF_EXACT_BOUNDS
    # In longer texts, no unit is removed here.
    sets = aopc.enumerate_unit_sets(content & is_short[:, None])
    set_losses = _measure_losses(observation, operator, sets)
    exact_bounds = torch.stack(aopc.compute_aopc_bounds(set_losses, n_units.where(is_short, 0)))
    if is_short.all():
        return exact_bounds
    measure_losses = partial(_measure_losses, observation, operator)
    lower, upper = aopc.search_aopc_bounds(measure_losses, content & ~is_short[:, None], beam_width)
    scores = ranking_scores.flatten(0, 1)
    lower = torch.minimum(lower, scores.amin(0))
    upper = torch.maximum(upper, scores.amax(0))
    return torch.where(is_short, exact_bounds, torch.stack([lower, upper]).to(exact_bounds.dtype))


def _measure_flips(
    observation: Observation,
    options: InputErasure,
    names: Sequence[str],
    places: Tensor,
) -> dict[str, Any]:
    """Measure after how many removed tokens the decision flips, and return these statistics.

    Args:
        observation: Model outputs and attention for a batch.
        options: Removal operator and number of removal steps.
        names: Ranking names.
        places: Place of each unit in the ranking, from 0 for the unit that is removed first,
            int ``[rankings, batch, keys]``.
    """
    content = observation.batch.content_mask
    n_units = content.sum(-1)
    counts = aopc.compute_removal_steps(n_units, options.n_steps)

    def detect_flips(removed: Tensor) -> Tensor:
        probs = predict_without_units(observation, options.by, removed)
        return observation.find_flips(probs)[None]

    (n_removed,) = count_removals_until(detect_flips, 1, places, content, counts)
    flips = ~n_removed.isnan()
    can_flip = flips.any(0)
    n_counted = replace_unflipped_counts(n_removed, n_units, can_flip)
    never_flips = (~flips).double().masked_fill(~can_flip, torch.nan)
    cannot_flip = (~can_flip).double().masked_fill(n_units < 2, torch.nan)
    return {
        "tokens_to_flip": dict(zip(names, n_counted / n_units, strict=True)),
        "tokens_never_flip": dict(zip(names, never_flips, strict=True)),
        "no_tokens_flip": cannot_flip,
    }


def predict_without_units(observation: Observation, operator: str, removed: Tensor) -> Tensor:
    """Remove units from copies of the texts and return the model's probabilities.

    The model processes a few copies at a time, to limit the memory.

    Args:
        observation: Model outputs and attention for a batch.
        operator: How units are removed. "deletion" deletes them, and "mask" replaces them by the
            mask token. For language models, "gap" deletes them, but the remaining tokens keep their
            positions.
        removed: Units to be removed, bool ``[copies, batch, keys]``.

    Returns:
        Probabilities ``[copies, batch, classes]``.
    """
    model = observation.model.require(EditableInputs)
    copies_per_pass = max(1, MAX_MASK_ENTRIES_PER_PASS // removed[0].numel())
    chunks = removed.split(copies_per_pass)
    return torch.cat(
        [model.erase_inputs(observation, chunk, operator=operator) for chunk in chunks]
    )


def _measure_losses(observation: Observation, operator: str, removed: Tensor) -> Tensor:
    """Remove units, and measure how much the probability of the model's decision falls.

    Args:
        observation: Model outputs and attention for a batch.
        operator: "deletion" or "mask".
        removed: Units to be removed, bool ``[copies, batch, keys]``.

    Returns:
        Losses ``[copies, batch]``.
    """
    return compute_losses(observation, predict_without_units(observation, operator, removed))


def compute_losses(observation: Observation, probs: Tensor) -> Tensor:
    """Return how much the probability of the model's decision falls if the texts are changed.

    By default, the decision is the predicted class. If another class was chosen to be explained,
    the decision is that the text does, or does not, belong to this class.

    Args:
        observation: Model outputs for the original texts.
        probs: Probabilities for changed texts, ``[copies, batch, classes]``.

    Returns:
        Losses ``[copies, batch]``; negative if the probability rises.
    """
    original_probs = observation.compute_explained_probs(observation.probs)
    changed_probs = observation.compute_explained_probs(probs)
    # The sign is −1 in texts for which the explained class is not predicted.
    return (original_probs - changed_probs) * observation.target_sign[:, 0]
