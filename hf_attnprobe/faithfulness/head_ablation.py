"""Test ``head_ablation``: does a head matter to the prediction?

The output of a head (attention · values, before the output projection) is replaced.

Question
    Would the prediction be the same without the head, or with the head's output on other texts?

Measure
    Output change (total variation distance) and decision flips if the head's output is

    - zeroed (Michel et al. 2019, "Are Sixteen Heads Really Better than One?", Section 3);
    - replaced with its mean over all real queries in a fixed text sample (mean ablation);
    - replaced with its output on another text from this sample, position by position (resample
      ablation). Li & Janson 2024 compare these methods.

Groups
    All heads in a layer or in the model are zeroed at once. Mean and resample ablation are measured
    for single heads only.

Interpretation
    0: the head is not needed. 1: it determines the output. Zero is an output that a head never
    gives, so zeroing can do more than remove information; mean and resample ablation only remove
    information. Later layers compensate for a missing head (self-repair: Rushing & Nanda 2024), so
    all three are lower bounds for a head's contribution.

The module also measures the effects of pairs of heads, see :func:`measure_pair_effects`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import create_random_generator
from hf_attnprobe.protocol import (
    ALL,
    AttentionModelBase,
    Batch,
    HeadOutputs,
    MaskedReplay,
    Observation,
    ReferenceOutputs,
    Site,
)


ABLATION_DONOR_STREAM = 2
"""Index of the random number stream that draws donors. A donor is another text whose head outputs
replace those of the audited text."""
READINGS: TestReadings = {
    "zero_tvd": "zeroing the head's output moves the model's output by {mean:.2f} {unit}",
    "zero_flip": make_share_reading(
        "zeroing the head's output flips {decision} in {mean:.0%} of texts"
    ),
    "mean_tvd": (
        "replacing the head's output with its mean moves the model's output by {mean:.2f} {unit}"
    ),
    "mean_flip": make_share_reading(
        "replacing the head's output with its mean flips {decision} in {mean:.0%} of texts"
    ),
    "resample_tvd": (
        "replacing the head's output with that on another text moves the model's output by "
        "{mean:.2f} {unit}"
    ),
    "resample_flip": make_share_reading(
        "replacing the head's output with that on another text flips {decision} in {mean:.0%} of "
        "texts"
    ),
}


@dataclass(frozen=True)
class HeadAblationResult:
    """Statistics from the test ``head_ablation``, tensors ``[batch]``.

    Mean and resample ablation are None for attention classifiers, for head groups, without a text
    sample, and for architectures whose head outputs cannot be replaced.

    Attributes:
        zero_tvd: Output change in [0, 1] if the head's output is zeroed.
        zero_flip: 1 if zeroing the output flips the decision, else 0.
        mean_tvd: Output change by mean ablation.
        mean_flip: 1 if mean ablation flips the decision, else 0.
        resample_tvd: Output change by resample ablation. NaN if the sample has no other text.
        resample_flip: 1 if resample ablation flips the decision, else 0. NaN if the sample has no
            other text.
    """

    zero_tvd: Tensor
    zero_flip: Tensor
    mean_tvd: Tensor | None = None
    mean_flip: Tensor | None = None
    resample_tvd: Tensor | None = None
    resample_flip: Tensor | None = None


@register_test(
    readings=READINGS,
    summary="replaces the output of a head",
    default="many heads",
    groups=True,
    uses_reference=True,
)
@torch.no_grad()
def head_ablation(
    observation: Observation,
    site: Site,
    options: NoOptions = NoOptions(),
    *,
    seed: int = 0,
) -> HeadAblationResult:
    """Replace a head's output, or zero the outputs in a head group, and measure the change.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group. With ``site.query``, only the output at this query changes.
        options: Unused, because the test has no options.
        seed: Seed for the choice of the other text whose head output is used.

    Returns:
        Statistics per text.
    """
    model = observation.model
    zeroed = observation.edit_attention(
        site, lambda _, attention: torch.zeros_like(attention)[None]
    )
    zero_tvd, zero_flip = _measure_changes(observation, model.replay(observation, zeroed)[0])
    reference = _get_reference(observation, site)
    if reference is None:
        return HeadAblationResult(zero_tvd, zero_flip)
    outputs = reference.outputs[site.layer][:, site.head]
    lengths = reference.lengths
    attention = observation.attention[site.layer]
    donors = _draw_donors(reference, observation.batch, seed).to(attention.device)
    shape = (len(attention), attention.shape[2], -1)
    # Outputs are zero beyond the lengths, so that this is the mean over all real queries.
    mean_output = (outputs.sum((0, 1)) / lengths.sum()).expand(shape)
    is_real = observation.batch.mask
    if attention.shape[2] != is_real.shape[1]:
        # The queries are other tokens than the keys, so the mask of the keys does not apply.
        is_real = torch.ones_like(attention[:, 0, :, 0], dtype=torch.bool)
    donor_output = resample_outputs(outputs, lengths, donors.clamp_min(0), is_real)
    replacements = torch.stack([mean_output, donor_output])
    probs = model.require(HeadOutputs).replay_outputs(observation, site, replacements)
    mean_tvd, mean_flip = _measure_changes(observation, probs[0])
    resample_tvd, resample_flip = _measure_changes(observation, probs[1])
    has_no_donor = donors < 0
    return HeadAblationResult(
        zero_tvd,
        zero_flip,
        mean_tvd,
        mean_flip,
        resample_tvd.masked_fill(has_no_donor, torch.nan),
        resample_flip.masked_fill(has_no_donor, torch.nan),
    )


def _get_reference(observation: Observation, site: Site) -> ReferenceOutputs | None:
    """Return the sample's head outputs, or None if the site's output cannot be replaced."""
    model = observation.model
    return None if site.is_group or model.lacks(HeadOutputs, site) else model.reference


def _measure_changes(observation: Observation, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output change and whether the decision flips, each ``[batch]``."""
    flips = observation.find_flips(probs).to(torch.float64)
    return tvd(probs, observation.probs), flips


