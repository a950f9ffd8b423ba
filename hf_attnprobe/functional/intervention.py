"""Edits of attention weights, such as shuffling or erasing them. Each row still sums to 1."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


_SPLITMIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
"""Increment of the state in the random number generator SplitMix64: 2^64 divided by the golden
ratio."""


def make_uniform(attention: Tensor, mask: Tensor) -> Tensor:
    """Give all positions inside a mask the same weight (Wiegreffe & Pinter 2019, Section 3).

    Args:
        attention: attention weights, [..., keys]; rows sum to 1.
        mask: positions whose weights become equal, bool, broadcasts to the shape of
            ``attention``.

    Returns:
        Uniform attention, [..., keys]. The T positions inside the mask get the weight 1/T each.
        If positions outside the mask have weight, it does not change, and only the rest is
        distributed equally. Rows with an empty mask are unchanged.
    """
    fixed_weights, movable_mass = split_fixed_weights(attention, mask)
    weights = mask.to(attention.dtype)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
    return weights * movable_mass + fixed_weights


def split_fixed_weights(attention: Tensor, movable: Tensor) -> tuple[Tensor, Tensor]:
    """Split attention into weights that must not change and the sum of all other weights.

    Args:
        attention: attention weights, [..., keys]; rows sum to 1.
        movable: positions whose weights may change, bool, broadcasts to the shape of
            ``attention``.

    Returns:
        Fixed weights, [..., keys], with 0 at movable positions; and the sum of the movable
        weights, [..., 1]. In rows without fixed weights, the sum is exactly 1.
    """
    fixed_weights = attention.masked_fill(movable, 0)
    # The movable weights are summed directly, because subtracting the fixed weights from 1 would
    # be imprecise if the result is small.
    movable_mass = (attention - fixed_weights).sum(-1, keepdim=True)
    has_fixed_weights = (fixed_weights != 0).any(-1, keepdim=True)
    return fixed_weights, movable_mass.where(has_fixed_weights, 1)


def permute(attention: Tensor, permutation: Tensor) -> Tensor:
    """Permute attention weights (Jain & Wallace 2019, Section 4.2.1).

    Args:
        attention: attention weights, [..., keys].
        permutation: source index for each key, int64 [..., keys]; leading axes such as copies
            broadcast.

    Returns:
        Weights ``attention[..., permutation[..., j]]`` at each key j, with the broadcast shape.
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
    """Set attention weights to 0 (Serrano & Smith 2019, Section 3).

    Args:
        attention: attention weights, [..., keys].
        positions: weights to erase, bool [..., keys].
        renormalise: whether the remaining weights are scaled up, so that their sum is the same as
            before.
        movable: which weights may be scaled up, bool [..., keys]; by default all of them.

    Returns:
        Edited weights, [..., keys]. If no weight in a row remains, the row is 0.
    """
    remaining_weights = attention.masked_fill(positions, 0)
    if not renormalise:
        return remaining_weights
    if movable is None:
        return normalise(remaining_weights)
    fixed_weights, movable_mass = split_fixed_weights(attention, movable)
    return normalise(remaining_weights * movable) * movable_mass + fixed_weights


def normalise(weights: Tensor) -> Tensor:
    """Divide weights by their sum over the last axis.

    Args:
        weights: [..., keys], at least 0.

    Returns:
        [..., keys]; rows sum to 1, but rows that only contain zeros are unchanged.
    """
    total = weights.sum(-1, keepdim=True)
    # The smallest positive float as a minimum avoids a division by 0.
    return weights / total.clamp_min(torch.finfo(weights.dtype).tiny)


def create_random_generator(seed: int, example_id: int, stream: int = 0) -> np.random.Generator:
    """Create a random generator for one text.

    The random numbers only depend on the arguments. They are therefore the same for any batch
    size, padding, text order and number of processes, and after an interruption.

    Args:
        seed: audit seed.
        example_id: text id.
        stream: number of a random stream. Draws from different streams are independent.

    Returns:
        A NumPy generator.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, example_id, stream]))


@lru_cache(maxsize=1 << 14)
def draw_permutation(seed: int, example_id: int, stream: int, n: int) -> np.ndarray:
    """Draw a random permutation of the indices 0 to n − 1 for a text.

    The result only depends on the arguments; see :func:`create_random_generator`. It is cached,
    because all heads use the same permutation for a text.

    Args:
        seed: audit seed.
        example_id: text id.
        stream: number of a random stream. Draws from different streams are independent.
        n: number of indices.

    Returns:
        Permutation, a read-only array [n].
    """
    permutation = create_random_generator(seed, example_id, stream).permutation(n)
    permutation.flags.writeable = False
    return permutation


@lru_cache(maxsize=1 << 14)
def draw_index(seed: int, example_id: int, stream: int, n: int) -> int:
    """Draw a random index below n for a text.

    The result only depends on the arguments; see :func:`create_random_generator`. It is cached,
    because all heads use the same index for a text.

    Args:
        seed: audit seed.
        example_id: text id.
        stream: number of a random stream. Draws from different streams are independent.
        n: exclusive upper bound of the index.

    Returns:
        The index.
    """
    return int(create_random_generator(seed, example_id, stream).integers(n))


def _compute_random_bits(counter: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Compute 64 random bits from each pair of a counter and a stream number.

    The same pair always gives the same bits. The two arrays broadcast. The algorithm is
    SplitMix64 (Steele, Lea and Flood 2014), which is much faster than creating a NumPy generator
    for each text.
    """
    return _mix(_SPLITMIX_INCREMENT * counter + _mix(stream.copy()))


