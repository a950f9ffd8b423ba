"""Searches for adversarial attention: different weights that give nearly the same output.

The gradient search follows Jain & Wallace 2019, Section 4.2.2, Algorithm 3:

    maximise   Σ_k JSD(a_k, â) + (1/K²) Σ_{k,l} JSD(a_k, a_l)
    subject to distance(a_k) ≤ ε

The constraint is replaced by a penalty λ·max(0, distance − ε), and Adam optimises the attention
logits. Two details follow the authors' released code: the pair term counts each pair twice and
divides by K², and logarithms are computed as ln(x + 1e-10).

All gradients are derived by hand. Each step is so small that its time depends on the number of
kernels and logarithms. Tensors are stored as [copies, keys, batch], so that every kernel runs along
the batch.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import one_hot_jsd
from hf_attnprobe.functional.intervention import split_fixed_weights


LOG_OFFSET = 1e-10
"""Offset δ in all logarithms ln(x + δ) of the search objective, which avoids ln 0."""
FACTORS_PER_PRODUCT = 5
"""Number of factors that are multiplied before the logarithm of their product is computed. This
saves four of five logarithms. With many more factors, the product could become too small for
float32."""

Distance = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function that computes how far the output is from the original output if attention is replaced.

It receives candidate attention, [copies, batch, keys]. It returns the distances, [copies, batch], and their
gradients with respect to the attention, [copies, batch, keys].
"""


def bisect_boundary(
    is_within: Callable[[Tensor], Tensor],
    inside: Tensor,
    outside: Tensor,
    n_steps: int,
) -> tuple[Tensor, Tensor]:
    """Find the boundary of a region between points inside and points outside.

    In each step, the point halfway between both replaces one of them (bisection).

    Args:
        is_within: function that checks which points are inside the region and returns a bool
            tensor with the same shape.
        inside: points inside the region.
        outside: points outside the region, with the same shape as ``inside``.
        n_steps: number of bisection steps.

    Returns:
        The last points inside and the last points outside, which enclose the boundary.
    """
    for _ in range(n_steps):
        middle = (inside + outside) / 2
        within = is_within(middle)
        inside = torch.where(within, middle, inside)
        outside = torch.where(within, outside, middle)
    return inside, outside


def make_linear_distance(logits: Tensor, probs: Tensor) -> Distance:
    """Create a distance function for a model whose logits are linear in the attention.

    Args:
        logits: token logits u_t, [batch, keys, classes]. The model's logits are Σ_t a_t u_t.
        probs: original output, [batch, classes].

    Returns:
        A function from attention to the output's total variation distance and its gradient; see
        :data:`Distance`.
    """
    if probs.shape[-1] == 2:
        return _make_binary_distance(logits[..., 1] - logits[..., 0], probs[:, 1])
    return _make_multiclass_distance(logits, probs)


def _make_binary_distance(scores: Tensor, prob: Tensor) -> Distance:
    """Create the distance function for two classes.

    Args:
        scores: logit of class 1 minus logit of class 0 for each token, [batch, keys].
        prob: original probability of class 1, [batch].

    Returns:
        The distance function. With two classes, the distance is the change of the probability.
    """
    # The double transposition changes the memory layout: neighbouring texts of the batch are then
    # neighbours in memory, which is faster.
    scores = scores.t().contiguous().t()

    def compute_distance(attention: Tensor) -> tuple[Tensor, Tensor]:
        output = (attention * scores).sum(-1).sigmoid_()
        change = output - prob
        # The derivative of the sigmoid p is p − p².
        slope = torch.addcmul(output, output, output, value=-1).mul_(change.sign())
        return change.abs_(), slope.unsqueeze(-1) * scores

    return compute_distance


def _make_multiclass_distance(logits: Tensor, probs: Tensor) -> Distance:
    """Create the distance function for any number of classes.

    Args:
        logits: token logits, [batch, keys, classes].
        probs: original output, [batch, classes].

    Returns:
        The distance function.
    """

    def compute_distance(attention: Tensor) -> tuple[Tensor, Tensor]:
        output = torch.einsum("cbk,bkn->cbn", attention, logits).softmax(-1)
        change = output - probs
        # The distance is ½ Σ_c |change of p_c|. Its derivative with respect to the logits is
        # ½ Σ_c sign_c ∂p_c/∂logit, with the derivative of the softmax.
        half_sign = change.sign() / 2
        mean_sign = (half_sign * output).sum(-1, keepdim=True)
        slope = output * (half_sign - mean_sign)
        gradient = torch.einsum("cbn,bkn->cbk", slope, logits)
        distance = change.abs().sum(-1) / 2
        return distance, gradient

    return compute_distance


