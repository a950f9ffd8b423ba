"""How many heads can go?

Accuracy as heads are zero-ablated one after the other, the least important first.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?", Section 4: the curve
says more than any single head, because heads that stand in for each other look
superfluous one by one and are missed together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    AttentionModelBase,
    Batch,
    MaskedReplay,
    Observation,
    Site,
)
from hf_attnprobe.errors import AttnProbeError


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
    counts = [_all_counts(model, *part, points) for part in parts]
    agreeing, correct, n_texts, n_labelled = (
        torch.stack(counts).sum(0).unbind(1)
    )
    return PruneCurve(
        points,
        tuple((agreeing / n_texts).tolist()),
        tuple((correct / n_labelled).tolist()),
        int(n_texts[0]),
        int(n_labelled[0]),
        crossed=len(parts) > 1,
    )


@torch.no_grad()
def _all_counts(
    model: AttentionModelBase,
    batches: Iterable[Batch],
    ranking: Sequence[Site],
    points: Sequence[int],
) -> Tensor:
    """:func:`_counts` summed over the batches."""
    if not points or not all(0 <= n <= len(ranking) for n in points):
        raise AttnProbeError(
            f"expected numbers of heads from 0 to {len(ranking)}, got {list(points)}"
        )
    counts = sum(
        _counts(model, batch, [ranking[:n] for n in points])
        for batch in batches
    )
    if not isinstance(counts, Tensor):
        raise AttnProbeError("expected at least one batch of texts, got none")
    return counts


def _counts(
    model: AttentionModelBase, batch: Batch, removed: Sequence[Sequence[Site]]
) -> Tensor:
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
                kept[layer] = observation.probs.new_ones(
                    len(removed), *shape, 1, 1
                )
            kept[layer][point, :, head] = 0
    if not kept:
        return observation.probs.expand(len(removed), -1, -1)
    return model.require(MaskedReplay).replay_masked(observation, kept)
