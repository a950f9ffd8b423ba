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

from hf_attnprobe.attention_model import AttentionModel, Batch, Observation, Site
from hf_attnprobe.errors import AttnProbeError


@dataclass(frozen=True)
class PruneCurve:
    """Accuracy against the number of heads that are zero-ablated together, all [points].

    n_removed: the number of heads.
    agreement: share of texts whose predicted class is still the unpruned model's.
    accuracy: share of the labelled texts classified correctly, NaN where none is labelled.
    """

    n_removed: tuple[int, ...]
    agreement: tuple[float, ...]
    accuracy: tuple[float, ...]


def least_first(effects: Mapping[tuple[int, int], float]) -> list[Site]:
    """Sites by ascending effect.

    Args:
        effects: by (layer, head), such as ``by_head(report.statistics, "zero_tvd")``, or
            ``"first_order_zero"`` as in the paper.
    """
    return [
        Site(layer, head)
        for layer, head in sorted(effects, key=lambda site: (effects[site], site))
    ]


@torch.no_grad()
def prune_curve(
    model: AttentionModel,
    batches: Iterable[Batch],
    ranking: Sequence[Site],
    *,
    n_removed: Sequence[int] | None = None,
) -> PruneCurve:
    """Zero-ablates the first 0, 1, 2, … heads of ``ranking`` together and predicts again.

    Args:
        batches: texts; their labels count where they are 0 or more.
        ranking: heads, the first to go first; see :func:`least_first`.
        n_removed: where to measure; by default at every number of heads from none to
            all of them.
    """
    points = tuple(range(len(ranking) + 1)) if n_removed is None else tuple(n_removed)
    if not all(0 <= n <= len(ranking) for n in points):
        raise AttnProbeError(
            f"expected numbers of heads from 0 to {len(ranking)}, got {list(points)}"
        )
    counts = sum(
        _counts(model, batch, [ranking[:n] for n in points]) for batch in batches
    )
    if not isinstance(counts, Tensor):
        raise AttnProbeError("expected at least one batch of texts, got none")
    agreeing, correct, n_texts, n_labelled = counts.unbind(1)
    return PruneCurve(
        points,
        tuple((agreeing / n_texts).tolist()),
        tuple((correct / n_labelled).tolist()),
    )


def _counts(
    model: AttentionModel, batch: Batch, removed: Sequence[Sequence[Site]]
) -> Tensor:
    """Numbers of texts: agreeing, correct, all, labelled; float64 [points, 4]."""
    observation = model.observe(batch)
    predicted = observation.probs.argmax(-1)
    labels = (
        torch.full_like(predicted, -1)
        if batch.labels is None
        else batch.labels.to(predicted.device)
    )
    after = ablated(model, observation, removed).argmax(-1)
    found = [
        after == predicted,
        (after == labels) & (labels >= 0),
        after >= 0,
        (labels >= 0).expand_as(after),
    ]
    return torch.stack([x.sum(1) for x in found], dim=1).double().cpu()


def ablated(
    model: AttentionModel, observation: Observation, removed: Sequence[Sequence[Site]]
) -> Tensor:
    """Probabilities [points, batch, classes] with each set of heads zero-ablated.

    The attention of the other heads follows from it.
    """
    kept = {
        layer: observation.probs.new_ones(len(removed), *attention.shape[:2], 1, 1)
        for layer, attention in enumerate(observation.attention)
        if any(site.layer == layer for sites in removed for site in sites)
    }
    for point, sites in enumerate(removed):
        for site in sites:
            kept[site.layer][point, :, site.head] = 0
    return (
        model.replay_masked(observation, kept)
        if kept
        else observation.probs.expand(len(removed), -1, -1)
    )
