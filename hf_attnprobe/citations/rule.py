"""Decide from log-probabilities whether a statement of an answer used a passage.

All numbers are log-probabilities of the whole statement in nats. They are compared in this order:

1. Would the model write the statement at all? If its log-probability with all passages is below a
   floor (:data:`MIN_LOG_PROB_PER_TOKEN`), no passage was used.
2. Do the passages matter at all? The *gain* is the log-probability with all passages, minus the one
   without any (the *prior*). If the gain is small (:data:`MIN_GAIN`), the statement was either known
   anyway or not taken from any passage, depending on the prior
   (:data:`MIN_KNOWN_PRIOR_PER_TOKEN`, :data:`MAX_UNUSED_PRIOR_PER_TOKEN`).
3. Which passage matters? The *necessity* of a passage is the loss without it; its *sufficiency* is the
   gain from this passage alone. A passage was used if the larger of both is a sufficient share of the
   gain (:data:`MIN_GAIN_SHARE`). Necessity alone would miss a fact that two passages contain, because
   each of them can then be removed without a loss.

Near a threshold, the result is "cannot say".
"""

from dataclasses import dataclass
from enum import StrEnum

from hf_attnprobe.statistics.verdicts import join_words


MIN_GAIN = 6.0
"""Smallest gain, in nats, of a statement that depends on the passages.

Statements also gain a little from passages that only have a similar wording. The thresholds in this
module were chosen on the planted statements of ``benchmarks/citations.py``.
"""
GAIN_MARGIN = 1.5
"""Distance from :data:`MIN_GAIN`, in nats, within which the result is "cannot say".

The removal of an unrelated passage can change the log-probability of a statement by about this much.
"""
MIN_GAIN_SHARE = 0.4
"""Smallest share of the gain that a used passage explains, by its necessity or its sufficiency."""
GAIN_SHARE_MARGIN = 0.08
"""Distance from :data:`MIN_GAIN_SHARE` within which the result is "cannot say"."""
MIN_KNOWN_PRIOR_PER_TOKEN = -0.8
"""Smallest mean log-probability per token, without any passage, of a statement that was known anyway.

In a test with planted statements, it was at least -0.4 for facts that the model writes without passages.
"""
MAX_UNUSED_PRIOR_PER_TOKEN = -1.4
"""Largest mean log-probability per token, without any passage, of a statement that was not known.

In a test with planted statements, it was at most -1.6 for invented facts. Between both thresholds, the
result is "cannot say".
"""
MIN_LOG_PROB_PER_TOKEN = -2.3
"""Smallest mean log-probability per token, with all passages, of a statement that the model would write.

The value is the logarithm of 0.1. Below it, passages also raise the probability of wrong statements
with a similar form, so the gain has no meaning.
"""
PER_TOKEN_MARGIN = 0.2
"""Distance from :data:`MIN_LOG_PROB_PER_TOKEN` within which the result is "cannot say"."""


class Use(StrEnum):
    """Relation between a statement and a passage."""

    USED = "used"
    KNOWN = "known anyway"
    UNUSED = "unused"
    OTHER = "another source was used"
    UNDECIDED = "cannot say"


@dataclass(frozen=True)
class StatementLogProbs:
    """Log-probabilities of a statement with and without passages, in nats.

    Attributes:
        full: With all passages.
        prior: Without any passage.
        without: Without one passage, for each passage.
        alone: With only one passage, for each passage.
        n_tokens: Number of tokens in the statement.
    """

    full: float
    prior: float
    without: tuple[float, ...]
    alone: tuple[float, ...]
    n_tokens: int

    @property
    def gain(self) -> float:
        """Log-probability that the statement gains from all passages together."""
        return self.full - self.prior

    @property
    def necessity(self) -> tuple[float, ...]:
        """Log-probability that the statement loses without each passage."""
        return tuple(self.full - value for value in self.without)

    @property
    def sufficiency(self) -> tuple[float, ...]:
        """Log-probability that the statement gains from each passage alone."""
        return tuple(value - self.prior for value in self.alone)


@dataclass(frozen=True)
class Classification:
    """Relation of a statement to each passage.

    Attributes:
        uses: One relation for each passage.
        reason: Why the passages have this relation, as a sentence without a full stop.
    """

    uses: tuple[Use, ...]
    reason: str

    @property
    def used_sources(self) -> tuple[int, ...]:
        """Numbers of the passages that were used, counted from 1."""
        return tuple(k for k, use in enumerate(self.uses, 1) if use is Use.USED)


def classify_statement(log_probs: StatementLogProbs) -> Classification:
    """Classify the relation of a statement to each passage, see the module's documentation.

    Args:
        log_probs: Log-probabilities of the statement.

    Returns:
        One class for each passage, and the reason.
    """
    n_sources = len(log_probs.without)
    full_per_token = log_probs.full / log_probs.n_tokens
    prior_per_token = log_probs.prior / log_probs.n_tokens
    floor_side = _compare(full_per_token, MIN_LOG_PROB_PER_TOKEN, PER_TOKEN_MARGIN)
    gain_side = _compare(log_probs.gain, MIN_GAIN, GAIN_MARGIN)

    if floor_side < 0:
        reason = "the model would not write this statement, even with all passages"
        return Classification((Use.UNUSED,) * n_sources, reason)
    if floor_side == 0:
        reason = "the model would hardly write this statement, even with all passages"
        return Classification((Use.UNDECIDED,) * n_sources, reason)
    if gain_side == 0:
        reason = "the passages make the statement only slightly more likely"
        return Classification((Use.UNDECIDED,) * n_sources, reason)
    if gain_side < 0:
        if prior_per_token >= MIN_KNOWN_PRIOR_PER_TOKEN:
            reason = "the model writes this statement without any passage too"
            return Classification((Use.KNOWN,) * n_sources, reason)
        if prior_per_token <= MAX_UNUSED_PRIOR_PER_TOKEN:
            reason = "the passages do not make the statement more likely"
            return Classification((Use.UNUSED,) * n_sources, reason)
        reason = "it is not clear whether the model would write the statement without any passage"
        return Classification((Use.UNDECIDED,) * n_sources, reason)
    return _classify_dependent_statement(log_probs)


def _classify_dependent_statement(log_probs: StatementLogProbs) -> Classification:
    """Classify the passages of a statement that depends on them."""
    sides = [
        _compare(max(pair) / log_probs.gain, MIN_GAIN_SHARE, GAIN_SHARE_MARGIN)
        for pair in zip(log_probs.necessity, log_probs.sufficiency, strict=True)
    ]
    if not any(side > 0 for side in sides):
        reason = "the statement depends on the passages, but on none of them clearly"
        return Classification((Use.UNDECIDED,) * len(sides), reason)
    use_of_side = {1: Use.USED, 0: Use.UNDECIDED, -1: Use.OTHER}
    uses = tuple(use_of_side[side] for side in sides)
    numbers = [str(k) for k, use in enumerate(uses, 1) if use is Use.USED]
    return Classification(uses, f"the statement depends on passage {join_words(numbers)}")


def _compare(value: float, threshold: float, margin: float) -> int:
    """Compare a value with a threshold: 1 above it, -1 below it, and 0 if it is too close to it."""
    if abs(value - threshold) <= margin:
        return 0
    return 1 if value > threshold else -1
