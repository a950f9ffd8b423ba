"""Searches for other attention that keeps the output: by gradients, by candidates.

The gradient search is that of Jain & Wallace 2019, Section 4.2.2, Algorithm 3:

    maximise   Σ_k JSD(a_k, â) + (1/K²) Σ_{k,l} JSD(a_k, a_l)
    subject to distance(a_k) ≤ ε

relaxed to a penalty λ·max(0, distance − ε) and followed by Adam over attention logits.
The pair term is that of the released code (each pair twice, over K²), and so are the
logarithms, ln(x + 1e-10).

All gradients are written out: the steps are tiny, and their cost is the number of
kernels and of logarithms. Tensors lie in memory as [copies, keys, batch], so that every
kernel runs along the batch.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import vertex_jsd
from hf_attnprobe.functional.intervention import held_and_mass


LOG_OFFSET = 1e-10
# Ratios in one product: one of them is ½, and float32 holds four of 1e-10.
FACTORS_AT_ONCE = 5

# From candidates [copies, batch, keys] to the distance of their outputs to the original
# one [copies, batch], and its gradient [copies, batch, keys].
Distance = Callable[[Tensor], tuple[Tensor, Tensor]]


def bisected(
    is_within: Callable[[Tensor], Tensor],
    inside: Tensor,
    outside: Tensor,
    n_steps: int,
) -> tuple[Tensor, Tensor]:
    """Returns where something ends on the ways from points within it to points outside.

    Args:
        is_within: points -> bool of their shape.
        inside, outside: the ends of every way, of one shape.
        n_steps: each halves what is left of the way.

    Returns:
        The last points found inside and outside.
    """
    for _ in range(n_steps):
        middle = (inside + outside) / 2
        within = is_within(middle)
        inside = torch.where(within, middle, inside)
        outside = torch.where(within, outside, middle)
    return inside, outside


def linear_distance(logits: Tensor, probs: Tensor) -> Distance:
    """The total variation distance, and its gradient, for a linear read-out.

    Args:
        logits: the u_t of logits = Σ_t a_t u_t, [batch, keys, classes].
        probs: the original output [batch, classes].
    """
    if probs.shape[-1] == 2:
        return _binary_distance(logits[..., 1] - logits[..., 0], probs[:, 1])
    return _multiclass_distance(logits, probs)


def _binary_distance(scores: Tensor, prob: Tensor) -> Distance:
    scores = scores.t().contiguous().t()  # in memory along the batch

    def distance(attention: Tensor) -> tuple[Tensor, Tensor]:
        output = (attention * scores).sum(-1).sigmoid_()
        change = output - prob
        slope = torch.addcmul(output, output, output, value=-1).mul_(change.sign())
        return change.abs_(), slope.unsqueeze(-1) * scores

    return distance


def _multiclass_distance(logits: Tensor, probs: Tensor) -> Distance:
    def distance(attention: Tensor) -> tuple[Tensor, Tensor]:
        output = torch.einsum("cbk,bkn->cbn", attention, logits).softmax(-1)
        change = output - probs
        # The slope is ½ Σ_c sign_c ∂p_c/∂logit.
        sign = change.sign() / 2
        mean = (sign * output).sum(-1, keepdim=True)
        slope = output * (sign - mean)
        gradient = torch.einsum("cbn,bkn->cbk", slope, logits)
        moved = change.abs().sum(-1) / 2
        return moved, gradient

    return distance


def _objective_descent(attention: Tensor, original: Tensor) -> Tensor:
    """Returns −∂/∂a_k of the objective, up to a constant per text, [copies, keys, batch].

    ∂JSD(a, b)/∂a = ½ [g(a) − g((a + b)/2)] with g(x) = ln(x + δ) + x/(x + δ). With
    A = a + δ, B = b + δ and r = A/(A + B) that is ½ [ln r + (δ/A)(2r − 1)] and a
    constant, which the softmax over the logits cancels. The ln r of all pairs are one
    logarithm of a product; a copy's ratio to itself is ½ and drops out.
    """
    n_copies = len(attention)
    share = 1 / n_copies**2
    shifted = attention + LOG_OFFSET
    pairs = shifted.unsqueeze(1) + shifted
    torch.div(shifted.unsqueeze(1), pairs, out=pairs)
    ratio = shifted / (original + LOG_OFFSET + shifted)
    rest = ratio - (0.5 + n_copies * share)
    rest = torch.add(rest, pairs.sum(1), alpha=2 * share)
    descent = ratio.log_().mul_(-0.5)
    descent.addcdiv_(rest, shifted, value=-LOG_OFFSET)
    for factors in pairs.split(FACTORS_AT_ONCE, dim=1):
        descent.sub_(factors.prod(1).log_(), alpha=share)
    return descent


@torch.no_grad()
def search_adversarial_attention(
    start: Tensor,
    original: Tensor,
    mask: Tensor,
    distance: Distance,
    *,
    epsilon: float = 0.01,
    penalty: float = 500.0,
    n_steps: int = 500,
    learning_rate: float = 0.01,
) -> Tensor:
    """Adam (amsgrad) on the logits of K candidates per text.

    The result is the last iterate, not the best one, as in the paper's code.

    Args:
        start: initial attention logits [copies, batch, keys].
        original: the model's attention [batch, keys].
        mask: tokens that may receive attention, bool [batch, keys].
        distance: how far an attention moves the output; see :data:`Distance`.
        epsilon: allowed distance, in [0, 1].
        penalty: λ, the weight of what exceeds it.
        n_steps, learning_rate: of Adam.

    Returns:
        Attention [copies, batch, keys]. It may exceed ε: check it.
    """
    lowest = torch.finfo(start.dtype).min
    logits = start.masked_fill(~mask, lowest).transpose(1, 2).contiguous()
    original = original.t().contiguous()
    optimizer = torch.optim.Adam([logits], lr=learning_rate, amsgrad=True, fused=True)
    for _ in range(n_steps):
        attention = logits.softmax(1)
        moved, slope = distance(attention.transpose(1, 2))
        exceeds = torch.gt(moved, epsilon, out=torch.empty_like(moved)).unsqueeze(1)
        gradient = _objective_descent(attention, original)
        gradient.addcmul_(slope.transpose(1, 2), exceeds, value=penalty)
        # Through the softmax; exactly 0 at masked positions.
        gradient.mul_(attention)
        gradient.addcmul_(attention, gradient.sum(1, keepdim=True), value=-1)
        logits.grad = gradient
        optimizer.step()
    return logits.softmax(1).transpose(1, 2) * mask


# --- Candidates for a model that is not linear -------------------------------
# They are far from the original attention, in directions chosen by the gradient. To
# first order an attention A' moves the probability by Σ g · (A' − A), with the gradient
# g at A. On that linear model the farthest attention puts each query's weight on one
# key. Which key trades distance against change: key j of a row scores v(a_j) − μ g_j,
# where v is the JSD of a vertex on a key of weight a_j, and one multiplier μ per text,
# found by bisection, makes the changes of all rows cancel. Where that is too far for a
# real model, the rows of most effect are kept and the others moved. The caller must
# check each candidate by running the model.


STEPS_BACK = (0.75, 0.25)  # how far from the original to the vertex
KEPT = (1 / 16, 1 / 4, 1 / 2, 3 / 4)  # of the rows, those of most effect
# Chosen on MiniLM, heads and groups of heads: these 15 candidates move attention by .76
# of the farthest on average, 39 with more shares and steps by .79, 9 without KEPT by .63.
N_CANDIDATES = 3 + 2 * len(KEPT) + 2 * len(STEPS_BACK)
N_BISECTIONS = 40
LARGEST_MULTIPLIER = 1e4  # over the largest slope: there the change alone decides


def steered_candidates(attention: Tensor, slope: Tensor, movable: Tensor) -> Iterator[Tensor]:
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
    # Finite, as sums of two are, also where nothing moves the output: times 0 it is 0.
    largest = torch.finfo(slope.dtype).max / 4
    high = (LARGEST_MULTIPLIER / largest_slope).clamp_max(largest)
    low = -high

    def rises(multiplier: Tensor) -> Tensor:
        moved = (slope * vertices_at(multiplier)).sum((-2, -1))
        return moved > original_output

    low, high = bisected(rises, low, high, N_BISECTIONS)

    farthest, below, above = (
        vertices_at(multiplier) - attention for multiplier in (torch.zeros_like(low), low, high)
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


def _by_effect(direction: Tensor, slope: Tensor, movable: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each row by its first-order effect, most first, and their number.

    Shape: [batch, rows] and [batch]; rows that stay as they are come last.
    """
    is_movable = movable.any(-1)
    effect = (slope * direction).sum(-1).abs().masked_fill(~is_movable, -1)
    place = effect.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return place, is_movable.sum(-1)
