import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from hf_attnprobe.functional import linear
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.linear import (
    epsilon_max_jsd,
    epsilon_max_jsd_bounds,
    permutation_extremes,
    permutation_moments,
    solve_linear_program,
)


@st.composite
def cases(draw, classes=(2,), smallest=1, largest=6, steepest=30.0):
    """Attention and token logits of one text with padding on both sides."""
    n = draw(st.integers(smallest, largest))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    attention = rng.dirichlet(np.full(n, draw(st.sampled_from([0.1, 1.0, 10.0]))))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 3.0, steepest]))
    logits = scale * rng.normal(size=(n, draw(st.sampled_from(classes))))
    if draw(st.booleans()):
        logits = np.round(logits)  # ties
    logits = torch.nn.functional.pad(torch.from_numpy(logits), (0, 0, 1, 1), value=5.0)
    logits[[0, -1], -1] = 9.0
    attention = torch.nn.functional.pad(torch.from_numpy(attention), (1, 1))
    return attention[None], logits[None], torch.tensor([[False] + [True] * n + [False]])


def in_scores(case):
    """Of two classes: the difference of logits stands for both."""
    attention, logits, mask = case
    return attention, logits[..., 1] - logits[..., 0], mask


@settings(max_examples=100)
@given(cases())
def test_permutations_equal_brute_force(case):
    attention, scores, mask = in_scores(case)
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


@settings(max_examples=100)
@given(cases(smallest=2, largest=5, steepest=3.0), st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]))
def test_adversary_equals_brute_force_over_vertices(case, epsilon):
    attention, scores, mask = in_scores(case)
    found = epsilon_max_jsd(attention, scores, mask, (epsilon,))
    expected = best_over_vertices(attention, scores, mask, epsilon)
    assert found.jsd.item() == pytest.approx(expected, abs=1e-9)


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


@settings(max_examples=60)
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


@settings(max_examples=200)
@given(cases(largest=12), st.sampled_from([0.001, 0.01, 0.05, 0.5]))
def test_adversary_is_what_it_says(case, epsilon):
    attention, scores, mask = in_scores(case)
    found = epsilon_max_jsd(attention, scores, mask, (epsilon,))
    adversary = found.attention[0]
    assert adversary.sum().item() == pytest.approx(1, abs=1e-12)
    assert (adversary >= 0).all() and (adversary[~mask] == 0).all()
    assert jsd(adversary, attention).item() == pytest.approx(found.jsd.item(), abs=1e-9)
    before, after = ((a * scores * mask).sum().sigmoid() for a in (attention, adversary))
    assert (after - before).abs().item() <= epsilon + 1e-9
    assert found.jsd.item() <= largest_jsd(attention, mask).item() + 1e-9


# Bounds of ε-max JSD for several classes, against brute force over the simplex


def brute_force(attention, logits, epsilon):
    """The farthest of many attentions of one text, with a softmax and a JSD of our own.

    All two-token attentions on a fine grid, all three-token ones on a coarser one, and
    random ones, sparse, dense and close to the original.
    """
    n = len(attention)
    rng = np.random.default_rng(0)
    tried = [np.eye(n)]
    for size, steps in ((2, 400), (3, 24)):
        if n < size:
            continue
        corners = itertools.product(range(steps + 1), repeat=size - 1)
        shares = np.array([(*c, steps - sum(c)) for c in corners if sum(c) <= steps])
        for tokens in itertools.combinations(range(n), size):
            weights = np.zeros((len(shares), n))
            weights[:, tokens] = shares / steps
            tried.append(weights)
    tried += [rng.dirichlet(np.full(n, c), size=2000) for c in (0.1, 0.5, 2.0)]
    tried += [attention + s * (tried[-2] - attention) for s in (0.5, 0.1)]
    tried = np.concatenate(tried)

    def softmax(z):
        z = np.exp(z - z.max(-1, keepdims=True))
        return z / z.sum(-1, keepdims=True)

    change = np.abs(softmax(tried @ logits) - softmax(attention @ logits)).sum(-1) / 2
    feasible = tried[change <= epsilon]
    if not len(feasible):
        return 0.0
    mean = (feasible + attention) / 2
    entropy = lambda p: -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum(-1)  # noqa: E731
    divergence = entropy(mean) - (entropy(feasible) + entropy(attention)) / 2
    return float(divergence.max())


