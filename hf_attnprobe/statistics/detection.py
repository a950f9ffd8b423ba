"""Limit of detection: the smallest planted effect for which an audit's own rule answers yes.

:mod:`hf_attnprobe.planted_effects` plants an effect of known size in a model, in several doses that
start with dose 0. The two terms of this module are:

Detection: the mean of a statistic over n texts is certainly at least the threshold of the rule,
    because the lower end of its 95% interval is not below it. This is the condition for a yes in a
    report. If several heads are compared, the interval is a simultaneous one. Texts are drawn with
    replacement, so n can be any number.
Limit of detection: the smallest effect that is detected in 95% of the draws of texts (Currie 1968).
    Between two doses, the statistic of a text is interpolated linearly. The interval of the limit is
    over texts: the whole computation is repeated on texts drawn with replacement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import compute_sidak_critical_value, draw_resample_counts


DETECTION_POWER = 0.95
"""Share of the draws of texts in which an effect at the limit of detection is detected."""
N_TEXT_DRAWS = 400
"""Number of draws of texts from which a detection rate is estimated."""
N_RESAMPLES = 200
"""Number of resamples of the texts for the interval of a limit of detection."""
N_STEPS_PER_DOSE = 24
"""Number of interpolation steps between two doses."""
LOG_PROB_STATISTIC = "log_prob"
"""Statistic with the log-probability of the last class, or of the answer of a language model."""


@dataclass(frozen=True)
class DetectionRule:
    """The rule by which an audit answers yes for a head.

    Attributes:
        threshold: number that the mean must certainly reach.
        n_heads: number of heads whose intervals hold simultaneously.
    """

    threshold: float
    n_heads: int = 1

    @property
    def critical_value(self) -> float:
        """Half the width of an interval in standard errors, by Šidák's inequality."""
        return compute_sidak_critical_value(self.n_heads)


def draw_text_counts(n_texts: int, n: int, seed: int) -> np.ndarray:
    """Draw samples of n texts with replacement.

    Args:
        n_texts: number of texts to draw from.
        n: number of texts in a sample.
        seed: random seed.

    Returns:
        Number of times that each text is in a sample, [N_TEXT_DRAWS, texts].
    """
    return draw_resample_counts(n_texts, n=n, seed=[seed, n], n_resamples=N_TEXT_DRAWS)


def compute_detection_rate(
    values: np.ndarray, draws: np.ndarray, rule: DetectionRule
) -> np.ndarray:
    """Compute the share of samples in which the rule answers yes.

    Args:
        values: statistic of each text, [..., texts].
        draws: samples from :func:`draw_text_counts`.
        rule: the rule.

    Returns:
        [...] in [0, 1].
    """
    n = draws[0].sum()
    mean = values @ draws.T / n
    mean_square = values**2 @ draws.T / n
    variance = np.maximum(mean_square - mean**2, 0)
    degrees_of_freedom = max(n - 1, 1)
    standard_error = np.sqrt(variance / degrees_of_freedom)
    lower_end = mean - rule.critical_value * standard_error
    is_detected = lower_end >= rule.threshold
    return is_detected.mean(-1)


def find_detection_position(values: np.ndarray, draws: np.ndarray, rule: DetectionRule) -> float:
    """Find the dose from which the rule answers yes in :data:`DETECTION_POWER` of the samples.

    Args:
        values: statistic of each text at each dose, [doses, texts], with dose 0 first.
        draws: samples from :func:`draw_text_counts`.
        rule: the rule.

    Returns:
        Fractional index of the dose: 1.5 is half-way between the doses with indices 1 and 2. It
        is 0 if dose 0 is already detected, and infinite if the largest dose is not.
    """
    n_steps = len(values) - 1
    positions = np.linspace(0, n_steps, n_steps * N_STEPS_PER_DOSE + 1)
    lower_dose = np.minimum(positions.astype(int), n_steps - 1)
    fraction = (positions - lower_dose)[:, None]
    interpolated = (1 - fraction) * values[lower_dose] + fraction * values[lower_dose + 1]
    rates = compute_detection_rate(interpolated, draws, rule)

    undetected = np.flatnonzero(rates < DETECTION_POWER)
    if not len(undetected):
        return 0.0
    last_undetected = int(undetected[-1])
    if last_undetected == len(positions) - 1:
        return float("inf")
    missing_power = DETECTION_POWER - rates[last_undetected]
    gained_power = rates[last_undetected + 1] - rates[last_undetected]
    return float((last_undetected + missing_power / gained_power) / N_STEPS_PER_DOSE)