def _draw_donors(reference: ReferenceOutputs, batch: Batch, seed: int) -> Tensor:
    """Draw a donor for each text: another text, whose head outputs replace those of the text.

    Copies of a text have the same outputs, so they cannot be its donors.

    Args:
        reference: Head outputs for a sample of texts, from which the donors are drawn.
        batch: Texts that need a donor.
        seed: Seed for the draw.

    Returns:
        Row indices in the sample, int64 ``[batch]``; −1 if the sample has no other text.
    """
    donors = []
    for example_id, identity in zip(batch.example_ids, batch.list_identities(), strict=True):
        candidates = [
            row
            for row, donor_id in enumerate(reference.example_ids)
            if donor_id != example_id
            and (identity is None or reference.identities[row] != identity)
        ]
        if not candidates:
            donors.append(-1)
            continue
        generator = create_random_generator(seed, int(example_id), ABLATION_DONOR_STREAM)
        donors.append(candidates[generator.integers(len(candidates))])
    return torch.tensor(donors)


def resample_outputs(outputs: Tensor, lengths: Tensor, donors: Tensor, mask: Tensor) -> Tensor:
    """Give each text the head outputs of another text, its donor.

    The first query of the text gets the donor's first output, the second query the second output,
    and so on. If the donor is shorter, the remaining queries get the donor's mean output.

    Args:
        outputs: Head outputs in a sample of texts, ``[texts, queries, width]``, zero beyond a
            text's length.
        lengths: Number of queries in each text of the sample, int ``[texts]``.
        donors: Row index of each text's donor in the sample, int64 ``[batch]``.
        mask: Queries of the new texts that are not padding, bool ``[batch, new queries]``.

    Returns:
        Outputs ``[batch, new queries, width]``. Outputs for padding have no meaning.
    """
    donor_outputs = outputs[donors]
    n_donor_queries = lengths[donors][:, None]
    mean_output = donor_outputs.sum(1) / n_donor_queries

    # Queries are counted without padding: 0, 1, 2, …
    query_index = (mask.cumsum(1) - 1).clamp_min(0)
    donor_query = query_index.clamp(max=outputs.shape[1] - 1)
    texts = torch.arange(len(donors), device=donors.device)[:, None]
    aligned_outputs = donor_outputs[texts, donor_query]
    has_donor_query = (query_index < n_donor_queries)[..., None]
    return torch.where(has_donor_query, aligned_outputs, mean_output[:, None])


# --- Ablation of several heads together --------------------------------------------------------
# Heads that can replace each other look superfluous one by one, although the model fails without all of
# them (Michel et al. 2019, Section 4).


def sort_sites_by_effect(effects: Mapping[tuple[int, int], float]) -> list[Site]:
    """Sort heads by their effects, smallest first.

    Args:
        effects: Effect of each (layer, head), such as
            ``get_head_means(report.statistics, "zero_tvd")``. Michel et al. 2019 use
            ``"first_order_zero"``.

    Example::

        sort_sites_by_effect({(0, 0): 0.4, (0, 1): 0.1})  # [Site(0, 1), Site(0, 0)]
    """
    sorted_sites = sorted(effects, key=lambda site: (effects[site], site))
    return [Site(layer, head) for layer, head in sorted_sites]


