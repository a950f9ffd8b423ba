"""Exact solutions and bounds for models whose logits are linear in the attention.

The logit of a binary model is Σ_t a_t u_t, with attention weights a_t and token scores
u_t = w·h_t + b. For such models, this module computes exact results that papers approximate by
sampling or call infeasible.

Common arguments:
    attention: attention weights a_t, [batch, keys].
    scores: token scores u_t. Each is the difference between two class logits, [batch, keys].
    mask: tokens that may receive weight, bool [batch, keys].

All arithmetic is in float64. Sets that must contain every attention within ε are widened by the
rounding error (:data:`LOGIT_ROUNDING`, :data:`PROBABILITY_ROUNDING`). Otherwise rounding would decide
the result if scores are equal, if outputs are saturated, or if ε is 0.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, largest_jsd, one_hot_jsd, tvd
from hf_attnprobe.functional.search import bisect_boundary


CANDIDATES_PER_CHUNK = 1 << 16
"""Number of candidate attention distributions that are evaluated at a time. This many candidates
fit into the cache of a CPU core."""
MAX_EXACT_TOKENS = 4096
"""Largest number of tokens of which all pairs are compared.

All pairs of 4,096 tokens take about 1 GB of memory and 10 CPU seconds. In larger texts or bags, the pairs
of :data:`N_CANDIDATE_TOKENS` tokens are compared, and the result is a lower bound.
"""
N_CANDIDATE_TOKENS = 1024
"""Number of tokens that are paired in texts with more than :data:`MAX_EXACT_TOKENS` tokens."""
LOGIT_ROUNDING = 2.0**-44
"""Largest rounding error in a logit, divided by the largest absolute token score. It is valid for
texts with up to about a thousand tokens."""
PROBABILITY_ROUNDING = 2.0**-50
"""Largest rounding error in the total variation distance between two outputs."""


class FarthestAttention(NamedTuple):
    """Farthest attention that changes the output by at most ε, for several values of ε.

    Attributes:
        jsd: JSD between original and farthest attention in nats, float64 [epsilons, batch].
        attention: the farthest attention, float64 [epsilons, batch, keys].
    """

    jsd: Tensor
    attention: Tensor


def permutation_extremes(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the smallest and the largest logit over all permutations of a text's weights.

    The logit is the weighted sum of token scores. It is largest if weights and scores are sorted
    in the same order, and smallest if they are sorted in opposite orders (rearrangement
    inequality).

    Args:
        attention: attention weights a_t, [batch, keys].
        scores: token scores u_t, [batch, keys].
        mask: weights that are permuted, bool [batch, keys].

    Returns:
        Smallest and largest Σ_t a_π(t) u_t over all permutations π, each float64 [batch].
    """
    weights = _sort_masked(attention, mask)
    smallest = -(weights * _sort_masked(-scores, mask)).sum(-1)
    largest = (weights * _sort_masked(scores, mask)).sum(-1)
    return smallest, largest


