"""Losses, training procedures, architectures and optimizers from the papers."""

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
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig


if TYPE_CHECKING:
    import datasets


def make_paper_loss(
    train: "datasets.Dataset", n_classes: int, *, weighted: bool = True
) -> Callable[..., Tensor]:
    """Return a function that computes the training loss of the reproduced papers.

    The loss is the cross-entropy plus penalties. The function receives a model's outputs, the
    labels [batch] and optionally ``penalty`` [batch]. It adds this penalty and the model's own
    ``outputs.regularization`` [batch] to the cross-entropies. All terms are summed or averaged in
    the same way, so that their balance does not depend on the batch size.

    Args:
        train: Training texts, whose ``label`` column determines the class weights.
        n_classes: Number of classes.
        weighted: For two classes, weight the positive class by n_negative / n_positive and sum over
            the batch (Jain & Wallace 2019, released code). Otherwise, and for more than two
            classes, the loss is the mean over the batch.

    Returns:
        A function for the argument ``compute_loss_func`` of a Trainer.
    """
    if n_classes > 2 or not weighted:
        return partial(_compute_loss, class_weights=None)
    labels = np.asarray(read_column(train, "label"))
    positive_weight = (labels == 0).sum() / (labels == 1).sum()
    class_weights = torch.tensor([1.0, positive_weight], dtype=torch.float32)
    return partial(_compute_loss, class_weights=class_weights)


def _compute_loss(
    outputs: Any,
    labels: Tensor,
    num_items_in_batch: Any = None,
    penalty: Tensor | None = None,
    *,
    class_weights: Tensor | None,
) -> Tensor:
    """Compute the loss of a batch: the cross-entropy of its texts plus penalties.

    With class weights, it is the weighted sum over the texts. Otherwise, it is the mean.
    """
    if class_weights is None:
        task_loss = cross_entropy(outputs.logits, labels)
        return add_penalties(task_loss, outputs, torch.mean, penalty)
    weights = class_weights.to(outputs.logits)
    task_loss = cross_entropy(outputs.logits, labels, weights, reduction="sum")
    return add_penalties(task_loss, outputs, torch.sum, penalty)


def add_penalties(
    loss: Tensor,
    outputs: Any,
    reduce: Callable[[Tensor], Tensor],
    penalty: Tensor | None = None,
) -> Tensor:
    """Add the penalties for the texts in a batch to the loss.

    Args:
        loss: Loss for the batch, a scalar.
        outputs: Model outputs. Their ``regularization`` [batch] is added if it exists.
        reduce: Function that combines the penalties of all texts, ``torch.sum`` or
            ``torch.mean``. It must be the same one as for the loss.
        penalty: Further penalties, [batch].

    Returns:
        The loss with all penalties, a scalar.
    """
    regularization = getattr(outputs, "regularization", None)
    if penalty is None:
        penalty = regularization
    elif regularization is not None:
        penalty = penalty + regularization
    return loss if penalty is None else loss + reduce(penalty)


# --- Training procedures, architectures and optimizers of the papers -----------------------------

DEFAULT_PROCEDURE = "jain-wallace"
"""Name of the default training procedure, which follows the released code of Jain & Wallace
2019."""


@dataclass(frozen=True)
class Procedure:
    """The training settings of a paper.

    Attributes:
        epochs: Maximum number of epochs.
        batch_size: Number of texts per step.
        learning_rate: Learning rate for Adam.
        weight_decay: Weight decay for Adam, see :func:`make_paper_optimizer`.
        min_document_frequency: Number of training texts in which a word must occur; rarer words
            become unknown.
        max_grad_norm: Norm to which gradients are clipped; 0 disables clipping.
        plateau_factor: Factor on the learning rate after every epoch without a better validation
            score.
        patience: Number of epochs without a better validation score after which the training ends;
            None disables early stopping.
        amsgrad: Whether Adam uses the AMSGrad variant.
        weighted: Whether, for two classes, the positive class is weighted by
            n_negative / n_positive and losses are summed over the batch.
        metric: The validation score; None means ROC-AUC for two classes and accuracy for more.
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

    def get_settings(self) -> dict[str, Any]:
        """Return the fields that are also training options, by name."""
        not_options = ("amsgrad", "weighted", "metric")
        return {name: value for name, value in vars(self).items() if name not in not_options}


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
    # The settings for IMDB and Yahoo Answers. The paper requires 5 occurrences of a word, while
    # `min_document_frequency` requires 5 texts that contain the word.
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
"""Training procedures by the value of the option ``procedure``."""


PAIR_SETTINGS: dict[str, Any] = {
    "epochs": 25,
    "batch_size": 100,
    "weighted": False,
    "metric": "accuracy",
}
"""Settings of ``jain-wallace`` that differ for models that read text pairs.

