"""Similarity of vectors: conicity and Pearson correlation."""

import torch
from torch import Tensor


def alignment_to_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """Cosine of each vector with the mean vector (Mohankumar et al. 2020, Section 2).

    Args:
        vectors: [..., keys, width].
        mask: bool [..., keys], the vectors that count.

    Returns:
        [..., keys] in [−1, 1]; 0 outside the mask and for vectors of zero length.

    >>> vectors = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    >>> alignment_to_mean(vectors, torch.tensor([True, True])).round(decimals=4)
    tensor([0.7071, 0.7071])
    """
    # The sum points the same way as the mean.
    total = (vectors * mask.unsqueeze(-1)).sum(-2, keepdim=True)
    cosines = torch.nn.functional.cosine_similarity(vectors, total, dim=-1)
    return cosines * mask


def conicity(vectors: Tensor, mask: Tensor, *, absolute: bool = False) -> Tensor:
    """Mean cosine of the vectors with their mean (Mohankumar et al. 2020, Section 2).

    Near 1 all point the same way, near 0 they spread around the origin.

    Args:
        vectors: [..., keys, width].
        mask: bool [..., keys], the vectors that count.
        absolute: takes |cos|, as the paper's released code does; its definition keeps
            the sign.

    Returns:
        [...] in [−1, 1]; 1 for a single vector, NaN where no vector counts.

    >>> vectors, mask = torch.tensor([[3.0, 0.0], [-1.0, 0.0]]), torch.ones(2).bool()
    >>> conicity(vectors, mask).item(), conicity(vectors, mask, absolute=True).item()
    (0.0, 1.0)
    """
    cosines = alignment_to_mean(vectors, mask)
    if absolute:
        cosines = cosines.abs()
    return cosines.sum(-1) / mask.sum(-1)


def pearson(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Returns the Pearson correlation over the keys that count.

    Args:
        a, b: [..., keys].
        mask: bool [..., keys], the keys that count.

    Returns:
        [...] in [−1, 1]; NaN where one of the two is constant or fewer than two count.

    >>> a, mask = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3).bool()
    >>> round(pearson(a, 5 - 2 * a, mask).item(), 6)
    -1.0
    """
    product = _centred_unit(a, mask) * _centred_unit(b, mask)
    return product.sum(-1).clamp(-1, 1)


def _centred_unit(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the values less their mean, as a vector of length 1; NaN of a constant."""
    n = mask.sum(-1, keepdim=True)
    values = torch.where(mask, values, 0)
    mean = values.sum(-1, keepdim=True) / n
    centred = torch.where(mask, values - mean, 0)
    length = centred.square().sum(-1, keepdim=True).sqrt()
    # What is left of a constant is rounding.
    epsilon = torch.finfo(values.dtype).eps
    rounding = 8 * n.sqrt() * epsilon
    rounding = rounding * values.abs().amax(-1, True)
    is_constant = length <= rounding
    return (centred / length).masked_fill(is_constant, torch.nan)
