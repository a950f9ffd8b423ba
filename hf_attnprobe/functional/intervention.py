"""Edits of attention [..., keys], whose rows still sum to 1 over the mask."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio


def uniform(attention: Tensor, mask: Tensor) -> Tensor:
    """Equal weights on every position of the mask (Wiegreffe & Pinter 2019, Section 3).

    Args:
        attention: [..., keys], rows of sum 1.
        mask: bool, broadcast to it.

    Returns:
        [..., keys]: 1/T in the mask; less where positions outside of it have weights,
        which they keep. Unchanged where the mask is empty.
    """
    held, mass = held_and_mass(attention, mask)
    weights = mask.to(attention.dtype)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
    return weights * mass + held


def held_and_mass(attention: Tensor, movable: Tensor) -> tuple[Tensor, Tensor]:
    """The weights that stay, and what a row has on the positions that may move.

    Args:
        attention: [..., keys], rows of sum 1.
        movable: bool, broadcast to it.

    Returns:
        [..., keys], 0 at movable positions, and [..., 1]: exactly 1 where nothing is held.
    """
    held = attention.masked_fill(movable, 0)
    # summed: a small mass has few digits left as 1 less what is held
    mass = (attention - held).sum(-1, keepdim=True)
    return held, mass.where((held != 0).any(-1, keepdim=True), 1)


def permute(attention: Tensor, permutation: Tensor) -> Tensor:
    """``new[..., j] = attention[..., permutation[..., j]]``.

    Jain & Wallace 2019, Section 4.2.1.

    Args:
        attention: [..., keys].
        permutation: int64 [..., keys]; broadcast over leading axes such as copies.

    Returns:
        The broadcast shape.
    """
    shape = torch.broadcast_shapes(attention.shape, permutation.shape)
    return attention.expand(shape).gather(-1, permutation.expand(shape))


def zero_out(
    attention: Tensor,
    positions: Tensor,
    *,
    renormalise: bool = True,
    movable: Tensor | None = None,
) -> Tensor:
    """Attention with some weights set to 0 (Serrano & Smith 2019, Section 3).

    Args:
        attention: [..., keys].
        positions: bool [..., keys], the weights to erase.
        renormalise: whether the weights that stay are divided by their sum.
        movable: bool [..., keys], the weights that share what is erased, the others are
            held; ``None``: all.

    Returns:
        [..., keys]; a row without any weight left stays all 0.
    """
    kept = attention.masked_fill(positions, 0)
    if not renormalise:
        return kept
    if movable is None:
        return normalise(kept)
    held, mass = held_and_mass(attention, movable)
    return normalise(kept * movable) * mass + held


def normalise(weights: Tensor) -> Tensor:
    """Weights [..., keys] divided by their sum; a row of zeros stays as it is."""
    total = weights.sum(-1, keepdim=True)
    return weights / total.clamp_min(torch.finfo(weights.dtype).tiny)


def random_generator(seed: int, example_id: int, stream: int = 0) -> np.random.Generator:
    """A generator that depends on the seed, the example and the stream alone.

    So batch, padding, order, resume and process change nothing.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, example_id, stream]))


@lru_cache(maxsize=1 << 14)
def drawn_order(seed: int, example_id: int, stream: int, n: int) -> np.ndarray:
    """A permutation of n places by :func:`random_generator`; not to be written to.

    Kept, since every head has the same one of a text.
    """
    order = random_generator(seed, example_id, stream).permutation(n)
    order.flags.writeable = False
    return order


@lru_cache(maxsize=1 << 14)
def drawn_place(seed: int, example_id: int, stream: int, n: int) -> int:
    """One of n places by :func:`random_generator`; cached like :func:`drawn_order`."""
    return int(random_generator(seed, example_id, stream).integers(n))


