"""Position and length bias: attention prefers a position that does not explain the predictions.

For example, attention can be highest on the last sentence of every passage, whichever sentence the
answer depends on. A bias is stated if attention prefers a position clearly more often than the most
important unit is there.

Rule
    Each text is counted in which attention ranks the unit at a position first, but this unit is not the
    most important one, and each text in which it is the other way round. McNemar's exact test
    (McNemar 1947) compares the two counts. Its p-value is corrected for the number of positions (Holm
    1979) and must be at most .05. In addition, the difference must be at least a fifth of the texts,
    which is our choice, because tiny differences are significant in thousands of texts.
"""

from dataclasses import dataclass

import numpy as np

from hf_attnprobe.statistics.differences import compute_sign_test_p_value, correct_by_holm
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.scale import has_exchanges


ANSWER_POSITIONS = {
    "first": "source_found@first",
    "last": "source_found@last",
    "longest": "source_found@length",
}
"""Maps each position to the statistic that is 1 if the source of an answer is there."""
MAX_P_VALUE = 0.05
"""Largest corrected p-value at which a bias is stated."""
MIN_EXCESS = 0.2
"""Smallest difference between the two shares of texts at which a bias is stated."""


@dataclass(frozen=True)
class PositionBias:
    """A position that attention prefers although the most important unit is elsewhere.

    Attributes:
        position: "first", "last" or "longest".
        n_attended: number of texts in which attention ranks the unit at this position first. Units
            with equal attention share a text, so it may be a fraction.
        n_decisive: number of texts in which this unit is the most important one.
        n: number of texts in which both are known.
        p_value: p-value of the difference, corrected for the number of positions.
    """

    position: str
    n_attended: float
    n_decisive: float
    n: int
    p_value: float


def find_position_bias(evidence: Evidence) -> PositionBias | None:
    """Find the position or length that attention prefers most.

    Args:
        evidence: statistics about the attention as a whole.

    Returns:
        The position with the largest difference; None if no difference is clear, or if the positions
        were not measured.
    """
    biases = []
    for position, decisive_statistic in _list_positions(evidence).items():
        attended = evidence.get_values(f"attended_position@{position}")
        decisive = evidence.get_values(decisive_statistic)
        is_known = ~np.isnan(attended) & ~np.isnan(decisive)
        attended, decisive = attended[is_known], decisive[is_known]
        if len(attended) < MIN_DISPLAYED_TEXTS:
            continue
        p_value = compute_sign_test_p_value(
            int((attended > decisive).sum()), int((attended < decisive).sum())
        )
        sums = float(attended.sum()), float(decisive.sum())
        biases.append(PositionBias(position, *sums, len(attended), p_value))
    corrected_p_values = correct_by_holm([bias.p_value for bias in biases])
    clear_biases = [
        PositionBias(bias.position, bias.n_attended, bias.n_decisive, bias.n, p_value)
        for bias, p_value in zip(biases, corrected_p_values, strict=True)
        if p_value <= MAX_P_VALUE and bias.n_attended - bias.n_decisive >= MIN_EXCESS * bias.n
    ]
    return max(clear_biases, key=lambda bias: bias.n_attended - bias.n_decisive, default=None)


def _list_positions(evidence: Evidence) -> dict[str, str]:
    """Return the statistic that is 1 if the most important unit is at a position, by position."""
    if evidence.words.kind == "answer":
        return ANSWER_POSITIONS
    prefix = "exchange_" if has_exchanges(evidence.texts) else ""
    return {position: f"{prefix}decisive_position@{position}" for position in ("first", "last")}