def permutation_moments(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the variance of the logit over random permutations of the weights.

    The mean is T·ā·ū, and the variance is Σ(a − ā)² Σ(u − ū)² / (T − 1), for T tokens (Hoeffding
    1951).

    Args:
        attention: attention weights a_t, [batch, keys].
        scores: token scores u_t, [batch, keys].
        mask: weights that are permuted, bool [batch, keys].

    Returns:
        Mean and variance of Σ_t a_π(t) u_t over permutations π, each float64 [batch]. The
        variance is 0 if there is only one token.
    """
    n = mask.sum(-1).clamp_min(1).to(torch.float64)
    a_mean, a_squares = _compute_mean_and_squares(attention, mask, n)
    u_mean, u_squares = _compute_mean_and_squares(scores, mask, n)
    mean = n * a_mean * u_mean
    variance = a_squares * u_squares / (n - 1).clamp_min(1)
    return mean, variance


def epsilon_max_jsd(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """Find the attention that differs most, but changes the probability by at most ε.

    The difference is the Jensen-Shannon divergence (JSD) to the original attention. Jain &
    Wallace 2019 (Section 4.2.2) search for this attention with an optimiser. Here the result is
    exact: the condition |σ(Σ a'_t u_t) − p| ≤ ε restricts the attention a' to a region between two
    parallel planes. The JSD is convex, so its maximum is at a vertex of this region. At each
    vertex, at most two tokens have weight, so it is enough to compare all pairs of tokens. In texts
    with more than :data:`MAX_EXACT_TOKENS` tokens, only some pairs are compared, see
    :func:`select_candidates`, and the JSD is a lower bound.

    Args:
        attention: attention weights a_t, [batch, keys].
        scores: token scores u_t, [batch, keys].
        mask: tokens that may receive weight, bool [batch, keys].
        epsilons: largest allowed changes in the probability, in (0, 1].

    Returns:
        Farthest attention and its JSD for each ε.
    """
    n_paired = mask.shape[-1] if mask.shape[-1] <= MAX_EXACT_TOKENS else N_CANDIDATE_TOKENS
    chunk_size = max(1, CANDIDATES_PER_CHUNK // max(1, n_paired**2))
    results = _run_in_chunks(_find_farthest, chunk_size, attention, scores, mask, epsilons)
    return FarthestAttention(*results)


ChunkFunction = Callable[[Tensor, Tensor, Tensor, Sequence[float]], Iterable[Tensor]]
"""Function that computes results for a part of the batch.

Its arguments are attention, token scores or token logits, mask, and the values of ε. It returns tensors
[epsilons, batch, ...].
"""


def _run_in_chunks(
    function: ChunkFunction,
    chunk_size: int,
    attention: Tensor,
    scores: Tensor,
    mask: Tensor,
    epsilons: Sequence[float],
) -> Iterator[Tensor]:
    """Split a batch into chunks, run a function on each chunk, and join its results.

    All numbers are converted to float64.

    Yields:
        One tensor [epsilons, batch, ...] for each tensor that the function returns.
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
    """Edges of the attention simplex. On an edge, only two tokens i < j have weight.

    Attributes:
        i: index of the first token, int64 [pairs].
        j: index of the second token, int64 [pairs].
        is_real: whether both tokens may receive weight, bool [batch, pairs].
        score_i: score u_i of the first token, [batch, pairs].
        gap: score difference u_j − u_i, [batch, pairs].
        a_i: original attention weight on the first token, [batch, pairs].
        a_j: original attention weight on the second token, [batch, pairs].
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
        """Edge numbers 0, 1, …, int64 [1, pairs]."""
        return torch.arange(len(self.i), device=self.i.device)[None]


def build_edges(attention: Tensor, scores: Tensor, mask: Tensor) -> Edges:
    """List all pairs of tokens, with the scores and attention weights of both tokens.

    Each pair is an edge of the attention simplex: attention to only these two tokens.

    Args:
        attention: attention weights a_t, [batch, keys].
        scores: token scores u_t, [batch, keys].
        mask: tokens that may receive weight, bool [batch, keys].

    Returns:
        The edges, with the scores and weights of both tokens.
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
        # Other functions divide by the gap, so a gap of 0 is replaced by a tiny number.
        gap=gap.masked_fill(gap == 0, torch.finfo(gap.dtype).tiny),
        a_i=a_i,
        a_j=a_j,
        entropy=_x_log_x(a_i) + _x_log_x(a_j),
    )


def _find_farthest(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """Find the attention with the largest JSD that changes the probability by at most ε.

    This implements :func:`epsilon_max_jsd` for a part of the batch, in float64. All values of ε are
    processed one after the other.
    """
    if mask.shape[-1] < 2:
        zero_jsd = attention.new_zeros(len(epsilons), len(attention))
        return FarthestAttention(zero_jsd, attention.repeat(len(epsilons), 1, 1))
    logit = (attention * scores).sum(-1, keepdim=True)
    # The complement is not computed as 1 − p, which would be imprecise if p is near 1.
    prob, complement = logit.sigmoid(), (-logit).sigmoid()
    max_score = scores.masked_fill(~mask, 0).abs().amax(-1, keepdim=True)
    is_exact = mask.shape[-1] <= MAX_EXACT_TOKENS
    paired = None if is_exact else select_candidates(attention, scores, mask, logit)
    paired_attention = attention
    if paired is not None:
        paired_attention = attention.gather(1, paired)
        scores, mask = scores.gather(1, paired), mask.gather(1, paired)
    edges = build_edges(paired_attention, scores, mask)
    jsds, attentions = [], []
    for epsilon in epsilons:
        low, high = compute_log_odds_range(prob, complement, max_score, epsilon)
        farthest_jsd, farthest = find_farthest_in_slab(paired_attention, edges, low, high)
        if paired is not None:
            farthest = torch.zeros_like(attention).scatter(1, paired, farthest)
            # If no pair is feasible, the attention stays unchanged.
            farthest = torch.where(farthest_jsd[:, None] > 0, farthest, attention)
        jsds.append(farthest_jsd)
        attentions.append(farthest)
    return FarthestAttention(torch.stack(jsds), torch.stack(attentions))


def select_candidates(attention: Tensor, scores: Tensor, mask: Tensor, logit: Tensor) -> Tensor:
    """Select tokens whose pairs are compared, in a text with too many tokens to compare all pairs.

    The JSD is larger if the two tokens of a pair had less attention, and most pairs that keep the
    logit have one score below it and one above. Therefore, the tokens with the least attention and
    the tokens with the most extreme scores are selected on both sides of the logit.

    Args:
        attention: attention weights a_t, [batch, keys].
        scores: token scores u_t, [batch, keys].
        mask: tokens that may receive weight, bool [batch, keys].
        logit: the text's logit, [batch, 1].

    Returns:
        Different token indices, int64 [batch, N_CANDIDATE_TOKENS].
    """
    is_selected = torch.zeros_like(mask)
    for is_on_side, extremity in ((scores <= logit, -scores), (scores > logit, scores)):
        for priority, n_tokens in (
            (-attention, N_CANDIDATE_TOKENS * 3 // 8),
            (extremity, N_CANDIDATE_TOKENS // 8),
        ):
            indices = priority.masked_fill(~(mask & is_on_side), -torch.inf).topk(n_tokens).indices
            is_selected.scatter_(1, indices, True)
    # If a side has too few tokens, `topk` also returns tokens outside the mask or on the other side.
    # Tokens outside the mask are not selected. Other tokens inside the mask fill the remaining slots.
    rank = 2 * (is_selected & mask).long() + mask.long()
    return rank.topk(N_CANDIDATE_TOKENS).indices


def compute_log_odds_range(
    p: Tensor, q: Tensor, max_score: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Compute the range of the log odds ln(p/q) if both probabilities change by at most ε.

    The lower end is ln((p − ε) / (q + ε)) and the upper end is ln((p + ε) / (q − ε)). The range is
    made slightly larger, so that rounding errors cannot exclude any attention.

    Args:
        p: probability of one class.
        q: probability of another class; with two classes, 1 − p.
        max_score: largest absolute token score, from which the rounding error is estimated.
        epsilon: largest allowed change in each probability.

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
    """Find the farthest attention a' whose logit is in a range: low ≤ Σ a'_t u_t ≤ high.

    On each edge, the feasible weights form an interval. The JSD is convex, so it is largest at
    one end of this interval.

    Args:
        attention: original attention weights, [batch, keys].
        edges: edges with the token scores u_t.
        low: lower bound for the logit, [batch, 1].
        high: upper bound for the logit, [batch, 1].

    Returns:
        JSD, [batch], and farthest attention, [batch, keys].
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
    # With a single token there is no edge, so the attention cannot change.
    vertex = torch.where(best_jsd[:, None] >= 0, vertex, attention)
    return best_jsd.clamp_min(0), vertex


def compute_interval_ends(edges: Edges, low: Tensor, high: Tensor) -> Tensor:
    """Compute the weights of token j at which the logit reaches its lower and its upper bound.

    On an edge, only two tokens i and j have weight, so the weight of token i is 1 minus that of
    token j. All weights between the two results keep the logit within its bounds. If both results
    are below 0 or both are above 1, no weight does.

    Args:
        edges: edges with the token scores u_t.
        low: lower bound for the logit, [batch, 1].
        high: upper bound for the logit, [batch, 1].

    Returns:
        Weights at the lower and the upper bound, [2, batch, pairs].
    """
    return torch.stack([low - edges.score_i, high - edges.score_i]).div_(edges.gap)


def compute_two_point_jsd(edges: Edges, weight: Tensor) -> Tensor:
    """Compute the JSD between the original attention and attention to only two tokens i and j.

    Every other token t contributes ½ a_t ln 2, so only the weights on i and j are needed.

    Args:
        edges: edges with the original attention weights.
        weight: weight on token j, [2, batch, pairs]; token i has weight 1 − ``weight``.

    Returns:
        JSD in nats, [2, batch, pairs].
    """
    weight_i = 1 - weight
    # JSD = ln 2 + ½ Σ [b ln b + a ln a − (a + b) ln(a + b)], with original weight a and new weight b.
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
    """Compute the mean x̄ and the sum of squared deviations Σ(x − x̄)² of selected values.

    Args:
        values: values x, [batch, keys].
        mask: values to include, bool [batch, keys].
        n: number of included values, [batch].

    Returns:
        Means and sums, each float64 [batch].
    """
    values = values.double() * mask
    mean = values.sum(-1) / n
    deviations = (values - mean[:, None]) * mask
    return mean, deviations.square().sum(-1)


# --- Bounds for any number of classes, with logits = Σ_t a_t u_t --------------------------------
# With two classes, the feasible attention (whose output is within ε) forms a slab between two parallel
# planes, and its vertices give the exact solution, as above. With more classes, the feasible region has
# a different shape, so only a lower and an upper bound are computed.
#
# Upper bound: if the output changes by at most ε in total variation, so does every probability.
# Therefore, for every pair of classes i, j
#
#     ln (p_i − ε)₊ − ln (p_j + ε)  ≤  Σ_t a'_t (u_ti − u_tj)  ≤  ln (p_i + ε) − ln (p_j − ε)₊
#
# This slab contains the whole feasible region, so its exact solution is an upper bound. The smallest
# bound over all pairs is used. Slabs are widened by the rounding error, so that rounding cannot
# exclude any feasible attention.
#
# Lower bound: the JSD of the farthest feasible candidate. Most candidates are on edges, so only two
# tokens have weight. On an edge, the slabs of all class pairs leave an interval of weights. The JSD is
# convex, so the outermost feasible weights are the best ones. One more candidate comes from a linear
# program; see :func:`solve_linear_program`.


ENTRIES_PER_CHUNK = 1 << 19
"""Number of array entries that are computed at a time. An array has one entry for each pair of
tokens and each class."""
MAX_CLASS_PAIRS = 28
"""Largest number of class pairs from which the upper bound for the JSD is computed. Models with up
to 8 classes have no more pairs. For other models, the pairs of the most probable classes are
used."""
N_GRID_POINTS = 9
"""Number of evenly spaced attention weights that are tried for the second token in each pair of
tokens. The first token gets the remaining weight."""
N_REFINED_CANDIDATES = 32
"""Number of candidate distributions per text that are refined by bisection. The most distant
candidates are chosen."""
N_BISECTIONS = 40
"""Number of bisection steps by which the most distant candidate distributions are refined."""
EPSILON_SAFETY_FACTOR = 1 - 1e-9
"""Factor on the allowed output change ε. It is slightly below 1, so that output changes stay within
ε despite rounding errors."""
SOLVER_SAFETY_MARGIN = 1e-6
"""Safety margin by which the constraints of the linear program are tightened, in log odds. It is
larger than the error of the solver."""


class JsdBounds(NamedTuple):
    """Lower and upper bounds for the largest JSD within ε.

    Attributes:
        lower: JSD of ``attention`` in nats, float64 [epsilons, batch].
        upper: JSD in nats that no attention within ε exceeds, except for a rounding error of
            1e-15, float64 [epsilons, batch].
        attention: attention that reaches the lower bound, float64 [epsilons, batch, keys].
    """

    lower: Tensor
    upper: Tensor
    attention: Tensor


def epsilon_max_jsd_bounds(
    attention: Tensor, logits: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> JsdBounds:
    """Bound the largest JSD of attention within ε, for any number of classes.

    This extends :func:`epsilon_max_jsd` to several classes. For two classes and ε > 0, both
    bounds agree with the exact solution up to 1e-7. For ε = 0, the lower bound can be far too
    low, because rounding errors alone can change the output by more than 0.

    Args:
        attention: attention weights a_t, [batch, keys].
        logits: token logits u_t, [batch, keys, classes].
        mask: tokens that may receive weight, bool [batch, keys].
        epsilons: largest allowed total variation distances between outputs, in [0, 1].

    Returns:
        Both bounds, and the attention that reaches the lower bound.
    """
    n_keys, n_classes = logits.shape[1:]
    chunk_size = max(1, ENTRIES_PER_CHUNK // max(1, n_keys**2 // 2 * n_classes))
    results = _run_in_chunks(_compute_bounds, chunk_size, attention, logits, mask, epsilons)
    return JsdBounds(*results)


def _compute_bounds(
    attention: Tensor, logits: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> JsdBounds:
    """Compute lower and upper bounds for the largest JSD within ε, for each ε.

    This implements :func:`epsilon_max_jsd_bounds` for a part of the batch, in float64.

    - The lower bound is the JSD of the farthest candidate. Candidates are the original attention,
      the solution of a linear program, and attention to only two tokens.
    - The upper bound comes from :func:`_bound_by_slabs`. This function also finds the pairs of
      tokens that are worth searching.
    """
    if mask.shape[-1] < 2:
        zero = attention.new_zeros(len(epsilons), len(attention))
        return JsdBounds(zero, zero, attention.repeat(len(epsilons), 1, 1))
    probs = _compute_probs(attention, logits)
    # Sort the classes by probability, because the bounds use pairs of the most probable classes.
    probs, class_order = probs.sort(-1, descending=True)
    logits = logits.gather(-1, class_order[:, None].expand_as(logits))

    bounds = []
    for epsilon in epsilons:
        upper, feasible_edges = _bound_by_slabs(attention, logits, mask, probs, epsilon)
        edge_candidates = _search_edges(attention, logits, feasible_edges, probs, epsilon)
        program_candidate = solve_linear_program(attention, logits, mask, epsilon)
        other_candidates = torch.stack([attention, program_candidate])
        candidates = torch.cat([other_candidates, edge_candidates])
        farthest, lower = _choose_farthest_candidate(candidates, attention, logits, probs, epsilon)
        bounds.append((lower, upper, farthest))
    lower_bounds, upper_bounds, attentions = zip(*bounds, strict=True)
    return JsdBounds(torch.stack(lower_bounds), torch.stack(upper_bounds), torch.stack(attentions))


def _compute_probs(attention: Tensor, logits: Tensor) -> Tensor:
    """Compute the class probabilities softmax(Σ_t a_t u_t).

    Args:
        attention: attention weights a_t, [..., batch, keys].
        logits: token logits u_t, [batch, keys, classes].

    Returns:
        Probabilities, [..., batch, classes].
    """
    return torch.einsum("...bk,bkn->...bn", attention, logits).softmax(-1)


def _choose_farthest_candidate(
    candidates: Tensor,
    attention: Tensor,
    logits: Tensor,
    probs: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Choose the farthest candidate that changes the output by at most ε.

    Args:
        candidates: candidate attention, [candidates, batch, keys]; the first candidate is the
            original attention.
        attention: original attention, [batch, keys].
        logits: token logits, [batch, keys, classes].
        probs: original output, [batch, classes].
        epsilon: largest allowed total variation distance between outputs.

    Returns:
        Farthest attention, [batch, keys], and its JSD, [batch].
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


def iterate_class_pairs(
    probs: Tensor, max_score: Tensor, epsilon: float
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Iterate over pairs of classes, and compute the allowed range of their log odds.

    Args:
        probs: original output, [batch, classes], most probable class first.
        max_score: largest absolute difference between two logits of a token, [batch, 1].
        epsilon: largest allowed change in each probability.

    Yields:
        Class indices i and j, and the lowest and highest log odds of i against j, each [batch, 1].
    """
    n_classes = probs.shape[-1]
    # The classes are sorted by probability, so probable pairs have a small sum of indices.
    pairs = itertools.combinations(range(n_classes), 2)
    most_probable_pairs = sorted(pairs, key=sum)[:MAX_CLASS_PAIRS]
    for i, j in most_probable_pairs:
        low, high = compute_log_odds_range(probs[:, [i]], probs[:, [j]], max_score, epsilon)
        yield i, j, low, high


class FeasibleEdges(NamedTuple):
    """Edges with the interval in which the weight on the second token may be feasible.

    Attributes:
        edges: all edges of the attention simplex.
        low: lower end of the interval, [batch, pairs], in [0, 1].
        high: upper end of the interval, [batch, pairs], in [0, 1].
        is_open: whether the interval contains any weight, bool [batch, pairs].
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
    """Compute an upper bound for the JSD from the slabs of all class pairs.

    Returns:
        Smallest upper bound over all slabs, [batch], and the parts of the edges that are inside
        all slabs.
    """
    upper = largest_jsd(attention, mask)
    n_keys = mask.shape[-1]
    n_pairs = n_keys * (n_keys - 1) // 2
    lowest = attention.new_zeros(len(attention), n_pairs)
    highest = torch.ones_like(lowest)
    # The difference of two logits is at most twice the largest absolute logit.
    max_logit = logits.masked_fill(~mask[..., None], 0).abs()
    max_difference = 2 * max_logit.amax(2).amax(1)[:, None]

    for i, j, low, high in iterate_class_pairs(probs, max_difference, epsilon):
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
    """Search all token pairs for distant attention that changes the output by at most ε.

    Args:
        attention: original attention, [batch, keys].
        logits: token logits, [batch, keys, classes].
        feasible_edges: token pairs, with the range of weights to search.
        probs: original output, [batch, classes].
        epsilon: largest allowed total variation distance between outputs.

    Returns:
        Candidates with weight on only two tokens, [ends, batch, keys].
    """
    edges = feasible_edges.edges
    text = torch.arange(len(logits), device=logits.device)[:, None]
    # No distance exceeds 1 except by rounding, so ε = 1 means that there is no limit.
    limit = EPSILON_SAFETY_FACTOR * epsilon if epsilon < 1 else math.inf

    def make_change_function(pair: Tensor) -> Callable[[Tensor], Tensor]:
        # With weight w on token j and 1 − w on token i, the logits are (1 − w) u_i + w u_j.
        logits_i = logits[text, edges.i[pair]]
        logits_j = logits[text, edges.j[pair]]

        def compute_change(weight: Tensor) -> Tensor:
            output = torch.lerp(logits_i, logits_j, weight[..., None]).softmax(-1)
            return tvd(output, probs[:, None])

        return compute_change

    ends = search_edge_ends(feasible_edges, make_change_function, limit, N_GRID_POINTS)
    return ends.build_attention(attention, edges.i[ends.pair], edges.j[ends.pair])


EdgeChange = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""Function that creates a function for computing output changes. The outer function receives edge
numbers, [batch, n]; an edge is a pair of tokens. The inner function receives the weight on the
second token of each edge, and returns the output change (TVD) for each weight, both [batch, n]."""


class EdgeEnds(NamedTuple):
    """Outermost feasible points on edges, each [batch, ends].

    Attributes:
        pair: edge number.
        weight: weight on the second token of the edge.
        is_found: whether the edge has any feasible point.
    """

    pair: Tensor
    weight: Tensor
    is_found: Tensor

    def build_attention(self, attention: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Convert points on edges to attention weights, with all weight on two tokens.

        Args:
            attention: original attention, [batch, keys], which is returned for points that were not
                found.
            first: index of the first token with weight, [batch, ends].
            second: index of the second token with weight, [batch, ends].

        Returns:
            Attention weights, [ends, batch, keys].
        """
        end_attention = build_two_token_attention(first, second, self.weight, attention.shape[-1])
        end_attention = torch.where(self.is_found[..., None], end_attention, attention[:, None])
        return end_attention.transpose(0, 1)


def build_two_token_attention(first: Tensor, second: Tensor, weight: Tensor, n_keys: int) -> Tensor:
    """Build attention weights with all weight on two tokens.

    Args:
        first: index of the first token, int64 [...].
        second: index of the second token, int64 [...].
        weight: weight on the second token, [...]; the first token gets the rest.
        n_keys: number of tokens.

    Returns:
        Attention weights, [..., keys].
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
    """Search the edges for the feasible points that are farthest from the original attention.

    First, a grid of weights is tried on each edge. Then, for the most promising edges, bisection
    finds the boundary between feasible and infeasible weights.

    Args:
        feasible_edges: edges with the intervals to search.
        make_change_function: function that creates the function for computing output changes;
            see :data:`EdgeChange`.
        limit: largest allowed output change, ε.
        n_weights: number of weights that are tried on each edge.

    Returns:
        The outermost feasible points.
    """
    edges = feasible_edges.edges
    compute_change = make_change_function(edges.numbers)

    # Two weights enclose the lower and the upper end of the feasible weights, each
    # [2, batch, pairs]: a feasible weight (inside) and its infeasible neighbour (outside). Both
    # are equal if the interval ends at this weight.
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
    n_refined = min(N_REFINED_CANDIDATES, possible_jsd.shape[-1])
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
    """Arrange values [ends, batch, pairs] in one row per text, [batch, ends · pairs]."""
    return values.transpose(0, 1).flatten(1)


def solve_linear_program(attention: Tensor, logits: Tensor, mask: Tensor, epsilon: float) -> Tensor:
    """Find distant attention a' within ε by solving a linear program for each text.

    If the log odds of every class against the first class change by at most 2 artanh ε, the
    output changes by at most ε. Under this condition, the program maximises Σ a'_t v_t, with the
    JSD v_t for attention to token t alone. This sum is an upper bound for the JSD of a', because
    the JSD is convex. In the solution, only few tokens have weight.

    Args:
        attention: original attention, float64 [batch, keys].
        logits: token logits u_t, float64 [batch, keys, classes].
        mask: tokens that may receive weight, bool [batch, keys].
        epsilon: largest allowed total variation distance between outputs, in [0, 1].

    Returns:
        Attention, [batch, keys]; the original attention if the solver fails. Check that it is
        within ε before using it.
    """
    from scipy.optimize import linprog

    max_change = 2 * math.atanh(min(epsilon, EPSILON_SAFETY_FACTOR)) - SOLVER_SAFETY_MARGIN
    log_odds = logits - logits[..., :1]
    original_log_odds = torch.einsum("bk,bkn->bn", attention, log_odds)
    changes = log_odds - original_log_odds[:, None]
    one_hot_jsds = one_hot_jsd(attention)
    solutions = attention.clone()
    for text in (mask.sum(-1) > 1).nonzero()[:, 0].tolist():
        is_token = mask[text]
        class_changes = changes[text, is_token].t()
        constraints = torch.cat([class_changes, -class_changes]).cpu().numpy()
        result = linprog(
            -one_hot_jsds[text, is_token].cpu().numpy(),
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
# For these models, attention to only two tokens is also a good candidate, but no slab restricts the
# weights beforehand. The result is within ε, so its JSD is a lower bound.


Replay = Callable[[Tensor], Tensor]
"""Function that runs the model with other attention.

It receives attention, [copies, batch, keys], and returns probabilities, [copies, batch, classes].
"""

MAX_PAIRED_TOKENS = 32
"""Largest number of tokens from which pairs are formed: the 32 least attended tokens form 496
pairs. Tokens with little attention are chosen because distant attention puts its weight on them."""
N_FINE_GRID_POINTS = 33
"""Number of evenly spaced attention weights that are tried for the second token in each pair of
tokens. This finer grid is used for models whose logits are not linear in the attention."""


@torch.no_grad()
def search_edges_by_replay(
    attention: Tensor,
    visible: Tensor,
    replay: Replay,
    probs: Tensor,
    epsilon: float,
) -> Tensor:
    """Search for distant attention to only two tokens that changes the output by at most ε.

    Args:
        attention: the model's attention, [batch, keys].
        visible: tokens that may receive weight, bool [batch, keys].
        replay: function that runs the model with other attention; see :data:`Replay`.
        probs: the model's output, [batch, classes].
        epsilon: largest allowed total variation distance between outputs.

    Returns:
        Candidate attention, [ends, batch, keys]. Candidates that were not found are replaced by
        the model's attention.
    """
    token_order = attention.masked_fill(~visible, torch.inf)
    token_order = token_order.argsort(dim=-1, stable=True)[:, :MAX_PAIRED_TOKENS]
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

    # If no grid weight on an edge is within ε, a weight near the best grid weight may be. The
    # search is then restricted to its neighbourhood.
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
