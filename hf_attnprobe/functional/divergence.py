"""Distances between probability distributions, and their overlap, as in Jain & Wallace 2019.

All functions reduce the last axis and broadcast over the other axes. Logarithms are natural, and
gradients are finite even if a probability is 0.
"""

import math

import torch
from torch import Tensor

from hf_attnprobe.functional.intervention import split_fixed_weights


def _safe_log(p: Tensor) -> Tensor:
    """Compute ln p; a probability of 0 is replaced by the smallest positive float."""
    # torch.xlogy is right at 0, but its gradient there is NaN.
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Compute the total variation distance ½ Σ|p − q| (Jain & Wallace 2019, Section 3).

    Args:
        p: distribution, [..., classes].
        q: distribution, [..., classes].

    Returns:
        Distance in [0, 1], [...]; for two classes it equals |p₁ − q₁|.

    >>> round(tvd(torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])).item(), 6)
    0.3
    """
    return (p - q).abs().sum(-1) / 2


def compute_shifted_probability(
    probs: Tensor, target: Tensor, is_large: Tensor | None = None
) -> Tensor:
    """Compute the probability p of a class, or p − 1 if p is larger than ½.

    Floats near 1 are imprecise: in float32, 1 − p is 0 as soon as p exceeds 1 − 3e-8. For such
    classes, p − 1 is computed from the small and precise probabilities of all other classes. The
    shift by −1 does not change gradients or differences between two outputs.

    Args:
        probs: probabilities, [..., classes].
        target: class index, int64 [...]; or indices of several classes whose probabilities are
            added, int64 [..., n].
        is_large: whether to compute p − 1 instead of p, bool [...]; by default, whether p exceeds
            ½. To subtract two outputs, pass the same value for both.

    Returns:
        Value in [−1, 1], [...].

    >>> compute_shifted_probability(torch.tensor([1.0, 1e-9]), torch.tensor(0)).item()
    -9.999999717180685e-10
    """
    is_target = torch.nn.functional.one_hot(target, probs.shape[-1]).bool()
    if target.dim() == probs.dim():
        is_target = is_target.any(-2)
    target_prob = probs.masked_fill(~is_target, 0).sum(-1)
    complement = probs.masked_fill(is_target, 0).sum(-1)
    if is_large is None:
        is_large = target_prob > 0.5
    return torch.where(is_large, -complement, target_prob)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence KL(p‖q) = Σ p ln(p/q).

    Args:
        p: distribution, [..., keys].
        q: distribution, [..., keys].

    Returns:
        Divergence in nats, [...], at least 0. If q is 0 for a key and p is not, the result is
        large but finite, because ln q is clamped to the logarithm of the smallest float.
    """
    log_ratio = _safe_log(p) - _safe_log(q)
    return (p * log_ratio).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence (Jain & Wallace 2019, Section 3).

    It is the mean of the Kullback-Leibler divergences KL(p‖m) and KL(q‖m), with m = (p + q) / 2.

    Args:
        p: distribution, [..., keys].
        q: distribution, [..., keys].

    Returns:
        Divergence in nats, [...], in [0, ln 2].

    >>> p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> round(jsd(p, q).item(), 4)
    0.6931
    """
    mean = (p + q) / 2
    divergence_sum = kl_divergence(p, mean) + kl_divergence(q, mean)
    # Rounding can make the sum slightly negative.
    return divergence_sum.clamp_min(0) / 2


def largest_jsd(attention: Tensor, mask: Tensor) -> Tensor:
    """Compute the largest possible JSD between the given attention and any other attention.

    The farthest attention puts all weight on the least attended token.

    Args:
        attention: attention weights, [..., keys]; rows sum to 1.
        mask: tokens that may receive weight, bool [..., keys]. All other weights are fixed.

    Returns:
        JSD in nats, [...]: ln 2 if the smallest weight is 0, and 0 if there is only one token.
        If some weights are fixed, it is multiplied by the sum of all other weights.
    """
    # The weights inside the mask are divided by their sum, so that they are a distribution.
    _, movable_mass = split_fixed_weights(attention, mask)
    shares = attention / movable_mass.clamp_min(torch.finfo(movable_mass.dtype).tiny)
    smallest_share = shares.masked_fill(~mask, 1.0).amin(-1)
    return movable_mass[..., 0] * one_hot_jsd(smallest_share)


def one_hot_jsd(weight: Tensor) -> Tensor:
    """Compute the JSD between a distribution and the one-hot distribution for one entry.

    A one-hot distribution has its whole weight on one entry. The result only depends on the
    weight a that the first distribution has on this entry: JSD = ln 2 + ½ [a ln a − (1 + a) ln(1
    + a)].

    Args:
        weight: weight a of the first distribution, [...].

    Returns:
        JSD in nats, [...].
    """
    change = weight * _safe_log(weight) - (1 + weight) * torch.log1p(weight)
    return math.log(2) + change / 2


# --- Overlap between two distributions over tokens, and its expected value for random tokens ---


def normalise_positive_part(values: Tensor, mask: Tensor) -> Tensor:
    """Set negative values to 0, and scale the positive values so that they sum to 1.

    Args:
        values: [..., keys].
        mask: bool [..., keys], the keys to include.

    Returns:
        float64 [..., keys], which sums to 1; NaN if no value is positive.

    >>> normalise_positive_part(torch.tensor([3.0, -2.0, 1.0]), torch.ones(3).bool()).tolist()
    [0.75, 0.0, 0.25]
    """
    masked_values = values.double().masked_fill(~mask, 0)
    positive = masked_values.clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return positive / total.masked_fill(total == 0, torch.nan)


def distribution_overlap(p: Tensor, q: Tensor) -> Tensor:
    """Compute the overlap Σ min(p, q) between two distributions.

    It is 1 for equal distributions, and equals 1 minus the total variation distance.

    Args:
        p: distribution, [..., keys].
        q: distribution, [..., keys].

    Returns:
        Overlap in [0, 1], [...].

    >>> round(distribution_overlap(torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])).item(), 4)
    0.7
    """
    return torch.minimum(p, q).sum(-1)


def expected_overlap(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean overlap between q and p if the entries of p are permuted at random.

    All pairs of entries are equally likely, so the mean overlap for T tokens is (1 / T) Σᵢ Σⱼ
    min(pⱼ, qᵢ). The inner sum is computed from cumulative sums of the sorted entries of p.

    Args:
        p: distribution, [..., keys], 0 outside the mask.
        q: distribution, [..., keys], 0 outside the mask.
        mask: bool [..., keys], the T tokens.

    Returns:
        Expected overlap in [0, 1], float64 [...].

    Two one-hot distributions over three tokens have the overlap 1 in a third of the permutations:

    >>> sharp, mask = torch.tensor([1.0, 0.0, 0.0]), torch.ones(3).bool()
    >>> round(expected_overlap(sharp, sharp, mask).item(), 4)
    0.3333
    """
    sorted_p = p.double().sort(-1).values
    sorted_p = sorted_p.contiguous()
    q = q.double().contiguous()
    # For each q, Σⱼ min(pⱼ, q) is the sum of all smaller p, plus q for each of the other p.
    n_smaller = torch.searchsorted(sorted_p, q)
    zero = torch.zeros_like(sorted_p[..., :1])
    cumulative_sums = sorted_p.cumsum(-1)
    cumulative_sums = torch.cat([zero, cumulative_sums], dim=-1)
    sum_of_smaller = cumulative_sums.gather(-1, n_smaller)
    n_larger = sorted_p.shape[-1] - n_smaller
    overlap = sum_of_smaller + n_larger * q
    return overlap.sum(-1) / mask.sum(-1)