def _compute_descent_direction(attention: Tensor, original: Tensor) -> Tensor:
    """Compute the negative gradient of the search objective with respect to the attention.

    The derivative of JSD(a, b) with respect to a is ½ [g(a) − g((a + b)/2)], with g(x) = ln(x + δ)
    + x/(x + δ). Let A = a + δ, B = b + δ and r = A/(A + B). Then the derivative is ½ [ln r +
    (δ/A)(2r − 1)] plus a constant per text. The constant is left out, because it has no effect
    after the softmax.

    To save logarithms, several ratios r are multiplied before the logarithm is computed. The
    ratio of a copy and itself is ½, which only adds another constant.

    Args:
        attention: attention of all copies, [copies, keys, batch].
        original: original attention, [keys, batch].

    Returns:
        Descent direction, [copies, keys, batch].
    """
    n_copies = len(attention)
    pair_weight = 1 / n_copies**2
    shifted = attention + LOG_OFFSET
    # This buffer has the sums A + B first, and then the ratios A/(A + B).
    pair_ratios = shifted.unsqueeze(1) + shifted
    torch.div(shifted.unsqueeze(1), pair_ratios, out=pair_ratios)
    original_ratio = shifted / (original + LOG_OFFSET + shifted)
    offset_term = original_ratio - (0.5 + n_copies * pair_weight)
    offset_term = torch.add(offset_term, pair_ratios.sum(1), alpha=2 * pair_weight)
    descent = original_ratio.log_().mul_(-0.5)
    descent.addcdiv_(offset_term, shifted, value=-LOG_OFFSET)
    for factors in pair_ratios.split(FACTORS_PER_PRODUCT, dim=1):
        descent.sub_(factors.prod(1).log_(), alpha=pair_weight)
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
    """Search for different attention that gives nearly the same output, by gradient descent.

    For each text, several copies are optimised together with Adam (amsgrad). As in the code of
    Jain & Wallace 2019, the result is the last iterate and not the best one.

    Args:
        start: initial attention logits, [copies, batch, keys].
        original: the model's attention, [batch, keys].
        mask: tokens that may receive attention, bool [batch, keys].
        distance: function that computes output distances; see :data:`Distance`.
        epsilon: largest allowed output distance, in [0, 1].
        penalty: weight λ for distances above ``epsilon``.
        n_steps: number of Adam steps.
        learning_rate: learning rate for Adam.

    Returns:
        Attention, [copies, batch, keys]. Its output distance can exceed ``epsilon``, so check it
        before use.
    """
    min_logit = torch.finfo(start.dtype).min
    logits = start.masked_fill(~mask, min_logit).transpose(1, 2).contiguous()
    original = original.t().contiguous()
    optimizer = torch.optim.Adam([logits], lr=learning_rate, amsgrad=True, fused=True)
    for _ in range(n_steps):
        attention = logits.softmax(1)
        output_change, slope = distance(attention.transpose(1, 2))
        exceeds = torch.gt(output_change, epsilon, out=torch.empty_like(output_change))
        exceeds = exceeds.unsqueeze(1)
        gradient = _compute_descent_direction(attention, original)
        gradient.addcmul_(slope.transpose(1, 2), exceeds, value=penalty)
        # Backpropagation through the softmax; the gradient is exactly 0 at masked positions.
        gradient.mul_(attention)
        gradient.addcmul_(attention, gradient.sum(1, keepdim=True), value=-1)
        logits.grad = gradient
        optimizer.step()
    return logits.softmax(1).transpose(1, 2) * mask


# --- Candidates for a model that is not linear in its attention ---------------------------------
# The candidates are far from the original attention A, in directions chosen by the gradient g. To
# first order, attention A' changes the probability by Σ g · (A' − A). In this linear approximation,
# the farthest attention puts each query's whole weight on one key.
#
# The key is chosen by the score v(a_j) − μ g_j, which trades distance against output change. Here
# v(a_j) is the JSD that results if all weight is put on key j. The multiplier μ is found by bisection
# for each text, such that the changes of all rows cancel. If the output still changes too much, the
# rows with the largest effect are left unchanged.
#
# The caller must check each candidate by running the model.


MIXING_SHARES = (0.75, 0.25)
"""Shares of distant attention in candidates that mix it with the original attention. For example,
0.75 means .25 · original attention + .75 · distant attention."""
UNCHANGED_ROW_SHARES = (1 / 16, 1 / 4, 1 / 2, 3 / 4)
"""Shares of the query rows that candidates leave unchanged. The rows with the largest effect are
left unchanged, so that the output stays similar."""
N_CANDIDATES = 3 + 2 * len(UNCHANGED_ROW_SHARES) + 2 * len(MIXING_SHARES)
"""Number of candidate attention distributions that are tried for each text. There are 15: three
basic candidates, and two variants for each value of the two tuples above."""
N_BISECTIONS = 40
"""Number of bisection steps in the search for the multiplier μ.

The search looks for attention that differs much from the original, but hardly changes the output. It
maximises (difference from the original attention) − μ · (output change)."""
MAX_SCALED_MULTIPLIER = 1e4
"""Upper limit for μ times the largest gradient entry; see :data:`N_BISECTIONS` for μ. With a larger μ,
the difference from the original attention would not matter."""


