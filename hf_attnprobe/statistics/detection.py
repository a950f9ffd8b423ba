"""Detection limit: the smallest effect that an audit reliably detects.

To measure it, :mod:`hf_attnprobe.planted_effects` changes a model so that attention has an effect of known
size. Such an effect is planted in several sizes, which are called doses. Dose 0 is the unchanged model.

An audit detects an effect if it answers yes. It does so if the lower end of the 95% confidence interval
for the mean statistic reaches a threshold. If several heads are compared, the interval is simultaneous.

The detection limit is the smallest effect that 95% of all audits with n texts detect (Currie 1968). These
audits are simulated: the texts of each audit are drawn with replacement, so n can be any number. Between
two doses, the statistic of each text is interpolated linearly. The limit has a confidence interval, for
which the whole computation is repeated on resampled texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import compute_sidak_critical_value, draw_resample_counts


DETECTION_POWER = 0.95
"""Probability with which an effect at the detection limit is detected."""
N_SIMULATED_AUDITS = 400
"""Number of simulated audits, each of a different random sample of texts.

The share of these audits that detect an effect is the estimated detection probability.
"""
N_RESAMPLES = 200
"""Number of bootstrap resamples for the confidence interval of the detection limit."""
N_STEPS_BETWEEN_DOSES = 24
"""Number of steps between two measured doses of an effect, at which statistics are interpolated.

The detection limit is then found between two steps.
"""
LOG_PROB_STATISTIC = "log_prob"
"""Name of the statistic that contains the log-probability of the class that the effect changes.

This is the last class of a classifier. For a language model, it is the log-probability of the answer.
"""


@dataclass(frozen=True)
class DetectionRule:
    """The rule by which an audit answers yes for a head.

    Attributes:
        threshold: number that the lower end of the confidence interval must reach.
        n_heads: number of heads that are compared, with simultaneous confidence intervals.
    """

    threshold: float
    n_heads: int = 1

    @property
    def critical_value(self) -> float:
        """Half-width of the confidence interval in standard errors, by Šidák's inequality."""
        return compute_sidak_critical_value(self.n_heads)


def draw_text_counts(n_texts: int, n: int, seed: int) -> np.ndarray:
    """Draw random texts for 400 simulated audits.

    The texts are drawn with replacement, so an audit can contain a text several times.

    Args:
        n_texts: number of texts to draw from.
        n: number of texts in each audit.
        seed: random seed.

    Returns:
        How often each audit contains each text, [audits, texts].
    """
    return draw_resample_counts(n_texts, n=n, seed=[seed, n], n_resamples=N_SIMULATED_AUDITS)


def compute_detection_rate(
    values: np.ndarray, draws: np.ndarray, rule: DetectionRule
) -> np.ndarray:
    """Compute the share of simulated audits in which a rule answers yes.

    The answer is yes if the lower end of the confidence interval for the mean statistic reaches the
    threshold of the rule.

    Args:
        values: one statistic for each text, [..., texts].
        draws: simulated audits from :func:`draw_text_counts`, [audits, texts].
        rule: rule with a threshold.

    Returns:
        Detection rates in [0, 1], [...].
    """
    # A row of `draws` contains how often each text is drawn, so the product with the values gives
    # the sum over the texts of each audit.
    n = draws[0].sum()
    mean = values @ draws.T / n
    mean_square = values**2 @ draws.T / n
    variance = np.maximum(mean_square - mean**2, 0)
    degrees_of_freedom = max(n - 1, 1)
    standard_error = np.sqrt(variance / degrees_of_freedom)
    lower_end = mean - rule.critical_value * standard_error
    is_detected = lower_end >= rule.threshold
    return is_detected.mean(-1)


def find_detectable_dose(values: np.ndarray, draws: np.ndarray, rule: DetectionRule) -> float:
    """Find the smallest planted effect that 95% of the simulated audits detect.

    Effects of several sizes (doses) are planted in a model. Between two doses, the values are
    interpolated.

    Args:
        values: one statistic for each dose and text, [doses, texts], with dose 0 first.
        draws: simulated audits from :func:`draw_text_counts`, [audits, texts].
        rule: rule with a threshold.

    Returns:
        Index of the dose, such as 1.5 for the middle between doses 1 and 2. It is 0 if dose 0 is
        already detected, and infinite if even the largest dose is not detected.
    """
    # Add several steps between neighbouring doses. At a step between doses 1 and 2, the values are
    # weighted means of the values at doses 1 and 2.
    n_steps = len(values) - 1
    dose_indices = np.linspace(0, n_steps, n_steps * N_STEPS_BETWEEN_DOSES + 1)
    lower_dose = np.minimum(dose_indices.astype(int), n_steps - 1)
    fraction = (dose_indices - lower_dose)[:, None]
    interpolated = (1 - fraction) * values[lower_dose] + fraction * values[lower_dose + 1]
    rates = compute_detection_rate(interpolated, draws, rule)

    undetected = np.flatnonzero(rates < DETECTION_POWER)
    if not len(undetected):
        return 0.0
    last_undetected = int(undetected[-1])
    if last_undetected == len(dose_indices) - 1:
        return float("inf")
    # Between the last undetected step and the next one, the rate is interpolated linearly.
    missing_power = DETECTION_POWER - rates[last_undetected]
    gained_power = rates[last_undetected + 1] - rates[last_undetected]
    return float((last_undetected + missing_power / gained_power) / N_STEPS_BETWEEN_DOSES)


