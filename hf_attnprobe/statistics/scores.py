"""Prediction quality: F1, accuracy, area under the ROC curve, R², calibration.

Scores that are no mean over texts are bootstrapped by counts: a text that a resample
draws twice counts twice in every sum, so all resamples are a few matrix products.
Differences of two models mostly rest on few texts, for which resamples are too alike;
those of F1 and accuracy have an interval of their own, :func:`difference_intervals`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import (
    MANY_TEXTS,
    N_RESAMPLES,
    ONE_COLUMN,
    Estimate,
    function_estimate,
    mean_estimate,
    paired_share_interval,
    percentile_interval,
    resample_counts,
)
from hf_attnprobe.statistics.rows import Texts


# --- F1, accuracy, area under the curve -------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Score(Estimate):
    """One metric of one model on the test texts.

    Intervals are over texts. They know nothing of what another seed would have trained.

    Attributes:
        value: the score, in [0, 1].
        ci95: its 95% interval, by percentiles over resamples of the texts.
        n: texts.
        model: its name.
        metric: ``f1``, ``accuracy`` or ``roc_auc``.
        lost: the value of the model ``reference`` minus this one's, paired by text: positive
            where this one is worse.
        reference: the model compared with.
    """

    ci95: tuple[float, float] = field()
    n: int = field()
    model: str
    metric: str
    lost: Estimate
    reference: str


def find_score(scores: Sequence[Score], model: str, metric: str = "f1") -> Score | None:
    """The score of a model, or None where it was not taken."""
    wanted = model, metric
    return next((s for s in scores if (s.model, s.metric) == wanted), None)


def compare_scores(
    labels: Sequence[int] | np.ndarray,
    probs: Mapping[str, np.ndarray],
    *,
    reference: str,
    seed: int = 0,
    n_resamples: int = N_RESAMPLES,
) -> tuple[Score, ...]:
    """Every metric of every model, and its difference from the reference model's.

    Args:
        labels: the true classes [texts].
        probs: by model [texts, classes].
        reference: the model in ``probs`` that the others are compared with.
        seed: of the bootstrap.
    """
    labels = np.asarray(labels)
    n = len(labels)
    counts = with_all_texts(resample_counts(n, seed=seed, n_resamples=n_resamples))
    predicted = {model: one_hot(outputs) for model, outputs in probs.items()}
    values = {
        model: weighted_metrics(labels, predicted[model], counts, ranked_by=outputs[:, 1])
        for model, outputs in probs.items()
    }
    scores = []
    for model, named in values.items():
        paired: dict[str, tuple[float, float]] = {}
        if model != reference:
            paired = difference_intervals(labels, predicted[reference], predicted[model])
        for metric, resampled in named.items():
            own = resampled_estimate(resampled, n)
            lost = resampled_estimate(values[reference][metric] - resampled, n)
            lost = replace(lost, ci95=paired.get(metric, lost.ci95))
            score = Score(
                **vars(own),
                model=model,
                metric=metric,
                lost=lost,
                reference=reference,
            )
            scores.append(score)
    return tuple(scores)


def resampled_estimate(values: np.ndarray, n: int) -> Estimate:
    """The number over all n texts, which comes first, with its interval from the resamples."""
    return Estimate(float(values[0]), percentile_interval(values[1:]), n)


def difference_intervals(
    labels: np.ndarray, first: np.ndarray, second: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Returns 95% intervals of F1 and accuracy of one model minus another's, by metric.

    What a text adds to the error of either score (the infinitesimal jackknife, Efron
    1982) is paired by text. As Bonet & Price (2012) do for shares, one text is added
    that only the first gets right and one that only the second does, shared out over the
    classes as the labels are. So models that agree on all texts still have a width, and
    of accuracy the interval is that of Bonet & Price.

    Args:
        labels: the true classes [texts].
        first, second: one-hot predictions [texts, classes].
    """
    classes = np.eye(first.shape[1])
    shares = classes[labels].mean(0)
    others = (1 - classes) * (shares + 1e-12)
    wrong = others / others.sum(1, keepdims=True)

    # The texts, then one of each class that only the first gets right, one that only the second.
    weights = np.concatenate([np.ones(len(labels)), shares, shares])
    true = np.concatenate([classes[labels], classes, classes])
    of_first = np.concatenate([first, classes, wrong])
    of_second = np.concatenate([second, wrong, classes])
    scores = _values_and_errors(true, of_first, weights)
    others_scores = _values_and_errors(true, of_second, weights)

    intervals = {}
    for metric, (value, errors) in scores.items():
        other, other_errors = others_scores[metric]
        squares = weights @ (errors - other_errors) ** 2
        half = ONE_COLUMN * np.sqrt(squares) / weights.sum()
        middle = value - other
        ends = np.clip(middle + np.array([-half, half]), -1, 1)
        intervals[metric] = (float(ends[0]), float(ends[1]))
    return intervals


