"""Edits: functions from attention to attention, [..., keys] -> [..., keys], rows still summing to 1 over the mask."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def uniform(attention: Tensor, mask: Tensor) -> Tensor:
    """1/T on every position of the mask, 0 elsewhere (all 0 where the mask is empty)."""
    weights = mask.to(attention.dtype)
    return (weights / weights.sum(-1, keepdim=True).clamp_min(1)).expand_as(attention)


def permute(attention: Tensor, permutation: Tensor) -> Tensor:
    """``new[..., j] = attention[..., permutation[..., j]]``; broadcasts over leading axes such as copies."""
    shape = torch.broadcast_shapes(attention.shape, permutation.shape)
    return attention.expand(shape).gather(-1, permutation.expand(shape))


def zero_out(attention: Tensor, positions: Tensor, *, renormalise: bool = True) -> Tensor:
    """Weights at ``positions`` (bool) set to 0, the rest divided by their sum (Serrano & Smith 2019, Section 3).

    Where nothing is left the row stays all 0: the caller decides whether that counts.
    """
    kept = attention.masked_fill(positions, 0)
    if not renormalise:
        return kept
    return kept / kept.sum(-1, keepdim=True).clamp_min(torch.finfo(kept.dtype).tiny)


def keep_only(attention: Tensor, positions: Tensor, *, renormalise: bool = True) -> Tensor:
    """The complement of :func:`zero_out`: only ``positions`` keep their weight."""
    return zero_out(attention, ~positions, renormalise=renormalise)


def random_generator(seed: int, example_id: int, stream: int = 0) -> np.random.Generator:
    """A generator that depends on the seed and the example alone: not on batch, padding, order, resume or process."""
    return np.random.default_rng(np.random.SeedSequence([seed, example_id, stream]))


def random_permutations(mask: Tensor, n_copies: int, *, seed: int, example_ids: Sequence[int]) -> Tensor:
    """Uniformly random permutations of each row's masked-in positions; all others stay where they are.

    Shape: mask [batch, keys] -> int64 [copies, batch, keys], for :func:`permute`.
    """
    rows = mask.cpu().numpy()
    sort_keys = np.full((n_copies, *rows.shape), np.inf, dtype=np.float32)
    for row, example_id in enumerate(example_ids):
        n_real = int(rows[row].sum())
        sort_keys[:, row, :n_real] = random_generator(seed, int(example_id)).random((n_copies, n_real), np.float32)
    # Real positions first, in their order; the rest behind them: ranks among the real ones become positions.
    position = np.argsort(~rows, axis=-1, kind="stable")
    shuffled = np.take_along_axis(position[None], np.argsort(sort_keys, axis=-1, kind="stable"), axis=-1)
    permutation = np.empty_like(shuffled)
    np.put_along_axis(permutation, np.broadcast_to(position, shuffled.shape), shuffled, axis=-1)
    return torch.from_numpy(permutation).to(mask.device)