def estimate_detection_limit(
    values: np.ndarray, n: int, seed: int, rule: DetectionRule
) -> tuple[float, float, float]:
    """Estimate the smallest planted effect that an audit with n texts reliably detects.

    Args:
        values: one statistic for each dose and text, [doses, texts], with dose 0 first.
        n: number of texts in the audit.
        seed: random seed.
        rule: rule with a threshold.

    Returns:
        Detection limit and both ends of its 95% confidence interval. Each is the index of a dose,
        see :func:`find_detectable_dose`.
    """
    n_texts = values.shape[1]
    draws = draw_text_counts(n_texts, n, seed)
    # For the confidence interval, the limit is computed again on bootstrap resamples of the texts.
    generator = np.random.default_rng([seed, 1])
    resampled_limits = []
    for _ in range(N_RESAMPLES):
        texts = generator.integers(0, n_texts, n_texts)
        resampled_limits.append(find_detectable_dose(values[:, texts], draws, rule))
    low, high = np.quantile(resampled_limits, [0.025, 0.975], method="nearest")
    limit = find_detectable_dose(values, draws, rule)
    return limit, float(low), float(high)


@dataclass(frozen=True)
class DetectionLimit:
    """Detection limit as an effect size.

    Attributes:
        effect: effect size at the limit; the largest planted effect if even this is not detected.
        interval: 95% confidence interval over texts; None if no planted effect is detected.
    """

    effect: float
    interval: tuple[float, float] | None


def interpolate_effect(effects: np.ndarray, limit: Sequence[float]) -> DetectionLimit:
    """Convert a detection limit from the index of a dose to an effect size.

    A dose is the size of a planted effect. If the index is 1.5, for example, the effect size is the
    mean of ``effects[1]`` and ``effects[2]``.

    Args:
        effects: effect size at each dose, [doses], with dose 0 first.
        limit: dose indices of the limit and of both interval ends, from
            :func:`estimate_detection_limit`.

    Returns:
        The effect size at the detection limit, with its interval.
    """
    dose_indices = range(len(effects))
    effect, low, high = np.interp(limit, dose_indices, effects).tolist()
    # The index is infinite if even the largest dose is not detected.
    is_detected = limit[0] != float("inf")
    return DetectionLimit(effect, (low, high) if is_detected else None)


# --- Rows for one head, with the columns dose, example_id, statistic, value ----------------------


def pivot_by_dose(rows: pd.DataFrame, statistic: str) -> np.ndarray:
    """Arrange the values of a statistic in a matrix with one row per dose and one column per text.

    A dose is the size of a planted effect.

    Args:
        rows: values for one head, with the columns dose, example_id, statistic and value.
        statistic: statistic name.

    Returns:
        Values [doses, texts]. Texts without a value for some dose are left out.
    """
    selected_rows = rows[rows.statistic == statistic]
    table = selected_rows.pivot(index="dose", columns="example_id", values="value")
    return table.dropna(axis=1).to_numpy()


def compute_dose_effects(rows: pd.DataFrame, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute how much each planted effect (dose) changes the probability and the log odds.

    The changes are differences from dose 0, which is the model without a planted effect.

    Args:
        rows: values for one head, with the columns dose, example_id, statistic and value.
        sign: direction in which the planted effect changes the log odds, 1 or −1.

    Returns:
        Mean absolute probability change, and mean log-odds change times ``sign``, each [doses].
    """
    log_probs = pivot_by_dose(rows, LOG_PROB_STATISTIC)
    # The log odds ln p − ln(1 − p) are undefined for p = 1, so 1 − p is at least the machine epsilon.
    complements = np.maximum(-np.expm1(log_probs), np.finfo(float).eps)
    log_odds = log_probs - np.log(complements)
    probability_changes = np.abs(np.exp(log_probs) - np.exp(log_probs[0]))
    log_odds_changes = log_odds - log_odds[0]
    return probability_changes.mean(1), sign * log_odds_changes.mean(1)
