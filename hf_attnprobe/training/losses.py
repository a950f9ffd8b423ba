"""The losses that the papers train with. Pure tensor functions."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hf_attnprobe.data.examples import column_of


if TYPE_CHECKING:
    import datasets


def papers_loss(
    train: "datasets.Dataset", n_classes: int, *, weighted: bool = True
) -> Callable[..., Tensor]:
    """Cross-entropy as the papers reduce it, with the penalties of the model.

    The loss takes a model's outputs, the labels [batch] and, as ``penalty`` [batch], what
    is to be added per text besides the model's own ``outputs.regularization`` [batch].
    Penalties are reduced as the cross-entropies are, so each weighs against its own text.

    Args:
        train: training texts, whose ``label`` column gives the class weights.
        weighted: for two classes, the positive one weighs n_negative / n_positive and
            the batch is summed (Jain & Wallace 2019, released code). Otherwise, and for
            more classes, the loss is the mean.
    """
    if n_classes > 2 or not weighted:
        return partial(_loss, class_weights=None)
    labels = np.asarray(column_of(train, "label"))
    positive_weight = (labels == 0).sum() / (labels == 1).sum()
    class_weights = torch.tensor([1.0, positive_weight], dtype=torch.float32)
    return partial(_loss, class_weights=class_weights)


def _loss(
    outputs: Any,
    labels: Tensor,
    num_items_in_batch: Any = None,
    penalty: Tensor | None = None,
    *,
    class_weights: Tensor | None,
) -> Tensor:
    """The weighted sum over the batch; without weights the mean."""
    if class_weights is None:
        task = cross_entropy(outputs.logits, labels)
        return with_penalties(task, outputs, torch.mean, penalty)
    weights = class_weights.to(outputs.logits)
    task = cross_entropy(outputs.logits, labels, weights, reduction="sum")
    return with_penalties(task, outputs, torch.sum, penalty)


def with_penalties(
    loss: Tensor,
    outputs: Any,
    reduce: Callable[[Tensor], Tensor],
    penalty: Tensor | None = None,
) -> Tensor:
    """The loss of a batch plus its reduced penalties.

    Args:
        outputs: a model's; ``regularization`` [batch], where it has one, is added.
        reduce: how the losses of the texts were reduced, ``torch.sum`` or ``torch.mean``.
        penalty: further penalties, [batch].
    """
    own = getattr(outputs, "regularization", None)
    if penalty is None:
        penalty = own
    elif own is not None:
        penalty = penalty + own
    return loss if penalty is None else loss + reduce(penalty)


def deception_penalty(
    attention: Tensor, impermissible: Tensor, *, over_heads: str = "mean"
) -> Tensor:
    """The cost −log(1 − αᵀm) of attention to impermissible tokens, [batch].

    1 − αᵀm is computed as the other tokens' share of all weight, clamped at 1e-10. It is
    finite, has a gradient where αᵀm rounds to 1, and does not change under dropout of the
    weights. A text without impermissible tokens costs 0.
    Source: Pruthi et al. 2020, released code.

    Args:
        attention: [batch, heads, keys].
        impermissible: bool [batch, keys].
        over_heads: ``mean`` of the heads' costs, or ``max``, the most costly head's.
    """
    permitted = ~impermissible[:, None]
    left = (attention * permitted).sum(-1).clamp_min(1e-10)
    whole = (attention * torch.ones_like(permitted)).sum(-1).clamp_min(1e-10)
    costs = (whole.log() - left.log()) * impermissible.any(-1, keepdim=True)
    if over_heads == "max":
        return costs.amax(-1)
    return costs.mean(-1)


def adversary_loss(
    probs: Tensor,
    attention: Tensor,
    base_probs: Tensor,
    base_attention: Tensor,
    mask: Tensor,
    *,
    lambda_: float,
    tvd_factor: float = 1.0,
) -> Tensor:
    """Σ over the batch of TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b), a finite scalar.

    It is low for a model close to the base in output and far from it in attention
    (Wiegreffe & Pinter 2019, Section 4). ln α_b is clamped at ln 1e-10: where the base's
    weight underflows, the KL would be infinite. The paper's code then multiplies every
    batch by its class weights; this does not.

    Args:
        probs, base_probs: [batch, classes].
        attention, base_attention: [batch, keys].
        mask: bool [batch, keys], the tokens that enter the KL.
        lambda_: weight of the KL, at least 0.
        tvd_factor: 0.5 for the TVD of the paper's code, which halves the difference of
            two sigmoids.
    """
    distance = (probs - base_probs).abs().sum(-1) / 2
    smallest = torch.finfo(attention.dtype).tiny
    log_attention = attention.clamp_min(smallest).log()
    log_ratio = log_attention - base_attention.clamp_min(1e-10).log()
    divergence = (attention * log_ratio).masked_fill(~mask, 0).sum(-1)
    return (tvd_factor * distance - lambda_ * divergence).sum()
