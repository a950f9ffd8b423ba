"""How well models classify the same texts, and by how much they differ: scores with paired bootstrap intervals. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata


def classification_metrics(prediction) -> dict[str, float]:
    """Accuracy; for two classes also F1 of class 1 and the area under the ROC curve."""
    logits, labels = prediction.predictions, prediction.label_ids
    predicted = logits.argmax(-1)
    found = {"accuracy": float((predicted == labels).mean())}
    if logits.shape[-1] == 2:
        hits = ((predicted == 1) & (labels == 1)).sum()
        found["f1"] = float(
            2 * hits / max(1, (predicted == 1).sum() + (labels == 1).sum())
        )
        found["roc_auc"] = roc_auc(logits[:, 1] - logits[:, 0], labels)
    return found


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Probability that a positive text scores above a negative one, ties counting half (Mann-Whitney); NaN for one class."""
    n_positive = int((labels == 1).sum())
    n_pairs = n_positive * (len(labels) - n_positive)
    if n_pairs == 0:
        return float("nan")
    return float(
        (rankdata(scores)[labels == 1].sum() - n_positive * (n_positive + 1) / 2)
        / n_pairs
    )


N_RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """One metric (``f1``, ``accuracy``, ``roc_auc``) of one model on the test texts.

    ``difference`` is the value of the model ``reference`` minus this one's, so positive where this one is worse; both
    intervals are 95% percentiles over resamples of the texts, the difference's paired: both models on the same resample.
    They know nothing of what another seed would have trained.
    """

    model: str
    metric: str
    value: float
    ci95: tuple[float, float]
    difference: float
    difference_ci95: tuple[float, float]
    reference: str


def compare(
    labels: Sequence[int],
    probs: Mapping[str, np.ndarray],
    *,
    reference: str,
    seed: int = 0,
    n_resamples: int = N_RESAMPLES,
) -> tuple[Score, ...]:
    """Every metric of every model, beside the reference model's.

    F1 is that of class 1 for two classes, macro-averaged for more; the area under the ROC curve is for two classes.

    Args:
        labels: the true classes [texts].
        probs: by model [texts, classes].
        reference: the model in ``probs`` that the others are compared with.
    """
    labels = np.asarray(labels)
    counts = np.random.default_rng(seed).multinomial(
        len(labels), np.full(len(labels), 1 / len(labels)), n_resamples
    )
    values, resampled = (
        {m: _metrics(labels, p, c) for m, p in probs.items()}
        for c in (np.ones((1, len(labels))), counts)
    )
    found = []
    for model, named in values.items():
        for metric, (value,) in named.items():
            own, theirs = resampled[model][metric], resampled[reference][metric]
            difference = float(values[reference][metric][0] - value)
            intervals = _interval(own), _interval(theirs - own)
            found.append(
                Score(
                    model,
                    metric,
                    float(value),
                    intervals[0],
                    difference,
                    intervals[1],
                    reference,
                )
            )
    return tuple(found)


def metrics(labels: np.ndarray, probs: np.ndarray) -> dict[str, float]:
    """F1, accuracy and, for two classes, the area under the ROC curve (NaN where the labels are all one class)."""
    found = _metrics(labels, probs, np.ones((1, len(labels))))
    return {name: float(value) for name, (value,) in found.items()}


def _metrics(
    labels: np.ndarray, probs: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Each [resamples], where text t counts ``counts[r, t]`` times in resample r: all resamples in a few matrix products."""
    predicted, n_classes = probs.argmax(-1), probs.shape[-1]
    counts = counts.astype(np.float64)
    found = {
        "f1": _f1(labels, predicted, n_classes, counts),
        "accuracy": counts @ (predicted == labels) / counts.sum(1),
    }
    return found | (
        {"roc_auc": _roc_auc(labels, probs[:, 1], counts)} if n_classes == 2 else {}
    )


def _f1(
    labels: np.ndarray, predicted: np.ndarray, n_classes: int, counts: np.ndarray
) -> np.ndarray:
    """Of class 1 for two classes, else the mean over classes; 0 for a class neither present nor predicted."""
    classes = np.arange(n_classes) if n_classes > 2 else np.array([1])
    own, theirs = labels[:, None] == classes, predicted[:, None] == classes
    return (
        2 * (counts @ (own & theirs)) / np.maximum(1, counts @ own + counts @ theirs)
    ).mean(-1)


def _roc_auc(labels: np.ndarray, scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Share of the pairs of a positive and a negative that the scores put in order, ties counting half; NaN without pairs."""
    order = np.argsort(scores, kind="stable")
    first_of_ties = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    counts, positive = counts[:, order], labels[order] == 1
    positives, negatives = (
        np.add.reduceat(counts * real, first_of_ties, axis=1)
        for real in (positive, ~positive)
    )
    below = np.cumsum(negatives, axis=1) - negatives / 2
    n_pairs = positives.sum(1) * negatives.sum(1)
    return np.divide(
        (positives * below).sum(1),
        n_pairs,
        out=np.full(len(counts), np.nan),
        where=n_pairs > 0,
    )


def _interval(values: np.ndarray) -> tuple[float, float]:
    """NaN where no resample has both classes."""
    real = values[~np.isnan(values)]
    low, high = (
        np.percentile(real, [2.5, 97.5]) if len(real) else (float("nan"), float("nan"))
    )
    return float(low), float(high)
