"""What is drawn to be hostile is right or refused in a line: 60 comparisons a day, 1,000 with `make slow`."""

from collections import Counter

import pytest

import hostile


@pytest.fixture(scope="module")
def outcomes():
    counted = Counter()
    yield counted
    right = sum(n for (_, what), n in counted.items() if what == "right")
    assert right >= 0.4 * counted.total(), counted


@pytest.mark.parametrize(("kind", "number"), hostile.cases(60, seed=0))
def test_sixty_comparisons(kind, number, outcomes, tmp_path):
    outcomes[kind, hostile.outcome(kind, number, tmp_path)] += 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_comparisons(seed, tmp_path):
    for kind, number in hostile.cases(334, seed):
        place = tmp_path / f"{kind} {number}"
        place.mkdir()
        hostile.outcome(kind, number, place)
