"""Kendall's τ-b with its p-value, for a whole batch at once.

The numbers are those of ``scipy.stats.kendalltau``. Kendall, *Rank Correlation Methods*
(4th ed., 1970); used by Jain & Wallace 2019, Section 4.1.

Ties are ties. Leaving out either of two equal neighbours leaves the same text, so their
importances are equal; in floating point they differ in the last bits and would be ranked at
random. So values within a few hundred units of rounding share a rank before τ-b sees them
(:func:`dense_rank`). With it every τ and p of the reference implementation is met to 1e-15;
without it some sentences are off by .01.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor


# SciPy's bound: without ties and up to this length the p-value is exact.
EXACT_UP_TO = 33
SIGNS_AT_ONCE = 1 << 16  # what stays in a core's cache


class RankCorrelation(NamedTuple):
    """Kendall's τ-b and its p-value; NaN where a row is constant or shorter than two.

    Attributes:
        tau: float64 [batch] or [batch, vectors, vectors], in [−1, 1].
        p_value: two-sided, of the same shape, in [0, 1].
    """

    tau: Tensor
    p_value: Tensor


@functools.cache
def _exact_p_values() -> Tensor:
    """Returns two-sided p-values by length n and number c of pairs out of order, [34, 529].

    c is the number of discordant pairs, or of concordant ones if these are fewer. The
    distribution is that of the inversions of a random permutation.
    """
    most_pairs = EXACT_UP_TO * (EXACT_UP_TO - 1) // 2
    table = torch.ones(EXACT_UP_TO + 1, most_pairs + 1, dtype=torch.float64)
    # Share of the n! permutations with c inversions.
    share = torch.zeros_like(table[0])
    share[0] = 1
    for n in range(2, EXACT_UP_TO + 1):
        window = torch.cat([share.new_zeros(n), share])
        window = window.cumsum(0)
        share = (window[n:] - window[:-n]) / n
        up_to = share.cumsum(0)
        table[n] = (2 * up_to).clamp(max=1)
    return table


def _pair_counts(values: Tensor, mask: Tensor) -> Tensor:
    """Returns concordant minus discordant pairs, float64 [batch, vectors, vectors].

    On the diagonal stand the pairs that are not tied. All ordered pairs of positions at
    once: signs of x_i − x_j, then one product of matrices, in chunks of the batch that
    fit a core's cache. Sums of signs are exact in float32 up to 4,096 keys.
    """
    _, n_vectors, n_keys = values.shape
    if n_keys > 4096:
        values = values.double()
    n_signs = n_vectors * n_keys**2  # of a text
    chunk = max(1, SIGNS_AT_ONCE // max(1, n_signs))
    is_real = mask.to(values.dtype).unsqueeze(1)
    counts = []
    for x, real in zip(values.split(chunk), is_real.split(chunk), strict=True):
        signs = _rows(x) - _columns(x)
        signs.sign_()
        signs.mul_(_rows(real) * _columns(real))
        signs = signs.flatten(2)
        counts.append(signs @ signs.transpose(1, 2) / 2)
    return torch.cat(counts).to(torch.float64)


def _tie_sums(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns Σ t(t−1)(t−2) and Σ t(t−1)(2t+5) over the groups of t equal values.

    Each [batch, vectors].
    """
    mask = mask.unsqueeze(1)
    is_equal = _rows(x) == _columns(x)
    is_equal &= _columns(mask)
    # Summed over members, each of which counts the size of its group.
    t = is_equal.sum(-1) * mask
    t = t.to(torch.float64)
    others = (t - 1).clamp_min(0)
    first = others * (t - 2)
    second = others * (2 * t + 5)
    return first.sum(-1), second.sum(-1)


