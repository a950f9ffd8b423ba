"""Overlap of the first k and τ on their union, against every way to break ties and the four cases of Fagin et al."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.functional import removal_steps, top_overlap, top_tau


PAIRS_OF_LISTS = st.integers(2, 5).flatmap(
    lambda n: st.tuples(
        *(st.lists(st.integers(0, 3), min_size=n, max_size=n) for _ in range(2)), st.integers(1, n)
    )
)


def tops(values, k):
    """The first k of every order of the values that breaks ties one way."""
    places = range(len(values))
    orders = [
        order
        for order in itertools.permutations(places)
        if all(values[a] >= values[b] for a, b in itertools.pairwise(order))
    ]
    return [set(order[:k]) for order in orders]


@settings(max_examples=60, deadline=None)
@given(PAIRS_OF_LISTS)
def test_overlap_is_the_mean_over_all_ways_to_break_ties(case):
    x, y, k = case
    shares = [len(a & b) / k for a in tops(x, k) for b in tops(y, k)]
    found = measured(top_overlap, x, y, k)
    assert found == pytest.approx(sum(shares) / len(shares))


def measured(function, x, y, k):
    """In a batch beside other values, with positions that do not count in between."""
    padded = torch.full((2, 2, 2 * len(x) + 1), 9.0)
    padded[:, 0, 1::2] = torch.tensor([x, y]).float()
    mask = torch.zeros(2, 2 * len(x) + 1, dtype=torch.bool)
    mask[0, 1::2], mask[1] = True, True
    return function(*padded, mask, k)[0].item()


def fagin(x, y, k):
    """K with the penalty ½ over the pairs of the union, case by case, and their number."""
    top_x, top_y = ({i for i in range(len(v)) if rank(v, i) < k} for v in (x, y))
    distance, pairs = 0.0, list(itertools.combinations(sorted(top_x | top_y), 2))
    for i, j in pairs:
        in_x, in_y = {i, j} & top_x, {i, j} & top_y
        if len(in_x) == len(in_y) == 2:
            distance += (x[i] > x[j]) != (y[i] > y[j])
        elif len(in_x) == 2 and len(in_y) == 1:
            (seen,) = in_y
            distance += x[seen] < x[i + j - seen]
        elif len(in_y) == 2 and len(in_x) == 1:
            (seen,) = in_x
            distance += y[seen] < y[i + j - seen]
        elif len(in_x) == 1:  # one of them in each
            distance += 1
        else:
            distance += 0.5
    return distance, len(pairs)


def rank(values, place):
    return sum(value > values[place] for value in values)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(st.permutations(range(n)), st.permutations(range(n)), st.integers(1, n))
    )
)
def test_tau_of_the_union_is_fagins_distance(case):
    x, y, k = case
    distance, n_pairs = fagin(x, y, k)
    found = measured(top_tau, x, y, k)
    if n_pairs:
        assert found == pytest.approx(1 - 2 * distance / n_pairs)
    else:
        assert found != found


@pytest.mark.parametrize("n_steps", [0, 1, 3, 7])
def test_steps_of_removal_leave_one(n_steps):
    n_units = torch.tensor([1, 2, 3, 9])
    found = removal_steps(n_units, n_steps).T.tolist()
    for n, steps in zip(n_units.tolist(), found, strict=True):
        shares = [s / n_steps for s in range(1, n_steps + 1)] or [s / n for s in range(1, n)]
        expected = {
            min(next(m for m in range(n + 1) if m / n >= share - 1e-12), n - 1) for share in shares
        } or {0}
        assert set(steps) == expected and steps == sorted(steps)
