import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.functional.rank import chance_of_agreement, dense_rank, kendall_tau_b


def tensor(rows):
    return torch.tensor(np.array(rows, dtype=np.float64))


@st.composite
def pairs(draw):
    """Two vectors of one length, often with ties, with some padding behind them."""
    n, n_pad, n_values = (
        draw(st.integers(2, 45)),
        draw(st.integers(0, 5)),
        draw(st.sampled_from([2, 4, 1000])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    x = rng.integers(0, n_values, n) / 7
    y = np.where(rng.random(n) < draw(st.floats(0, 1)), x, rng.integers(0, n_values, n) / 3)
    return x, y, n_pad


@settings(max_examples=300, deadline=None)
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


def test_a_batch_equals_its_rows():
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(2, 20, 30)))
    mask = torch.from_numpy(rng.random((20, 30)) < 0.7)
    together = kendall_tau_b(x, y, mask)
    for row in range(20):
        alone = kendall_tau_b(x[row : row + 1], y[row : row + 1], mask[row : row + 1])
        assert alone.tau.item() == together.tau[row].item()
        theirs = scipy.stats.kendalltau(x[row][mask[row]], y[row][mask[row]])
        assert alone.tau.item() == pytest.approx(theirs.statistic, abs=1e-12)


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
        chance = chance_of_agreement(torch.tensor(n)).item()
        assert chance == pytest.approx(agree / math.factorial(n), abs=1e-15)
    assert chance_of_agreement(torch.tensor([0, 1])).tolist() == [0, 0]


@pytest.mark.parametrize("n", [33, 34])  # the last exact p-value, the first approximate one
def test_chance_of_agreement_is_what_random_orders_give(n):
    rng = np.random.default_rng(n)
    x = torch.arange(n, dtype=torch.float64).expand(40_000, n)
    y = torch.from_numpy(rng.random((40_000, n)))
    found = kendall_tau_b(x, y, torch.ones_like(x).bool())
    share = ((found.p_value <= 0.05) & (found.tau > 0)).double().mean().item()
    chance = chance_of_agreement(torch.tensor([n])).item()
    assert share == pytest.approx(chance, abs=0.002 + 3 * (chance / 40_000) ** 0.5)


def test_a_tolerance_for_each_row():
    values = tensor([[1.0, 1.1, 2.0]] * 2)
    found = dense_rank(values, torch.ones(2, 3).bool(), atol=tensor([[0.0], [0.5]]))
    assert found.tolist() == [[0, 1, 2], [0, 0, 1]]
