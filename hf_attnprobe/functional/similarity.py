"""Similarity of vectors: conicity and Pearson correlation."""

import torch
from torch import Tensor


def compute_alignment_to_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """Compute the cosine between each vector and the mean of all vectors.

    See Mohankumar et al. 2020, Section 2.

    Args:
        vectors: [..., keys, width].
        mask: vectors to include, bool [..., keys].

    Returns:
        Cosines in [−1, 1], [..., keys]; 0 outside the mask and for zero vectors.

    >>> vectors = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    >>> compute_alignment_to_mean(vectors, torch.tensor([True, True])).round(decimals=4)
    tensor([0.7071, 0.7071])
    """
    # The sum has the same direction as the mean.
    total = (vectors * mask.unsqueeze(-1)).sum(-2, keepdim=True)
    cosines = torch.nn.functional.cosine_similarity(vectors, total, dim=-1)
    return cosines * mask


def conicity(vectors: Tensor, mask: Tensor, *, absolute: bool = False) -> Tensor:
    """Compute conicity, the mean cosine between vectors and their mean.

    Conicity is near 1 if all vectors have the same direction, and near 0 if they are spread
    around the origin (Mohankumar et al. 2020, Section 2).

    Args:
        vectors: [..., keys, width].
        mask: vectors to include, bool [..., keys].
        absolute: whether to average |cos|, as the paper's released code does. The definition in
            the paper keeps the sign.

    Returns:
        Conicity in [−1, 1], [...]; 1 for a single vector, NaN if the mask is empty.

    >>> vectors, mask = torch.tensor([[3.0, 0.0], [-1.0, 0.0]]), torch.ones(2).bool()
    >>> conicity(vectors, mask).item(), conicity(vectors, mask, absolute=True).item()
    (0.0, 1.0)
    """
    cosines = compute_alignment_to_mean(vectors, mask)
    if absolute:
        cosines = cosines.abs()
    return cosines.sum(-1) / mask.sum(-1)


def pearson(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Compute the Pearson correlation between a and b over the keys inside the mask.

    Args:
        a: [..., keys].
        b: [..., keys].
        mask: keys to include, bool [..., keys].

    Returns:
        Correlation in [−1, 1], [...]; NaN if a or b is constant, or if fewer than two keys are
        included.

    >>> a, mask = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3).bool()
    >>> round(pearson(a, 5 - 2 * a, mask).item(), 6)
    -1.0
    """
    product = _standardise(a, mask) * _standardise(b, mask)
    return product.sum(-1).clamp(-1, 1)


def _standardise(values: Tensor, mask: Tensor) -> Tensor:
    """Subtract the mean from the values inside the mask, and scale them to Euclidean length 1.

    Returns:
        Vectors with mean 0 and length 1, [..., keys]; NaN if all values are equal.
    """
    n = mask.sum(-1, keepdim=True)
    values = torch.where(mask, values, 0)
    mean = values.sum(-1, keepdim=True) / n
    centred = torch.where(mask, values - mean, 0)
    length = centred.square().sum(-1, keepdim=True).sqrt()
    # If all values are equal, the length is not exactly 0 because of rounding.
    epsilon = torch.finfo(values.dtype).eps
    rounding = 8 * n.sqrt() * epsilon
    rounding = rounding * values.abs().amax(-1, True)
    is_constant = length <= rounding
    return (centred / length).masked_fill(is_constant, torch.nan)
