"""The summary of a part of the texts, and how two of them become one.

Of every column (test, statistic, site) and every predicted class: how many texts have a
value, mean and sums of squares and cubes about it (Chan, Golub & LeVeque 1983; Pébay
2008), smallest and largest, and counts in fixed bins. Texts of all classes together are
the classes merged. Merging is commutative to the last bit and
associative to rounding, so whoever merges in the order of the parts gets the same bits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from hf_attnprobe.statistics.bootstrap import moments
from hf_attnprobe.statistics.merging.blocks import Block
from hf_attnprobe.statistics.merging.histograms import coarsened, histogram
from hf_attnprobe.statistics.summary import PREDICTION


KEYS = ("cell", "test", "statistic", "layer", "head")
NO_CLASS = -1  # the cell of texts without one predicted class
EVERY = -2  # the cell of all texts, of what is pooled
MOST_CLASSES = 16  # that are kept apart
MOST_SITES = 64  # of a test whose single heads are kept in full


@dataclass(frozen=True)
class Partial:
    """A summary of some texts; rows are columns of values within a cell.

    Attributes:
        keys: cell (number of the predicted class, −1 without), test, statistic, layer
            and head of each row, sorted.
        n: texts that have a value, int64 [rows]; n_zero, n_one: of these exactly so.
        mean: of these, [rows]; 0 where there are none. m2, m3: Σ (value − mean)²,
            and cubed.
        low, high: smallest and largest value, [rows].
        is_brief: bool [rows]: one of so many heads that its bins are coarse.
        bins: counts [rows, bins].
        texts: the number of tested texts by cell.
    """

    keys: pd.MultiIndex
    n: np.ndarray
    n_zero: np.ndarray
    n_one: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_brief: np.ndarray
    bins: csr_array
    texts: dict[int, int]

    def rows(self, wanted: np.ndarray) -> "Partial":
        """Some of the rows: bool or int [rows]."""
        return replace(
            self,
            keys=self.keys[wanted],
            bins=self.bins[wanted],
            **{name: getattr(self, name)[wanted] for name in ARRAYS},
        )


ARRAYS = (
    "n",
    "n_zero",
    "n_one",
    "mean",
    "m2",
    "m3",
    "low",
    "high",
    "is_brief",
)
"""Fields of :class:`Partial` with a row each."""
NEUTRAL = {"low": np.inf, "high": -np.inf}  # others are 0


def summary_of_part(blocks: Sequence[Block], n_classes: int) -> Partial:
    """The summary of the texts of a part.

    Args:
        blocks: the tests' values, and those of the prediction.
        n_classes: of the model; of more than 16 the texts are not kept apart by class.
    """
    cells = _cells(blocks, n_classes)
    pieces = []
    for block in blocks:
        own = cells.reindex(block.example_ids).fillna(NO_CLASS).to_numpy(dtype=int)
        for cell in np.unique(own):
            inside = own == cell
            for names in _at_once(block):
                pieces.append(_piece(block, names, cell, inside))
    tested = [b.example_ids for b in blocks if b.test != PREDICTION]
    ids = np.unique(np.concatenate(tested)) if tested else np.empty(0, dtype=int)
    counted = cells.reindex(ids).fillna(NO_CLASS).astype(int).value_counts()
    texts = {int(cell): int(n) for cell, n in sorted(counted.items())}
    return _sorted(replace(_joined([nothing(), *pieces]), texts=texts))


def nothing() -> Partial:
    """The summary of no texts: merging it changes nothing."""
    whole, real = np.empty(0, dtype=np.int64), np.empty(0)
    return Partial(
        keys=pd.MultiIndex.from_arrays([[]] * len(KEYS), names=KEYS),
        n=whole,
        n_zero=whole,
        n_one=whole,
        mean=real,
        m2=real,
        m3=real,
        low=real,
        high=real,
        is_brief=np.empty(0, dtype=bool),
        bins=histogram(np.empty((0, 0))),
        texts={},
    )


def _cells(blocks: Iterable[Block], n_classes: int) -> pd.Series:
    """The number of the predicted class by text."""
    for block in blocks:
        if block.test == PREDICTION and n_classes <= MOST_CLASSES:
            predicted = np.nan_to_num(block.at("predicted_class"), nan=NO_CLASS)
            return pd.Series(predicted.astype(int), index=block.example_ids)
    return pd.Series(dtype=int)


def _at_once(block: Block) -> list[list[str]]:
    """Statistics that are summarised together: of many heads only one, for memory."""
    if len(block.sites) > MOST_SITES:
        return [[name] for name in block.columns]
    return [list(block.columns)] if block.columns else []


def _piece(
    block: Block,
    names: Sequence[str],
    cell: int,
    inside: np.ndarray,
) -> Partial:
    """Some statistics of the texts of one cell, at the sites that have them."""
    columns = [block.columns[name] for name in names]
    there = ~np.concatenate([c.is_missing.all(0) for c in columns])
    values = np.concatenate([c.values[inside] for c in columns], axis=1)[:, there]
    places = [(name, layer, head) for name in names for layer, head in block.sites]
    places = [place for place, is_there in zip(places, there, strict=True) if is_there]
    many = len(block.sites) > MOST_SITES
    single = np.array([layer >= 0 and head >= 0 for _, layer, head in places])
    is_brief = single.astype(bool) & many
    keys = [(int(cell), block.test, *place) for place in places]
    of = moments(values)
    return Partial(
        keys=pd.MultiIndex.from_tuples(keys, names=KEYS),
        n=of.n.astype(np.int64),
        n_zero=(values == 0).sum(0),
        n_one=(values == 1).sum(0),
        mean=of.mean,
        m2=of.m2,
        m3=of.m3,
        low=of.low,
        high=of.high,
        is_brief=is_brief,
        bins=coarsened(histogram(values), is_brief),
        texts={},
    )


def _joined(pieces: Sequence[Partial]) -> Partial:
    """Rows of several summaries one below the other."""
    keys = [key for piece in pieces for key in piece.keys]
    stacked = _stacked([piece.bins for piece in pieces])
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(p, name) for p in pieces]) for name in ARRAYS
    }
    index = pd.MultiIndex.from_tuples(keys, names=KEYS) if keys else pieces[0].keys
    return replace(pieces[0], keys=index, bins=stacked, **arrays)


def _stacked(counts: Sequence[csr_array]) -> csr_array:
    """Rows of sparse counts one below the other."""
    sizes = np.concatenate([np.diff(block.indptr) for block in counts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    data = np.concatenate([block.data for block in counts])
    columns = np.concatenate([block.indices for block in counts])
    shape = len(sizes), counts[0].shape[1]
    return csr_array((data, columns, offsets), shape=shape)


def _sorted(partial: Partial) -> Partial:
    order = partial.keys.argsort() if len(partial.keys) else np.empty(0, dtype=int)
    return partial.rows(order)


def merge(first: Partial, second: Partial) -> Partial:
    """The summary of the texts of both; no text may be in both."""
    if not first.keys.equals(second.keys):
        keys = first.keys.union(second.keys) if len(first.keys) else second.keys
        first, second = _at(first, keys), _at(second, keys)
    n = first.n + second.n
    size = np.maximum(n, 1)
    # Of a side without values the mean is 0: it must not draw the other's.
    is_alone = (first.n == 0) | (second.n == 0)
    apart = np.where(is_alone, 0.0, second.mean - first.mean)
    of_first, of_second = first.n / size, second.n / size
    squares = apart**2 * size * of_first * of_second
    cubes = apart * squares * (of_first - of_second) + 3 * apart * (
        of_first * second.m2 - of_second * first.m2
    )
    is_brief = first.is_brief | second.is_brief
    cells = sorted({*first.texts, *second.texts})
    sums = ("n_zero", "n_one")
    return Partial(
        keys=first.keys,
        n=n,
        mean=(first.n * first.mean + second.n * second.mean) / size,
        m2=first.m2 + second.m2 + squares,
        m3=first.m3 + second.m3 + cubes,
        low=np.minimum(first.low, second.low),
        high=np.maximum(first.high, second.high),
        is_brief=is_brief,
        bins=coarsened(first.bins + second.bins, first.is_brief ^ second.is_brief),
        texts={c: first.texts.get(c, 0) + second.texts.get(c, 0) for c in cells},
        **{name: getattr(first, name) + getattr(second, name) for name in sums},
    )


def _at(partial: Partial, keys: pd.MultiIndex) -> Partial:
    """The same with a row for every key; new ones are of no texts."""
    place = keys.get_indexer(partial.keys)
    arrays: dict[str, Any] = {}
    for name in ARRAYS:
        own = getattr(partial, name)
        empty = NEUTRAL.get(name, 0)
        arrays[name] = np.full((len(keys), *own.shape[1:]), empty, dtype=own.dtype)
        arrays[name][place] = own
    entries = partial.bins.tocoo()
    row, column = entries.coords
    shape = len(keys), partial.bins.shape[1]
    bins = csr_array((entries.data, (place[row], column)), shape=shape)
    return replace(partial, keys=keys, bins=bins, **arrays)


def merged(partials: Iterable[Partial]) -> Partial:
    """The summary of the texts of all, merged in the order given."""
    return reduce(merge, partials, nothing())


def of_cell(partial: Partial, cell: int) -> Partial:
    """The rows of one predicted class, or of all texts with :data:`EVERY`.

    The cell of what is returned is :data:`EVERY`: its keys are those of other classes.
    """
    if cell == EVERY:
        return merged(of_cell(partial, own) for own in cells_of(partial))
    own = partial.rows(partial.keys.get_level_values("cell") == cell)
    columns = [own.keys.get_level_values(name) for name in KEYS[1:]]
    everywhere = np.full(len(own.keys), EVERY)
    keys = pd.MultiIndex.from_arrays([everywhere, *columns], names=KEYS)
    return replace(own, keys=keys, texts={EVERY: partial.texts.get(cell, 0)})


def cells_of(partial: Partial) -> list[int]:
    """The cells that have rows."""
    return sorted(set(partial.keys.get_level_values("cell")))
