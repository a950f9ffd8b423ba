"""How good and how sure the model is on these texts: what every verdict stands on.

Attention of a model at chance explains nothing that is worth an explanation; and ε-max
JSD, leave-one-out and shuffles all shrink or grow with how saturated the output is.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.bootstrap import Estimate, mean_estimate
from hf_attnprobe.statistics.shares import paired_share_interval


N_BINS = 10


@dataclass(frozen=True)
class Quality:
    """Of the model's predictions on the texts of a run.

    Attributes:
        accuracy: share of the labelled texts whose most probable class is their label.
        majority: share of the labelled texts that have the most frequent label, which
            is the accuracy of always saying it.
        beyond_majority: accuracy − majority, paired by text.
        top_probability: mean probability of the predicted class.
        calibration_error: expected calibration error against the labels, in ten bins of
            the probability (Guo et al. 2017).
        n: texts. n_labelled: those with a label.
    """

    accuracy: Estimate | None
    majority: float | None
    beyond_majority: Estimate | None
    top_probability: Estimate
    calibration_error: float | None
    n: int
    n_labelled: int


def quality(predictions: pd.DataFrame, *, seed: int = 0) -> Quality:
    """Accuracy, saturation and calibration.

    Args:
        predictions: a text per row, with ``predicted_class``, ``probability`` and
            ``label``, which is −1 for a text without one.
        seed: of the bootstrap.
    """
    probability = predictions.probability.to_numpy(dtype=np.float64)
    sure = mean_estimate(probability, seed=seed)
    labelled = predictions[predictions.label >= 0]
    n, n_labelled = len(predictions), len(labelled)
    if not n_labelled:
        return Quality(None, None, None, sure, None, n, 0)
    is_right = (labelled.predicted_class == labelled.label).to_numpy(dtype=np.float64)
    most_frequent = labelled.label.mode().iloc[0]
    is_majority = (labelled.label == most_frequent).to_numpy(dtype=np.float64)
    return Quality(
        accuracy=mean_estimate(is_right, share=True),
        majority=float(is_majority.mean()),
        beyond_majority=_difference(is_right - is_majority),
        top_probability=sure,
        calibration_error=_calibration_error(
            labelled.probability.to_numpy(dtype=np.float64), is_right
        ),
        n=n,
        n_labelled=n_labelled,
    )


def _difference(paired: np.ndarray) -> Estimate:
    """Of two shares of the same texts, from differences of 1, 0 and -1."""
    low, high = paired_share_interval(paired[:, None])[:, 0].tolist()
    return Estimate(float(paired.mean()), (low, high), len(paired))


def _calibration_error(probability: np.ndarray, is_right: np.ndarray) -> float:
    """Σ over bins of share of texts × |accuracy − mean probability|."""
    bins = np.minimum((probability * N_BINS).astype(int), N_BINS - 1)
    gap = np.zeros(N_BINS)
    np.add.at(gap, bins, is_right - probability)
    return float(np.abs(gap).sum() / len(probability))