@settings(max_examples=30)
@given(cases((3, 4, 5)), st.sampled_from([0.001, 0.01, 0.05, 0.3]))
def test_no_attention_of_a_grid_is_beyond_the_upper_bound(case, epsilon):
    attention, logits, mask = case
    found = epsilon_max_jsd_bounds(attention, logits, mask, (epsilon,))
    farthest = brute_force(attention[mask].numpy(), logits[mask].numpy(), epsilon)
    assert farthest <= found.upper.item() + 1e-9
    assert found.upper.item() <= largest_jsd(attention, mask).item() + 1e-12


@settings(max_examples=80)
@given(cases((2, 3, 4, 5, 11), largest=12), st.sampled_from([0.0, 0.001, 0.01, 0.5]))
def test_the_lower_bound_is_an_attention_within_epsilon(case, epsilon):
    attention, logits, mask = case
    found = epsilon_max_jsd_bounds(attention, logits, mask, (epsilon,))
    adversary = found.attention[0]
    assert adversary.sum().item() == pytest.approx(1, abs=1e-12)
    assert (adversary >= 0).all() and (adversary[~mask] == 0).all()
    # Not scipy's jensenshannon: of nearly equal ones it takes the root of −1e-17.
    p, q = adversary[mask].numpy(), attention[mask].numpy()
    theirs = (rel_entr(p, (p + q) / 2) + rel_entr(q, (p + q) / 2)).sum() / 2
    assert found.lower.item() == pytest.approx(theirs, abs=1e-7)
    before, after = ((a[mask] @ logits[mask]).softmax(-1) for a in (attention, adversary))
    assert tvd(before, after).item() <= epsilon + 1e-12
    assert -1e-12 <= found.lower.item() <= found.upper.item() + 1e-12


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_the_lower_bound_is_no_worse_than_a_finer_grid_on_the_edges(epsilon):
    """Feasible weights between two points of its grid may be missed, in few texts."""
    rng = np.random.default_rng(0)
    attention = torch.from_numpy(rng.dirichlet(np.ones(5), size=300))
    scale = torch.tensor([0.1, 1.0, 3.0]).repeat(100)[:, None, None]
    logits = scale * torch.from_numpy(rng.normal(size=(300, 5, 3)))
    mask = torch.ones(300, 5, dtype=torch.bool)
    found = epsilon_max_jsd_bounds(attention, logits, mask, (epsilon,))

    def output(weights):
        return torch.einsum("bk,bkn->bn", weights, logits).softmax(-1)

    best = torch.zeros(300, dtype=torch.double)
    for i, j in itertools.combinations(range(5), 2):
        for weight in np.linspace(0, 1, 101):
            two = torch.zeros_like(attention)
            two[:, i], two[:, j] = 1 - weight, weight
            change = tvd(output(two), output(attention))
            farther = jsd(two, attention).masked_fill(change > epsilon, 0)
            best = torch.maximum(best, farther)
    worse = best - found.lower[0]
    assert (worse > 1e-6).double().mean() < 0.01
    assert worse.mean() < 1e-4


@settings(max_examples=100)
@given(cases((2,), largest=8), st.sampled_from([0.001, 0.01, 0.05, 0.5]))
def test_two_classes_are_exact(case, epsilon):
    attention, logits, mask = case
    found = epsilon_max_jsd_bounds(attention, logits, mask, (epsilon,))
    scores = logits[..., 1] - logits[..., 0]
    exact = epsilon_max_jsd(attention, scores, mask, (epsilon,)).jsd.item()
    assert found.upper.item() == pytest.approx(exact, abs=1e-9)
    assert found.lower.item() == pytest.approx(exact, abs=1e-6)