def generate_steered_candidates(
    attention: Tensor, slope: Tensor, movable: Tensor
) -> Iterator[Tensor]:
    """Generate candidates for distant attention that hardly changes the output.

    The first three candidates are the farthest attention, and the two candidates that change the
    output least, one in each direction. Then follow variants of the first and the third candidate
    in which some rows are left unchanged (:data:`UNCHANGED_ROW_SHARES`, at least one row). The last
    candidates lie between the original attention and the second or third candidate
    (:data:`MIXING_SHARES`).

    Args:
        attention: weights for one or several heads, [batch, rows, keys].
        slope: gradient of the probability with respect to the weights, same shape.
        movable: keys that may receive weight, bool [batch, rows, keys]. Weights on all other
            keys stay unchanged.

    Yields:
        :data:`N_CANDIDATES` candidates, each [batch, rows, keys], with rows that sum to 1.
    """
    fixed_weights, movable_mass = split_fixed_weights(attention, movable)
    shares = attention / movable_mass.clamp_min(torch.finfo(movable_mass.dtype).tiny)
    distance_values = (one_hot_jsd(shares) - math.log(2)).masked_fill(~movable, -torch.inf)

    def choose_vertices(multiplier: Tensor) -> Tensor:
        """Put all weight that may change in a row on one key: the key with the best score.

        The score is distance − multiplier · output change.
        """
        scores = distance_values - multiplier[:, None, None] * slope
        best_key = scores.argmax(-1, keepdim=True)
        vertices = fixed_weights.scatter_add(-1, best_key, movable_mass)
        return torch.where(movable.any(-1, keepdim=True), vertices, attention)

    slope = slope * movable
    original_output = (slope * attention).sum((-2, -1))
    largest_slope = slope.abs().amax((-2, -1))
    largest_slope = largest_slope.clamp_min(torch.finfo(slope.dtype).tiny)
    # If attention has no effect, the slope is 0. The multiplier must be finite, so that its
    # product with the slope is 0. The limit also keeps the sum of two multipliers finite.
    max_multiplier = torch.finfo(slope.dtype).max / 4
    upper_multiplier = (MAX_SCALED_MULTIPLIER / largest_slope).clamp_max(max_multiplier)
    lower_multiplier = -upper_multiplier

    def increases_output(multiplier: Tensor) -> Tensor:
        output = (slope * choose_vertices(multiplier)).sum((-2, -1))
        return output > original_output

    lower_multiplier, upper_multiplier = bisect_boundary(
        increases_output, lower_multiplier, upper_multiplier, N_BISECTIONS
    )

    farthest = choose_vertices(torch.zeros_like(lower_multiplier)) - attention
    above = choose_vertices(lower_multiplier) - attention
    below = choose_vertices(upper_multiplier) - attention
    for direction in (farthest, above, below):
        yield attention + direction
    for direction in (farthest, below):
        effect_rank, n_rows = _rank_rows_by_effect(direction, slope, movable)
        for share in UNCHANGED_ROW_SHARES:
            n_unchanged = (share * n_rows).ceil().clamp_min(1)
            is_changed = effect_rank >= n_unchanged[:, None]
            yield attention + direction * is_changed[..., None]
    for direction in (above, below):
        for share in MIXING_SHARES:
            yield attention + share * direction


def _rank_rows_by_effect(
    direction: Tensor, slope: Tensor, movable: Tensor
) -> tuple[Tensor, Tensor]:
    """Rank the query rows of an attention change by their effect on the output.

    Args:
        direction: change of the attention weights, [batch, rows, keys].
        slope: gradient of the output with respect to the weights, [batch, rows, keys].
        movable: which weights may change, bool [batch, rows, keys].

    Returns:
        Rank of each row, [batch, rows], with 0 for the largest effect; and the number of rows in
        which at least one weight may change, [batch]. All other rows have the last ranks.
    """
    can_row_change = movable.any(-1)
    # To first order, the output changes by the gradient times the change of the weights.
    effect = (slope * direction).sum(-1).abs()
    effect = effect.masked_fill(~can_row_change, -1)
    row_order = effect.argsort(dim=-1, descending=True, stable=True)
    # The inverse of the permutation `row_order` contains the rank of each row.
    effect_rank = row_order.argsort(-1)
    return effect_rank, can_row_change.sum(-1)
