"""Reproducible random samples and random orders of texts.

Many data sets are sorted by class, so their first texts are not a fair sample. The samples in this module
are based on a hash of the text ids instead. They need no seed and are the same on every machine. A smaller
sample is contained in every larger one.
"""

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    # The command line lists its data sets without the time that importing NumPy takes.
    import numpy as np


def _hash_text(text: str) -> bytes:
    """Compute the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).digest()


def order_by_hash(ids: "Sequence[int] | np.ndarray", limit: int | None = None) -> list[int]:
    """Put text ids in a reproducible random order, by sorting their SHA-256 hashes.

    Args:
        ids: text ids.
        limit: maximum length of the result; by default all ids.

    Returns:
        Positions in ``ids``, in random order.
    """

    def hash_id(index: int) -> bytes:
        return _hash_text(str(ids[index]))

    n = len(ids) if limit is None else limit
    return heapq.nsmallest(n, range(len(ids)), key=hash_id)


def draw_sample(
    rows: Sequence[int], ids: "Sequence[int] | np.ndarray", limit: int | None
) -> list[int]:
    """Draw a reproducible sample of rows, based on a hash of their ids.

    A smaller sample is contained in every larger one.

    Args:
        rows: the rows to draw from.
        ids: one id for each row.
        limit: sample size; None for all rows.

    Returns:
        The sampled rows in their original order.

    >>> draw_sample(range(10), range(10), 3), draw_sample(range(10), range(10), 4)
    ([4, 8, 9], [3, 4, 8, 9])
    """
    sampled_indices = sorted(order_by_hash(ids, limit))
    return [rows[index] for index in sampled_indices]


def draw_random_order(ids: Iterable[int], seed: int) -> list[int]:
    """Draw a random order of ids that depends only on the seed.

    The order is independent of the samples from :func:`draw_sample`, because it is based on other
    hashes.

    Args:
        ids: text ids; duplicates count once.
        seed: random seed.

    Returns:
        The ids in their random order.

    >>> draw_random_order(range(6), 0)
    [0, 4, 1, 3, 5, 2]
    """

    def hash_id(example_id: int) -> bytes:
        return _hash_text(f"order {seed} of {example_id}")

    return sorted(set(ids), key=hash_id)


def list_share_indices(ids: Sequence[int], share: tuple[int, int]) -> list[int]:
    """List the texts that one machine audits if an audit is divided among several machines.

    Each machine audits one part of the texts, its share. A hash of the text id decides to which
    share a text belongs, so that all machines agree.

    Args:
        ids: text ids.
        share: number of the machine's share, from 0, and total number of shares.

    Returns:
        Indices into ``ids``.
    """
    share_number, n_shares = share
    indices = []
    for index, example_id in enumerate(ids):
        # The first 8 bytes of the hash are read as an integer.
        hash_value = int.from_bytes(_hash_text(f"share of {example_id}")[:8])
        if hash_value % n_shares == share_number:
            indices.append(index)
    return indices
