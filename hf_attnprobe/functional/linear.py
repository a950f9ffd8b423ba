"""Exact solutions and bounds for models whose logits are linear in the attention.

The logit of a binary model is Σ_t a_t u_t with u_t = w·h_t + b. For such a model, this module
answers questions exactly that papers answer by sampling or call infeasible.

Common arguments:
    attention: [batch, keys].
    scores: the u_t of a binary model, which are differences of two logits, [batch, keys].
    mask: bool [batch, keys].

All arithmetic is in float64. A result that must include every attention within ε is widened by
the rounding error (:data:`LOGIT_ROUNDING`, :data:`PROBABILITY_ROUNDING`). Otherwise the last digit
would decide in the cases of equal scores, saturated outputs and ε = 0.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd, vertex_jsd
from hf_attnprobe.functional.search import bisect_boundary


CANDIDATES_PER_CHUNK = 1 << 16
"""Number of candidates that are computed together, so that they fit into a CPU core's cache."""
LOGIT_ROUNDING = 2.0**-44
"""Bound on the rounding error of a logit, relative to the largest score.

The error of a sum over a thousand tokens is smaller.
"""
PROBABILITY_ROUNDING = 2.0**-50
"""Bound on the rounding error of a total variation distance, which is at most 1."""


class FarthestAttention(NamedTuple):
    """The farthest attention within each ε.

    Attributes:
        jsd: JSD to the original attention in nats, float64 [epsilons, batch].
        attention: an attention with this JSD, float64 [epsilons, batch, keys].
    """

    jsd: Tensor
    attention: Tensor


