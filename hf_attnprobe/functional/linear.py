"""Exact answers where the read-out is linear: logit = Σ_t a_t u_t with u_t = w·h_t + b.

Three questions that the papers sample or call infeasible. ``scores`` are the u_t of a binary model (the difference of
the two logits), [batch, keys]; attention and mask [batch, keys]. All arithmetic is in float64: these are scalars.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


PAIRS_AT_ONCE = (
    1 << 15
)  # candidates per chunk of the batch: what stays in a core's cache


class FarthestAttention(NamedTuple):
    """The largest JSD within each ε, [epsilons, batch], and an attention that has it, [epsilons, batch, keys]."""

    jsd: Tensor
    attention: Tensor


def permutation_extremes(
    attention: Tensor, scores: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Smallest and largest Σ_t a_π(t) u_t over all T! permutations π of the real tokens, each [batch].

    By the rearrangement inequality: sort both the same way for the largest, opposite ways for the smallest.
    """
    weights = _sorted(attention, mask)
    lowest = -(weights * _sorted(-scores, mask)).sum(-1)
    return lowest, (weights * _sorted(scores, mask)).sum(-1)


def permutation_moments(
    attention: Tensor, scores: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of Σ_t a_π(t) u_t over uniformly random permutations π, each [batch].

    Mean T·ā·ū; variance Σ(a − ā)² Σ(u − ū)² / (T − 1), 0 for a single token (Hoeffding 1951).
    """
    n = mask.sum(-1).clamp_min(1).to(torch.float64)
    (a_mean, a_square), (u_mean, u_square) = (
        _moments(attention, mask, n),
        _moments(scores, mask, n),
    )
    return n * a_mean * u_mean, a_square * u_square / (n - 1).clamp_min(1)


def epsilon_max_jsd(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """The attention farthest from the given one, by JSD, that moves the probability by at most ε. Exact.

    |σ(Σ a'_t u_t) − p| ≤ ε cuts the simplex by two parallel planes; JSD is convex in a', so its maximum lies at a
    vertex, and a vertex has at most two non-zero weights. O(T²) candidates, no optimiser (Jain & Wallace 2019,
    Section 4.2.2, search the same set). Only for a binary linear read-out.
    """
    attention, scores = attention.double(), scores.double()
    chunk = max(1, 2 * PAIRS_AT_ONCE // max(1, mask.shape[-1] ** 2))
    parts = [
        _farthest(a, u, m, epsilons)
        for a, u, m in zip(
            attention.split(chunk), scores.split(chunk), mask.split(chunk), strict=True
        )
    ]
    return FarthestAttention(
        *(torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    )


class _Edges(NamedTuple):
    """All pairs of tokens i < j, each [batch, pairs] but the first two; ``own`` is a_i ln a_i + a_j ln a_j."""

    i: Tensor
    j: Tensor
    real: Tensor
    score_i: Tensor
    gap: Tensor
    a_i: Tensor
    a_j: Tensor
    own: Tensor


def _edges(attention: Tensor, scores: Tensor, mask: Tensor) -> _Edges:
    i, j = torch.triu_indices(
        mask.shape[-1], mask.shape[-1], offset=1, device=mask.device
    )
    (score_i, score_j), (a_i, a_j) = (
        [x.index_select(1, k) for k in (i, j)] for x in (scores, attention)
    )
    gap = score_j - score_i
    gap = torch.where(gap == 0, torch.finfo(gap.dtype).tiny, gap)
    return _Edges(
        i,
        j,
        mask[:, i] & mask[:, j],
        score_i,
        gap,
        a_i,
        a_j,
        _x_log_x(a_i) + _x_log_x(a_j),
    )


def _farthest(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """The same for one chunk of the batch."""
    prob = (attention * scores).sum(-1, keepdim=True).sigmoid()
    if mask.shape[-1] < 2:
        return FarthestAttention(
            prob.new_zeros(len(epsilons), len(prob)),
            attention.repeat(len(epsilons), 1, 1),
        )
    found, edges = [], _edges(attention, scores, mask)
    for epsilon in epsilons:
        low, high = ((prob + step).clamp(0, 1).logit() for step in (-epsilon, epsilon))
        found.append(_farthest_between(attention, edges, low, high))
    return FarthestAttention(*(torch.stack(part) for part in zip(*found, strict=True)))


def _farthest_between(
    attention: Tensor, edges: _Edges, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """The farthest attention with low ≤ Σ a'_t u_t ≤ high (each [batch, 1]): its JSD [batch] and itself.

    On the edge between two tokens the feasible weights are an interval; convexity puts the maximum at one of its ends.
    """
    ends = torch.stack([low - edges.score_i, high - edges.score_i]).div_(
        edges.gap
    )  # weight on j, [2, batch, pairs]
    feasible = edges.real & (ends.amin(0) <= 1) & (ends.amax(0) >= 0)
    value = _two_point_jsd(edges, ends.clamp_(0, 1)).masked_fill_(~feasible, -1)
    best, place = value.transpose(0, 1).flatten(1).max(-1)
    pair, weight = (
        place % len(edges.i),
        ends.transpose(0, 1).flatten(1).gather(1, place[:, None]),
    )
    vertex = torch.zeros_like(attention).scatter(1, edges.j[pair][:, None], weight)
    vertex = vertex.scatter(1, edges.i[pair][:, None], 1 - weight)
    # A text of one token has no edge: its attention cannot move.
    return best.clamp_min(0), torch.where(best[:, None] >= 0, vertex, attention)


def _two_point_jsd(edges: _Edges, weight: Tensor) -> Tensor:
    """JSD of attention to (1 − weight) on i and weight on j, [2, batch, pairs]; the other tokens give a_t ln 2 each."""
    rest = 1 - weight
    common = _x_log_x(weight).add_(_x_log_x(rest)).add_(edges.own)
    common -= _x_log_x(rest.add_(edges.a_i))
    common -= _x_log_x(edges.a_j + weight)
    return common.div_(2).add_(math.log(2))


def _x_log_x(x: Tensor) -> Tensor:
    return x.clamp_min(torch.finfo(x.dtype).tiny).log_().mul_(x)


def _sorted(values: Tensor, mask: Tensor) -> Tensor:
    """Ascending over the mask, then zeros."""
    ranked = values.double().masked_fill(~mask, torch.inf).sort(-1).values
    return ranked.masked_fill(torch.isinf(ranked), 0)


def _moments(values: Tensor, mask: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations over the mask."""
    values = values.double() * mask
    mean = values.sum(-1) / n
    return mean, ((values - mean[:, None]).square() * mask).sum(-1)
