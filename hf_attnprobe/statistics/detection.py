"""The smallest effect of which an audit's own rule says yes: its limit of detection.

Of texts with a planted effect of several doses, 0 among them (:mod:`hf_attnprobe.planted_effects`).

Yes:      a statistic whose mean over n texts is surely at least the rule's threshold, the lower
          end of its 95% interval (of many heads the simultaneous one) not below it. That is
          what the page of an audit says. Texts are drawn with replacement, so that n may be
          any number.
Limit of detection: the smallest effect with a yes in 95% of draws (Currie 1968). Between
          two doses a text's statistic is taken to lie on the line between them. The
          interval is over texts: all is done again on texts drawn with replacement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import errors_of, resample_counts


POWER = 0.95
DRAWS, RESAMPLES, BETWEEN = 400, 200, 24
"""Draws of texts, of intervals, and steps between two doses."""
LOG_PROB = "log_prob"
"""In the rows: of the last class, or of the answer."""


@dataclass(frozen=True)
class Decision:
    """The rule by which an audit says yes of a head.

    Attributes:
        threshold: that the mean must surely reach.
        n_heads: whose intervals hold at once.
    """

    threshold: float
    n_heads: int = 1

    @property
    def critical(self) -> float:
        """Standard errors below the mean; of several heads as of independent ones (Šidák)."""
        return errors_of(self.n_heads)


def drawn(n_texts: int, n: int, seed: int) -> np.ndarray:
    """How often each text is in a draw of ``n``, [DRAWS, texts]."""
    return resample_counts(n_texts, n=n, seed=[seed, n], n_resamples=DRAWS)


def says_yes(values: np.ndarray, draws: np.ndarray, rule: Decision) -> np.ndarray:
    """Returns the share of draws in which the rule says yes.

    Args:
        values: [..., texts].
        draws: of :func:`drawn`.

    Returns:
        [...].
    """
    n = draws[0].sum()
    mean = values @ draws.T / n
    mean_square = values**2 @ draws.T / n
    variance = np.maximum(mean_square - mean**2, 0)
    freedom = max(n - 1, 1)
    error = np.sqrt(variance / freedom)
    low = mean - rule.critical * error
    is_yes = low >= rule.threshold
    return is_yes.mean(-1)


def first_seen(values: np.ndarray, draws: np.ndarray, rule: Decision) -> float:
    """Returns the place among the doses from which on the rule says yes in ``POWER`` of draws.

    Args:
        values: [doses, texts], the first at dose 0.

    Returns:
        1.5 is half-way from the first dose above 0 to the second; 0 where dose 0 already has a
        yes, infinite where the largest has none.
    """
    n_steps = len(values) - 1
    places = np.linspace(0, n_steps, n_steps * BETWEEN + 1)
    low = np.minimum(places.astype(int), n_steps - 1)
    part = (places - low)[:, None]
    between = (1 - part) * values[low] + part * values[low + 1]
    shares = says_yes(between, draws, rule)

    below = np.flatnonzero(shares < POWER)
    if not len(below):
        return 0.0
    last = int(below[-1])
    if last == len(places) - 1:
        return float("inf")
    missing = POWER - shares[last]
    gained = shares[last + 1] - shares[last]
    return float((last + missing / gained) / BETWEEN)


def limit_of(values: np.ndarray, n: int, seed: int, rule: Decision) -> tuple[float, float, float]:
    """Returns the limit of detection with n texts, a place among the doses, and its interval.

    Args:
        values: [doses, texts].
    """
    n_texts = values.shape[1]
    draws = drawn(n_texts, n, seed)
    random = np.random.default_rng([seed, 1])
    found = []
    for _ in range(RESAMPLES):
        texts = random.integers(0, n_texts, n_texts)
        found.append(first_seen(values[:, texts], draws, rule))
    low, high = np.quantile(found, [0.025, 0.975], method="nearest")
    limit = first_seen(values, draws, rule)
    return limit, float(low), float(high)


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
