"""Generated bad inputs end in a result that is the model's own, in one line or in a usage error, whatever they are."""

import faulthandler
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.helpers.bad_inputs import KINDS, SECONDS, outcome


# Readers of datasets and pandas leave a file open where they give up on it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SLOW_CASES, FAST_CASES = 200, 8
"""Of each kind, or as many times as often as it is drawn: 3,400 slow ones together."""


def check(kind, models, n_cases):
    """Runs generated cases of a kind; how many ended in what."""
    counts = Counter()

    @settings(
        max_examples=n_cases, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(KINDS[kind][0])
    def keeps_to_it(case):
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # stuck in C
        ended, wrong = outcome(case, models)
        faulthandler.cancel_dump_traceback_later()
        counts[ended] += 1
        assert wrong is None, f"{case.say}\n{wrong}"

    keeps_to_it()
    print(kind, dict(counts))
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_generated_bad_inputs(kind, models):
    counts = check(kind, models, FAST_CASES)
    assert counts["line"] + counts["usage"]  # some of them are bad


@pytest.fixture(autouse=True)
def _nothing_is_written_elsewhere(tmp_path, monkeypatch):
    """A mangled command may name a folder below the working folder."""
    monkeypatch.chdir(tmp_path)


def test_sixty_mangled_command_lines(models):
    counts = check("commands", models, 60)
    assert counts.total() >= 54 and counts["usage"] and counts["line"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_generated_bad_inputs(kind, models):
    n_cases = SLOW_CASES * KINDS[kind][1]
    counts = check(kind, models, n_cases)
    assert counts.total() >= n_cases * 0.9
    assert counts["line"] + counts["usage"] and counts["result"]