def _asymptotic_p_value(
    score: Tensor, n: Tensor, ties: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """Returns the p-value by the normal approximation, with the variance corrected for ties.

    Kendall 1970, Chapter 4; ``zero`` and ``one`` are the corrections of SciPy's code.
    """
    zero = one = torch.zeros_like(ties)
    if ties.any():
        zero, one = _tie_sums(values, mask)
    m = n * (n - 1)
    variance = m * (2 * n + 5)  # 18 times that without ties
    variance = variance - _rows(one)
    variance = variance - _columns(one)
    variance = variance / 18

    of_pairs = 2 * _rows(ties) * _columns(ties)
    variance = variance + of_pairs / m.clamp_min(1)
    of_triples = _rows(zero) * _columns(zero)
    n_triples = 9 * m * (n - 2)
    variance = variance + of_triples / n_triples.clamp_min(1)

    two_errors = (2 * variance).sqrt()
    return torch.special.erfc(score.abs() / two_errors)


def _rows(x: Tensor) -> Tensor:
    return x.unsqueeze(-1)


def _columns(x: Tensor) -> Tensor:
    return x.unsqueeze(-2)


def _exact_p_value(score: Tensor, n: Tensor) -> Tensor:
    """Returns the p-value from the table.

    Beyond the table only for at most one pair out of order: 2/n! or 2/(n−1)!.
    """
    n_pairs = n * (n - 1) / 2
    out_of_order = (n_pairs - score.abs()) / 2
    out_of_order = out_of_order.round()

    table = _exact_p_values().to(score.device)
    row = n.clamp(max=EXACT_UP_TO).long()
    last = table.shape[1] - 1
    column = out_of_order.clamp(0, last).long()
    in_table = table[row, column]

    log_orders = torch.lgamma(n + 1 - out_of_order.clamp(max=1))  # ln n! or ln (n − 1)!
    beyond = (math.log(2) - log_orders).exp()
    return torch.where(n <= EXACT_UP_TO, in_table, beyond)


def dense_rank(
    values: Tensor,
    mask: Tensor,
    *,
    rtol: float = 0.0,
    atol: float | Tensor = 0.0,
) -> Tensor:
    """Returns the ranks 0, 1, 2, … of the values in the mask; near neighbours share a rank.

    Rounding makes equal quantities differ in their last bits; ranked as they are, such
    ties would be broken at random.

    Args:
        values: [..., keys].
        mask: bool [..., keys].
        rtol, atol: sorted neighbours closer than ``atol + rtol·|value|`` are equal;
            ``atol`` may differ by row, [..., 1].

    Returns:
        float32 [..., keys]; meaningless outside the mask.

    >>> dense_rank(torch.tensor([0.3, 0.1, 0.1]), torch.ones(3).bool()).tolist()
    [1.0, 0.0, 0.0]
    """
    real = values.masked_fill(~mask, torch.inf)
    ordered, position = real.sort(-1)
    size = ordered[..., :-1].abs()
    tolerance = atol + rtol * size
    gap = ordered.diff(dim=-1)
    is_apart = gap > tolerance

    in_order = torch.zeros_like(ordered, dtype=torch.float32)
    torch.cumsum(is_apart, -1, out=in_order[..., 1:])
    ranks = torch.empty_like(in_order)
    return ranks.scatter_(-1, position, in_order)


def chance_of_agreement(n: Tensor, *, level: float = 0.05) -> Tensor:
    """Probability that a random order agrees significantly with a given one.

    Probability of a positive τ with a two-sided p-value of at most ``level``. Without
    ties it follows from the inversions of random permutations, exactly up to 33 values;
    beyond, half the level is right to ±.002. With ties it is less.

    Args:
        n: numbers of values, any shape.

    Returns:
        float64 of the same shape.

    >>> chance_of_agreement(torch.tensor([4, 5, 40])).tolist()  # of 5! orders only one
    [0.0, 0.008333333333333333, 0.025]
    """
    chance = _largest_up_to(level).to(n.device)[n.clamp(max=EXACT_UP_TO).long()]
    return torch.where(n <= EXACT_UP_TO, chance, level) / 2


@functools.cache
def _largest_up_to(level: float) -> Tensor:
    """The largest p-value that is at most ``level`` by number of values, [34]."""
    p_values = _exact_p_values()
    return p_values.masked_fill(p_values > level, 0).amax(-1)


def kendall_tau_b(x: Tensor, y: Tensor, mask: Tensor) -> RankCorrelation:
    """Kendall's τ-b of x and y (Jain & Wallace 2019, Section 4.1).

    (concordant − discordant) / √(pairs untied in x · pairs untied in y). The p-value is
    exact up to 33 values without ties, and wherever at most one pair is out of order;
    else it is that of the normal approximation.

    Args:
        x, y: [batch, keys].
        mask: bool [batch, keys], the positions that count.

    Returns:
        τ-b and p-value, each float64 [batch].

    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> y = torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    >>> kendall_tau_b(x, y, torch.ones(1, 4).bool()).tau.round(decimals=4).tolist()
    [0.6667]
    """
    matrix = kendall_tau_b_matrix(torch.stack([x, y], dim=1), mask)
    return RankCorrelation(matrix.tau[:, 0, 1], matrix.p_value[:, 0, 1])


def kendall_tau_b_matrix(values: Tensor, mask: Tensor) -> RankCorrelation:
    """:func:`kendall_tau_b` of every vector with every other.

    Args:
        values: [batch, vectors, keys].
        mask: bool [batch, keys], the positions that count.

    Returns:
        τ-b and p-value, each float64 [batch, vectors, vectors].
    """
    score = _pair_counts(values, mask)
    untied = score.diagonal(dim1=-2, dim2=-1)
    is_undefined = (_rows(untied) == 0) | (_columns(untied) == 0)
    tau = score / _rows(untied).sqrt()
    tau = tau / _columns(untied).sqrt()
    tau = tau.clamp(-1, 1)

    n = mask.sum(-1).to(torch.float64)[:, None, None]
    n_pairs = n * (n - 1) / 2
    ties = n_pairs[..., 0] - untied
    no_ties = _rows(ties) + _columns(ties) == 0
    one_out_of_order = (n_pairs - score.abs()) / 2 <= 1
    is_exact = no_ties & ((n <= EXACT_UP_TO) | one_out_of_order)
    p_value = torch.where(is_exact, _exact_p_value(score, n), torch.nan)
    if not (is_exact | is_undefined).all():
        normal = _asymptotic_p_value(score, n, ties, values, mask)
        p_value = torch.where(is_exact, p_value, normal)
    return RankCorrelation(
        tau=tau.masked_fill(is_undefined, torch.nan),
        p_value=p_value.masked_fill(is_undefined, torch.nan),
    )


def top_overlap(x: Tensor, y: Tensor, mask: Tensor, k: int) -> Tensor:
    """The share of the k largest of x that are among the k largest of y.

    Where several values tie for the k-th place, it is drawn among them, for x and for y
    by itself; this is the mean over all draws. Of sets without ties the Jaccard index is
    overlap / (2 − overlap). Two random orders of n values share k / n.

    Args:
        x, y: [batch, keys]; equal values tie.
        mask: bool [batch, keys], the positions that count; k of them are expected.

    Returns:
        float64 [batch] in [0, 1].

    >>> x, y = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 1.0]])
    >>> top_overlap(x, y, torch.ones(1, 3).bool(), 2).tolist()  # 2nd of y: one of two
    [0.75]
    """
    return (_chance_of_top(x, mask, k) * _chance_of_top(y, mask, k)).sum(-1) / k


def _chance_of_top(values: Tensor, mask: Tensor, k: int | Tensor) -> Tensor:
    """Returns the probability of being one of the k largest when ties are drawn.

    Args:
        k: one for all, or int [..., 1].

    Returns:
        float64 [..., keys].
    """
    n_smaller, n_larger = _smaller_and_larger(values, mask)
    n_equal = mask.sum(-1, keepdim=True) - n_smaller - n_larger
    share = (k - n_larger).double() / n_equal.clamp_min(1)
    return share.clamp(0, 1) * mask


def top_tau(x: Tensor, y: Tensor, mask: Tensor, k: int) -> Tensor:
    """Returns Kendall's τ-a on the union of the k largest of x and the k largest of y.

    In each of the two, what is not among its largest is tied below them. It is
    1 − 2K / pairs for the distance K of top-k lists with the penalty p = ½ (Fagin, Kumar
    & Sivakumar 2003), which is in the released code of Jain & Wallace 2019. What ties
    with the k-th is among the largest.

    Args:
        x, y: [batch, keys].
        mask: bool [batch, keys], the positions that count.

    Returns:
        float64 [batch] in [−1, 1]; NaN where the union is a single one.

    >>> x, y = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 2.0]])
    >>> round(top_tau(x, y, torch.ones(1, 3).bool(), 2).item(), 4)  # pairs +, +, −
    0.3333
    """
    values = torch.stack([x, y])
    _, n_larger = _smaller_and_larger(values, mask)
    top = (n_larger < k) & mask
    union = top.any(0)
    n = union.sum(-1)
    n_pairs = n * (n - 1) / 2

    # Only the union's keys are compared: they are few.
    keys = union.to(torch.int8).topk(int(n.max())).indices
    union = union.gather(-1, keys)
    keys = keys.expand(2, -1, -1)
    values = values.gather(-1, keys)
    top = top.gather(-1, keys)
    ranks = dense_rank(values, top)
    ranks = ranks.masked_fill(~top, -1)
    score = _pair_counts(ranks.transpose(0, 1), union)
    return score[:, 0, 1] / n_pairs.double()


def gini_correlation(values: Tensor, order: Tensor, mask: Tensor) -> Tensor:
    """Gini correlation: how well an order of the tokens puts the largest values first.

    Σ_{i<j} (v_i − v_j) sign(o_i − o_j) / Σ_{i<j} |v_i − v_j|: Kendall's τ with every
    pair weighted by how much its values differ, so that tokens of almost equal value
    may stand in any order. Schechtman & Yitzhaki 1987: cov(v, rank o) / cov(v, rank v).

    Args:
        values, order: [..., keys]; equal entries of the order put neither first.
        mask: bool [..., keys].

    Returns:
        float64 [...] in [−1, 1], 0 on average over random orders; NaN where all values
        are equal.

    >>> values, mask = torch.tensor([8.0, 0.1, 0.0]), torch.ones(3).bool()
    >>> round(gini_correlation(values, torch.tensor([3.0, 1.0, 2.0]), mask).item(), 2)
    0.99
    """
    values = values.double().masked_fill(~mask, 0)
    own = (values * wins(values, mask)).sum(-1)
    by_order = (values * wins(order.double(), mask)).sum(-1)
    return by_order / own.masked_fill(own <= 0, torch.nan)


def wins(values: Tensor, mask: Tensor) -> Tensor:
    """Returns how many values are smaller less how many are larger, by token, [..., keys]."""
    n_smaller, n_larger = _smaller_and_larger(values, mask)
    return (n_smaller - n_larger).masked_fill(~mask, 0)


def _smaller_and_larger(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how many values are smaller, and how many larger, by token, [..., keys].

    Meaningless outside the mask.
    """
    real = values.masked_fill(~mask, torch.inf).contiguous()
    in_order = real.sort(-1).values
    n_smaller = torch.searchsorted(in_order, real)
    n_not_larger = torch.searchsorted(in_order, real, right=True)
    n_real = mask.sum(-1, keepdim=True)
    n_larger = n_real - n_not_larger
    return n_smaller, n_larger


def heaviest(values: Tensor, mask: Tensor, share: float = 0.5) -> Tensor:
    """Returns the fewest tokens that hold a share of all value, bool [..., keys].

    Args:
        values: not negative, [..., keys].
        mask: bool [..., keys].

    Equal ones count from left to right:

    >>> heaviest(torch.ones(20), torch.ones(20).bool()).nonzero()[:, 0].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    values = values.double()
    values = values.masked_fill(~mask, 0)
    largest, place = values.sort(dim=-1, descending=True, stable=True)
    before = largest.cumsum(-1) - largest
    total = values.sum(-1, keepdim=True)
    is_needed = before < share * total
    chosen = torch.zeros_like(mask)
    chosen.scatter_(-1, place, is_needed)
    return chosen & mask & (values > 0)


def precision(order: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Returns the share of wanted tokens among as many that an order puts first.

    Where several tokens tie for the last place, it is drawn among them: the mean.

    Args:
        order: [..., keys], the largest first.
        wanted, mask: bool [..., keys].

    Returns:
        float64 [...] in [0, 1]; NaN where none is wanted.
    """
    n_wanted = (wanted & mask).sum(-1, keepdim=True)
    chance = _chance_of_top(order.double(), mask, n_wanted)
    hits = (chance * wanted).sum(-1)
    n_wanted = n_wanted[..., 0].double()
    n_wanted = n_wanted.masked_fill(n_wanted == 0, torch.nan)
    return hits / n_wanted
