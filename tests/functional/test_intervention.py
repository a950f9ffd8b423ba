import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hf_attnprobe.functional.intervention import (
    at_head,
    permute,
    random_permutations,
    reassign,
    uniform,
    zero_out,
)


MASK = torch.tensor([[False, True, True, True, False], [False, True, False, False, False]])
ATTENTION = torch.tensor([[0.0, 0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])


def test_uniform():
    assert uniform(ATTENTION, MASK).tolist() == [
        pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0]),
        [0, 1, 0, 0, 0],
    ]
    assert uniform(ATTENTION, torch.zeros(2, 5, dtype=torch.bool)).equal(ATTENTION)


def test_what_is_held_keeps_its_weight():
    movable = torch.tensor([False, True, True, False, False])
    assert uniform(ATTENTION[:1], movable)[0].tolist() == pytest.approx([0, 0.4, 0.4, 0.2, 0])
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
    assert zero_out(ATTENTION, gone, renormalise=False)[0].tolist() == pytest.approx(
        [0, 0, 0.3, 0.2, 0]
    )


def test_permutations_move_the_visible_positions_and_nothing_else():
    order = random_permutations(MASK[:, None], 50, seed=0, example_ids=(7, 8))[:, :, 0]
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
    order = random_permutations(visible, 200, seed=0, example_ids=(3,))[:, 0]
    places = torch.arange(5)
    for query in range(5):
        seen = visible[0, query]
        assert (order[:, query, ~seen] == places[~seen]).all()
        assert (order[:, query, seen].sort(-1).values == places[seen]).all()
    assert not torch.equal(order[:, 2, :2], order[:, 3, :2])


def test_permutations_are_uniform():
    visible = torch.ones(1, 1, 4, dtype=torch.bool)
    order = random_permutations(visible, 24_000, seed=3, example_ids=(0,))
    counts = Counter(tuple(row.tolist()) for row in order[:, 0, 0])
    assert set(counts) == set(itertools.permutations(range(4)))
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_permutations_depend_on_seed_and_example_alone():
    both = MASK[:, None]
    alone = random_permutations(both[:1, :, :4], 10, seed=0, example_ids=(7,))
    together = random_permutations(both, 10, seed=0, example_ids=(7, 8))
    assert (alone[:, 0] == together[:, 0, :, :4]).all()
    other = random_permutations(both, 10, seed=1, example_ids=(7, 8))
    assert not torch.equal(together, other)
    swapped = random_permutations(both.flip(0), 10, seed=0, example_ids=(8, 7))
    assert torch.equal(swapped.flip(1), together)


def test_at_head_replaces_one_head_or_one_row_of_it():
    attention, new = torch.rand(2, 3, 4, 4), torch.rand(5, 2, 4, 4)
    edited = at_head(attention, 1, None, new)
    assert torch.equal(edited[:, :, 1], new)
    assert torch.equal(edited[:, :, [0, 2]], attention[:, [0, 2]].expand(5, 2, 2, 4, 4))
    row = at_head(attention, 1, 2, new)
    assert torch.equal(row[:, :, 1, 2], new[:, :, 2])
    assert torch.equal(row[:, :, 1, [0, 1, 3]], attention[:, 1, [0, 1, 3]].expand(5, 2, 3, 4))


# Weights at other tokens: what stays, what moves, and how likely each order is


def rows_of(n_texts, n_heads, n_queries, movable, seed=0):
    """Random attention to what is movable, and to a first token that is not."""
    n_keys = movable.shape[-1]
    draw = torch.Generator().manual_seed(seed)
    size = (n_texts, n_heads, n_queries, n_keys)
    weights = torch.rand(size, generator=draw, dtype=torch.float64)
    sees = movable.clone()
    sees[..., 0] = True
    weights = weights * sees[:, None]
    return weights / weights.sum(-1, keepdim=True)


def causal(n_texts, n_keys, lengths):
    """What each query sees of the content behind a first special token."""
    real = torch.arange(n_keys) < torch.tensor(lengths)[:, None]
    real[:, 0] = False
    order = torch.ones(n_keys, n_keys, dtype=torch.bool).tril()
    return real[:, None] & order.expand(n_texts, -1, -1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**40))
