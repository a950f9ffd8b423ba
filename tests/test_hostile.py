"""What is drawn to be hostile is right or refused in a line: 28 comparisons a day, 470 with `make slow`."""

from collections import Counter

import pytest

import hostile


@pytest.mark.parametrize(("kind", "number"), hostile.cases(28, seed=0))
def test_a_few_comparisons(kind, number, tmp_path):
    hostile.outcome(kind, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_comparisons(seed, tmp_path):
    counted = Counter()
    for kind, number in hostile.cases(156, seed):
        place = tmp_path / f"{kind} {number}"
        place.mkdir()
        counted[hostile.outcome(kind, number, place)] += 1
    assert counted["right"] > counted["refused"], counted