EDGES = {
    "equal logits": ([1.0, 1.2e-12], [[0, 0], [0, 0]], 0.0),
    "nearly equal logits": ([1.0, 1e-10, 0], [[3, 1], [3, 1 + 2e-16], [5, -5]], 0.0),
    "saturated": ([1.0, 1e-20], [[60, -60, 0], [50, -60, 0]], 0.0),
    "a vertex at ε": ([1.0, 1e-10], [[0, 0], [0, np.log(3)]], 0.25),
}


@pytest.mark.parametrize("attention, logits, epsilon", EDGES.values(), ids=EDGES)
def test_the_last_digit_does_not_decide(attention, logits, epsilon):
    """All weight on the second token is within ε, but for rounding: upper was 4e-13."""
    attention = torch.tensor([attention], dtype=torch.double)
    logits = torch.tensor([logits], dtype=torch.double)
    mask = torch.ones_like(attention).bool()
    found = epsilon_max_jsd_bounds(attention, logits, mask, (epsilon,))
    assert found.upper.item() == pytest.approx(np.log(2), abs=1e-8)
    if logits.shape[-1] == 2:
        scores = logits[..., 1] - logits[..., 0]
        exact = epsilon_max_jsd(attention, scores, mask, (epsilon,))
        assert exact.jsd.item() == pytest.approx(np.log(2), abs=1e-8)


@pytest.mark.slow
def test_no_candidate_is_lost_to_the_last_digit():
    """Of two classes both bounds meet; the lower one was up to .5 too small."""
    torch.manual_seed(0)
    attention = torch.randn(500, 6, dtype=torch.double).softmax(-1)
    logits = 30 * torch.randn(500, 6, 2, dtype=torch.double)
    mask = torch.ones(500, 6, dtype=torch.bool)
    found = epsilon_max_jsd_bounds(attention, logits, mask, (0.001, 0.01, 0.05))
    assert (found.upper - found.lower).max() < 1e-7


def test_classes_without_a_pair_of_their_own_are_bounded_too():
    """With 12 classes there are 66 pairs; those left out cannot make the bound too small."""
    torch.manual_seed(0)
    attention = torch.rand(4, 6, dtype=torch.double).softmax(-1)
    logits = 3 * torch.randn(4, 6, 12, dtype=torch.double)
    mask = torch.ones(4, 6, dtype=torch.bool)
    upper = epsilon_max_jsd_bounds(attention, logits, mask, (0.05,)).upper[0]
    for a, u, bound in zip(attention.numpy(), logits.numpy(), upper, strict=True):
        assert brute_force(a, u, 0.05) <= bound.item() + 1e-9


def test_chunks_and_batches_change_nothing(monkeypatch):
    torch.manual_seed(0)
    attention = torch.randn(7, 9, dtype=torch.double)
    mask = torch.arange(9) < torch.tensor([9, 8, 7, 5, 3, 2, 1])[:, None]
    attention = attention.masked_fill(~mask, -1e30).softmax(-1) * mask
    logits = 2 * torch.randn(7, 9, 4, dtype=torch.double)
    together = epsilon_max_jsd_bounds(attention, logits, mask, (0.01, 0.05))
    monkeypatch.setattr("hf_attnprobe.functional.linear.ENTRIES_PER_CHUNK", 1)
    alone = epsilon_max_jsd_bounds(attention, logits, mask, (0.01, 0.05))
    assert torch.allclose(together.lower, alone.lower, atol=1e-9)
    assert torch.allclose(together.upper, alone.upper, atol=1e-12)
    for row, n in enumerate(mask.sum(-1).tolist()):
        cut = (x[row : row + 1, :n] for x in (attention, logits, mask))
        single = epsilon_max_jsd_bounds(*cut, (0.01, 0.05))
        assert torch.allclose(single.lower[:, 0], together.lower[:, row], atol=1e-9)
        assert torch.allclose(single.upper[:, 0], together.upper[:, row], atol=1e-12)
    assert (together.lower[:, -1] == 0).all() and (together.upper[:, -1] == 0).all()


