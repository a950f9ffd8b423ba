"""Rows of an audit that ended before all texts were done.

Texts are taken in a fixed random order. At every head the rows count that are the first of that
order without a gap, however the work was batched, killed or shared out: a random sample of the
texts at whatever moment one looks.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.rows import Column, Rows
from hf_attnprobe.statistics.samples import random_order


MARK = "stopping"


def without_gaps(rows: Rows, order: Sequence[int]) -> Rows:
    """For every test and head, keeps the rows of the order's first texts, up to a gap.

    Args:
        rows: of an audit.
        order: all ids, as :func:`random_order` gives them.
    """
    rows = rows.of_texts(order)
    ranks = (
        pd.Series(range(len(order)), index=order).reindex(rows.index).to_numpy()
    )

    @functools.cache
    def counts(test: str, layer: int, head: int) -> np.ndarray:
        """Returns which texts count at a place, bool [texts]."""
        measured = np.zeros(len(rows), dtype=bool)
        for column in rows.columns:
            is_here = (column[0], *column[2:]) == (test, layer, head)
            if is_here and not measured.all():
                measured |= rows.is_there(column)
        is_in_turn = np.sort(ranks[measured]) == np.arange(measured.sum())
        n_first = is_in_turn.sum()
        return measured & (ranks < n_first)

    def known(column: Column) -> np.ndarray:
        return rows.is_there(column) & counts(column[0], *column[2:])

    found = replace(
        rows,
        read=lambda column: np.where(known(column), rows.read(column), np.nan),
        is_there=known,
    )
    return found.select(
        lambda test, _, layer, head: bool(counts(test, layer, head).any())
    ).measured()


def rows_that_count(
    rows: Rows, facts: Mapping[str, Any] | None, ids: Iterable[int]
) -> Rows:
    """Of an audit that ended early the rows without gaps.

    Args:
        facts: "stopping" of a report's provenance; None of an ordinary audit.
        ids: of all its texts.
    """
    if facts is None or not len(rows):
        return rows
    return without_gaps(rows, random_order(ids, facts["seed"]))
