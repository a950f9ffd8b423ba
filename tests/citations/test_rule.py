"""The classes of statements with planted log-probabilities."""

import pytest

from hf_attnprobe.citations.rule import (
    MIN_GAIN,
    MIN_LOG_PROB_PER_TOKEN,
    StatementLogProbs,
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
        # The model knows the fact, even if it follows the wording of passage 1.
        (-2, -4, [-4, -2, -2], [-2, -4, -4], [KNOWN] * 3),
        # The model would write the statement, but neither knows it nor takes it from a passage.
        (-20, -35, [-20, -20, -20], [-35, -35, -35], [UNDECIDED] * 3),
        # The model would not write the statement, although passage 2 has a similar form.
        (-40, -60, [-40, -58, -40], [-60, -42, -60], [UNUSED] * 3),
        # The passages do not matter, and the model does not know the fact.
        (-18, -18, [-18, -18, -18], [-18, -18, -18], [UNUSED] * 3),
        # The passages do not matter, and it is not clear whether the model knows the fact.
        (-10, -11, [-10, -10, -10], [-11, -11, -11], [UNDECIDED] * 3),
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


def test_a_statement_at_the_floor_is_undecided():
    full = 10 * MIN_LOG_PROB_PER_TOKEN
    log_probs = StatementLogProbs(full, full - 30, (full - 30,), (full,), n_tokens=10)
    assert classify_statement(log_probs).uses == (UNDECIDED,)
