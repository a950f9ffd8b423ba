"""Fixed pseudo-random samples and orders, drawn by a hash of ids. Pure.

A limit draws texts by a hash of their ids: the first ones of many data sets are of one class, a
hash needs no seed to be the same everywhere, and fewer texts are among more.
"""

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:  # a command names its data without waiting for numpy
    import numpy as np


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def by_hash(ids: "Sequence[int] | np.ndarray", limit: int | None = None) -> list[int]:
    """Indices of `ids` sorted by SHA-256: a fixed pseudo-random order, or the first of it."""

    def digest(place: int) -> bytes:
        return _digest(str(ids[place]))

    n = len(ids) if limit is None else limit
    return heapq.nsmallest(n, range(len(ids)), key=digest)


def sample(rows: Sequence[int], ids: "Sequence[int] | np.ndarray", limit: int | None) -> list[int]:
    """A fixed pseudo-random sample of `rows`, in their order, chosen by their ids.

    A smaller sample is part of a larger one. The first rows would not do: many data
    sets are sorted by class.

    >>> sample(range(10), range(10), 3), sample(range(10), range(10), 4)
    ([4, 8, 9], [3, 4, 8, 9])
    """
    return [rows[k] for k in sorted(by_hash(ids, limit))]


def random_order(ids: Iterable[int], seed: int) -> list[int]:
    """The ids in an order that depends on the seed and on nothing else.

    By another hash than the one that draws a sample or halves the texts.

    >>> random_order(range(6), 0)
    [0, 4, 1, 3, 5, 2]
    """

    def place(example_id: int) -> bytes:
        return _digest(f"order {seed} of {example_id}")

    return sorted(set(ids), key=place)


def places_in(ids: Sequence[int], share: tuple[int, int]) -> list[int]:
    """Where the ids of a share are, by a hash of each."""
    number, of = share
    hashes = (_digest(f"share of {k}") for k in ids)
    return [k for k, digest in enumerate(hashes) if int.from_bytes(digest[:8]) % of == number]
