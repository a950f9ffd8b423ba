"""Do the vectors of a text all point the same way? Mohankumar et al. 2020, Section 2."""

import torch.nn.functional as F
from torch import Tensor


def alignment_to_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """Cosine of each vector with the mean of those that count, in [−1, 1], 0 where it does not count or is 0.

    Shape: vectors [..., keys, width], mask bool [..., keys] -> [..., keys].

    >>> import torch
    >>> alignment_to_mean(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([True, True])).round(decimals=4)
    tensor([0.7071, 0.7071])
    """
    total = (vectors * mask.unsqueeze(-1)).sum(
        -2, keepdim=True
    )  # a mean and a sum point the same way
    return F.cosine_similarity(vectors, total, dim=-1) * mask


def conicity(vectors: Tensor, mask: Tensor, *, absolute: bool = False) -> Tensor:
    """Mean over the vectors that count of their cosine with their mean; NaN where none counts.

    Near 1 all point the same way, near 0 they are spread around the origin; a single vector has 1. The paper's definition
    has the cosine's sign; ``absolute`` takes |cos|, as its released code does.

    Shape: vectors [..., keys, width], mask bool [..., keys] -> [...].

    >>> import torch
    >>> conicity(torch.tensor([[3.0, 0.0], [-1.0, 0.0]]), torch.tensor([True, True])).item()
    0.0
    >>> conicity(torch.tensor([[3.0, 0.0], [-1.0, 0.0]]), torch.tensor([True, True]), absolute=True).item()
    1.0
    """
    cosines = alignment_to_mean(vectors, mask)
    return (cosines.abs() if absolute else cosines).sum(-1) / mask.sum(-1)
