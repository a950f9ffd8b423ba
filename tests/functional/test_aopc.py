"""Erasure curves and their bounds against all T! orders, counted one by one."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.functional import aopc
from hf_attnprobe.functional.erasure import removal_order, removal_rank


def set_function(seed, n_units, n_texts=1):
    """A random drop for every set, [2^units, texts]; 0 without any unit."""
    drops = (
        torch.rand(
            2**n_units, n_texts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        - 0.3
    )
    drops[0] = 0
    return drops


def all_orders(drops, n_units):
    """AOPC of every order, from the definition."""
    found = []
    for order in itertools.permutations(range(n_units)):
        numbers = itertools.accumulate(1 << unit for unit in order)
        found.append(sum(drops[number].item() for number in numbers) / n_units)
    return found


def test_exact_bounds_are_those_of_all_orders():
    """Texts of one to six units in one table."""
    lengths = torch.arange(1, 7).repeat(3)
    drops = set_function(0, 6, len(lengths))
    bounds = torch.stack(aopc.chain_bounds(drops, lengths), 1)
    for text, n_units in enumerate(lengths.tolist()):
        found = all_orders(drops[:, text], n_units)
        expected = [min(found), max(found)]
        assert bounds[text].tolist() == pytest.approx(expected, abs=1e-12)


def lookup(drops, positions):
    """The set function of one text, over its positions."""

    def drop(sets):
        numbers = (sets[:, 0][:, positions].long() << torch.arange(len(positions))).sum(-1)
        return drops[numbers]

    return drop


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10**6), st.integers(1, 4))
def test_a_beam_finds_orders_and_a_wide_one_the_best(n_units, seed, width):
    drops, positions = set_function(seed, n_units), list(range(1, n_units + 1))
    content = torch.zeros(1, n_units + 2, dtype=torch.bool)
    content[0, positions] = True
    found, exact = (
        all_orders(drops[:, 0], n_units),
        aopc.chain_bounds(drops, torch.tensor([n_units])),
    )
    lower, upper = aopc.beam_bounds(lookup(drops, positions), content, width)
    assert exact[0] - 1e-12 <= lower <= upper + 1e-12 <= exact[1] + 2e-12
    for bound in (lower, upper):
        assert min(abs(bound.item() - x) for x in found) < 1e-12  # it is the value of an order
    wide = aopc.beam_bounds(lookup(drops, positions), content, math.comb(n_units, n_units // 2))
    assert torch.allclose(torch.stack(wide), torch.stack(exact), atol=1e-12)


def test_a_beam_of_several_texts_is_that_of_each():
    drops = set_function(4, 5, 2)
    content = torch.tensor(
        [[False, True, True, False, True, False], [True, True, True, True, True, False]]
    )
    units = [row.nonzero()[:, 0] for row in content]

    def drop(sets):
        numbers = [
            (sets[:, t][:, u].long() << torch.arange(len(u))).sum(-1) for t, u in enumerate(units)
        ]
        return torch.stack([drops[n, t] for t, n in enumerate(numbers)], dim=1)

    together = aopc.beam_bounds(drop, content, 2)
    for text, u in enumerate(units):
        alone = aopc.beam_bounds(lookup(drops[:, text : text + 1], u), content[text : text + 1], 2)
        assert [x[text].item() for x in together] == pytest.approx(
            [x[0].item() for x in alone], abs=1e-12
        )


@given(st.integers(1, 400))
def test_counts_are_rounded_up(n_units):
    counts = aopc.removal_counts(torch.tensor([n_units]))[:, 0].tolist()
    assert counts == [math.ceil(n_units * p / 100 - 1e-9) for p in (1, 5, 10, 20, 50)]
    assert min(counts) >= 1


def test_order_is_by_score_then_by_place_and_knows_no_padding():
    scores = torch.tensor([[9.0, 1.0, 3.0, 3.0, 2.0, 9.0]])
    content = torch.tensor([[False, True, True, True, True, False]])
    assert removal_rank(scores, content)[0, 1:5].tolist() == [3, 0, 1, 2]
    assert removal_order(scores, content)[0, :4].tolist() == [2, 3, 4, 1]
    longer = removal_rank(
        torch.nn.functional.pad(scores, (2, 0)), torch.nn.functional.pad(content, (2, 0))
    )
    assert longer[0, 3:7].tolist() == [3, 0, 1, 2]


def test_equal_sets_of_one_text_have_one_number():
    sets = torch.rand(40, 3, 70, generator=torch.Generator().manual_seed(0)) < 0.5
    sets[7], sets[9, 1] = sets[3], sets[3, 0]
    numbers = aopc.same_sets(sets)
    assert torch.equal(numbers[7], numbers[3]) and numbers[9, 1] != numbers[3, 0]
    assert len(numbers.unique()) == 39 * 3


def test_normalised_is_a_share_of_the_span():
    found = aopc.normalised(
        torch.tensor([0.25, 0.0, 1.0, 0.5, 0.3]),
        torch.tensor([0.0, 0.0, 0.0, 0.5, 0.4]),
        torch.tensor([0.5, 0.5, 0.5, 0.5, 0.6]),
    )
    assert found[:3].tolist() == [0.5, 0.0, 1.0] and found[3].isnan() and found[4] == 0.0