def _mix(bits: np.ndarray) -> np.ndarray:
    """Scramble 64-bit integers in place with the mixing function from SplitMix64.

    Different inputs have different results. If one input bit changes, each output bit changes
    with a probability of about one half.
    """
    # Shifts and factors from SplitMix64. The last step has no factor, so its factor is 1.
    for shift, factor in (
        (30, 0xBF58476D1CE4E5B9),
        (27, 0x94D049BB133111EB),
        (31, 1),
    ):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return bits


def draw_permutations(
    visible: Tensor,
    n_copies: int,
    *,
    seed: int,
    example_ids: Sequence[int],
    first: int = 0,
) -> Tensor:
    """Draw uniformly random permutations of the keys that each query may attend to.

    Every query row is shuffled independently in every copy; hidden keys keep their position. A
    permutation depends on the seed, the text id, the row within the text and the copy number,
    but not on padding.

    Args:
        visible: whether the query may attend to the key, bool [batch, queries, keys].
        n_copies: number of permutations per row.
        seed: audit seed.
        example_ids: text ids.
        first: number of the first copy, so that several calls can draw different copies.

    Returns:
        Permutations for :func:`permute`, int64 [copies, batch, queries, keys].
    """
    is_visible = visible.cpu().numpy()
    n_keys = is_visible.shape[-1]
    positions = np.arange(n_keys, dtype=np.uint64)
    n_bits = np.uint64(n_keys.bit_length())

    stream = _compute_stream_numbers(is_visible, seed, example_ids)
    copy = np.arange(first + 1, first + n_copies + 1, dtype=np.uint64)
    copy = copy[:, None, None, None]
    shuffled = _compute_random_bits(copy, stream)
    # Each number has random high bits, and its position in the low bits. Sorting the numbers
    # therefore shuffles the positions, and is much faster than argsort. The highest bit is set
    # for hidden keys, so that they come last and stay in order.
    shuffled >>= n_bits + np.uint64(1)
    shuffled <<= n_bits
    shuffled |= positions
    np.copyto(shuffled, positions | np.uint64(1 << 63), where=~is_visible)
    shuffled.sort(axis=-1)
    shuffled &= (np.uint64(1) << n_bits) - np.uint64(1)

    # Both arrays list the visible keys first and then the hidden keys in order.
    target_positions = torch.from_numpy(np.argsort(~is_visible, axis=-1, kind="stable"))
    source_positions = torch.from_numpy(shuffled.view(np.int64))
    permutations = torch.empty_like(source_positions)
    target_positions = target_positions.expand(source_positions.shape)
    permutations.scatter_(-1, target_positions, source_positions)
    return permutations.to(visible.device)


def _compute_stream_numbers(
    is_visible: np.ndarray, seed: int, example_ids: Sequence[int]
) -> np.ndarray:
    """Compute the number of the random stream for each pair of a query and a key.

    Random numbers from different streams are independent. The same seed, text, query and key
    always have the same stream number.

    Args:
        is_visible: whether the query may attend to the key, bool [batch, queries, keys].
        seed: audit seed.
        example_ids: text ids.

    Returns:
        Stream numbers, uint64 [batch, queries, keys].
    """
    # Queries and keys are counted within the text, so that padding has no influence.
    is_query = is_visible.any(2, keepdims=True)
    is_key = is_visible.any(1, keepdims=True)
    query_number = is_query.cumsum(1, dtype=np.uint64)
    key_number = is_key.cumsum(2, dtype=np.uint64)
    ids = np.asarray(example_ids, dtype=np.int64).astype(np.uint64)
    ids = ids[:, None, None]
    seed_counter = np.array([seed + 1], dtype=np.uint64)
    text_bits = _mix(ids + _SPLITMIX_INCREMENT * seed_counter)
    # The upper 32 bits contain the query, and the lower 32 bits the key.
    query_bits = query_number << np.uint64(32)
    return _mix(text_bits + query_bits + key_number)


def replace_head(attention: Tensor, head: int, query: int | None, new: Tensor) -> Tensor:
    """Copy a layer's attention and replace the weights of one head.

    Args:
        attention: attention weights, [batch, heads, queries, keys].
        head: head index.
        query: index of the query row to replace; None replaces all rows.
        new: new weights of the head, [copies, batch, queries, keys]. Each copy is one variant.

    Returns:
        Weights of the whole layer, [copies, batch, heads, queries, keys].
    """
    return replace_heads(attention, [head], query, new.unsqueeze(2))


def replace_heads(
    attention: Tensor, heads: Sequence[int], query: int | None, new: Tensor
) -> Tensor:
    """Copy a layer's attention and replace the weights of several heads.

    Args:
        attention: attention weights, [batch, heads, queries, keys].
        heads: indices of the heads.
        query: index of the query row to replace; None replaces all rows.
        new: new weights, [copies, batch, replaced heads, queries, keys]. Each copy is one
            variant.

    Returns:
        Weights of the whole layer, [copies, batch, heads, queries, keys].
    """
    edited = attention.to(new.dtype)
    edited = edited.expand(len(new), *attention.shape).clone()
    rows = slice(None)
    if query is not None:
        rows = slice(query, query + 1)
    edited[:, :, [*heads], rows] = new[:, :, :, rows]
    return edited
