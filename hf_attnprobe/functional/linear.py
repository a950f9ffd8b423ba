"""Exact answers where the read-out is linear: logit = Σ_t a_t u_t with u_t = w·h_t + b.

Three questions that the papers sample or call infeasible. ``scores`` are the u_t of a binary model (the difference of
the two logits), [batch, keys]; attention and mask [batch, keys]. All arithmetic is in float64: these are scalars.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


PAIRS_AT_ONCE = 1 << 17  # candidates per chunk of the batch: what stays in a core's cache


class FarthestAttention(NamedTuple):
    """The largest JSD within each ε, [epsilons, batch], and an attention that has it, [epsilons, batch, keys]."""

    jsd: Tensor
    attention: Tensor


def permutation_extremes(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest Σ_t a_π(t) u_t over all T! permutations π of the real tokens, each [batch].

    By the rearrangement inequality: sort both the same way for the largest, opposite ways for the smallest.
    """
    weights = _sorted(attention, mask)
    lowest = -(weights * _sorted(-scores, mask)).sum(-1)
    return lowest, (weights * _sorted(scores, mask)).sum(-1)


def permutation_moments(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of Σ_t a_π(t) u_t over uniformly random permutations π, each [batch].

    Mean T·ā·ū; variance Σ(a − ā)² Σ(u − ū)² / (T − 1), 0 for a single token (Hoeffding 1951).
    """
    n = mask.sum(-1).clamp_min(1).to(torch.float64)
    (a_mean, a_square), (u_mean, u_square) = _moments(attention, mask, n), _moments(scores, mask, n)
    return n * a_mean * u_mean, a_square * u_square / (n - 1).clamp_min(1)


def epsilon_max_jsd(attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]) -> FarthestAttention:
    """The attention farthest from the given one, by JSD, that moves the probability by at most ε. Exact.

    |σ(Σ a'_t u_t) − p| ≤ ε cuts the simplex by two parallel planes; JSD is convex in a', so its maximum lies at a
    vertex, and a vertex has at most two non-zero weights. O(T²) candidates, no optimiser (Jain & Wallace 2019,
    Section 4.2.2, search the same set). Only for a binary linear read-out.
    """
    attention, scores = attention.double(), scores.double()
    chunk = max(1, 2 * PAIRS_AT_ONCE // max(1, mask.shape[-1] ** 2))
    parts = [
        _farthest(a, u, m, epsilons)
        for a, u, m in zip(attention.split(chunk), scores.split(chunk), mask.split(chunk), strict=True)
    ]
    return FarthestAttention(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))


def _farthest(attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]) -> FarthestAttention:
    """The same for one chunk of the batch."""
    prob = (attention * scores).sum(-1, keepdim=True).sigmoid()
    if mask.shape[-1] < 2:
        return FarthestAttention(prob.new_zeros(len(epsilons), len(prob)), attention.repeat(len(epsilons), 1, 1))
    found = []
    for epsilon in epsilons:
        low, high = ((prob + step).clamp(0, 1).logit() for step in (-epsilon, epsilon))
        found.append(_farthest_between(attention, scores, mask, low, high))
    return FarthestAttention(*(torch.stack(part) for part in zip(*found, strict=True)))


def _farthest_between(attention, scores, mask, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The farthest attention with low ≤ Σ a'_t u_t ≤ high (each [batch, 1]): its JSD [batch] and itself.

    On the edge between two tokens the feasible weights are an interval; convexity puts the maximum at one of its ends.
    """
    i, j = torch.triu_indices(mask.shape[-1], mask.shape[-1], offset=1, device=mask.device)
    gap = scores[:, j] - scores[:, i]
    gap = torch.where(gap == 0, torch.finfo(gap.dtype).tiny, gap)
    ends = torch.stack([(low - scores[:, i]) / gap, (high - scores[:, i]) / gap])  # weight on j, [2, batch, pairs]
    feasible = mask[:, i] & mask[:, j] & (ends.amin(0) <= 1) & (ends.amax(0) >= 0)
    ends = ends.clamp(0, 1)
    value = _two_point_jsd(attention, i, j, ends).masked_fill(~feasible, -1)
    best, place = value.transpose(0, 1).flatten(1).max(-1)
    pair, weight = place % len(i), ends.transpose(0, 1).flatten(1).gather(1, place[:, None])
    vertex = torch.zeros_like(attention).scatter(1, j[pair][:, None], weight)
    vertex = vertex.scatter(1, i[pair][:, None], 1 - weight)
    # A text of one token has no edge: its attention cannot move.
    return best.clamp_min(0), torch.where(best[:, None] >= 0, vertex, attention)


def _two_point_jsd(attention: Tensor, i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
    """JSD of attention to (1 − weight) on i and weight on j, [2, batch, pairs]; the other tokens give a_t ln 2 each."""
    own = _x_log_x(attention)
    a_i, a_j = attention[:, i], attention[:, j]
    common = own[:, i] + own[:, j] + _x_log_x(weight) + _x_log_x(1 - weight)
    return math.log(2) + (common - _x_log_x(a_i + 1 - weight) - _x_log_x(a_j + weight)) / 2


def _x_log_x(x: Tensor) -> Tensor:
    return x * x.clamp_min(torch.finfo(x.dtype).tiny).log()


def _sorted(values: Tensor, mask: Tensor) -> Tensor:
    """Ascending over the mask, then zeros."""
    ranked = values.double().masked_fill(~mask, torch.inf).sort(-1).values
    return ranked.masked_fill(torch.isinf(ranked), 0)


def _moments(values: Tensor, mask: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations over the mask."""
    values = values.double() * mask
    mean = values.sum(-1) / n
    return mean, ((values - mean[:, None]).square() * mask).sum(-1)
