"""Candidates for adversarial attention in a model that is not linear.

They are far from the original attention, in directions chosen by the gradient. To
first order an attention A' of one head moves the probability by Σ g · (A' − A), with
the gradient g at A. On that linear model the farthest attention puts each query's
weight on one key. Which key trades distance against change: key j of a row scores
v(a_j) − μ g_j, where v is the JSD of a vertex on a key of weight a_j, and one
multiplier μ per text, found by bisection, makes the changes of all rows cancel. The
caller must check each candidate by running the model.
"""

import math

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import vertex_jsd


STEPS_BACK = (1.0, 0.5, 0.25)  # how far from the original to the vertex
N_BISECTIONS = 40
LARGEST_MULTIPLIER = 1e4  # over the largest slope: there the change alone decides


def steered_candidates(attention: Tensor, slope: Tensor, visible: Tensor) -> Tensor:
    """Candidates: the farthest attention, the two on either side of no change.

    For each also points on the way to it, see :data:`STEPS_BACK`.

    Args:
        attention: a head's weights [batch, queries, keys].
        slope: gradient of the probability with respect to them, of the same shape.
        visible: bool [batch, queries, keys].

    Returns:
        [copies, batch, queries, keys], rows summing to 1.
    """
    value = (vertex_jsd(attention) - math.log(2)).masked_fill(~visible, -torch.inf)
    slope = slope * visible
    original_output = (slope * attention).sum((-2, -1))
    largest_slope = slope.abs().amax((-2, -1))
    largest_slope = largest_slope.clamp_min(torch.finfo(slope.dtype).tiny)
    high = LARGEST_MULTIPLIER / largest_slope
    low = -high
    for _ in range(N_BISECTIONS):
        middle = (low + high) / 2
        vertices = _vertices(value, slope, middle, attention)
        rises = (slope * vertices).sum((-2, -1)) > original_output
        low = torch.where(rises, middle, low)
        high = torch.where(rises, high, middle)

    candidates = []
    for multiplier in (torch.zeros_like(low), low, high):
        direction = _vertices(value, slope, multiplier, attention) - attention
        candidates += [attention + step * direction for step in STEPS_BACK]
    return torch.stack(candidates)


def _vertices(
    value: Tensor, slope: Tensor, multiplier: Tensor, attention: Tensor
) -> Tensor:
    """Each row's weight on its best key; a row that sees nothing stays as it is."""
    scores = value - multiplier[:, None, None] * slope
    best = scores.argmax(-1, keepdim=True)
    vertices = torch.zeros_like(attention).scatter(-1, best, 1.0)
    sees_a_key = value.isfinite().any(-1, keepdim=True)
    return torch.where(sees_a_key, vertices, attention)
