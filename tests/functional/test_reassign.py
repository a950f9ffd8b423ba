"""Weights at other tokens: what stays, what moves, and how likely each order is."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hf_attnprobe.functional.intervention import reassign


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