def estimate_detection_limit(
    values: np.ndarray, n: int, seed: int, rule: DetectionRule
) -> tuple[float, float, float]:
    """Estimate the limit of detection with n texts as a fractional index of the doses.

    Args:
        values: statistic of each text at each dose, [doses, texts], with dose 0 first.
        n: number of texts in an audit.
        seed: random seed.
        rule: the rule.

    Returns:
        Limit of detection, and the low and high end of its 95% interval.
    """
    n_texts = values.shape[1]
    draws = draw_text_counts(n_texts, n, seed)
    generator = np.random.default_rng([seed, 1])
    resampled_positions = []
    for _ in range(N_RESAMPLES):
        texts = generator.integers(0, n_texts, n_texts)
        resampled_positions.append(find_detection_position(values[:, texts], draws, rule))
    low, high = np.quantile(resampled_positions, [0.025, 0.975], method="nearest")
    limit = find_detection_position(values, draws, rule)
    return limit, float(low), float(high)


@dataclass(frozen=True)
class DetectionLimit:
    """Size of the effect at a limit of detection.

    Attributes:
        effect: size of the effect; the largest planted effect if even this is not detected.
        interval: 95% interval over texts; None if no planted effect is detected.
    """

    effect: float
    interval: tuple[float, float] | None


def interpolate_effect(effects: np.ndarray, limit: Sequence[float]) -> DetectionLimit:
    """Convert a limit of detection from a fractional index of the doses to an effect size.

    Args:
        effects: size of the effect at each dose, [doses], with dose 0 first.
        limit: limit and interval from :func:`estimate_detection_limit`.

    Returns:
        The effect size at the limit of detection.
    """
    effect, low, high = (float(x) for x in np.interp(limit, range(len(effects)), effects))
    is_detected = limit[0] != float("inf")
    return DetectionLimit(effect, (low, high) if is_detected else None)


# --- Rows of a head with the columns dose, example_id, statistic, value --------------------------


def pivot_by_dose(rows: pd.DataFrame, statistic: str) -> np.ndarray:
    """Pivot a statistic of a head by dose.

    Args:
        rows: rows of a head with the columns dose, example_id, statistic and value.
        statistic: statistic name.

    Returns:
        [doses, texts], without texts that have no value at some dose.
    """
    selected_rows = rows[rows.statistic == statistic]
    table = selected_rows.pivot(index="dose", columns="example_id", values="value")
    return table.dropna(axis=1).to_numpy()


def compute_dose_effects(rows: pd.DataFrame, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute how much each dose changes the probability and the log odds.

    Args:
        rows: rows of a head with the columns dose, example_id, statistic and value.
        sign: sign of the planted effect on the log odds, 1 or −1.

    Returns:
        Mean absolute change of the probability and signed mean change of the log odds,
        each [doses].
    """
    log_probs = pivot_by_dose(rows, LOG_PROB_STATISTIC)
    complements = np.maximum(-np.expm1(log_probs), np.finfo(float).eps)
    log_odds = log_probs - np.log(complements)
    probability_changes = np.abs(np.exp(log_probs) - np.exp(log_probs[0]))
    return probability_changes.mean(1), sign * (log_odds - log_odds[0]).mean(1)
