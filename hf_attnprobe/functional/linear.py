"""Exact answers where the read-out is linear: logit = Σ_t a_t u_t, u_t = w·h_t + b.

Three questions that the papers sample or call infeasible.

Common arguments:
    attention: [batch, keys].
    scores: the u_t of a binary model, the difference of the two logits, [batch, keys].
    mask: bool [batch, keys].

All arithmetic is in float64. What is said to hold every attention within ε is widened by
the rounding, :data:`ROUNDING`: equal scores, saturated outputs and ε = 0 are decided by
the last digit otherwise.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


CANDIDATES_AT_ONCE = 1 << 16  # what stays in a core's cache
# Of a logit, relative to the largest score: a sum over a thousand tokens stays below.
ROUNDING = 2.0**-44
PROBABILITY_ROUNDING = 2.0**-50  # of a total variation distance, at most 1


class FarthestAttention(NamedTuple):
    """The attention farthest from a given one within each ε.

    Attributes:
        jsd: float64 [epsilons, batch], in nats.
        attention: float64 [epsilons, batch, keys], an attention that has this JSD.
    """

    jsd: Tensor
    attention: Tensor


def permutation_extremes(
    attention: Tensor, scores: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Smallest and largest logit over all T! permutations of a text's weights.

    By the rearrangement inequality: sort both the same way for the largest, opposite
    ways for the smallest.

    Returns:
        Smallest and largest Σ_t a_π(t) u_t, each float64 [batch].
    """
    weights = _sorted(attention, mask)
    smallest = -(weights * _sorted(-scores, mask)).sum(-1)
    return smallest, (weights * _sorted(scores, mask)).sum(-1)


