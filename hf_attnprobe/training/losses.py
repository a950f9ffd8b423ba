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
