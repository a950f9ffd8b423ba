"""Relations of two heads, from effects whose relation is known."""

import numpy as np
import pytest

from hf_attnprobe.statistics.head_pairs import find_head_pairs


HEADS = [(0, 1), (2, 3), (4, 0)]


def draw_effects(means, without_other, n=40, spread=0.02):
    """Draw effects of three heads around their means.

    Args:
        means: Mean effect of each head.
        without_other: Maps (i, j) to the mean effect of head i without head j, if it differs from
            the effect of head i.
        n: Number of texts.
        spread: Standard deviation over texts.
    """
    generator = np.random.default_rng(0)
    effects = generator.normal(means, spread, (n, 3))
    matrix = np.repeat(np.array(means)[:, None], 3, axis=1)
    for (i, j), mean in without_other.items():
        matrix[i, j] = mean
    conditional = generator.normal(matrix, spread, (n, 3, 3))
    conditional[:, range(3), range(3)] = np.nan
    return effects, conditional


def find_relations(means, without_other, **options):
    pairs = find_head_pairs(HEADS, *draw_effects(means, without_other, **options)).pairs
    return {(pair.first, pair.second): pair.relation for pair in pairs}


def test_independent_heads_are_no_pair():
    assert find_relations([0.3, 0.2, 0.0], {}) == {}


def test_substitutes():
    without_other = {(0, 1): 0.4, (1, 0): 0.4}
    assert find_relations([0.0, 0.0, 0.3], without_other) == {(HEADS[0], HEADS[1]): "substitutes"}


def test_heads_that_work_together():
    without_other = {(1, 2): 0.0, (2, 1): 0.01}
    assert find_relations([0.1, 0.5, 0.3], without_other) == {(HEADS[1], HEADS[2]): "together"}


@pytest.mark.parametrize(
    ("means", "without_other"),
    [
        ([0.0, 0.0, 0.0], {(0, 1): 0.02, (1, 0): 0.02}),  # too small
        ([0.0, 0.0, 0.0], {(0, 1): 0.4}),  # only one of them
        ([0.5, 0.4, 0.0], {(0, 1): 0.2, (1, 0): 0.2}),  # half of the effect remains
        ([0.02, 0.02, 0.0], {(0, 1): 0.0, (1, 0): 0.0}),  # no effect alone
    ],
)
def test_weak_relations_are_not_named(means, without_other):
    assert find_relations(means, without_other, spread=0.001) == {}


def test_uncertain_relations_are_not_named():
    without_other = {(0, 1): 0.2, (1, 0): 0.2}
    assert find_relations([0.0, 0.0, 0.0], without_other, spread=0.02)
    assert find_relations([0.0, 0.0, 0.0], without_other, spread=1.0) == {}
    assert find_relations([0.0, 0.0, 0.0], without_other, n=29) == {}


def test_effects_are_means_over_texts():
    effects, conditional = draw_effects([0.0, 0.0, 0.3], {(0, 1): 0.4, (1, 0): 0.5})
    [pair] = find_head_pairs(HEADS, effects, conditional).pairs
    assert pair.effects == pytest.approx(effects.mean(0)[:2])
    expected = conditional[:, 0, 1].mean(), conditional[:, 1, 0].mean()
    assert pair.effects_without_other == pytest.approx(expected)
