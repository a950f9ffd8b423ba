"""Decide from log-probabilities whether a statement of an answer used a passage.

Most numbers are log-probabilities of the whole statement in nats. They are compared in this order:

1. Would the model write the statement at all? If its log-probability with all passages is below a
   floor (:data:`MIN_LOG_PROB_PER_TOKEN`), no passage was used.
2. Do the passages matter at all? The *gain* is the log-probability with all passages, minus the one
   without any (the *prior*). If the gain is small (:data:`MIN_GAIN`), the statement was either known
   anyway or not taken from any passage. This depends on its *unexpected spans*, for which
   greedy decoding without passages would write other words. A mean over the statement would hide them,
   because most words of a half-known fact are certain and only its value is not.
3. Which passage matters? The *necessity* of a passage is the loss without it; its *sufficiency* is the
   gain from this passage alone. A passage was used if the larger of both is a sufficient share of the
   gain (:data:`MIN_GAIN_SHARE`). Necessity alone would miss a fact that two passages contain, because
   each of them can then be removed without a loss.

Near a threshold, the result is "cannot say".
"""

from collections.abc import Sequence
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
MAX_UNKNOWN_LOG_PROB = -5.0
"""Largest log-probability, with and without passages, of a span that the model did not know.

The model would write it in about 1 of 150 sampled answers, or in fewer.
"""
MIN_WORDING_LOG_PROB = -2.3
"""Limit above which the log-probability, without any passage, of a mere change of wording must be.

The value is the logarithm of 0.1. A less likely span may be a fact that the model half knows.
"""
MAX_WORDING_GAIN = 0.3
"""Limit below which the gain from the passages, in nats, of a mere change of wording must be.

If the passages make a span more likely, it may be a fact that the model half knows. In a test with
planted statements, half-known values gained 0.4 to 3.2 nats.
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
class UnexpectedSpan:
    """Span of a statement for which greedy decoding without passages would write other words.

    Attributes:
        text: The span.
        prior: Its log-probability without any passage, after the words before it, in nats.
        gain: Log-probability that it gains from all passages together, in nats.
    """

    text: str
    prior: float
    gain: float

    @property
    def is_unknown(self) -> bool:
        """Whether the span is unlikely without and with the passages."""
        return max(self.prior, self.prior + self.gain) <= MAX_UNKNOWN_LOG_PROB

    @property
    def may_be_half_known(self) -> bool:
        """Whether this span may be a fact that the model half knows, and not only another wording."""
        return self.prior <= MIN_WORDING_LOG_PROB or self.gain >= MAX_WORDING_GAIN


@dataclass(frozen=True)
class StatementLogProbs:
    """Log-probabilities of a statement with and without passages, in nats.

    Attributes:
        full: With all passages.
        prior: Without any passage.
        without: Without one passage, for each passage.
        alone: With only one passage, for each passage.
        n_tokens: Number of tokens in the statement.
        unexpected_spans: Spans that the model would not write without passages.
    """

    full: float
    prior: float
    without: tuple[float, ...]
    alone: tuple[float, ...]
    n_tokens: int
    unexpected_spans: tuple[UnexpectedSpan, ...] = ()

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
    floor_side = _compare(full_per_token, MIN_LOG_PROB_PER_TOKEN, PER_TOKEN_MARGIN)
    gain_side = _compare(log_probs.gain, MIN_GAIN, GAIN_MARGIN)

    if floor_side < 0:
        reason = "the model would not write this statement, even with all passages"
        return Classification((Use.UNUSED,) * n_sources, reason)
    if floor_side == 0:
        reason = (
            "it is not clear whether the model would write this statement: its mean log-probability per "
            f"token is {full_per_token:.2f}, which is too close to the limit of {MIN_LOG_PROB_PER_TOKEN:g}"
        )
        return Classification((Use.UNDECIDED,) * n_sources, reason)
    if gain_side == 0:
        reason = (
            f"the passages raise the statement's log-probability by {log_probs.gain:.1f} nats, which is "
            f"too close to the limit of {MIN_GAIN:g}"
        )
        return Classification((Use.UNDECIDED,) * n_sources, reason)
    if gain_side < 0:
        use, reason = _classify_independent_statement(log_probs.unexpected_spans)
        return Classification((use,) * n_sources, reason)
    return _classify_dependent_statement(log_probs)


def _classify_independent_statement(unexpected_spans: Sequence[UnexpectedSpan]) -> tuple[Use, str]:
    """Classify a statement whose probability the passages hardly raise.

    Args:
        unexpected_spans: Spans that the model would not write without passages.

    Returns:
        The class of all passages, which is "known anyway", "unused" or "cannot say", and the reason.
    """
    for span in unexpected_spans:
        if span.is_unknown:
            return Use.UNUSED, (
                f"the model does not know {span.text!r}, and the passages do not make it likely"
            )
    for span in unexpected_spans:
        if span.may_be_half_known:
            return Use.UNDECIDED, (
                f"without the passages, the model would write other words than {span.text!r}, but it may "
                "half know these words"
            )
    return Use.KNOWN, "the model writes this statement without any passage too"


def _classify_dependent_statement(log_probs: StatementLogProbs) -> Classification:
    """Classify the passages of a statement that depends on them."""
    gain_shares = [
        max(pair) / log_probs.gain
        for pair in zip(log_probs.necessity, log_probs.sufficiency, strict=True)
    ]
    sides = [_compare(share, MIN_GAIN_SHARE, GAIN_SHARE_MARGIN) for share in gain_shares]
    if not any(side > 0 for side in sides):
        reason = (
            "the statement depends on the passages, but no single passage clearly explains "
            f"{MIN_GAIN_SHARE:.0%} of the gain: the largest share is {max(gain_shares):.0%}"
        )
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
