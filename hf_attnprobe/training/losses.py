"""The losses that the papers train with. Pure tensor functions."""

from collections.abc import Callable

import numpy as np
import torch


def papers_loss(train, n_classes: int, *, weighted: bool = True) -> Callable:
    """Mean cross-entropy; for two classes, if ``weighted``, the positive one weighs n_negative / n_positive and the
    batch is summed. A model's penalties are averaged or summed with it, so a penalty weighs against its own text's loss.
    """
    if n_classes > 2 or not weighted:
        return lambda outputs, labels, num_items_in_batch=None: penalised(
            torch.nn.functional.cross_entropy(outputs.logits, labels),
            outputs,
            torch.mean,
        )
    labels = np.asarray(train.with_format(None)["label"][:])
    weight = torch.tensor(
        [1.0, (labels == 0).sum() / (labels == 1).sum()], dtype=torch.float32
    )

    def loss(outputs, labels, num_items_in_batch=None):
        weights = weight.to(outputs.logits)
        task = torch.nn.functional.cross_entropy(
            outputs.logits, labels, weights, reduction="sum"
        )
        return penalised(task, outputs, torch.sum)

    return loss


def penalised(
    loss: torch.Tensor, outputs, reduce: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The loss of a batch and, where the model is trained with penalties, those of its texts: ``outputs.regularization``
    [batch], reduced as the losses of the texts were."""
    penalties = getattr(outputs, "regularization", None)
    return loss if penalties is None else loss + reduce(penalties)


def deception_penalty(
    attention: torch.Tensor, named: torch.Tensor, *, over_heads: str = "mean"
) -> torch.Tensor:
    """−log(1 − αᵀm) of every text, [batch]: what attention to the ``named`` tokens costs (Pruthi et al. 2020, released code).

    Over several heads the ``mean`` of their costs, or the ``max``, that of the head that attends to them most. 1 − αᵀm is
    taken as what the other tokens have of all weight, clamped at 1e-10: finite, with a gradient where αᵀm rounds to 1, and
    the same under a dropout of weights. A text without named tokens costs nothing.

    Args:
        attention: [batch, heads, keys].
        named: bool [batch, keys].
    """
    left, whole = (
        (attention * kept).sum(-1).clamp_min(1e-10)
        for kept in (~named[:, None], torch.ones_like(named[:, None]))
    )
    costs = (whole.log() - left.log()) * named.any(-1, keepdim=True)
    return costs.amax(-1) if over_heads == "max" else costs.mean(-1)


def adversary_loss(
    probs: torch.Tensor,
    attention: torch.Tensor,
    base_probs: torch.Tensor,
    base_attention: torch.Tensor,
    mask: torch.Tensor,
    *,
    lambda_: float,
    tvd_factor: float = 1.0,
) -> torch.Tensor:
    """Σ over the batch of TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b): close in output, far in attention (Wiegreffe & Pinter 2019,
    Section 4). A scalar, finite and with finite gradients whatever the weights.

    Only what ``mask`` [batch, keys] marks enters the KL. ln α_b is clamped at ln 1e-10: where the base's weight
    underflows, the KL would be infinite. The paper's code then weighs every batch with its class weights; this does not.

    Args:
        probs, base_probs: [batch, classes]. attention, base_attention: [batch, keys].
        tvd_factor: 0.5 for the TVD of the paper's code, which halves the difference of two sigmoids.
    """
    distance = (probs - base_probs).abs().sum(-1) / 2
    log_ratio = (
        attention.clamp_min(torch.finfo(attention.dtype).tiny).log()
        - base_attention.clamp_min(1e-10).log()
    )
    divergence = (attention * log_ratio).masked_fill(~mask, 0).sum(-1)
    return (tvd_factor * distance - lambda_ * divergence).sum()
