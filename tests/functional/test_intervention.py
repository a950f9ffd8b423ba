import itertools
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from hf_attnprobe.functional.intervention import (
    draw_permutations,
    make_uniform,
    permute,
    replace_head,
    zero_out,
)


MASK = torch.tensor([[False, True, True, True, False], [False, True, False, False, False]])
ATTENTION = torch.tensor([[0.0, 0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])


def test_uniform():
    assert make_uniform(ATTENTION, MASK).tolist() == [
        pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0]),
        [0, 1, 0, 0, 0],
    ]
    assert make_uniform(ATTENTION, torch.zeros(2, 5, dtype=torch.bool)).equal(ATTENTION)


def test_what_is_held_keeps_its_weight():
    movable = torch.tensor([False, True, True, False, False])
    assert make_uniform(ATTENTION[:1], movable)[0].tolist() == pytest.approx([0, 0.4, 0.4, 0.2, 0])
    gone = torch.tensor([False, True, False, False, False])
    erased = zero_out(ATTENTION, gone, movable=movable)
    assert erased[0].tolist() == pytest.approx([0, 0, 0.8, 0.2, 0])
    assert erased[1].sum() == 0


def test_zero_out():
    gone = torch.tensor([[False, True, False, False, False]] * 2)
    assert zero_out(ATTENTION, gone).tolist() == [
        pytest.approx([0, 0, 0.6, 0.4, 0]),
        [0, 0, 0, 0, 0],
    ]
    expected = [0, 0, 0.3, 0.2, 0]
    assert zero_out(ATTENTION, gone, renormalise=False)[0].tolist() == pytest.approx(expected)


def test_permutations_move_the_visible_positions_and_nothing_else():
    order = draw_permutations(MASK[:, None], 50, seed=0, example_ids=(7, 8))[:, :, 0]
    assert order.shape == (50, 2, 5)
    assert (order.sort(-1).values == torch.arange(5)).all()
    assert (order[:, ~MASK] == torch.arange(5).expand(2, 5)[~MASK]).all()
    shuffled = permute(ATTENTION, order)
    assert (shuffled[:, ~MASK] == 0).all()
    assert torch.allclose(shuffled.sort(-1).values, ATTENTION.sort(-1).values.expand(50, 2, 5))
    assert len({tuple(row.tolist()) for row in order[:, 0]}) == 6  # all 3! occur among 50


def test_causal_rows_are_shuffled_within_what_they_see_and_each_on_its_own():
    visible = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    visible[:, :, 4] = visible[:, 4] = False  # the last position is padding
    order = draw_permutations(visible, 200, seed=0, example_ids=(3,))[:, 0]
    places = torch.arange(5)
    for query in range(5):
        seen = visible[0, query]
        assert (order[:, query, ~seen] == places[~seen]).all()
        assert (order[:, query, seen].sort(-1).values == places[seen]).all()
    assert not torch.equal(order[:, 2, :2], order[:, 3, :2])


def test_permutations_are_uniform():
    visible = torch.ones(1, 1, 4, dtype=torch.bool)
    order = draw_permutations(visible, 24_000, seed=3, example_ids=(0,))
    counts = Counter(tuple(row.tolist()) for row in order[:, 0, 0])
    assert set(counts) == set(itertools.permutations(range(4)))
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_permutations_depend_on_seed_and_example_alone():
    both = MASK[:, None]
    alone = draw_permutations(both[:1, :, :4], 10, seed=0, example_ids=(7,))
    together = draw_permutations(both, 10, seed=0, example_ids=(7, 8))
    assert (alone[:, 0] == together[:, 0, :, :4]).all()
    other = draw_permutations(both, 10, seed=1, example_ids=(7, 8))
    assert not torch.equal(together, other)
    swapped = draw_permutations(both.flip(0), 10, seed=0, example_ids=(8, 7))
    assert torch.equal(swapped.flip(1), together)


def test_at_head_replaces_one_head_or_one_row_of_it():
    attention, new = torch.rand(2, 3, 4, 4), torch.rand(5, 2, 4, 4)
    edited = replace_head(attention, 1, None, new)
    assert torch.equal(edited[:, :, 1], new)
    assert torch.equal(edited[:, :, [0, 2]], attention[:, [0, 2]].expand(5, 2, 2, 4, 4))
    row = replace_head(attention, 1, 2, new)
    assert torch.equal(row[:, :, 1, 2], new[:, :, 2])
    assert torch.equal(row[:, :, 1, [0, 1, 3]], attention[:, 1, [0, 1, 3]].expand(5, 2, 3, 4))
