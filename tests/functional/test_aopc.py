"""Overlap of maps with what matters, and its mean over all placements by trying them all."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe.functional.divergence import (
    distribution_overlap,
    expected_overlap,
    normalise_positive_part,
)


def weights(size):
    return st.lists(st.floats(0.01, 9), min_size=size, max_size=size)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(weights(n), weights(n))))
def test_chance_is_the_mean_over_all_placements(both):
    first, second = (torch.tensor(row, dtype=torch.float64) for row in both)
    first, second = first / first.sum(), second / second.sum()
    mask = torch.ones(len(first), dtype=torch.bool)
    placed = [
        torch.minimum(first[list(order)], second).sum().item()
        for order in itertools.permutations(range(len(first)))
    ]
    expected = sum(placed) / len(placed)
    assert expected_overlap(first, second, mask).item() == pytest.approx(expected, abs=1e-12)


def test_padding_changes_nothing():
    first, second = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.1, 0.1, 0.8]])
    padded = [torch.nn.functional.pad(x, (0, 2)) for x in (first, second)]
    mask = torch.tensor([[True, True, True, False, False]])
    short = expected_overlap(first, second, mask[:, :3])
    torch.testing.assert_close(expected_overlap(*padded, mask), short)
    torch.testing.assert_close(distribution_overlap(*padded), distribution_overlap(first, second))


def test_a_distribution_is_of_what_is_positive():
    found = normalise_positive_part(
        torch.tensor([2.0, -5.0, 2.0, 9.0]), torch.tensor([1, 1, 1, 0]).bool()
    )
    assert found.tolist() == [0.5, 0.0, 0.5, 0.0]
    nothing = normalise_positive_part(torch.tensor([-1.0, 0.0]), torch.ones(2).bool())
    assert nothing.isnan().all()
