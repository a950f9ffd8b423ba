"""Candidates for adversarial attention in a model that is not linear: far from the original, steered by the gradient.

To first order an attention A' of one head moves the probability by Σ g · (A' − A), g the gradient at A. On that linear
model the farthest attention puts each query's weight on one key. Which key trades distance against change: key j of a
row scores v(a_j) − μ g_j, where v is the JSD that a vertex on a key of weight a_j has, and one multiplier μ per text,
found by bisection, makes the changes of all rows cancel. Whoever uses a candidate checks it by running the model.
"""

import math

import torch
from torch import Tensor


STEPS_BACK = (1.0, 0.5, 0.25)  # how far from the original to the vertex
N_BISECTIONS = 40


def steered_candidates(attention: Tensor, slope: Tensor, visible: Tensor) -> Tensor:
    """The farthest attention of all, the two on either side of no change, and points on the way to each.

    Shape: attention, slope [batch, queries, keys], visible bool [batch, queries, keys] -> [copies, batch, queries, keys].
    """
    value = (_vertex_jsd(attention) - math.log(2)).masked_fill(~visible, -torch.inf)
    slope = slope * visible
    own = (slope * attention).sum((-2, -1))
    size = slope.abs().amax((-2, -1)).clamp_min(torch.finfo(slope.dtype).tiny)
    low, high = -_reach(size), _reach(size)
    for _ in range(N_BISECTIONS):
        middle = (low + high) / 2
        rises = (slope * _vertices(value, slope, middle, attention)).sum((-2, -1)) > own
        low, high = torch.where(rises, middle, low), torch.where(rises, high, middle)
    ends = [
        _vertices(value, slope, multiplier, attention)
        for multiplier in (torch.zeros_like(low), low, high)
    ]
    return torch.stack(
        [attention + step * (end - attention) for end in ends for step in STEPS_BACK]
    )


def _reach(size: Tensor) -> Tensor:
    """A multiplier at which the change alone decides."""
    return 1e4 / size


def _vertex_jsd(weight: Tensor) -> Tensor:
    """JSD of a distribution to all weight on one of its entries: ln 2 + ½ [a ln a − (1 + a) ln(1 + a)]."""
    return (
        math.log(2)
        + (torch.special.xlogy(weight, weight) - (1 + weight) * torch.log1p(weight)) / 2
    )


def _vertices(
    value: Tensor, slope: Tensor, multiplier: Tensor, attention: Tensor
) -> Tensor:
    """Each row's weight on its best key; a row that sees nothing stays as it is."""
    place = (value - multiplier[:, None, None] * slope).argmax(-1, keepdim=True)
    vertex = torch.zeros_like(attention).scatter(-1, place, 1.0)
    return torch.where(value.isfinite().any(-1, keepdim=True), vertex, attention)
