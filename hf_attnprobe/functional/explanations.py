"""Integrals over the unit interval."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.functional.intervention import normalise


def gauss_legendre(n_points: int) -> list[tuple[float, float]]:
    """Points in (0, 1) and their weights, which sum to 1.

    Σ w f(s) is the integral of f from 0 to 1, exactly for polynomials of a degree below
    twice the number of points.

    >>> [(round(s, 4), round(w, 4)) for s, w in gauss_legendre(2)]
    [(0.2113, 0.5), (0.7887, 0.5)]
    """
    points, weights = np.polynomial.legendre.leggauss(n_points)
    return list(zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


# --- Other readings of attention: maps of how much each key gives to each query ------------------
# A map is [..., queries, keys]. Raw attention is the reading they compete with;
# ``faithfulness.explanations`` compares them by leave-one-out.
#
# SciPy's maximum flow takes integers only, so capacities are multiples of 2⁻³⁰ and flows are
# compared to seven digits.


def attention_times_gradient(attention: Tensor, gradient: Tensor) -> Tensor:
    """Attention × its gradient: what each weight adds to the output, to first order.

    Serrano & Smith 2019 (Section 4.2) rank weights by it.

    Args:
        attention, gradient: [..., queries, keys].

    Returns:
        [..., queries, keys], signed.
    """
    return attention * gradient


def rollout(maps: Sequence[Tensor], *, residual: bool = True) -> Tensor:
    """How much of each input position reaches each query of the last layer.

    The layers' maps are multiplied: R₁ = A₁, R_l = A_l R_(l−1) (Abnar & Zuidema 2020,
    Section 3).

    Args:
        maps: one [batch, positions, positions] per layer, the lowest first.
        residual: whether the residual stream is added, A_l = ½ map + ½ I. False for
            maps that hold it already (Mohebbi et al. 2023, Section 3).

    Returns:
        [batch, positions, positions].

    >>> half = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> rollout([half, half])[0].tolist()
    [[0.25, 0.75], [0.0, 1.0]]
    """
    identity = torch.eye(maps[0].shape[-1]).to(maps[0])
    total = identity
    for layer in maps:
        total = ((layer + identity) / 2 if residual else layer) @ total
    return total


def effective_attention(attention: Tensor, values: Tensor) -> Tensor:
    """Returns a head's attention without its component in the null space of the values.

    For T = U Σ Vᵀ of rank r this is A U_r U_rᵀ: the rows of A without their projection
    on the left null space of T (Brunner et al. 2020, Section 3.2), so A⊥ T = A T. With
    no more keys than dimensions it is A itself. T is the values times the head's slice
    of the output projection; that slice has full rank, so the values alone have the
    same left null space.

    Args:
        attention: [..., queries, keys].
        values: [..., keys, width], 0 for keys that do not exist.

    Returns:
        float64 [..., queries, keys]; entries may be negative.
    """
    attention = attention.double()
    left, singular, _ = torch.linalg.svd(values.double(), full_matrices=False)
    # Singular values below the precision of the values are rounding, no dimension.
    # Half precision's own epsilon would remove real dimensions too.
    dtype = torch.promote_types(values.dtype, torch.float32)
    epsilon = torch.finfo(dtype).eps
    largest = singular.amax(-1, keepdim=True)
    longer_side = max(values.shape[-2:])
    is_dimension = singular > largest * longer_side * epsilon
    basis = left * is_dimension.unsqueeze(-2)
    by_dimension = attention @ basis
    return by_dimension @ basis.transpose(-2, -1)


def norm_based(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """‖α_ij f(x_j)‖ of each head (Kobayashi et al. 2020, Section 3.2).

    f(x) = (x W_V + b_V) W_O, with the head's slice of W_O and without its bias.

    Args:
        attention: [batch, heads, queries, keys].
        values: [batch, heads, keys, width].
        projection: [heads, width, hidden].

    Returns:
        [batch, heads, queries, keys], at least 0.
    """
    norms = (values @ projection).norm(dim=-1)
    return attention.abs() * norms.unsqueeze(-2)


def norm_based_layer(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """‖Σ_h α^h_ij f^h(x_j)‖ of a layer (Kobayashi et al. 2020, Section 3.2).

    Heads may cancel each other. The arguments are those of :func:`norm_based`.

    Returns:
        float64 [batch, queries, keys], at least 0.
    """
    weights = attention.double()
    values = values.double()
    slices = projection.double()
    squares = torch.zeros_like(weights[:, 0])
    for head, head_slice in enumerate(slices):
        # The squared norm of a sum needs inner products only: f itself would be
        # [batch, heads, keys, hidden].
        products = torch.einsum("wo,gxo->gwx", head_slice, slices)
        projected = torch.einsum("bkw,gwx->bgkx", values[:, head], products)
        inner = (projected * values).sum(-1)
        squares += weights[:, head] * torch.einsum("bgk,bgqk->bqk", inner, weights)
    return squares.clamp_min(0).sqrt()


def cosine_distance(original: Tensor, changed: Tensor) -> Tensor:
    """1 − cos of two vectors, exactly 0 for equal ones.

    Args:
        original, changed: [..., width], broadcast.

    Returns:
        float64 [...] in [0, 2].
    """
    a = torch.nn.functional.normalize(original.double(), dim=-1)
    b = torch.nn.functional.normalize(changed.double(), dim=-1)
    return (a - b).square().sum(-1) / 2


def value_zeroing(distances: Tensor, visible: Tensor) -> Tensor:
    """C_ij: how far the layer's output at i moves when the value vector of j is 0.

    Mohebbi et al. 2023, Section 3.

    Args:
        distances: cosine distances [batch, queries, keys].
        visible: bool [batch, queries, keys].

    Returns:
        [batch, queries, keys]; rows sum to 1, or to 0 where nothing moves.
    """
    return normalise(distances * visible)
