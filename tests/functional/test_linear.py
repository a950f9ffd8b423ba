import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.functional.divergence import jsd, largest_jsd
from hf_attnprobe.functional.linear import (
    epsilon_max_jsd,
    permutation_extremes,
    permutation_moments,
)


@st.composite
def cases(draw, smallest=2, largest=6):
    """A binary model's attention and token scores for one text, with padding."""
    n = draw(st.integers(smallest, largest))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    attention = torch.from_numpy(rng.dirichlet(np.full(n, draw(st.sampled_from([0.1, 1.0, 10.0])))))
    scores = torch.from_numpy(rng.normal(size=n) * draw(st.sampled_from([0, 0.1, 1.0, 10.0])))
    mask = torch.tensor([[False] + [True] * n + [False]])
    return (
        torch.nn.functional.pad(attention, (1, 1))[None],
        torch.nn.functional.pad(scores, (1, 1), value=5.0)[None],
        mask,
    )


@settings(max_examples=100, deadline=None)
@given(cases(1, 6))
def test_permutations_equal_brute_force(case):
    attention, scores, mask = case
    a, u = attention[mask], scores[mask]
    outputs = torch.stack([(a[list(p)] * u).sum() for p in itertools.permutations(range(len(a)))])
    low, high = permutation_extremes(attention, scores, mask)
    mean, variance = permutation_moments(attention, scores, mask)
    expected = (outputs.min(), outputs.max(), outputs.mean(), outputs.var(correction=0))
    for ours, theirs in zip((low, high, mean, variance), expected, strict=True):
        assert ours.item() == pytest.approx(theirs.item(), abs=1e-9)


def best_over_vertices(attention, scores, mask, epsilon):
    """JSD is convex, so its maximum is at a vertex of the polytope: every basis of its inequalities is tried."""
    a, u = attention[mask].numpy(), scores[mask].numpy()
    n, p = len(a), 1 / (1 + math.exp(-float(a @ u)))
    logits = [math.log(q / (1 - q)) for q in (p - epsilon, p + epsilon) if 0 < q < 1]
    faces = [(row, 0.0) for row in np.eye(n)] + [(u, z) for z in logits]
    best = 0.0
    for chosen in itertools.combinations(faces, n - 1):
        matrix = np.stack([np.ones(n), *(face for face, _ in chosen)])
        if abs(np.linalg.det(matrix)) < 1e-12:
            continue
        x = np.linalg.solve(matrix, np.array([1.0, *(bound for _, bound in chosen)]))
        change = abs(1 / (1 + math.exp(-float(np.clip(x @ u, -500, 500)))) - p)
        if (x >= -1e-12).all() and change <= epsilon + 1e-12:
            best = max(best, jsd(torch.from_numpy(x.clip(0)), torch.from_numpy(a)).item())
    return best


@settings(max_examples=100, deadline=None)
@given(cases(2, 5), st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]))
def test_adversary_equals_brute_force_over_vertices(case, epsilon):
    attention, scores, mask = case
    found = epsilon_max_jsd(attention, scores, mask, (epsilon,))
    assert found.jsd.item() == pytest.approx(
        best_over_vertices(attention, scores, mask, epsilon), abs=1e-9
    )


def with_many_digits(attention, scores, epsilon):
    """The same answer with 60 digits: both ends of every edge."""
    with mpmath.workdps(60):
        a, u = ([mpmath.mpf(x) for x in v.tolist()] for v in (attention, scores))
        logit = mpmath.fsum(x * y for x, y in zip(a, u, strict=True))
        p, q = (1 / (1 + mpmath.exp(sign * logit)) for sign in (-1, 1))
        low, high = -mpmath.inf, mpmath.inf
        if p > epsilon:
            low = mpmath.log((p - epsilon) / (q + epsilon))
        if q > epsilon:
            high = mpmath.log((p + epsilon) / (q - epsilon))
        best = mpmath.mpf(0)
        for i, j in itertools.combinations(range(len(a)), 2):
            gap = u[j] - u[i]
            if gap == 0:
                ends = (0, 1) if low <= u[i] <= high else ()
            else:
                ends = sorted(((low - u[i]) / gap, (high - u[i]) / gap))
                is_met = ends[0] <= 1 and ends[1] >= 0
                ends = [min(max(x, 0), 1) for x in ends] if is_met else ()
            for weight in ends:
                x = [mpmath.mpf(0)] * len(a)
                x[i], x[j] = 1 - weight, mpmath.mpf(weight)
                pairs = [*zip(x, a, strict=True), *zip(a, x, strict=True)]
                terms = (s * mpmath.log(2 * s / (s + t)) for s, t in pairs if s > 0)
                best = max(best, mpmath.fsum(terms) / 2)
        return float(best)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.01, 1.0, 10.0]),
    st.sampled_from([0.1, 3.0, 30.0, 300.0]),
    st.booleans(),
    st.sampled_from([0.001, 0.01, 0.05, 0.5]),
)
def test_rounding_changes_nothing(seed, peak, scale, has_ties, epsilon):
    """Saturated outputs, weights of 1e-30, equal and nearly equal scores."""
    rng = np.random.default_rng(seed)
    attention = rng.dirichlet(np.full(5, 1.0)) ** (1 / peak)
    attention /= attention.sum()
    scores = scale * rng.normal(size=5)
    if has_ties:
        scores[1], scores[3] = scores[0], scores[2] * (1 + 1e-15)
    attention, scores = torch.from_numpy(attention), torch.from_numpy(scores)
    mask = torch.ones(1, 5, dtype=torch.bool)
    found = epsilon_max_jsd(attention[None], scores[None], mask, (epsilon,))
    theirs = with_many_digits(attention, scores, epsilon)
    assert found.jsd.item() == pytest.approx(theirs, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(cases(1, 12), st.sampled_from([0.001, 0.01, 0.05, 0.5]))
def test_adversary_is_what_it_says(case, epsilon):
    attention, scores, mask = case
    found = epsilon_max_jsd(attention, scores, mask, (epsilon,))
    adversary = found.attention[0]
    assert adversary.sum().item() == pytest.approx(1, abs=1e-12)
    assert (adversary >= 0).all() and (adversary[~mask] == 0).all()
    assert jsd(adversary, attention).item() == pytest.approx(found.jsd.item(), abs=1e-9)
    before, after = ((a * scores * mask).sum().sigmoid() for a in (attention, adversary))
    assert (after - before).abs().item() <= epsilon + 1e-9
    assert found.jsd.item() <= largest_jsd(attention, mask).item() + 1e-9


def test_a_batch_equals_its_rows():
    rng = np.random.default_rng(0)
    attention = torch.from_numpy(rng.dirichlet(np.ones(9), size=40))
    texts = (attention, torch.from_numpy(rng.normal(size=(40, 9))), torch.ones(40, 9).bool())
    together = epsilon_max_jsd(*texts, (0.01, 0.05))
    for row in range(40):
        alone = epsilon_max_jsd(*(x[row : row + 1] for x in texts), (0.01, 0.05))
        assert torch.equal(alone.jsd[:, 0], together.jsd[:, row])