def _values_and_errors(
    true: np.ndarray, predicted: np.ndarray, weights: np.ndarray
) -> dict[str, tuple[float, np.ndarray]]:
    """Each metric's value and the texts' contributions to its error [texts], by metric.

    Args:
        true, predicted: [texts, classes]. weights: [texts].
    """
    n = weights.sum()
    hits, both = true * predicted, true + predicted
    total = np.maximum(weights @ both, 1e-12)
    f1 = 2 * (weights @ hits) / total
    errors = (2 * hits - f1 * both) / total * n
    is_right = hits.sum(1)
    accuracy = weights @ is_right / n
    binary = len(f1) == 2
    return {
        "f1": (f1[1], errors[:, 1]) if binary else (f1.mean(), errors.mean(1)),
        "accuracy": (accuracy, is_right - accuracy),
    }


def with_all_texts(counts: np.ndarray) -> np.ndarray:
    """The counts of resamples behind a first row in which every text counts once."""
    return np.vstack([np.ones(counts.shape[1]), counts])


class Predictions(Protocol):
    """What a Trainer gives to ``compute_metrics``."""

    predictions: np.ndarray
    label_ids: np.ndarray


def classification_metrics(prediction: Predictions) -> dict[str, float]:
    """Accuracy; for two classes also F1 of class 1 and the area under the ROC curve.

    Args:
        prediction: logits [texts, classes] and labels [texts].
    """
    logits, labels = prediction.predictions, prediction.label_ids
    if logits.shape[-1] != 2:
        return {"accuracy": metrics(labels, logits)["accuracy"]}
    return metrics(labels, logits, ranked_by=logits[:, 1] - logits[:, 0])


def metrics(
    labels: np.ndarray,
    outputs: np.ndarray,
    *,
    ranked_by: np.ndarray | None = None,
) -> dict[str, float]:
    """F1, accuracy and, for two classes, the area under the ROC curve of one model.

    Args:
        labels: the true classes [texts].
        outputs: probabilities or logits [texts, classes].
        ranked_by: what the ROC curve ranks the texts by, [texts]; by default the output
            of class 1.
    """
    if ranked_by is None:
        ranked_by = outputs[:, 1]
    once = np.ones((1, len(labels)))
    values = weighted_metrics(labels, one_hot(outputs), once, ranked_by=ranked_by)
    return {name: float(value[0]) for name, value in values.items()}


def one_hot(outputs: np.ndarray) -> np.ndarray:
    """1 at the largest output of every text and 0 elsewhere, [texts, classes]."""
    return np.eye(outputs.shape[-1])[outputs.argmax(-1)]


