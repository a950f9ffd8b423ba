"""Other readings of attention: maps [..., queries, keys] of how much each key gives to each query. Pure functions.

Raw attention is the reading they compete with; ``faithfulness.explanations`` compares them by leave-one-out.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def attention_times_gradient(attention: Tensor, gradient: Tensor) -> Tensor:
    """Attention × the gradient of the output with respect to it, signed: what each weight adds, to first order.

    Serrano & Smith 2019 rank by it. Shape: both [..., queries, keys].
    """
    return attention * gradient


def rollout(maps: Sequence[Tensor], *, residual: bool = True) -> Tensor:
    """How much of each input position reaches each query of the last layer, by multiplying the layers' maps.

    R₁ = A₁, R_l = A_l R_(l−1), with A_l = ½ (mean over heads) + ½ I for the residual stream (Abnar & Zuidema 2020,
    Section 3); ``residual=False`` for maps that hold the residual stream already (Mohebbi et al. 2023, Section 3).

    Shape: each [batch, positions, positions], lowest layer first -> the same.

    >>> half = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> rollout([half, half])[0].tolist()
    [[0.25, 0.75], [0.0, 1.0]]
    """
    total = None
    for given in maps:
        mixed = (
            (given + torch.eye(given.shape[-1], dtype=given.dtype, device=given.device))
            / 2
            if residual
            else given
        )
        total = mixed if total is None else mixed @ total
    return total


def effective_attention(attention: Tensor, values: Tensor) -> Tensor:
    """A head's attention without the part that its output cannot show: A U_r U_rᵀ, for T = U Σ Vᵀ of rank r.

    The rows of A projected on the left null space of T are removed (Brunner et al. 2020, Section 3.2), so A⊥ T = A T;
    with no more keys than dimensions this is A itself. T is the values times the head's slice of the output
    projection; that slice has full rank, so the values alone have the same left null space. Entries may be negative.

    Shape: attention [..., queries, keys], values [..., keys, width], 0 for keys that do not exist -> float64
    [..., queries, keys].
    """
    left, singular, _ = torch.linalg.svd(values.double(), full_matrices=False)
    # Relative to the precision of the values: what is smaller is rounding, not a dimension. Half precision's own would
    # take real dimensions with it, and the values as they are rounded are the ones the model goes on with.
    epsilon = torch.finfo(torch.promote_types(values.dtype, torch.float32)).eps
    tolerance = singular.amax(-1, keepdim=True) * max(values.shape[-2:]) * epsilon
    basis = left * (singular > tolerance).unsqueeze(-2)
    return attention.double() @ basis @ basis.transpose(-2, -1)


def norm_based(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """‖α_ij f(x_j)‖ per head, f(x) = (x W_V + b_V) W_O with the head's slice of W_O and without the output's bias
    (Kobayashi et al. 2020, Section 3.2).

    Shape: attention [batch, heads, queries, keys], values [batch, heads, keys, width], projection [heads, width, hidden]
    -> [batch, heads, queries, keys].
    """
    return attention.abs() * (values @ projection).norm(dim=-1).unsqueeze(-2)


def norm_based_layer(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """‖Σ_h α^h_ij f^h(x_j)‖ of a whole layer (Kobayashi et al. 2020, Section 3.2); heads may cancel each other.

    Shape: as :func:`norm_based` -> float64 [batch, queries, keys].
    """
    weights, v, slices = attention.double(), values.double(), projection.double()
    squares = torch.zeros_like(weights[:, 0])
    for head, own in enumerate(slices):
        # A squared norm of a sum needs inner products only; f itself would be [batch, heads, keys, hidden].
        products = torch.einsum("wo,gxo->gwx", own, slices)
        inner = (torch.einsum("bkw,gwx->bgkx", v[:, head], products) * v).sum(-1)
        squares += weights[:, head] * torch.einsum("bgk,bgqk->bqk", inner, weights)
    return squares.clamp_min(0).sqrt()


def cosine_distance(original: Tensor, changed: Tensor) -> Tensor:
    """1 − cos, exactly 0 for equal vectors. Shape: both [..., hidden], broadcast -> float64 [...]."""
    a, b = (
        torch.nn.functional.normalize(x.double(), dim=-1) for x in (original, changed)
    )
    return (a - b).square().sum(-1) / 2


def value_zeroing(distances: Tensor, visible: Tensor) -> Tensor:
    """C_ij: how far the layer's output at i moves when the value vector of j is set to 0, rows normalised to sum 1
    (Mohebbi et al. 2023, Section 3).

    Shape: cosine distances [batch, queries, keys], visible bool [batch, queries, keys] -> [batch, queries, keys].
    """
    kept = distances * visible
    return kept / kept.sum(-1, keepdim=True).clamp_min(torch.finfo(kept.dtype).tiny)
