"""Fixed pseudo-random samples, drawn by a hash of ids. Pure."""

import hashlib
from collections.abc import Sequence


def by_hash(ids: Sequence[int]) -> list[int]:
    """Indices of `ids` sorted by SHA-256: a fixed pseudo-random order."""
    digests = [hashlib.sha256(str(i).encode()).digest() for i in ids]
    return sorted(range(len(ids)), key=digests.__getitem__)


def sample(rows: Sequence[int], ids: Sequence[int], limit: int | None) -> list[int]:
    """A fixed pseudo-random sample of `rows`, in their order, chosen by their ids.

    A smaller sample is part of a larger one. The first rows would not do: many data
    sets are sorted by class.

    >>> sample(range(10), range(10), 3), sample(range(10), range(10), 4)
    ([4, 8, 9], [3, 4, 8, 9])
    """
    return [rows[k] for k in sorted(by_hash(ids)[:limit])]
