import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from hf_attnprobe.functional.divergence import jsd, kl_divergence, largest_jsd, tvd


def distributions(size: int):
    weights = st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size).filter(
        lambda x: sum(x) > 1e-3
    )
    return weights.map(lambda x: torch.tensor(x, dtype=torch.float64) / sum(x))


@given(distributions(5), distributions(5))
def test_equals_scipy_and_keeps_its_bounds(p, q):
    assert jsd(p, q).item() == pytest.approx(jensenshannon(p.numpy(), q.numpy()) ** 2, abs=1e-7)
    assert jsd(p, q).item() == pytest.approx(jsd(q, p).item(), abs=1e-12)
    assert -1e-12 <= jsd(p, q).item() <= math.log(2) + 1e-12
    assert 0 <= tvd(p, q).item() <= 1 + 1e-12


def test_kl_equals_scipy_and_is_finite_where_the_second_is_zero():
    p = torch.tensor([0.2, 0.8], dtype=torch.float64)
    q = torch.tensor([0.5, 0.5], dtype=torch.float64)
    expected = scipy_entropy(p.numpy(), q.numpy())
    assert kl_divergence(p, q).item() == pytest.approx(expected, abs=1e-12)
    assert torch.isfinite(kl_divergence(p, torch.tensor([1.0, 0.0], dtype=torch.float64)))


def test_gradient_is_finite_at_zero_weights():
    p = torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.7, 0.0, 0.3], dtype=torch.float64)
    (slope,) = torch.autograd.grad(jsd(p, q), p)
    assert torch.isfinite(slope).all()


def test_gradient_equals_finite_differences():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: jsd(x, q), p)


@given(distributions(6))
def test_largest_jsd_is_the_largest_over_the_simplex(p):
    mask = torch.ones(6, dtype=torch.bool)
    corners = jsd(torch.eye(6, dtype=torch.float64), p)
    assert largest_jsd(p, mask).item() == pytest.approx(corners.max().item(), abs=1e-9)
    others = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(6), size=50))
    assert (jsd(others, p) <= largest_jsd(p, mask) + 1e-9).all()


def test_largest_jsd_published_value_and_single_token():
    uniform = torch.full((19,), 1 / 19)
    assert largest_jsd(uniform, torch.ones(19, dtype=torch.bool)).item() == pytest.approx(
        0.589, abs=5e-4
    )
    assert largest_jsd(
        torch.tensor([1.0, 0.0]), torch.tensor([True, False])
    ).item() == pytest.approx(0, abs=1e-6)