def permutation_moments(
    attention: Tensor, scores: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the logit over uniformly random permutations.

    The mean is T·ā·ū, the variance Σ(a − ā)² Σ(u − ū)² / (T − 1) (Hoeffding 1951).

    Returns:
        Mean and variance of Σ_t a_π(t) u_t, each float64 [batch]; the variance of a
        single token is 0.
    """
    n = mask.sum(-1).clamp_min(1).to(torch.float64)
    a_mean, a_squares = _mean_and_squares(attention, mask, n)
    u_mean, u_squares = _mean_and_squares(scores, mask, n)
    return n * a_mean * u_mean, a_squares * u_squares / (n - 1).clamp_min(1)


def epsilon_max_jsd(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """The attention with the largest JSD that moves the probability by at most ε; exact.

    |σ(Σ a'_t u_t) − p| ≤ ε cuts the simplex by two parallel planes. JSD is convex in
    a', so its maximum lies at a vertex, and a vertex has at most two non-zero
    weights: O(T²) candidates, no optimiser. Jain & Wallace 2019 (Section 4.2.2)
    search the same set.

    Args:
        epsilons: bounds on the change of the probability, in (0, 1].
    """
    chunk = max(1, CANDIDATES_AT_ONCE // max(1, mask.shape[-1] ** 2))
    chunks = zip(
        attention.double().split(chunk),
        scores.double().split(chunk),
        mask.split(chunk),
        strict=True,
    )
    parts = [_farthest(*tensors, epsilons) for tensors in chunks]
    return FarthestAttention(
        jsd=torch.cat([part.jsd for part in parts], dim=1),
        attention=torch.cat([part.attention for part in parts], dim=1),
    )


class Edges(NamedTuple):
    """All pairs of tokens i < j; i, j [pairs], all others [batch, pairs].

    ``entropy`` is a_i ln a_i + a_j ln a_j, ``gap`` is u_j − u_i.
    """

    i: Tensor
    j: Tensor
    is_real: Tensor
    score_i: Tensor
    gap: Tensor
    a_i: Tensor
    a_j: Tensor
    entropy: Tensor


def edges_of(attention: Tensor, scores: Tensor, mask: Tensor) -> Edges:
    """The edges of the simplex: attentions to two tokens; arguments as above."""
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
        gap=gap.masked_fill(gap == 0, torch.finfo(gap.dtype).tiny),
        a_i=a_i,
        a_j=a_j,
        entropy=_x_log_x(a_i) + _x_log_x(a_j),
    )


def _farthest(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """:func:`epsilon_max_jsd` for a chunk of the batch."""
    if mask.shape[-1] < 2:
        jsd = attention.new_zeros(len(epsilons), len(attention))
        return FarthestAttention(jsd, attention.repeat(len(epsilons), 1, 1))
    logit = (attention * scores).sum(-1, keepdim=True)
    # Both probabilities: next to 1, 1 − p has lost what the other still holds.
    prob, rest = logit.sigmoid(), (-logit).sigmoid()
    size = scores.masked_fill(~mask, 0).abs().amax(-1, keepdim=True)
    edges = edges_of(attention, scores, mask)
    jsds, attentions = [], []
    for epsilon in epsilons:
        low, high = log_odds_within(prob, rest, size, epsilon)
        jsd, farthest = farthest_between(attention, edges, low, high)
        jsds.append(jsd)
        attentions.append(farthest)
    return FarthestAttention(torch.stack(jsds), torch.stack(attentions))


def log_odds_within(
    prob: Tensor, other: Tensor, size: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The range of ln p/q where both probabilities move by at most ε.

    Rounded outward, so that no attention is left out that is within ε in float64.

    Args:
        prob, other: the two probabilities; of two classes they add up to 1.
        size: the largest logit of any token, without its sign.

    Returns:
        Lowest and highest log odds; infinite where a probability can become 0.
    """
    moved = epsilon + PROBABILITY_ROUNDING
    low = (prob - moved).clamp_min(0).log() - (other + moved).log()
    high = (prob + moved).log() - (other - moved).clamp_min(0).log()
    return low - ROUNDING * (size + low.abs()), high + ROUNDING * (
        size + high.abs()
    )


def farthest_between(
    attention: Tensor, edges: Edges, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the farthest attention with low ≤ Σ a'_t u_t ≤ high (each [batch, 1]).

    On the edge between two tokens the feasible weights are an interval; convexity puts
    the maximum at one of its ends.

    Returns:
        Its JSD [batch], and itself [batch, keys].
    """
    ends = interval_ends(edges, low, high)
    is_feasible = edges.is_real & (ends.amin(0) <= 1)
    is_feasible &= ends.amax(0) >= 0
    ends = ends.clamp_(0, 1)
    jsd = two_point_jsd(edges, ends).masked_fill_(~is_feasible, -1)
    jsd = jsd.transpose(0, 1).flatten(1)  # [batch, ends · pairs]
    best, end = jsd.max(-1)
    weight = ends.transpose(0, 1).flatten(1)
    weight = weight.gather(1, end[:, None])

    pair = end % len(edges.i)
    i = edges.i[pair][:, None]
    j = edges.j[pair][:, None]
    vertex = torch.zeros_like(attention)
    vertex = vertex.scatter(1, j, weight)
    vertex = vertex.scatter(1, i, 1 - weight)
    # A text of one token has no edge: its attention cannot move.
    vertex = torch.where(best[:, None] >= 0, vertex, attention)
    return best.clamp_min(0), vertex


def interval_ends(edges: Edges, low: Tensor, high: Tensor) -> Tensor:
    """Weight on j at which the logit is low and at which it is high, [2, batch, pairs].

    Between both lie the weights with low ≤ Σ a'_t u_t ≤ high (each [batch, 1]); none
    where they lie on one side of [0, 1].
    """
    return torch.stack([low - edges.score_i, high - edges.score_i]).div_(
        edges.gap
    )


def two_point_jsd(edges: Edges, weight: Tensor) -> Tensor:
    """Returns the JSD of attention to (1 − weight) on i and weight on j, [2, batch, pairs].

    Every other token t contributes a_t ln 2.
    """
    rest = 1 - weight
    total = _x_log_x(weight)
    total += _x_log_x(rest)
    total += edges.entropy
    total -= _x_log_x(rest.add_(edges.a_i))
    total -= _x_log_x(edges.a_j + weight)
    return total.div_(2).add_(math.log(2))


def _x_log_x(x: Tensor) -> Tensor:
    return x.clamp_min(torch.finfo(x.dtype).tiny).log_().mul_(x)


def _sorted(values: Tensor, mask: Tensor) -> Tensor:
    """Ascending over the mask, then zeros."""
    ranked = values.double().masked_fill(~mask, torch.inf).sort(-1).values
    return ranked.masked_fill(torch.isinf(ranked), 0)


def _mean_and_squares(
    values: Tensor, mask: Tensor, n: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations over the mask, each [batch]."""
    values = values.double() * mask
    mean = values.sum(-1) / n
    deviations = (values - mean[:, None]) * mask
    return mean, deviations.square().sum(-1)