The released code uses several batch sizes: 128 for SNLI, 90 for CNN, and 50 with 100 epochs for
bAbI.
"""


def choose_procedure(
    name: str | None, encoder: str, *, is_pair_model: bool = False, **changes: Any
) -> Procedure:
    """Return the training procedure of a paper, in which some settings can be replaced.

    Args:
        name: A key of :data:`PROCEDURES`; None means ``jain-wallace``.
        encoder: The model's encoder. Serrano & Smith train longer if it is ``none``.
        is_pair_model: Whether the model has a query encoder, see :data:`PAIR_SETTINGS`.
        **changes: Fields of :class:`Procedure` to replace; None keeps the paper's value.
    """
    procedure = PROCEDURES[name or DEFAULT_PROCEDURE]
    if name == "serrano-smith" and encoder == "none":
        procedure = replace(procedure, epochs=60, patience=10)
    if is_pair_model and procedure is PROCEDURES[DEFAULT_PROCEDURE]:
        procedure = replace(procedure, **PAIR_SETTINGS)
    return replace(procedure, **_drop_none(changes))


def make_paper_config(name: str | None = None, **changes: Any) -> AttentionClassifierConfig:
    """Return the model architecture of a paper, in which some fields can be replaced.

    For ``serrano-smith`` this is the paper's flat model (FLAN) with a BiGRU, or its hierarchical
    model (HAN) if ``hierarchical=True``. The dropout rates are those for IMDB in the released code.

    Args:
        name: A key of :data:`PROCEDURES`; None means ``jain-wallace``.
        **changes: Configuration fields to replace; None keeps the paper's value.

    Raises:
        AttnProbeError: If a field does not exist, or if the sizes do not form a valid model.
    """
    fields = _drop_none(changes)
    if name == "serrano-smith":
        fields = _get_serrano_smith_fields(**fields) | fields
    try:
        return AttentionClassifierConfig(**fields)
    except ValueError as error:
        # A checkpoint contains the code of the configuration, which raises built-in errors so that
        # it does not depend on this package.
        raise AttnProbeError(str(error)) from error


def _drop_none(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries whose value is not None."""
    return {name: value for name, value in changes.items() if value is not None}


def _get_serrano_smith_fields(
    encoder: str = "bigru", hierarchical: bool = False, **_: Any
) -> dict[str, Any]:
    """Return the configuration fields for the models of Serrano & Smith 2019."""
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


def make_paper_optimizer(model: torch.nn.Module, procedure: Procedure) -> torch.optim.Optimizer:
    """Return an Adam optimizer that applies weight decay to all layers except the attention.

    In models that read text pairs, weight decay also applies to the attention. Source: Jain &
    Wallace 2019, released code.

    Args:
        model: The model whose parameters are optimized.
        procedure: The procedure with learning rate, weight decay and AMSGrad setting.
    """
    parameters_without_decay: list[torch.nn.Parameter] = []
    parameters_with_decay: list[torch.nn.Parameter] = []
    reads_text_pairs = getattr(model.config, "query_encoder", False)
    for name, parameter in model.named_parameters():
        if ".attention." in name and not reads_text_pairs:
            parameters_without_decay.append(parameter)
        else:
            parameters_with_decay.append(parameter)
    groups = [{"params": parameters_with_decay, "weight_decay": procedure.weight_decay}]
    if parameters_without_decay:
        groups.append({"params": parameters_without_decay, "weight_decay": 0.0})
    return torch.optim.Adam(
        groups,
        lr=procedure.learning_rate,
        amsgrad=procedure.amsgrad,
        fused=True,
    )


def make_optimizer_and_schedule(
    model: torch.nn.Module, procedure: Procedure
) -> tuple[torch.optim.Optimizer, LRScheduler]:
    """Return the optimizer and the learning-rate schedule that a procedure prescribes.

    Args:
        model: The model whose parameters are optimized.
        procedure: The training procedure.
    """
    optimizer = make_paper_optimizer(model, procedure)
    if procedure.plateau_factor == 1:
        return optimizer, get_constant_schedule(optimizer)
    schedule = ReduceLROnPlateau(optimizer, mode="max", factor=procedure.plateau_factor, patience=0)
    return optimizer, schedule
