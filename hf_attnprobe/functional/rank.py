"""Kendall's τ-b with its p-value, for a whole batch at once; the numbers of ``scipy.stats.kendalltau``.

Kendall, *Rank Correlation Methods* (4th ed., 1970); used by Jain & Wallace 2019, Section 4.1.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor


EXACT_UP_TO = (
    33  # scipy's bound: without ties and up to this length the p-value is exact
)
SIGNS_AT_ONCE = 1 << 16  # what stays in a core's cache


class RankCorrelation(NamedTuple):
    """τ-b in [−1, 1] and its two-sided p-value, each [batch] or [batch, vectors, vectors]; NaN where a row is constant or shorter than two."""

    tau: Tensor
    p_value: Tensor


@functools.cache
def _exact_p_values() -> Tensor:
    """Two-sided p by length n and discordant (or concordant, if fewer) pairs c, [34, 529]: inversions of permutations."""
    table = torch.ones(
        EXACT_UP_TO + 1, EXACT_UP_TO * (EXACT_UP_TO - 1) // 2 + 1, dtype=torch.float64
    )
    share = torch.zeros(
        table.shape[1], dtype=torch.float64
    )  # share of the n! permutations with c inversions
    share[0] = 1
    for n in range(2, EXACT_UP_TO + 1):
        window = torch.cat([share.new_zeros(n), share]).cumsum(0)
        share = (window[n:] - window[:-n]) / n
        table[n] = (2 * share.cumsum(0)).clamp(max=1)
    return table


def _pair_counts(values: Tensor, mask: Tensor) -> Tensor:
    """Concordant minus discordant pairs, [batch, vectors, vectors]; on the diagonal, pairs that are not tied.

    All ordered pairs of positions at once: signs of x_i − x_j, then one product of matrices, in chunks of the batch
    that fit a core's cache. Sums of signs are exact in float32 up to 4,096 keys.
    """
    _, n_vectors, n_keys = values.shape
    if n_keys > 4096:
        values = values.double()
    chunk = max(1, SIGNS_AT_ONCE // max(1, n_vectors * n_keys**2))
    counts = []
    for x, real in zip(
        values.split(chunk),
        mask.to(values.dtype).unsqueeze(1).split(chunk),
        strict=True,
    ):
        signs = (
            (x.unsqueeze(-1) - x.unsqueeze(-2))
            .sign_()
            .mul_(real.unsqueeze(-1) * real.unsqueeze(-2))
            .flatten(2)
        )
        counts.append(signs @ signs.transpose(1, 2) / 2)
    return torch.cat(counts).to(torch.float64)


def _tie_sums(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ t(t−1)(t−2) and Σ t(t−1)(2t+5) over the groups of t equal values, each [batch, vectors]."""
    mask = mask.unsqueeze(1)
    equal = (x.unsqueeze(-1) == x.unsqueeze(-2)) & mask.unsqueeze(-2)
    t = (equal.sum(-1) * mask).to(
        torch.float64
    )  # each member of a group counts the group's size
    others = (t - 1).clamp_min(0)
    return (others * (t - 2)).sum(-1), (others * (2 * t + 5)).sum(-1)


def _asymptotic_p_value(
    score: Tensor, n: Tensor, ties: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """Normal approximation with the variance corrected for ties."""
    zero, one = torch.zeros_like(ties), torch.zeros_like(ties)
    if ties.any():
        zero, one = _tie_sums(values, mask)
    m = n * (n - 1)
    triples = (9 * m * (n - 2)).clamp_min(1)
    variance = (m * (2 * n + 5) - _rows(one) - _columns(one)) / 18 + 2 * _rows(
        ties
    ) * _columns(ties) / m.clamp_min(1)
    variance = variance + _rows(zero) * _columns(zero) / triples
    return torch.special.erfc(score.abs() / (2 * variance).sqrt())


def _rows(x: Tensor) -> Tensor:
    return x.unsqueeze(-1)


def _columns(x: Tensor) -> Tensor:
    return x.unsqueeze(-2)


def _exact_p_value(score: Tensor, n: Tensor) -> Tensor:
    """p from the table; beyond it only for at most one discordant pair, where it is 2/n! or 2/(n−1)!."""
    total = n * (n - 1) / 2
    fewer = ((total - score.abs()) / 2).round()
    table = _exact_p_values().to(score.device)
    short = table[
        n.clamp(max=EXACT_UP_TO).long(), fewer.clamp(0, table.shape[1] - 1).long()
    ]
    long = (math.log(2) - torch.lgamma(n + 1 - fewer.clamp(max=1))).exp()
    return torch.where(n <= EXACT_UP_TO, short, long)


def dense_rank(
    values: Tensor, mask: Tensor, *, rtol: float = 0.0, atol: float = 0.0
) -> Tensor:
    """Ranks 0, 1, 2, … over the mask, in which neighbours closer than ``atol + rtol·|value|`` share a rank.

    Rounding makes equal quantities differ in their last bits; ranked as they are, such ties would be broken at random.

    Shape: values, mask [..., keys] -> float32 [..., keys]; meaningless outside the mask.
    """
    ordered, place = values.masked_fill(~mask, torch.inf).sort(-1)
    apart = ordered.diff(dim=-1) > atol + rtol * ordered[..., :-1].abs()
    ranks = torch.zeros_like(ordered, dtype=torch.float32)
    torch.cumsum(apart, -1, out=ranks[..., 1:])
    return torch.empty_like(ranks).scatter_(-1, place, ranks)


def kendall_tau_b(x: Tensor, y: Tensor, mask: Tensor) -> RankCorrelation:
    """Kendall's τ-b of x and y over the positions in ``mask``: (concordant − discordant) / √(pairs untied in x · in y).

    The p-value is exact up to 33 values without ties (and wherever at most one pair is out of order), else normal.

    Shape: x, y, mask [batch, keys] -> [batch], float64.

    >>> x, y = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    >>> kendall_tau_b(x, y, torch.ones(1, 4, dtype=torch.bool)).tau.round(decimals=4).tolist()
    [0.6667]
    """
    return RankCorrelation(
        *(
            part[:, 0, 1]
            for part in kendall_tau_b_matrix(torch.stack([x, y], dim=1), mask)
        )
    )


def kendall_tau_b_matrix(values: Tensor, mask: Tensor) -> RankCorrelation:
    """:func:`kendall_tau_b` of every vector with every other.

    Shape: values [batch, vectors, keys], mask [batch, keys] -> [batch, vectors, vectors], float64.
    """
    score = _pair_counts(values, mask)
    untied = score.diagonal(dim1=-2, dim2=-1)
    undefined = (_rows(untied) == 0) | (_columns(untied) == 0)
    tau = (score / _rows(untied).sqrt() / _columns(untied).sqrt()).clamp(-1, 1)

    n = mask.sum(-1).to(torch.float64)[:, None, None]
    total = n * (n - 1) / 2
    ties = total[..., 0] - untied
    exact = (_rows(ties) + _columns(ties) == 0) & (
        (n <= EXACT_UP_TO) | ((total - score.abs()) / 2 <= 1)
    )
    p_value = torch.where(exact, _exact_p_value(score, n), torch.nan)
    if not (exact | undefined).all():
        normal = _asymptotic_p_value(score, n, ties, values, mask)
        p_value = torch.where(exact, p_value, normal)
    return RankCorrelation(
        tau.masked_fill(undefined, torch.nan), p_value.masked_fill(undefined, torch.nan)
    )
