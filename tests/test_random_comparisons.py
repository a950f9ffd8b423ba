"""What is drawn to be hostile is right or refused in a line: 28 comparisons a day, 470 with `make slow`."""

from collections import Counter

import pytest

from tests.helpers import random_comparisons


@pytest.mark.parametrize(("kind", "number"), random_comparisons.cases(28, seed=0))
def test_a_few_comparisons(kind, number, tmp_path):
    random_comparisons.outcome(kind, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_comparisons(seed, tmp_path):
    counted = Counter()
    for kind, number in random_comparisons.cases(156, seed):
        place = tmp_path / f"{kind} {number}"
        place.mkdir()
        counted[random_comparisons.outcome(kind, number, place)] += 1
    assert counted["right"] > counted["refused"], counted
