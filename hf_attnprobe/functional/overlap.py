"""Overlap of two distributions over tokens, and what chance gives."""

import torch
from torch import Tensor


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
