"""Maps of the contribution of each key to each query, as alternatives to raw attention.

A map is a tensor [..., queries, keys]. The test ``faithfulness.explanations`` compares these maps
with raw attention by leave-one-out.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.functional.intervention import normalise


def gauss_legendre(n_points: int) -> list[tuple[float, float]]:
    """Compute the points and weights of Gauss-Legendre quadrature on the unit interval.

    Σ w f(s) is the integral of f from 0 to 1. It is exact for polynomials of a degree below
    ``2 * n_points``.

    Args:
        n_points: number of points.

    Returns:
        Pairs of a point s in (0, 1) and its weight w. The weights sum to 1.

    >>> [(round(s, 4), round(w, 4)) for s, w in gauss_legendre(2)]
    [(0.2113, 0.5), (0.7887, 0.5)]
    """
    points, weights = np.polynomial.legendre.leggauss(n_points)
    return list(zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


def attention_times_gradient(attention: Tensor, gradient: Tensor) -> Tensor:
    """Compute attention × gradient: the first-order contribution of each weight to the output.

    Serrano & Smith 2019 (Section 4.2) rank weights by this product.

    Args:
        attention: [..., queries, keys].
        gradient: gradient of the output with respect to the attention, [..., queries, keys].

    Returns:
        [..., queries, keys], signed.
    """
    return attention * gradient


def rollout(maps: Sequence[Tensor], *, residual: bool = True) -> Tensor:
    """Compute how much of each input position reaches each query of the last layer.

    Attention rollout multiplies the maps of all layers: R₁ = A₁ and R_l = A_l R_(l−1) (Abnar &
    Zuidema 2020, Section 3).

    Args:
        maps: one map [batch, positions, positions] per layer, lowest layer first.
        residual: whether to add the residual stream, A_l = ½ map + ½ I. Use False for maps that
            include it already (Mohebbi et al. 2023, Section 3).

    Returns:
        [batch, positions, positions].

    >>> half = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> rollout([half, half])[0].tolist()
    [[0.25, 0.75], [0.0, 1.0]]
    """
    identity = torch.eye(maps[0].shape[-1]).to(maps[0])
    total = identity
    for layer_map in maps:
        total = ((layer_map + identity) / 2 if residual else layer_map) @ total
    return total


def effective_attention(attention: Tensor, values: Tensor) -> Tensor:
    """Remove the component of a head's attention that lies in the null space of the values.

    Let T = U Σ Vᵀ have rank r. The effective attention is A⊥ = A U_r U_rᵀ: the rows of A without
    their projection on the left null space of T (Brunner et al. 2020, Section 3.2), so that
    A⊥ T = A T. If there are no more keys than dimensions, A⊥ is A itself.

    In the paper, T is the values times the head's slice of the output projection. This slice
    has full rank, so the values alone have the same left null space.

    Args:
        attention: [..., queries, keys].
        values: [..., keys, width], 0 for padding.

    Returns:
        float64 [..., queries, keys]; entries can be negative.
    """
    attention = attention.double()
    left_vectors, singular_values, _ = torch.linalg.svd(values.double(), full_matrices=False)
    # A singular value below the precision of the values is rounding and not a dimension. The
    # epsilon of half precision would also remove real dimensions, so float32 is the coarsest.
    dtype = torch.promote_types(values.dtype, torch.float32)
    epsilon = torch.finfo(dtype).eps
    largest_value = singular_values.amax(-1, keepdim=True)
    longer_side = max(values.shape[-2:])
    is_dimension = singular_values > largest_value * longer_side * epsilon
    basis = left_vectors * is_dimension.unsqueeze(-2)
    coordinates = attention @ basis
    return coordinates @ basis.transpose(-2, -1)


def norm_based_attention(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """Compute the norms ‖α_ij f(x_j)‖ of each head (Kobayashi et al. 2020, Section 3.2).

    f(x) = (x W_V + b_V) W_O, with the head's slice of W_O and without the bias of the output
    projection.

    Args:
        attention: weights α, [batch, heads, queries, keys].
        values: value vectors x W_V + b_V, [batch, heads, keys, width].
        projection: slices of W_O, [heads, width, hidden].

    Returns:
        [batch, heads, queries, keys], at least 0.
    """
    norms = (values @ projection).norm(dim=-1)
    return attention.abs() * norms.unsqueeze(-2)


def norm_based_layer_attention(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """Compute the norms ‖Σ_h α^h_ij f^h(x_j)‖ of a layer (Kobayashi et al. 2020, Section 3.2).

    Other than in :func:`norm_based_attention`, the heads are added before the norm is taken, so
    they can cancel each other.

    Args:
        attention: weights α, [batch, heads, queries, keys].
        values: value vectors x W_V + b_V, [batch, heads, keys, width].
        projection: slices of W_O, [heads, width, hidden].

    Returns:
        float64 [batch, queries, keys], at least 0.
    """
    weights = attention.double()
    values = values.double()
    slices = projection.double()
    squared_norms = torch.zeros_like(weights[:, 0])
    for head, head_slice in enumerate(slices):
        # The squared norm of a sum only needs inner products. The vectors f themselves would
        # take [batch, heads, keys, hidden] numbers.
        slice_products = torch.einsum("wo,gxo->gwx", head_slice, slices)
        projected = torch.einsum("bkw,gwx->bgkx", values[:, head], slice_products)
        inner_products = (projected * values).sum(-1)
        squared_norms += weights[:, head] * torch.einsum("bgk,bgqk->bqk", inner_products, weights)
    return squared_norms.clamp_min(0).sqrt()


def cosine_distance(original: Tensor, changed: Tensor) -> Tensor:
    """Compute 1 − cos of two vectors, which is exactly 0 for equal vectors.

    Args:
        original: [..., width].
        changed: [..., width]; the leading axes broadcast.

    Returns:
        float64 [...] in [0, 2].
    """
    a = torch.nn.functional.normalize(original.double(), dim=-1)
    b = torch.nn.functional.normalize(changed.double(), dim=-1)
    return (a - b).square().sum(-1) / 2


def value_zeroing(distances: Tensor, visible: Tensor) -> Tensor:
    """Normalise the changes that zeroed value vectors cause in the output of a layer.

    Mohebbi et al. 2023, Section 3: C_ij is the distance by which the layer's output at position
    i changes if the value vector of position j is set to 0. Rows are normalised to sum to 1.

    Args:
        distances: cosine distances, [batch, queries, keys].
        visible: whether the query may attend to the key, bool [batch, queries, keys].

    Returns:
        [batch, queries, keys]; rows sum to 1, or to 0 if no distance in the row is positive.
    """
    return normalise(distances * visible)
