"""Generated bad inputs end in a result that is the model's own, in one line or in a usage error, whatever they are."""

import faulthandler
from collections import Counter

import pytest
from bad_inputs import KINDS, SECONDS, outcome, placed
from hypothesis import HealthCheck, Phase, given, settings
from plausible_inputs import PLAUSIBLE


# Readers of datasets and pandas leave a file open where they give up on it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SLOW_CASES, FAST_CASES = 200, 12
"""Of each kind; of the plausible ones 600 slow ones, 3,000 together."""


def check(kind, models, n_cases):
    """Runs generated cases of a kind; how many ended in what."""
    counts = Counter()

    @settings(
        max_examples=n_cases,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given({**KINDS, **PLAUSIBLE}[kind])
    def keeps_to_it(case):
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # stuck in C
        ended, wrong = outcome(placed(case, models), models)
        faulthandler.cancel_dump_traceback_later()
        counts[ended] += 1
        assert wrong is None, f"{case.say}\n{wrong}"

    keeps_to_it()
    print(kind, dict(counts))
    return counts


@pytest.mark.parametrize("kind", [*KINDS, *PLAUSIBLE])
def test_a_few_generated_bad_inputs(kind, models):
    counts = check(kind, models, FAST_CASES // (2 if kind in PLAUSIBLE else 1))
    assert counts["line"] + counts["usage"]  # some of them are bad


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *PLAUSIBLE])
def test_many_generated_bad_inputs(kind, models):
    n_cases = SLOW_CASES * (3 if kind in PLAUSIBLE else 1)
    counts = check(kind, models, n_cases)
    assert counts.total() >= n_cases * 0.9
    assert counts["line"] + counts["usage"] and counts["result"]
