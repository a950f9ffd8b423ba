"""How good and how sure the model is on these texts: what every verdict stands on.

Attention of a model at chance explains nothing that is worth an explanation; and ε-max
JSD, leave-one-out and shuffles all shrink or grow with how saturated the output is.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.bootstrap import (
    Estimate,
    mean_estimate,
    percentile_interval,
    resample_counts,
)
from hf_attnprobe.statistics.shares import paired_share_interval


N_BINS = 10


@dataclass(frozen=True)
class Quality:
    """Of the model's predictions on the texts of a run.

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
    """Of predicted numbers, in the labels' own unit.

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


def quality(predictions: pd.DataFrame, *, seed: int = 0) -> Quality:
    """Accuracy, saturation and calibration.

    Args:
        predictions: a text per row, with ``predicted_class``, ``probability`` and
            ``label``, which is −1 for a text without one. Where there is ``correct``, a
            text has several labels; ``label@name`` is then 1, 0 or −1 for each, or
            ``label_share@name`` the share of its labels that are this one.
        seed: of the bootstrap.
    """
    probability = predictions.probability.to_numpy(dtype=np.float64)
    sure = mean_estimate(probability)
    if "correct" in predictions:
        return _of_parts(predictions, sure, seed)
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


def _of_parts(predictions: pd.DataFrame, sure: Estimate, seed: int) -> Quality:
    """Where a text has several labels, each met or not."""
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


def number_quality(predictions: pd.DataFrame, *, seed: int = 0) -> NumberQuality | None:
    """How near predicted numbers are; None where texts have no labels.

    Args:
        predictions: a text per row, with ``value`` and ``labelled_value``, which is NaN
            for a text without one.
        seed: of the bootstrap.
    """
    labelled = predictions[predictions.labelled_value.notna()]
    if not len(labelled):
        return None
    said = labelled.value.to_numpy(dtype=np.float64)
    wanted = labelled.labelled_value.to_numpy(dtype=np.float64)
    counts = np.vstack([np.ones(len(said)), resample_counts(len(said), seed=seed)])
    explained = _r_squared(said, wanted, counts)
    interval = percentile_interval(explained[1:])
    return NumberQuality(
        error=mean_estimate(np.abs(wanted - said)),
        error_of_mean=mean_estimate(np.abs(wanted - wanted.mean())),
        r_squared=Estimate(float(explained[0]), interval, len(said)),
        n=len(predictions),
        n_labelled=len(said),
    )


def _r_squared(said: np.ndarray, wanted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of resamples by counts [resamples, texts]; NaN where all labels are equal."""
    sizes = counts.sum(1)
    wanted_less = wanted - wanted.mean()  # or digits would cancel
    spread = counts @ wanted_less**2 - (counts @ wanted_less) ** 2 / sizes
    missed = counts @ (wanted - said) ** 2
    share = np.full(len(counts), np.nan)
    varied = spread > 1e-12 * sizes * max(np.ptp(wanted), 1e-300) ** 2
    np.divide(missed, spread, out=share, where=varied)
    return 1 - share


def _calibration_error(probability: np.ndarray, is_right: np.ndarray) -> float | None:
    """Σ over bins of share of texts × |accuracy − mean probability|."""
    if np.isnan(probability).any():
        return None
    bins = np.minimum((probability * N_BINS).astype(int), N_BINS - 1)
    gap = np.zeros(N_BINS)
    np.add.at(gap, bins, is_right - probability)
    return float(np.abs(gap).sum() / len(probability))
