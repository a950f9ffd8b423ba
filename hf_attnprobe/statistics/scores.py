"""Quality of predictions: F1, accuracy, area under the ROC curve, R² and calibration.

Scores that are not means over texts have bootstrap confidence intervals. A resample is stored as counts,
which state how often each text is drawn. A few matrix products then give the scores on all resamples.

Two models often differ on only a few texts. Bootstrap intervals for their difference would then be too
narrow. Differences in F1 and accuracy therefore use :func:`compute_difference_intervals`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import (
    MAX_RESAMPLED_TEXTS,
    N_RESAMPLES,
    SINGLE_CRITICAL_VALUE,
    Estimate,
    compute_paired_share_interval,
    compute_percentile_interval,
    draw_resample_counts,
    estimate_function_of_means,
    estimate_mean,
)
from hf_attnprobe.statistics.rows import Texts


# --- F1, accuracy, area under the ROC curve ---------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Score(Estimate):
    """Score of a model on the test texts, for one metric.

    Confidence intervals are over texts. They do not include the variation between training seeds.

    Attributes:
        value: the score, in [0, 1].
        ci95: 95% percentile bootstrap interval over texts.
        n: number of texts.
        model: model name.
        metric: ``f1``, ``accuracy`` or ``roc_auc``.
        lost: reference model's score minus this score, paired by text; positive if this model is
            worse.
        reference: name of the reference model.
    """

    ci95: tuple[float, float] = field()
    n: int = field()
    model: str
    metric: str
    lost: Estimate
    reference: str


def find_score(scores: Sequence[Score], model: str, metric: str = "f1") -> Score | None:
    """Find the score of a model in a list of scores, such as its F1.

    Args:
        scores: scores to search.
        model: model name.
        metric: metric name.

    Returns:
        The score; None if it is not in ``scores``.
    """
    for score in scores:
        if (score.model, score.metric) == (model, metric):
            return score
    return None


def compare_scores(
    labels: Sequence[int] | np.ndarray,
    probs: Mapping[str, np.ndarray],
    *,
    reference: str,
    seed: int = 0,
    n_resamples: int = N_RESAMPLES,
) -> tuple[Score, ...]:
    """Compute all metrics for several models, and their differences from a reference model.

    Args:
        labels: true classes, [texts].
        probs: predicted probabilities, [texts, classes], keyed by model name.
        reference: key of the reference model in ``probs``.
        seed: bootstrap seed.
        n_resamples: number of bootstrap resamples.

    Returns:
        One score per model and metric.
    """
    labels = np.asarray(labels)
    n = len(labels)
    counts = prepend_full_sample(draw_resample_counts(n, seed=seed, n_resamples=n_resamples))
    predicted = {model: encode_one_hot(outputs) for model, outputs in probs.items()}
    values = {
        model: compute_weighted_metrics(
            labels, predicted[model], counts, ranking_scores=outputs[:, 1]
        )
        for model, outputs in probs.items()
    }
    scores = []
    for model, model_values in values.items():
        intervals: dict[str, tuple[float, float]] = {}
        if model != reference:
            intervals = compute_difference_intervals(labels, predicted[reference], predicted[model])
        for metric, resampled_values in model_values.items():
            estimate = estimate_from_resamples(resampled_values, n)
            lost = estimate_from_resamples(values[reference][metric] - resampled_values, n)
            lost = replace(lost, ci95=intervals.get(metric, lost.ci95))
            score = Score(
                **vars(estimate),
                model=model,
                metric=metric,
                lost=lost,
                reference=reference,
            )
            scores.append(score)
    return tuple(scores)


def estimate_from_resamples(values: np.ndarray, n: int) -> Estimate:
    """Build an estimate from a score and its values on bootstrap resamples.

    Args:
        values: score over all texts, followed by its values on the resamples, [1 + resamples].
        n: number of texts.

    Returns:
        The value with its 95% percentile interval.
    """
    return Estimate(float(values[0]), compute_percentile_interval(values[1:]), n)


def compute_difference_intervals(
    labels: np.ndarray, first: np.ndarray, second: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Compute 95% confidence intervals for the differences in F1 and accuracy of two models.

    The infinitesimal jackknife (Efron 1982) computes how much each text contributes to the error
    of a score. These contributions are paired by text. As in Bonet & Price (2012), two texts are
    added: one that only the first model classifies correctly, and one that only the second model
    does. They are distributed over the classes like the labels. The interval therefore has a
    positive width even if the models agree on all texts. For accuracy, it equals the interval by
    Bonet & Price.

    Args:
        labels: true classes, [texts].
        first: one-hot predictions by the first model, [texts, classes].
        second: one-hot predictions by the second model, [texts, classes].

    Returns:
        Intervals for first − second, keyed by metric.
    """
    classes = np.eye(first.shape[1])
    class_shares = classes[labels].mean(0)
    # A wrong prediction of an added text is distributed over the other classes.
    other_shares = (1 - classes) * (class_shares + 1e-12)
    wrong = other_shares / other_shares.sum(1, keepdims=True)

    # After the texts follow, for each class, one text that only the first model classifies
    # correctly and one that only the second model does.
    weights = np.concatenate([np.ones(len(labels)), class_shares, class_shares])
    true = np.concatenate([classes[labels], classes, classes])
    extended_first = np.concatenate([first, classes, wrong])
    extended_second = np.concatenate([second, wrong, classes])
    first_scores = _compute_scores_and_text_errors(true, extended_first, weights)
    second_scores = _compute_scores_and_text_errors(true, extended_second, weights)

    intervals = {}
    for metric, (first_value, first_errors) in first_scores.items():
        second_value, second_errors = second_scores[metric]
        squared_errors = weights @ (first_errors - second_errors) ** 2
        half_width = SINGLE_CRITICAL_VALUE * np.sqrt(squared_errors) / weights.sum()
        center = first_value - second_value
        ends = np.clip(center + np.array([-half_width, half_width]), -1, 1)
        intervals[metric] = (float(ends[0]), float(ends[1]))
    return intervals


