"""Distances between distributions, with the conventions of Jain & Wallace 2019 (Section 3): natural logarithms.

All functions reduce the last axis, broadcast over the others, and have a finite gradient at zero weights.
"""

import math

import torch
from torch import Tensor


def _log(p: Tensor) -> Tensor:
    # log(clamp) rather than xlogy: xlogy has the right value at 0 but a NaN gradient.
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance ½ Σ|p − q|, in [0, 1]; for two classes this is |p₁ − q₁|.

    >>> round(tvd(torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])).item(), 6)
    0.3
    """
    return (p - q).abs().sum(-1) / 2


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p‖q) = Σ p ln(p/q) in nats. Where q is 0 and p is not, ln q is clamped at the smallest float: huge, not inf."""
    return (p * (_log(p) - _log(q))).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats, in [0, ln 2]: the mean KL of both to their average.

    >>> round(jsd(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).item(), 6) == round(math.log(2), 6)
    True
    """
    mean = (p + q) / 2
    return (kl_divergence(p, mean) + kl_divergence(q, mean)).clamp_min(0) / 2


def entropy(p: Tensor) -> Tensor:
    """Entropy −Σ p ln p in nats, in [0, ln T]."""
    return -(p * _log(p)).sum(-1)


def largest_jsd(attention: Tensor, mask: Tensor) -> Tensor:
    """The largest JSD any attention can have to this one: all weight on the least attended token.

    ln 2 + ½ [a ln a − (1 + a) ln(1 + a)] with a the smallest weight on a real token.

    Shape: attention and mask [..., keys] -> [...]; ln 2 where the smallest weight is 0, 0 for a single token.
    """
    smallest = attention.masked_fill(~mask, 1.0).amin(-1)
    return (
        math.log(2)
        + (smallest * _log(smallest) - (1 + smallest) * torch.log1p(smallest)) / 2
    )


def decision_flip(before: Tensor, after: Tensor) -> Tensor:
    """Whether the most probable class changed, bool [...], from probabilities [..., classes]."""
    return before.argmax(-1) != after.argmax(-1)
