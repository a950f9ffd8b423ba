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


def random_permutations(visible: Tensor, n_copies: int, *, seed: int, example_ids: Sequence[int]) -> Tensor:
    """Uniformly random permutations of the keys each query may attend to; all others stay where they are.

    Every query row of every copy is shuffled on its own.

    Shape: visible bool [batch, queries, keys] -> int64 [copies, batch, queries, keys], for :func:`permute`.
    """
    rows = visible.cpu().numpy()
    sort_keys = np.full((n_copies, *rows.shape), np.inf, dtype=np.float32)
    for example, example_id in enumerate(example_ids):
        queries, keys = (rows[example].any(axis) for axis in (1, 0))
        draws = random_generator(seed, int(example_id)).random((n_copies, queries.sum(), keys.sum()), np.float32)
        sort_keys[:, example][(slice(None), *np.ix_(queries, keys))] = draws
    sort_keys[:, ~rows] = np.inf
    # Both list the visible keys first and the others behind them: the visible in order, and in random order.
    position = np.argsort(~rows, axis=-1, kind="stable")
    shuffled = np.argsort(sort_keys, axis=-1, kind="stable")
    permutation = np.empty_like(shuffled)
    np.put_along_axis(permutation, np.broadcast_to(position, shuffled.shape), shuffled, axis=-1)
    return torch.from_numpy(permutation).to(visible.device)


def at_head(attention: Tensor, head: int, query: int | None, new: Tensor) -> Tensor:
    """Copies of a layer's attention in which one head, or one query row of it, is replaced.

    Shape: attention [batch, heads, queries, keys], new [copies, batch, queries, keys] -> [copies, batch, heads, queries, keys].
    """
    edited = attention.to(new.dtype).expand(len(new), *attention.shape).clone()
    rows = slice(None) if query is None else slice(query, query + 1)
    edited[:, :, head, rows] = new[:, :, rows]
    return edited
