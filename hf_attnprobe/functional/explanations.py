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
    """Compute points and weights for numerical integration from 0 to 1.

    This is Gauss-Legendre quadrature: the integral of f is approximated by the sum of w · f(s)
    over pairs of a point s and a weight w. It is exact for polynomials with a degree below
    ``2 * n_points``.

    Args:
        n_points: number of points.

    Returns:
        Pairs (s, w) with a point s in (0, 1) and its weight w. The weights sum to 1.

    >>> [(round(s, 4), round(w, 4)) for s, w in gauss_legendre(2)]
    [(0.2113, 0.5), (0.7887, 0.5)]
    """
    # NumPy integrates from −1 to 1, so the points are shifted and the weights are halved.
    points, weights = np.polynomial.legendre.leggauss(n_points)
    unit_points = (points + 1) / 2
    unit_weights = weights / 2
    return list(zip(unit_points.tolist(), unit_weights.tolist(), strict=True))


def attention_times_gradient(attention: Tensor, gradient: Tensor) -> Tensor:
    """Multiply each attention weight by its gradient.

    If the output were linear in the weights, the product would be the contribution of this
    weight to the output. Serrano & Smith 2019 (Section 4.2) rank weights by it.

    Args:
        attention: attention weights, [..., queries, keys].
        gradient: gradient of the output with respect to the attention, [..., queries, keys].

    Returns:
        Signed contributions, [..., queries, keys].
    """
    return attention * gradient


def rollout(maps: Sequence[Tensor], *, residual: bool = True) -> Tensor:
    """Compute attention rollout: how much each input position contributes to the last layer.

    Rollout multiplies the attention maps of all layers: R₁ = A₁ and R_l = A_l R_(l−1) (Abnar &
    Zuidema 2020, Section 3).

    Args:
        maps: for each layer, how much each position (row) attends to each other position
            (column), [batch, positions, positions], lowest layer first.
        residual: whether to account for the residual connection by A_l = ½ map + ½ I. Use False
            for maps that already include it (Mohebbi et al. 2023, Section 3).

    Returns:
        Contribution of each input position (column) to each output position (row), [batch,
        positions, positions].

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

    A head's output is the matrix product A T of the attention A and the value vectors T. If a
    text has more keys than the vectors have dimensions, different attention can give the same
    output. The effective attention A⊥ is the part of A that affects the output (Brunner et al.
    2020, Section 3.2): A⊥ = A U_r U_rᵀ, with the singular value decomposition T = U Σ Vᵀ and the
    rank r.

    In the paper, T also includes the head's slice of the output projection. This does not change
    the result, because the slice has full rank.

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
    """Compute norm-based attention of each head (Kobayashi et al. 2020, Section 3.2).

    Norm-based attention ‖α_ij f(x_j)‖ is the length of the vector that query i receives from key
    j. Here α_ij is the attention weight and f(x) = (x W_V + b_V) W_O the transformed value
    vector, with the head's slice W_O of the output projection, without its bias.

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
    """Compute norm-based attention of a whole layer (Kobayashi et al. 2020, Section 3.2).

    The result is ‖Σ_h α^h_ij f^h(x_j)‖. In contrast to :func:`norm_based_attention`, the vectors
    of all heads h are added before the norm is computed, so heads can cancel each other out.

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
    """Compute the cosine distance 1 − cos(a, b) between vectors a and b.

    For equal vectors, the result is exactly 0, without rounding errors.

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

    The score for query i and key j is the change of the layer's output at i if the value vector
    at j is set to 0. Each row of scores is divided by its sum.

    Args:
        distances: cosine distances between the outputs before and after the change, [batch,
            queries, keys].
        visible: whether the query may attend to the key, bool [batch, queries, keys].

    Returns:
        Scores, [batch, queries, keys]; a row is 0 if no distance in it is positive.
    """
    return normalise(distances * visible)