def weighted_metrics(
    labels: np.ndarray,
    predicted: np.ndarray,
    counts: np.ndarray,
    *,
    ranked_by: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The metrics on resamples of the texts.

    Args:
        labels: the true classes [texts].
        predicted: one-hot [texts, classes]; of several predictions of a text, the share
            of each class.
        counts: how often each text counts, [resamples, texts].
        ranked_by: see :func:`metrics`; without it there is no ROC curve.

    Returns:
        By metric [resamples]. ``f1`` is that of class 1 for two classes, else the mean
        over the classes, with 0 for a class neither present nor predicted.
    """
    n_classes = predicted.shape[1]
    true = np.eye(n_classes)[labels]
    hits = counts @ (true * predicted)
    total = counts @ true + counts @ predicted
    f1 = 2 * hits / np.maximum(total, 1e-12)
    found = {
        "f1": f1[:, 1] if n_classes == 2 else f1.mean(1),
        "accuracy": hits.sum(1) / counts.sum(1),
    }
    if n_classes == 2 and ranked_by is not None:
        found["roc_auc"] = _roc_auc(labels, ranked_by, counts)
    return found


def _roc_auc(labels: np.ndarray, scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the area under the ROC curve, [resamples]; NaN without texts of both classes.

    That is the share of the pairs of a positive and a negative text that the scores put
    in order, ties counting half (Mann & Whitney 1947).
    """
    order = np.argsort(scores, kind="stable")
    steps = np.diff(scores[order], prepend=-np.inf)
    first_of_ties = np.flatnonzero(steps)
    counts = counts[:, order]
    is_positive = labels[order] == 1
    positives = np.add.reduceat(counts * is_positive, first_of_ties, axis=1)
    negatives = np.add.reduceat(counts * ~is_positive, first_of_ties, axis=1)

    n_up_to = np.cumsum(negatives, axis=1)
    below = n_up_to - negatives / 2
    in_order = (positives * below).sum(1)
    n_pairs = positives.sum(1) * negatives.sum(1)
    area = np.full(len(counts), np.nan)
    np.divide(in_order, n_pairs, out=area, where=n_pairs > 0)
    return area


# --- how good a model is ----------------------------------------------------------------------


PROBABILITY_BINS = 10


@dataclass(frozen=True)
class Quality:
    """Quality of predicted classes on the texts of a run.

    Attributes:
        accuracy: share of the labelled texts whose most probable class is their label;
            where a text has several labels, the mean share of them that is met.
        majority: the same of always saying the most frequent label, or of each of
            several labels its more frequent side; None where that is not known.
        beyond_majority: accuracy − majority, paired by text.
        top_probability: mean probability of what is predicted; n is 0 of a number.
        calibration_error: expected calibration error against the labels, in ten bins of
            the probability (Guo et al. 2017); None where there is no one probability.
        n: texts. n_labelled: those with a label.
        all_met: share of the labelled texts all of whose labels are met; None of one.
        has_parts: whether a text may have several labels.
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
    """Quality of predicted numbers, in the labels' own unit.

    Attributes:
        error: mean absolute error.
        error_of_mean: that of always saying the labels' mean.
        r_squared: 1 − Σ(y − ŷ)² / Σ(y − ȳ)², with the interval over resamples of the
            texts, each with its own mean ȳ: 0 is as good as saying the mean.
        n: texts. n_labelled: those with a label.
    """

    error: Estimate
    error_of_mean: Estimate
    r_squared: Estimate
    n: int
    n_labelled: int


def quality(predictions: Texts) -> Quality:
    """Accuracy, saturation and calibration.

    Args:
        predictions: of the texts, with ``predicted_class``, ``probability`` and
            ``label``, which is −1 for a text without one. Where there is ``correct``, a
            text has several labels; ``label@name`` is then 1, 0 or −1 for each, or
            ``label_share@name`` the share of its labels that are this one.
    """
    sure = mean_estimate(predictions.values("probability"))
    if "correct" in predictions:
        return _of_parts(predictions.frame(), sure)
    label = predictions.values("label")
    is_labelled = label >= 0
    n, n_labelled = len(predictions), int(is_labelled.sum())
    if not n_labelled:
        return Quality(None, None, None, sure, None, n, 0)
    label = label[is_labelled]
    is_right = predictions.values("predicted_class")[is_labelled] == label
    names, sizes = np.unique(label, return_counts=True)
    is_majority = label == names[sizes.argmax()]
    beyond = is_right.astype(np.int8) - is_majority
    ends = paired_share_interval(beyond[:, None])
    low, high = ends[:, 0].tolist()
    return Quality(
        accuracy=mean_estimate(is_right, share=True),
        majority=float(is_majority.mean()),
        beyond_majority=Estimate(float(beyond.mean()), (low, high), n_labelled),
        top_probability=sure,
        calibration_error=_calibration_error(
            predictions.values("probability")[is_labelled], is_right
        ),
        n=n,
        n_labelled=n_labelled,
    )


def _of_parts(predictions: pd.DataFrame, sure: Estimate) -> Quality:
    """Quality where a text has several labels, each right or wrong."""
    labelled = predictions[predictions.correct.notna()]
    n, n_labelled = len(predictions), len(labelled)
    if not n_labelled:
        return Quality(None, None, None, sure, None, n, 0, has_parts=True)
    met = labelled.correct.to_numpy(dtype=np.float64)
    by_majority = met_by_majority(labelled)
    majority = beyond = None
    if by_majority is not None:
        majority = float(by_majority.mean())
        beyond = mean_estimate(met - by_majority)
    return Quality(
        accuracy=mean_estimate(met, share=True),
        majority=majority,
        beyond_majority=beyond,
        top_probability=sure,
        calibration_error=None,
        n=n,
        n_labelled=n_labelled,
        all_met=mean_estimate((met == 1).astype(np.float64), share=True),
        has_parts=True,
    )


def met_by_majority(labelled: pd.DataFrame) -> np.ndarray | None:
    """The share of a text's labels that are met by saying what is most frequent.

    Of labels that hold or not, each label's more frequent side; of tags, the one tag
    with the largest mean share.

    Returns:
        [texts]; None where the rows do not say which labels a text has.
    """
    sides = labelled[[name for name in labelled if name.startswith("label@")]]
    if sides.shape[1]:
        holds = sides.where(sides >= 0)
        usual = (holds.mean() >= 0.5).astype(np.float64)
        return (holds == usual).where(holds.notna()).mean(axis=1).to_numpy()
    tags = [name for name in labelled if name.startswith("label_share@")]
    if not tags:
        return None
    shares = labelled[tags]
    return shares[shares.mean().idxmax()].to_numpy(dtype=np.float64)


def number_quality(predictions: Texts, *, seed: int = 0) -> NumberQuality | None:
    """Error and R² of predicted numbers; None where texts have no labels.

    Args:
        predictions: of the texts, with ``value`` and ``labelled_value``, which is NaN
            for a text without one.
        seed: of the bootstrap.
    """
    wanted = predictions.values("labelled_value")
    is_labelled = ~np.isnan(wanted)
    if not is_labelled.any():
        return None
    said, wanted = predictions.values("value")[is_labelled], wanted[is_labelled]
    if len(said) > MANY_TEXTS:
        explained = _r_squared_of_many(said, wanted)
    else:
        counts = with_all_texts(resample_counts(len(said), seed=seed))
        explained = resampled_estimate(_r_squared(said, wanted, counts), len(said))
    return NumberQuality(
        error=mean_estimate(np.abs(wanted - said)),
        error_of_mean=mean_estimate(np.abs(wanted - wanted.mean())),
        r_squared=explained,
        n=len(predictions),
        n_labelled=len(said),
    )


def _r_squared_of_many(said: np.ndarray, wanted: np.ndarray) -> Estimate:
    """Returns R² as a function of means, whose interval is the jackknife's."""
    wanted_less = wanted - wanted.mean()
    errors = (wanted - said) ** 2
    columns = errors, wanted_less**2, wanted_less

    def of_means(means: np.ndarray) -> np.ndarray:
        missed = means[..., 0]
        spread = means[..., 1] - means[..., 2] ** 2
        spread = np.where(spread > 0, spread, np.nan)
        return 1 - missed / spread

    return function_estimate(columns, of_means)


def _r_squared(said: np.ndarray, wanted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns R² of resamples by counts [resamples, texts]; NaN where all labels are equal."""
    sizes = counts.sum(1)
    wanted_less = wanted - wanted.mean()  # or digits would cancel
    total = counts @ wanted_less
    spread = counts @ wanted_less**2 - total**2 / sizes
    missed = counts @ (wanted - said) ** 2
    share = np.full(len(counts), np.nan)
    width = max(np.ptp(wanted), 1e-300)
    varied = spread > 1e-12 * sizes * width**2
    np.divide(missed, spread, out=share, where=varied)
    return 1 - share


def _calibration_error(probability: np.ndarray, is_right: np.ndarray) -> float | None:
    """Σ over bins of share of texts × |accuracy − mean probability|."""
    if np.isnan(probability).any():
        return None
    bins = np.minimum((probability * PROBABILITY_BINS).astype(int), PROBABILITY_BINS - 1)
    gap = np.zeros(PROBABILITY_BINS)
    np.add.at(gap, bins, is_right - probability)
    return float(np.abs(gap).sum() / len(probability))
