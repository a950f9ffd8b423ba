"""Attribution by sets of units, against orders, optimality conditions and SciPy."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import spearmanr

from benchmarks.language import of_text, ridge
from hf_attnprobe.functional.aopc import enumerate_subsets
from hf_attnprobe.functional.attribution import (
    compute_logit,
    find_smallest_set_size,
    fit_lasso,
    shapley_values,
    spearman,
)
from tests.helpers import tiny_models


@pytest.mark.parametrize("n_units", [1, 2, 5])
def test_shapley_values_are_means_over_all_orders(n_units):
    drops = tiny_models.drawn(2**n_units, 3)
    expected = np.zeros((3, n_units))
    orders = list(permutations(range(n_units)))
    for order in orders:
        gone = 0
        for unit in order:
            expected[:, unit] += (drops[gone | 1 << unit] - drops[gone]).numpy()
            gone |= 1 << unit
    found = shapley_values(drops)
    np.testing.assert_allclose(found, expected / len(orders), atol=1e-12)
    torch.testing.assert_close(found.sum(-1), drops[-1] - drops[0])


def test_a_unit_that_is_not_there_has_no_value():
    drops = tiny_models.drawn(2**3, 2)
    padded = torch.cat([drops, drops])  # a fourth bit that changes nothing
    torch.testing.assert_close(shapley_values(padded)[:, :3], shapley_values(drops))
    assert shapley_values(padded)[:, 3].abs().max() < 1e-12


def test_the_smallest_set_is_found_among_all():
    holds = tiny_models.drawn(2**4, 6, seed=3) > 1.0
    holds[:, 0] = False
    found = find_smallest_set_size(holds)
    for text in range(holds.shape[1]):
        units = [np.flatnonzero(row) for row in enumerate_subsets(4).numpy()]
        sizes = [len(units[k]) for k in range(16) if holds[k, text]]
        assert found[text] == min(sizes) if sizes else found[text].isnan()


def test_the_lasso_meets_the_conditions_of_its_minimum():
    """Of the standardised problem: |slope| is the penalty where a weight is not 0, else less."""
    kept = tiny_models.drawn(64, 9, seed=1) > 0
    kept[:, 4] = True
    outputs = kept.double() @ torch.tensor([3.0, 0, 0, -1, 5, 0, 0.01, 0, 0.5]).double()
    outputs = outputs + 0.1 * tiny_models.drawn(64, seed=2)
    found = fit_lasso(kept, outputs, penalty=0.05)
    scale = kept.double().std(0, unbiased=False)
    assert found[4] == 0
    columns = (kept.double() - kept.double().mean(0)) / scale.where(scale > 0, 1)
    left = outputs - outputs.mean() - columns @ (found * scale)
    slope = columns.T @ left / 64
    moved = found != 0
    torch.testing.assert_close(slope[moved], 0.05 * found[moved].sign(), atol=1e-9, rtol=0)
    assert slope[~moved].abs().max() <= 0.05
    assert moved[[0, 3, 8]].all() and not moved.all()


def test_ridge_is_the_minimum_that_a_search_finds():
    columns, outputs, penalty = tiny_models.drawn(40, 3, seed=4), tiny_models.drawn(40, seed=5), 0.3
    scale = columns.square().mean(0).sqrt().numpy()

    def loss(weights):
        left = outputs.numpy() - columns.numpy() @ weights
        return (left**2).mean() + penalty * ((weights * scale) ** 2).sum()

    found = ridge(columns, outputs, penalty)
    np.testing.assert_allclose(found, minimize(loss, np.zeros(3), tol=1e-12).x, atol=1e-5)


def test_rows_of_a_text_sum_the_attention_to_what_stays():
    attention = tiny_models.drawn(2, 3).abs()
    kept = torch.tensor([[True, False, True], [False, True, True]])
    columns, outputs = of_text(attention, kept, torch.tensor([1.0, 3.0]))
    first = attention[:, 0] + attention[:, 2]
    second = attention[:, 1] + attention[:, 2]
    torch.testing.assert_close(columns[0] - columns[1], first - second)
    assert columns.sum(0).abs().max() < 1e-12 and outputs.tolist() == [-1, 1]


def test_spearman_is_scipys_with_ties():
    a, b = tiny_models.drawn(5, 12).round(), tiny_models.drawn(5, 12, seed=1).round()
    found = spearman(a, b, torch.ones(5, 12).bool())
    expected = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_logit_is_finite_where_the_answer_is_sure():
    assert compute_logit(torch.zeros(1, dtype=torch.float64)).isfinite().all()
    probs = torch.tensor([0.2, 0.5, 1e-30], dtype=torch.float64)
    torch.testing.assert_close(compute_logit(probs.log()), torch.logit(probs))
