"""The smallest effect that a statistic shows: its limit of detection.

Of texts with a planted effect of several doses, 0 among them (:mod:`hf_attnprobe.calibration`).

Called:   a statistic whose mean over n texts is above that of n other texts at dose 0, the
          95% interval of the difference above 0. Texts are drawn with replacement, so that
          n may be any number.
Limit of detection: the smallest effect that is called in 95% of draws (Currie 1968). Between
          two doses a text's statistic is taken to lie on the line between them. The
          interval is over texts: all is done again on texts drawn with replacement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm


CALL, POWER = 0.025, 0.95
DRAWS, RESAMPLES, BETWEEN = 400, 200, 24
"""Draws of texts, of intervals, and steps between two doses."""
LOG_PROB = "log_prob"
"""In the rows: of the last class, or of the answer."""


def drawn(n_texts: int, n: int, seed: int) -> np.ndarray:
    """How often each text is in a draw of ``n``, [2, DRAWS, texts]: at a dose, at dose 0."""
    even = np.full(n_texts, 1 / n_texts)
    return np.random.default_rng([seed, n]).multinomial(n, even, size=(2, DRAWS)).astype(float)


def called(values: np.ndarray, blank: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Share of draws in which the mean of ``values`` is above that of ``blank``.

    Args:
        values: [..., texts].
        blank: [texts], at dose 0.
        draws: of :func:`drawn`.

    Returns:
        [...].
    """
    n, centre = draws[0, 0].sum(), blank.mean()
    parts = []
    for numbers, counts in ((values - centre, draws[0]), (blank - centre, draws[1])):
        mean = numbers @ counts.T / n
        parts.append((mean, np.maximum(numbers**2 @ counts.T / n - mean**2, 0) / max(n - 1, 1)))
    (mean, error), (mean_0, error_0) = parts
    return (mean - mean_0 > norm.isf(CALL) * np.sqrt(error + error_0)).mean(-1)


def first_seen(values: np.ndarray, draws: np.ndarray) -> float:
    """The place among the doses from which on ``POWER`` of draws are called.

    Args:
        values: [doses, texts], the first at dose 0.

    Returns:
        1.5 is half-way from the first dose above 0 to the second; infinite where the
        largest is not seen.
    """
    places = np.linspace(0, len(values) - 1, (len(values) - 1) * BETWEEN + 1)
    low = np.minimum(places.astype(int), len(values) - 2)
    part = (places - low)[:, None]
    shares = called((1 - part) * values[low] + part * values[low + 1], values[0], draws)
    last = int(np.flatnonzero(shares < POWER)[-1])
    if last == len(places) - 1:
        return float("inf")
    rise = (POWER - shares[last]) / (shares[last + 1] - shares[last])
    return float((last + rise) / BETWEEN)


def limit_of(values: np.ndarray, n: int, seed: int) -> tuple[float, float, float]:
    """Limit of detection with n texts, as a place among the doses, and its 95% interval.

    Args:
        values: [doses, texts].
    """
    n_texts = values.shape[1]
    draws, random = drawn(n_texts, n, seed), np.random.default_rng([seed, 1])
    again = [random.integers(0, n_texts, n_texts) for _ in range(RESAMPLES)]
    found = [first_seen(values[:, texts], draws) for texts in again]
    low, high = np.quantile(found, [0.025, 0.975], method="nearest")
    return first_seen(values, draws), float(low), float(high)


@dataclass(frozen=True)
class Limit:
    """The effect at a limit of detection.

    Attributes:
        effect: its size, or the largest that was planted where that is not seen.
        interval: 95%, over texts; None where none is seen.
    """

    effect: float
    interval: tuple[float, float] | None


def effect_at(effects: np.ndarray, limit: Sequence[float]) -> Limit:
    """The effect at a place among the doses and its interval.

    Args:
        effects: [doses], from dose 0 up.
        limit: of :func:`limit_of`.
    """
    value, low, high = (float(x) for x in np.interp(limit, range(len(effects)), effects))
    return Limit(value, None if limit[0] == float("inf") else (low, high))


# --- rows of a head: dose, example_id, statistic, value ------------------------------------------


def by_dose(rows: pd.DataFrame, statistic: str) -> np.ndarray:
    """A statistic of a head, [doses, texts]; without texts that lack it at some dose."""
    own = rows[rows.statistic == statistic]
    return own.pivot(index="dose", columns="example_id", values="value").dropna(axis=1).to_numpy()


def effects_of(rows: pd.DataFrame, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """How far each dose moves probability and log-odds, each [doses]."""
    log_probs = by_dose(rows, LOG_PROB)
    odds = log_probs - np.log(np.maximum(-np.expm1(log_probs), np.finfo(float).eps))
    moved = np.abs(np.exp(log_probs) - np.exp(log_probs[0]))
    return moved.mean(1), sign * (odds - odds[0]).mean(1)
