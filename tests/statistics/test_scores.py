"""Scores by hand, and their intervals against a resampling written out."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from hf_attnprobe.statistics.scores import compare_scores, compute_metrics, find_score


LABELS = np.array([0, 0, 1, 1, 1, 0])


def binary(p):
    p = np.asarray(p, dtype=float)
    return np.stack([1 - p, p], axis=-1)


def test_metrics_on_a_hand_computed_case():
    # Predicted 0 1 1 1 0 0: two hits, one false alarm, one miss. Pairs (negative, positive) in order: 8 of 9.
    found = compute_metrics(LABELS, binary([0.1, 0.6, 0.7, 0.9, 0.4, 0.2]))
    assert found == pytest.approx({"f1": 2 * 2 / (3 + 3), "accuracy": 4 / 6, "roc_auc": 8 / 9})


def test_f1_of_three_classes_is_the_mean_over_them():
    labels, predicted = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0])
    found = compute_metrics(labels, np.eye(3)[predicted])
    assert found == pytest.approx({"f1": (1 / 2 + 2 / 3 + 0) / 3, "accuracy": 2 / 4})


def test_a_model_that_predicts_no_positive_has_f1_zero_and_one_class_no_auc():
    found = compute_metrics(np.zeros(3, dtype=int), binary([0.1, 0.2, 0.3]))
    assert found["f1"] == 0 and found["accuracy"] == 1 and np.isnan(found["roc_auc"])


@pytest.mark.parametrize(
    ("p", "labels", "expected"),
    [([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75), ([0.9, 0.9], [0, 1], 0.5), ([0.9], [1], np.nan)],
)
def test_area_under_the_curve_by_hand(p, labels, expected):
    found = compute_metrics(np.array(labels), binary(p))["roc_auc"]
    assert found == pytest.approx(expected, nan_ok=True)


def area(p, labels):
    """By SciPy's Mann-Whitney statistic, over the number of pairs."""
    positive, negative = p[labels == 1], p[labels == 0]
    return mannwhitneyu(positive, negative).statistic / positive.size / negative.size


def test_a_score_is_known_by_model_and_metric():
    scores = compare_scores(LABELS, {"m": binary(np.full(6, 0.9))}, reference="m")
    assert find_score(scores, "m").metric == "f1"
    assert find_score(scores, "m", "accuracy").value == 0.5
    assert find_score(scores, "other") is None


def test_differences_are_paired():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=80)
    base = np.clip(labels * 0.4 + rng.uniform(0, 0.6, 80), 0, 1)
    probs = {"base": binary(base), "same": binary(base), "worse": binary(rng.uniform(size=80))}
    found = {
        (s.model, s.metric): s
        for s in compare_scores(labels, probs, reference="base", seed=3, n_resamples=200)
    }
    for metric in ("f1", "accuracy", "roc_auc"):
        same, worse = found["same", metric], found["worse", metric]
        low, high = same.lost.ci95  # unpaired it would be wide
        assert same.lost.value == 0 and -0.04 < low <= 0 <= high < 0.04
        assert found["base", metric].lost.ci95 == (0, 0)
        assert worse.lost.value > 0 and worse.lost.ci95[0] <= worse.lost.value <= worse.lost.ci95[1]
    counts = np.random.default_rng(3).multinomial(80, np.full(80, 1 / 80), 200)
    differences = []
    for row in counts:
        rows = np.repeat(np.arange(80), row)
        scores = [area(p[rows, 1], labels[rows]) for p in (probs["base"], probs["worse"])]
        differences.append(scores[0] - scores[1])
    expected = tuple(np.percentile(differences, [2.5, 97.5]))
    assert found["worse", "roc_auc"].lost.ci95 == pytest.approx(expected)


def test_resampled_scores_are_those_of_the_resampled_texts():
    """Ties included: half of the scores are equal."""
    rng = np.random.default_rng(1)
    labels, p = rng.integers(2, size=30), np.round(rng.uniform(size=30), 1)
    (value,) = (
        s.ci95
        for s in compare_scores(labels, {"m": binary(p)}, reference="m", seed=5)
        if s.metric == "f1"
    )
    counts = np.random.default_rng(5).multinomial(30, np.full(30, 1 / 30), 1000)
    f1 = [
        compute_metrics(labels[rows], binary(p[rows]))["f1"]
        for rows in (np.repeat(np.arange(30), row) for row in counts)
    ]
    assert value == pytest.approx(tuple(np.percentile(f1, [2.5, 97.5])))
