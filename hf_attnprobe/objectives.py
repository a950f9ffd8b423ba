"""What the papers optimise, how, and how the result is scored; no Trainer in sight."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import rankdata


def papers_optimizer(model, *, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with amsgrad; weight decay on everything but attention (Jain & Wallace 2019, released code)."""
    attention = {id(p) for p in model.attention_classifier.attention.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in attention], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if id(p) in attention], "weight_decay": 0.0},
    ]
    return torch.optim.Adam([g for g in groups if g["params"]], lr=learning_rate, amsgrad=True, fused=True)


def papers_loss(train, n_classes: int) -> Callable:
    """Cross-entropy; for two classes the positive one weighs n_negative / n_positive and the batch is summed."""
    if n_classes > 2:
        return lambda outputs, labels, num_items_in_batch=None: torch.nn.functional.cross_entropy(
            outputs.logits, labels
        )
    labels = np.asarray(train.with_format(None)["label"][:])
    weight = torch.tensor([1.0, (labels == 0).sum() / (labels == 1).sum()], dtype=torch.float32)

    def loss(outputs, labels, num_items_in_batch=None):
        weights = weight.to(outputs.logits)
        return torch.nn.functional.cross_entropy(outputs.logits, labels, weights, reduction="sum")

    return loss


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
