"""The adversary that is reported, chosen on other texts than it is reported on. Pure."""

from collections.abc import Sequence

import numpy as np

from hf_attnprobe.statistics.scores import one_hot, weighted_metrics


def crossed_choice(
    labels: np.ndarray,
    base: np.ndarray,
    adversaries: Sequence[np.ndarray],
    divergences: Sequence[np.ndarray],
    *,
    tolerance: float,
    seed: int = 0,
) -> np.ndarray:
    """For every text the adversary that the other half of the texts chooses.

    The farthest of several is far by luck too on the texts that chose it. Each half of
    the texts, drawn at random, chooses the farthest on average of those that lose at
    most ``tolerance`` of F1, or the one that loses least if none does.

    Args:
        labels: the true classes [texts].
        base: probabilities of the base [texts, classes].
        adversaries: of each adversary, likewise.
        divergences: JSD of each adversary's attention to the base's [texts].
        tolerance: of F1.
        seed: of the halves.

    Returns:
        Places in ``adversaries``, [texts].
    """
    half = np.random.default_rng(seed).permutation(len(labels)) % 2
    choosing = np.stack([half == 1, half == 0]).astype(float)  # [halves, texts]
    f1 = [
        weighted_metrics(labels, one_hot(probs), choosing)["f1"] for probs in (base, *adversaries)
    ]
    lost = f1[0] - np.stack(f1[1:])  # [adversaries, halves]
    distance = np.stack(divergences) @ choosing.T
    is_good = lost <= tolerance
    value = np.where(is_good, distance, -np.inf)
    value = np.where(is_good.any(0), value, -lost)
    return value.argmax(0)[half]
