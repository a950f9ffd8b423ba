"""The gradient search for adversarial attention of Jain & Wallace 2019 (Section 4.2.2, Algorithm 3).

    maximise   Σ_k JSD(a_k, â) + (1/K²) Σ_{k,l} JSD(a_k, a_l)   subject to   distance(a_k) ≤ ε

relaxed to a penalty λ·max(0, distance − ε) and followed by Adam over attention logits. The pair term is that of the
released code (each pair twice, over K²); logarithms are ln(x + 1e-10), as there. All gradients are written out: the
steps are tiny, and what they cost is the number of kernels, not the arithmetic.
"""

from collections.abc import Callable

import torch
from torch import Tensor


LOG_OFFSET = 1e-10

# From candidates [copies, batch, keys]: the output's distance to the original [copies, batch] and its gradient.
Distance = Callable[[Tensor], tuple[Tensor, Tensor]]


def linear_distance(logits: Tensor, probs: Tensor) -> Distance:
    """Distance (total variation) and its gradient for a linear read-out.

    Shape: logits u_t [batch, keys, classes], probs [batch, classes].
    """
    if probs.shape[-1] == 2:
        return _binary_distance(logits[..., 1] - logits[..., 0], probs[:, 1])
    return _multiclass_distance(logits, probs)


def _binary_distance(scores: Tensor, prob: Tensor) -> Distance:
    def distance(attention: Tensor) -> tuple[Tensor, Tensor]:
        output = (attention * scores).sum(-1).sigmoid()
        change = output - prob
        slope = change.sign() * output * (1 - output)
        return change.abs(), slope.unsqueeze(-1) * scores

    return distance


def _multiclass_distance(logits: Tensor, probs: Tensor) -> Distance:
    def distance(attention: Tensor) -> tuple[Tensor, Tensor]:
        output = torch.einsum("cbk,bkn->cbn", attention, logits).softmax(-1)
        change = output - probs
        sign = change.sign() / 2
        slope = output * (sign - (sign * output).sum(-1, keepdim=True))  # ½ Σ_c sign_c ∂p_c/∂logit
        return change.abs().sum(-1) / 2, torch.einsum("cbn,bkn->cbk", slope, logits)

    return distance


def _log_and_share(weights: Tensor) -> Tensor:
    """ln(x + δ) + x/(x + δ): the derivative of x ln(x + δ)."""
    shifted = weights + LOG_OFFSET
    return shifted.log().add_(weights / shifted)


def _divergence_gradient(attention: Tensor, original: Tensor) -> Tensor:
    """∂/∂a_k of Σ_k JSD(a_k, â) + (1/K²) Σ_{k,l} JSD(a_k, a_l), [copies, batch, keys].

    ∂JSD(a, b)/∂a = ½ [g(a) − g((a + b)/2)] with g(x) = ln(x + δ) + x/(x + δ); each mean of a pair is computed once.
    """
    n_copies = len(attention)
    own = _log_and_share(attention)
    k, other = torch.triu_indices(n_copies, n_copies, offset=1, device=attention.device)
    mean = _log_and_share((attention[k] + attention[other]) / 2).flatten(1)
    member = torch.zeros(n_copies, len(k), dtype=mean.dtype, device=mean.device)
    member[k, torch.arange(len(k))] = member[other, torch.arange(len(k))] = 1
    between = (n_copies - 1) * own - (member @ mean).view_as(own)
    return (own - _log_and_share((attention + original) / 2)) / 2 + between / n_copies**2


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
    """Adam (amsgrad) on the logits of K candidates per text; the last iterate, not the best one, as in the paper's code.

    Args:
        start: initial attention logits [copies, batch, keys].
        original: the model's attention [batch, keys].
        mask: tokens that may receive attention, [batch, keys].
        distance: how far an attention moves the output; see :data:`Distance`.

    Returns:
        Attention [copies, batch, keys]. Nothing says that it is within ε: check it.
    """
    # Contiguous: the fused optimiser pairs parameter and gradient by their place in memory.
    logits = start.masked_fill(~mask, torch.finfo(start.dtype).min).contiguous().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=learning_rate, amsgrad=True, fused=True)
    with torch.no_grad():
        for _ in range(n_steps):
            attention = logits.softmax(-1)
            moved, slope = distance(attention)
            gradient = slope * (penalty * (moved > epsilon)).unsqueeze(-1)
            gradient -= _divergence_gradient(attention, original)
            gradient -= (attention * gradient).sum(-1, keepdim=True)
            logits.grad = gradient.mul_(attention).contiguous()  # through the softmax; exactly 0 at masked positions
            optimizer.step()
        return logits.softmax(-1) * mask
