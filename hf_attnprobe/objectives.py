"""What the papers optimise, how, and how the result is scored; no Trainer in sight."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import rankdata

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.errors import AttnProbeError


@dataclass(frozen=True)
class Procedure:
    """How a paper trained its classifiers.

    max_grad_norm: gradients are clipped to it, 0 for not at all. plateau_factor: what the learning rate is multiplied by
    after every epoch whose validation score is no better. patience: so many such epochs end the training, None for
    never. weighted: for two classes the positive one weighs n_negative / n_positive and a batch is summed.
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


PROCEDURES = {
    "jain-wallace": Procedure(8, 32, 1e-3, 1e-5, 1, 0.0, 1.0, None, amsgrad=True, weighted=True, metric=None),
    # Of IMDB and Yahoo Answers. The paper's bound of 5 counts words, here it counts the documents that have them.
    "serrano-smith": Procedure(15, 64, 4e-4, 0.0, 5, 10.0, 0.5, 5, amsgrad=False, weighted=False, metric="accuracy"),
}


def papers_procedure(recipe: str, encoder: str, **changes) -> Procedure:
    """The procedure named, with what is not None in ``changes`` in place of its own.

    Raises:
        AttnProbeError: no procedure of that name.
    """
    if recipe not in PROCEDURES:
        raise AttnProbeError(f"expected a recipe of {', '.join(PROCEDURES)}, got {recipe!r}")
    longer = {"epochs": 60, "patience": 10} if recipe == "serrano-smith" and encoder == "none" else {}
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(PROCEDURES[recipe], **(longer | given))


def papers_config(recipe: str = "jain-wallace", **changes) -> AttentionClassifierConfig:
    """The architecture of a paper, with what is not None in ``changes`` in place of its own.

    ``serrano-smith`` is their FLAN with a BiGRU, or with ``hierarchical=True`` their HAN, and the dropout rates of IMDB
    (Serrano & Smith 2019, released code).

    Raises:
        AttnProbeError: sizes that make no model.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    own = _serrano_smith(**changes) if recipe == "serrano-smith" else {}
    try:
        return AttentionClassifierConfig(**(own | changes))
    except ValueError as error:  # the checkpoint code knows no error but Python's
        raise AttnProbeError(str(error)) from error


def _serrano_smith(encoder: str = "bigru", hierarchical: bool = False, **_) -> dict:
    return {
        "encoder": encoder,
        "embedding_size": 200,
        "encoder_size": 50 if encoder in ("bigru", "bilstm") else 100,  # per direction
        "kernel_sizes": (3, 5),
        "attention_size": 200 if encoder == "none" else 100,
        "embedding_dropout": 0.444,
        "sentence_dropout": 0.220 if hierarchical else 0.0,
        "logit_dropout": 0.246 if hierarchical else 0.346,
    }


def papers_optimizer(
    model, *, learning_rate: float, weight_decay: float, amsgrad: bool = True
) -> torch.optim.Optimizer:
    """Adam; weight decay on everything but attention (Jain & Wallace 2019, released code)."""
    attention = {id(p) for name, p in model.named_parameters() if ".attention." in name}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in attention], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if id(p) in attention], "weight_decay": 0.0},
    ]
    return torch.optim.Adam([g for g in groups if g["params"]], lr=learning_rate, amsgrad=amsgrad, fused=True)


def papers_loss(train, n_classes: int, *, weighted: bool = True) -> Callable:
    """Mean cross-entropy; for two classes, if ``weighted``, the positive one weighs n_negative / n_positive and the
    batch is summed. A model's penalties are averaged or summed with it, so a penalty weighs against its own text's loss.
    """
    if n_classes > 2 or not weighted:
        return lambda outputs, labels, num_items_in_batch=None: penalised(
            torch.nn.functional.cross_entropy(outputs.logits, labels), outputs, torch.mean
        )
    labels = np.asarray(train.with_format(None)["label"][:])
    weight = torch.tensor([1.0, (labels == 0).sum() / (labels == 1).sum()], dtype=torch.float32)

    def loss(outputs, labels, num_items_in_batch=None):
        weights = weight.to(outputs.logits)
        task = torch.nn.functional.cross_entropy(outputs.logits, labels, weights, reduction="sum")
        return penalised(task, outputs, torch.sum)

    return loss


def penalised(loss: torch.Tensor, outputs, reduce: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The loss of a batch and, where the model is trained with penalties, those of its texts: ``outputs.regularization``
    [batch], reduced as the losses of the texts were."""
    penalties = getattr(outputs, "regularization", None)
    return loss if penalties is None else loss + reduce(penalties)


def deception_penalty(attention: torch.Tensor, named: torch.Tensor, *, over_heads: str = "mean") -> torch.Tensor:
    """−log(1 − αᵀm) of every text, [batch]: what attention to the ``named`` tokens costs (Pruthi et al. 2020, released code).

    Over several heads the ``mean`` of their costs, or the ``max``, that of the head that attends to them most. 1 − αᵀm is
    taken as what the other tokens have of all weight, clamped at 1e-10: finite, with a gradient where αᵀm rounds to 1, and
    the same under a dropout of weights. A text without named tokens costs nothing.

    Args:
        attention: [batch, heads, keys].
        named: bool [batch, keys].
    """
    left, whole = (
        (attention * kept).sum(-1).clamp_min(1e-10) for kept in (~named[:, None], torch.ones_like(named[:, None]))
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
    log_ratio = attention.clamp_min(torch.finfo(attention.dtype).tiny).log() - base_attention.clamp_min(1e-10).log()
    divergence = (attention * log_ratio).masked_fill(~mask, 0).sum(-1)
    return (tvd_factor * distance - lambda_ * divergence).sum()


def classification_metrics(prediction) -> dict[str, float]:
    """Accuracy; for two classes also F1 of class 1 and the area under the ROC curve."""
    logits, labels = prediction.predictions, prediction.label_ids
    predicted = logits.argmax(-1)
    found = {"accuracy": float((predicted == labels).mean())}
    if logits.shape[-1] == 2:
        hits = ((predicted == 1) & (labels == 1)).sum()
        found["f1"] = float(2 * hits / max(1, (predicted == 1).sum() + (labels == 1).sum()))
        found["roc_auc"] = roc_auc(logits[:, 1] - logits[:, 0], labels)
    return found


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Probability that a positive text scores above a negative one, ties counting half (Mann-Whitney); NaN for one class."""
    n_positive = int((labels == 1).sum())
    n_pairs = n_positive * (len(labels) - n_positive)
    if n_pairs == 0:
        return float("nan")
    return float((rankdata(scores)[labels == 1].sum() - n_positive * (n_positive + 1) / 2) / n_pairs)