def predict_without_heads(
    model: AttentionModelBase,
    observation: Observation,
    removed_heads: Sequence[Sequence[Site]],
) -> Tensor:
    """Return the model's probabilities after the outputs of some heads are set to 0.

    The model runs again, so that the attention in the layers above can change too.

    Args:
        model: Model whose heads are removed.
        observation: Model outputs and attention for a batch.
        removed_heads: Head sets. Each set is removed from a separate copy of the batch.

    Returns:
        Probabilities ``[sets, batch, classes]``.
    """
    # A head's output is multiplied by its entry in the mask: 0 removes the head.
    head_masks: dict[int, Tensor] = {}
    for set_index, sites in enumerate(removed_heads):
        for layer, head, _ in sites:
            if layer not in head_masks:
                shape = observation.attention[layer].shape[:2]
                head_masks[layer] = observation.probs.new_ones(len(removed_heads), *shape, 1, 1)
            head_masks[layer][set_index, :, head] = 0
    if not head_masks:
        return observation.probs.expand(len(removed_heads), -1, -1)
    return model.require(MaskedReplay).replay_masked(observation, head_masks)


# --- Ablation of heads in pairs ------------------------------------------------------------------


def select_heads_for_pairs(
    model: AttentionModelBase,
    batches: Iterable[Batch],
    effects: Mapping[tuple[int, int], float],
    n_heads: int,
) -> list[Site]:
    """Select the heads that are ablated in pairs.

    Half of them are the heads with the largest effects. Heads that can replace each other have no
    effect alone, so the other half are the heads whose attention patterns write most, see
    :meth:`~hf_attnprobe.protocol.Observation.compute_head_weights`.

    Args:
        model: Model whose heads are selected.
        batches: Texts from which the written amounts are computed.
        effects: Effect of each (layer, head).
        n_heads: Number of heads to select.

    Returns:
        Heads in order of layer and head.
    """
    by_effect = sort_sites_by_effect(effects)[::-1]
    by_weight = [site for site in _sort_sites_by_weight(model, batches) if site[:2] in effects]
    selected = set(by_effect[: n_heads // 2 if by_weight else n_heads])
    for site in [*by_weight, *by_effect]:
        if len(selected) < n_heads:
            selected.add(site)
    return sorted(selected)


@torch.no_grad()
def _sort_sites_by_weight(model: AttentionModelBase, batches: Iterable[Batch]) -> list[Site]:
    """Sort all heads by their mean weight over texts, largest first; empty without weights."""
    weights = []
    for batch in batches:
        batch_weights = model.observe(batch).compute_head_weights(Site(ALL, ALL), all_rows=True)
        if batch_weights is None:
            return []
        weights.append(batch_weights)
    order = torch.cat(weights).mean(0).argsort(descending=True)
    sites = sorted(model.sites())
    return [sites[index] for index in order.tolist()]


@torch.no_grad()
def measure_pair_effects(
    model: AttentionModelBase, batches: Iterable[Batch], heads: Sequence[Site]
) -> tuple[Tensor, Tensor]:
    """Measure the effect of zeroing each head, in the whole model and without each other head.

    The effect is the output change (total variation distance) at the standard temperature.

    Args:
        model: Model whose heads are zeroed.
        batches: Texts.
        heads: Heads to be zeroed, at least two.

    Returns:
        Two tensors, float64 on the CPU:

        - Effects ``[texts, heads]`` of zeroing head i.
        - Effects ``[texts, heads, heads]`` of zeroing head i in the model without head j. NaN if i
          and j are the same head.
    """
    pairs = list(combinations(range(len(heads)), 2))
    removed_heads = [[head] for head in heads]
    removed_heads += [[heads[i], heads[j]] for i, j in pairs]
    effects, effects_without_other = [], []
    for batch in batches:
        observation = model.observe(batch)
        probs = predict_without_heads(model, observation, removed_heads)
        probs = observation.apply_standard_temperature(probs)
        before = observation.apply_standard_temperature(observation.probs)
        probs_without_one = probs[: len(heads)]
        effects.append(tvd(probs_without_one, before).T.double().cpu())
        shape = len(before), len(heads), len(heads)
        conditional = torch.full(shape, torch.nan, dtype=torch.float64)
        for (i, j), probs_without_both in zip(pairs, probs[len(heads) :], strict=True):
            conditional[:, i, j] = tvd(probs_without_both, probs_without_one[j]).double().cpu()
            conditional[:, j, i] = tvd(probs_without_both, probs_without_one[i]).double().cpu()
        effects_without_other.append(conditional)
    return torch.cat(effects), torch.cat(effects_without_other)
