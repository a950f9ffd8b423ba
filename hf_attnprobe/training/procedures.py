"""Losses and training procedures of the papers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from transformers import get_constant_schedule

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig


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
    """Weighted sum over the batch; the mean where there are no weights."""
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


# --- Training procedures and architectures of the papers, and the optimizer they use -------------

DEFAULT = "jain-wallace"


@dataclass(frozen=True)
class Procedure:
    """How a paper trained its classifiers.

    Attributes:
        max_grad_norm: norm to which gradients are clipped; 0 is never.
        plateau_factor: factor of the learning rate after every epoch whose validation
            score is no better.
        patience: so many such epochs end the training; None is never.
        amsgrad: whether Adam uses the AMSGrad variant.
        weighted: for two classes, the positive one weighs n_negative / n_positive and
            the losses of a batch are summed.
        metric: the validation score; None is ROC-AUC for two classes, accuracy for more.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    min_document_frequency: int
    max_grad_norm: float
    plateau_factor: float
    patience: int | None
    amsgrad: bool
    weighted: bool
    metric: str | None

    def settings(self) -> dict[str, Any]:
        """The fields that are also training options, by name."""
        fixed = ("amsgrad", "weighted", "metric")
        return {name: value for name, value in vars(self).items() if name not in fixed}


PROCEDURES = {
    "jain-wallace": Procedure(
        epochs=8,
        batch_size=32,
        learning_rate=1e-3,
        weight_decay=1e-5,
        min_document_frequency=1,
        max_grad_norm=0.0,
        plateau_factor=1.0,
        patience=None,
        amsgrad=True,
        weighted=True,
        metric=None,
    ),
    # For IMDB and Yahoo Answers. The paper's bound of 5 counts words; here it counts
    # the documents that have them.
    "serrano-smith": Procedure(
        epochs=15,
        batch_size=64,
        learning_rate=4e-4,
        weight_decay=0.0,
        min_document_frequency=5,
        max_grad_norm=10.0,
        plateau_factor=0.5,
        patience=5,
        amsgrad=False,
        weighted=False,
        metric="accuracy",
    ),
}


# Of Jain & Wallace's models of pairs (2019, released code). Batches are
# 128 for SNLI, 90 for CNN, 50 for bAbI with 100 epochs, and else as here.
PAIRS: dict[str, Any] = {
    "epochs": 25,
    "batch_size": 100,
    "weighted": False,
    "metric": "accuracy",
}


def papers_procedure(
    name: str | None, encoder: str, *, pairs: bool = False, **changes: Any
) -> Procedure:
    """The named procedure with some settings replaced.

    Args:
        name: a key of :data:`PROCEDURES`; None is jain-wallace.
        encoder: the model's; without one, Serrano & Smith train for longer.
        pairs: whether the model has a query encoder; see :data:`PAIRS`.
        changes: fields of :class:`Procedure`; None leaves the paper's value.
    """
    procedure = PROCEDURES[name or DEFAULT]
    if name == "serrano-smith" and encoder == "none":
        procedure = replace(procedure, epochs=60, patience=10)
    if pairs and procedure is PROCEDURES[DEFAULT]:
        procedure = replace(procedure, **PAIRS)
    return replace(procedure, **_given(changes))


def papers_config(name: str | None = None, **changes: Any) -> AttentionClassifierConfig:
    """The architecture that a procedure prescribes, with some fields replaced.

    ``serrano-smith`` is their FLAN with a BiGRU, or with ``hierarchical=True`` their HAN,
    with the dropout rates of IMDB (Serrano & Smith 2019, released code).

    Args:
        name: a key of :data:`PROCEDURES`; None is jain-wallace.
        changes: fields of the configuration; None leaves the paper's value.

    Raises:
        AttnProbeError: no such field, or sizes that make no model.
    """
    fields = _given(changes)
    if name == "serrano-smith":
        fields = _serrano_smith(**fields) | fields
    try:
        return AttentionClassifierConfig(**fields)
    except ValueError as error:  # the checkpoint code knows no error but Python's
        raise AttnProbeError(str(error)) from error


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}


def _serrano_smith(encoder: str = "bigru", hierarchical: bool = False, **_: Any) -> dict[str, Any]:
    two_directions = encoder in ("bigru", "bilstm")
    return {
        "encoder": encoder,
        "embedding_size": 200,
        "encoder_size": 50 if two_directions else 100,
        "kernel_sizes": (3, 5),
        "attention_size": 200 if encoder == "none" else 100,
        "embedding_dropout": 0.444,
        "sentence_dropout": 0.220 if hierarchical else 0.0,
        "logit_dropout": 0.246 if hierarchical else 0.346,
    }


def papers_optimizer(model: torch.nn.Module, procedure: Procedure) -> torch.optim.Optimizer:
    """Adam with weight decay on everything but attention; for pairs on attention too.

    Source: Jain & Wallace 2019, released code.
    """
    attention: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    decays = getattr(model.config, "query_encoder", False)
    for name, parameter in model.named_parameters():
        is_free = ".attention." in name and not decays
        group = attention if is_free else others
        group.append(parameter)
    groups = [{"params": others, "weight_decay": procedure.weight_decay}]
    if attention:
        groups.append({"params": attention, "weight_decay": 0.0})
    return torch.optim.Adam(
        groups,
        lr=procedure.learning_rate,
        amsgrad=procedure.amsgrad,
        fused=True,
    )


def optimizer_and_schedule(
    model: torch.nn.Module, procedure: Procedure
) -> tuple[torch.optim.Optimizer, LRScheduler]:
    """The procedure's optimizer and learning-rate schedule, for a Trainer."""
    optimizer = papers_optimizer(model, procedure)
    if procedure.plateau_factor == 1:
        return optimizer, get_constant_schedule(optimizer)
    schedule = ReduceLROnPlateau(optimizer, mode="max", factor=procedure.plateau_factor, patience=0)
    return optimizer, schedule
