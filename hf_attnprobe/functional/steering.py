"""Candidates for adversarial attention in a model that is not linear.

They are far from the original attention, in directions chosen by the gradient. To
first order an attention A' moves the probability by Σ g · (A' − A), with the gradient
g at A. On that linear model the farthest attention puts each query's weight on one
key. Which key trades distance against change: key j of a row scores v(a_j) − μ g_j,
where v is the JSD of a vertex on a key of weight a_j, and one multiplier μ per text,
found by bisection, makes the changes of all rows cancel. Where that is too far for a
real model, the rows of most effect are kept and the others moved. The caller must
check each candidate by running the model.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import vertex_jsd
from hf_attnprobe.functional.intervention import held_and_mass


STEPS_BACK = (0.75, 0.25)  # how far from the original to the vertex
KEPT = (1 / 16, 1 / 4, 1 / 2, 3 / 4)  # of the rows, those of most effect
# Chosen on MiniLM, heads and groups of heads: these 15 candidates move attention by .76
# of the farthest on average, 39 with more shares and steps by .79, 9 without KEPT by .63.
N_CANDIDATES = 3 + 2 * len(KEPT) + 2 * len(STEPS_BACK)
N_BISECTIONS = 40
LARGEST_MULTIPLIER = (
    1e4  # over the largest slope: there the change alone decides
)


def steered_candidates(
    attention: Tensor, slope: Tensor, movable: Tensor
) -> Iterator[Tensor]:
    """Candidates: the farthest attention, and the two nearest to no change on either side.

    Also, of the first and the last, those that keep the rows of most effect
    (:data:`KEPT`, at least one); of the two, points on the way (:data:`STEPS_BACK`).

    Args:
        attention: rows of weights [batch, rows, keys], of one head or of several.
        slope: gradient of the probability with respect to them, of the same shape.
        movable: bool [batch, rows, keys], where weight may be; a row without any such
            key stays as it is, and so does a weight elsewhere.

    Yields:
        :data:`N_CANDIDATES` times [batch, rows, keys], rows summing to 1, the farthest
        attention of all first.
    """
    held, mass = held_and_mass(attention, movable)
    share = attention / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    value = (vertex_jsd(share) - math.log(2)).masked_fill(~movable, -torch.inf)

    def vertices_at(multiplier: Tensor) -> Tensor:
        """Each row's mass on its best key; a row that cannot move stays as it is."""
        scores = value - multiplier[:, None, None] * slope
        best = scores.argmax(-1, keepdim=True)
        vertices = held.scatter_add(-1, best, mass)
        return torch.where(movable.any(-1, keepdim=True), vertices, attention)

    slope = slope * movable
    original_output = (slope * attention).sum((-2, -1))
    largest_slope = slope.abs().amax((-2, -1))
    largest_slope = largest_slope.clamp_min(torch.finfo(slope.dtype).tiny)
    high = LARGEST_MULTIPLIER / largest_slope
    low = -high
    for _ in range(N_BISECTIONS):
        middle = (low + high) / 2
        rises = (slope * vertices_at(middle)).sum((-2, -1)) > original_output
        low = torch.where(rises, middle, low)
        high = torch.where(rises, high, middle)

    farthest, below, above = (
        vertices_at(multiplier) - attention
        for multiplier in (torch.zeros_like(low), low, high)
    )
    yield from (attention + direction for direction in (farthest, below, above))
    for direction in (farthest, above):
        place, n_rows = _by_effect(direction, slope, movable)
        for part in KEPT:
            n_kept = (part * n_rows).ceil().clamp_min(1)
            is_moved = place >= n_kept[:, None]
            yield attention + direction * is_moved[..., None]
    for direction in (below, above):
        yield from (attention + step * direction for step in STEPS_BACK)


def _by_effect(
    direction: Tensor, slope: Tensor, movable: Tensor
) -> tuple[Tensor, Tensor]:
    """The place of each row by its first-order effect, most first, and their number.

    Shape: [batch, rows] and [batch]; rows that stay as they are come last.
    """
    is_movable = movable.any(-1)
    effect = (slope * direction).sum(-1).abs().masked_fill(~is_movable, -1)
    place = effect.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return place, is_movable.sum(-1)
