"""Distances between distributions, and their overlap, with the conventions of Jain & Wallace 2019.

All functions reduce the last axis and broadcast over the others. Logarithms are
natural, and gradients are finite at zero weights.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.functional.intervention import held_and_mass


def _log(p: Tensor) -> Tensor:
    # log(clamp) rather than xlogy: xlogy is right at 0 but has a NaN gradient there.
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance ½ Σ|p − q| (Jain & Wallace 2019, Section 3).

    Args:
        p, q: distributions [..., classes].

    Returns:
        [...] in [0, 1]; for two classes this is |p₁ − q₁|.

    >>> round(tvd(torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])).item(), 6)
    0.3
    """
    return (p - q).abs().sum(-1) / 2


def small_side(probs: Tensor, target: Tensor, is_large: Tensor | None = None) -> Tensor:
    """Returns the probability of a class, minus 1 where it exceeds ½.

    That is minus the probability of all others. Gradients and differences are the same,
    but they keep their digits: next to 1 a probability has lost in rounding what the
    others, next to 0, still hold. In float32 1 − p is 0 from p = 1 − 3e-8 on.

    Args:
        probs: [..., classes].
        target: int64 [...], the class; or [..., n], several that count together.
        is_large: bool [...], where 1 is subtracted; the same must be given for two
            outputs whose difference is taken.

    Returns:
        [...] in [−1, 1].

    >>> small_side(torch.tensor([1.0, 1e-9]), torch.tensor(0)).item()
    -9.999999717180685e-10
    """
    is_target = F.one_hot(target, probs.shape[-1]).bool()
    if target.dim() == probs.dim():
        is_target = is_target.any(-2)
    own = probs.masked_fill(~is_target, 0).sum(-1)
    others = probs.masked_fill(is_target, 0).sum(-1)
    if is_large is None:
        is_large = own > 0.5
    return torch.where(is_large, -others, own)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Kullback-Leibler divergence KL(p‖q) = Σ p ln(p/q).

    Args:
        p, q: distributions [..., keys].

    Returns:
        [...] in nats, at least 0. Where q is 0 and p is not, ln q is clamped at the
        smallest float: the result is huge, not infinite.
    """
    log_ratio = _log(p) - _log(q)
    return (p * log_ratio).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence (Jain & Wallace 2019, Section 3).

    The mean of the Kullback-Leibler divergences of both to their average.

    Args:
        p, q: distributions [..., keys].

    Returns:
        [...] in nats, in [0, ln 2].

    >>> p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> round(jsd(p, q).item(), 6) == round(math.log(2), 6)
    True
    """
    mean = (p + q) / 2
    return (kl_divergence(p, mean) + kl_divergence(q, mean)).clamp_min(0) / 2


def largest_jsd(attention: Tensor, mask: Tensor) -> Tensor:
    """The largest JSD that any attention can have to this one.

    It is reached with all weight on the least attended token.

    Args:
        attention: [..., keys], rows of sum 1.
        mask: bool [..., keys], the tokens that may receive weight; the others keep theirs.

    Returns:
        [...] in nats; ln 2 where the smallest weight is 0, 0 for a single token. Where
        others keep weights that much of the row's mass less.
    """
    _, mass = held_and_mass(attention, mask)
    share = attention / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    return mass[..., 0] * vertex_jsd(share.masked_fill(~mask, 1.0).amin(-1))


def vertex_jsd(weight: Tensor) -> Tensor:
    """JSD of a distribution to all weight on its entry of this weight, in nats.

    ln 2 + ½ [a ln a − (1 + a) ln(1 + a)] for the weight a.
    """
    change = weight * _log(weight) - (1 + weight) * torch.log1p(weight)
    return math.log(2) + change / 2


# --- Overlap of two distributions over tokens, and what chance gives ---------


def distribution(values: Tensor, mask: Tensor) -> Tensor:
    """Returns what is positive of the values, divided by its sum.

    Args:
        values: [..., keys].
        mask: bool [..., keys].

    Returns:
        float64 [..., keys], of sum 1; NaN where nothing is positive.

    >>> distribution(torch.tensor([3.0, -2.0, 1.0]), torch.ones(3).bool()).tolist()
    [0.75, 0.0, 0.25]
    """
    positive = values.double().masked_fill(~mask, 0).clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return positive / total.masked_fill(total == 0, torch.nan)


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Returns Σ min(first, second), 1 − the total variation distance; [..., keys] -> [...].

    >>> round(overlap(torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])).item(), 4)
    0.7
    """
    return torch.minimum(first, second).sum(-1)


def overlap_by_chance(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean overlap over all ways of giving the first's entries to other tokens.

    Every entry meets every other as often: (1 / T) Σᵢ Σⱼ min(firstⱼ, secondᵢ), the inner sum
    by running totals of the sorted entries.

    Args:
        first, second: distributions [..., keys], 0 outside the mask.
        mask: bool [..., keys].

    Returns:
        float64 [...].

    >>> sharp, mask = torch.tensor([1.0, 0.0, 0.0]), torch.ones(3).bool()
    >>> round(overlap_by_chance(sharp, sharp, mask).item(), 4)
    0.3333
    """
    in_order = first.double().sort(-1).values
    in_order = in_order.contiguous()
    asked = second.double().contiguous()
    n_smaller = torch.searchsorted(in_order, asked)
    nothing = torch.zeros_like(in_order[..., :1])
    running = in_order.cumsum(-1)
    running = torch.cat([nothing, running], dim=-1)
    of_smaller = running.gather(-1, n_smaller)
    n_larger = in_order.shape[-1] - n_smaller
    shared = of_smaller + n_larger * asked
    return shared.sum(-1) / mask.sum(-1)