def permutation_extremes(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the smallest and the largest logit over all T! permutations of a text's weights.

    By the rearrangement inequality, the logit is largest if weights and scores are sorted in the
    same order, and smallest if they are sorted in opposite orders.

    Args:
        attention: [batch, keys].
        scores: logit differences per token, [batch, keys].
        mask: bool [batch, keys], the weights that are permuted.

    Returns:
        Smallest and largest Σ_t a_π(t) u_t, each float64 [batch].
    """
    weights = _sort_masked(attention, mask)
    smallest = -(weights * _sort_masked(-scores, mask)).sum(-1)
    return smallest, (weights * _sort_masked(scores, mask)).sum(-1)


def permutation_moments(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the variance of the logit over uniformly random permutations.

    The mean is T·ā·ū, and the variance is Σ(a − ā)² Σ(u − ū)² / (T − 1) (Hoeffding 1951).

    Args:
        attention: [batch, keys].
        scores: logit differences per token, [batch, keys].
        mask: bool [batch, keys], the weights that are permuted.

    Returns:
        Mean and variance of Σ_t a_π(t) u_t, each float64 [batch]. The variance of a single
        token is 0.
    """
    n = mask.sum(-1).clamp_min(1).to(torch.float64)
    a_mean, a_squares = _compute_mean_and_squares(attention, mask, n)
    u_mean, u_squares = _compute_mean_and_squares(scores, mask, n)
    return n * a_mean * u_mean, a_squares * u_squares / (n - 1).clamp_min(1)


def epsilon_max_jsd(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """Find the attention with the largest JSD that changes the probability by at most ε; exact.

    The condition |σ(Σ a'_t u_t) − p| ≤ ε cuts the simplex of attention by two parallel planes.
    JSD is convex in a', so its maximum is at a vertex, and a vertex has at most two non-zero
    weights. So there are O(T²) candidates, and no optimiser is needed. Jain & Wallace 2019
    (Section 4.2.2) search the same set.

    Args:
        attention: [batch, keys].
        scores: logit differences per token, [batch, keys].
        mask: bool [batch, keys], the tokens that may receive weight.
        epsilons: bounds on the change of the probability, in (0, 1].

    Returns:
        Farthest attention and its JSD for each ε.
    """
    chunk_size = max(1, CANDIDATES_PER_CHUNK // max(1, mask.shape[-1] ** 2))
    results = _run_in_chunks(_find_farthest, chunk_size, attention, scores, mask, epsilons)
    return FarthestAttention(*results)


ChunkFunction = Callable[[Tensor, Tensor, Tensor, Sequence[float]], Iterable[Tensor]]
"""Function from attention, scores or logits, mask, and ε to tensors [epsilons, batch, ...]."""


def _run_in_chunks(
    function: ChunkFunction,
    chunk_size: int,
    attention: Tensor,
    scores: Tensor,
    mask: Tensor,
    epsilons: Sequence[float],
) -> Iterator[Tensor]:
    """Run a function in float64 on chunks of the batch and yield its concatenated results.

    Yields:
        Each result of the function, [epsilons, batch, ...].
    """
    chunks = zip(
        attention.double().split(chunk_size),
        scores.double().split(chunk_size),
        mask.split(chunk_size),
        strict=True,
    )
    chunk_results = [function(*tensors, epsilons) for tensors in chunks]
    for tensors in zip(*chunk_results, strict=True):
        yield torch.cat(tensors, dim=1)


class Edges(NamedTuple):
    """Edges of the simplex of attention: pairs of tokens i < j that share all weight.

    Attributes:
        i: index of the first token, int64 [pairs].
        j: index of the second token, int64 [pairs].
        is_real: whether both tokens may receive weight, bool [batch, pairs].
        score_i: score of the first token, [batch, pairs].
        gap: score of the second token minus score of the first, [batch, pairs].
        a_i: original weight of the first token, [batch, pairs].
        a_j: original weight of the second token, [batch, pairs].
        entropy: a_i ln a_i + a_j ln a_j, [batch, pairs].
    """

    i: Tensor
    j: Tensor
    is_real: Tensor
    score_i: Tensor
    gap: Tensor
    a_i: Tensor
    a_j: Tensor
    entropy: Tensor

    @property
    def numbers(self) -> Tensor:
        """Numbers of all edges, int64 [1, pairs]."""
        return torch.arange(len(self.i), device=self.i.device)[None]


def build_edges(attention: Tensor, scores: Tensor, mask: Tensor) -> Edges:
    """Build the edges of the simplex of attention.

    Args:
        attention: [batch, keys].
        scores: logit differences per token, [batch, keys].
        mask: bool [batch, keys], the tokens that may receive weight.

    Returns:
        The edges between all pairs of tokens.
    """
    n_keys = mask.shape[-1]
    i, j = torch.triu_indices(n_keys, n_keys, offset=1, device=mask.device)
    score_i = scores.index_select(1, i)
    gap = scores.index_select(1, j) - score_i
    a_i = attention.index_select(1, i)
    a_j = attention.index_select(1, j)
    return Edges(
        i=i,
        j=j,
        is_real=mask[:, i] & mask[:, j],
        score_i=score_i,
        # The gap is a divisor, so it must not be 0.
        gap=gap.masked_fill(gap == 0, torch.finfo(gap.dtype).tiny),
        a_i=a_i,
        a_j=a_j,
        entropy=_x_log_x(a_i) + _x_log_x(a_j),
    )


def _find_farthest(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """Compute :func:`epsilon_max_jsd` for a chunk of the batch."""
    if mask.shape[-1] < 2:
        zero_jsd = attention.new_zeros(len(epsilons), len(attention))
        return FarthestAttention(zero_jsd, attention.repeat(len(epsilons), 1, 1))
    logit = (attention * scores).sum(-1, keepdim=True)
    # The complement is not computed as 1 − p: near p = 1 the difference has no digits left.
    prob, complement = logit.sigmoid(), (-logit).sigmoid()
    max_score = scores.masked_fill(~mask, 0).abs().amax(-1, keepdim=True)
    edges = build_edges(attention, scores, mask)
    jsds, attentions = [], []
    for epsilon in epsilons:
        low, high = compute_log_odds_range(prob, complement, max_score, epsilon)
        farthest_jsd, farthest = find_farthest_in_slab(attention, edges, low, high)
        jsds.append(farthest_jsd)
        attentions.append(farthest)
    return FarthestAttention(torch.stack(jsds), torch.stack(attentions))


def compute_log_odds_range(
    p: Tensor, q: Tensor, max_score: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Compute the range of ln p/q in which p and q change by at most ε.

    The range is rounded outward, so that it includes every attention that is within ε in
    float64.

    Args:
        p: probability of one class.
        q: probability of another class; for two classes it is 1 − p.
        max_score: largest absolute score of any token.
        epsilon: bound on the change of each probability.

    Returns:
        Lowest and highest log odds. They are infinite if a probability can become 0.
    """
    max_change = epsilon + PROBABILITY_ROUNDING
    low = (p - max_change).clamp_min(0).log() - (q + max_change).log()
    high = (p + max_change).log() - (q - max_change).clamp_min(0).log()
    low = low - LOGIT_ROUNDING * (max_score + low.abs())
    high = high + LOGIT_ROUNDING * (max_score + high.abs())
    return low, high


def find_farthest_in_slab(
    attention: Tensor, edges: Edges, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Find the farthest attention with low ≤ Σ a'_t u_t ≤ high.

    The feasible weights on an edge between two tokens are an interval. By convexity, the JSD is
    largest at one of its ends.

    Args:
        attention: [batch, keys].
        edges: edges with the scores u_t.
        low: lower bound of the logit, [batch, 1].
        high: upper bound of the logit, [batch, 1].

    Returns:
        JSD [batch] and attention [batch, keys].
    """
    ends = compute_interval_ends(edges, low, high)
    is_feasible = edges.is_real & (ends.amin(0) <= 1)
    is_feasible &= ends.amax(0) >= 0
    ends = ends.clamp_(0, 1)
    end_jsd = compute_two_point_jsd(edges, ends).masked_fill_(~is_feasible, -1)
    end_jsd = end_jsd.transpose(0, 1).flatten(1)  # [batch, ends · pairs]
    best_jsd, best_end = end_jsd.max(-1)
    weight = ends.transpose(0, 1).flatten(1)
    weight = weight.gather(1, best_end[:, None])

    best_pair = best_end % len(edges.i)
    i = edges.i[best_pair][:, None]
    j = edges.j[best_pair][:, None]
    vertex = torch.zeros_like(attention)
    vertex = vertex.scatter(1, j, weight)
    vertex = vertex.scatter(1, i, 1 - weight)
    # A text of one token has no edge, so its attention cannot change.
    vertex = torch.where(best_jsd[:, None] >= 0, vertex, attention)
    return best_jsd.clamp_min(0), vertex


def compute_interval_ends(edges: Edges, low: Tensor, high: Tensor) -> Tensor:
    """Compute the weights on token j with which the logit equals its lower and upper bound.

    The feasible weights, with low ≤ Σ a'_t u_t ≤ high, are those between the two ends. If both
    ends are on the same side of [0, 1], no weight is feasible.

    Args:
        edges: edges with the scores u_t.
        low: lower bound of the logit, [batch, 1].
        high: upper bound of the logit, [batch, 1].

    Returns:
        [2, batch, pairs].
    """
    return torch.stack([low - edges.score_i, high - edges.score_i]).div_(edges.gap)


def compute_two_point_jsd(edges: Edges, weight: Tensor) -> Tensor:
    """Compute the JSD between the original attention and attention to the two tokens of an edge.

    Every other token t contributes a_t ln 2.

    Args:
        edges: edges with the original weights.
        weight: weight on token j, [2, batch, pairs]; token i has weight 1 − ``weight``.

    Returns:
        JSD in nats, [2, batch, pairs].
    """
    weight_i = 1 - weight
    total = _x_log_x(weight)
    total += _x_log_x(weight_i)
    total += edges.entropy
    total -= _x_log_x(weight_i.add_(edges.a_i))
    total -= _x_log_x(edges.a_j + weight)
    return total.div_(2).add_(math.log(2))


def _x_log_x(x: Tensor) -> Tensor:
    """Compute x ln x, which is 0 at x = 0."""
    return x.clamp_min(torch.finfo(x.dtype).tiny).log_().mul_(x)


def _sort_masked(values: Tensor, mask: Tensor) -> Tensor:
    """Sort the values inside the mask in ascending order, followed by zeros."""
    sorted_values = values.double().masked_fill(~mask, torch.inf).sort(-1).values
    return sorted_values.masked_fill(torch.isinf(sorted_values), 0)


def _compute_mean_and_squares(values: Tensor, mask: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the sum of squared deviations over the mask, each [batch]."""
    values = values.double() * mask
    mean = values.sum(-1) / n
    deviations = (values - mean[:, None]) * mask
    return mean, deviations.square().sum(-1)


# --- Bounds for any number of classes, with logits = Σ_t a_t u_t --------------------------------
# With two classes, the attention whose output is within ε forms a slab between two parallel planes,
# and the vertices of this slab give the exact solution, as above. With more classes it forms a
# different shape, so the solution is enclosed between two bounds.
#
# Upper bound: if the output changes by at most ε in total variation, so does every probability.
# Therefore, for every pair of classes i, j
#
#     ln (p_i − ε)₊ − ln (p_j + ε)  ≤  Σ_t a'_t (u_ti − u_tj)  ≤  ln (p_i + ε) − ln (p_j − ε)₊
#
# This is a slab that contains the whole set, so its exact solution is an upper bound. The smallest
# bound over all pairs is the result. Slabs are rounded outward, so the upper bound also holds for
# attention that is within ε in float64 only.
#
# Lower bound: the farthest of several candidates that are checked in float64. The first candidates
# have weight on two tokens only: on such an edge of the simplex the slabs of all pairs leave an
# interval. JSD is convex in it, so the outermost feasible weights are the best ones. The other
# candidate comes from a linear program, see :func:`solve_linear_program`.


NUMBERS_PER_CHUNK = 1 << 19
"""Number of entries (pairs of tokens times classes) that are computed together."""
MAX_CLASS_PAIRS = 28
"""Largest number of class pairs with a slab, most probable classes first: all pairs of 8 classes.

Any subset of the pairs gives a valid upper bound.
"""
N_GRID_POINTS = 9
"""Number of weights that are tried on each edge."""
N_REFINED_ENDS = 32
"""Number of interval ends whose outermost feasible weight is found by bisection."""
N_BISECTIONS = 40
"""Number of bisection steps that refine the end of an interval."""
EPSILON_MARGIN = 1 - 1e-9
"""Factor on ε in the search, so that its results are within ε despite rounding."""
SOLVER_TOLERANCE = 1e-6
"""Margin in log odds that is larger than the tolerance of the linear programming solver."""


class JsdBounds(NamedTuple):
    """Lower and upper bound of the ε-max JSD.

    Attributes:
        lower: JSD of ``attention`` in nats, float64 [epsilons, batch].
        upper: bound in nats that no attention within ε exceeds, except by the rounding of a
            JSD (1e-15), float64 [epsilons, batch].
        attention: an attention whose output is within ε, float64 [epsilons, batch, keys].
    """

    lower: Tensor
    upper: Tensor
    attention: Tensor


def epsilon_max_jsd_bounds(
    attention: Tensor, logits: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> JsdBounds:
    """Compute a lower and an upper bound of :func:`epsilon_max_jsd` for several classes.

    For two classes and ε > 0, both bounds equal the exact solution to 1e-7. For ε = 0, the last
    digit decides which candidates are within ε, so the lower bound can be far too low.

    Args:
        attention: [batch, keys].
        logits: logits u_t per token, [batch, keys, classes].
        mask: bool [batch, keys], the tokens that may receive weight.
        epsilons: bounds on the total variation distance of the output, in [0, 1].

    Returns:
        Both bounds, and the attention that reaches the lower bound.
    """
    n_keys, n_classes = logits.shape[1:]
    chunk_size = max(1, NUMBERS_PER_CHUNK // max(1, n_keys**2 // 2 * n_classes))
    results = _run_in_chunks(_compute_bounds, chunk_size, attention, logits, mask, epsilons)
    return JsdBounds(*results)


def _compute_bounds(
    attention: Tensor, logits: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> JsdBounds:
    """Compute :func:`epsilon_max_jsd_bounds` for a chunk of the batch."""
    if mask.shape[-1] < 2:
        zero = attention.new_zeros(len(epsilons), len(attention))
        return JsdBounds(zero, zero, attention.repeat(len(epsilons), 1, 1))
    probs = _compute_probs(attention, logits)
    # Classes are sorted by probability, so that the pairs of probable classes come first.
    probs, class_order = probs.sort(-1, descending=True)
    logits = logits.gather(-1, class_order[:, None].expand_as(logits))

    bounds = []
    for epsilon in epsilons:
        upper, feasible_edges = _bound_by_slabs(attention, logits, mask, probs, epsilon)
        edge_candidates = _search_edges(attention, logits, feasible_edges, probs, epsilon)
        program_candidate = solve_linear_program(attention, logits, mask, epsilon)
        candidates = torch.cat([torch.stack([attention, program_candidate]), edge_candidates])
        farthest, lower = _choose_farthest_candidate(candidates, attention, logits, probs, epsilon)
        bounds.append((lower, upper, farthest))
    return JsdBounds(*map(torch.stack, zip(*bounds, strict=True)))


def _compute_probs(attention: Tensor, logits: Tensor) -> Tensor:
    """Compute the output probabilities, [..., batch, keys] -> [..., batch, classes]."""
    return torch.einsum("...bk,bkn->...bn", attention, logits).softmax(-1)


def _choose_farthest_candidate(
    candidates: Tensor,
    attention: Tensor,
    logits: Tensor,
    probs: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Choose the farthest candidate within ε.

    Args:
        candidates: [candidates, batch, keys]; the first is the original attention.
        attention: original attention, [batch, keys].
        logits: logits of each token, [batch, keys, classes].
        probs: original output, [batch, classes].
        epsilon: bound on the total variation distance of the output.

    Returns:
        Attention [batch, keys] and its JSD [batch].
    """
    outputs = _compute_probs(candidates, logits)
    # Rounding can make a distance slightly larger than 1.
    change = tvd(outputs, probs).clamp(max=1)
    change[0] = 0
    divergence = jsd(candidates, attention)
    feasible_divergence = divergence.masked_fill(change > epsilon, -1)
    best_divergence, best_index = feasible_divergence.max(0)
    text = torch.arange(len(attention), device=attention.device)
    return candidates[best_index, text], best_divergence.clamp_min(0)


def iterate_slabs(
    probs: Tensor, max_score: Tensor, epsilon: float
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Iterate over pairs of classes with the range of their log odds within ε.

    Args:
        probs: original output, [batch, classes], most probable class first.
        max_score: largest absolute difference of two logits of any token, [batch, 1].
        epsilon: bound on the change of each probability.

    Yields:
        Classes i and j, and the lowest and highest log odds of i against j, each [batch, 1].
    """
    n_classes = probs.shape[-1]
    pairs = itertools.combinations(range(n_classes), 2)
    most_probable_pairs = sorted(pairs, key=sum)[:MAX_CLASS_PAIRS]
    for i, j in most_probable_pairs:
        low, high = compute_log_odds_range(probs[:, [i]], probs[:, [j]], max_score, epsilon)
        yield i, j, low, high


class FeasibleEdges(NamedTuple):
    """Edges with the interval to which the weight on the second token is restricted.

    Attributes:
        edges: the edges.
        low: lower end of the interval, [batch, pairs], in [0, 1].
        high: upper end of the interval, [batch, pairs], in [0, 1].
        is_open: whether the interval is not empty, bool [batch, pairs].
    """

    edges: Edges
    low: Tensor
    high: Tensor
    is_open: Tensor


def _bound_by_slabs(
    attention: Tensor,
    logits: Tensor,
    mask: Tensor,
    probs: Tensor,
    epsilon: float,
) -> tuple[Tensor, FeasibleEdges]:
    """Compute the smallest upper bound over all slabs, and the edges inside all slabs.

    Returns:
        Upper bound of the JSD [batch], and the intervals that the slabs leave on each edge.
    """
    upper = largest_jsd(attention, mask)
    n_keys = mask.shape[-1]
    n_pairs = n_keys * (n_keys - 1) // 2
    lowest = attention.new_zeros(len(attention), n_pairs)
    highest = torch.ones_like(lowest)
    # The difference of two logits is at most twice the largest absolute logit.
    max_logit = logits.masked_fill(~mask[..., None], 0).abs()
    max_difference = 2 * max_logit.amax(2).amax(1)[:, None]

    for i, j, low, high in iterate_slabs(probs, max_difference, epsilon):
        difference = logits[..., i] - logits[..., j]
        edges = build_edges(attention, difference, mask)
        slab_bound, _ = find_farthest_in_slab(attention, edges, low, high)
        upper = torch.minimum(upper, slab_bound)
        ends = compute_interval_ends(edges, low, high)
        lowest = torch.maximum(lowest, ends.amin(0))
        highest = torch.minimum(highest, ends.amax(0))

    is_open = edges.is_real & (lowest <= highest)
    lowest = lowest.clamp(0, 1)
    highest = highest.clamp(0, 1)
    return upper, FeasibleEdges(edges, lowest, highest, is_open)


def _search_edges(
    attention: Tensor,
    logits: Tensor,
    feasible_edges: FeasibleEdges,
    probs: Tensor,
    epsilon: float,
) -> Tensor:
    """Search the edges for the farthest attention to two tokens, [ends, batch, keys]."""
    edges = feasible_edges.edges
    text = torch.arange(len(logits), device=logits.device)[:, None]
    # Two outputs that share no class have distance 1 up to rounding, so ε = 1 is no limit.
    limit = EPSILON_MARGIN * epsilon if epsilon < 1 else math.inf

    def make_change_function(pair: Tensor) -> Callable[[Tensor], Tensor]:
        logits_i = logits[text, edges.i[pair]]
        logits_j = logits[text, edges.j[pair]]

        def compute_change(weight: Tensor) -> Tensor:
            output = torch.lerp(logits_i, logits_j, weight[..., None]).softmax(-1)
            return tvd(output, probs[:, None])

        return compute_change

    ends = search_edge_ends(feasible_edges, make_change_function, limit, N_GRID_POINTS)
    return ends.build_attention(attention, edges.i[ends.pair], edges.j[ends.pair])


EdgeChange = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""Function from edge numbers, [batch, n], to a second function. The second function maps weights
on the second tokens of these edges, [batch, n], to the change of the output, [batch, n]."""


class EdgeEnds(NamedTuple):
    """Outermost feasible points on edges, each [batch, ends].

    Attributes:
        pair: number of the edge.
        weight: weight on the second token of the edge.
        is_found: whether the edge has a feasible point.
    """

    pair: Tensor
    weight: Tensor
    is_found: Tensor

    def build_attention(self, attention: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Build the attention at each end, and use ``attention`` for ends that were not found.

        Args:
            attention: original attention, [batch, keys].
            first: first token of each edge, [batch, ends].
            second: second token of each edge, [batch, ends].

        Returns:
            [ends, batch, keys].
        """
        end_attention = build_two_token_attention(first, second, self.weight, attention.shape[-1])
        end_attention = torch.where(self.is_found[..., None], end_attention, attention[:, None])
        return end_attention.transpose(0, 1)


def build_two_token_attention(first: Tensor, second: Tensor, weight: Tensor, n_keys: int) -> Tensor:
    """Build attention with all weight on two tokens.

    Args:
        first: first token, int64 [...].
        second: second token, int64 [...].
        weight: weight on the second token, [...].
        n_keys: number of keys.

    Returns:
        [..., keys].
    """
    attention = weight.new_zeros(*weight.shape, n_keys)
    second_weight = weight[..., None]
    attention.scatter_(-1, second[..., None], second_weight)
    return attention.scatter_(-1, first[..., None], 1 - second_weight)


def search_edge_ends(
    feasible_edges: FeasibleEdges,
    make_change_function: EdgeChange,
    limit: float,
    n_weights: int,
) -> EdgeEnds:
    """Search for the outermost feasible points on the edges that may have the largest JSD.

    First a grid of weights is tried on each edge. Then bisection finds the boundary between the
    outermost feasible weights of the grid and their infeasible neighbours.

    Args:
        feasible_edges: edges with the intervals to search.
        make_change_function: creates the function that computes the change of the output.
        limit: largest allowed change of the output, ε.
        n_weights: number of weights that are tried on each edge.

    Returns:
        The ends that were found.
    """
    edges = feasible_edges.edges
    compute_change = make_change_function(edges.numbers)

    # For the lower and the upper end of the feasible weights, [2, batch, pairs]: a feasible
    # weight, and its infeasible neighbour. Both are equal if the interval ends at this weight.
    inside = torch.stack([feasible_edges.low, feasible_edges.low])
    outside = inside.clone()
    is_any_feasible = was_feasible = torch.zeros_like(feasible_edges.is_open)
    previous_weight = feasible_edges.low
    for step in range(n_weights):
        weight = torch.lerp(feasible_edges.low, feasible_edges.high, step / (n_weights - 1))
        is_feasible = (compute_change(weight) <= limit) & feasible_edges.is_open
        is_first = is_feasible & ~is_any_feasible
        inside[0] = torch.where(is_first, weight, inside[0])
        outside[0] = torch.where(is_first, previous_weight, outside[0])
        inside[1] = torch.where(is_feasible, weight, inside[1])
        outside[1] = torch.where(is_feasible | was_feasible, weight, outside[1])
        is_any_feasible = is_any_feasible | is_feasible
        was_feasible = is_feasible
        previous_weight = weight

    # Only the ends with the largest possible JSD are refined; −1 marks an edge without an end.
    possible_jsd = compute_two_point_jsd(edges, outside.clone())
    possible_jsd = possible_jsd.masked_fill(~is_any_feasible, -1)
    possible_jsd = _flatten_by_text(possible_jsd)
    n_refined = min(N_REFINED_ENDS, possible_jsd.shape[-1])
    possible_jsd, refined = possible_jsd.topk(n_refined)
    inside = _flatten_by_text(inside).gather(1, refined)
    outside = _flatten_by_text(outside).gather(1, refined)
    pair = refined % len(edges.i)
    compute_change = make_change_function(pair)
    weight, _ = bisect_boundary(
        lambda weight: compute_change(weight) <= limit, inside, outside, N_BISECTIONS
    )
    return EdgeEnds(pair, weight, possible_jsd >= 0)


def _flatten_by_text(values: Tensor) -> Tensor:
    """Flatten [ends, batch, pairs] to [batch, ends · pairs]."""
    return values.transpose(0, 1).flatten(1)


def solve_linear_program(attention: Tensor, logits: Tensor, mask: Tensor, epsilon: float) -> Tensor:
    """Find distant attention within ε by a linear program for each text.

    If the log odds of every class against the first class change by at most 2 artanh ε, the
    output changes by at most ε. Under this condition the program maximises Σ a'_t v_t, with v_t
    the JSD of attention to token t only. As JSD is convex, this sum is an upper bound of the JSD
    of a'. The solution has few tokens with weight.

    Args:
        attention: float64 [batch, keys].
        logits: logits u_t per token, float64 [batch, keys, classes].
        mask: bool [batch, keys], the tokens that may receive weight.
        epsilon: bound on the total variation distance of the output, in [0, 1].

    Returns:
        [batch, keys]; the original attention if the solver fails. The caller must check that it
        is within ε.
    """
    from scipy.optimize import linprog

    max_change = 2 * math.atanh(min(epsilon, EPSILON_MARGIN)) - SOLVER_TOLERANCE
    log_odds = logits - logits[..., :1]
    original_log_odds = torch.einsum("bk,bkn->bn", attention, log_odds)
    changes = log_odds - original_log_odds[:, None]
    vertex_jsds = vertex_jsd(attention)
    solutions = attention.clone()
    for text in (mask.sum(-1) > 1).nonzero()[:, 0].tolist():
        is_token = mask[text]
        class_changes = changes[text, is_token].t()
        constraints = torch.cat([class_changes, -class_changes]).cpu().numpy()
        result = linprog(
            -vertex_jsds[text, is_token].cpu().numpy(),
            A_ub=constraints,
            b_ub=[max_change] * len(constraints),
            A_eq=np.ones((1, constraints.shape[1])),
            b_eq=[1],
        )
        if result.success:
            weights = torch.from_numpy(result.x).clamp_min(0).to(attention)
            solutions[text, is_token] = weights / weights.sum()
    return solutions


# --- Models that are not linear in the attention ------------------------------------------------
# Attention to two tokens is also a good first candidate for these models, but no slab restricts the
# weights beforehand. The attention that is found is within ε, and its JSD is a lower bound.


Replay = Callable[[Tensor], Tensor]
"""Function from attention [copies, batch, keys] to probabilities [copies, batch, classes]."""

MAX_EDGE_TOKENS = 32
"""Number of tokens, the least attended ones, between which edges are searched: 496 edges."""
N_FINE_GRID_POINTS = 33
"""Number of weights that are tried on each edge of a model that is not linear."""


@torch.no_grad()
def search_edges_by_replay(
    attention: Tensor,
    visible: Tensor,
    replay: Replay,
    probs: Tensor,
    epsilon: float,
) -> Tensor:
    """Search for distant attention to two tokens that changes the output by at most ε.

    Args:
        attention: the model's attention, [batch, keys].
        visible: tokens that may receive weight, bool [batch, keys].
        replay: runs the model with other attention.
        probs: the model's output, [batch, classes].
        epsilon: bound on the total variation distance of the output.

    Returns:
        [ends, batch, keys]; the attention of the model for ends that were not found.
    """
    token_order = attention.masked_fill(~visible, torch.inf)
    token_order = token_order.argsort(dim=-1, stable=True)[:, :MAX_EDGE_TOKENS]
    token_attention = attention.gather(1, token_order)
    is_real = visible.gather(1, token_order)
    edges = build_edges(token_attention, torch.zeros_like(token_attention), is_real)
    text = torch.arange(len(token_order), device=token_order.device)[:, None]

    def get_tokens(pair: Tensor) -> tuple[Tensor, Tensor]:
        return token_order[text, edges.i[pair]], token_order[text, edges.j[pair]]

    def make_change_function(pair: Tensor) -> Callable[[Tensor], Tensor]:
        first, second = get_tokens(pair)

        def compute_change(weight: Tensor) -> Tensor:
            rows = build_two_token_attention(first, second, weight, attention.shape[-1])
            outputs = replay(rows.transpose(0, 1))
            return tvd(outputs, probs).t()

        return compute_change

    # If no weight of the grid is within ε on an edge, a weight near the one with the smallest
    # change may be. The search is then restricted to its neighbourhood.
    compute_change = make_change_function(edges.numbers)
    zero = torch.zeros_like(edges.entropy)
    grid = torch.linspace(0, 1, N_FINE_GRID_POINTS).to(zero)
    changes = [compute_change(zero + weight) for weight in grid]
    smallest_change, smallest_index = torch.stack(changes).min(0)
    best_weight = grid[smallest_index]
    radius = torch.where(smallest_change > epsilon, grid[1], 1.0)
    low = (best_weight - radius).clamp_min(0)
    high = (best_weight + radius).clamp_max(1)

    feasible_edges = FeasibleEdges(edges, low, high, edges.is_real)
    ends = search_edge_ends(feasible_edges, make_change_function, epsilon, N_FINE_GRID_POINTS)
    return ends.build_attention(attention, *get_tokens(ends.pair))