def _compute_scores_and_text_errors(
    true: np.ndarray, predicted: np.ndarray, weights: np.ndarray
) -> dict[str, tuple[float, np.ndarray]]:
    """Compute F1 and accuracy, and how much each text contributes to their sampling errors.

    The contribution of a text is the derivative of the score with respect to the text's weight.

    Args:
        true: one-hot labels, [texts, classes].
        predicted: one-hot predictions, [texts, classes].
        weights: text weights, [texts].

    Returns:
        Score and contributions, [texts], keyed by metric.
    """
    n = weights.sum()
    # The F1 of a class is 2 · hits / (number of labels + number of predictions).
    hits = true * predicted
    labels_and_predictions = true + predicted
    # The minimum avoids 0 / 0 for a class without labels and predictions. Its F1 is 0.
    divisor = np.maximum(weights @ labels_and_predictions, 1e-12)
    class_f1 = 2 * (weights @ hits) / divisor
    class_f1_errors = (2 * hits - class_f1 * labels_and_predictions) / divisor * n
    # With two classes, F1 is the F1 of class 1. Otherwise, it is the mean over all classes.
    if len(class_f1) == 2:
        f1, f1_errors = class_f1[1], class_f1_errors[:, 1]
    else:
        f1, f1_errors = class_f1.mean(), class_f1_errors.mean(1)

    is_correct = hits.sum(1)
    accuracy = weights @ is_correct / n
    return {"f1": (f1, f1_errors), "accuracy": (accuracy, is_correct - accuracy)}


def prepend_full_sample(counts: np.ndarray) -> np.ndarray:
    """Add the original sample as an additional row in front of bootstrap resamples.

    Every text counts once in the original sample.

    Args:
        counts: how often each text is drawn, [resamples, texts].

    Returns:
        Counts with an additional first row, [1 + resamples, texts].
    """
    return np.vstack([np.ones(counts.shape[1]), counts])


class TrainerPredictions(Protocol):
    """Argument with which a Transformers ``Trainer`` calls ``compute_metrics``."""

    predictions: np.ndarray
    label_ids: np.ndarray


