"""The gradient search for adversarial attention of Jain & Wallace 2019.

Section 4.2.2, Algorithm 3:

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
from collections.abc import Callable

import torch
from torch import Tensor


LOG_OFFSET = 1e-10
DECAY, SQUARE_DECAY, ADAM_OFFSET = 0.9, 0.999, 1e-8  # Adam's usual constants
# Ratios in one product: one of them is ½, and float32 holds four of 1e-10.
FACTORS_AT_ONCE = 5

# From candidates [copies, batch, keys] to the distance of their outputs to the original
# one [copies, batch], and its gradient [copies, batch, keys].
Distance = Callable[[Tensor], tuple[Tensor, Tensor]]


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
        slope = torch.addcmul(output, output, output, value=-1).mul_(
            change.sign()
        )
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


class _Adam:
    """Adam (amsgrad) in place.

    The bookkeeping of PyTorch's optimiser costs more than steps as small as these.
    """

    def __init__(self, parameter: Tensor, learning_rate: float) -> None:
        self.parameter = parameter
        self.learning_rate = learning_rate
        self.n_steps = 0
        self.mean = torch.zeros_like(parameter)
        self.square = torch.zeros_like(parameter)
        self.largest_square = torch.zeros_like(parameter)

    def step(self, gradient: Tensor) -> None:
        self.n_steps += 1
        self.mean.lerp_(gradient, 1 - DECAY)
        self.square.mul_(SQUARE_DECAY)
        self.square.addcmul_(gradient, gradient, value=1 - SQUARE_DECAY)
        largest = self.largest_square
        torch.maximum(largest, self.square, out=largest)
        correction = math.sqrt(1 - SQUARE_DECAY**self.n_steps)
        rate = self.learning_rate * correction / (1 - DECAY**self.n_steps)
        scale = largest.sqrt().add_(ADAM_OFFSET * correction)
        self.parameter.addcdiv_(self.mean, scale, value=-rate)


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
    optimizer = _Adam(logits, learning_rate)
    for _ in range(n_steps):
        attention = logits.softmax(1)
        moved, slope = distance(attention.transpose(1, 2))
        exceeds = torch.gt(
            moved, epsilon, out=torch.empty_like(moved)
        ).unsqueeze(1)
        gradient = _objective_descent(attention, original)
        gradient.addcmul_(slope.transpose(1, 2), exceeds, value=penalty)
        # Through the softmax; exactly 0 at masked positions.
        gradient.mul_(attention)
        gradient.addcmul_(attention, gradient.sum(1, keepdim=True), value=-1)
        optimizer.step(gradient)
    return logits.softmax(1).transpose(1, 2) * mask
