import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.functional import compute_removal_steps, top_overlap, top_tau
from hf_attnprobe.functional.rank import (
    compute_chance_of_agreement,
    dense_rank,
    gini_correlation,
    kendall_tau_b,
    r_precision,
    select_heaviest,
)


def tensor(rows):
    return torch.tensor(np.array(rows, dtype=np.float64))


@st.composite
def pairs(draw):
    """Two vectors of one length, often with ties, with some padding behind them."""
    n = draw(st.integers(2, 45))
    n_pad = draw(st.integers(0, 5))
    n_values = draw(st.sampled_from([2, 4, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    x = rng.integers(0, n_values, n) / 7
    y = np.where(rng.random(n) < draw(st.floats(0, 1)), x, rng.integers(0, n_values, n) / 3)
    return x, y, n_pad


@settings(max_examples=300)
@given(pairs())
def test_equals_scipy(pair):
    x, y, n_pad = pair
    mask = torch.arange(len(x) + n_pad)[None] < len(x)
    ours = kendall_tau_b(tensor([[*x, *range(n_pad)]]), tensor([[*y, *range(n_pad)]]), mask)
    theirs = scipy.stats.kendalltau(x, y)
    assert ours.tau.item() == pytest.approx(theirs.statistic, abs=1e-12, nan_ok=True)
    assert ours.p_value.item() == pytest.approx(theirs.pvalue, rel=1e-9, abs=1e-12, nan_ok=True)


def test_p_value_at_the_ends_of_the_exact_range():
    lengths = (2, 3, 4, 5, 33, 34, 60, 171, 200)
    for n, n_swaps, sign in itertools.product(lengths, (0, 1, 2), (1, -1)):
        x, y = np.arange(n), np.arange(n)
        for k in range(n_swaps):
            place = (2 * k) % (n - 1)
            y[[place, place + 1]] = y[[place + 1, place]]
        ours = kendall_tau_b(tensor([x]), tensor([sign * y]), torch.ones(1, n).bool())
        theirs = scipy.stats.kendalltau(x, sign * y).pvalue
        assert ours.p_value.item() == pytest.approx(theirs, rel=1e-8, abs=1e-300), (n, n_swaps)


def test_undefined_where_there_is_nothing_to_rank():
    x = tensor([[1, 1, 1], [1, 2, 3], [1, 2, 3]])
    y = tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    mask = torch.tensor([[True] * 3, [True, False, False], [False] * 3])
    found = kendall_tau_b(x, y, mask)
    assert found.tau.isnan().all() and found.p_value.isnan().all()


def test_dense_rank_shares_ranks_within_the_tolerance():
    values = tensor([[0.3, 0.1, 0.1 + 1e-15, 0.2, 99.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    assert dense_rank(values, mask)[0, :4].tolist() == [3, 0, 1, 2]
    assert dense_rank(values, mask, atol=1e-14)[0, :4].tolist() == [2, 0, 0, 1]


@given(pairs())
def test_dense_rank_without_tolerance_is_scipys(pair):
    x, _, n_pad = pair
    mask = torch.arange(len(x) + n_pad)[None] < len(x)
    ours = dense_rank(tensor([[*x, *range(n_pad)]]), mask)[0, : len(x)]
    np.testing.assert_array_equal(ours.numpy() + 1, scipy.stats.rankdata(x, method="dense"))


def test_chance_of_agreement_counts_permutations():
    """Of all orders, those that SciPy finds significantly like a given one."""
    for n in range(2, 8):
        by_inversions = {}  # which are all that τ depends on
        for order in itertools.permutations(range(n)):
            inverted = sum(a > b for a, b in itertools.combinations(order, 2))
            if inverted not in by_inversions:
                found = scipy.stats.kendalltau(range(n), order)
                by_inversions[inverted] = [0, found.pvalue <= 0.05 and found.statistic > 0]
            by_inversions[inverted][0] += 1
        agree = sum(count for count, is_alike in by_inversions.values() if is_alike)
        chance = compute_chance_of_agreement(torch.tensor(n)).item()
        assert chance == pytest.approx(agree / math.factorial(n), abs=1e-15)
    assert compute_chance_of_agreement(torch.tensor([0, 1])).tolist() == [0, 0]


@pytest.mark.parametrize("n", [33, 34])  # the last exact p-value, the first approximate one
def test_chance_of_agreement_is_what_random_orders_give(n):
    rng = np.random.default_rng(n)
    x = torch.arange(n, dtype=torch.float64).expand(40_000, n)
    y = torch.from_numpy(rng.random((40_000, n)))
    found = kendall_tau_b(x, y, torch.ones_like(x).bool())
    share = ((found.p_value <= 0.05) & (found.tau > 0)).double().mean().item()
    chance = compute_chance_of_agreement(torch.tensor([n])).item()
    assert share == pytest.approx(chance, abs=0.002 + 3 * (chance / 40_000) ** 0.5)


def test_a_tolerance_for_each_row():
    values = tensor([[1.0, 1.1, 2.0]] * 2)
    found = dense_rank(values, torch.ones(2, 3).bool(), atol=tensor([[0.0], [0.5]]))
    assert found.tolist() == [[0, 1, 2], [0, 0, 1]]


# Agreement by importance, the heaviest tokens and precision, each against a plain loop


@st.composite
def ranked_values(draw):
    """Values and an order of some tokens, both with ties, behind them some padding."""
    n, n_pad = draw(st.integers(1, 9)), draw(st.integers(0, 4))
    of_few = st.lists(st.integers(0, 3), min_size=n, max_size=n)
    values, order = np.array(draw(of_few)) / 8, np.array(draw(of_few)) / 5
    return values, order, n_pad


def padded(values, n_pad, filler):
    return torch.tensor(np.append(values, np.full(n_pad, filler)))


def mask_of(values, n_pad):
    return torch.arange(len(values) + n_pad) < len(values)


@settings(max_examples=200)
@given(ranked_values())
def test_gini_correlation_is_tau_with_every_pair_weighted_by_its_difference(case):
    values, order, n_pad = case
    agree, most = 0.0, 0.0
    for i, j in itertools.combinations(range(len(values)), 2):
        apart = values[i] - values[j]
        agree += apart * np.sign(order[i] - order[j])
        most += abs(apart)
    found = gini_correlation(
        padded(values, n_pad, 9.0), padded(order, n_pad, 7.0), mask_of(values, n_pad)
    ).item()
    if most == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(agree / most, abs=1e-12)


@settings(max_examples=200)
@given(ranked_values(), st.sampled_from([0.25, 0.5, 0.9]))
def test_the_heaviest_are_the_fewest_tokens_that_hold_the_share(case, share):
    values, _, n_pad = case
    mask = mask_of(values, n_pad)
    chosen = select_heaviest(padded(values, n_pad, 9.0), mask, share)
    assert not chosen[~mask].any()
    chosen = chosen[mask].numpy()
    if values.sum() == 0:
        assert not chosen.any()
        return
    wanted = share * values.sum()
    sizes = [
        size
        for size in range(1, len(values) + 1)
        for held in itertools.combinations(values, size)
        if sum(held) >= wanted - 1e-12
    ]
    assert values[chosen].sum() >= wanted - 1e-12
    assert chosen.sum() == min(sizes)


@settings(max_examples=200)
@given(ranked_values(), st.data())
def test_precision_is_the_mean_over_all_ways_to_break_ties(case, data):
    _, order, n_pad = case
    n = len(order)
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    wanted = np.array(data.draw(flags))
    k = int(wanted.sum())
    found = r_precision(
        padded(order, n_pad, 7.0), torch.tensor([*wanted, *[True] * n_pad]), mask_of(order, n_pad)
    ).item()
    if k == 0:
        assert np.isnan(found)
        return
    best = sorted(order, reverse=True)[:k]
    ways = [
        wanted[list(top)].mean()
        for top in itertools.combinations(range(n), k)
        if sorted(order[list(top)], reverse=True) == best
    ]
    assert found == pytest.approx(np.mean(ways), abs=1e-12)


# The first k, against every way to break ties and the four cases of Fagin et al.


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


@settings(max_examples=60)
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


@settings(max_examples=60)
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
    found = compute_removal_steps(n_units, n_steps).T.tolist()
    for n, steps in zip(n_units.tolist(), found, strict=True):
        shares = [s / n_steps for s in range(1, n_steps + 1)] or [s / n for s in range(1, n)]
        expected = {
            min(next(m for m in range(n + 1) if m / n >= share - 1e-12), n - 1) for share in shares
        } or {0}
        assert set(steps) == expected and steps == sorted(steps)


def test_large_texts_are_compared_in_parts(monkeypatch):
    """The result is that of SciPy, whatever the number of pairs that are stored at a time."""
    generator = np.random.default_rng(0)
    values = torch.from_numpy(generator.integers(0, 12, size=(2, 2, 40)).astype(float))
    mask = torch.arange(40) < torch.tensor([[40], [25]])
    monkeypatch.setattr("hf_attnprobe.functional.rank.MAX_PAIRS_IN_MEMORY", 300)
    found = kendall_tau_b(values[:, 0], values[:, 1], mask)
    for row, n in enumerate((40, 25)):
        expected = scipy.stats.kendalltau(*values[row, :, :n], method="asymptotic")
        assert found.tau[row].item() == pytest.approx(expected.statistic)
        assert found.p_value[row].item() == pytest.approx(expected.pvalue)