def compute_classification_metrics(prediction: TrainerPredictions) -> dict[str, float]:
    """Compute the validation metrics during training, as ``compute_metrics`` of a ``Trainer``.

    These are the accuracy and, for two classes, also F1 and the area under the ROC curve.

    Args:
        prediction: logits, [texts, classes], and labels, [texts].

    Returns:
        Values keyed by metric. F1 is the F1 of class 1.
    """
    logits, labels = prediction.predictions, prediction.label_ids
    if logits.shape[-1] != 2:
        return {"accuracy": compute_metrics(labels, logits)["accuracy"]}
    # The difference between the logits ranks the texts for the ROC curve.
    return compute_metrics(labels, logits, ranking_scores=logits[:, 1] - logits[:, 0])


def compute_metrics(
    labels: np.ndarray,
    outputs: np.ndarray,
    *,
    ranking_scores: np.ndarray | None = None,
) -> dict[str, float]:
    """Compute F1, accuracy and, for two classes, the area under the ROC curve.

    Args:
        labels: true classes, [texts].
        outputs: probabilities or logits, [texts, classes].
        ranking_scores: scores that rank the texts for the ROC curve, [texts]; by default the output
            for class 1.

    Returns:
        Values keyed by metric.
    """
    if ranking_scores is None:
        ranking_scores = outputs[:, 1]
    full_sample = np.ones((1, len(labels)))
    values = compute_weighted_metrics(
        labels, encode_one_hot(outputs), full_sample, ranking_scores=ranking_scores
    )
    return {name: float(value[0]) for name, value in values.items()}


def encode_one_hot(outputs: np.ndarray) -> np.ndarray:
    """Set the largest output of each text to 1 and all others to 0 (one-hot encoding).

    For example, the outputs (0.2, 0.5, 0.3) become (0, 1, 0).

    Args:
        outputs: probabilities or logits, [texts, classes].

    Returns:
        One-hot predictions, [texts, classes].
    """
    n_classes = outputs.shape[-1]
    predicted_classes = outputs.argmax(-1)
    # Row i of the identity matrix is the encoding of class i.
    return np.eye(n_classes)[predicted_classes]


