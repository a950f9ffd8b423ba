"""Kendall's τ-b with its p-value, and other ways to compare two rankings, for whole batches.

The results equal those of ``scipy.stats.kendalltau`` (Kendall, *Rank Correlation Methods*, 4th ed.,
1970). Jain & Wallace 2019 use them in Section 4.1.

Equal values must share a rank. For example, leaving out either of two equal adjacent words gives the
same text, so both words are equally important. However, rounding makes the two importances differ in
their last bits, so a ranking would order them at random. :func:`dense_rank` therefore assigns the same
rank to almost equal values, before τ-b is computed. With it, every τ and p from the reference
implementation is reproduced to 1e-15; without it, τ differs by .01 for some sentences.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor


MAX_EXACT_LENGTH = 33
"""Largest number of values for which the p-value of Kendall's τ is exact, if there are no ties.
SciPy uses the same limit."""
PAIRS_PER_CHUNK = 1 << 16
"""Number of value pairs that are compared at a time for Kendall's τ. This many pairs fit into the
cache of a CPU core."""

MAX_PAIRS_IN_MEMORY = 1 << 22
"""Largest number of value pairs of a text that are stored at a time. In float64, they take 32 MiB."""


class RankCorrelation(NamedTuple):
    """Kendall's τ-b and its p-value.

    Both are NaN if one vector is constant or has fewer than two values.

    Attributes:
        tau: τ-b in [−1, 1], float64 [batch] or [batch, vectors, vectors].
        p_value: two-sided p-value in [0, 1], with the same shape.
    """

    tau: Tensor
    p_value: Tensor


@functools.cache
def _build_p_value_table() -> Tensor:
    """Build a table of exact two-sided p-values of Kendall's τ for up to 33 values without ties.

    Two values are a discordant pair if the two orders disagree about them. If the orders are
    unrelated, the number of discordant pairs is distributed like the number of inversions in a
    random permutation.

    Returns:
        float64 [34, 529]. The first index is the number of values. The second index is the
        number of discordant or of concordant pairs, whichever is smaller.
    """
    max_pairs = MAX_EXACT_LENGTH * (MAX_EXACT_LENGTH - 1) // 2
    table = torch.ones(MAX_EXACT_LENGTH + 1, max_pairs + 1, dtype=torch.float64)
    # Share of the n! permutations that have 0, 1, 2, … inversions.
    shares = torch.zeros_like(table[0])
    shares[0] = 1
    for n in range(2, MAX_EXACT_LENGTH + 1):
        # Inserting the n-th value adds 0 to n − 1 inversions, each with probability 1/n. The
        # shares are therefore means over n neighbouring shares for n − 1 values.
        padded_sums = torch.cat([shares.new_zeros(n), shares])
        padded_sums = padded_sums.cumsum(0)
        shares = (padded_sums[n:] - padded_sums[:-n]) / n
        cumulative_shares = shares.cumsum(0)
        table[n] = (2 * cumulative_shares).clamp(max=1)
    return table


def _compute_kendall_scores(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the number of concordant minus discordant pairs of positions for any two vectors.

    A pair of positions i and j is concordant if x_i − x_j has the same sign in both vectors, and
    discordant if the signs are opposite. The signs of all pairs are compared with a matrix
    product. The batch is split into chunks that fit into the cache of a CPU core.

    Args:
        values: [batch, vectors, keys].
        mask: positions to include, bool [batch, keys].

    Returns:
        Scores, float64 [batch, vectors, vectors]. The diagonal contains the number of untied pairs
        of each vector.
    """
    _, n_vectors, n_keys = values.shape
    # Sums of signs are exact in float32 up to 4,096 keys.
    if n_keys > 4096:
        values = values.double()
    n_signs_per_text = n_vectors * n_keys**2
    chunk_size = max(1, PAIRS_PER_CHUNK // max(1, n_signs_per_text))
    is_real = mask.to(values.dtype).unsqueeze(1)
    counts = []
    chunks = zip(values.split(chunk_size), is_real.split(chunk_size), strict=True)
    for value_chunk, real_chunk in chunks:
        # All pairs of a large text would not fit into memory, so its rows are divided too.
        n_rows = max(1, MAX_PAIRS_IN_MEMORY // max(1, len(value_chunk) * n_vectors * n_keys))
        shape = (len(value_chunk), n_vectors, n_vectors)
        chunk_counts = torch.zeros(shape, dtype=torch.float64, device=values.device)
        for rows, real_rows in zip(
            value_chunk.split(n_rows, -1), real_chunk.split(n_rows, -1), strict=True
        ):
            signs = _expand_rows(rows) - _expand_columns(value_chunk)
            signs.sign_()
            signs.mul_(_expand_rows(real_rows) * _expand_columns(real_chunk))
            signs = signs.flatten(2)
            chunk_counts += signs @ signs.transpose(1, 2) / 2
        counts.append(chunk_counts)
    return torch.cat(counts)


def _sum_over_ties(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute two sums over groups of equal values, for the variance of Kendall's statistic.

    The sums are Σ t(t − 1)(t − 2) and Σ t(t − 1)(2t + 5), over all groups of t equal values. They
    correct the variance for ties.

    Args:
        x: [batch, vectors, keys].
        mask: positions to include, bool [batch, keys].

    Returns:
        The two sums, each [batch, vectors].
    """
    mask = mask.unsqueeze(1)
    n_rows = max(1, MAX_PAIRS_IN_MEMORY // max(1, x.numel()))
    n_equal = [
        ((_expand_rows(rows) == _expand_columns(x)) & _expand_columns(mask)).sum(-1)
        for rows in x.split(n_rows, -1)
    ]
    # The code sums over positions instead of groups. Each group has t positions, so the factor t is
    # left out in both sums.
    t = torch.cat(n_equal, -1) * mask
    t = t.to(torch.float64)
    n_other_members = (t - 1).clamp_min(0)
    first_sum = n_other_members * (t - 2)
    second_sum = n_other_members * (2 * t + 5)
    return first_sum.sum(-1), second_sum.sum(-1)


def _compute_asymptotic_p_value(
    score: Tensor, n: Tensor, ties: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """Compute p-values by the normal approximation, with a variance that is corrected for ties.

    See Kendall 1970, Chapter 4.

    Args:
        score: concordant minus discordant pairs, [batch, vectors, vectors].
        n: number of values, [batch, 1, 1].
        ties: number of tied pairs, [batch, vectors].
        values: [batch, vectors, keys].
        mask: positions to include, bool [batch, keys].

    Returns:
        Two-sided p-values, [batch, vectors, vectors].
    """
    tie_sum_0 = tie_sum_1 = torch.zeros_like(ties)
    if ties.any():
        tie_sum_0, tie_sum_1 = _sum_over_ties(values, mask)
    m = n * (n - 1)
    # Without ties, the variance is n(n − 1)(2n + 5) / 18.
    variance = m * (2 * n + 5)
    variance = variance - _expand_rows(tie_sum_1)
    variance = variance - _expand_columns(tie_sum_1)
    variance = variance / 18

    pair_term = 2 * _expand_rows(ties) * _expand_columns(ties)
    variance = variance + pair_term / m.clamp_min(1)
    triple_term = _expand_rows(tie_sum_0) * _expand_columns(tie_sum_0)
    n_triples = 9 * m * (n - 2)
    variance = variance + triple_term / n_triples.clamp_min(1)

    scale = (2 * variance).sqrt()
    return torch.special.erfc(score.abs() / scale)


def _expand_rows(x: Tensor) -> Tensor:
    """Append an axis of size 1: [..., n] becomes [..., n, 1], to broadcast along the columns."""
    return x.unsqueeze(-1)


def _expand_columns(x: Tensor) -> Tensor:
    """Insert an axis of size 1: [..., n] becomes [..., 1, n], to broadcast along the rows."""
    return x.unsqueeze(-2)


def _look_up_exact_p_value(score: Tensor, n: Tensor) -> Tensor:
    """Return exact p-values of Kendall's τ for values without ties.

    For up to 33 values, the p-value is looked up in a table. For n > 33 values, the result is only
    correct if at most one pair is discordant, or at most one pair is concordant. The p-value is
    then 2/n! or 2/(n−1)!.

    Args:
        score: number of concordant minus discordant pairs.
        n: number of values.
    """
    n_pairs = n * (n - 1) / 2
    n_discordant = (n_pairs - score.abs()) / 2
    n_discordant = n_discordant.round()

    table = _build_p_value_table().to(score.device)
    row = n.clamp(max=MAX_EXACT_LENGTH).long()
    last_column = table.shape[1] - 1
    column = n_discordant.clamp(0, last_column).long()
    table_value = table[row, column]

    # The logarithm of n! without discordant pairs, and of (n − 1)! with one discordant pair.
    log_factorial = torch.lgamma(n + 1 - n_discordant.clamp(max=1))
    value_beyond_table = (math.log(2) - log_factorial).exp()
    return torch.where(n <= MAX_EXACT_LENGTH, table_value, value_beyond_table)


def dense_rank(
    values: Tensor,
    mask: Tensor,
    *,
    rtol: float = 0.0,
    atol: float | Tensor = 0.0,
) -> Tensor:
    """Rank values by 0, 1, 2, …, such that almost equal values share a rank.

    Rounding makes equal quantities differ in their last bits. Without a tolerance, such ties
    would be broken at random.

    Args:
        values: [..., keys].
        mask: positions to rank, bool [..., keys].
        rtol: relative tolerance. Two neighbours in sorted order share a rank if they differ by
            at most ``atol + rtol·|value|``.
        atol: absolute tolerance, a number or one number per row, [..., 1].

    Returns:
        Ranks, float32 [..., keys], 0 for the smallest value. Entries outside the mask have no
        meaning.

    >>> dense_rank(torch.tensor([0.3, 0.1, 0.1]), torch.ones(3).bool()).tolist()
    [1.0, 0.0, 0.0]
    """
    masked_values = values.masked_fill(~mask, torch.inf)
    sorted_values, positions = masked_values.sort(-1)
    magnitude = sorted_values[..., :-1].abs()
    tolerance = atol + rtol * magnitude
    gaps = sorted_values.diff(dim=-1)
    is_larger = gaps > tolerance

    sorted_ranks = torch.zeros_like(sorted_values, dtype=torch.float32)
    torch.cumsum(is_larger, -1, out=sorted_ranks[..., 1:])
    ranks = torch.empty_like(sorted_ranks)
    return ranks.scatter_(-1, positions, sorted_ranks)


def compute_chance_of_agreement(n: Tensor, *, level: float = 0.05) -> Tensor:
    """Compute how likely a random order agrees significantly with a fixed order.

    Agreement is significant if Kendall's τ is positive with a two-sided p-value of at most
    ``level``. For up to 33 values without ties, the probability is exact. For more values, half
    the level is returned, which is accurate to ±.002. With ties, the probability is smaller.

    Args:
        n: number of values, any shape.
        level: significance level, in (0, 1).

    Returns:
        Probabilities, float64 with the same shape as ``n``.

    With 5 values, only one of the 5! orders agrees significantly:

    >>> compute_chance_of_agreement(torch.tensor([4, 5, 40])).tolist()
    [0.0, 0.008333333333333333, 0.025]
    """
    row = n.clamp(max=MAX_EXACT_LENGTH).long()
    two_sided_chance = _find_largest_p_values(level).to(n.device)[row]
    return torch.where(n <= MAX_EXACT_LENGTH, two_sided_chance, level) / 2


@functools.cache
def _find_largest_p_values(level: float) -> Tensor:
    """Find the largest exact p-value of Kendall's τ that does not exceed a significance level.

    Args:
        level: significance level.

    Returns:
        float64 [34]; entry n is the p-value for n values, 0 if none is small enough.
    """
    p_values = _build_p_value_table()
    return p_values.masked_fill(p_values > level, 0).amax(-1)


def kendall_tau_b(x: Tensor, y: Tensor, mask: Tensor) -> RankCorrelation:
    """Compute Kendall's τ-b between x and y (Jain & Wallace 2019, Section 4.1).

    τ-b = (concordant − discordant pairs) / √(pairs untied in x · pairs untied in y). The p-value
    is exact if there are no ties and at most 33 values. It is also exact if there are no ties and
    at most one pair is discordant, or at most one is concordant. Otherwise it is a normal
    approximation.

    Args:
        x: [batch, keys].
        y: [batch, keys].
        mask: positions to include, bool [batch, keys].

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
    """Compute Kendall's τ-b for each pair of vectors; see :func:`kendall_tau_b`.

    Args:
        values: [batch, vectors, keys].
        mask: positions to include, bool [batch, keys].

    Returns:
        τ-b and p-value, each float64 [batch, vectors, vectors].
    """
    score = _compute_kendall_scores(values, mask)
    # Compared with itself, a vector only has concordant pairs, and no other pairs except ties.
    n_untied = score.diagonal(dim1=-2, dim2=-1)
    is_undefined = (_expand_rows(n_untied) == 0) | (_expand_columns(n_untied) == 0)
    tau = score / _expand_rows(n_untied).sqrt()
    tau = tau / _expand_columns(n_untied).sqrt()
    tau = tau.clamp(-1, 1)

    n = mask.sum(-1).to(torch.float64)[:, None, None]
    n_pairs = n * (n - 1) / 2
    ties = n_pairs[..., 0] - n_untied
    has_no_ties = _expand_rows(ties) + _expand_columns(ties) == 0
    has_one_discordant_pair = (n_pairs - score.abs()) / 2 <= 1
    is_exact = has_no_ties & ((n <= MAX_EXACT_LENGTH) | has_one_discordant_pair)
    p_value = torch.where(is_exact, _look_up_exact_p_value(score, n), torch.nan)
    if not (is_exact | is_undefined).all():
        asymptotic_p_value = _compute_asymptotic_p_value(score, n, ties, values, mask)
        p_value = torch.where(is_exact, p_value, asymptotic_p_value)
    return RankCorrelation(
        tau=tau.masked_fill(is_undefined, torch.nan),
        p_value=p_value.masked_fill(is_undefined, torch.nan),
    )


def top_overlap(x: Tensor, y: Tensor, mask: Tensor, k: int) -> Tensor:
    """Compute the top-k overlap: the share of positions that are in the top k of both x and y.

    If several values tie for rank k, the result is the mean over all ways to break the ties. Two
    random orders of n values have an expected overlap of k / n.

    Args:
        x: [batch, keys].
        y: [batch, keys].
        mask: positions to include, bool [batch, keys]; at least k per row.
        k: number of largest values.

    Returns:
        Overlap in [0, 1], float64 [batch].

    In this example, two values tie for rank 2 in y:

    >>> x, y = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 1.0]])
    >>> top_overlap(x, y, torch.ones(1, 3).bool(), 2).tolist()
    [0.75]
    """
    x_probability = _compute_top_probability(x, mask, k)
    y_probability = _compute_top_probability(y, mask, k)
    joint_probability = x_probability * y_probability
    return joint_probability.sum(-1) / k


def _compute_top_probability(values: Tensor, mask: Tensor, k: int | Tensor) -> Tensor:
    """Compute how likely each value is among the k largest if ties are broken at random.

    For example, the values [5, 2, 2, 1] have the probabilities [1, ½, ½, 0] for k = 2.

    Args:
        values: [..., keys].
        mask: positions to include, bool [..., keys].
        k: one number for all rows, or int [..., 1].

    Returns:
        Probabilities, float64 [..., keys].
    """
    n_smaller, n_larger = _count_smaller_and_larger(values, mask)
    n_equal = mask.sum(-1, keepdim=True) - n_smaller - n_larger
    # The remaining k − n_larger ranks are distributed at random among the tied values.
    probability = (k - n_larger).double() / n_equal.clamp_min(1)
    return probability.clamp(0, 1) * mask


def top_tau(x: Tensor, y: Tensor, mask: Tensor, k: int) -> Tensor:
    """Compute Kendall's τ-a between two top-k lists, as in the code of Jain & Wallace 2019.

    Only positions that are in the top k of x or of y are compared. In each vector, all positions
    outside its own top k are tied below the top k. Values that tie with the k-th largest belong
    to the top k. The result is 1 − 2K / pairs, with Fagin's distance K between top-k lists and
    the penalty p = ½ (Fagin, Kumar & Sivakumar 2003).

    Args:
        x: [batch, keys].
        y: [batch, keys].
        mask: positions to include, bool [batch, keys].
        k: length of the top-k lists.

    Returns:
        τ in [−1, 1], float64 [batch]; NaN if only one position is compared.

    In this example, the three pairs contribute +1, +1 and −1:

    >>> x, y = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 2.0]])
    >>> round(top_tau(x, y, torch.ones(1, 3).bool(), 2).item(), 4)
    0.3333
    """
    values = torch.stack([x, y])
    _, n_larger = _count_smaller_and_larger(values, mask)
    is_top = (n_larger < k) & mask
    union = is_top.any(0)
    n = union.sum(-1)
    n_pairs = n * (n - 1) / 2

    # The union has few keys, so comparing only these keys is much faster.
    keys = union.to(torch.int8).topk(int(n.max())).indices
    union = union.gather(-1, keys)
    keys = keys.expand(2, -1, -1)
    values = values.gather(-1, keys)
    is_top = is_top.gather(-1, keys)
    ranks = dense_rank(values, is_top)
    ranks = ranks.masked_fill(~is_top, -1)
    score = _compute_kendall_scores(ranks.transpose(0, 1), union)
    return score[:, 0, 1] / n_pairs.double()


def gini_correlation(values: Tensor, order: Tensor, mask: Tensor) -> Tensor:
    """Compute the Gini correlation: how well an order of tokens puts the largest values first.

    In contrast to Kendall's τ, each pair is weighted by the difference between its values. The
    order of almost equal values therefore hardly matters. The formula is Σ_{i<j} (v_i − v_j)
    sign(o_i − o_j) / Σ_{i<j} |v_i − v_j|, which equals cov(v, rank o) / cov(v, rank v)
    (Schechtman & Yitzhaki 1987).

    Args:
        values: values v, [..., keys].
        order: scores o that define the order, [..., keys], largest first. Pairs with equal
            scores contribute 0.
        mask: tokens to include, bool [..., keys].

    Returns:
        Correlation in [−1, 1], float64 [...], with mean 0 over random orders; NaN if all values
        are equal.

    >>> values, mask = torch.tensor([8.0, 0.1, 0.0]), torch.ones(3).bool()
    >>> round(gini_correlation(values, torch.tensor([3.0, 1.0, 2.0]), mask).item(), 2)
    0.99
    """
    values = values.double().masked_fill(~mask, 0)
    best_sum = (values * count_smaller_minus_larger(values, mask)).sum(-1)
    order_sum = (values * count_smaller_minus_larger(order.double(), mask)).sum(-1)
    return order_sum / best_sum.masked_fill(best_sum <= 0, torch.nan)


def count_smaller_minus_larger(values: Tensor, mask: Tensor) -> Tensor:
    """Compute for each value how many other values are smaller, minus how many are larger.

    For example, [8, 5, 1] becomes [2, 0, −2].

    Args:
        values: [..., keys].
        mask: tokens to include, bool [..., keys].

    Returns:
        Count differences, int64 [..., keys], 0 outside the mask.
    """
    n_smaller, n_larger = _count_smaller_and_larger(values, mask)
    return (n_smaller - n_larger).masked_fill(~mask, 0)


def _count_smaller_and_larger(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Count, for each value, how many other values are smaller and how many are larger.

    Returns:
        Both counts, each [..., keys]. Entries outside the mask have no meaning.
    """
    masked_values = values.masked_fill(~mask, torch.inf).contiguous()
    sorted_values = masked_values.sort(-1).values
    n_smaller = torch.searchsorted(sorted_values, masked_values)
    n_not_larger = torch.searchsorted(sorted_values, masked_values, right=True)
    n_counted = mask.sum(-1, keepdim=True)
    n_larger = n_counted - n_not_larger
    return n_smaller, n_larger


def select_heaviest(values: Tensor, mask: Tensor, share: float = 0.5) -> Tensor:
    """Select as few tokens as possible whose values add up to a share of the total.

    For example, the values [5, 3, 2] and the share .7 select the first two tokens.

    Args:
        values: [..., keys], at least 0. Tokens with equal values are selected from left to
            right.
        mask: tokens to include, bool [..., keys].
        share: share of the total value, in [0, 1].

    Returns:
        Whether each token is selected, bool [..., keys].

    >>> select_heaviest(torch.ones(20), torch.ones(20).bool()).nonzero()[:, 0].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    values = values.double()
    values = values.masked_fill(~mask, 0)
    # A token is selected if all tokens with larger values together do not reach the share.
    sorted_values, positions = values.sort(dim=-1, descending=True, stable=True)
    previous_sum = sorted_values.cumsum(-1) - sorted_values
    total = values.sum(-1, keepdim=True)
    is_needed = previous_sum < share * total
    is_selected = torch.zeros_like(mask)
    is_selected.scatter_(-1, positions, is_needed)
    return is_selected & mask & (values > 0)


def r_precision(order: Tensor, relevant: Tensor, mask: Tensor) -> Tensor:
    """Compute R-precision: the share of relevant tokens among the first R tokens of an order.

    R is the number of relevant tokens in the text. If several tokens tie for rank R, the result
    is the mean over all ways to break the ties.

    Args:
        order: scores that define the order, [..., keys], largest first.
        relevant: tokens to find, bool [..., keys].
        mask: tokens to include, bool [..., keys].

    Returns:
        Precision in [0, 1], float64 [...]; NaN if no token is relevant.
    """
    n_relevant = (relevant & mask).sum(-1, keepdim=True)
    probability = _compute_top_probability(order.double(), mask, n_relevant)
    n_hits = (probability * relevant).sum(-1)
    n_relevant = n_relevant[..., 0].double()
    n_relevant = n_relevant.masked_fill(n_relevant == 0, torch.nan)
    return n_hits / n_relevant
