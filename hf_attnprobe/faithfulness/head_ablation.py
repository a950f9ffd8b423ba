"""Does a head matter at all?

Its output (attention · values, before the output projection) replaced.

Question: would the prediction be the same without this head, or with what the head does
          on other texts?
Measure:  total variation distance between the outputs before and after, and whether the
          decision flips, with the head's output set to zero (Michel et al. 2019, "Are
          Sixteen Heads Really Better than One?", Section 3); to its mean over all real
          queries of a fixed sample of texts; or to its output on another text of that
          sample, position by position (mean and resample ablation; Li & Janson 2024
          compare them).
Groups:   the heads of a layer, or of all layers, set to zero at once; no mean or
          resample.
Reading:  0 the head is not needed, 1 it decides everything. Zero is far from anything a
          head ever gives and can do more than taking its information away; mean and
          resample take that away alone. Later layers make up for a missing head
          (self-repair: Rushing & Nanda 2024), so each is a lower bound of what a head
          contributes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import random_generator
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    HeadOutputs,
    MaskedReplay,
    Observation,
    Reference,
    Site,
)


DONOR_STREAM = 2  # apart from the permutations' and the adversary's random numbers
READINGS: TestReadings = {
    "zero_tvd": "zero ablation moves the output by {mean:.2f} {unit}",
    "zero_flip": share("after zero ablation {decision} flips in {mean:.0%} of texts"),
    "mean_tvd": ("with what it adds replaced by its mean the output moves by {mean:.2f} {unit}"),
    "mean_flip": share(
        "with what it adds replaced by its mean {decision} flips in {mean:.0%} of texts"
    ),
    "resample_tvd": (
        "with what it adds taken from another text the output moves by {mean:.2f} {unit}"
    ),
    "resample_flip": share(
        "with what it adds taken from another text {decision} flips in {mean:.0%} of texts"
    ),
}


@dataclass(frozen=True)
class HeadAblationResult:
    """All [batch]: change of the output in [0, 1], and 1 where the predicted class
    changed.

    Lower bounds of a head's contribution, because later layers compensate. Mean and
    resample are None for attention classifiers, without a reference sample, and for
    families whose head outputs cannot be replaced, and of groups; resample is NaN for a text that is
    alone in the sample.
    """

    zero_tvd: Tensor
    zero_flip: Tensor
    mean_tvd: Tensor | None = None
    mean_flip: Tensor | None = None
    resample_tvd: Tensor | None = None
    resample_flip: Tensor | None = None


@register_test(
    readings=READINGS,
    does="replaces the output of a head",
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
    """Replaces the output of a head or a group, at all queries or at ``site.query`` alone.

    Args:
        seed: with a text's id it chooses the text of the reference sample that its head
            outputs are taken from.
    """
    model = observation.model
    ablated = observation.edited(site, lambda _, attention: torch.zeros_like(attention)[None])
    zero = _changes(observation, model.replay(observation, ablated)[0])
    reference = _reference(observation, site)
    if reference is None:
        return HeadAblationResult(*zero)
    outputs, lengths = (
        reference.outputs[site.layer][:, site.head],
        reference.lengths,
    )
    donors = _donors(reference, observation.batch.example_ids, seed)
    attention = observation.attention[site.layer]
    donors = donors.to(attention.device)
    shape = (len(attention), attention.shape[2], -1)
    # Every real query counts once: outputs are zero beyond the lengths.
    average = (outputs.sum((0, 1)) / lengths.sum()).expand(shape)
    real = observation.batch.mask
    if attention.shape[2] != real.shape[1]:  # queries that are other tokens than the keys
        real = torch.ones_like(attention[:, 0, :, 0], dtype=torch.bool)
    resampled = resampled_output(outputs, lengths, donors.clamp_min(0), real)
    replaced = torch.stack([average, resampled])
    mean, resample = model.require(HeadOutputs).replay_outputs(observation, site, replaced)
    alone = donors < 0
    tvd_, flip = _changes(observation, resample)
    return HeadAblationResult(
        *zero,
        *_changes(observation, mean),
        tvd_.masked_fill(alone, torch.nan),
        flip.masked_fill(alone, torch.nan),
    )


def _reference(observation: Observation, site: Site) -> Reference | None:
    """Sampled head outputs of other texts; None where the site's output cannot be replaced."""
    model = observation.model
    return None if site.is_group or model.lacks(HeadOutputs, site) else model.reference


def _changes(observation: Observation, after: Tensor) -> tuple[Tensor, Tensor]:
    flipped = observation.flips(after).to(torch.float64)
    return tvd(after, observation.probs), flipped


def _donors(reference: Reference, example_ids: tuple[int, ...], seed: int) -> Tensor:
    """For each text, the row in the sample of a random other text.

    Shape: int64 [batch]; −1 where there is no other.
    """
    chosen = []
    rows = list(enumerate(reference.example_ids))
    for example_id in example_ids:
        others = [row for row, other in rows if other != example_id]
        draw = random_generator(seed, int(example_id), DONOR_STREAM)
        chosen.append(others[draw.integers(len(others))] if others else -1)
    return torch.tensor(chosen)