def compute_weighted_metrics(
    labels: np.ndarray,
    predicted: np.ndarray,
    counts: np.ndarray,
    *,
    ranking_scores: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Compute F1, accuracy and ROC AUC on many resamples at once.

    Args:
        labels: true classes, [texts].
        predicted: one-hot predictions, [texts, classes]. If a text has several predictions, pass
            the share of each class.
        counts: how often each resample contains each text, [resamples, texts].
        ranking_scores: scores that rank the texts for the ROC curve, [texts]. Without them, its area
            is not computed.

    Returns:
        Values keyed by metric, [resamples]. For two classes, ``f1`` is the F1 of class 1.
        Otherwise it is the mean over classes, with 0 for a class that never occurs.
    """
    n_classes = predicted.shape[1]
    true = np.eye(n_classes)[labels]
    hits = counts @ (true * predicted)
    total = counts @ true + counts @ predicted
    f1 = 2 * hits / np.maximum(total, 1e-12)
    values = {
        "f1": f1[:, 1] if n_classes == 2 else f1.mean(1),
        "accuracy": hits.sum(1) / counts.sum(1),
    }
    if n_classes == 2 and ranking_scores is not None:
        values["roc_auc"] = _compute_roc_auc(labels, ranking_scores, counts)
    return values


def _compute_roc_auc(labels: np.ndarray, scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Compute the area under the ROC curve on many resamples at once.

    A pair consists of a positive and a negative text. The area is the share of pairs that the
    scores order correctly, and ties count half (Mann & Whitney 1947).

    Args:
        labels: true classes, [texts].
        scores: scores that rank the texts, [texts].
        counts: how often each resample contains each text, [resamples, texts].

    Returns:
        Areas, [resamples]; NaN for a resample that lacks one of the classes.
    """
    # The texts are sorted by score. For each distinct score, the number of positive texts with this
    # score is multiplied by the number of negative texts with a lower score.
    order = np.argsort(scores, kind="stable")
    steps = np.diff(scores[order], prepend=-np.inf)
    # Index of the first text with each distinct score. `reduceat` sums from one index to the next.
    first_of_ties = np.flatnonzero(steps)
    counts = counts[:, order]
    is_positive = labels[order] == 1
    n_positive = np.add.reduceat(counts * is_positive, first_of_ties, axis=1)
    n_negative = np.add.reduceat(counts * ~is_positive, first_of_ties, axis=1)

    # Negative texts with the same score count half.
    n_negative_up_to = np.cumsum(n_negative, axis=1)
    n_negative_below = n_negative_up_to - n_negative / 2
    n_correct_pairs = (n_positive * n_negative_below).sum(1)
    n_pairs = n_positive.sum(1) * n_negative.sum(1)
    area = np.full(len(counts), np.nan)
    np.divide(n_correct_pairs, n_pairs, out=area, where=n_pairs > 0)
    return area


# --- Quality of the audited model's predictions -------------------------------------------------


N_PROBABILITY_BINS = 10
"""Number of probability bins for the expected calibration error. All bins have the same width."""


@dataclass(frozen=True)
class Quality:
    """Quality of predicted classes or labels on the audited texts.

    Attributes:
        accuracy: share of labelled texts that are classified correctly. If a text has several
            labels, it counts with the share of its labels that are predicted correctly.
        majority: accuracy of always predicting the most frequent label or, for several labels,
            each label's more frequent value; None if unknown.
        beyond_majority: accuracy − majority, paired by text.
        top_probability: mean probability of the predicted outcome; its n is 0 for a number.
        calibration_error: expected calibration error with ten probability bins (Guo et al.
            2017); None if a text does not have a single probability.
        n: number of texts.
        n_labelled: number of texts with a label.
        all_met: share of labelled texts for which all labels are predicted correctly; None if
            each text has only one label.
        has_parts: whether a text can have several labels.
    """

    accuracy: Estimate | None
    majority: float | None
    beyond_majority: Estimate | None
    top_probability: Estimate
    calibration_error: float | None
    n: int
    n_labelled: int
    all_met: Estimate | None = None
    has_parts: bool = False


@dataclass(frozen=True)
class NumberQuality:
    """Quality of predicted numbers.

    Attributes:
        error: mean absolute error, in the unit of the labels.
        error_of_mean: mean absolute error when always predicting the mean label.
        r_squared: 1 − Σ(y − ŷ)² / Σ(y − ȳ)², with labels y, predictions ŷ and the mean label ȳ. It
            is 0 if the predictions are as good as ȳ. The interval is a bootstrap interval over
            texts, and each resample has its own ȳ.
        n: number of texts.
        n_labelled: number of texts with a label.
    """

    error: Estimate
    error_of_mean: Estimate
    r_squared: Estimate
    n: int
    n_labelled: int


def measure_quality(predictions: Texts) -> Quality:
    """Measure accuracy, mean probability and calibration of predicted classes.

    Args:
        predictions: statistics ``predicted_class``, ``probability`` and ``label``. The label is
            −1 for a text without a label. A statistic ``correct`` means that a text can have
            several labels. There is then either a statistic ``label@name`` for each label, with
            the value 1, 0 or −1, or a statistic ``label_share@name``, the share of the text's
            labels with this name.

    Returns:
        Accuracy and calibration, with confidence intervals.
    """
    top_probability = estimate_mean(predictions.get_values("probability"))
    if "correct" in predictions:
        return _measure_multilabel_quality(predictions.to_frame(), top_probability)
    label = predictions.get_values("label")
    is_labelled = label >= 0
    n, n_labelled = len(predictions), int(is_labelled.sum())
    if not n_labelled:
        return Quality(
            accuracy=None,
            majority=None,
            beyond_majority=None,
            top_probability=top_probability,
            calibration_error=None,
            n=n,
            n_labelled=0,
        )
    label = label[is_labelled]
    is_correct = predictions.get_values("predicted_class")[is_labelled] == label
    distinct_labels, label_counts = np.unique(label, return_counts=True)
    is_majority = label == distinct_labels[label_counts.argmax()]
    differences = is_correct.astype(np.int8) - is_majority
    ends = compute_paired_share_interval(differences[:, None])
    low, high = ends[:, 0].tolist()
    return Quality(
        accuracy=estimate_mean(is_correct, share=True),
        majority=float(is_majority.mean()),
        beyond_majority=Estimate(float(differences.mean()), (low, high), n_labelled),
        top_probability=top_probability,
        calibration_error=_compute_calibration_error(
            predictions.get_values("probability")[is_labelled], is_correct
        ),
        n=n,
        n_labelled=n_labelled,
    )


def _measure_multilabel_quality(predictions: pd.DataFrame, top_probability: Estimate) -> Quality:
    """Measure the quality of predictions if each text has several labels.

    Args:
        predictions: one row per text; the column ``correct`` is the share of its labels that are
            predicted correctly.
        top_probability: mean probability of the predicted outcomes.

    Returns:
        Accuracy, and the accuracy of always predicting the most frequent labels.
    """
    labelled = predictions[predictions.correct.notna()]
    n, n_labelled = len(predictions), len(labelled)
    if not n_labelled:
        return Quality(
            accuracy=None,
            majority=None,
            beyond_majority=None,
            top_probability=top_probability,
            calibration_error=None,
            n=n,
            n_labelled=0,
            has_parts=True,
        )
    accuracy = labelled.correct.to_numpy(dtype=np.float64)
    majority_accuracy = compute_majority_accuracy(labelled)
    majority = beyond_majority = None
    if majority_accuracy is not None:
        majority = float(majority_accuracy.mean())
        beyond_majority = estimate_mean(accuracy - majority_accuracy)
    return Quality(
        accuracy=estimate_mean(accuracy, share=True),
        majority=majority,
        beyond_majority=beyond_majority,
        top_probability=top_probability,
        calibration_error=None,
        n=n,
        n_labelled=n_labelled,
        all_met=estimate_mean((accuracy == 1).astype(np.float64), share=True),
        has_parts=True,
    )


def compute_majority_accuracy(labelled: pd.DataFrame) -> np.ndarray | None:
    """Compute the accuracy of a trivial model that always predicts the most frequent labels.

    If a text can have several labels, the trivial model predicts each label that at least half of
    the texts have. If each word has a tag, it predicts the most frequent tag for all words.

    Args:
        labelled: statistics for labelled texts, one row per text.

    Returns:
        Accuracy for each text, [texts]; None if the labels were not stored.
    """
    label_values = labelled[[name for name in labelled if name.startswith("label@")]]
    if label_values.shape[1]:
        # A negative value marks an unknown label.
        known_labels = label_values.where(label_values >= 0)
        majority_value = (known_labels.mean() >= 0.5).astype(np.float64)
        is_correct = (known_labels == majority_value).where(known_labels.notna())
        return is_correct.mean(axis=1).to_numpy()
    tag_names = [name for name in labelled if name.startswith("label_share@")]
    if not tag_names:
        return None
    tag_shares = labelled[tag_names]
    most_frequent_tag = tag_shares.mean().idxmax()
    return tag_shares[most_frequent_tag].to_numpy(dtype=np.float64)


def measure_number_quality(predictions: Texts, *, seed: int = 0) -> NumberQuality | None:
    """Measure how well predicted numbers match their labels, by mean absolute error and R².

    For comparison, the error is also computed for a model that always predicts the mean label.

    Args:
        predictions: statistics ``value`` and ``labelled_value``, which is NaN for a text without
            a label.
        seed: bootstrap seed.

    Returns:
        Mean absolute error and R²; None if no text has a label.
    """
    labels = predictions.get_values("labelled_value")
    is_labelled = ~np.isnan(labels)
    if not is_labelled.any():
        return None
    predicted = predictions.get_values("value")[is_labelled]
    labels = labels[is_labelled]
    n = len(predicted)
    # The bootstrap would be slow for many texts.
    if n > MAX_RESAMPLED_TEXTS:
        r_squared = _estimate_r_squared(predicted, labels)
    else:
        counts = prepend_full_sample(draw_resample_counts(n, seed=seed))
        resampled_values = _compute_resampled_r_squared(predicted, labels, counts)
        r_squared = estimate_from_resamples(resampled_values, n)
    return NumberQuality(
        error=estimate_mean(np.abs(labels - predicted)),
        error_of_mean=estimate_mean(np.abs(labels - labels.mean())),
        r_squared=r_squared,
        n=len(predictions),
        n_labelled=n,
    )


def _estimate_r_squared(predicted: np.ndarray, labels: np.ndarray) -> Estimate:
    """Estimate R² = 1 − mean squared error / variance of the labels, with a confidence interval.

    All terms can be computed from three means over texts. The interval therefore needs no
    bootstrap; see :func:`~hf_attnprobe.statistics.estimates.estimate_function_of_means`.

    Args:
        predicted: predicted numbers, [texts].
        labels: true numbers, [texts].

    Returns:
        R² with its 95% confidence interval.
    """
    centred_labels = labels - labels.mean()
    squared_errors = (labels - predicted) ** 2
    columns = squared_errors, centred_labels**2, centred_labels

    def compute_r_squared(means: np.ndarray) -> np.ndarray:
        # The last axis has the three columns.
        unexplained, mean_square, mean_label = np.moveaxis(means, -1, 0)
        variance = mean_square - mean_label**2
        variance = np.where(variance > 0, variance, np.nan)
        return 1 - unexplained / variance

    return estimate_function_of_means(columns, compute_r_squared)


def _compute_resampled_r_squared(
    predicted: np.ndarray, labels: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Compute R² (share of explained variance) on each bootstrap resample.

    Args:
        predicted: predicted numbers, [texts].
        labels: true numbers, [texts].
        counts: how often each resample contains each text, [resamples, texts].

    Returns:
        R², [resamples]; NaN for a resample in which all labels are equal.
    """
    sizes = counts.sum(1)
    # Centring the labels avoids rounding errors in the variation.
    centred_labels = labels - labels.mean()
    total = counts @ centred_labels
    # With labels y, predictions ŷ and the mean label ȳ of a resample, the variation is Σ(y − ȳ)²,
    # and the unexplained variation is Σ(y − ŷ)².
    variation = counts @ centred_labels**2 - total**2 / sizes
    unexplained = counts @ (labels - predicted) ** 2
    # Because of rounding errors, the variation of equal labels can differ slightly from 0.
    label_range = max(np.ptp(labels), 1e-300)
    is_varying = variation > 1e-12 * sizes * label_range**2
    unexplained_share = np.full(len(counts), np.nan)
    np.divide(unexplained, variation, out=unexplained_share, where=is_varying)
    return 1 - unexplained_share


def _compute_calibration_error(probability: np.ndarray, is_correct: np.ndarray) -> float | None:
    """Compute how far a model's probabilities differ from its accuracy (Guo et al. 2017).

    Texts are grouped into bins by probability. The expected calibration error is the sum over all
    bins of (share of texts) · |accuracy − mean probability|. It is 0 if, for example, 80% of the
    predictions with a probability of 0.8 are correct.

    Args:
        probability: probability of the predicted outcome, [texts].
        is_correct: whether the prediction is correct, bool [texts].

    Returns:
        The error in [0, 1]; None if a text has no probability.
    """
    if np.isnan(probability).any():
        return None
    # A probability of 1 belongs to the last bin.
    bins = np.minimum((probability * N_PROBABILITY_BINS).astype(int), N_PROBABILITY_BINS - 1)
    # For each bin, this is its accuracy minus its mean probability, times its number of texts.
    bin_gaps = np.zeros(N_PROBABILITY_BINS)
    np.add.at(bin_gaps, bins, is_correct - probability)
    return float(np.abs(bin_gaps).sum() / len(probability))