def _random_bits(counter: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Random 64 bits for every pair of a counter and a stream, which broadcast.

    SplitMix64 (Steele, Lea and Flood 2014) used as a counter-based generator: one
    generator object per text would cost more than the rest of a shuffle.
    """
    return _mix(_GAMMA * counter + _mix(stream.copy()))


def _mix(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits, in place.

    Every input bit changes every output bit with probability one half.
    """
    for shift, factor in (
        (30, 0xBF58476D1CE4E5B9),
        (27, 0x94D049BB133111EB),
        (31, 1),
    ):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return bits


def random_permutations(
    visible: Tensor,
    n_copies: int,
    *,
    seed: int,
    example_ids: Sequence[int],
    first: int = 0,
) -> Tensor:
    """Uniformly random permutations of the keys that each query may attend to.

    Every query row of every copy is shuffled on its own; hidden keys stay in place.

    Args:
        visible: bool [batch, queries, keys].
        n_copies: permutations per row.
        seed, example_ids: decide the permutations, together with the number of the row
            among the text's own; padding changes nothing.
        first: number of the first copy, where the copies are drawn in parts.

    Returns:
        int64 [copies, batch, queries, keys], for :func:`permute`.
    """
    rows = visible.cpu().numpy()
    n_keys = rows.shape[-1]
    places = np.arange(n_keys, dtype=np.uint64)
    n_bits = np.uint64(n_keys.bit_length())

    stream = _row_streams(rows, seed, example_ids)
    copy = np.arange(first + 1, first + n_copies + 1, dtype=np.uint64)
    copy = copy[:, None, None, None]
    shuffled = _random_bits(copy, stream)
    # Random bits above, the place below: sorting such numbers shuffles the places, and
    # is much cheaper than argsort.
    shuffled >>= n_bits + np.uint64(1)
    shuffled <<= n_bits
    shuffled |= places
    np.copyto(shuffled, places | np.uint64(1 << 63), where=~rows)
    shuffled.sort(axis=-1)
    shuffled &= (np.uint64(1) << n_bits) - np.uint64(1)

    # In both arrays the visible keys come first and the hidden ones, in order, behind.
    position = torch.from_numpy(np.argsort(~rows, axis=-1, kind="stable"))
    keys = torch.from_numpy(shuffled.view(np.int64))
    permutations = torch.empty_like(keys)
    permutations.scatter_(-1, position.expand(keys.shape), keys)
    return permutations.to(visible.device)


def _row_streams(rows: np.ndarray, seed: int, example_ids: Sequence[int]) -> np.ndarray:
    """Returns a number for every query and key of every text, uint64 [batch, queries, keys]."""
    # Counted over the queries and keys of the text, so that padding draws nothing.
    is_query = rows.any(2, keepdims=True)
    is_key = rows.any(1, keepdims=True)
    query = is_query.cumsum(1, dtype=np.uint64)
    key = is_key.cumsum(2, dtype=np.uint64)
    ids = np.asarray(example_ids, dtype=np.int64).astype(np.uint64)
    ids = ids[:, None, None]
    first = np.array([seed + 1], dtype=np.uint64)
    text = _mix(ids + _GAMMA * first)
    place = query << np.uint64(32)
    return _mix(text + place + key)


def at_head(attention: Tensor, head: int, query: int | None, new: Tensor) -> Tensor:
    """Copies of a layer's attention with one head, or one of its queries, replaced.

    Args:
        attention: [batch, heads, queries, keys].
        head: the head to replace.
        query: the query row to replace; None replaces all rows.
        new: [copies, batch, queries, keys].

    Returns:
        [copies, batch, heads, queries, keys].
    """
    return at_heads(attention, [head], query, new.unsqueeze(2))


def at_heads(attention: Tensor, heads: Sequence[int], query: int | None, new: Tensor) -> Tensor:
    """Like :func:`at_head`, with several heads replaced at once.

    Args:
        new: [copies, batch, replaced heads, queries, keys].
    """
    edited = attention.to(new.dtype)
    edited = edited.expand(len(new), *attention.shape).clone()
    rows = slice(None)
    if query is not None:
        rows = slice(query, query + 1)
    edited[:, :, [*heads], rows] = new[:, :, :, rows]
    return edited