def resampled_output(outputs: Tensor, lengths: Tensor, donors: Tensor, mask: Tensor) -> Tensor:
    """Puts the donor's output at the real queries of each text: first query on first.

    Beyond a donor's end its mean.

    Shape: outputs [texts, queries, width], zero beyond lengths [texts], donors int64
    [batch], mask bool [batch, new queries] -> [batch, new queries, width]; meaningless
    outside the mask.
    """
    given = outputs[donors]
    n_given = lengths[donors][:, None]
    mean = given.sum(1) / n_given

    place = (mask.cumsum(1) - 1).clamp_min(0)
    last = outputs.shape[1] - 1
    rows = place.clamp(max=last)
    texts = torch.arange(len(donors), device=donors.device)[:, None]
    at_place = given[texts, rows]
    has_place = (place < n_given)[..., None]
    return torch.where(has_place, at_place, mean[:, None])


# --- How many heads can go? --------------------------------------------------
# Accuracy as heads are zero-ablated one after the other, the least important first.
#
# Michel et al. 2019, "Are Sixteen Heads Really Better than One?", Section 4: the curve
# says more than any single head, because heads that stand in for each other look
# superfluous one by one and are missed together.


@dataclass(frozen=True)
class PruneCurve:
    """Accuracy against the number of heads that are zero-ablated together, all [points].

    n_removed: the number of heads.
    agreement: share of texts whose predicted class is still the unpruned model's.
    accuracy: share of the labelled texts classified correctly, NaN where none is labelled.
    n_texts: texts; 0 where that was not recorded.
    n_labelled: texts with a label.
    crossed: whether no text had a say in the order in which heads were removed from it.
    """

    n_removed: tuple[int, ...]
    agreement: tuple[float, ...]
    accuracy: tuple[float, ...]
    n_texts: int = 0
    n_labelled: int = 0
    crossed: bool = False


def least_first(effects: Mapping[tuple[int, int], float]) -> list[Site]:
    """Sites sorted by their effect, smallest first.

    Args:
        effects: by (layer, head), such as ``by_head(report.statistics, "zero_tvd")``, or
            ``"first_order_zero"`` as in the paper.
    """
    ranked = sorted(effects, key=lambda site: (effects[site], site))
    return [Site(layer, head) for layer, head in ranked]


@torch.no_grad()
def prune_curve(
    model: AttentionModelBase,
    parts: Sequence[tuple[Iterable[Batch], Sequence[Site]]],
    *,
    n_removed: Sequence[int],
) -> PruneCurve:
    """Zero-ablates the first 0, 1, 2, … heads of a ranking together and scores the predictions.

    A ranking by effects on these very texts looks better than it is on others: so each half
    of the texts is pruned in an order chosen on the other half.

    Args:
        parts: texts, whose labels count where they are 0 or more, and the heads in the order
            in which they go, see :func:`least_first`.
        n_removed: where to measure.
    """
    points = tuple(n_removed)
    counts = []
    for batches, ranking in parts:
        removed = [ranking[:n] for n in points]
        counts += [_counts(model, batch, removed) for batch in batches]
    agreeing, correct, n_texts, n_labelled = torch.stack(counts).sum(0).unbind(1)
    return PruneCurve(
        points,
        tuple((agreeing / n_texts).tolist()),
        tuple((correct / n_labelled).tolist()),
        int(n_texts[0]),
        int(n_labelled[0]),
        crossed=len(parts) > 1,
    )


def _counts(model: AttentionModelBase, batch: Batch, removed: Sequence[Sequence[Site]]) -> Tensor:
    """Counts texts: agreeing, correct, all, labelled; float64 [points, 4]."""
    observation = model.observe(batch)
    after = ablated(model, observation, removed)
    agreeing = ~observation.flips(after)
    right = torch.full_like(after[..., 0], torch.nan)
    if batch.labels is not None:
        right = model.prediction.right(after, batch.labels)
    labelled = ~right.isnan()
    correct = right.nan_to_num(0)
    parts = [agreeing, correct, torch.ones_like(agreeing), labelled]
    counts = [part.double().sum(-1) for part in parts]
    return torch.stack(counts, dim=-1).cpu()


def ablated(
    model: AttentionModelBase,
    observation: Observation,
    removed: Sequence[Sequence[Site]],
) -> Tensor:
    """Probabilities [points, batch, classes] with each set of heads zero-ablated.

    The attention of the other heads follows from it.
    """
    kept: dict[int, Tensor] = {}
    for point, sites in enumerate(removed):
        for layer, head, _ in sites:
            if layer not in kept:
                shape = observation.attention[layer].shape[:2]
                kept[layer] = observation.probs.new_ones(len(removed), *shape, 1, 1)
            kept[layer][point, :, head] = 0
    if not kept:
        return observation.probs.expand(len(removed), -1, -1)
    return model.require(MaskedReplay).replay_masked(observation, kept)
