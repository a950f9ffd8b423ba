"""Kendall's τ-b with its p-value, for a whole batch at once; the numbers of ``scipy.stats.kendalltau``.

Kendall, *Rank Correlation Methods* (4th ed., 1970); used by Jain & Wallace 2019, Section 4.1.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor


EXACT_UP_TO = 33  # scipy's bound: without ties and up to this length the p-value is exact


class RankCorrelation(NamedTuple):
    """τ-b in [−1, 1] and its two-sided p-value, each [batch]; NaN where a row is constant or shorter than two."""

    tau: Tensor
    p_value: Tensor


@functools.cache
def _exact_p_values() -> Tensor:
    """Two-sided p by length n and discordant (or concordant, if fewer) pairs c, [34, 529]: inversions of permutations."""
    table = torch.ones(EXACT_UP_TO + 1, EXACT_UP_TO * (EXACT_UP_TO - 1) // 2 + 1, dtype=torch.float64)
    share = torch.zeros(table.shape[1], dtype=torch.float64)  # share of the n! permutations with c inversions
    share[0] = 1
    for n in range(2, EXACT_UP_TO + 1):
        window = torch.cat([share.new_zeros(n), share]).cumsum(0)
        share = (window[n:] - window[:-n]) / n
        table[n] = (2 * share.cumsum(0)).clamp(max=1)
    return table


def _pairs(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Signs of x_i − x_j for all i < j, [batch, pairs], and which pairs are real."""
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], offset=1, device=x.device)
    real = mask[:, i] & mask[:, j]
    return (x[:, i] - x[:, j]).sign() * real, real


def _tie_sums(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ t(t−1)(t−2) and Σ t(t−1)(2t+5) over the groups of t equal values, each [batch]."""
    equal = (x[:, :, None] == x[:, None, :]) & mask[:, None, :]
    t = (equal.sum(-1) * mask).to(torch.float64)  # each member of a group counts the group's size
    others = (t - 1).clamp_min(0)
    return (others * (t - 2)).sum(-1), (others * (2 * t + 5)).sum(-1)


def _asymptotic_p_value(
    score: Tensor, n: Tensor, ties: tuple[Tensor, ...], x: Tensor, y: Tensor, mask: Tensor
) -> Tensor:
    """Normal approximation with the variance corrected for ties."""
    x_ties, y_ties = ties
    x0 = x1 = y0 = y1 = torch.zeros_like(score)
    if x_ties.any() or y_ties.any():
        (x0, x1), (y0, y1) = _tie_sums(x, mask), _tie_sums(y, mask)
    m = n * (n - 1)
    triples = (9 * m * (n - 2)).clamp_min(1)
    variance = (m * (2 * n + 5) - x1 - y1) / 18 + 2 * x_ties * y_ties / m.clamp_min(1) + x0 * y0 / triples
    return torch.special.erfc(score.abs() / (2 * variance).sqrt())


def _exact_p_value(score: Tensor, n: Tensor) -> Tensor:
    """p from the table; beyond it only for at most one discordant pair, where it is 2/n! or 2/(n−1)!."""
    total = n * (n - 1) / 2
    fewer = ((total - score.abs()) / 2).round()
    table = _exact_p_values().to(score.device)
    short = table[n.clamp(max=EXACT_UP_TO).long(), fewer.clamp(0, table.shape[1] - 1).long()]
    long = (math.log(2) - torch.lgamma(n + 1 - fewer.clamp(max=1))).exp()
    return torch.where(n <= EXACT_UP_TO, short, long)


def dense_rank(values: Tensor, mask: Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> Tensor:
    """Ranks 0, 1, 2, … over the mask, in which neighbours closer than ``atol + rtol·|value|`` share a rank.

    Rounding makes equal quantities differ in their last bits; ranked as they are, such ties would be broken at random.

    Shape: values, mask [batch, keys] -> float64 [batch, keys]; meaningless outside the mask.
    """
    ordered, place = values.masked_fill(~mask, torch.inf).sort(-1)
    apart = ordered.diff(dim=-1) > atol + rtol * ordered[:, :-1].abs()
    ranks = torch.nn.functional.pad(apart.cumsum(-1), (1, 0)).to(torch.float64)
    return torch.empty_like(ranks).scatter_(-1, place, ranks)


def kendall_tau_b(x: Tensor, y: Tensor, mask: Tensor) -> RankCorrelation:
    """Kendall's τ-b of x and y over the positions in ``mask``: (concordant − discordant) / √(pairs untied in x · in y).

    The p-value is exact up to 33 values without ties (and wherever at most one pair is out of order), else normal.

    Shape: x, y, mask [batch, keys] -> [batch], float64.

    >>> x, y = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    >>> kendall_tau_b(x, y, torch.ones(1, 4, dtype=torch.bool)).tau.round(decimals=4).tolist()
    [0.6667]
    """
    (x_sign, real), (y_sign, _) = _pairs(x, mask), _pairs(y, mask)
    total = real.sum(-1).to(torch.float64)
    score = (x_sign * y_sign).sum(-1).to(torch.float64)
    x_untied, y_untied = (sign.abs().sum(-1).to(torch.float64) for sign in (x_sign, y_sign))
    undefined = (x_untied == 0) | (y_untied == 0)
    tau = (score / x_untied.sqrt() / y_untied.sqrt()).clamp(-1, 1)

    n = mask.sum(-1).to(torch.float64)
    untied = (x_untied == total) & (y_untied == total)
    exact = untied & ((n <= EXACT_UP_TO) | ((total - score.abs()) / 2 <= 1))
    p_value = torch.where(exact, _exact_p_value(score, n), torch.nan)
    if not (exact | undefined).all():
        normal = _asymptotic_p_value(score, n, (total - x_untied, total - y_untied), x, y, mask)
        p_value = torch.where(exact, p_value, normal)
    return RankCorrelation(tau.masked_fill(undefined, torch.nan), p_value.masked_fill(undefined, torch.nan))
