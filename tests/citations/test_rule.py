"""The classes of statements with planted log-probabilities."""

import pytest

from hf_attnprobe.citations.rule import (
    MIN_GAIN,
    MIN_LOG_PROB_PER_TOKEN,
    StatementLogProbs,
    UnexpectedSpan,
    Use,
    classify_statement,
)


USED, KNOWN, UNUSED, OTHER, UNDECIDED = (
    Use.USED,
    Use.KNOWN,
    Use.UNUSED,
    Use.OTHER,
    Use.UNDECIDED,
)


@pytest.mark.parametrize(
    ("full", "prior", "without", "alone", "expected"),
    [
        # Only passage 1 contains the fact.
        (-2, -30, [-28, -2, -3], [-3, -29, -30], [USED, OTHER, OTHER]),
        # Both contain it: neither is necessary, and each is sufficient.
        (-2, -30, [-2.1, -1.9, -2], [-3, -4, -30], [USED, USED, OTHER]),
        # Two halves of the fact: both are necessary, and none is sufficient.
        (-2, -30, [-25, -24, -2], [-29, -28, -30], [USED, USED, OTHER]),
        # Without passages, the model would write the same words.
        (-2, -4, [-4, -2, -2], [-2, -4, -4], [KNOWN] * 3),
        # The model would write the statement, but neither knows it nor takes it from a passage.
        (-20, -35, [-20, -20, -20], [-35, -35, -35], [UNDECIDED] * 3),
        # The model would not write the statement, although passage 2 has a similar form.
        (-40, -60, [-40, -58, -40], [-60, -42, -60], [UNUSED] * 3),
        # The gain is close to its threshold.
        (-2, -2 - MIN_GAIN, [-8, -2, -2], [-2, -8, -8], [UNDECIDED] * 3),
        # The share of passage 2 is close to its threshold.
        (-2, -22, [-20, -10, -2], [-3, -22, -22], [USED, UNDECIDED, OTHER]),
    ],
)
def test_planted_log_probabilities_have_the_expected_classes(full, prior, without, alone, expected):
    log_probs = StatementLogProbs(full, prior, tuple(without), tuple(alone), n_tokens=10)
    classification = classify_statement(log_probs)
    assert list(classification.uses) == expected
    assert classification.used_sources == tuple(
        k for k, use in enumerate(expected, 1) if use is USED
    )
    assert classification.reason


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        # The first word of the statement could be another one, but the passages do not change that.
        ([("The", -2.2, 0.1)], KNOWN),
        # The passages make a possible value more likely: the model half knows it.
        ([("Ankara", -2.4, 2.2)], UNDECIDED),
        # The value is possible, but unlikely with and without passages.
        ([("Cheyenne", -3.0, 0.0)], UNDECIDED),
        # The value is unlikely with and without passages.
        ([("The", -0.9, 0.0), ("Dorhol", -20.0, -1.0)], UNUSED),
        # The passages make an unlikely value likely, but other words less likely.
        ([("Dorhol", -6.0, 5.0)], UNDECIDED),
    ],
)
def test_unexpected_spans_decide_if_the_passages_hardly_matter(spans, expected):
    unexpected_spans = tuple(UnexpectedSpan(*span) for span in spans)
    log_probs = StatementLogProbs(-4, -6, (-6,), (-4,), 10, unexpected_spans)
    classification = classify_statement(log_probs)
    assert classification.uses == (expected,)
    assert expected is KNOWN or any(repr(text) in classification.reason for text, *_ in spans)


def test_a_statement_at_the_floor_is_undecided():
    full = 10 * MIN_LOG_PROB_PER_TOKEN
    log_probs = StatementLogProbs(full, full - 30, (full - 30,), (full,), n_tokens=10)
    classification = classify_statement(log_probs)
    assert classification.uses == (UNDECIDED,)
    assert "too close to the limit of -2.3" in classification.reason


def test_a_gain_near_its_limit_is_stated():
    log_probs = StatementLogProbs(-2.0, -9.2, (-9.0,), (-2.1,), 20)
    reason = classify_statement(log_probs).reason
    assert "by 7.2 nats, which is too close to the limit of 6" in reason


def test_the_largest_share_of_the_gain_is_stated_if_no_passage_was_clearly_used():
    log_probs = StatementLogProbs(-2.0, -22.0, (-10.2, -4.0), (-20.0, -19.0), 20)
    classification = classify_statement(log_probs)
    assert classification.uses == (UNDECIDED, UNDECIDED)
    assert "clearly explains 40% of the gain: the largest share is 41%" in classification.reason