@pytest.mark.parametrize("n_classes", [3, 4])
@pytest.mark.parametrize("epsilon", [0.01, 0.2])
def test_the_linear_program_finds_the_best_of_all_vertices(n_classes, epsilon):
    """Each vertex solved for by itself: of 4 constraints that hold with equality."""
    rng = np.random.default_rng(n_classes)
    attention = rng.dirichlet(np.ones(5), size=10)
    logits = rng.normal(size=(10, 5, n_classes))
    mask = torch.ones(10, 5, dtype=torch.bool)
    tensors = torch.from_numpy(attention), torch.from_numpy(logits), mask
    found = solve_linear_program(*tensors, epsilon).numpy()
    assert (found >= 0).all() and found.sum(-1) == pytest.approx(1, abs=1e-12)
    for own, other, u in zip(attention, found, logits, strict=True):
        assert tvd(*(torch.tensor(a @ u).softmax(-1) for a in (own, other))) <= epsilon
        values = [jensenshannon(vertex, own) ** 2 for vertex in np.eye(5)]
        scores = (u - u[:, :1]).T
        sides = np.concatenate([scores, -scores])
        rows = np.concatenate([sides, -np.eye(5)])
        bounds = np.concatenate([sides @ own + 2 * np.arctanh(epsilon), np.zeros(5)])
        best = 0.0
        for held in map(list, itertools.combinations(range(len(rows)), 4)):
            system = np.concatenate([rows[held], np.ones((1, 5))])
            if abs(np.linalg.det(system)) > 1e-9:
                vertex = np.linalg.solve(system, [*bounds[held], 1])
                is_allowed = (rows @ vertex <= bounds + 1e-9).all()
                best = max(best, vertex @ values * is_allowed)
        assert other @ values == pytest.approx(best, abs=1e-5)


def test_a_text_of_one_token_has_no_linear_program():
    attention = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.double)
    found = solve_linear_program(attention, torch.ones(2, 2, 3).double(), attention > 0, 0.01)
    assert torch.equal(found, attention)


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 3.0])
def test_the_pairs_of_some_tokens_suffice_in_long_texts(monkeypatch, sharpness):
    torch.manual_seed(0)
    scores = 2 * torch.randn(2, 300).double() + 0.5
    attention = (sharpness * torch.randn(2, 300)).double()
    mask = torch.arange(300) < torch.tensor([[300], [200]])
    attention = attention.masked_fill(~mask, -torch.inf).softmax(-1)
    exact = epsilon_max_jsd(attention, scores, mask, (0.01, 0.1))
    monkeypatch.setattr(linear, "MAX_EXACT_TOKENS", 299)
    monkeypatch.setattr(linear, "N_CANDIDATE_TOKENS", 64)
    found = epsilon_max_jsd(attention, scores, mask, (0.01, 0.1))
    torch.testing.assert_close(found.jsd, exact.jsd, atol=0.005, rtol=0)
    assert (found.jsd <= exact.jsd + 1e-12).all()
    # The attention is feasible, and has the stated divergence.
    probs = (attention * scores).sum(-1).sigmoid()
    for epsilon, rows, jsds in zip((0.01, 0.1), found.attention, found.jsd, strict=True):
        assert ((rows * scores).sum(-1).sigmoid() - probs).abs().max() <= epsilon + 1e-12
        torch.testing.assert_close(jsd(rows, attention), jsds)
        assert not rows[~mask].any()


def test_candidates_are_inside_the_mask_if_one_side_has_few_tokens(monkeypatch):
    monkeypatch.setattr(linear, "N_CANDIDATE_TOKENS", 16)
    scores = torch.arange(60, dtype=torch.float64)[None]
    attention = torch.full_like(scores, 1 / 60)
    mask = scores < 30
    # Only the last two real tokens are above the logit.
    logit = torch.tensor([[27.5]], dtype=torch.float64)
    candidates = linear.select_candidates(attention, scores, mask, logit)
    assert mask.gather(1, candidates).all()
    assert len(candidates.unique()) == 16 and {28, 29} <= set(candidates[0].tolist())