def test_a_row_keeps_its_weights_and_what_cannot_move_stays(lengths, seed):
    n, ids = len(lengths), tuple(range(len(lengths)))
    for movable in (causal(n, 9, lengths), causal(n, 9, lengths)[:, -1:]):
        before = rows_of(n, 2, movable.shape[1], movable)
        after = reassign(before, movable, seed=seed, example_ids=ids)
        fixed = ~movable[:, None].expand_as(before)
        assert torch.equal(after[fixed], before[fixed])
        assert torch.equal(after.sort(-1).values, before.sort(-1).values)
        torch.testing.assert_close(after.sum(-1), before.sum(-1))


def test_heads_and_rows_that_see_the_same_are_shuffled_alike():
    movable = (torch.arange(7) > 0).expand(1, 3, 7).clone()
    movable[:, 2, 6] = False
    before = torch.arange(2 * 3 * 7).reshape(1, 2, 3, 7).double()
    after = reassign(before, movable, seed=1, example_ids=(0,))
    orders = after - before[..., :1]
    assert torch.equal(orders[0, 0, 0], orders[0, 1, 0])
    assert torch.equal(orders[0, 0, 0], orders[0, 0, 1])
    # A row that sees less takes the rest in the same order.
    seen = [x for x in orders[0, 0, 0, 1:].tolist() if x != 6]
    assert [x for x in orders[0, 0, 2, 1:6].tolist() if x != 6] == seen


def test_padding_batch_and_neighbours_change_nothing():
    lengths, ids = [5, 3, 8], (11, 4, 7)
    movable = causal(3, 8, lengths)
    before = rows_of(3, 2, 8, movable)
    together = reassign(before, movable, seed=9, example_ids=ids)
    for k, n in enumerate(lengths):
        own = slice(k, k + 1)
        alone = reassign(before[own, :, :n, :n], movable[own, :n, :n], seed=9, example_ids=ids[own])
        assert torch.equal(together[own, :, :n, :n], alone)
    backwards = reassign(before.flip(0), movable.flip(0), seed=9, example_ids=ids[::-1])
    assert torch.equal(backwards.flip(0), together)
    left = torch.nn.functional.pad
    shifted = reassign(left(before, (2, 0)), left(movable, (2, 0)), seed=9, example_ids=ids)
    assert torch.equal(shifted[..., 2:], together)


def test_seeds_and_texts_draw_by_themselves():
    movable = torch.ones(2, 1, 12, dtype=torch.bool)
    before = torch.rand(1, 1, 1, 12).expand(2, -1, -1, -1)

    def drawn(seed):
        return reassign(before, movable, seed=seed, example_ids=(0, 1))

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    assert not torch.equal(drawn(0)[0], drawn(0)[1])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_all_orders_are_equally_likely(n):
    n_texts = 400 * math.factorial(n)
    movable = (torch.arange(n + 2) < n).expand(n_texts, 1, -1)
    before = torch.arange(n + 2.0).expand(n_texts, 1, 1, -1)
    after = reassign(before, movable, seed=0, example_ids=range(n_texts))
    counts = Counter(tuple(row) for row in after[:, 0, 0, :n].tolist())
    orders = [*itertools.permutations(map(float, range(n)))]
    assert {*counts} == {*orders}
    assert chisquare([counts[order] for order in orders]).pvalue > 1e-3


def test_a_row_that_sees_less_has_all_orders_of_what_it_sees():
    n_texts = 3000
    movable = torch.ones(1, 5, 5, dtype=torch.bool).tril().expand(n_texts, -1, -1)
    before = torch.arange(5.0).expand(n_texts, 1, 5, 5) * movable[:, None]
    after = reassign(before, movable, seed=0, example_ids=range(n_texts))
    counts = Counter(tuple(row) for row in after[:, 0, 2, :3].tolist())
    assert len(counts) == 6 and chisquare([*counts.values()]).pvalue > 1e-3
