"""Edits: functions from attention to attention, [..., keys] -> [..., keys], rows still summing to 1 over the mask."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio


def uniform(attention: Tensor, mask: Tensor) -> Tensor:
    """1/T on every position of the mask, 0 elsewhere (all 0 where the mask is empty)."""
    weights = mask.to(attention.dtype)
    return (weights / weights.sum(-1, keepdim=True).clamp_min(1)).expand_as(attention)


def permute(attention: Tensor, permutation: Tensor) -> Tensor:
    """``new[..., j] = attention[..., permutation[..., j]]``; broadcasts over leading axes such as copies."""
    shape = torch.broadcast_shapes(attention.shape, permutation.shape)
    return attention.expand(shape).gather(-1, permutation.expand(shape))


def zero_out(
    attention: Tensor, positions: Tensor, *, renormalise: bool = True
) -> Tensor:
    """Weights at ``positions`` (bool) set to 0, the rest divided by their sum (Serrano & Smith 2019, Section 3).

    Where nothing is left the row stays all 0: the caller decides whether that counts.
    """
    kept = attention.masked_fill(positions, 0)
    if not renormalise:
        return kept
    return kept / kept.sum(-1, keepdim=True).clamp_min(torch.finfo(kept.dtype).tiny)


def keep_only(
    attention: Tensor, positions: Tensor, *, renormalise: bool = True
) -> Tensor:
    """The complement of :func:`zero_out`: only ``positions`` keep their weight."""
    return zero_out(attention, ~positions, renormalise=renormalise)


def random_generator(
    seed: int, example_id: int, stream: int = 0
) -> np.random.Generator:
    """A generator that depends on the seed and the example alone: not on batch, padding, order, resume or process."""
    return np.random.default_rng(np.random.SeedSequence([seed, example_id, stream]))


def random_bits(counter: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Random 64 bits for every pair of a counter and a stream, which broadcast; each depends on its pair alone.

    SplitMix64 (Steele, Lea and Flood 2014) used as a counter-based generator: one generator object per text would cost
    more than all the rest of a shuffle.
    """
    return _mix(_GAMMA * counter + _mix(stream.copy()))


def _mix(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits, in place, in which every input bit changes every output bit with probability one half."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return bits


def random_permutations(
    visible: Tensor, n_copies: int, *, seed: int, example_ids: Sequence[int]
) -> Tensor:
    """Uniformly random permutations of the keys each query may attend to; all others stay where they are.

    Every query row of every copy is shuffled on its own.

    Shape: visible bool [batch, queries, keys] -> int64 [copies, batch, queries, keys], for :func:`permute`.
    """
    rows = visible.cpu().numpy()
    places, n_bits = (
        np.arange(rows.shape[-1], dtype=np.uint64),
        np.uint64(rows.shape[-1].bit_length()),
    )
    # Counted over what any query or key sees, so that padding draws nothing.
    query, key = (
        rows.any(axis, keepdims=True).cumsum(3 - axis, dtype=np.uint64)
        for axis in (2, 1)
    )
    ids = np.asarray(example_ids, dtype=np.int64).astype(np.uint64)[:, None, None]
    stream = _mix(
        _mix(ids + _GAMMA * np.array([seed + 1], dtype=np.uint64))
        + (query << np.uint64(32))
        + key
    )
    shuffled = random_bits(
        np.arange(1, n_copies + 1, dtype=np.uint64)[:, None, None, None], stream
    )
    # Random bits above, the place below: to sort such numbers is to shuffle the places, and much cheaper than argsort.
    shuffled >>= n_bits + np.uint64(1)
    shuffled <<= n_bits
    shuffled |= places
    np.copyto(shuffled, places | np.uint64(1 << 63), where=~rows)
    shuffled.sort(axis=-1)
    shuffled &= (np.uint64(1) << n_bits) - np.uint64(1)
    # The visible keys come first in both, in order and in random order; behind them the others, in order.
    position = torch.from_numpy(np.argsort(~rows, axis=-1, kind="stable")).expand(
        shuffled.shape
    )
    shuffled = torch.from_numpy(shuffled.view(np.int64))
    return (
        torch.empty_like(shuffled).scatter_(-1, position, shuffled).to(visible.device)
    )


def at_head(attention: Tensor, head: int, query: int | None, new: Tensor) -> Tensor:
    """Copies of a layer's attention in which one head, or one query row of it, is replaced.

    Shape: attention [batch, heads, queries, keys], new [copies, batch, queries, keys] -> [copies, batch, heads, queries, keys].
    """
    edited = attention.to(new.dtype).expand(len(new), *attention.shape).clone()
    rows = slice(None) if query is None else slice(query, query + 1)
    edited[:, :, head, rows] = new[:, :, rows]
    return edited
