"""Agreement by importance, the heaviest tokens and precision, each against a plain loop."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.functional.rank import gini_correlation, heaviest, precision


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


@settings(max_examples=200, deadline=None)
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


def test_gini_correlation_is_the_ratio_of_covariances():
    """Schechtman & Yitzhaki 1987."""
    draw = np.random.default_rng(0)
    values, order = draw.exponential(size=(30, 12)), draw.normal(size=(30, 12))
    found = gini_correlation(torch.tensor(values), torch.tensor(order), torch.ones(30, 12).bool())
    for k in range(30):
        by_order = np.cov(values[k], scipy.stats.rankdata(order[k]))[0, 1]
        by_itself = np.cov(values[k], scipy.stats.rankdata(values[k]))[0, 1]
        assert found[k].item() == pytest.approx(by_order / by_itself)


@settings(max_examples=200, deadline=None)
@given(ranked_values(), st.sampled_from([0.25, 0.5, 0.9]))
def test_the_heaviest_are_the_fewest_tokens_that_hold_the_share(case, share):
    values, _, n_pad = case
    mask = mask_of(values, n_pad)
    chosen = heaviest(padded(values, n_pad, 9.0), mask, share)
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


@settings(max_examples=200, deadline=None)
@given(ranked_values(), st.data())
def test_precision_is_the_mean_over_all_ways_to_break_ties(case, data):
    _, order, n_pad = case
    n = len(order)
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    wanted = np.array(data.draw(flags))
    k = int(wanted.sum())
    found = precision(
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


def test_a_batch_is_its_rows():
    draw = torch.Generator().manual_seed(0)
    values, order = torch.rand(2, 6, 8, generator=draw)
    mask = torch.arange(8) < torch.tensor([[8], [5], [2], [1], [7], [3]])
    wanted = heaviest(values, mask)
    together = (gini_correlation(values, order, mask), wanted, precision(order, wanted, mask))
    for row in range(6):
        n = int(mask[row].sum())
        own, by, real = values[row, :n], order[row, :n], mask[row, :n]
        assert torch.equal(wanted[row, :n], heaviest(own, real))
        alone = (
            gini_correlation(own, by, real),
            wanted[row, :n],
            precision(by, wanted[row, :n], real),
        )
        for k in (0, 2):
            torch.testing.assert_close(together[k][row], alone[k], equal_nan=True)
