"""Attention-based explanations: maps of how much each key contributes to each query.

A map is a tensor [..., queries, keys] that replaces raw attention weights. The faithfulness test
``explanations`` compares these maps with raw attention by leave-one-out.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.functional.intervention import normalise


def gauss_legendre(n_points: int) -> list[tuple[float, float]]:
    """Compute the points and weights for Gauss-Legendre quadrature on the unit interval.

    The integral of f from 0 to 1 is approximated by Σ w f(s). This is exact for polynomials with
    a degree below ``2 * n_points``.

    Args:
        n_points: number of points.

    Returns:
        Pairs (s, w) with a point s in (0, 1) and its weight w. The weights sum to 1.

    >>> [(round(s, 4), round(w, 4)) for s, w in gauss_legendre(2)]
    [(0.2113, 0.5), (0.7887, 0.5)]
    """
    # NumPy integrates from −1 to 1.
    points, weights = np.polynomial.legendre.leggauss(n_points)
    unit_points = (points + 1) / 2
    unit_weights = weights / 2
    return list(zip(unit_points.tolist(), unit_weights.tolist(), strict=True))


def attention_times_gradient(attention: Tensor, gradient: Tensor) -> Tensor:
    """Compute attention × gradient, each weight's first-order contribution to the output.

    Serrano & Smith 2019 (Section 4.2) rank weights by this product.

    Args:
        attention: attention weights, [..., queries, keys].
        gradient: gradient of the output with respect to the attention, [..., queries, keys].

    Returns:
        Signed contributions, [..., queries, keys].
    """
    return attention * gradient


def rollout(maps: Sequence[Tensor], *, residual: bool = True) -> Tensor:
    """Compute attention rollout: how much each input position contributes to the last layer.

    Rollout multiplies the maps of all layers: R₁ = A₁ and R_l = A_l R_(l−1) (Abnar & Zuidema
    2020, Section 3).

    Args:
        maps: one map [batch, positions, positions] per layer, lowest layer first.
        residual: whether to account for the residual connection by A_l = ½ map + ½ I. Use False
            for maps that already include it (Mohebbi et al. 2023, Section 3).

    Returns:
        Rollout map, [batch, positions, positions], from output positions to input positions.

    >>> half = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> rollout([half, half])[0].tolist()
    [[0.25, 0.75], [0.0, 1.0]]
    """
    identity = torch.eye(maps[0].shape[-1]).to(maps[0])
    total = identity
    for layer_map in maps:
        if residual:
            layer_map = (layer_map + identity) / 2
        total = layer_map @ total
    return total


def effective_attention(attention: Tensor, values: Tensor) -> Tensor:
    """Remove the part of a head's attention that cannot affect its output.

    The output of a head is A T, with the attention A and the values T. The effective attention
    A⊥ is A without its projection on the left null space of T (Brunner et al. 2020, Section
    3.2), so that A⊥ T = A T. With the singular value decomposition T = U Σ Vᵀ and the rank r,
    A⊥ = A U_r U_rᵀ. If there are no more keys than dimensions, A⊥ = A.

    In the paper, T also includes the head's slice of the output projection. This slice has full
    rank, so it does not change the left null space.

    Args:
        attention: attention weights, [..., queries, keys].
        values: value vectors, [..., keys, width], 0 for padding.

    Returns:
        Effective attention, float64 [..., queries, keys]; entries can be negative.
    """
    attention = attention.double()
    left_vectors, singular_values, _ = torch.linalg.svd(values.double(), full_matrices=False)
    # Smaller singular values are rounding errors. Even for values in half precision, the
    # threshold uses the float32 epsilon, because the half-precision one would be too large.
    dtype = torch.promote_types(values.dtype, torch.float32)
    epsilon = torch.finfo(dtype).eps
    largest_value = singular_values.amax(-1, keepdim=True)
    longer_side = max(values.shape[-2:])
    is_dimension = singular_values > largest_value * longer_side * epsilon
    basis = left_vectors * is_dimension.unsqueeze(-2)
    coordinates = attention @ basis
    return coordinates @ basis.transpose(-2, -1)


def norm_based_attention(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """Compute norm-based attention ‖α_ij f(x_j)‖ per head (Kobayashi et al. 2020, Section 3.2).

    It multiplies the weight α_ij by the norm of the transformed value vector f(x) =
    (x W_V + b_V) W_O. Here W_O is the head's slice of the output projection, without its bias.

    Args:
        attention: attention weights α, [batch, heads, queries, keys].
        values: value vectors x W_V + b_V, [batch, heads, keys, width].
        projection: slice of W_O for each head, [heads, width, hidden].

    Returns:
        Norms, [batch, heads, queries, keys], at least 0.
    """
    norms = (values @ projection).norm(dim=-1)
    return attention.abs() * norms.unsqueeze(-2)


def norm_based_layer_attention(attention: Tensor, values: Tensor, projection: Tensor) -> Tensor:
    """Compute norm-based attention ‖Σ_h α^h_ij f^h(x_j)‖ for a whole layer.

    See Kobayashi et al. 2020, Section 3.2. In contrast to :func:`norm_based_attention`, the
    vectors of all heads h are added before the norm is computed, so heads can cancel each other.

    Args:
        attention: attention weights α, [batch, heads, queries, keys].
        values: value vectors x W_V + b_V, [batch, heads, keys, width].
        projection: slice of W_O for each head, [heads, width, hidden].

    Returns:
        Norms, float64 [batch, queries, keys], at least 0.
    """
    weights = attention.double()
    values = values.double()
    slices = projection.double()
    squared_norms = torch.zeros_like(weights[:, 0])
    for head, head_slice in enumerate(slices):
        # The squared norm is Σ_h Σ_g α^h α^g ⟨f^h, f^g⟩ over pairs of heads h and g. Computing only
        # the inner products avoids storing all vectors f, [batch, heads, keys, hidden].
        slice_products = torch.einsum("wo,gxo->gwx", head_slice, slices)
        projected = torch.einsum("bkw,gwx->bgkx", values[:, head], slice_products)
        inner_products = (projected * values).sum(-1)
        squared_norms += weights[:, head] * torch.einsum("bgk,bgqk->bqk", inner_products, weights)
    return squared_norms.clamp_min(0).sqrt()


def compute_pattern_norms(
    attention: Tensor, values: Tensor, projection: Tensor, explained: Tensor
) -> Tensor:
    """Compute how much each head writes because of its attention pattern.

    This is the norm of the change of a head's output if its attention to the explained tokens is
    shared evenly among them: ‖Σ_j (α_ij − ᾱ_i) f(x_j)‖. The sum runs over the explained tokens j,
    ᾱ_i is the mean of their weights, and f(x) = (x W_V + b_V) W_O is the transformed value vector.
    It is 0 for a head that writes nothing, that writes a constant, or whose attention is even.

    Args:
        attention: attention weights α, [batch, heads, queries, keys].
        values: value vectors x W_V + b_V, [batch, heads, keys, width].
        projection: slice of W_O for each head, [heads, width, hidden].
        explained: explained tokens to which a query may attend, bool [batch, queries, keys].

    Returns:
        Norms, float64 [batch, heads, queries], at least 0.

    >>> sharp = torch.tensor([[[[1.0, 0.0]]]])
    >>> values = torch.tensor([[[[3.0], [1.0]]]])
    >>> explained = torch.tensor([[[True, True]]])
    >>> compute_pattern_norms(sharp, values, torch.eye(1)[None], explained).item()
    1.0
    """
    mask = explained.unsqueeze(1)
    weights = attention.masked_fill(~mask, 0)
    mean_weight = weights.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)
    deviations = (weights - mean_weight).masked_fill(~mask, 0)
    # Equal values are subtracted, so that heads which write a constant get exactly 0.
    values = values.to(deviations.dtype)
    pattern_outputs = (deviations @ (values - values[:, :, :1])).double()
    slices = projection.double()
    # The squared norm of o W_O is o (W_O W_Oᵀ) oᵀ, which avoids storing vectors of the model's width.
    gram = slices @ slices.transpose(-2, -1)
    squared_norms = ((pattern_outputs @ gram) * pattern_outputs).sum(-1)
    return squared_norms.clamp_min(0).sqrt()


def normalise_head_weights(norms: Tensor) -> Tensor:
    """Convert the norms of what heads write into weights that sum to 1 in each text.

    Args:
        norms: norms for all heads of a group, float [batch, heads], at least 0.

    Returns:
        Weights in proportion to the norms, [batch, heads]. All heads have the same weight in a text
        in which no head writes anything.
    """
    total = norms.sum(-1, keepdim=True)
    weights = norms / total.where(total > 0, 1)
    return weights.where(total > 0, 1 / norms.shape[-1])


def cosine_distance(original: Tensor, changed: Tensor) -> Tensor:
    """Compute the cosine distance 1 − cos(a, b), which is exactly 0 for equal vectors.

    Args:
        original: vectors a, [..., width].
        changed: vectors b, [..., width]; the leading axes broadcast.

    Returns:
        Distance in [0, 2], float64 [...].
    """
    # For unit vectors a and b, 1 − cos(a, b) equals half the squared distance between them.
    a = torch.nn.functional.normalize(original.double(), dim=-1)
    b = torch.nn.functional.normalize(changed.double(), dim=-1)
    return (a - b).square().sum(-1) / 2


def value_zeroing(distances: Tensor, visible: Tensor) -> Tensor:
    """Compute value zeroing scores from output changes (Mohebbi et al. 2023, Section 3).

    The score C_ij is the distance by which a layer's output at position i changes if the value
    vector at position j is set to 0. Each row is then normalised to sum to 1.

    Args:
        distances: cosine distances between outputs, [batch, queries, keys].
        visible: whether the query may attend to the key, bool [batch, queries, keys].

    Returns:
        Scores, [batch, queries, keys]; a row is 0 if no distance in it is positive.
    """
    return normalise(distances * visible)
